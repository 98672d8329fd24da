from __future__ import annotations

import json
from pathlib import Path

import pytest

from ogkd.data.tasks import OneOf
from ogkd.errors import ConfigError
from ogkd.model import card as card_module
from ogkd.model.card import SCHEMA, BackboneCard, ModelCard, PoolingCard


def example(**changes):
    fields = {
        "method": "ogkd",
        "config": {"views": 1},
        "asks": OneOf(("größer", "b"), (1,)).as_json(),
        "poolings": (PoolingCard(tau=None, heat=0.5, mean_weight=0.1, bias=(0.1, 0.2)),),
        "backbone": BackboneCard(
            name="tiny", digest="d" * 64, embed_dim=4, preprocessing={"size": 8}
        ),
        "logit_scale": 85.2,
        "prompts_sha256": "p",
        "data_sha256": "d",
        "support_counts": (2, 3),
        "seed": 1,
        "versions": {"ogkd": "0"},
    }
    return ModelCard(**{**fields, **changes})


def written(folder: Path, **changes) -> Path:
    path = folder / "model.json"
    content = {**example().model_dump(mode="json"), **changes}
    path.write_text(json.dumps({key: value for key, value in content.items() if value != "ABSENT"}))
    return path


def test_a_card_is_read_back_as_it_was_written(tmp_path):
    path = tmp_path / "model.json"
    card = example(shots=16, preset="auto", weights_sha256="w")
    path.write_text(json.dumps(card.model_dump(mode="json"), ensure_ascii=False), encoding="utf-8")
    assert ModelCard.read(path) == card
    assert json.loads(path.read_text(encoding="utf-8"))["schema_version"] == SCHEMA == 3


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"schema_version": SCHEMA + 1}, "schema"),
        ({"schema_version": SCHEMA - 1}, "schema"),
        ({"asks": "ABSENT"}, "asks"),
        ({"asks": {"kind": "classes", "names": ["one"], "normal": []}}, "names"),
        ({"asks": {"kind": "grades", "names": ["a", "b"], "normal": []}}, "grades"),
        ({"asks": {"kind": "classes", "names": ["a", "b"], "normal": ["c"]}}, "damaged"),
        ({"asks": {"names": ["a", "b"]}}, "task"),
        ({"support_counts": [1, 2, 3]}, "counts"),
        ({"poolings": [{"heat": 0}]}, "heat"),
        ({"logit_scale": float("nan")}, "logit_scale"),
        ({"backbone": {"name": "x"}}, "backbone.digest"),
    ],
)
def test_a_wrong_field_is_named_with_its_file(tmp_path, changes, field):
    with pytest.raises(ConfigError, match=field) as error:
        ModelCard.read(written(tmp_path, **changes))
    assert str(tmp_path / "model.json") in str(error.value)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[1]"])
def test_a_file_that_is_not_a_card_is_refused(tmp_path, content):
    path = tmp_path / "model.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"model\.json"):
        ModelCard.read(path)
    with pytest.raises(ConfigError):
        ModelCard.read(tmp_path / "absent" / "model.json")


def test_a_known_name_stays_a_name(bert_backbone, tmp_path, monkeypatch):
    (tmp_path / "biomedclip").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bert_backbone, "name", "biomedclip")
    assert BackboneCard.of(bert_backbone).name == "biomedclip"


def test_a_folder_with_a_known_name_is_found_again(bert_backbone, tmp_path, monkeypatch):
    """CheXzero and MedCLIP are not on the hub: their folders have these names."""
    folder = tmp_path / "models" / "chexzero"
    folder.mkdir(parents=True)
    monkeypatch.setattr(card_module, "_places", lambda: tmp_path / "places")
    monkeypatch.setattr(bert_backbone, "name", str(folder))
    described = BackboneCard.of(bert_backbone)
    assert (described.name, described.source(tmp_path)) == ("chexzero", folder)
    folder.rmdir()
    assert described.source(tmp_path) == "chexzero"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("biomedclip", "biomedclip"),
        ("microsoft/BiomedCLIP-PubMedBERT_256", "microsoft/BiomedCLIP-PubMedBERT_256"),
        ("/home/jane/models/clip", "clip"),
        ("jane/models/clip", "clip"),
        ("C:\\Users\\jane\\clip", "clip"),
        ("jane\\clip", "clip"),
    ],
)
def test_the_short_name_keeps_a_hub_id_and_no_folder_above(name, shown):
    card = BackboneCard(name=name, digest="d", embed_dim=4, preprocessing={})
    assert card.short_name == shown
