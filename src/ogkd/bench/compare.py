"""The published numbers (published/*.csv, in percent as printed) and ours beside them."""

from __future__ import annotations

import csv
import functools
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.resources import files

from ogkd.bench.analysis import harmonic_mean
from ogkd.bench.results import Plan, Run, RunsFolder
from ogkd.bench.spec import RunSpec
from ogkd.bench.summary import Amount, At, Summary
from ogkd.datasets.catalog import benchmarks

__all__ = [
    "Comparison",
    "Published",
    "catalogue_name",
    "compare_with_published",
    "comparison_csv",
    "comparison_markdown",
    "published",
]

AVERAGE = "average"
_ROUNDING = 0.02  # a recomputed average may differ so much from the printed one


@dataclass(frozen=True)
class Published:
    """One printed number, in percent."""

    table: str
    dataset: str  # as in the catalogue, or "average"
    method: str  # as in our registry
    shots: int | None  # None: needs none
    part: str  # test, base, novel, hm
    flips: int
    setting: str  # of an ablation
    metric: str  # accuracy, or accuracy_gain: ogkd less biomedcoop
    value: float
    std: float | None


@dataclass(frozen=True)
class Comparison:
    """Ours beside the published number, in percent; no difference where they do not compare."""

    table: str
    dataset: str
    label: str
    shots: int | None
    flips: int
    part: str  # "hm" of an average: of the averages; "mean-hm": the mean of the datasets' own
    ours: float
    published: float
    difference: float | None
    ours_std: float
    published_std: float | None
    note: str
    backbone: str  # of ours; the paper's is BiomedCLIP


@dataclass(frozen=True)
class _Row:
    """One row of a plan at one place, with all that the paper prints for it."""

    summary: Summary
    label: str
    place: At
    backbone: str
    names: Mapping[str, str]  # of our datasets, in the catalogue
    strange: Mapping[tuple[str, str], str]  # our dataset, part: in what its classes differ
    theirs: Sequence[Published]


@functools.cache
def published() -> tuple[Published, ...]:
    """Every number of the paper's result tables."""
    found = []
    folder = files("ogkd.bench") / "published"
    for file in sorted(folder.iterdir(), key=lambda place: place.name):
        if not file.name.endswith(".csv"):
            continue
        for row in csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"))):
            numbers = {
                "shots": int(row["shots"]) if row["shots"] else None,
                "flips": int(row["flips"]),
                "value": float(row["value"]),
                "std": float(row["std"]) if row["std"] else None,
            }
            found.append(Published(**{**row, **numbers}))  # type: ignore[arg-type]
    return tuple(found)


def catalogue_name(spec: RunSpec) -> str | None:
    """The benchmark that a run is on ("COVID_19" is "covid"); None for others and phantoms."""
    if (spec.data or "").startswith("phantoms"):
        return None
    known: dict[str, str] = {}
    for name, record in benchmarks().items():
        known |= {_plain(text): name for text in (name, record.title, record.folder)}
    return known.get(_plain(spec.dataset)) or known.get(_plain(spec.bank or ""))


def compare_with_published(folder: RunsFolder, plan: Plan) -> list[Comparison]:
    """Accuracy of every cell that the paper prints too: each dataset, then the average."""
    summary = Summary(folder, plan)
    names: dict[str, str] = {}  # of our datasets; the first of two that mean the same stays
    for cell in plan.cells:
        name = catalogue_name(cell.spec)
        if name is not None and name not in names.values():
            names.setdefault(cell.spec.dataset, name)
    methods = {cell.label: cell.spec.method for cell in plan.cells}
    backbones = {
        label: ", ".join(sorted({cell.spec.backbone for cell in plan.cells if cell.label == label}))
        for label in methods
    }
    strange = _strange(folder, plan)
    found: list[Comparison] = []
    for label in summary.labels:
        for place in summary.places:
            if place.value is not None:
                continue  # a swept setting: the paper has figures of these, no tables
            theirs = _candidates(plan, label, methods[label], place)
            row = _Row(summary, label, place, backbones[label], names, strange, theirs)
            for part in summary.parts(place):
                found += _cells(row, part)
                if part == "novel":
                    for mean in ("hm", "mean-hm"):
                        found += _cells(row, mean)
    return found


def _strange(folder: RunsFolder, plan: Plan) -> dict[tuple[str, str], str]:
    """By dataset and part, in what the classes of finished runs differ from the benchmark's."""
    found: dict[tuple[str, str], str] = {}
    for _, run in folder.finished(plan):
        if problem := _other_classes(run):
            found |= {(run.spec.dataset, part): problem for part in run.parts}
            if "base" in run.parts:
                found |= {(run.spec.dataset, mean): problem for mean in ("hm", "mean-hm")}
    return found


def _other_classes(run: Run) -> str:
    """In what a run's classes differ from the paper's, whatever their order; "" if in nothing."""
    name = catalogue_name(run.spec)
    if name is None:
        return ""
    record = benchmarks()[name]
    mine = {part: {_plain(text) for text in run.class_names(part)} for part in run.parts}
    if set().union(*mine.values()) != {_plain(text) for text in record.class_names}:
        return "other classes"
    if "base" in mine and mine["base"] != {_plain(text) for text in record.base_classes}:
        return "other base classes"
    return ""


