from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from pydicom import DataElement, Dataset
from pydicom.pixels import apply_voi_lut
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


def test_eight_bits_stay_as_they_are(tmp_path):
    array = (SHADES % 100 + 20).astype(np.uint8)
    np.testing.assert_array_equal(gray(dicom(tmp_path / "a", array)), array)
    same = dicom(tmp_path / "b", array, RescaleSlope=1, RescaleIntercept=0)
    np.testing.assert_array_equal(gray(same), array)


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
@pytest.mark.parametrize("array", [SHADES, SIGNED], ids=["unsigned", "signed"])
def test_a_window_is_black_below_and_white_above(tmp_path, array, function):
    elements = {"RescaleSlope": 2, "RescaleIntercept": -1024, "VOILUTFunction": function}
    elements |= {"WindowCenter": 40, "WindowWidth": 400}
    dataset = dicom_dataset(array, **elements)
    dataset.save_as(tmp_path / "a.dcm", enforce_file_format=True)
    shown = apply_voi_lut(array * 2.0 - 1024, dataset)
    bits = 16
    ends = (
        np.array([0, 2**bits - 1]) if array.dtype == np.uint16 else np.array([-(2**15), 2**15 - 1])
    )
    low, high = ends * 2 - 1024
    expected = np.rint((shown - low) / (high - low) * 255)
    np.testing.assert_allclose(gray(tmp_path / "a.dcm"), expected, atol=1)
    if function != "SIGMOID":
        found = gray(tmp_path / "a.dcm")
        values = array * 2.0 - 1024
        assert (found[values < 40 - 201] == 0).all()
        assert (found[values > 40 + 201] == 255).all()


def test_the_first_of_several_windows_is_used(tmp_path):
    both = dicom(tmp_path / "a", SHADES, WindowCenter=[300, 900], WindowWidth=[200, 100])
    one = dicom(tmp_path / "b", SHADES, WindowCenter=300, WindowWidth=200)
    np.testing.assert_array_equal(gray(both), gray(one))


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
        file = dicom(
            tmp_path / photometric,
            array,
            PixelPaddingValue=-32768,
            PhotometricInterpretation=photometric,
        )
        found = gray(file)
        assert (found[:5] == 0).all()
        assert {found[5:].min(), found[5:].max()} == {0, 255}


def test_frames_are_read_only_by_an_explicit_index(tmp_path):
    frames = np.stack([SHADES + 100 * number**2 for number in range(5)])
    frames[:, 0, 0] = 0
    file = dicom(tmp_path / "cine.dcm", frames, frames=True)
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
    file = dicom(
        tmp_path / "a",
        np.stack([SHADES, SHADES]),
        frames=True,
        PerFrameFunctionalGroupsSequence=groups,
    )
    for number, centre in enumerate((600, 3000)):
        plain = {"WindowCenter": centre, "WindowWidth": 200}
        alone = dicom(tmp_path / "b", SHADES, RescaleSlope=2, RescaleIntercept=0, **plain)
        np.testing.assert_array_equal(gray(f"{file}#index={number}"), gray(alone))


def test_rgb_planar_and_ybr_become_rgb(tmp_path):
    np.testing.assert_array_equal(read_image(dicom(tmp_path / "a", COLOUR)), COLOUR)
    dataset = dicom_dataset(COLOUR, PlanarConfiguration=1)
    dataset.PixelData = np.moveaxis(COLOUR, 2, 0).tobytes()
    dataset.save_as(tmp_path / "b", enforce_file_format=True)
    np.testing.assert_array_equal(read_image(tmp_path / "b"), COLOUR)
    ybr = np.asarray(Image.fromarray(COLOUR).convert("YCbCr"))
    file = dicom(tmp_path / "c", ybr, PhotometricInterpretation="YBR_FULL")
    assert np.abs(read_image(file).astype(int) - COLOUR).max() <= 3


def test_deep_colour_is_scaled_by_one_range_for_all_channels(tmp_path):
    deep = COLOUR.astype(np.uint16) * 8 + 300
    np.testing.assert_array_equal(read_image(dicom(tmp_path / "a", deep)), own_range(deep))


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


def test_a_frame_of_a_compressed_cine_is_found(tmp_path):
    frames = np.stack([SHADES.T + 700 * number for number in range(3)])
    frames[:, 0, 0] = 0
    file = dicom(tmp_path / "a", frames, frames=True, syntax=RLELossless)
    np.testing.assert_array_equal(gray(f"{file}#index=2"), own_range(frames[2]))


@pytest.mark.parametrize("bits", [12, 16])
def test_lossless_jpeg_gives_back_every_value(tmp_path, bits):
    array = (SHADES * (2 if bits == 12 else 30)).astype(np.uint16)
    stream = lossless_jpeg(array, bits)
    file = encapsulated(tmp_path / "a", stream, JPEGLosslessSV1, array, bits=bits)
    np.testing.assert_array_equal(gray(file), own_range(array))


