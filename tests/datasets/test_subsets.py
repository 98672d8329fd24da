from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ogkd.datasets.manifest import Item, Manifest
from ogkd.datasets.read import read_manifest
from ogkd.datasets.splits import base_and_novel, few_shot
from ogkd.datasets.subsets import (
    Subset,
    draw_subset,
    manifest_digest,
    read_subset,
    subset_manifest,
    write_subset,
)
from ogkd.errors import ConfigError, DataError
from tiny_data import write_dataset

CLASSES = ("cyst", "stone", "tumor", "normal kidney")


def made(counts: dict[str, int] | None = None, *, root: str = "/data") -> Manifest:
    """Classes appear in the order 3, 1, 0, 2, so that order and label are told apart."""
    items = [
        Item(Path(root) / split / str(label) / f"{number}.png", label, split)
        for split, count in (counts or {"train": 9, "val": 3, "test": 4}).items()
        for label in (3, 1, 0, 2)
        for number in range(count)
    ]
    return Manifest(tuple(items), CLASSES)


def test_a_subset_is_the_draw_with_paths_below_the_dataset(tmp_path):
    manifest = made()
    subset = draw_subset(manifest, shots=2, seed=1)
    drawn = few_shot(manifest.part("train"), 2, 1)
    assert [(item.path, item.label) for item in subset.items] == [
        (item.path.relative_to("/data").as_posix(), item.label) for item in drawn
    ]
    assert all(item.label == item.original_label for item in subset.items)


def test_base_shots_are_drawn_from_all_classes_first_as_released():
    manifest = made()
    base, _ = base_and_novel(CLASSES)
    subset = draw_subset(manifest, shots=2, seed=1, classes=base)
    everything = [item for item in few_shot(manifest.part("train"), 2, 1) if item.label in base]
    assert [Path("/data") / item.path for item in subset.items] == [
        item.path for item in everything
    ]
    only_base = [item for item in manifest.part("train") if item.label in base]
    assert few_shot(only_base, 2, 1) != everything


cases = st.fixed_dictionaries(
    {
        "shots": st.integers(1, 12),
        "seed": st.integers(0, 10**6),
        "sampling": st.sampled_from(["released", "nested"]),
        "classes": st.sets(st.integers(0, 3), min_size=2).map(sorted),
        "flips": st.integers(0, 9),
    }
)


@settings(max_examples=40, deadline=None)
@given(cases)
def test_what_is_written_is_read_back_and_fits_its_promises(tmp_path_factory, case):
    case["flips"] = min(case["flips"], case["shots"])
    path = tmp_path_factory.mktemp("subset") / "s.json"
    manifest = made()
    subset = draw_subset(manifest, **case)
    write_subset(path, subset)
    assert read_subset(path, manifest) == subset
    kept = min(case["shots"], 9)
    assert Counter(item.original_label for item in subset.items) == dict.fromkeys(
        case["classes"], kept
    )
    flipped = [item for item in subset.items if item.label != item.original_label]
    assert Counter(item.original_label for item in flipped) == (
        dict.fromkeys(case["classes"], case["flips"]) if case["flips"] else {}
    )
    assert {item.label for item in subset.items} <= set(case["classes"])


def test_a_subset_becomes_a_dataset_to_fit_and_judge_with():
    manifest = made()
    subset = draw_subset(manifest, shots=3, seed=2, classes=[1, 3], flips=1)
    found = subset_manifest(subset, manifest)
    assert found.class_names == ("stone", "normal kidney")
    assert Counter(item.split for item in found.items) == {"train": 6, "val": 6, "test": 8}
    for item in found.part("test"):
        assert CLASSES[int(item.path.parent.name)] == found.class_names[item.label]
    wrong = [
        item
        for item in found.part("train")
        if CLASSES[int(item.path.parent.name)] != found.class_names[item.label]
    ]
    assert len(wrong) == 2


def test_a_dataset_without_splits_gives_a_training_part_alone():
    manifest = made({"": 4})
    found = subset_manifest(draw_subset(manifest, shots=2, seed=1), manifest)
    assert {item.split for item in found.items} == {"train"}
    assert len(found.items) == 8


def test_a_moved_dataset_is_the_same_dataset(tmp_path):
    here = write_dataset(tmp_path / "here")
    subset = draw_subset(read_manifest(here), shots=2, seed=1)
    write_subset(tmp_path / "s.json", subset)
    there = Path(shutil.move(here, tmp_path / "there"))
    manifest = read_manifest(there)
    assert read_subset(tmp_path / "s.json", manifest) == subset
    assert all(item.path.is_file() for item in subset_manifest(subset, manifest).items)


