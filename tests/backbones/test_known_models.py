"""The catalogue, and what is said of models that are known but not here, or cannot be loaded."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ogkd.backbones import load_backbone
from ogkd.backbones._folder import FORMATS, layouts
from ogkd.backbones.catalog import catalog
from ogkd.backbones.hub import fetch
from ogkd.errors import BackboneError

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "backbones.md"
UNSUPPORTED = sorted(name for name, record in catalog().items() if record.missing)


def test_every_entry_has_a_format_that_can_be_read_or_a_reason() -> None:
    formats = {*FORMATS, *layouts("checkpoints"), "builtin"}
    for name, record in catalog().items():
        assert bool(record.missing) != (record.format in formats), name
        assert record.missing or (record.parameters and record.patches), name
        assert record.missing or record.format == "builtin" or record.hub_id or record.obtain, name


def test_the_documentation_has_a_row_for_every_entry_and_says_which_load() -> None:
    rows = dict(re.findall(r"^\| `([\w.-]+)` \|[^|]+\| (yes|no) \|", DOCS.read_text(), re.M))
    assert rows == {name: "no" if r.missing else "yes" for name, r in catalog().items()}


@pytest.mark.parametrize("name", UNSUPPORTED)
@pytest.mark.parametrize("action", ["load", "fetch"])
def test_a_model_that_cannot_be_loaded_says_why(name: str, action: str) -> None:
    with pytest.raises(BackboneError) as caught:
        load_backbone(name) if action == "load" else fetch(catalog()[name])
    assert caught.value.argument == "backbone"
    assert catalog()[name].missing in str(caught.value)


@pytest.mark.parametrize(
    ("name", "config", "key"),
    [
        ("align", {"model_type": "align"}, "vision_model.x"),
        ("conceptclip", {"model_type": "conceptclip"}, "model.x"),
        ("musk", {}, "beit3.encoder.layers.0.x"),
        ("medclip-vit", {}, "vision_model.model.embeddings.norm.weight"),
    ],
)
def test_a_folder_of_a_known_model_names_it(
    tmp_path: Path, name: str, config: dict[str, str], key: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({key: torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(BackboneError, match=f"^{name} cannot be loaded"):
        load_backbone(tmp_path)


@pytest.mark.parametrize("name", ["conch", "medsiglip", "plip"])
def test_a_gated_model_says_where_to_ask(name: str) -> None:
    record = catalog()[name]
    with pytest.raises(BackboneError) as caught:  # without a network
        load_backbone(name)
    assert (f"accept its terms at https://huggingface.co/{record.hub_id}" in str(caught.value)) == (
        record.gated
    )


@pytest.mark.parametrize("name", ["chexzero", "medclip"])
def test_a_model_that_is_not_on_the_hub_says_where_it_is(name: str) -> None:
    with pytest.raises(BackboneError, match=r"github\.com"):
        load_backbone(name)


def test_a_folder_with_other_weights_is_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(BackboneError) as caught:
        load_backbone(tmp_path)
    assert caught.value.argument == "backbone"
