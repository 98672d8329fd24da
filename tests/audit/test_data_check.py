"""`ogkd data check` as a user's shell would run it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ogkd.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ogkd", "data", "check", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return int(stop.value.code or 0), said.out, said.err

    return run


def plant(data: Path) -> str:
    """A training image among the test images; its name."""
    folder = sorted((data / "train").iterdir())[0]
    shutil.copy(sorted(folder.glob("*.png"))[0], data / "test" / folder.name / "copy.png")
    return f"test/{folder.name}/copy.png"


def test_clean_data_ends_with_code_0_and_a_table_of_counts(check: Run, clean: Path) -> None:
    code, out, err = check(clean)
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].split() == ["class", "train", "test"]
    assert lines[1].split()[-2:] == ["8", "4"]
    assert lines[5].split() == ["all", "32", "16"]
    assert "48 images: 0 errors" in lines[-1]


def test_a_leak_ends_with_code_1_and_names_the_file(check: Run, data: Path, tmp_path: Path) -> None:
    (data / "train" / "glaucoma").mkdir()
    (sorted((data / "train").iterdir())[0] / "a\x1b[31mb\nc.png").write_text("words")
    name = plant(data)
    report, html = tmp_path / "out" / "check.json", tmp_path / "out" / "check.html"
    code, out, _ = check(data, "--json", report, "--html", html)
    assert code == 1
    assert "ERROR" in out
    assert name in out
    assert "No images to learn from for: glaucoma." in out
    assert "\x1b[31mb" not in out  # control codes are shown, not obeyed
    assert r"a\x1b[31mb\nc.png" in out
    written = json.loads(report.read_text(encoding="utf-8"))
    assert written["data"] == "data"
    assert name in json.dumps(written["findings"])
    assert "data:image/jpeg" in html.read_text(encoding="utf-8")


def test_a_table_is_checked_and_files_are_named_from_its_folder(check: Run, data: Path) -> None:
    files = sorted((data / "train").rglob("*.png"))
    rows = [f"{file.relative_to(data)},{file.parent.name},p{n}" for n, file in enumerate(files)]
    rows.append(f"missing.png,{files[0].parent.name},p99")
    table = data / "table.csv"
    table.write_text("\n".join(["path,label,patient", *rows]))
    code, out, _ = check(table)
    assert code == 1
    assert "  missing.png" in out


@pytest.mark.parametrize(
    "words",
    [("no/such/place",), ("{data}", "--json", "{data}"), ("{data}", "--backbone", "no/such/model")],
)
def test_mistakes_end_with_code_2_and_one_message(
    check: Run, clean: Path, words: tuple[str, ...]
) -> None:
    code, out, err = check(*(word.format(data=clean) for word in words))
    assert (code, out) == (2, "")
    assert words[-1].format(data=clean) in err


def test_labels_are_judged_with_a_backbone(check: Run, data: Path, tmp_path: Path) -> None:
    report = tmp_path / "check.json"
    code, _, err = check(data, "--backbone", "builtin", "--json", report)
    assert code == 0, err
    assert json.loads(report.read_text(encoding="utf-8"))["labels"]["judged"] == 48
