"""Whole slides: tissue, tiles, and what can be wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ogkd.data.case import Case
from ogkd.data.grouping import Grouping
from ogkd.errors import DataError
from ogkd.images import ImageRef, read_image
from ogkd.images.ref import Broken
from ogkd.images.slices import SlicesRule, parts_of
from ogkd.images.slide import TILE, tiles, tissue

openslide = pytest.importorskip("openslide")
SIZE = (1536, 2048)  # rows, columns
PIXEL = 0.5  # micrometres: 20 times


def picture() -> NDArray[np.uint8]:
    """Glass with stained tissue in the right half, darker further down."""
    rng = np.random.default_rng(0)
    found = np.full((*SIZE, 3), 240, np.uint8)
    rows = np.linspace(200, 120, SIZE[0])[:, None]
    noise = rng.integers(0, 20, (SIZE[0], SIZE[1] // 2))
    found[:, SIZE[1] // 2 :] = np.stack([rows + noise, 0.4 * rows + noise, rows + noise], axis=2)
    return found


def slide(path: Path, *, mpp: float | None = PIXEL, pixels: Any = None) -> Path:
    """A pyramid of tiles in TIFF, as OpenSlide's generic format reads it."""
    import tifffile

    whole = picture() if pixels is None else pixels
    how: dict[str, Any] = {"tile": (256, 256), "photometric": "rgb", "compression": "zlib"}
    if mpp is not None:
        how |= {"resolution": (1e4 / mpp, 1e4 / mpp), "resolutionunit": "CENTIMETER"}
    with tifffile.TiffWriter(path) as file:
        file.write(whole, **how)
        for step in (2, 4):
            small = np.ascontiguousarray(whole[::step, ::step])
            file.write(small, subfiletype=1, **{**how, "resolution": None})
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return slide(tmp_path_factory.mktemp("slides") / "slide.tiff")


def test_tissue_is_what_is_stained() -> None:
    found = tissue(picture()[::8, ::8])
    assert found[:, found.shape[1] // 2 + 1 :].all()
    assert not found[:, : found.shape[1] // 2 - 1].any()
    assert not tissue(np.full((20, 20, 3), 230, np.uint8)).any()


def expanded(*files: Path) -> list[Case]:
    return Grouping(slices=SlicesRule()).expand([Case.single(ImageRef(file), 0) for file in files])


def test_tiles_cover_the_tissue_at_the_magnification(whole: Path) -> None:
    assert openslide.OpenSlide(whole).properties["openslide.mpp-x"] == "0.5"
    found = tiles(whole, magnification=10.0, side=None)  # 512 pixels of the slide each
    assert found == [f"tile={x},{y},512" for y in (0, 512, 1024) for x in (1024, 1536)]
    assert len(tiles(whole, magnification=20.0, side=None)) == 24
    assert len(tiles(whole, magnification=10.0, side=256)) == 24


def test_a_tile_is_that_part_of_the_slide(whole: Path) -> None:
    found = read_image(ImageRef.of(f"{whole}#tile=1024,512,256"))
    assert found.shape == (TILE, TILE, 3)
    np.testing.assert_array_equal(found, picture()[512:768, 1024:1280])
    small = read_image(ImageRef.of(f"{whole}#tile=1024,512,512"))
    near = picture()[512:1024:2, 1024:1536:2]
    assert np.abs(small.astype(int) - near).mean() < 1


def test_a_slide_is_a_case_of_its_tiles(whole: Path) -> None:
    parts = parts_of(ImageRef(whole), SlicesRule.parse("x=20,N=5"))
    assert len(parts) == 5
    (case,) = expanded(whole)
    assert (case.name, len(case.images)) == (str(whole), 6)


def test_one_slide_without_its_magnification_does_not_stop_the_others(
    tmp_path: Path, whole: Path
) -> None:
    silent = slide(tmp_path / "a.tiff", mpp=None)
    with pytest.raises(DataError, match="does not state its magnification"):
        expanded(silent)
    first, second = expanded(silent, whole)
    assert isinstance(first.image, Broken)
    assert "does not state its magnification" in first.image.reason
    assert {part.file for part in second.images} == {whole}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"mpp": None}, r"does not state its magnification.*side=512,all"),
        ({"pixels": np.full((1024, 1024, 3), 235, np.uint8)}, "blank"),
        ({"pixels": picture()[:400, -400:]}, "less than one tile"),
    ],
)
def test_a_slide_without_magnification_tissue_or_room_for_a_tile_is_refused(
    tmp_path: Path, content: dict[str, Any], reason: str
) -> None:
    file = slide(tmp_path / "slide.tiff", **content)
    with pytest.raises(DataError, match=reason):
        parts_of(ImageRef(file), SlicesRule())
    if "mpp" in content:
        assert len(parts_of(ImageRef(file), SlicesRule.parse("side=512,all"))) == 6


def test_a_plain_tiff_is_one_image_and_a_slide_is_none(tmp_path: Path, whole: Path) -> None:
    import tifffile

    tifffile.imwrite(file := tmp_path / "photo.tif", picture()[:64, -64:])
    assert parts_of(ImageRef(file), SlicesRule()) == [ImageRef(file)]
    file = tmp_path / "a.svs"
    file.write_bytes(whole.read_bytes())
    with pytest.raises(DataError, match=r"whole slide.*slices"):
        read_image(file)


def test_a_truncated_slide_is_named(tmp_path: Path, whole: Path) -> None:
    file = tmp_path / "cut.svs"
    file.write_bytes(whole.read_bytes()[:3000])
    with pytest.raises(DataError, match=r"cut\.svs is damaged or cut short"):
        parts_of(ImageRef(file), SlicesRule())
    with pytest.raises(DataError, match="damaged or cut short"):
        read_image(expanded(file)[0].image)


def test_without_openslide_a_slide_says_what_to_install(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ogkd.images import slide as module

    module._slide.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "openslide", None)
    with pytest.raises(DataError, match=r"ogkd\[slides\]"):
        tiles(whole, magnification=10, side=None)
    module._slide.cache_clear()
