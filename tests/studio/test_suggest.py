from __future__ import annotations

import json
import sys

import pytest

from ogkd.cli import main
from ogkd.errors import DataError
from ogkd.studio import label_next


def test_without_labels_the_first_are_of_different_kinds_and_readable(pile):
    notes = []
    found = label_next(pile, n=6, backbone="builtin", say=notes.append)
    assert len(set(found)) == 6
    assert "broken.png" not in {image.file.name for image in found}
    assert any("cannot be read" in note for note in notes)


def test_what_has_a_label_is_not_asked_for(pile, tmp_path):
    done = [image.file for image in label_next(pile, n=8, backbone="builtin")]
    rows = [f"{file},{'ab'[number % 2]}" for number, file in enumerate(done)]
    table = tmp_path / "labels.csv"
    table.write_text("\n".join(["path,label", *rows]))
    found = label_next(pile, labels=table, n=50, backbone="builtin")
    assert not {image.file for image in found} & set(done)
    assert len(found) == 34 - 8  # all others that can be read


def test_labels_of_another_folder_are_refused(pile, tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text("path,label\nx.png,a\ny.png,b\n")
    with pytest.raises(DataError, match="None of the 2 labelled images"):
        label_next(pile, labels=table, backbone="builtin")


def test_a_folder_without_a_readable_image_is_refused_in_words(tmp_path):
    (tmp_path / "a.png").write_text("text")
    with pytest.raises(DataError, match="could not be read"):
        label_next(tmp_path, backbone="builtin")


@pytest.mark.parametrize("form", ["lines", "json"])
def test_the_command_prints_the_images(pile, form, monkeypatch, capsys):
    words = ["ogkd", "label", "next", str(pile), "-n", "3", "--backbone", "builtin"]
    monkeypatch.setattr(sys, "argv", words + (["--json"] if form == "json" else []))
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    out = capsys.readouterr().out
    shown = json.loads(out) if form == "json" else out.split("\n")[:-1]
    assert shown == [str(image) for image in label_next(pile, n=3, backbone="builtin")]
