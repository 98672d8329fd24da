"""Which pictures a volume or a clip is made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ogkd.errors import ConfigError, DataError
from ogkd.images import ImageRef, read_image
from ogkd.images.decode import parts_of
from ogkd.images.nifti import filled_slices
from ogkd.images.ref import SlicesRule
from tiny_images import dicom, nifti, volume


@pytest.mark.parametrize("text", ["all", "every=4", "N=16", "axis=1,all", "axis=0,N=3"])
def test_a_rule_reads_what_it_writes(text: str) -> None:
    assert str(SlicesRule.parse(text)) == text


@pytest.mark.parametrize("text", ["", "some", "N=0", "every=-1", "axis=3,all", "N=1e3", "all,all"])
def test_anything_else_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ConfigError, match="every=4"):
        SlicesRule.parse(text)


@pytest.mark.parametrize("count", [1, 3, 16, 99])
def test_n_slices_are_evenly_spaced_and_never_more_than_there_are(count: int) -> None:
    places = SlicesRule(count=count).choose(range(40))
    assert len(places) == min(count, 40)
    assert places == sorted(set(places))
    gaps = np.diff([-1 - places[0], *places])
    assert count == 1 or np.ptp(np.diff(places)) <= 1
    assert gaps.min() >= 1


@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
def test_slices_with_nothing_in_them_are_left_out(tmp_path: Path, ending: str) -> None:
    file = volume(tmp_path / f"scan{ending}")
    assert filled_slices(file, 2) == list(range(4, 20))
    assert filled_slices(file, 0) == list(range(20))
    voxels = np.random.default_rng(1).normal(0, 1, (10, 10, 5)).astype(np.float32)
    voxels[:, :, 2] = np.nan
    assert filled_slices(nifti(tmp_path / f"nan{ending}", voxels), 2) == [0, 1, 3, 4]
    parts = parts_of(ImageRef(file), SlicesRule.parse("N=4"))
    assert [part.part for part in parts] == [f"axis=2,index={k}" for k in (6, 10, 14, 18)]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_compressed_volume_gives_the_same_slices_as_a_plain_one(
    tmp_path: Path, axis: int
) -> None:
    plain, packed = volume(tmp_path / "a.nii"), volume(tmp_path / "b.nii.gz")
    for index in (5, 6, 7):  # the second unpacks the volume, the third finds it unpacked
        part = f"axis={axis},index={index}"
        one, other = (read_image(ImageRef(file, part)) for file in (plain, packed))
        assert np.array_equal(one, other)


def test_an_empty_volume_is_an_error_and_a_damaged_one_too(tmp_path: Path) -> None:
    empty = nifti(tmp_path / "empty.nii", np.zeros((8, 8, 8), np.int16))
    with pytest.raises(DataError, match="blank"):
        parts_of(ImageRef(empty), SlicesRule())
    packed = volume(tmp_path / "cut.nii.gz")
    packed.write_bytes(packed.read_bytes()[:-200])
    with pytest.raises(DataError, match="cut short"):
        parts_of(ImageRef(packed), SlicesRule())


def test_a_clip_is_its_frames_without_the_blank_ones(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 255, (6, 16, 16)).astype(np.uint8)
    frames[3] = 7
    clip = dicom(tmp_path / "clip.dcm", frames, frames=True)
    parts = parts_of(ImageRef(clip), SlicesRule())
    assert [part.part for part in parts] == [f"index={k}" for k in (0, 1, 2, 4, 5)]


def test_a_single_picture_and_a_named_slice_are_pictures_by_themselves(tmp_path: Path) -> None:
    single = dicom(tmp_path / "one.dcm", np.arange(256, dtype=np.uint8).reshape(16, 16))
    named = ImageRef(volume(tmp_path / "scan.nii"), "axis=2,index=5")
    for image in (ImageRef(single), named, ImageRef(Path("photo.png"))):
        assert parts_of(image, SlicesRule()) == [image]
