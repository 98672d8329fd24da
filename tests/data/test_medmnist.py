from __future__ import annotations

import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ogkd.data.read import read_dataset
from ogkd.errors import DataError
from tiny_data import case_of


def arrays(**changes: Any) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for split, labels in (("train", [0, 2, 1, 2]), ("val", [1]), ("test", [2, 0])):
        content[f"{split}_images"] = np.zeros((len(labels), 28, 28), np.uint8)
        content[f"{split}_labels"] = np.array(labels, np.uint8)[:, None]
    content.update(changes)
    return {name: value for name, value in content.items() if value is not None}


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "toymnist.npz"
    np.savez_compressed(path, **arrays(**changes))
    return path


def refuse(path: Path, **options: Any) -> None:
    with pytest.raises(DataError, match=re.escape(str(path))):
        read_dataset(path, **options)


def test_rows_become_addresses_with_splits_and_labels(tmp_path):
    path = write(tmp_path)
    dataset = read_dataset(path)
    assert dataset.names == ("class 0", "class 1", "class 2")
    assert [case.target for case in dataset.part("train")] == [0, 2, 1, 2]
    assert dataset.part("test") == [
        case_of(Path(f"{path}#test/0"), 2, "test"),
        case_of(Path(f"{path}#test/1"), 0, "test"),
    ]


def test_class_names_are_taken_in_label_order(tmp_path):
    names = ["basophil", "eosinophil", "platelet", "never seen"]
    dataset = read_dataset(write(tmp_path), class_names=names)
    assert dataset.names == tuple(names)
    assert [case.target for case in dataset.part("test")] == [2, 0]


def test_a_label_outside_the_class_list_is_refused(tmp_path):
    refuse(write(tmp_path), class_names=["a", "b"])


@pytest.mark.parametrize("shape", [(4, 64, 64, 3), (4, 28, 28, 1)])
def test_colour_images_and_flat_labels_are_fine(tmp_path, shape):
    path = write(
        tmp_path, train_images=np.zeros(shape, np.uint8), train_labels=np.array([0, 1, 1, 0])
    )
    assert [case.target for case in read_dataset(path).part("train")] == [0, 1, 1, 0]


def test_the_pixels_are_never_read(tmp_path):
    """Behind the header of the images there is nothing at all, and the labels are still read."""
    path = tmp_path / "huge.npz"
    header = {"descr": "|u1", "fortran_order": False, "shape": (4, 20_000, 20_000)}
    with zipfile.ZipFile(path, "w") as archive:
        with archive.open("train_images.npy", "w") as file:
            np.lib.format.write_array_header_1_0(file, header)
        with archive.open("train_labels.npy", "w") as file:
            np.lib.format.write_array(file, np.array([[0], [1], [0], [1]]))
    assert len(read_dataset(path).cases) == 4


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("hostile-was-here"),))


@pytest.mark.parametrize(
    "changes",
    [
        {"train_labels": np.zeros((4, 14), np.uint8)},
        {"train_labels": np.zeros((3, 1), np.uint8)},
        {"train_labels": np.zeros((4, 1, 1), np.uint8)},
        {"train_labels": np.zeros((4, 0), np.uint8)},
        {"train_labels": np.uint8(3)},
        {"train_labels": np.zeros((4, 1))},
        {"train_labels": np.array(["a"] * 4)},
        {"train_labels": np.array([[-1], [0], [1], [1]])},
        {"train_labels": np.array([[10**9], [0], [1], [1]])},
        {"test_labels": None},
        {"train_images": np.zeros((4, 28, 28, 28), np.uint8)},
        {"train_images": np.zeros((4, 28), np.uint8)},
        {"train_images": np.array([None] * 4)},
        {"train_labels": np.array([Hostile()] * 4)},
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, monkeypatch, changes):
    monkeypatch.chdir(tmp_path)
    refuse(write(tmp_path, **changes))
    assert not Path("hostile-was-here").exists()


def test_one_class_is_refused(tmp_path):
    path = tmp_path / "one.npz"
    np.savez(path, train_images=np.zeros((2, 8, 8), np.uint8), train_labels=np.zeros((2, 1), int))
    refuse(path)


def test_other_npz_files_are_refused_with_what_they_hold(tmp_path):
    path = tmp_path / "other.npz"
    np.savez(path, features=np.zeros(3))
    refuse(path)


def test_a_pickle_is_never_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x.npz"
    path.write_bytes(pickle.dumps(Hostile()))
    refuse(path)
    assert not Path("hostile-was-here").exists()
