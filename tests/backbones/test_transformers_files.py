"""Bad files, old files and other files: what a folder in transformers' format may hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ogkd.backbones.transformers_format import load_transformers
from ogkd.errors import BackboneError
from tiny_backbones import CONTEXT, SIZE, TEXTS, make_clip, make_dual, make_siglip


def load(folder: Path) -> Any:
    return load_transformers(folder, name="tiny", device=torch.device("cpu"))


def test_half_precision_and_bin_files_give_the_same_model(tmp_path: Path) -> None:
    make_clip(tmp_path)
    expected = load(tmp_path).encode_texts(TEXTS)
    state = load_file(tmp_path / "model.safetensors")
    state["text_model.embeddings.position_ids"] = torch.arange(CONTEXT)[None]  # old checkpoints
    (tmp_path / "model.safetensors").unlink()
    torch.save({key: value.half() for key, value in state.items()}, tmp_path / "pytorch_model.bin")
    backbone = load(tmp_path)
    assert all(p.dtype == torch.float32 for p in backbone.model.parameters())
    torch.testing.assert_close(backbone.encode_texts(TEXTS), expected, atol=5e-3, rtol=0)


_OLD_NAMES = {
    "clip": {"vision_model.": "vision_model.vision_model."},
    "vit": {
        "vision_model.layers.": "vision_model.encoder.layer.",
        "attention.q_proj": "attention.attention.query",
        "attention.k_proj": "attention.attention.key",
        "attention.v_proj": "attention.attention.value",
        "attention.o_proj": "attention.output.dense",
        "mlp.fc1": "intermediate.dense",
        "mlp.fc2": "output.dense",
    },
}


@pytest.mark.parametrize("vision", ["clip", "vit"])
def test_the_key_names_of_older_releases_still_load(tmp_path: Path, vision: str) -> None:
    make_dual(tmp_path, vision=vision)
    pixels = torch.ones(1, 3, SIZE, SIZE)
    expected = load(tmp_path).encode_images(pixels).globals
    old = {}
    for key, value in load_file(tmp_path / "model.safetensors").items():
        for new_part, old_part in _OLD_NAMES[vision].items():
            key = key.replace(new_part, old_part)
        old[key] = value
    save_file(old, tmp_path / "model.safetensors")
    torch.testing.assert_close(load(tmp_path).encode_images(pixels).globals, expected)


def test_vocabulary_and_merges_serve_where_there_is_no_tokenizer_json(tmp_path: Path) -> None:
    make_clip(tmp_path, legacy=True)
    (tmp_path / "tokenizer.json").unlink()
    parts = ["l", "u", "n", "g", "g</w>", "un", "lun", "lung</w>", "a</w>", "o", "p", "t", "h"]
    words = [*parts, "o</w>", "<|startoftext|>", "<|endoftext|>"]
    (tmp_path / "vocab.json").write_text(json.dumps({w: i for i, w in enumerate(words)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nu n\nl un\nlun g</w>\n")
    backbone = load(tmp_path)
    assert backbone.pieces("Lung a") == [words.index("lung</w>"), words.index("a</w>")]
    assert backbone.tokenize(["lung"]).ids.tolist() == [[14, 7, 15]]


def edit_state(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors")


def test_wrong_keys_are_named(tmp_path: Path) -> None:
    make_clip(tmp_path)
    edit_state(tmp_path, lambda state: state.pop("text_projection.weight"))
    edit_state(tmp_path, lambda state: state.update(odd=torch.zeros(2)))
    edit_state(tmp_path, lambda state: state.update(logit_scale=torch.zeros(7)))
    with pytest.raises(BackboneError) as caught:
        load(tmp_path)
    message = str(caught.value)
    assert "missing keys: text_projection.weight" in message
    assert "unexpected keys: odd" in message
    assert "logit_scale is [7] float32, expected []" in message


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    make_clip(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BackboneError, match=r"model\.safetensors"):
        load(tmp_path)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    make_clip(tmp_path)
    (tmp_path / "model.safetensors").unlink()

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"weight": Evil()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(BackboneError, match=r"pytorch_model\.bin"):
        load(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_no_weights_and_sharded_weights_have_their_own_words(tmp_path: Path) -> None:
    make_clip(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(BackboneError, match=r"none of model\.safetensors, pytorch_model\.bin"):
        load(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(BackboneError, match="split into several files"):
        load(tmp_path)


def edit_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda config: config.update(model_type="resnet"), "model_type 'resnet'"),
        (lambda config: config["text_config"].update(hidden_size="wide"), "config"),
        (lambda config: config["text_config"].update(num_attention_heads=3), "config"),
        (lambda config: config["text_config"].update(eos_token_id=9), "Tokenizer mismatch"),
    ],
)
def test_a_wrong_config_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], words: str
) -> None:
    make_clip(tmp_path)
    edit_config(tmp_path, change)
    with pytest.raises(BackboneError, match=words):
        load(tmp_path)


def test_a_tokenizer_with_too_many_words_is_refused(tmp_path: Path) -> None:
    make_clip(tmp_path)
    path = tmp_path / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["vocab"]["extra"] = 500
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(
        BackboneError, match=r"ids up to 500, but the text tower has only 19 embeddings"
    ):
        load(tmp_path)


def test_a_damaged_or_absent_tokenizer_is_refused(tmp_path: Path) -> None:
    make_clip(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(BackboneError, match="cannot be read"):
        load(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(BackboneError, match="has no tokenizer"):
        load(tmp_path)


def write_preprocessor(folder: Path, **settings: Any) -> None:
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize(
    ("settings", "resize", "interpolation"),
    [
        ({"size": SIZE, "crop_size": SIZE, "resample": 3}, "shortest", "bicubic"),
        ({"size": {"shortest_edge": SIZE}, "resample": 2}, "shortest", "bilinear"),
        ({"size": {"height": SIZE, "width": SIZE}, "resample": 0}, "squash", "nearest"),
        ({"crop_size": {"height": SIZE, "width": SIZE}}, "shortest", "bicubic"),
    ],
)
def test_preprocessor_files_are_understood(
    tmp_path: Path, settings: dict[str, Any], resize: str, interpolation: str
) -> None:
    make_clip(tmp_path)
    write_preprocessor(tmp_path, **settings, image_mean=[0.1, 0.2, 0.3], image_std=[1, 2, 4])
    prep = load(tmp_path).preprocessing
    assert (prep.size, prep.resize, prep.interpolation) == (SIZE, resize, interpolation)
    assert prep.mean == (0.1, 0.2, 0.3)
    assert prep.std == (1.0, 2.0, 4.0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"size": {"shortest_edge": 64}, "crop_size": 64},
            "64 px, but according to config.json the model takes 32 px",
        ),
        ({"size": {"shortest_edge": 64}, "crop_size": SIZE}, "crop of 32 px"),
        ({"size": {"height": 32, "width": 16}}, "not square"),
        ({"resample": 1}, "resample 1"),
        ({"rescale_factor": 1.0}, "rescale_factor"),
        ({"do_center_crop": False}, "no crop"),
        ({"image_mean": [0.5]}, "preprocessing that ogkd does not support"),
    ],
)
def test_preprocessing_that_we_would_do_wrongly_is_refused(
    tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    make_clip(tmp_path)
    write_preprocessor(tmp_path, **settings)
    with pytest.raises(BackboneError, match=words):
        load(tmp_path)


def test_each_family_has_its_own_default_preprocessing(tmp_path: Path) -> None:
    make_clip(tmp_path / "clip")
    make_siglip(tmp_path / "siglip")
    make_dual(tmp_path / "dual")
    clip, siglip, dual = (
        load(tmp_path / name).preprocessing for name in ("clip", "siglip", "dual")
    )
    assert (clip.resize, clip.mean[0]) == ("shortest", pytest.approx(0.48145466))
    assert (siglip.resize, siglip.mean, siglip.interpolation) == ("squash", (0.5,) * 3, "bicubic")
    assert (dual.resize, dual.std, dual.interpolation) == ("squash", (0.5,) * 3, "bilinear")


def test_the_digest_changes_with_weights_config_tokenizer_and_preprocessing(tmp_path: Path) -> None:
    make_clip(tmp_path)
    digests = [load(tmp_path).digest, load(tmp_path).digest]
    assert digests[0] == digests[1]
    write_preprocessor(tmp_path, image_mean=[0.5, 0.5, 0.5])
    digests.append(load(tmp_path).digest)
    edit_config(tmp_path, lambda config: config["vision_config"].update(hidden_act="gelu"))
    digests.append(load(tmp_path).digest)
    edit_state(tmp_path, lambda state: state.update(logit_scale=torch.tensor(1.0)))
    digests.append(load(tmp_path).digest)
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text() + "\n")
    digests.append(load(tmp_path).digest)
    assert len(set(digests)) == 5


def test_loading_leaves_the_settings_of_transformers_as_they_were(tmp_path: Path) -> None:
    from transformers.utils import logging

    make_clip(tmp_path)
    logging.set_verbosity_info()
    try:
        before = (logging.get_verbosity(), logging.is_progress_bar_enabled())
        load(tmp_path)
        assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
    finally:
        logging.set_verbosity_warning()
