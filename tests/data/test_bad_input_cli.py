"""What a user can get wrong about data ends in one message and exit code 2."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from ogkd.cli import main
from tiny_data import write_dataset, write_image


def table(folder):
    (folder / "t.csv").write_bytes(b"path;label\na.png;gr\xf6\xdfer\nb.png;x\n")
    return folder / "t.csv"


def split_file(folder):
    rows = [["/etc/passwd", 0, "x"], ["b", 1, "y"]]
    (folder / "split.json").write_text(json.dumps({"train": rows}))
    return folder / "split.json"


def archive(folder):
    labels = np.zeros((3, 14), np.uint8)
    images = np.zeros((3, 28, 28), np.uint8)
    np.savez(folder / "chest.npz", train_images=images, train_labels=labels)
    return folder / "chest.npz"


def one_class(folder):
    write_image(folder / "data" / "cyst" / "0.png")
    return folder / "data"


def no_shots(folder):
    return write_dataset(folder / "data")


@pytest.mark.parametrize("make", [table, split_file, archive, one_class, no_shots])
def test_bad_data_ends_in_one_message_and_no_model(make, tmp_path, monkeypatch, capsys):
    out = tmp_path / "model"
    words = ["ogkd", "fit", str(make(tmp_path)), "--out", str(out), "--shots", "0"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as stop:
        main()
    printed = capsys.readouterr()
    assert (stop.value.code, printed.out) == (2, ""), printed
    # Notes (on missing prompts, say) may stand before the one error.
    assert sum(line.startswith("Error: ") for line in printed.err.splitlines()) == 1, printed
    assert "Traceback" not in printed.err
    assert not out.exists()