def _candidates(plan: Plan, label: str, method: str, place: At) -> list[Published]:
    """Published numbers of a row at a place; an ablation's rows are known by their labels."""
    rows = [
        row
        for row in published()
        if row.metric == "accuracy"
        and row.flips == place.flips
        and row.shots in (None, place.shots)
    ]
    if plan.table == "ablation":
        return [row for row in rows if row.setting and _plain(row.setting) == _plain(label)]
    return [row for row in rows if not row.setting and row.method == method]


def _cells(row: _Row, part: str) -> Iterable[Comparison]:
    printed_part = "hm" if part == "mean-hm" else part
    printed = {one.dataset: one for one in row.theirs if one.part == printed_part}
    if not printed:
        return
    wanted = set(row.summary.wanted(row.place, part))
    shared = {name: ours for ours, name in row.names.items() if ours in wanted}
    strange = {
        name: row.strange[ours, part]
        for name, ours in shared.items()
        if (ours, part) in row.strange
    }
    if part != "mean-hm":
        for name, ours in shared.items():
            amount = row.summary.of(row.label, ours, row.place, part)
            if amount is not None and name in printed:
                notes = [] if amount.complete else [f"{amount.done} of {amount.planned} runs"]
                if name in strange:
                    notes.append(strange[name])
                    amount = _not_comparable(amount)
                yield _comparison(row, part, printed[name], amount, printed[name].value, notes)
    # One printed average cannot say which mean of HMs it is; the paper's text has the first.
    if AVERAGE in printed and not (part == "mean-hm" and len(printed) == 1):
        yield from _averages(row, part, printed, shared, strange)


def _averages(
    row: _Row,
    part: str,
    printed: Mapping[str, Published],
    shared: Mapping[str, str],
    strange: Mapping[str, str],
) -> Iterable[Comparison]:
    """The average over the datasets whose classes are the paper's; if none is so, over all."""
    same = {name: ours for name, ours in shared.items() if name not in strange}
    amount = row.summary.average(row.label, row.place, part, list(same.values() or shared.values()))
    if amount is None:
        return
    everything = {name for name, one in benchmarks().items() if one.base_to_novel or part == "test"}
    value = printed[AVERAGE].value
    notes = [] if amount.complete else ["runs are missing"]
    if not same:
        amount = _not_comparable(amount)
    elif len(printed) > 1:
        value = _average(row.theirs, part, list(same))
        if len(same) < len(everything):
            notes = notes or [f"both over {len(same)} datasets"]
        elif abs(value - printed[AVERAGE].value) > _ROUNDING:
            notes = notes or [f"printed: {printed[AVERAGE].value:.2f}"]
    elif set(same) != everything:
        notes = [f"ours: {len(same)} of {len(everything)} datasets"]
        amount = _not_comparable(amount)
    for problem in dict.fromkeys(strange.values()):
        names = ", ".join(name for name, mine in strange.items() if mine == problem)
        notes.append(f"{problem}, {'left out' if same else 'all'}: {names}")
    yield _comparison(row, part, printed[AVERAGE], amount, value, notes)


def _not_comparable(amount: Amount) -> Amount:
    return replace(amount, done=0)


def _average(theirs: Sequence[Published], part: str, datasets: Sequence[str]) -> float:
    """Recomputed from the published rows of some datasets: the paper mixes two means of HM."""

    def mean(name: str) -> float:
        values = {row.dataset: row.value for row in theirs if row.part == name}
        return sum(values[dataset] for dataset in datasets) / len(datasets)

    if part == "hm":
        return harmonic_mean(mean("base"), mean("novel"))
    return mean("hm" if part == "mean-hm" else part)


def _comparison(
    row: _Row, part: str, printed: Published, amount: Amount, value: float, notes: Sequence[str]
) -> Comparison:
    ours = 100 * amount.value
    return Comparison(
        table=printed.table,
        dataset=printed.dataset,
        label=row.label,
        shots=row.place.shots,
        flips=row.place.flips,
        part=part,
        ours=ours,
        published=value,
        difference=ours - value if amount.complete else None,
        ours_std=100 * amount.std,
        published_std=printed.std,
        note="; ".join(notes),
        backbone=row.backbone,
    )


def comparison_csv(rows: Sequence[Comparison]) -> str:
    """Every field, two decimals."""
    out = io.StringIO()
    names = [field.name for field in fields(Comparison)]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_text(value) for value in asdict(row).values()] for row in rows)
    return out.getvalue()


def comparison_markdown(rows: Sequence[Comparison]) -> str:
    """A table to read."""
    if not rows:
        return "None of these runs has a counterpart in the paper's tables.\n"
    backbones = ", ".join(dict.fromkeys(row.backbone for row in rows))
    lines = [
        f"Backbone of ours: {backbones}. Of the published numbers: BiomedCLIP.",
        "",
        "| table | dataset | method | K | flips | part | ours | published | difference | note |",
        "|---|---|---|---:|---:|---|---:|---:|---:|---|",
    ]
    for row in rows:
        difference = "" if row.difference is None else f"{row.difference:+.2f}"
        cells = [row.table, row.dataset, row.label, _text(row.shots), _text(row.flips), row.part]
        cells += [f"{row.ours:.2f}", f"{row.published:.2f}", difference, row.note]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.casefold())
