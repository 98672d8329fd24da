"""`examples/onnx_predict.py` reads every image as the package does, or refuses it."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from ogkd.images import read_image
from ogkd.images.transforms import Preprocessing, center_crop
from tiny_images import png

pytest.importorskip("onnxruntime")

EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_predict.py"
RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (40, 50, 3), np.uint8)
DEEP = RNG.integers(300, 4000, (40, 50), np.uint16)


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(EXAMPLE), run_name="example")


def write_images(folder):
    """A file of every kind that both read."""
    colour = Image.fromarray(COLOUR)
    alpha = Image.fromarray(np.dstack([COLOUR, COLOUR[:, :, :1]]))
    turned = Image.Exif()
    turned[0x0112] = 6  # upright after a quarter turn
    saved = {
        "rgb.png": (colour, {}),
        "rgba.png": (alpha, {}),
        "gray.png": (colour.convert("L"), {}),
        "gray-alpha.png": (alpha.convert("LA"), {}),
        "palette.png": (colour.quantize(64), {}),
        "palette-transparent.png": (colour.quantize(64), {"transparency": 3}),
        "bits.png": (colour.convert("1"), {}),
        "turned.png": (colour, {"exif": turned}),
        "deep.png": (Image.fromarray(DEEP), {}),
        "rgb.jpg": (colour, {}),
        "gray.jpg": (colour.convert("L"), {}),
        "cmyk.jpg": (colour.convert("CMYK"), {}),
        "turned.jpg": (colour, {"exif": turned}),
        "rgb.bmp": (colour, {}),
        "palette.bmp": (colour.quantize(16), {}),
        "rgb.webp": (colour, {"lossless": True}),
        "rgba.webp": (alpha, {"lossless": True}),
        "rgb.tif": (colour, {}),
        "cmyk.tif": (colour.convert("CMYK"), {}),
        "float.tif": (Image.fromarray(DEEP.astype(np.float32) / 7), {}),
        "int.tif": (Image.fromarray(DEEP.astype(np.int32) - 2000), {}),
        "strip.png": (colour.resize((900, 30)), {}),
    }
    for name, (image, options) in saved.items():
        image.save(folder / name, **options)
    tifffile.imwrite(folder / "deep.tif", DEEP)
    tifffile.imwrite(folder / "white-is-zero.tif", DEEP, photometric="miniswhite")
    tifffile.imwrite(folder / "white-is-zero-8.tif", COLOUR[..., 0], photometric="miniswhite")
    return sorted(folder.iterdir())


@pytest.mark.parametrize(
    "settings",
    [{}, {"resize": "squash"}, {"resize": "pad"}, {"resize": "pad_center"}, {"scaled": 40}],
    ids=str,
)
def test_pixels_and_crops_are_the_package_s_for_every_kind_of_file(script, tmp_path, settings):
    prep = Preprocessing(size=32, **settings)
    card = prep.identity()
    files = write_images(tmp_path)
    assert len(files) == 25
    for file in files:
        pixels = script["read"](file)
        assert np.array_equal(pixels, read_image(file)), file.name
        assert np.array_equal(script["prepare"](pixels, card), center_crop(pixels, prep)), file.name


def test_what_pillow_alone_would_read_otherwise_is_refused(script, tmp_path):
    deep = np.repeat(DEEP[..., None], 3, axis=2)
    png(tmp_path / "rgb16.png", deep)
    png(tmp_path / "rgba16.png", np.dstack([deep, DEEP]))
    png(tmp_path / "la16.png", np.dstack([DEEP, DEEP]))
    tifffile.imwrite(tmp_path / "rgb16.tif", deep, photometric="rgb")
    tifffile.imwrite(tmp_path / "gray32.tif", DEEP.astype(np.uint32))
    tifffile.imwrite(tmp_path / "gray64.tif", DEEP.astype(np.float64))
    tifffile.imwrite(tmp_path / "nan.tif", np.where(DEEP > 900, np.nan, DEEP).astype(np.float32))
    Image.fromarray(COLOUR).save(tmp_path / "a.gif")
    (tmp_path / "text.png").write_text("no picture")
    Image.fromarray(np.full_like(DEEP, 700)).save(tmp_path / "blank.png")
    files = sorted(tmp_path.iterdir())
    assert len(files) == 10
    for file in files:
        with pytest.raises((ValueError, OSError)):
            script["read"](file)


def test_the_example_says_how_it_is_called():
    asked = subprocess.run([sys.executable, EXAMPLE, "--help"], capture_output=True, text=True)
    alone = subprocess.run([sys.executable, EXAMPLE, "model.onnx"], capture_output=True, text=True)
    assert (asked.returncode, alone.returncode) == (0, 2)
    assert "onnx_predict.py MODEL.onnx IMAGE" in asked.stdout
