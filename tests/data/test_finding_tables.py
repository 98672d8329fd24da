"""Tables with several findings: a column for each, or a list."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ogkd.data.case import Case, Dataset
from ogkd.data.divide import complete_splits
from ogkd.data.phantoms import FINDINGS, write_films
from ogkd.data.read import read_dataset
from ogkd.data.splits import support_and_val
from ogkd.data.tables import table_text
from ogkd.data.tasks import Findings, OneOf, require_classes
from ogkd.errors import DataError
from tiny_data import case_of


def table(folder: Path, text: str) -> Path:
    file = folder / "t.csv"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("text", "names", "targets", "unread"),
    [
        (
            "path,Split,patient,Pleural_Effusion,edema,age\n"
            "a,train,p,1,0,57\nb,train,p,,yes,1\nc,test,q,False,,64\nd,test,r,-1,1.0,80\n",
            ("Pleural Effusion", "edema"),
            [(1, 0), (-1, 1), (0, -1), (-1, 1)],
            "",
        ),
        (
            "path,Effusion,edema,age\na,ja,1,57\nb,nein,0,63\nc,ja,,64\n",
            ("edema",),
            [(1,), (0,), (-1,)],
            "Effusion (ja, nein).",
        ),
        (
            "path,edema,Effusion,mass,grade,date,code\na,1,,?,mild,2020-01-02,A1\n"
            "b,0,,-1,severe,2020-01-03,A2\nc,1,,,none,2020-01-04,A3\nd,1,,,moderate,2020-01-05,A4\n",
            ("edema",),
            [(1,), (0,), (1,), (1,)],
            "Effusion (nothing known), mass (nothing known), grade (mild, moderate, none, severe).",
        ),
        (  # a finding that is not listed is absent
            "path;labels\na;edema|Effusion\nb;No finding\nc;\nd; effusion \n",
            ("edema", "Effusion"),
            [(1, 1), (0, 0), (-1, -1), (0, 1)],
            "",
        ),
    ],
)
def test_findings_are_noticed_and_keep_their_spelling(tmp_path, text, names, targets, unread):
    dataset = read_dataset(table(tmp_path, text))
    assert isinstance(dataset.task, Findings)
    assert dataset.names == names
    assert dataset.targets() == targets
    assert [what.split(": ")[1] for what, _ in dataset.ignored] == ([unread] if unread else [])


def test_what_is_known_of_each_finding_is_counted():
    counts = Findings(("effusion", "edema")).counts([(1, 0), (-1, 1), (0, -1), (-1, 1)])
    assert counts["effusion"] == {"present": 1, "absent": 1, "unknown": 2}
    assert counts["edema"] == {"present": 2, "absent": 1, "unknown": 1}


def test_named_columns_are_findings_even_beside_a_label(tmp_path):
    file = table(tmp_path, "path,label,a,b\nx.png,ill,1,0\ny.png,well,0,1\n")
    assert isinstance(read_dataset(file).task, OneOf)
    assert read_dataset(file, findings=["B"]).targets() == [(0,), (1,)]
    with pytest.raises(DataError) as error:
        read_dataset(file, findings=["oedema"])
    assert error.value.argument == "findings"


@pytest.mark.parametrize(
    "text",
    [
        "path,edema\na.png,1\nb.png,0\nc.png,maybe\n",
        "path,age\na.png,57\nb.png,63\n",
        "path,a,a\nx.png,1,1\ny.png,0,0\n",
        "path,labels\na.png,none|edema\n",
        "path,labels\na.png,\n",
        "path,edema,Edema \na.png,1,1\nb.png,0,0\n",
        "path,a_b,a b\nx.png,1,1\ny.png,0,0\n",
        "path,edema\n,1\n",
    ],
)
def test_invalid_tables_are_refused(tmp_path, text):
    with pytest.raises(DataError):
        read_dataset(table(tmp_path, text))


def test_a_written_table_reads_the_same(tmp_path):
    cases = tuple(
        case_of(tmp_path / f"{n}.png", (n % 3 - 1, n % 2), "train", "p") for n in range(6)
    )
    first = Dataset(cases, Findings(("=edema", "effusion")))
    again = read_dataset(table(tmp_path, table_text(first, tmp_path)))
    assert (again.names, again.targets()) == (first.names, first.targets())
    assert again.sha256 == first.sha256
    with pytest.raises(DataError):
        table_text(Dataset(cases, Findings(("split", "effusion"))), tmp_path)


def rare(count: int = 200) -> Dataset:
    """Findings of 5, 20 and 50 %, one answer of five unknown."""
    cases = []
    for n in range(count):
        each = (n % 20 == 0, n % 5 == 1, n % 2 == 0)
        known = tuple(-1 if (n + f) % 5 == 3 else int(yes) for f, yes in enumerate(each))
        cases.append(case_of(Path(f"{n:03}.png"), known))
    return Dataset(tuple(cases), Findings(("rare", "some", "half")))


def strata(dataset: Dataset, cases: list[Case]) -> Counter[int]:
    return Counter(stratum for case in cases for stratum in dataset.task.strata(case.target))


def test_a_division_gives_every_part_its_share_of_each_answer():
    shares = {"train": 0.6, "val": 0.2, "test": 0.2}
    divided = complete_splits(rare(), shares, seed=1)[0]
    total = strata(divided, list(divided.cases))
    for part, share in shares.items():
        counts = strata(divided, divided.part(part))
        for stratum, number in total.items():
            assert abs(counts[stratum] - share * number) <= max(2, 0.05 * number), (part, stratum)


def test_shots_are_images_with_and_without_each_finding_and_nested():
    dataset = rare()
    few = support_and_val(dataset.task, dataset.cases, (), 4, 3)[0]
    more = support_and_val(dataset.task, dataset.cases[::-1], (), 8, 3)[0]
    assert set(few) <= set(more)
    counts = strata(dataset, few)
    assert all(counts[stratum] >= 4 for stratum in range(6))
    assert len(few) <= 6 * 4


def test_findings_can_be_left_out_and_are_refused_where_classes_are_needed():
    kept = rare().restrict([0, 2])
    assert kept.names == ("rare", "half")
    assert kept.targets()[0] == (1, 1)
    with pytest.raises(DataError):
        require_classes(kept.task, "The benchmark")


def test_phantom_films_have_a_table_with_missing_answers(tmp_path):
    counts = {"train": 30, "test": 10}
    drawn, complete = (
        read_dataset(write_films(tmp_path / f"{s}", splits=counts, seed=2, size=64, missing=s))
        for s in (0.5, 0.0)
    )
    assert drawn.names == FINDINGS
    assert all(image.file.is_file() for image in drawn.images)
    unknown = [row.count(-1) for row in drawn.targets()]
    assert 0.3 < sum(unknown[:30]) / (30 * len(FINDINGS)) < 0.7
    assert not any(unknown[30:])
    # What is known is the same, whatever is missing.
    pairs = zip(drawn.targets(), complete.targets(), strict=True)
    assert all(a in (-1, b) for some, every in pairs for a, b in zip(some, every, strict=True))
