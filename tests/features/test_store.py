from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save

from ogkd.errors import BackboneError, DataError
from ogkd.features.store import WHOLE, FeatureStore, View
from ogkd.features.views import cached_views
from ogkd.images import read_image, to_pixels

CROPS = [View(0, 7), View(1, 7)]


@pytest.fixture
def files(pictures):
    return sorted((pictures / "train" / "dark_field").glob("*.png"))


def test_whole_views_are_the_backbones_features(bert_backbone, files):
    store = FeatureStore(bert_backbone)
    found = store.get(files, patches=True)
    pixels = to_pixels([read_image(file) for file in files], bert_backbone.preprocessing)
    expected = bert_backbone.encode_images(pixels)
    torch.testing.assert_close(found.globals[:, 0], expected.globals, atol=1e-6, rtol=0)
    assert found.patches.dtype == torch.float16
    torch.testing.assert_close(found.patches[:, 0].float(), expected.patches, atol=1e-3, rtol=0)


def test_a_second_request_encodes_nothing_and_gives_the_same_bits(bert_backbone, files):
    first = FeatureStore(bert_backbone)
    once = first.get(files, CROPS, patches=True)
    second = FeatureStore(bert_backbone)
    again = second.get(files, CROPS, patches=True)
    assert (first.encoded, second.encoded) == (2 * len(files), 0)
    assert torch.equal(once.globals, again.globals)
    assert torch.equal(once.patches, again.patches)


def test_a_backbone_may_give_features_in_any_order_in_memory(bert_backbone, files, monkeypatch):
    expected = FeatureStore(bert_backbone).get(files, patches=True)
    encode = bert_backbone.encode_images

    def transposed(*arguments, **options):
        found = encode(*arguments, **options)
        patches = found.patches.mT.contiguous().mT
        assert not patches.is_contiguous()
        return replace(found, globals=found.globals.mT.contiguous().mT, patches=patches)

    monkeypatch.setattr(bert_backbone, "encode_images", transposed)
    monkeypatch.setattr(bert_backbone, "digest", "f" * 64)
    found = FeatureStore(bert_backbone).get(files, patches=True)
    assert torch.equal(found.patches, expected.patches)
    assert torch.equal(found.globals, expected.globals)


def test_the_address_is_the_content_not_the_name(bert_backbone, files, tmp_path):
    store = FeatureStore(bert_backbone)
    store.get(files)
    moved = [shutil.copy(file, tmp_path / f"other{i}.png") for i, file in enumerate(files)]
    store.get(moved)
    assert store.encoded == len(files)
    Image.fromarray(np.eye(40, dtype=np.uint8)).save(files_copy := tmp_path / "other0.png")
    store.get([files_copy])
    assert store.encoded == len(files) + 1


def test_patches_are_encoded_when_first_asked_for(bert_backbone, files):
    store = FeatureStore(bert_backbone)
    plain = store.get(files).globals
    with_patches = store.get(files, patches=True)
    assert store.encoded == 2 * len(files)
    torch.testing.assert_close(plain, with_patches.globals, atol=1e-6, rtol=0)


def test_crops_depend_on_image_and_view_not_on_neighbours(bert_backbone, files):
    together = FeatureStore(bert_backbone).get(files, CROPS)
    store = FeatureStore(bert_backbone, root=files[0].parent.parent / "elsewhere")
    alone = store.get(files[2:3], CROPS[1:])
    torch.testing.assert_close(together.globals[2, 1], alone.globals[0, 0], atol=1e-6, rtol=0)
    assert not torch.allclose(together.globals[2, 0], together.globals[2, 1], atol=1e-3)
    shutil.rmtree(store.folder.parent)


def flipped(shard):
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)


def narrow(shard):
    content = save({key: torch.ones(1) for key in load_file(shard)})
    shard.unlink()
    shard.with_stem(hashlib.sha256(content).hexdigest()).write_bytes(content)


@pytest.mark.parametrize("damage", [flipped, narrow, lambda shard: os.truncate(shard, 100)])
@pytest.mark.parametrize("patches", [False, True])
def test_a_changed_shard_is_noticed_and_its_features_are_computed_again(
    bert_backbone, files, patches, damage
):
    store = FeatureStore(bert_backbone)
    whole = store.get(files, patches=patches)
    (shard,) = store.folder.glob("*.safetensors")
    damage(shard)
    again = FeatureStore(bert_backbone)
    found = again.get(files, patches=patches)
    assert torch.equal(found.globals, whole.globals)
    assert again.encoded == len(files)
    third = FeatureStore(bert_backbone)
    third.get(files, patches=patches)
    assert (third.encoded, third.damaged) == (0, set())


def test_a_feature_of_another_shape_is_not_stretched(bert_backbone, files):
    store = FeatureStore(bert_backbone)
    whole = store.get(files).globals
    (shard,) = store.folder.glob("*.safetensors")
    narrow = save({key: torch.ones(1) for key in load_file(shard)})
    shard.unlink()
    (store.folder / f"{hashlib.sha256(narrow).hexdigest()}.safetensors").write_bytes(narrow)
    again = FeatureStore(bert_backbone)
    assert torch.equal(again.get(files).globals, whole)
    assert len(again.damaged) == 1


def test_the_first_features_stay_whatever_is_added_later(bert_backbone, files):
    store = FeatureStore(bert_backbone)
    whole = store.get(files).globals
    (shard,) = store.folder.glob("*.safetensors")
    for number in range(20):  # some of their names sort first
        other = save({key: tensor + number + 1 for key, tensor in load_file(shard).items()})
        late = store.folder / f"{hashlib.sha256(other).hexdigest()}.safetensors"
        late.write_bytes(other)
        os.utime(late, (2e9, 2e9))
    assert torch.equal(FeatureStore(bert_backbone).get(files).globals, whole)


def test_features_that_are_not_numbers_are_an_error(bert_backbone, files, monkeypatch):
    found = bert_backbone.encode_images

    def broken(pixels, *, patches=True):
        features = found(pixels, patches=patches)
        features.globals[0, 0] = torch.nan
        return features

    monkeypatch.setattr(bert_backbone, "encode_images", broken)
    with pytest.raises(BackboneError, match="features that are not numbers"):
        FeatureStore(bert_backbone).get(files)


def test_all_bad_files_are_named_at_once(bert_backbone, files, tmp_path):
    bad = [tmp_path / "one.png", tmp_path / "two.png"]
    for file in bad:
        file.write_text("no image")
    with pytest.raises(DataError, match=r"(?s)2 file.*one\.png.*two\.png"):
        FeatureStore(bert_backbone).get([*files, *bad])
    with pytest.raises(DataError, match="gone"):
        FeatureStore(bert_backbone).get([tmp_path / "gone.png"])


def test_fixed_views_choose_among_the_crops(bert_backbone, files):
    views = cached_views(FeatureStore(bert_backbone), files, count=2, seed=7, patches=True)
    rows = np.array([0, 3, 3])
    seen = views.look(rows, np.random.default_rng(0))
    chosen = np.random.default_rng(0).integers(2, size=3)
    assert torch.equal(seen.globals, views.features.globals[rows, chosen])
    assert torch.equal(seen.patches, views.features.patches[rows, chosen])
    assert len(views) == len(files)
    store = FeatureStore(bert_backbone)
    whole = cached_views(store, files, count=0, seed=7, patches=False)
    assert torch.equal(whole.features.globals, store.get(files, [WHOLE]).globals)
