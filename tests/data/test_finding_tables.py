"""Tables with several findings: a column for each, or a list."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ogkd.data.case import Case, Dataset
from ogkd.data.divide import split_dataset
from ogkd.data.phantoms import FINDINGS, write_films
from ogkd.data.read import read_dataset
from ogkd.data.splits import few_shot
from ogkd.data.tables import table_text
from ogkd.data.tasks import Findings, OneOf, require_classes
from ogkd.errors import ConfigError, DataError
from tiny_data import case_of


def table(folder: Path, text: str) -> Path:
    file = folder / "t.csv"
    file.write_text(text, encoding="utf-8")
    return file


def targets(dataset: Dataset) -> list[tuple[int, ...]]:
    return dataset.targets()  # type: ignore[return-value]


def test_a_column_for_each_finding_is_noticed_and_keeps_its_spelling(tmp_path: Path) -> None:
    dataset = read_dataset(
        table(
            tmp_path,
            "path,Split,patient,Pleural_Effusion,edema,age\n"
            "a.png,train,p,1,0,57\nb.png,train,p,,yes,1\nc.png,test,q,False,,64\n"
            "d.png,test,r,-1,1.0,80\n",
        )
    )
    assert isinstance(dataset.task, Findings)
    assert dataset.names == ("Pleural Effusion", "edema")
    assert targets(dataset) == [(1, 0), (-1, 1), (0, -1), (-1, 1)]
    assert [case.group for case in dataset.cases] == ["p", "p", "q", "r"]
    counts = dataset.task.counts(dataset.targets())
    assert counts["Pleural Effusion"] == {"present": 1, "absent": 1, "unknown": 2}
    assert counts["edema"] == {"present": 2, "absent": 1, "unknown": 1}


def test_a_column_of_yes_and_no_in_other_words_is_named_as_not_read(tmp_path: Path) -> None:
    text = "path,Effusion,edema,age\na.png,ja,1,57\nb.png,nein,0,63\nc.png,ja,,64\n"
    dataset = read_dataset(table(tmp_path, text))
    assert dataset.names == ("edema",)
    assert [what for what, _ in dataset.ignored] == [
        "Columns that are not read, because their cells are not 1 or 0: Effusion (ja, nein)."
    ]


def test_columns_without_answers_or_with_other_words_are_named_as_not_read(tmp_path: Path) -> None:
    text = (
        "path,edema,Effusion,mass,grade,date,code\n"
        "a.png,1,,?,mild,2020-01-02,A1\nb.png,0,,-1,severe,2020-01-03,A2\n"
        "c.png,1,,,none,2020-01-04,A3\nd.png,1,,,moderate,2020-01-05,A4\n"
    )
    ((what, _),) = read_dataset(table(tmp_path, text)).ignored
    _, columns = what.split(": ")
    nothing = "Effusion (nothing known), mass (nothing known)"
    assert columns == f"{nothing}, grade (mild, moderate, none, severe)."


def test_a_list_of_findings_says_that_the_others_are_absent(tmp_path: Path) -> None:
    text = "path;labels\na.png;edema|Effusion\nb.png;No finding\nc.png;\nd.png; effusion \n"
    dataset = read_dataset(table(tmp_path, text))
    assert dataset.names == ("edema", "Effusion")
    assert targets(dataset) == [(1, 1), (0, 0), (-1, -1), (0, 1)]


def test_named_columns_are_findings_even_beside_a_label(tmp_path: Path) -> None:
    file = table(tmp_path, "path,label,a,b\nx.png,ill,1,0\ny.png,well,0,1\n")
    assert isinstance(read_dataset(file).task, OneOf)
    assert targets(read_dataset(file, findings=["B"])) == [(0,), (1,)]


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
def test_invalid_tables_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError):
        read_dataset(table(tmp_path, text))


def test_columns_that_are_not_there_are_refused(tmp_path: Path) -> None:
    file = table(tmp_path, "path,edema\na.png,1\nb.png,0\n")
    with pytest.raises(DataError) as error:
        read_dataset(file, findings=["oedema"])
    assert error.value.argument == "findings"
    (tmp_path / "folder" / "x").mkdir(parents=True)
    with pytest.raises(ConfigError) as wrong:
        read_dataset(tmp_path / "folder", findings=["edema"])
    assert wrong.value.argument == "findings"


def test_a_written_table_reads_the_same(tmp_path: Path) -> None:
    cases = tuple(
        case_of(tmp_path / f"{n}.png", (n % 3 - 1, n % 2), "train", "p") for n in range(6)
    )
    first = Dataset(cases, Findings(("=edema", "effusion")))
    again = read_dataset(table(tmp_path, table_text(first, tmp_path)))
    assert (again.names, targets(again)) == (first.names, targets(first))
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


def test_a_division_gives_every_part_its_share_of_each_answer() -> None:
    shares = {"train": 0.6, "val": 0.2, "test": 0.2}
    divided = split_dataset(rare(), shares, seed=1)
    total = strata(divided, list(divided.cases))
    for part, share in shares.items():
        counts = strata(divided, divided.part(part))
        for stratum, number in total.items():
            assert abs(counts[stratum] - share * number) <= max(2, 0.05 * number), (part, stratum)


def test_shots_are_images_with_and_without_each_finding_and_nested() -> None:
    dataset = rare()
    few = few_shot(dataset, dataset.cases, 4, seed=3)
    more = few_shot(dataset, dataset.cases[::-1], 8, seed=3)
    assert set(few) <= set(more)
    counts = strata(dataset, few)
    assert all(counts[stratum] >= 4 for stratum in range(6))
    assert len(few) <= 6 * 4


def test_findings_can_be_left_out() -> None:
    kept = rare().restrict([0, 2])
    assert kept.names == ("rare", "half")
    assert targets(kept)[0] == (1, 1)


def test_findings_are_refused_where_classes_are_needed() -> None:
    with pytest.raises(DataError):
        require_classes(rare().task, "The benchmark")


def test_phantom_films_have_a_table_with_missing_answers(tmp_path: Path) -> None:
    counts = {"train": 30, "test": 10}
    file = write_films(tmp_path / "films", splits=counts, seed=2, size=64, missing=0.5)
    dataset = read_dataset(file)
    assert dataset.names == FINDINGS
    assert all(image.file.is_file() for image in dataset.images)
    unknown = sum(row.count(-1) for row in targets(dataset)[:30]) / (30 * len(FINDINGS))
    assert 0.3 < unknown < 0.7
    assert not any(-1 in row for row in targets(dataset)[30:])
    again = write_films(tmp_path / "again", splits=counts, seed=2, size=64, missing=0.0)
    pairs = zip(targets(dataset), targets(read_dataset(again)), strict=True)
    # What is known is the same, whatever is missing.
    assert all(a in (-1, b) for some, all_ in pairs for a, b in zip(some, all_, strict=True))
