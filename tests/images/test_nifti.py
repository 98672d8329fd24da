from __future__ import annotations

import gzip
import sys

import nibabel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ogkd.errors import DataError
from ogkd.images import decode, read_image
from ogkd.images import nifti as reader
from tiny_images import nifti, own_range

VOLUME = np.arange(5 * 6 * 7, dtype=np.int16).reshape(5, 6, 7) ** 2 % 997


def shown(volume, axis, index):
    """The slice of a volume in RAS order, as a DICOM viewer shows it."""
    return np.take(volume, index, axis)[::-1, ::-1].T


def gray(address):
    rgb = read_image(address)
    assert (rgb == rgb[:, :, :1]).all()
    return rgb[:, :, 0]


@pytest.mark.parametrize("codes", ["RAS", "LPS", "SAL", "PIR", "ILA", "ASR"])
def test_axes_are_anatomical_whatever_the_order_in_the_file(tmp_path, codes):
    straight = nibabel.Nifti1Image(VOLUME, np.diag([1, 2, 3, 1]))
    wanted = nibabel.orientations.axcodes2ornt(codes)
    turn = nibabel.orientations.ornt_transform(nibabel.io_orientation(straight.affine), wanted)
    turned = straight.as_reoriented(turn)
    assert "".join(nibabel.aff2axcodes(turned.affine)) == codes
    nibabel.save(straight, tmp_path / "a.nii")
    nibabel.save(turned, tmp_path / "b.nii")
    for axis in range(3):
        for index in ("0", "1", "last"):
            where = f"#axis={axis},index={index}"
            np.testing.assert_array_equal(
                gray(f"{tmp_path}/a.nii{where}"), gray(f"{tmp_path}/b.nii{where}")
            )


def test_the_picture_stands_as_a_radiologist_expects(tmp_path):
    """Axial: anterior up, the patient's right on the left of the picture."""
    volume = np.zeros((8, 8, 2), np.int16)
    volume[7, 0, 0] = 9  # far right, far posterior
    found = gray(f"{nifti(tmp_path / 'a.nii', volume)}#axis=2,index=0")
    assert np.argwhere(found == 255).tolist() == [[7, 0]]


@settings(max_examples=20, deadline=None)
@given(
    hnp.arrays(st.sampled_from([np.int16, np.uint16, np.float32, np.int32]), (2, 3, 4)).filter(
        lambda array: np.isfinite(array).all()
    ),
    st.integers(0, 2),
    st.sampled_from(["a.nii", "a.nii.gz"]),
)
def test_any_depth_is_scaled_by_the_slice_itself(tmp_path_factory, array, axis, name):
    file = nifti(tmp_path_factory.mktemp("n") / name, array)
    expected = own_range(np.take(array, 1, axis))[:, :, None]
    np.testing.assert_array_equal(gray(f"{file}#axis={axis},index=1"), shown(expected, 2, 0))


def test_slope_and_intercept_change_nothing_but_the_bytes_of_eight_bit_files(tmp_path):
    small = (VOLUME % 200).astype(np.uint8)
    plain = gray(f"{nifti(tmp_path / 'a.nii', small)}#axis=2,index=1")
    np.testing.assert_array_equal(plain, shown(small, 2, 1))
    image = nibabel.Nifti1Image(small, np.eye(4))
    image.header.set_slope_inter(-2, 10)
    nibabel.save(image, tmp_path / "b.nii")
    scaled = np.asarray(nibabel.load(tmp_path / "b.nii").dataobj)[:, :, 1:2]
    np.testing.assert_array_equal(
        gray(f"{tmp_path}/b.nii#axis=2,index=1"), shown(own_range(scaled), 2, 0)
    )


def test_what_is_not_a_number_is_black(tmp_path):
    values = VOLUME.astype(np.float32)
    values[0, 0, 0], values[1, 1, 0], values[2, 2, 0] = np.nan, np.inf, -np.inf
    found = gray(f"{nifti(tmp_path / 'a.nii', values)}#axis=2,index=0")[::-1, ::-1].T
    assert (found[0, 0], found[1, 1], found[2, 2]) == (0, 255, 0)
    assert found[3:].max() > found[3:].min()


