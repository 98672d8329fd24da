from __future__ import annotations

import io
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ogkd.errors import DataError
from ogkd.images import npz, read_image
from tiny_images import medmnist, own_range

RNG = np.random.default_rng(0)
GRAY = RNG.integers(0, 256, (4, 6, 5), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (3, 6, 5, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def _nothing_kept():
    npz._load.cache_clear()


def test_rows_are_the_images_of_the_split(tmp_path):
    file = medmnist(tmp_path / "m.npz", train_images=GRAY, test_images=COLOUR)
    for row in range(4):
        np.testing.assert_array_equal(
            read_image(f"{file}#train/{row}"), np.repeat(GRAY[row][:, :, None], 3, axis=2)
        )
    for _ in range(2):  # the row returned is a copy
        pixels = read_image(f"{file}#test/2")
        np.testing.assert_array_equal(pixels, COLOUR[2])
        pixels[:] = 7
    one = medmnist(tmp_path / "o.npz", val_images=GRAY[:, :, :, None])
    np.testing.assert_array_equal(read_image(f"{one}#val/1")[:, :, 0], GRAY[1])


@settings(max_examples=15, deadline=None)
@given(
    hnp.arrays(st.sampled_from([np.uint16, np.int32, np.float32]), (2, 3, 4)).filter(
        lambda array: np.isfinite(array).all()
    )
)
def test_deep_rows_span_their_own_range(tmp_path_factory, array):
    file = medmnist(tmp_path_factory.mktemp("m") / "m.npz", test_images=array)
    np.testing.assert_array_equal(read_image(f"{file}#test/1")[:, :, 0], own_range(array[1]))


def test_an_array_is_opened_once_for_many_threads_and_again_when_the_file_changes(tmp_path):
    file = medmnist(tmp_path / "m.npz", train_images=GRAY, test_images=COLOUR)
    rows = [f"{file}#train/{row % 4}" for row in range(40)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(read_image, rows))
    assert npz._load.cache_info().misses == 1
    np.testing.assert_array_equal(found[7][:, :, 0], GRAY[3])
    medmnist(tmp_path / "m.npz", train_images=255 - GRAY[:2])
    np.testing.assert_array_equal(read_image(f"{file}#train/0")[:, :, 0], 255 - GRAY[0])


def test_an_address_that_names_no_row_is_refused(tmp_path):
    file = medmnist(tmp_path / "m.npz", train_images=GRAY, labels=np.zeros(4))
    for address in (file, f"{file}#train", f"{file}#train/-1", f"{file}#3", f"{file}#index=3"):
        with pytest.raises(DataError, match=r"m\.npz#test/0"):
            read_image(address)
    with pytest.raises(DataError, match="4 train images: there is no row 4"):
        read_image(f"{file}#train/4")
    with pytest.raises(DataError, match="no test_images"):
        read_image(f"{file}#test/0")


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 5, 5, 5), np.uint8),
        np.zeros((2, 5), np.uint8),
        np.zeros((2, 0, 5), np.uint8),
        np.zeros((2, 5, 5), np.complex64),
        np.full((2, 5, 5), "x"),
        np.empty((2, 5, 5), object),  # would be unpickled
    ],
    ids=["volumes", "vectors", "empty", "complex", "text", "objects"],
)
def test_arrays_that_are_no_images_are_refused(tmp_path, array):
    file = medmnist(tmp_path / "m.npz", test_images=array)
    with pytest.raises(DataError, match="test_images has shape"):
        read_image(f"{file}#test/0")


def test_sizes_are_checked_before_memory_is_taken(tmp_path):
    def claim(shape):
        head = io.BytesIO()
        facts = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(head, facts)
        with zipfile.ZipFile(tmp_path / "m.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("test_images.npy", head.getvalue() + bytes(1000))

    claim((10**6, 10**3, 10**3))
    with pytest.raises(DataError, match=r"declares 1,000,000,000,000 bytes"):
        read_image(f"{tmp_path}/m.npz#test/0")
