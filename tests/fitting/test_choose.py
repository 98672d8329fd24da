"""Which backbone a fit uses if none is named, and what it says about the built-in model."""

from __future__ import annotations

import pytest

import ogkd
from ogkd.backbones.catalog import catalog
from ogkd.data.phantoms import write_folder
from ogkd.errors import DataError
from ogkd.fitting.choose import NoRealBackbone, best_present, choose_backbone
from ogkd.images import ImageRef, find_images
from tiny_backbones import make_clip


@pytest.fixture(scope="module")
def phantoms(tmp_path_factory):
    return write_folder(
        "endoscopy", tmp_path_factory.mktemp("p") / "oct", splits={"train": 3, "test": 2}
    )


def put_in_cache(name):
    folder = catalog()[name].folder
    make_clip(folder)
    (folder / "source.json").write_text('{"files": {"a": 1}, "weights": {"file": "a"}}')


def test_phantoms_choose_the_builtin_model_even_beside_a_real_one(phantoms, notes):
    put_in_cache("biomedclip")
    assert choose_backbone(find_images([phantoms])) == "builtin"
    assert not notes


def test_other_images_choose_the_first_of_the_catalogue_that_is_here(pictures, notes):
    images = find_images([pictures])
    with pytest.raises(NoRealBackbone) as stop:
        choose_backbone(images)
    assert stop.value.argument == "backbone"
    put_in_cache("siglip-b16")
    assert choose_backbone(images) == "siglip-b16"
    put_in_cache("biomedclip")
    notes.clear()
    assert choose_backbone(images) == "biomedclip" == best_present()
    assert len(notes) == 1


def test_without_images_a_real_backbone_is_needed():
    with pytest.raises(NoRealBackbone):
        choose_backbone([])


def test_files_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "a.png").write_text("no image")
    with pytest.raises(DataError, match=r"a\.png"):
        choose_backbone([ImageRef.of(tmp_path / "a.png")])


def test_a_fit_on_phantoms_needs_no_backbone_and_is_quiet(phantoms):
    model = ogkd.fit(phantoms, method="gda")
    assert model.card.backbone.name == "builtin"
    assert "phantoms" not in " ".join(ogkd.evaluate(model, phantoms)["warnings"])


def test_the_builtin_model_on_other_images_warns_in_python(pictures, caplog):
    model = ogkd.fit(pictures, backbone="builtin", method="gda")
    heard = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert any("18 of 18 image" in message for message in heard)
    warning, *_ = ogkd.evaluate(model, pictures)["warnings"]
    assert "12 of 12 image(s) are not phantoms" in warning
    with pytest.warns(UserWarning, match="1 of 1 image"):
        model.predict(find_images([pictures / "test"])[:1])
    for decision in model.decide(find_images([pictures / "test"])):
        assert decision.out_of_domain
        assert decision.unfamiliar
        assert len(decision.reasons) >= 1