def test_baseline_jpeg_is_read_in_gray_and_colour(tmp_path):
    smooth = np.linspace(0, 255, 40 * 48).reshape(48, 40).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(smooth).save(buffer, "JPEG", quality=95)
    file = encapsulated(tmp_path / "a", buffer.getvalue(), JPEGBaseline8Bit, smooth)
    assert np.abs(gray(file).astype(int) - smooth).max() <= 3
    colour = np.dstack([smooth, smooth[::-1], smooth[:, ::-1]])
    buffer = io.BytesIO()
    Image.fromarray(colour).save(buffer, "JPEG", quality=95)
    file = encapsulated(
        tmp_path / "b",
        buffer.getvalue(),
        JPEGBaseline8Bit,
        colour,
        PhotometricInterpretation="YBR_FULL_422",
    )
    assert np.abs(read_image(file).astype(int) - colour).max() <= 12


@pytest.mark.parametrize("syntax", [ImplicitVRLittleEndian, ExplicitVRBigEndian])
def test_other_uncompressed_syntaxes_are_read(tmp_path, syntax):
    dataset = dicom_dataset(SIGNED, WindowCenter=0, WindowWidth=300, PixelPaddingValue=-900)
    if syntax == ExplicitVRBigEndian:
        dataset.PixelData = SIGNED.astype(">i2").tobytes()
    dataset.file_meta.TransferSyntaxUID = syntax
    dataset.save_as(tmp_path / "a", enforce_file_format=True)
    expected = dicom(
        tmp_path / "b", SIGNED, WindowCenter=0, WindowWidth=300, PixelPaddingValue=-900
    )
    np.testing.assert_array_equal(gray(tmp_path / "a"), gray(expected))


def test_syntaxes_that_are_not_read_say_so(tmp_path):
    dataset = dicom_dataset(SHADES)
    dataset.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    dataset.save_as(tmp_path / "a", enforce_file_format=True)
    with pytest.raises(DataError, match="deflated"):
        read_image(tmp_path / "a")
    file = encapsulated(tmp_path / "b", b"1234", MPEG2MPML, SHADES)
    with pytest.raises(DataError, match="MPEG2"):
        read_image(file)


def test_size_is_checked_before_decoding(tmp_path, monkeypatch):
    file = dicom(tmp_path / "a", SHADES)
    monkeypatch.setattr(decode, "MAX_PIXELS", SHADES.size - 1)
    monkeypatch.setattr(reader, "_decode", None)
    with pytest.raises(DataError, match=r"40 x 48 pixels, more than the limit"):
        read_image(file)


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


def test_a_dicom_file_without_an_image_is_named(tmp_path):
    dataset = dicom_dataset(SHADES)
    for name in ("PixelData", "Rows", "Columns"):
        delattr(dataset, name)
    dataset.save_as(tmp_path / "a.dcm", enforce_file_format=True)
    with pytest.raises(DataError, match="without an image"):
        read_image(tmp_path / "a.dcm")


def test_a_file_that_only_has_the_ending_is_named(tmp_path):
    (tmp_path / "a.dcm").write_bytes(b"text" * 100)
    with pytest.raises(DataError, match=r"a\.dcm is not a DICOM file"):
        read_image(tmp_path / "a.dcm")


def test_without_pydicom_the_message_says_what_to_install(tmp_path, monkeypatch):
    file = dicom(tmp_path / "a", SHADES)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(DataError, match=r"pip install \"ogkd\[dicom\]\""):
        read_image(file)
    assert reader.frame_count(file) == 1


def test_without_a_decoder_the_message_says_what_to_install(tmp_path, monkeypatch):
    file = dicom(tmp_path / "a", SHADES, syntax=JPEG2000Lossless)
    from pydicom.pixels.decoders import base

    monkeypatch.setattr(base.JPEG2000LosslessDecoder, "_available", {})
    with pytest.raises(DataError, match=r"pip install \"ogkd\[dicom\]\""):
        read_image(file)


@pytest.mark.parametrize("kind", ["i2", "u2", "u1", "i1"])
@pytest.mark.parametrize("window", [{}, {"WindowCenter": 10, "WindowWidth": 40}])
@pytest.mark.parametrize("padding", [{}, {"PixelPaddingValue": -7, "PixelPaddingRangeLimit": 3}])
def test_each_stored_value_is_converted_once_as_if_pixel_by_pixel(kind, window, padding):
    ends = np.iinfo(kind)
    rng = np.random.default_rng(0)
    pixels = rng.integers(max(ends.min, -30), 60, (40, 50)).astype(kind)
    pixels[0, :2] = ends.min, ends.max
    header = Dataset()
    header.PhotometricInterpretation, header.BitsStored = "MONOCHROME1", 8 * pixels.itemsize
    header.RescaleSlope, header.RescaleIntercept = 0.5, 3
    for name, value in window.items():
        setattr(header, name, value)
    if padding and ends.min < 0:
        header["PixelPaddingValue"] = DataElement(0x00280120, "SS", padding["PixelPaddingValue"])
        header["PixelPaddingRangeLimit"] = DataElement(0x00280121, "SS", 3)
    found = reader._gray(pixels, header, 0)
    assert np.array_equal(found, reader._levels(pixels, header, 0))
    assert len(np.unique(found)) >= 2