def test_only_the_slice_is_read(tmp_path, monkeypatch):
    file = nifti(tmp_path / "a.nii", VOLUME)
    seen = []
    take = nibabel.arrayproxy.ArrayProxy.__getitem__

    def watching(self, where):
        seen.append(take(self, where).size)
        return take(self, where)

    monkeypatch.setattr(nibabel.arrayproxy.ArrayProxy, "__getitem__", watching)
    monkeypatch.setattr(nibabel.arrayproxy.ArrayProxy, "__array__", None)
    read_image(f"{file}#axis=1,index=2")
    assert seen == [5 * 7]


def test_colour_volumes_are_colour(tmp_path):
    kind = np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")])
    values = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)
    volume = values.copy().view(kind).reshape(4, 5, 6)
    found = read_image(f"{nifti(tmp_path / 'a.nii', volume)}#axis=2,index=3")
    expected = np.swapaxes(values[:, :, 3][::-1, ::-1], 0, 1)
    np.testing.assert_array_equal(found, expected)


def test_dimensions_of_one_beyond_the_third_do_not_matter_others_do(tmp_path):
    flat = VOLUME[:, :, 0]
    for shape in ((5, 6), (5, 6, 1), (5, 6, 1, 1)):
        file = nifti(tmp_path / "a.nii", flat.reshape(shape))
        np.testing.assert_array_equal(
            gray(f"{file}#axis=2,index=0"), shown(own_range(flat)[:, :, None], 2, 0)
        )
    file = nifti(tmp_path / "b.nii", np.stack([VOLUME] * 3, axis=3))
    with pytest.raises(DataError, match=r"4 dimensions \(5, 6, 7, 3\)"):
        read_image(f"{file}#axis=2,index=0")


def bomb(path):
    header = nibabel.Nifti1Header()
    header.set_data_dtype(np.float64)
    header.set_data_shape((30000, 30000, 30))
    header["magic"], header["vox_offset"] = b"n+1", 352
    with gzip.open(path, "wb") as file:
        file.write(header.binaryblock + bytes(4))


@pytest.mark.parametrize(
    ("name", "write", "reason"),
    [
        ("a.nii.gz", bomb, r"201\.2 GiB"),
        ("a.nii", lambda path: nifti(path, np.zeros((9, 6, 2), np.int16)), "9 x 6 pixels"),
        (
            "a.nii",
            lambda path: nifti(path, VOLUME).write_bytes(path.read_bytes()[:-100]),
            "damaged",
        ),
        ("a.nii", lambda path: path.write_bytes(b"text" * 200), "damaged"),
    ],
)
def test_what_cannot_be_read_is_refused_before_reading(tmp_path, monkeypatch, name, write, reason):
    write(tmp_path / name)
    monkeypatch.setattr(decode, "MAX_PIXELS", 53)
    with pytest.raises(DataError, match=reason):
        read_image(f"{tmp_path / name}#axis=2,index=0")


@pytest.mark.parametrize("part", ["", "#index=2", "#axis=1", "#slice 3", "#axis=2,index=7"])
def test_axis_and_index_are_both_needed(tmp_path, part):
    with pytest.raises(DataError) as caught:
        read_image(f"{nifti(tmp_path / 'v.nii.gz', VOLUME)}{part}")
    assert caught.value.argument == "slice"


def test_without_nibabel_the_message_says_what_to_install(tmp_path, monkeypatch):
    file = nifti(tmp_path / "a.nii", VOLUME)
    monkeypatch.setitem(sys.modules, "nibabel", None)
    with pytest.raises(DataError, match=r"pip install \"ogkd\[dicom\]\""):
        read_image(f"{file}#axis=2,index=0")


def test_a_volume_without_orientation_keeps_the_axes_of_the_file():
    assert reader._orientation(np.full((4, 4), np.nan)) == [(0, 1), (1, 1), (2, 1)]
