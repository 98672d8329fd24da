from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogkd.errors import ConfigError, DataError
from ogkd.images.ref import (
    SliceRule,
    content_key,
    file_of,
    fragment_of,
    kind_of,
    parse_rule,
    with_slice,
)
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
    assert (file_of(address), fragment_of(Path(address))) == (Path(file), fragment)


def test_a_file_that_is_there_decides_what_the_sharp_means(tmp_path):
    (tmp_path / "a.nii").touch()
    assert fragment_of(tmp_path / "a.nii#anything") == "anything"
    (tmp_path / "a.nii#index=3").touch()  # a real name, however strange
    assert file_of(tmp_path / "a.nii#index=3") == tmp_path / "a.nii#index=3"
    assert fragment_of(tmp_path / "a.nii#index=3") == ""
    assert fragment_of(tmp_path / "a.nii#index=3#index=4") == "index=4"


@given(st.none() | st.integers(0, 2), st.integers(0, 999) | st.sampled_from(["first", "last"]))
def test_a_rule_reads_back_from_its_text(axis, index):
    rule = SliceRule(axis, index)
    assert parse_rule(str(rule)) == rule


@given(st.integers(1, 500))
def test_words_name_places_that_are_there(count):
    places = [SliceRule(None, word).position(count) for word in ("first", "middle", "last")]
    assert places == [0, count // 2, count - 1]
    assert SliceRule(0, count - 1).position(count) == count - 1
    with pytest.raises(ValueError, match=f"only {count}"):
        SliceRule(0, count).position(count)


@pytest.mark.parametrize(
    "text", ["", "axis=2", "axis=3,index=1", "index=-1", "index=mid", "slice=1", "index=1,index=2"]
)
def test_a_rule_that_says_nothing_is_refused_with_the_forms_there_are(text):
    with pytest.raises(ConfigError, match="first, middle or last"):
        parse_rule(text)


def test_only_volumes_without_a_slice_get_one(tmp_path):
    volume = nifti(tmp_path / "v.nii.gz", np.zeros((2, 3, 4), np.uint8))
    cine = dicom(tmp_path / "cine", np.stack([SHADES, SHADES]), frames=True)
    single = dicom(tmp_path / "one.dcm", SHADES)
    rule = "axis=2, index=middle"
    assert with_slice(volume, rule) == Path(f"{volume}#axis=2,index=middle")
    assert with_slice(cine, rule) == Path(f"{cine}#index=middle")
    for other in (single, tmp_path / "x.png", Path(f"{volume}#axis=0,index=1"), tmp_path / "gone"):
        assert with_slice(other, rule) == other
    with pytest.raises(ConfigError):
        with_slice(volume, "middle")


def test_the_key_is_the_content_and_the_part(tmp_path):
    file = tmp_path / "v.nii"
    file.write_bytes(b"abc")
    plain = hashlib.sha256(b"abc").hexdigest()
    assert content_key(file) == plain
    part = content_key(f"{file}#axis=2,index=1")
    assert part == hashlib.sha256(f"{plain}#axis=2,index=1".encode()).hexdigest()
    assert part != content_key(f"{file}#axis=2,index=2")
    (tmp_path / "moved.nii").write_bytes(b"abc")
    assert content_key(f"{tmp_path}/moved.nii#axis=2,index=1") == part
    file.write_bytes(b"abcd")  # the digest is remembered only while the file stays the same
    assert content_key(f"{file}#axis=2,index=1") != part


def test_what_cannot_be_hashed_is_named(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    for name in ("gone.png", "gone.nii#axis=0,index=0", "nul\0.png"):
        with pytest.raises(DataError, match="Cannot read"):
            content_key(tmp_path / name)
    for name in ("pipe.png", "."):
        with pytest.raises(DataError, match="not a regular file"):
            content_key(tmp_path / name)


def test_kinds_go_by_ending_then_by_content(tmp_path):
    for name, kind in {"a.PNG": "plain", "a.Dcm": "dicom", "a.nii.GZ": "nifti"}.items():
        assert kind_of(tmp_path / name) == kind
    dicom(tmp_path / "1.2.840", SHADES)
    assert kind_of(tmp_path / "1.2.840") == "dicom"
    (tmp_path / "README").write_text("x" * 200)
    assert kind_of(tmp_path / "README") == "plain"
