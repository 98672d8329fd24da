"""Tables with several findings: a column for each, or a list."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from ogkd.datasets.manifest import NO_CLASS, Item, Manifest

from ogkd.datasets.divide import split_items
from ogkd.datasets.findings import findings_text
from ogkd.datasets.phantoms import FINDINGS, write_films
from ogkd.datasets.read import read_manifest
from ogkd.datasets.splits import few_shot, keep_classes
from ogkd.datasets.tables import table_text
from ogkd.errors import ConfigError, DataError
from ogkd.images import ImageRef


def table(folder: Path, text: str) -> Path:
    file = folder / "t.csv"
    file.write_text(text, encoding="utf-8")
    return file


def said(manifest: Manifest) -> list[tuple[int, ...] | None]:
    return [item.findings for item in manifest.items]


def test_a_column_for_each_finding_is_noticed_and_keeps_its_spelling(tmp_path: Path) -> None:
    found = read_manifest(
        table(
            tmp_path,
            "path,Split,patient,Pleural_Effusion,edema,age\n"
            "a.png,train,p,1,0,57\nb.png,train,p,,yes,1\nc.png,test,q,False,,64\n"
            "d.png,test,r,-1,1.0,80\n",
        )
    )
    assert found.has_findings
    assert found.class_names == ("Pleural Effusion", "edema")
    assert said(found) == [(1, 0), (-1, 1), (0, -1), (-1, 1)]
    assert [item.group for item in found.items] == ["p", "p", "q", "r"]
    assert {item.label for item in found.items} == {NO_CLASS}
    assert findings_text(found, found.items).endswith("Pleural Effusion 1/1/2, edema 2/1/1")


def test_a_column_of_yes_and_no_in_other_words_is_named_as_not_read(tmp_path: Path) -> None:
    text = "path,Effusion,edema,age\na.png,ja,1,57\nb.png,nein,0,63\nc.png,ja,,64\n"
    found = read_manifest(table(tmp_path, text))
    assert found.class_names == ("edema",)
    assert [what for what, _ in found.ignored] == [
        "Columns that are not read, because their cells are not 1 or 0: Effusion (ja, nein)."
    ]


def test_columns_without_answers_or_with_other_words_are_named_as_not_read(tmp_path: Path) -> None:
    text = (
        "path,edema,Effusion,mass,grade,date,code\n"
        "a.png,1,,?,mild,2020-01-02,A1\nb.png,0,,-1,severe,2020-01-03,A2\n"
        "c.png,1,,,none,2020-01-04,A3\nd.png,1,,,moderate,2020-01-05,A4\n"
    )
    ((what, _),) = read_manifest(table(tmp_path, text)).ignored
    _, columns = what.split(": ")
    nothing = "Effusion (nothing known), mass (nothing known)"
    assert columns == f"{nothing}, grade (mild, moderate, none, ...)."


def test_a_list_of_findings_says_that_the_others_are_absent(tmp_path: Path) -> None:
    text = "path;labels\na.png;edema|Effusion\nb.png;No finding\nc.png;\nd.png; effusion \n"
    found = read_manifest(table(tmp_path, text))
    assert found.class_names == ("edema", "Effusion")
    assert said(found) == [(1, 1), (0, 0), (-1, -1), (0, 1)]


def test_named_columns_are_findings_even_beside_a_label(tmp_path: Path) -> None:
    file = table(tmp_path, "path,label,a,b\nx.png,ill,1,0\ny.png,well,0,1\n")
    assert not read_manifest(file).has_findings
    assert said(read_manifest(file, findings=["B"])) == [(0,), (1,)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,edema\na.png,1\nb.png,0\nc.png,maybe\n", r"line 4: 'edema' is 'maybe'.*1 \(present"),
        ("path,age\na.png,57\nb.png,63\n", "needs the columns path and label.*several findings"),
        ("path,a,a\nx.png,1,1\ny.png,0,0\n", "column a twice"),
        ("path,labels\na.png,none|edema\n", "both that there is a finding and that there is none"),
        ("path,labels\na.png,\n", "lists no finding"),
        ("path,edema,Edema \na.png,1,1\nb.png,0,0\n", "column edema twice"),
        ("path,a_b,a b\nx.png,1,1\ny.png,0,0\n", "differ only in case, spaces or underscores"),
        ("path,edema\n,1\n", "path is empty"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_manifest(table(tmp_path, text))


def test_columns_that_are_not_there_are_named(tmp_path: Path) -> None:
    file = table(tmp_path, "path,edema\na.png,1\nb.png,0\n")
    with pytest.raises(DataError, match=r"no column 'oedema'.*Did you mean 'edema'"):
        read_manifest(file, findings=["oedema"])
    (tmp_path / "folder" / "x").mkdir(parents=True)
    with pytest.raises(ConfigError, match="not a table"):
        read_manifest(tmp_path / "folder", findings=["edema"])


def test_a_written_table_reads_the_same(tmp_path: Path) -> None:
    items = tuple(
        Item(ImageRef(tmp_path / f"{n}.png"), NO_CLASS, "train", "p", findings=(n % 3 - 1, n % 2))
        for n in range(6)
    )
    first = Manifest(items, ("=edema", "effusion"))
    again = read_manifest(table(tmp_path, table_text(first, tmp_path)))
    assert (again.class_names, said(again)) == (first.class_names, said(first))
    assert again.sha256 == first.sha256
    odd = Manifest(items, ("split", "effusion"))
    with pytest.raises(DataError, match="cannot be called 'split'"):
        table_text(odd, tmp_path)


def rare(count: int = 200) -> Manifest:
    """Findings of 5, 20 and 50 %, one answer of five unknown."""
    items = []
    for n in range(count):
        each = (n % 20 == 0, n % 5 == 1, n % 2 == 0)
        known = tuple(-1 if (n + f) % 5 == 3 else int(yes) for f, yes in enumerate(each))
        items.append(Item(ImageRef(Path(f"{n:03}.png")), NO_CLASS, findings=known))
    return Manifest(tuple(items), ("rare", "some", "half"))


def test_a_division_gives_every_part_its_share_of_each_answer() -> None:
    shares = {"train": 0.6, "val": 0.2, "test": 0.2}
    divided = split_items(rare(), shares, seed=1)
    total = Counter(mark for item in divided.items for mark in item.marks)
    for part, share in shares.items():
        found = Counter(mark for item in divided.part(part) for mark in item.marks)
        for mark, number in total.items():
            assert abs(found[mark] - share * number) <= max(2, 0.05 * number), (part, mark)


def test_shots_are_images_with_and_without_each_finding_and_nested() -> None:
    items = list(rare().items)
    few, more = few_shot(items, 4, seed=3), few_shot(list(reversed(items)), 8, seed=3)
    assert set(few) <= set(more)
    counts = Counter(mark for item in few for mark in item.marks)
    assert all(counts[mark] >= 4 for mark in range(6))
    assert len(few) <= 6 * 4


def test_findings_can_be_left_out() -> None:
    kept = keep_classes(rare(), [0, 2])
    assert kept.class_names == ("rare", "half")
    assert said(kept)[0] == (1, 1)


def test_a_dataset_of_findings_is_refused_where_classes_are_needed() -> None:
    with pytest.raises(DataError, match="The benchmark needs one class for each image"):
        rare().require_classes("The benchmark")


def test_phantom_films_have_a_table_with_missing_answers(tmp_path: Path) -> None:
    counts = {"train": 30, "test": 10}
    file = write_films(tmp_path / "films", splits=counts, seed=2, size=64, missing=0.5)
    found = read_manifest(file)
    assert found.class_names == FINDINGS
    assert all(item.image.file.is_file() for item in found.items)
    unknown = sum(row.count(-1) for row in said(found)[:30] if row) / (30 * len(FINDINGS))
    assert 0.3 < unknown < 0.7
    assert not any(-1 in row for row in said(found)[30:] if row)
    again = write_films(tmp_path / "again", splits=counts, seed=2, size=64, missing=0.0)
    pairs = zip(said(found), said(read_manifest(again)), strict=True)
    # What is known is the same, whatever is missing.
    assert all(
        a in (-1, b) for one, two in pairs for a, b in zip(one or (), two or (), strict=True)
    )
