"""The catalogue is data: it must read, and a mistake in it must be found."""

from __future__ import annotations

from pathlib import Path

import pytest

from ogkd.backbones.catalog import (
    catalog,
    find_record,
    hub_record,
    read_catalog,
)
from ogkd.errors import BackboneError


def test_the_catalogue_has_the_backbones_of_the_field() -> None:
    assert {"builtin", "biomedclip", "pubmedclip", "plip", "quiltnet", "medsiglip"} <= set(
        catalog()
    )
    for name, record in catalog().items():
        assert record.licence, name
        assert record.modality, name


def test_biomedclip_is_the_published_file(shared: Path) -> None:
    record = catalog()["biomedclip"]
    facts = (shared / "biomedclip" / "README.md").read_text()
    assert record.hub_id is not None
    assert f"`{record.hub_id}`" in facts
    assert f"{record.size:,} bytes" in facts
    assert f"`{record.sha256}`" in facts


def test_a_record_is_found_by_name_and_by_hub_id_in_any_case() -> None:
    record = catalog()["plip"]
    assert find_record("plip") is find_record("PLIP") is find_record("Vinid/PLIP") is record
    assert find_record("nothing") is None
    assert find_record("") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[x]\nformat = 'open_clip'\nlicence = 'MIT'\nmodality = 'CT'", "needs a hub_id"),
        ("[x]\nhub_id = 'no-slash'\nlicence = 'MIT'\nmodality = 'CT'", "hub_id"),
        ("[x]\nhub_id = 'a/b'\nlicence = 'MIT'\nmodality = 'CT'\nsha256 = 'short'", "sha256"),
        (f"[x]\nhub_id = 'a/b'\nlicence = 'M'\nmodality = 'C'\nsha256 = '{'0' * 64}'", "weights"),
        ("[x]\nhub_id = 'a/b'\nlicense = 'MIT'\nmodality = 'CT'", "licence"),
        ("[x]\nformat = 'onnx'\nhub_id = 'a/b'\nlicence = 'MIT'\nmodality = 'CT'", "format"),
        ("[x", "not valid"),
    ],
)
def test_a_mistake_in_a_catalogue_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "catalog.toml"
    path.write_text(text)
    with pytest.raises(BackboneError, match=words):
        read_catalog(path)


@pytest.mark.parametrize(
    ("text", "is_hub_id"),
    [
        ("google/siglip-base-patch16-224", True),
        ("org/name_1.2", True),
        ("name", False),
        ("a/b/c", False),
        ("../x", False),
        ("org/", False),
    ],
)
def test_only_org_slash_name_is_a_hub_id(text: str, is_hub_id: bool) -> None:
    if is_hub_id:
        record = hub_record(text)
        assert record.hub_id == text
        assert "/" not in record.folder.name
    else:
        with pytest.raises(BackboneError, match="no backbone called"):
            hub_record(text)


def test_an_unknown_name_is_told_near_ones_all_ones_and_other_ways() -> None:
    with pytest.raises(BackboneError) as caught:
        hub_record("BiomedClipp")
    message = str(caught.value)
    assert "Did you mean 'biomedclip'?" in message
    assert all(name in message for name in catalog())
    assert "pass its path" in message
    with pytest.raises(BackboneError) as caught:
        hub_record("zzzzzz")
    assert "Did you mean" not in str(caught.value)
