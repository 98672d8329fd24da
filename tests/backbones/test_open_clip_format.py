"""The open_clip folder: what it refuses, and how it says so."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ogkd.backbones._bert import derive_bert_config
from ogkd.backbones._folder import Weights
from ogkd.backbones.open_clip_format import OpenClipBackbone, load_open_clip
from ogkd.errors import BackboneError

FIXTURES = Path(__file__).parents[1] / "parity" / "fixtures"
WEIGHTS = "open_clip_model.safetensors"
CPU = torch.device("cpu")


def load(folder: Path, **options: Any) -> OpenClipBackbone:
    return load_open_clip(folder, name="some-clip", device=CPU, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound folder of one's own, to be spoiled."""
    return Path(shutil.copytree(FIXTURES / "mean_linear", tmp_path / "model"))


def edit_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    state = load_file(folder / WEIGHTS)
    change(state)
    save_file(state, folder / WEIGHTS)


def edit_json(path: Path, *keys: str, value: Any) -> None:
    content = json.loads(path.read_text())
    part = content
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = value
    path.write_text(json.dumps(content))


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(BackboneError) as caught:
        load(folder, **options)
    return str(caught.value)


# What is wrong with the weights


@pytest.mark.parametrize(
    "key",
    [
        "visual.trunk.cls_token",
        "visual.trunk.blocks.1.attn.qkv.weight",
        "visual.trunk.norm.bias",
        "visual.head.proj.weight",
        "text.transformer.encoder.layer.1.output.dense.bias",
        "text.proj.weight",
        "logit_scale",
    ],
)
def test_a_missing_key_is_named_with_the_next_step(folder: Path, key: str) -> None:
    edit_weights(folder, lambda state: state.pop(key))
    message = refusal(folder)
    assert f"missing keys: {key}" in message
    assert WEIGHTS in message
    assert "ogkd backbones fetch some-clip" in message


def test_a_whole_missing_block_is_noticed(folder: Path) -> None:
    def drop(state: dict[str, Tensor]) -> None:
        for key in [key for key in state if ".blocks.1." in key]:
            del state[key]

    edit_weights(folder, drop)
    assert "visual.trunk.blocks.1.norm1.weight" in refusal(folder)


@pytest.mark.parametrize("key", ["visual.trunk.reg_token", "text.transformer.pooler.dense.bias"])
def test_an_unexpected_key_is_named(folder: Path, key: str) -> None:
    edit_weights(folder, lambda state: state.update({key: torch.zeros(24)}))
    assert f"unexpected keys: {key}" in refusal(folder)


@pytest.mark.parametrize(
    "key",
    [
        "visual.trunk.pos_embed",
        "visual.trunk.patch_embed.proj.weight",
        "visual.trunk.blocks.0.attn.qkv.weight",
        "text.transformer.embeddings.word_embeddings.weight",
    ],
)
@pytest.mark.parametrize("shape", [(), (5,), (2, 0, 2, 2)])
def test_a_tensor_with_the_wrong_number_of_axes_is_named(
    folder: Path, key: str, shape: tuple[int, ...]
) -> None:
    edit_weights(folder, lambda state: state.update({key: torch.zeros(shape)}))
    assert key in refusal(folder)


@pytest.mark.parametrize("key", ["visual.trunk.blocks.0.attn.qkv.weight", "text.proj.weight"])
def test_a_wrong_shape_is_named_with_both_shapes(folder: Path, key: str) -> None:
    rows, columns = load_file(folder / WEIGHTS)[key].shape
    edit_weights(folder, lambda state: state.update({key: torch.zeros(rows + 1, columns)}))
    message = refusal(folder)
    assert f"{key} is [{rows + 1}, {columns}]" in message
    assert f"expected [{rows}, {columns}]" in message


