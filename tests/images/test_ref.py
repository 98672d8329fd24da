from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogkd.errors import ConfigError, DataError
from ogkd.files import sha256_file
from ogkd.images.ref import ImageRef, SliceRule, kind_of
from tiny_images import SHADES, dicom, nifti


@pytest.mark.parametrize(
    ("address", "file", "fragment"),
    [
        ("a/b.png", "a/b.png", ""),
        ("scan.nii.gz#axis=2,index=40", "scan.nii.gz", "axis=2,index=40"),
        ("a/cine.dcm#index=middle", "a/cine.dcm", "index=middle"),
        ("x/mnist.npz#test/12", "x/mnist.npz", "test/12"),
        ("case #3/b.png", "case #3/b.png", ""),
        ("#1/scan.nii#axis=0,index=1", "#1/scan.nii", "axis=0,index=1"),
    ],
)
def test_file_and_fragment_are_told_apart_even_if_nothing_is_there(address, file, fragment):
    ref = ImageRef.of(address)
    assert ref == ImageRef(Path(file), fragment)
    assert str(ref) == address
    assert ImageRef.of(ref) is ref


def test_a_file_that_is_there_decides_what_the_sharp_means(tmp_path):
    (tmp_path / "a.nii").touch()
    assert ImageRef.of(tmp_path / "a.nii#anything").part == "anything"
    (tmp_path / "a.nii#index=3").touch()  # a real name, however strange
    assert ImageRef.of(tmp_path / "a.nii#index=3").file == tmp_path / "a.nii#index=3"
    assert ImageRef.of(tmp_path / "a.nii#index=3").part == ""
    assert ImageRef.of(tmp_path / "a.nii#index=3#index=4").part == "index=4"


@given(st.none() | st.integers(0, 2), st.integers(1, 500))
def test_a_rule_reads_back_and_names_a_slice_that_is_there(axis, count):
    for index, position in {0: 0, "first": 0, "middle": count // 2, "last": count - 1}.items():
        rule = SliceRule(axis, index)
        assert SliceRule.parse(str(rule)) == rule
        assert rule.position(Path(), count) == position
    with pytest.raises(DataError):
        SliceRule(axis, count).position(Path(), count)


@pytest.mark.parametrize(
    "text", ["", "axis=2", "axis=3,index=1", "index=-1", "index=mid", "slice=1", "index=1,index=2"]
)
def test_what_is_not_a_rule_is_refused(text):
    with pytest.raises(ConfigError) as caught:
        SliceRule.parse(text)
    assert caught.value.argument == "slice"


def test_only_volumes_without_a_slice_get_one(tmp_path):
    volume = nifti(tmp_path / "v.nii.gz", np.zeros((2, 3, 4), np.uint8))
    cine = dicom(tmp_path / "cine", np.stack([SHADES, SHADES]), frames=True)
    single = dicom(tmp_path / "one.dcm", SHADES)
    rule = SliceRule.parse("axis=2, index=middle")
    assert ImageRef(volume).sliced(rule) == ImageRef(volume, "axis=2,index=middle")
    assert ImageRef(cine).sliced(rule) == ImageRef(cine, "index=middle")
    for other in (single, tmp_path / "x.png", f"{volume}#axis=0,index=1", tmp_path / "gone"):
        assert ImageRef.of(other).sliced(rule) == ImageRef.of(other)
    assert ImageRef(volume).sliced(None) == ImageRef(volume)


def test_the_key_is_the_content_and_the_part(tmp_path):
    file = tmp_path / "v.nii"
    file.write_bytes(b"abc")
    plain = hashlib.sha256(b"abc").hexdigest()
    assert ImageRef.of(file).key == plain
    part = ImageRef.of(f"{file}#axis=2,index=1").key
    assert part == hashlib.sha256(f"{plain}#axis=2,index=1".encode()).hexdigest()
    assert part != ImageRef.of(f"{file}#axis=2,index=2").key
    (tmp_path / "moved.nii").write_bytes(b"abc")
    assert ImageRef.of(f"{tmp_path}/moved.nii#axis=2,index=1").key == part
    file.write_bytes(b"abcd")  # the digest is remembered only while the file stays the same
    assert ImageRef.of(f"{file}#axis=2,index=1").key != part


def test_what_cannot_be_hashed_is_named(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    for name in ("gone.png", "gone.nii#axis=0,index=0", "nul\0.png"):
        with pytest.raises(DataError, match="Cannot read"):
            assert ImageRef.of(tmp_path / name).key
    for name in ("pipe.png", "."):
        with pytest.raises(DataError, match="not a regular file"):
            assert ImageRef.of(tmp_path / name).key


def test_kinds_go_by_ending_then_by_content(tmp_path):
    for name, kind in {"a.PNG": "plain", "a.Dcm": "dicom", "a.nii.GZ": "nifti"}.items():
        assert kind_of(tmp_path / name) == kind
    dicom(tmp_path / "1.2.840", SHADES)
    assert kind_of(tmp_path / "1.2.840") == "dicom"
    (tmp_path / "README").write_text("x" * 200)
    assert kind_of(tmp_path / "README") == "plain"


def test_a_file_is_hashed_once_however_often_it_is_asked_for(tmp_path, monkeypatch):
    import ogkd.images.ref as module

    hashed = []

    def counting(file):
        hashed.append(file)
        return sha256_file(file)

    monkeypatch.setattr(module, "sha256_file", counting)
    file = tmp_path / "a.png"
    file.write_bytes(b"abc")
    image = ImageRef(file)
    assert image.key == image.key
    assert image.fingerprint == hashlib.sha256(image.key.encode()).hexdigest()[:16]
    parts = [ImageRef(file, f"index={n}") for n in range(5)]
    assert len({part.key for part in parts}) == 5
    assert hashed == [file, file]  # once as a picture, once for all parts