def test_the_digest_is_of_the_table_whatever_its_order():
    manifest = made()
    digest = manifest_digest(manifest)
    assert digest == manifest_digest(Manifest(manifest.items[::-1], CLASSES))
    assert digest == manifest_digest(made(root="/else/where"))
    one = manifest.items[0]
    others = [
        Manifest(manifest.items[1:], CLASSES),
        Manifest((Item(one.path, 2, one.split), *manifest.items[1:]), CLASSES),
        Manifest((Item(one.path, one.label, "test"), *manifest.items[1:]), CLASSES),
        Manifest((Item(one.path, one.label, one.split, "p"), *manifest.items[1:]), CLASSES),
        Manifest(
            (Item(one.path.with_name("x"), one.label, one.split), *manifest.items[1:]), CLASSES
        ),
        Manifest(manifest.items, (*CLASSES[:3], "other")),
    ]
    digests = {manifest_digest(other) for other in others}
    assert len(digests) == 6
    assert digest not in digests


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "s.json"
    write_subset(path, draw_subset(made(), shots=2, seed=1))
    return path


def test_a_subset_of_another_dataset_is_refused(stored):
    with pytest.raises(DataError, match="files were added, removed or renamed"):
        read_subset(stored, made({"train": 8, "test": 1}))
    with pytest.raises(DataError, match="its classes are cyst, stone, tumor, normal kidney"):
        read_subset(stored, Manifest(made().items, ("a", "b", "c", "d")))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema_version": 2}, "newer ogkd"),
        ({"shots": 0}, "field 'shots'"),
        ({"sampling": "any"}, "field 'sampling'"),
        ({"items": []}, "field 'items'"),
        ({"dataset_sha256": "x"}, "field 'dataset_sha256'"),
        ({"more": 1}, "field 'more'"),
        ({"items": [{"path": "train/0/0.png", "label": 0}]}, "original_label"),
        (
            {"items": [{"path": "../secret.png", "label": 0, "original_label": 0}]},
            r"changed by hand: \.\./secret\.png",
        ),
        (
            {"items": [{"path": "train/0/0.png", "label": 1, "original_label": 1}]},
            "changed by hand",
        ),
        (
            {"items": [{"path": "train/0/0.png", "label": 7, "original_label": 0}]},
            "changed by hand",
        ),
    ],
)
def test_a_subset_that_was_changed_is_refused(stored, change, words):
    stored.write_text(json.dumps(json.loads(stored.read_text()) | change))
    with pytest.raises(DataError, match=words):
        read_subset(stored, made())


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"train": []}'])
def test_other_files_are_not_subsets(tmp_path, text):
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(DataError, match=r"s\.json"):
        read_subset(tmp_path / "s.json", made())
    with pytest.raises(DataError, match="Cannot read"):
        read_subset(tmp_path / "gone.json", made())


def test_a_draw_that_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="from 0 to 3"):
        draw_subset(made(), shots=2, seed=1, classes=[9])
    with pytest.raises(ConfigError, match="at least 1"):
        draw_subset(made(), shots=0, seed=1)
    with pytest.raises(ConfigError, match="flips must be"):
        draw_subset(made(), shots=2, seed=1, flips=3)
    lonely = Manifest((Item(Path("a"), 0, "train"), Item(Path("b"), 1, "test")), CLASSES)
    with pytest.raises(DataError, match="no training image"):
        draw_subset(lonely, shots=1, seed=1, classes=[1])


def test_a_name_that_is_not_text_is_refused():
    items = (Item(Path("d/a\udcff.png"), 0, "train"), Item(Path("d/b.png"), 1, "train"))
    with pytest.raises(DataError, match="not valid text"):
        draw_subset(Manifest(items, ("x", "y")), shots=1, seed=1)


def test_an_interrupted_write_leaves_the_old_file(stored, monkeypatch):
    before = stored.read_text()

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    subset = draw_subset(made(), shots=3, seed=1)
    monkeypatch.setattr(Path, "write_text", stop)
    with pytest.raises(KeyboardInterrupt):
        write_subset(stored, subset)
    monkeypatch.undo()
    assert stored.read_text() == before
    assert [path.name for path in stored.parent.iterdir()] == ["s.json"]
    assert isinstance(read_subset(stored, made()), Subset)
