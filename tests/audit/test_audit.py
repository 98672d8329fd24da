"""The whole check on phantoms with planted faults."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image, ImageEnhance

from ogkd.audit import Audit, Finding, audit_data
from ogkd.data.case import Dataset
from ogkd.data.read import read_dataset
from ogkd.data.tasks import OneOf
from ogkd.errors import DataError
from tiny_data import case_of


def check(root: Path, **options: object) -> tuple[Audit, dict[str, Finding]]:
    audit = audit_data(read_dataset(root), root=root, **options)  # type: ignore[arg-type]
    return audit, {finding.kind: finding for finding in audit.findings}


def first(folder: Path) -> Path:
    return sorted(folder.glob("*.png"))[0]


@pytest.fixture
def classes(data: Path) -> list[str]:
    return sorted(folder.name for folder in (data / "train").iterdir())


def test_clean_phantoms_have_no_duplicates_and_no_errors(clean: Path) -> None:
    audit, found = check(clean)
    assert set(found) == {"groups-unknown", "class-small"}
    assert audit.exit_code == 0
    assert audit.exact == audit.near == ()


@pytest.mark.parametrize(
    ("split", "label", "kind", "severity"),
    [
        ("test", 0, "exact-leak", "error"),
        ("train", 1, "exact-labels", "error"),
        ("train", 0, "exact", "warning"),
    ],
)
def test_a_copy_is_judged_by_its_split_and_label(
    data: Path, classes: list[str], split: str, label: int, kind: str, severity: str
) -> None:
    source = first(data / "train" / classes[0])
    shutil.copy(source, copy := data / split / classes[label] / "copy.png")
    audit, found = check(data)
    assert found.keys() & {"exact", "exact-leak", "exact-labels"} == {kind}
    assert found[kind].severity == severity
    files = {path.relative_to(data).as_posix() for path in (source, copy)}
    assert [set(case.files) for case in found[kind].where] == [files]
    assert audit.exit_code == (severity == "error")


def test_changed_copies_are_near_duplicates_by_where_they_lie(
    data: Path, classes: list[str]
) -> None:
    images = sorted((data / "train" / classes[0]).glob("*.png"))
    with Image.open(images[0]) as image:
        image.resize((90, 90)).save(data / "test" / classes[0] / "leak.png")
    with Image.open(images[1]) as image:
        image.save(data / "train" / classes[1] / "torn.jpg", quality=75)
    with Image.open(images[2]) as image:
        ImageEnhance.Brightness(image).enhance(1.15).save(images[2].with_name("plain.png"))
    audit, found = check(data)
    assert [case.files[-1] for case in found["near-leak"].where] == [f"test/{classes[0]}/leak.png"]
    assert found["near-labels"].where[0].files[1] == f"train/{classes[1]}/torn.jpg"
    assert f"train/{classes[0]}/plain.png" in found["near"].where[0].files
    assert len(audit.near) == 3
    assert audit.exit_code == 0


def test_unreadable_and_blank_files_are_listed_without_the_folders_above_and_stop_nothing(
    data: Path, classes: list[str]
) -> None:
    folder = data / "train" / classes[0]
    (folder / "text.png").write_text("words")
    (folder / "empty.png").touch()
    Image.new("L", (64, 64), 0).save(folder / "black.png")  # as a fit refuses it
    cut = first(data / "test" / classes[1])
    cut.write_bytes(cut.read_bytes()[:500])
    (folder / "x.gif").touch()
    speck = Image.new("L", (64, 64), 0)
    speck.putpixel((5, 5), 1)
    for split in ("train", "test"):
        speck.save(data / split / classes[0] / "dark.png")
    audit, found = check(data)
    assert {case.files[0] for case in found["unreadable"].where} == {
        *(f"train/{classes[0]}/{name}.png" for name in ("text", "empty", "black")),
        f"test/{classes[1]}/{cut.name}",
    }
    assert audit.exit_code == 1
    assert str(data) not in json.dumps(audit.as_json())
    assert found["left-out"].severity == "warning"
    assert len(found["flat"].where) == 2
    severities = [finding.severity for finding in audit.findings]
    assert severities == sorted(severities, key=["error", "warning", "note"].index)


def test_patients_of_a_table_in_two_splits_are_an_error(data: Path, classes: list[str]) -> None:
    rows = ["path,label,split,patient"]
    for split in ("train", "test"):
        for name in classes[:2]:
            for n, file in enumerate(sorted((data / split / name).glob("*.png"))):
                patient = "p0" if n == 0 and name == classes[0] else f"{split}{name}{n}"
                rows.append(f"{split}/{name}/{file.name},{name},{split},{patient}")
    table = data / "table.csv"
    table.write_text("\n".join(rows))
    audit = audit_data(read_dataset(table), root=data)
    (leak,) = [one for one in audit.findings if one.kind == "group-leak"]
    assert len(leak.where) == 1
    assert audit.exit_code == 1


def test_names_that_are_not_text_are_escaped_and_the_json_counts_findings(
    data: Path, classes: list[str]
) -> None:
    source = first(data / "train" / classes[0])
    odd = Path(str(data / "test" / classes[1]) + "/\udcff.png")
    try:
        shutil.copy(source, odd)
    except OSError:
        pytest.skip("this file system takes only names that are text")
    audit, found = check(data)
    assert found["exact-leak"].where[0].files[-1].endswith(r"\xff.png")
    written = json.loads(json.dumps(audit.as_json(), ensure_ascii=False).encode("utf-8"))
    assert written["errors"] == audit.count("error") == 2
    assert written["images"] == len(audit.records) == 49
    copies = written["exact_duplicates"][0]
    assert {one["split"] for one in copies} == {"train", "test"}
    assert len({one["label"] for one in copies}) == 2


def test_no_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        audit_data(Dataset((), OneOf(("a", "b"))), root=tmp_path)
    cases = tuple(case_of(tmp_path / f"{n}.png", n % 2) for n in range(4))
    audit = audit_data(Dataset(cases, OneOf(("a", "b"))), root=tmp_path)
    assert audit.findings[0].kind == "unreadable"  # all of them: still a report
