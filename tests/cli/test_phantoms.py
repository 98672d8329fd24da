from __future__ import annotations

import pytest
from PIL import Image

from ogkd.data.phantoms import CHEST_FINDINGS, PHANTOMS
from ogkd.data.read import read_dataset


def test_the_list_names_every_dataset(ogkd):
    outcome = ogkd("phantoms")
    assert outcome.code == 0
    *lines, several = outcome.out.splitlines()
    assert several.startswith(CHEST_FINDINGS)
    for line, dataset in zip(lines, PHANTOMS.values(), strict=True):
        assert line.startswith(dataset.name)
        assert all(name in line for name in dataset.class_names)


def test_a_dataset_is_written_as_folders_that_can_be_read(ogkd, tmp_path):
    out = tmp_path / "new" / "p"
    words = ["phantoms", "ct-kidney", "--out", out, "--train", 2, "--val", 0, "--test", 1]
    outcome = ogkd(*words, "--size", 128)
    assert outcome.code == 0, outcome.err
    names = PHANTOMS["ct-kidney"].class_names
    assert f"{3 * len(names)} images of {len(names)} classes" in outcome.out
    found = read_dataset(out)
    assert set(found.names) == set(names)
    assert len(found.part("train")) == 2 * len(names)
    with Image.open(found.images[0].file) as image:
        assert image.size == (128, 128)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ct-kidney"], "--out"),
        (["ct-kidny", "--out", "OUT"], "Did you mean 'ct-kidney'?"),
        (["ct-kidney", "--out", "OUT", "--size", 5], "--size"),
        (["ct-kidney", "--out", "FULL"], "not an empty folder"),
    ],
)
def test_what_cannot_be_drawn_is_refused(refused, tmp_path, words, message):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    places = {"OUT": tmp_path / "out", "FULL": tmp_path / "full"}
    assert message in refused("phantoms", *[places.get(word, word) for word in words])
