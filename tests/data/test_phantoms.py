"""Phantoms: same on every machine, of the promised form, hard enough, and refused politely."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ogkd.data.phantoms import PHANTOMS, SPLITS, phantom, render, render_volume, write_folder
from ogkd.errors import ConfigError, DataError

NAMES = sorted(PHANTOMS)


def _digest(name: str, label: int, seed: int, index: int) -> str:
    return hashlib.sha256(render(name, label, seed=seed, index=index).image.tobytes()).hexdigest()


@pytest.mark.parametrize("name", NAMES)
def test_records_are_consistent(name: str) -> None:
    dataset = PHANTOMS[name]
    assert dataset.name == name
    assert 3 <= len(set(dataset.class_names)) == len(dataset.class_names) <= 8
    assert all(c == c.lower() for c in dataset.class_names)
    assert 0 <= dataset.normal < len(dataset.class_names)
    assert len(dataset.descriptions) == len(dataset.class_names)
    assert all(len(set(texts)) >= 12 for texts in dataset.descriptions)
    everything = [text for texts in dataset.descriptions for text in texts]
    assert len(set(everything)) == len(everything)


@pytest.mark.parametrize("name", NAMES)
def test_every_class_draws_colour_pixels_attributes_and_a_mask(name: str) -> None:
    for label in range(len(PHANTOMS[name].class_names)):
        drawn = render(name, label, seed=1, index=label, size=128)
        assert drawn.attributes == render(name, label, seed=1, index=label, size=96).attributes
        assert drawn.image.shape == (128, 128, 3)
        assert drawn.image.dtype == np.uint8
        assert drawn.mask.shape == (128, 128)
        assert drawn.image.std() > 8, "an empty picture"
        assert drawn.attributes


def test_images_are_the_same_in_another_process_and_order() -> None:
    code = (
        "import hashlib; from ogkd.data.phantoms import PHANTOMS, render\n"
        "for name in sorted(PHANTOMS, reverse=True):\n"
        "    image = render(name, 1, seed=4, index=2).image\n"
        "    print(name, hashlib.sha256(image.tobytes()).hexdigest())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    there = dict(line.split() for line in done.stdout.splitlines())
    assert there == {name: _digest(name, 1, 4, 2) for name in NAMES}


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(NAMES), st.integers(0, 2), st.integers(0, 2**31), st.integers(0, 10**6))
def test_another_seed_index_label_or_stream_gives_another_image(
    name: str, label: int, seed: int, index: int
) -> None:
    one = render(name, label, seed=seed, index=index, size=64).image
    again = render(name, label, seed=seed, index=index, size=64).image
    assert np.array_equal(one, again)
    others = [
        render(name, label, seed=seed + 1, index=index, size=64),
        render(name, label, seed=seed, index=index + 1, size=64),
        render(name, (label + 1) % 3, seed=seed, index=index, size=64),
        render(name, label, seed=seed, index=index, size=64, stream=1),
    ]
    for other in others:
        assert not np.array_equal(one, other.image)


def test_a_healthy_image_has_an_empty_mask_and_a_sick_one_does_not() -> None:
    assert render("us-breast", 0, seed=0, index=0).mask.max() == 0
    assert render("us-breast", 1, seed=0, index=0).mask.max() > 200


def test_the_finding_is_in_as_many_neighbouring_slices_as_asked_for() -> None:
    options = {"seed": 1, "index": 0, "size": 64}
    voxels, affected = render_volume("us-breast", 1, slices=12, share=0.3, **options)  # type: ignore[arg-type]
    assert len(affected) == 3
    assert not voxels[:, :, [0, -1]].any()
    again, _ = render_volume("us-breast", 1, slices=12, share=0.3, **options)  # type: ignore[arg-type]
    assert (voxels == again).all()
    assert not render_volume("us-breast", 0, slices=4, **options)[1]  # type: ignore[arg-type]


def test_a_folder_has_the_splits_classes_and_numbers_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a" / "x").mkdir(parents=True)  # an empty one is used
    out = write_folder("cxr", tmp_path / "a" / "x", splits={"train": 3, "test": 2}, size=64)
    files = sorted(path.relative_to(out).as_posix() for path in out.rglob("*.png"))
    expected = [
        f"{split}/{name.replace(' ', '_')}/{index:04d}.png"
        for split, count in (("train", 3), ("test", 2))
        for name in phantom("cxr").class_names
        for index in range(count)
    ]
    assert files == sorted(expected)
    assert not [path for path in out.parent.iterdir() if path != out], "something left aside"


def test_no_image_is_in_two_splits_and_files_hold_what_render_draws(tmp_path: Path) -> None:
    out = write_folder(
        "us-breast", tmp_path / "us", splits=dict.fromkeys(SPLITS, 4), seed=5, size=64
    )
    hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in out.rglob("*.png")]
    assert len(hashes) == 3 * 4 * 4
    assert len(set(hashes)) == len(hashes)
    stored = np.asarray(Image.open(out / "val" / "simple_cyst" / "0002.png"))
    drawn = render("us-breast", 1, seed=5, index=2, size=64, stream=1)
    assert np.array_equal(stored, drawn.image)


def test_a_folder_with_content_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(DataError, match="not an empty folder"):
        write_folder("cxr", tmp_path, splits={"train": 1, "test": 1}, size=64)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_an_interrupted_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Image.Image, "save", stop)
    with pytest.raises(KeyboardInterrupt):
        write_folder("cxr", tmp_path / "cxr", splits={"train": 1, "test": 1}, size=64)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("argument", "value"),
    [("label", 5), ("label", -1), ("seed", -2), ("index", -3), ("size", 8), ("size", 99999)],
)
def test_numbers_out_of_range_are_refused(argument: str, value: int) -> None:
    with pytest.raises(ConfigError) as caught:
        render("cxr", **{"label": 0, "seed": 0, "index": 0, "size": 64} | {argument: value})
    assert caught.value.argument == argument
    with pytest.raises(ConfigError):
        write_folder("cxr", Path("x"), splits={"train": -1})