def test_integer_weights_are_refused(folder: Path) -> None:
    def quantise(state: dict[str, Tensor]) -> None:
        state["text.proj.weight"] = state["text.proj.weight"].to(torch.int8)

    edit_weights(folder, quantise)
    assert "text.proj.weight" in refusal(folder)
    assert "int8" in refusal(folder)


def test_the_old_table_of_position_numbers_is_ignored(folder: Path) -> None:
    before = load(folder).encode_texts(["a scan"])
    key = "text.transformer.embeddings.position_ids"
    edit_weights(folder, lambda state: state.update({key: torch.arange(48)[None]}))
    assert torch.equal(load(folder).encode_texts(["a scan"]), before)


@pytest.mark.parametrize("kept", [0, 5, 200, -10])
def test_a_truncated_weight_file_is_refused(folder: Path, kept: int) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:kept])
    message = refusal(folder)
    assert str(path) in message
    assert "damaged, incomplete" in message
    assert "ogkd backbones fetch some-clip" in message


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    assert "has no weight file" in refusal(folder)
    assert "There is no weight file" in refusal(folder, weights=folder / "elsewhere.safetensors")


@pytest.mark.parametrize("wrap", [False, True], ids=["bare", "training checkpoint"])
def test_a_pytorch_file_gives_the_same_model(folder: Path, wrap: bool) -> None:
    before = load(folder)
    state = load_file(folder / WEIGHTS)
    if wrap:
        state = {f"module.{key}": value for key, value in state.items()}
    content = {"epoch": 3, "state_dict": state} if wrap else state
    torch.save(content, folder / "open_clip_pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    after = load(folder)
    pairs = zip(before.model.parameters(), after.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    pixels = torch.randn(1, 3, 32, 32)
    # Where a tensor lies in memory can change the last bit of a product.
    torch.testing.assert_close(
        after.encode_images(pixels).globals, before.encode_images(pixels).globals
    )


def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(
    folder: Path, tmp_path: Path
) -> None:
    class Payload:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "executed",)

    torch.save({"logit_scale": Payload()}, folder / "open_clip_pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    assert "not a weight file" in refusal(folder)
    assert not (tmp_path / "executed").exists()


# What is wrong with the configuration


@pytest.mark.parametrize("file", ["open_clip_config.json", "config.json", "timm/config.json"])
@pytest.mark.parametrize("content", ['{"model_cfg": ', "[]", "\x00\xff"])
def test_a_file_that_is_not_a_json_object_is_named(folder: Path, file: str, content: str) -> None:
    (folder / file).write_text(content)
    assert str(folder / file) in refusal(folder)


def test_a_folder_without_configuration_is_refused(folder: Path) -> None:
    (folder / "open_clip_config.json").unlink()
    assert f"There is no file {folder / 'open_clip_config.json'}" in refusal(folder)


@pytest.mark.parametrize(
    ("keys", "value", "words"),
    [
        (("model_cfg", "vision_cfg", "timm_pool"), "map", "timm_pool"),
        (("model_cfg", "vision_cfg", "timm_model_name"), None, "one of open_clip's own"),
        (("model_cfg", "text_cfg", "hf_model_name"), None, "one of open_clip's own"),
        (("model_cfg", "text_cfg", "hf_pooler_type"), "last_pooler", "hf_pooler_type"),
        (("model_cfg", "text_cfg", "tokenizer_kwargs"), {"strip_sep_token": True}, "tokenizer"),
        (("model_cfg", "text_cfg", "context_length"), 512, "context_length 512"),
        (("model_cfg", "vision_cfg", "image_size"), 224, "image_size is 224"),
        (("model_cfg", "embed_dim"), 0, "embed_dim"),
        (("preprocess_cfg", "resize_mode"), "longest", "resize_mode"),
        (("preprocess_cfg", "mean"), [0.5], "mean"),
        (("preprocess_cfg", "std"), [0.0, 1.0, 1.0], "std"),
    ],
)
def test_an_unknown_setting_is_named(
    folder: Path, keys: tuple[str, ...], value: Any, words: str
) -> None:
    edit_json(folder / "open_clip_config.json", *keys, value=value)
    assert words in refusal(folder)


@pytest.mark.parametrize(
    ("keys", "value", "words"),
    [
        (("architecture",), "vit_base_patch16_siglip_224", "vit_base_patch16_siglip_224"),
        (("architecture",), "resnet50", "resnet50"),
        (("model_args", "pre_norm"), True, "pre_norm"),
        (("model_args", "class_token"), False, "class_token"),
        (("model_args", "mlp_ratio"), 2.5, "mlp_ratio"),
    ],
)
def test_an_image_tower_of_another_kind_is_refused(
    folder: Path, keys: tuple[str, ...], value: Any, words: str
) -> None:
    edit_json(folder / "timm" / "config.json", *keys, value=value)
    assert words in refusal(folder)


def test_a_text_tower_of_another_kind_is_refused(folder: Path) -> None:
    edit_json(folder / "config.json", "model_type", value="roberta")
    assert "model_type" in refusal(folder)
    assert "roberta" in refusal(folder)


def test_a_width_that_does_not_tell_its_heads_asks_for_the_configuration(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert "the number of attention heads does not follow" in refusal(folder)


def test_a_standard_width_tells_the_text_towers_shape_without_a_configuration() -> None:
    shapes = {
        "embeddings.word_embeddings": (50, 128),
        "embeddings.position_embeddings": (32, 128),
        "embeddings.token_type_embeddings": (2, 128),
        "encoder.layer.0.intermediate.dense": (512, 128),
        "encoder.layer.3.intermediate.dense": (512, 128),
    }
    state = {f"text.transformer.{key}.weight": torch.zeros(size) for key, size in shapes.items()}
    config = derive_bert_config(Weights(Path("weights"), state))
    assert (config.num_attention_heads, config.num_hidden_layers) == (2, 4)
    assert (config.hidden_size, config.intermediate_size) == (128, 512)
    assert (config.vocab_size, config.max_position_embeddings) == (50, 32)


def test_no_network_is_reached_for_the_hub_names_in_the_configuration(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **options: Any) -> Any:
        raise AssertionError("the network was asked")

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for name in ("hf-hub:timm/vit_tiny_patch16_224.augreg", "local-dir:/nowhere"):
        edit_json(
            folder / "open_clip_config.json",
            "model_cfg",
            "vision_cfg",
            "timm_model_name",
            value=name,
        )
        assert load(folder).encode_texts(["a scan"]).shape == (1, 16)


# What is wrong with the tokenizer


def test_a_folder_without_tokenizer_is_refused(folder: Path) -> None:
    (folder / "vocab.txt").unlink()
    assert "neither tokenizer.json nor vocab.txt" in refusal(folder)


def test_a_damaged_tokenizer_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": "1.0"')
    message = refusal(folder)
    assert str(folder / "tokenizer.json") in message
    assert "damaged" in message


def test_ids_beyond_the_embedding_are_a_mismatch(folder: Path) -> None:
    with (folder / "vocab.txt").open("a") as file:
        file.write("\n".join(f"word{index}" for index in range(60)))
    message = refusal(folder)
    assert "Tokenizer mismatch" in message
    assert "120 embeddings" in message


@pytest.mark.parametrize("token", ["[CLS]", "[SEP]", "[PAD]", "[UNK]"])
def test_a_tokenizer_without_a_special_token_is_a_mismatch(folder: Path, token: str) -> None:
    path = folder / "vocab.txt"
    path.write_text(path.read_text().replace(f"{token}\n", "plain\n"))
    message = refusal(folder)
    assert "Tokenizer mismatch" in message
    assert token in message


def test_another_padding_id_is_a_mismatch(folder: Path) -> None:
    edit_json(folder / "config.json", "pad_token_id", value=3)
    assert "pad_token_id 3" in refusal(folder)
