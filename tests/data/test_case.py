"""What a case and a dataset are: identity, digest, missing files."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ogkd.data.case import Case, Dataset, case_numbers, image_targets, require_files
from ogkd.data.tasks import OneOf
from ogkd.errors import DataError
from ogkd.images import ImageRef
from tiny_data import case_of, write_image


def test_all_missing_files_are_named_at_once_and_each_once(tmp_path):
    here = case_of(write_image(tmp_path / "here.png"), 0)
    rows = [case_of(tmp_path / f"gone.npz#train/{row}", 0) for row in range(3)]
    gone = [case_of(tmp_path / f"gone{number:02}.png", 0) for number in range(21)]
    require_files([here])
    with pytest.raises(DataError) as error:
        require_files([here, *rows, *gone])
    message = str(error.value)
    assert message.startswith("22 file(s)")
    assert message.count("gone.npz") == 1
    assert all(f"gone{number:02}.png" in message for number in range(19))
    assert "... and 2 more" in message
    assert "here.png" not in message


def small(root="/data", **change):
    cases = [
        case_of(f"{root}/{split}/{label}/{number}.png", label, split)
        for split in ("train", "test")
        for label in (1, 0, 2)
        for number in range(3)
    ]
    first = replace(cases[0], **change)
    return Dataset((first, *cases[1:]), OneOf(("cyst", "stone", "tumor")))


def test_the_digest_is_of_the_table_whatever_its_order_and_folder():
    dataset = small()
    assert dataset.sha256 == dataset.with_cases(dataset.cases[::-1]).sha256
    assert dataset.sha256 == small(root="/else/where").sha256
    others = [
        dataset.with_cases(dataset.cases[1:]),
        Dataset(dataset.cases, OneOf(("cyst", "stone", "other"))),
        small(target=2),
        small(split="test"),
        small(group="p"),
        small(images=(ImageRef(Path("/data/train/1/x.png")),)),
    ]
    digests = {other.sha256 for other in others}
    assert len(digests) == 6
    assert dataset.sha256 not in digests


def three(name: str, count: int, **fields: object) -> Case:
    images = tuple(ImageRef(Path(f"{name}-{n}.png")) for n in range(count))
    return Case(name, images, 1, **fields)  # type: ignore[arg-type]


def test_images_know_the_number_of_their_case_and_its_label_unless_only_cases_have_one():
    cases = [three("a", 2, image_targets=(0, 1)), three("b", 1), three("c", 1)]
    assert case_numbers(cases).tolist() == [0, 0, 1, 2]
    assert image_targets(cases) == [0, 1, 1, 1]
    assert image_targets([*cases, three("d", 3)]) is None


def test_a_case_loses_images_with_their_targets_but_never_all_unless_asked():
    case = three("a", 3, image_targets=(0, 1, 2))
    kept = case.without([case.images[1]])
    assert kept is not None
    assert (kept.images, kept.image_targets) == ((case.images[0], case.images[2]), (0, 2))
    assert case.without(()) is case
    assert case.without(case.images) is case
    assert case.without(case.images, empty=True) is None


def test_a_few_images_of_a_case_are_evenly_spaced():
    assert [image.name for image in three("a", 20).few] == [
        f"a-{n}.png" for n in (1, 3, 6, 8, 11, 13, 16, 18)
    ]
    assert three("a", 8).few == three("a", 8).images


def test_a_case_is_recognised_by_the_content_of_an_image_or_by_its_pixels(tmp_path):
    paths = [write_image(tmp_path / f"{n}.png", n) for n in range(3)]
    case = Case("a", tuple(map(ImageRef, paths)))
    alone = Case.single(ImageRef(paths[0]))
    assert alone.fingerprint == alone.image.fingerprint
    assert replace(case, images=case.images[::-1]).fingerprint == case.fingerprint
    assert case.fingerprint != alone.fingerprint
    assert case.is_among(alone.marks)
    assert alone.is_among({alone.image.pixel_fingerprint})
    assert not alone.is_among(Case.single(ImageRef(paths[1])).marks)
    copy = shutil.copy(paths[0], tmp_path / "copy.png")
    assert case_of(copy, 0).is_among(case.marks)
