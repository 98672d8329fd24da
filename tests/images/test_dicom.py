from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from pydicom import DataElement, Dataset
from pydicom.pixels import apply_voi_lut
from pydicom.pixels.decoders.base import JPEG2000LosslessDecoder
from pydicom.uid import (
    JPEG2000,
    MPEG2MPML,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLosslessSV1,
    RLELossless,
)

from ogkd.errors import DataError
from ogkd.images import decode, read_image
from ogkd.images import dicom as reader
from tiny_images import SHADES, dicom, dicom_dataset, encapsulated, lossless_jpeg, own_range

SIGNED = SHADES.astype(np.int16) - 900
COLOUR = np.random.default_rng(1).integers(0, 256, (36, 40, 3), dtype=np.uint8)


def gray(path):
    rgb = read_image(path)
    assert rgb.dtype == np.uint8
    assert (rgb == rgb[:, :, :1]).all()
    return rgb[:, :, 0]


def item(**elements):
    dataset = Dataset()
    for name, value in elements.items():
        setattr(dataset, name, value)
    return dataset


@settings(max_examples=25, deadline=None)
@given(
    hnp.arrays(
        st.sampled_from([np.uint16, np.int16, np.float32]),
        hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=9),
    ).filter(lambda array: np.isfinite(array).all())
)
def test_deep_values_without_a_window_span_their_own_range(tmp_path_factory, array):
    file = dicom(tmp_path_factory.mktemp("d") / "a.dcm", array)
    np.testing.assert_array_equal(gray(file), own_range(array))


@pytest.mark.parametrize("elements", [{}, {"RescaleSlope": 1, "RescaleIntercept": 0}])
def test_eight_bits_stay_as_they_are(tmp_path, elements):
    array = (SHADES % 100 + 20).astype(np.uint8)
    np.testing.assert_array_equal(gray(dicom(tmp_path / "a", array, **elements)), array)


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
@pytest.mark.parametrize("array", [SHADES, SIGNED], ids=["unsigned", "signed"])
def test_the_first_window_is_applied_as_pydicom_does(tmp_path, array, function):
    elements = {"RescaleSlope": 2, "RescaleIntercept": -1024, "VOILUTFunction": function}
    elements |= {"WindowCenter": [40, 900], "WindowWidth": [400, 100]}
    values = array * 2.0 - 1024
    shown = apply_voi_lut(values, dicom_dataset(array, **elements))
    ends = np.array([np.iinfo(array.dtype).min, np.iinfo(array.dtype).max])
    low, high = ends * 2 - 1024
    found = gray(dicom(tmp_path / "a", array, **elements))
    np.testing.assert_allclose(found, np.rint((shown - low) / (high - low) * 255), atol=1)
    if function != "SIGMOID":
        assert (found[values < 40 - 201] == 0).all()
        assert (found[values > 40 + 201] == 255).all()


@pytest.mark.parametrize(("center", "width"), [(9000, 10), (-500, 20), (100, 0)])
def test_a_window_that_shows_nothing_is_ignored(tmp_path, center, width):
    file = dicom(tmp_path / "a", SHADES, WindowCenter=center, WindowWidth=width)
    np.testing.assert_array_equal(gray(file), own_range(SHADES))


def test_monochrome1_is_inverted(tmp_path):
    for elements in ({}, {"WindowCenter": 900, "WindowWidth": 500}):
        straight = gray(dicom(tmp_path / "a", SHADES, **elements))
        names = {"PhotometricInterpretation": "MONOCHROME1", **elements}
        np.testing.assert_array_equal(gray(dicom(tmp_path / "b", SHADES, **names)), 255 - straight)


