"""`verify` must pass what is right and fail what is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ogkd.backbones import hub, load_backbone
from ogkd.backbones.catalog import Record, catalog
from ogkd.files import sha256_file
from tiny_backbones import make_clip

LABELS = ["benign tumor", "normal lung", "brain scan"]
IMAGES = ["one.png", "two.png"]


def keep(record: Record, *, original: str = "0" * 64) -> Path:
    """A tiny model in the cache as if it had been fetched."""
    folder = record.folder
    make_clip(folder)
    files = {
        path.name: {"size": path.stat().st_size, "sha256": sha256_file(path)}
        for path in folder.iterdir()
    }
    source = {
        "format": "transformers",
        "revision": "a" * 40,
        "original": {"file": record.weights or "pytorch_model.bin", "sha256": original},
        "weights": {"file": "model.safetensors", **files["model.safetensors"]},
        "files": files,
    }
    (folder / "source.json").write_text(json.dumps(source))
    return folder


def statuses(name: str | Path) -> dict[str, str]:
    return {check.subject: check.status for check in hub.verify(name)}


def test_a_fetched_backbone_passes() -> None:
    keep(catalog()["plip"], original=str(catalog()["plip"].sha256))
    checks = statuses("plip")
    assert set(checks.values()) == {"PASS"}
    assert {"model.safetensors", "pytorch_model.bin", "Loading"} <= set(checks)


def test_one_changed_byte_fails() -> None:
    folder = keep(catalog()["plip"], original=str(catalog()["plip"].sha256))
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    assert statuses("plip")["model.safetensors"] == "FAIL"


def test_another_original_than_the_catalogues_fails() -> None:
    keep(catalog()["plip"])
    assert statuses("plip")["pytorch_model.bin"] == "FAIL"
    keep(catalog()["quiltnet"])
    assert "pytorch_model.bin" not in statuses("quiltnet")  # no hash is known


def test_an_absent_or_cut_backbone_fails_with_the_command_to_run() -> None:
    (absent,) = hub.verify("medsiglip")
    assert absent.status == "FAIL"
    assert "ogkd backbones fetch medsiglip" in absent.fix
    folder = keep(catalog()["plip"])
    (folder / "tokenizer.json").write_text("{")
    (cut,) = hub.verify("plip")
    assert cut.status == "FAIL"
    assert "tokenizer.json" in cut.result


def test_a_folder_is_verified_by_loading_it(tmp_path: Path) -> None:
    make_clip(tmp_path)
    assert statuses(tmp_path) == {"Loading": "PASS"}
    (tmp_path / "tokenizer.json").unlink()
    assert statuses(tmp_path) == {"Loading": "FAIL"}


def test_published_outputs_pass_fail_or_say_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_clip(tmp_path / "model")  # transformers computes what is expected
    backbone = load_backbone(tmp_path / "model")
    prep, rows = backbone.preprocessing, []
    ids = backbone.tokenize([f"a photo of {label}" for label in LABELS]).ids
    for seed, name in enumerate(IMAGES):
        pixels = np.random.default_rng(seed).integers(0, 255, (40, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / name)
        values = (pixels[4:36] / 255 - prep.mean) / prep.std  # the centre
        with torch.no_grad():
            given = torch.tensor(values).permute(2, 0, 1)[None].float()
            output = model(input_ids=ids, pixel_values=given)
        rows.append(output.logits_per_image.softmax(-1)[0].tolist())
    reference: dict[str, Any] = {
        "source": "here.",
        "template": "a photo of ",
        "labels": LABELS,
        "probabilities": dict(zip(IMAGES, rows, strict=True)),
    }
    monkeypatch.setattr(hub, "published_outputs", lambda: reference)
    monkeypatch.setattr(hub, "TOLERANCE", 1e-5)

    def status(folder: Path) -> str:
        return hub._check_published(backbone, folder, "fetch it").status

    assert status(tmp_path / "absent") == "SKIP"
    assert status(tmp_path) == "PASS"
    reference["labels"] = LABELS[::-1]
    assert status(tmp_path) == "FAIL"


def test_the_packaged_figures_are_the_published_ones(shared: Path) -> None:
    ours = hub.published_outputs()
    theirs = json.loads((shared / "biomedclip" / "reference_outputs.json").read_text())
    assert ours["template"] == theirs["template"]
    assert sorted(ours["probabilities"]) == sorted(theirs["probs"])
    for image, row in ours["probabilities"].items():
        assert row == [round(theirs["probs"][image][label], 6) for label in ours["labels"]]
        assert sum(row) == pytest.approx(1.0, abs=1e-5)
