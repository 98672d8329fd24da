"""Real tokenizers and real weights, where the developers' shared folder is at hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ogkd.backbones._tokenizer import bert_tokenizer
from ogkd.backbones.open_clip_format import load_open_clip
from ogkd.images.decode import read_image
from ogkd.images.transforms import to_pixels

pytestmark = pytest.mark.shared

# What open_clip 3.3.0 itself answers for every third image of the sorted test files of CHMNIST
# with "a photo of a {class}." (the two best classes are never closer than 5e-4).
OPEN_CLIP_ANSWERS = [0, 0, 7, 7, 0, 7, 7, 4, 7, 7, 7, 7, 7, 7, 7, 7, 4, 0, 7, 4]


def test_biomedclips_tokenizer_gives_its_published_ids(shared: Path) -> None:
    folder = shared / "biomedclip"
    tokenizer = bert_tokenizer(folder, rows=30522)
    tokens = tokenizer.pack([tokenizer.pieces("this is a photo of chest X-ray")])
    assert tokens.ids.tolist() == [[2, 1805, 1744, 42, 7745, 1685, 6429, 65, 16, 4895, 3]]
    assert tokenizer.pad_id == 0


def test_the_proxy_answers_zero_shot_as_open_clip_does(shared: Path) -> None:
    folder = shared / "backbones" / "dinov2s14-minilm-med"
    backbone = load_open_clip(folder, name="proxy", device=torch.device("cpu"))
    assert backbone.logit_scale == pytest.approx(64.837, abs=1e-2)
    assert backbone.patch_grid == (16, 16)
    manifest = json.loads((shared / "data" / "MANIFEST.json").read_text())
    classes = manifest["datasets"]["CHMNIST"]["classes"].values()
    names = [item["classname"] for item in sorted(classes, key=lambda item: item["label"])]
    texts = backbone.encode_texts([f"a photo of a {name}." for name in names])
    files = sorted(path for path in (shared / "data/CHMNIST/test").rglob("*") if path.is_file())
    answers: list[int] = []
    for start in range(0, len(files), 15):
        images = [read_image(path) for path in files[start : start + 15 : 3]]
        pixels = to_pixels(images, backbone.preprocessing)
        features = backbone.encode_images(pixels, patches=False).globals
        answers += (features @ texts.T).argmax(dim=1).tolist()
    assert answers == OPEN_CLIP_ANSWERS
