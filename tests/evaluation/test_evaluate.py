from __future__ import annotations

import pytest

from ogkd import evaluate, fit
from ogkd.datasets.manifest import Item, Manifest, read_manifest
from ogkd.errors import DataError
from tiny_data import write_image


@pytest.fixture(scope="module")
def model(bert_backbone, pictures, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OGKD_CACHE", str(tmp_path_factory.mktemp("cache")))
        return fit(pictures, backbone=bert_backbone, method="zero-shot-ensemble")


def test_the_metrics_are_those_of_the_models_own_predictions(model, pictures):
    items = read_manifest(pictures).part("test")
    said = model.predict([item.path for item in items])
    right = [model.class_names[item.label] == name for item, name in zip(items, said, strict=True)]
    found = evaluate(model, pictures)
    assert found["images"] == len(items) == 12
    assert found["accuracy"] == pytest.approx(sum(right) / len(right))
    for split in ("train", "test"):
        assert evaluate(model, pictures, split=split)["images"] == {"train": 18, "test": 12}[split]


def test_classes_are_matched_by_name_whatever_their_order_and_case(model, pictures):
    manifest = read_manifest(pictures)
    shuffled = Manifest(
        tuple(Item(item.path, (2, 0, 1)[item.label], item.split) for item in manifest.items),
        ("Dark_Field", "striped tissue", "BRIGHT SPOT"),
    )
    assert evaluate(model, shuffled) == evaluate(model, manifest)


def test_a_class_the_model_does_not_know_is_refused_with_those_it_knows(model, pictures):
    manifest = read_manifest(pictures)
    strange = Manifest(manifest.items, ("bright spot", "cyst", "stone"))
    with pytest.raises(DataError, match="cyst, stone") as error:
        evaluate(model, strange)
    assert "bright spot, dark field, striped tissue" in str(error.value)


def test_data_may_lack_classes_of_the_model(model, pictures):
    manifest = read_manifest(pictures)
    some = Manifest(tuple(i for i in manifest.items if i.label != 1), manifest.class_names)
    found = evaluate(model, some)
    assert found["images"] == 8
    assert found["per_class"]["dark field"]["images"] == 0


def test_all_files_that_are_missing_or_broken_are_named(model, tmp_path):
    good = write_image(tmp_path / "good.png")
    gone = Manifest(
        (Item(tmp_path / "no1", 0), Item(good, 0), Item(tmp_path / "no2", 1)),
        ("bright spot", "dark field"),
    )
    with pytest.raises(DataError, match="no1") as error:
        evaluate(model, gone)
    assert "no2" in str(error.value)
    for name in ("bad1.png", "bad2.png"):
        (tmp_path / name).write_bytes(b"no picture")
    broken = Manifest(
        tuple(Item(tmp_path / name, 0) for name in ("bad1.png", "good.png", "bad2.png")),
        ("bright spot", "dark field"),
    )
    with pytest.raises(DataError, match=r"bad1\.png") as error:
        evaluate(model, broken)
    assert "bad2.png" in str(error.value)
