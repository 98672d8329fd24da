from __future__ import annotations

import pytest
import torch

import ogkd as library
from tiny_data import write_image

NAMES = "benign tumor, normal_lung"
WIDTH = 16  # of tiny_backbones' text tower


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "model.pth.tar-100"
    torch.save({"state_dict": {"prompt_learner.ctx": torch.ones(4, WIDTH)}, "epoch": 100}, path)
    return path


def test_a_checkpoint_becomes_a_model_that_predicts(ogkd, clip, checkpoint, tmp_path):
    out = tmp_path / "m"
    outcome = ogkd("import-checkpoint", checkpoint, "--classes", NAMES, "-b", clip, "-o", out)
    assert outcome.code == 0, outcome.err
    assert f"ogkd predict {out}" in outcome.out
    model = library.load(out)
    assert model.class_names == ("benign tumor", "normal lung")
    assert torch.equal(model.head.extra["context"], torch.ones(4, WIDTH))
    image = write_image(tmp_path / "a.png")
    assert ogkd("predict", out, image).code == 0


def test_what_cannot_be_imported_is_refused(refused, clip, checkpoint, tmp_path):
    def message(file=checkpoint, names=NAMES, out=tmp_path / "m", backbone=clip):
        return refused("import-checkpoint", file, "--classes", names, "-b", backbone, "-o", out)

    assert "no file" in message(file=tmp_path / "gone")
    assert "at least two classes" in message(names="one,")
    assert "no backbone called" in message(backbone="nothing")
    (tmp_path / "text").write_text("hello")
    assert "is damaged" in message(file=tmp_path / "text")
    torch.save({"state_dict": {"w": torch.zeros(1)}}, tmp_path / "other")
    assert "prompt_learner.ctx" in message(file=tmp_path / "other")
    torch.save({"ctx": torch.zeros(4, 5)}, tmp_path / "wide")
    assert "(4, 5)" in message(file=tmp_path / "wide")
    write_image(tmp_path / "photos" / "a.png")
    assert "--out" in message(out=tmp_path / "photos")
    assert "--out" in message(out=checkpoint)


def test_the_classes_of_a_benchmark_come_from_the_catalogue(ogkd, clip, checkpoint, tmp_path):
    out = tmp_path / "m"
    outcome = ogkd("import-checkpoint", checkpoint, "--dataset", "retina", "-b", clip, "-o", out)
    assert outcome.code == 0, outcome.err
    names = ("diabetic retinopathy", "glaucoma", "cataract", "normal retina")
    assert library.load(out).class_names == names


def test_classes_are_given_in_one_way(refused, clip, checkpoint, tmp_path):
    words = ["import-checkpoint", checkpoint, "-b", clip, "-o", tmp_path / "m"]
    assert "either as --dataset btmri or as --classes" in refused(*words)
    assert "either as --dataset btmri or as --classes" in refused(
        *words, "--dataset", "btmri", "--classes", NAMES
    )
    assert "Did you mean 'retina'" in refused(*words, "--dataset", "retinas")