def test_a_voi_lut_goes_before_a_window_and_a_modality_lut_before_both(tmp_path):
    rising = (np.arange(2000) ** 2 // 100).astype(np.uint16)
    lut = item(LUTDescriptor=[2000, 0, 16], LUTData=rising.tobytes())
    lut["LUTData"].VR = "OW"
    elements = {"VOILUTSequence": [lut], "WindowCenter": 5, "WindowWidth": 5}
    file = dicom(tmp_path / "a", SHADES, **elements)
    scale = 255 / rising.max()
    np.testing.assert_array_equal(gray(file), np.rint(rising[SHADES] * scale))
    halves = item(LUTDescriptor=[1000, 0, 16], LUTData=[i // 2 for i in range(1000)])
    halves["LUTData"].VR = "US"
    file = dicom(tmp_path / "b", SHADES, **elements, ModalityLUTSequence=[halves])
    after = rising[np.minimum(SHADES, 999) // 2]
    np.testing.assert_array_equal(gray(file), np.rint(after * scale))


def test_padding_is_black_and_does_not_stretch_the_range(tmp_path):
    array = SIGNED.copy()
    array[:5] = -32768
    for photometric in ("MONOCHROME1", "MONOCHROME2"):
        look = {"PixelPaddingValue": -32768, "PhotometricInterpretation": photometric}
        found = gray(dicom(tmp_path / photometric, array, **look))
        assert (found[:5] == 0).all()
        assert {found[5:].min(), found[5:].max()} == {0, 255}


@pytest.mark.parametrize("syntax", ["", RLELossless])
def test_frames_are_read_only_by_an_explicit_index(tmp_path, syntax):
    frames = np.stack([SHADES + 100 * number**2 for number in range(5)])
    frames[:, 0, 0] = 0
    file = dicom(tmp_path / "cine.dcm", frames, frames=True, syntax=syntax)
    for word, number in {"0": 0, "3": 3, "first": 0, "middle": 2, "last": 4}.items():
        np.testing.assert_array_equal(gray(f"{file}#index={word}"), own_range(frames[number]))
    for part in ("", "#index=5", "#axis=0,index=1", "#frame=1"):
        with pytest.raises(DataError) as caught:
            read_image(f"{file}{part}")
        assert caught.value.argument == "slice"


def test_each_frame_of_an_enhanced_file_has_its_own_window(tmp_path):
    groups = [
        item(
            FrameVOILUTSequence=[item(WindowCenter=centre, WindowWidth=200)],
            PixelValueTransformationSequence=[item(RescaleSlope=2, RescaleIntercept=0)],
        )
        for centre in (600, 3000)
    ]
    frames, each = np.stack([SHADES, SHADES]), {"PerFrameFunctionalGroupsSequence": groups}
    file = dicom(tmp_path / "a", frames, frames=True, **each)
    for number, centre in enumerate((600, 3000)):
        plain = {"WindowCenter": centre, "WindowWidth": 200}
        alone = dicom(tmp_path / "b", SHADES, RescaleSlope=2, RescaleIntercept=0, **plain)
        np.testing.assert_array_equal(gray(f"{file}#index={number}"), gray(alone))


def test_rgb_planar_deep_and_ybr_become_rgb(tmp_path):
    deep = COLOUR.astype(np.uint16) * 8 + 300  # one range for all channels
    np.testing.assert_array_equal(read_image(dicom(tmp_path / "d", deep)), own_range(deep))
    np.testing.assert_array_equal(read_image(dicom(tmp_path / "a", COLOUR)), COLOUR)
    dataset = dicom_dataset(COLOUR, PlanarConfiguration=1)
    dataset.PixelData = np.moveaxis(COLOUR, 2, 0).tobytes()
    dataset.save_as(tmp_path / "b", enforce_file_format=True)
    np.testing.assert_array_equal(read_image(tmp_path / "b"), COLOUR)
    ybr = np.asarray(Image.fromarray(COLOUR).convert("YCbCr"))
    file = dicom(tmp_path / "c", ybr, PhotometricInterpretation="YBR_FULL")
    assert np.abs(read_image(file).astype(int) - COLOUR).max() <= 3


@pytest.mark.parametrize("bits", [8, 16])
def test_palette_colour_is_looked_up(tmp_path, bits):
    rng = np.random.default_rng(0)
    table = rng.integers(0, 256, (3, 64), dtype=np.uint8)
    elements = {"PhotometricInterpretation": "PALETTE COLOR"}
    for name, entries in zip(("Red", "Green", "Blue"), table, strict=True):
        wide = entries if bits == 8 else entries.astype(np.uint16) * 257
        elements[f"{name}PaletteColorLookupTableDescriptor"] = [64, 0, bits]
        elements[f"{name}PaletteColorLookupTableData"] = wide.tobytes()
    indexes = rng.integers(0, 64, (10, 12), dtype=np.uint8)
    found = read_image(dicom(tmp_path / "a", indexes, **elements))
    np.testing.assert_array_equal(found, np.moveaxis(table[:, indexes], 0, 2))


@pytest.mark.parametrize("syntax", [RLELossless, JPEG2000Lossless])
@pytest.mark.parametrize("array", [SHADES, SHADES.astype(np.uint8), SIGNED, COLOUR])
def test_compressed_files_are_the_uncompressed_ones(tmp_path, syntax, array):
    compressed = dicom(tmp_path / "b", array, syntax=syntax)
    np.testing.assert_array_equal(read_image(compressed), read_image(dicom(tmp_path / "a", array)))


@pytest.mark.parametrize("bits", [12, 16])
def test_lossless_jpeg_gives_back_every_value(tmp_path, bits):
    array = (SHADES * (2 if bits == 12 else 30)).astype(np.uint16)
    stream = lossless_jpeg(array, bits)
    file = encapsulated(tmp_path / "a", stream, JPEGLosslessSV1, array, bits=bits)
    np.testing.assert_array_equal(gray(file), own_range(array))


@pytest.mark.parametrize(("colour", "most"), [(False, 3), (True, 12)])
def test_baseline_jpeg_is_read_in_gray_and_colour(tmp_path, colour, most):
    smooth = np.linspace(0, 255, 40 * 48).reshape(48, 40).astype(np.uint8)
    pixels = np.dstack([smooth, smooth[::-1], smooth[:, ::-1]]) if colour else smooth
    Image.fromarray(pixels).save(tmp_path / "a.jpg", quality=95)
    look = {"PhotometricInterpretation": "YBR_FULL_422"} if colour else {}
    stream = (tmp_path / "a.jpg").read_bytes()
    found = read_image(encapsulated(tmp_path / "a", stream, JPEGBaseline8Bit, pixels, **look))
    expected = pixels if colour else pixels[:, :, None]
    assert np.abs(found.astype(int) - expected).max() <= most


@pytest.mark.parametrize("syntax", [ImplicitVRLittleEndian, ExplicitVRBigEndian])
def test_other_uncompressed_syntaxes_are_read(tmp_path, syntax):
    look = {"WindowCenter": 0, "WindowWidth": 300, "PixelPaddingValue": -900}
    dataset = dicom_dataset(SIGNED, **look)
    if syntax == ExplicitVRBigEndian:
        dataset.PixelData = SIGNED.astype(">i2").tobytes()
    dataset.file_meta.TransferSyntaxUID = syntax
    dataset.save_as(tmp_path / "a", enforce_file_format=True)
    expected = dicom(tmp_path / "b", SIGNED, **look)
    np.testing.assert_array_equal(gray(tmp_path / "a"), gray(expected))


def deflated(path):
    dataset = dicom_dataset(SHADES)
    dataset.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    dataset.save_as(path, enforce_file_format=True)


def without_image(path):
    dataset = dicom_dataset(SHADES)
    for name in ("PixelData", "Rows", "Columns"):
        delattr(dataset, name)
    dataset.save_as(path, enforce_file_format=True)


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (deflated, "deflated"),
        (lambda path: encapsulated(path, b"1234", MPEG2MPML, SHADES), "MPEG2"),
        (without_image, "without an image"),
        (lambda path: path.write_bytes(b"text" * 100), "is not a DICOM file"),
        (lambda path: dicom(path, np.zeros((60, 40), np.uint8)), "40 x 60 pixels, more than"),
        (lambda path: dicom(path, SHADES, syntax=JPEG2000Lossless), r"ogkd\[dicom\]"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path, monkeypatch, write, reason):
    monkeypatch.setattr(decode, "MAX_PIXELS", SHADES.size)
    write(tmp_path / "a.dcm")
    monkeypatch.setattr(JPEG2000LosslessDecoder, "_available", {})
    with pytest.raises(DataError, match=rf"a\.dcm.*{reason}"):
        read_image(tmp_path / "a.dcm")


def test_without_pydicom_the_message_says_what_to_install(tmp_path, monkeypatch):
    file = dicom(tmp_path / "a", SHADES)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(DataError, match=r"pip install \"ogkd\[dicom\]\""):
        read_image(file)
    assert reader.frame_count(file) == 1


@pytest.mark.parametrize("syntax", [JPEG2000, JPEGLosslessSV1])
def test_a_stream_that_claims_another_size_than_its_file_is_not_decoded(tmp_path, syntax):
    if syntax == JPEG2000:
        small = dicom_dataset(SHADES, syntax=JPEG2000Lossless)
        stream = small.PixelData[16:]
        place = stream.index(b"\xff\x4f\xff\x51") + 8
        stream = stream[:place] + b"\0\1\0\0\0\1\0\0" + stream[place + 8 :]
    else:
        stream = lossless_jpeg(SHADES, 16).replace(b"\x10\x00\x30\x00\x28", b"\x10\xff\xff\xff\xff")
    file = encapsulated(tmp_path / "a", stream, syntax, SHADES)
    with pytest.raises(DataError, match=r"6553[56]"):
        read_image(file)


@pytest.mark.parametrize("kind", ["i2", "u2", "u1", "i1"])
@pytest.mark.parametrize("window", [{}, {"WindowCenter": 10, "WindowWidth": 40}])
@pytest.mark.parametrize("padding", [{}, {"PixelPaddingValue": -7, "PixelPaddingRangeLimit": 3}])
def test_each_stored_value_is_converted_once_as_if_pixel_by_pixel(kind, window, padding):
    ends = np.iinfo(kind)
    pixels = np.random.default_rng(0).integers(max(ends.min, -30), 60, (40, 50)).astype(kind)
    pixels[0, :2] = ends.min, ends.max
    look = {"PhotometricInterpretation": "MONOCHROME1", "BitsStored": 8 * pixels.itemsize}
    header = item(**look, RescaleSlope=0.5, RescaleIntercept=3, **window)
    for tag, (name, value) in enumerate(padding.items() if ends.min < 0 else (), 0x00280120):
        header[name] = DataElement(tag, "SS", value)
    found = reader._gray(pixels, header, 0)
    assert np.array_equal(found, reader._levels(pixels, header, 0))
    assert len(np.unique(found)) >= 2
