"""The published numbers (published/*.csv, in percent as printed) and ours beside them."""

from __future__ import annotations

import csv
import functools
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.resources import files

from ogkd.bench.results import Plan, RunsFolder
from ogkd.bench.spec import RunSpec
from ogkd.bench.summary import Amount, At, Summary, harmonic_mean
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
    found: list[Comparison] = []
    for label in summary.labels:
        for place in summary.places:
            if place.value is not None:
                continue  # a swept setting: the paper has figures of these, no tables
            theirs = _candidates(plan, label, methods[label], place)
            for part in summary.parts(place):
                found += _cells(summary, label, place, part, names, theirs)
                if part == "novel":
                    for mean in ("hm", "mean-hm"):
                        found += _cells(summary, label, place, mean, names, theirs)
    return found


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


def _cells(
    summary: Summary,
    label: str,
    place: At,
    part: str,
    names: dict[str, str],
    theirs: Sequence[Published],
) -> Iterable[Comparison]:
    printed_part = "hm" if part == "mean-hm" else part
    printed = {row.dataset: row for row in theirs if row.part == printed_part}
    if not printed:
        return
    wanted = set(summary.wanted(place, part))
    shared = {name: ours for ours, name in names.items() if ours in wanted}
    if part != "mean-hm":
        for name, ours in shared.items():
            amount = summary.of(label, ours, place, part)
            if amount is not None and name in printed:
                row = printed[name]
                note = "" if amount.complete else f"{amount.done} of {amount.planned} runs"
                yield _comparison(label, place, part, row, amount, row.value, note)
    amount = summary.average(label, place, part, list(shared.values()))
    # One printed average cannot say which mean of HMs it is; the paper's text has the first.
    if amount is None or AVERAGE not in printed or (part == "mean-hm" and len(printed) == 1):
        return
    row = printed[AVERAGE]
    everything = {name for name, one in benchmarks().items() if one.base_to_novel or part == "test"}
    note = "" if amount.complete else "runs are missing"
    value = row.value
    if len(printed) > 1:
        value = _average(theirs, part, list(shared))
        if len(shared) < len(everything):
            note = note or f"both over {len(shared)} datasets"
        elif abs(value - row.value) > _ROUNDING:
            note = note or f"printed: {row.value:.2f}"
    elif set(shared) != everything:
        note = f"ours: {len(shared)} of {len(everything)} datasets"
        amount = Amount(amount.value, amount.std, 0, amount.planned)
    yield _comparison(label, place, part, row, amount, value, note)


def _average(theirs: Sequence[Published], part: str, datasets: Sequence[str]) -> float:
    """Recomputed from the published rows of some datasets: the paper mixes two means of HM."""

    def mean(name: str) -> float:
        values = {row.dataset: row.value for row in theirs if row.part == name}
        return sum(values[dataset] for dataset in datasets) / len(datasets)

    if part == "hm":
        return harmonic_mean(mean("base"), mean("novel"))
    return mean("hm" if part == "mean-hm" else part)


def _comparison(
    label: str, place: At, part: str, row: Published, amount: Amount, value: float, note: str
) -> Comparison:
    ours = 100 * amount.value
    return Comparison(
        table=row.table,
        dataset=row.dataset,
        label=label,
        shots=place.shots,
        flips=place.flips,
        part=part,
        ours=ours,
        published=value,
        difference=ours - value if amount.complete else None,
        ours_std=100 * amount.std,
        published_std=row.std,
        note=note,
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
    lines = [
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
