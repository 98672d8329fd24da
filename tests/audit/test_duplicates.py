from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from ogkd.audit import duplicates
from ogkd.audit.check import scan_images
from ogkd.audit.duplicates import find_duplicates
from ogkd.images import ImageRef


def save(path: Path, image: np.ndarray) -> ImageRef:
    Image.fromarray(image).save(path)
    return ImageRef(path)


def test_the_same_pixels_in_other_files_are_exact_and_not_near_too(texture, tmp_path) -> None:  # type: ignore[no-untyped-def]
    numbers = {"a.png": 1, "b.png": 2, "c.bmp": 1, "d.tif": 1}
    paths = [save(tmp_path / name, texture(number)) for name, number in numbers.items()]
    found = find_duplicates(scan_images(paths)[0], near=6)
    assert found.exact == ((0, 2, 3),)
    assert found.near == ()


def test_a_resized_copy_is_near_and_numbers_count_through_unreadable_files(
    texture, tmp_path
) -> None:  # type: ignore[no-untyped-def]
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"not an image")
    small = np.asarray(Image.fromarray(texture(1)).resize((75, 60)))
    paths = [
        ImageRef(broken),
        save(tmp_path / "a.png", texture(1)),
        save(tmp_path / "b.png", texture(2)),
        save(tmp_path / "small.png", small),
    ]
    images, unreadable = scan_images(paths)
    assert list(unreadable) == [0]
    (pair,) = find_duplicates(images, near=6).near
    assert (pair.first, pair.second) == (1, 3)
    assert pair.likeness > 0.99


def test_images_with_next_to_nothing_in_them_are_flat_and_duplicates_of_nothing(tmp_path) -> None:  # type: ignore[no-untyped-def]
    paths = []
    for name, level in (("a", 0), ("b", 0), ("c", 90)):
        pixels = np.full((40, 40, 3), level, np.uint8)
        pixels[0, 0] += 1
        paths.append(save(tmp_path / f"{name}.png", pixels))
    found = find_duplicates(scan_images(paths)[0], near=15)
    assert found.flat == (0, 1, 2)
    assert found.exact == ()
    assert found.near == ()


def test_a_shared_hash_is_not_enough(texture, tmp_path) -> None:  # type: ignore[no-untyped-def]
    # The same coarse layout with other fine structure: one hash, but not one image.
    rng = np.random.default_rng(0)
    coarse = texture(1).astype(int) // 4
    first, second = (
        np.clip(coarse + np.kron(rng.integers(0, 190, (60, 75, 1)), np.ones((2, 2, 1))), 0, 255)
        for _ in range(2)
    )
    paths = [
        save(tmp_path / "a.png", first.astype(np.uint8)),
        save(tmp_path / "b.png", second.astype(np.uint8)),
    ]
    assert find_duplicates(scan_images(paths)[0], near=15).near == ()


def test_a_list_beyond_the_limit_is_cut_and_says_so(texture, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(duplicates, "MAX_PAIRS", 3)
    paths = [
        save(tmp_path / f"{n}.png", np.asarray(Image.fromarray(texture(1)).resize((100 + n, 90))))
        for n in range(6)
    ]
    found = find_duplicates(scan_images(paths)[0], near=6)
    assert len(found.near) == 3
    assert not found.complete
