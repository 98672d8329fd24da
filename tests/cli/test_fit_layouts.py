"""`ogkd fit` on layouts that folders do not have, and options that come from there."""

from __future__ import annotations

import json

import numpy as np

import ogkd as library
from tiny_data import CLASSES, write_image

FAST = ["--method", "ogkd", "--set", "train.epochs=1", "--set", "views=1"]


def test_a_medmnist_file_gets_its_class_names_and_is_judged(ogkd, clip, tmp_path):
    rng = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 6), ("val", 2), ("test", 4)):
        arrays[f"{split}_images"] = rng.integers(0, 255, (count, 28, 28), dtype=np.uint8)
        arrays[f"{split}_labels"] = (np.arange(count) % 2)[:, None]
    np.savez(tmp_path / "tiny.npz", **arrays)
    names = ["--classes", "benign tumor, normal lung"]
    out = tmp_path / "m"
    outcome = ogkd("fit", tmp_path / "tiny.npz", *names, "-b", clip, "-o", out, *FAST)
    assert outcome.code == 0, outcome.err
    card = library.load(out).card
    assert card.class_names == ("benign tumor", "normal lung")
    assert card.normal == ("normal lung",)
    assert card.support_counts == (3, 3)
    judged = ogkd("evaluate", out, tmp_path / "tiny.npz", *names)
    assert judged.code == 0, judged.err
    assert "4 images" in judged.out


def test_a_split_file_takes_its_images_from_a_root(ogkd, clip, tmp_path):
    rows = {"train": [], "val": [], "test": []}
    for split, count in (("train", 4), ("val", 1), ("test", 1)):
        for label, name in enumerate(CLASSES[:2]):
            for number in range(count):
                file = f"{split}{label}{number}.png"
                write_image(tmp_path / "images" / file, len(file) + number + 4 * label)
                rows[split].append([file, label, name])
    (tmp_path / "split.json").write_text(json.dumps(rows))
    words = ["--root", tmp_path / "images", "-b", clip, "--shots", 2, "--sampling", "nested"]
    outcome = ogkd("fit", tmp_path / "split.json", *words, "-o", tmp_path / "m", "-m", "gda")
    assert outcome.code == 0, outcome.err
    assert library.load(tmp_path / "m").card.support_counts == (2, 2)
    judged = ogkd("evaluate", tmp_path / "m", tmp_path / "split.json", *words[:2])
    assert judged.code == 0, judged.err


def test_the_normal_class_is_named_or_refused(ogkd, clip, data, tmp_path, refused):
    words = ["fit", data, "-b", clip, *FAST]
    named = ogkd(*words, "--normal", "Benign_tumor", "-o", tmp_path / "m")
    assert named.code == 0, named.err
    assert library.load(tmp_path / "m").card.normal == ("benign tumor",)
    message = refused(*words, "--normal", "healthy", "-o", tmp_path / "other")
    assert "no class 'healthy'" in message
