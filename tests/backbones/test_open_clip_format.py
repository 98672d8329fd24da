"""The open_clip folder: what it refuses and how it says so, its texts, its dropout."""

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

from ogkd.backbones._bert import bert_hidden, derive_bert_config
from ogkd.backbones._digest import backbone_digest
from ogkd.backbones._wordpiece import clean_text
from ogkd.backbones.base import TextDropout, Tokens
from ogkd.backbones.open_clip_format import OpenClipBackbone, load_open_clip
from ogkd.errors import BackboneError

FIXTURES = Path(__file__).parents[1] / "parity" / "fixtures"
WEIGHTS = "open_clip_model.safetensors"
CPU = torch.device("cpu")


def load(folder: Path, **options: Any) -> OpenClipBackbone:
    return load_open_clip(folder, name="some-clip", device=CPU, **options)


@pytest.fixture(scope="module")
def backbone() -> OpenClipBackbone:
    return load(FIXTURES / "class_token_mlp")


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
    assert "damaged, cut short" in message
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
    pairs = zip(before._model.parameters(), after._model.parameters(), strict=True)
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
    assert "how many attention heads" in refusal(folder)


def test_a_standard_width_tells_the_text_towers_shape_without_a_configuration() -> None:
    shapes = {
        "embeddings.word_embeddings": (50, 128),
        "embeddings.position_embeddings": (32, 128),
        "embeddings.token_type_embeddings": (2, 128),
        "encoder.layer.0.intermediate.dense": (512, 128),
        "encoder.layer.3.intermediate.dense": (512, 128),
    }
    state = {f"text.transformer.{key}.weight": torch.zeros(size) for key, size in shapes.items()}
    config = derive_bert_config(state, file=Path("weights"), name="some-clip")
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


# Texts


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("  two\t words\n", "two words"),
        ("Barrett\u2019s \u201coesophagus\u201d", 'Barrett\'s "oesophagus"'),
        ("p &amp;lt; 0.05", "p < 0.05"),
        ("\ufb01brosis", "fibrosis"),
        ("cafe\u0301", "caf\u00e9"),
        ("\uff21\uff22 50\uff05", "AB 50%"),
    ],
)
def test_texts_are_cleaned_as_open_clip_cleans_them(text: str, plain: str) -> None:
    assert clean_text(text) == plain


def test_a_text_longer_than_the_context_is_cut_with_its_end_kept(
    backbone: OpenClipBackbone,
) -> None:
    tokens = backbone.tokenize(["scan " * 1000])
    assert tokens.ids.shape == (1, backbone.context_length)
    begin, end = backbone.tokenize([""]).ids[0].tolist()
    assert tokens.ids[0, 0] == begin
    assert tokens.ids[0, -1] == end
    assert len(backbone.pieces("scan " * 1000)) == 1000


def test_tokens_are_trimmed_to_the_longest_text(backbone: OpenClipBackbone) -> None:
    tokens = backbone.tokenize(["a scan", "a", ""])
    assert tokens.mask.sum(dim=1).tolist() == [4, 3, 2]
    assert tokens.ids.shape == (3, 4)


def test_more_tokens_than_the_context_are_refused(backbone: OpenClipBackbone) -> None:
    ids = torch.full((1, 257), 5)
    tokens = Tokens(ids=ids, mask=ids > 0)
    with pytest.raises(BackboneError, match="at most 256 tokens"):
        backbone.encode_text(backbone.embed(tokens), tokens)


@pytest.mark.parametrize("lower", [True, False])
def test_letter_case_follows_the_tokenizers_configuration(folder: Path, lower: bool) -> None:
    edit_json(folder / "tokenizer_config.json", "do_lower_case", value=lower)
    backbone = load(folder)
    assert (backbone.pieces("SCAN") == backbone.pieces("scan")) is lower


# Images


@pytest.mark.parametrize("shape", [(1, 3, 32, 32), (1, 1, 48, 48), (3, 48, 48), (1, 3, 48, 40)])
def test_images_of_another_size_are_refused_with_the_right_one(
    backbone: OpenClipBackbone, shape: tuple[int, ...]
) -> None:
    with pytest.raises(BackboneError, match="48 x 48 pixels"):
        backbone.encode_images(torch.zeros(shape))


def test_features_have_unit_length_and_patches_are_left_out_on_request(
    backbone: OpenClipBackbone,
) -> None:
    pixels = torch.randn(3, 3, 48, 48)
    both = backbone.encode_images(pixels)
    assert both.patches is not None
    torch.testing.assert_close(both.globals.norm(dim=-1), torch.ones(3))
    torch.testing.assert_close(both.patches.norm(dim=-1), torch.ones(3, 9))
    alone = backbone.encode_images(pixels, patches=False)
    assert alone.patches is None
    assert torch.equal(alone.globals, both.globals)


def test_image_features_can_stand_in_a_loss(backbone: OpenClipBackbone) -> None:
    features = backbone.encode_images(torch.randn(2, 3, 48, 48)).globals
    prototypes = torch.randn(4, backbone.embed_dim, requires_grad=True)
    (features @ prototypes.T).square().sum().backward()
    assert prototypes.grad is not None


def test_preprocessing_is_the_configurations(folder: Path) -> None:
    edit_json(folder / "open_clip_config.json", "preprocess_cfg", "resize_mode", value="squash")
    edit_json(folder / "open_clip_config.json", "preprocess_cfg", "interpolation", value="bilinear")
    prep = load(folder).preprocessing
    assert (prep.size, prep.mean, prep.std) == (32, (0.5, 0.4, 0.3), (0.3, 0.2, 0.25))
    assert (prep.resize, prep.interpolation) == ("squash", "bilinear")


# Frozen, and known by its digest


def test_everything_is_frozen_and_in_evaluation_mode(backbone: OpenClipBackbone) -> None:
    assert not any(module.training for module in backbone._model.modules())
    assert not any(value.requires_grad for value in backbone._model.parameters())
    assert all(value.dtype == torch.float32 for value in backbone._model.parameters())


def test_the_digest_follows_weights_settings_and_tokenizer_but_not_the_place(
    folder: Path, tmp_path: Path
) -> None:
    digests = [load(folder).digest]
    moved = Path(shutil.copytree(folder, tmp_path / "moved"))
    edit_json(
        moved / "open_clip_config.json", "model_cfg", "text_cfg", "hf_model_name", value=str(moved)
    )
    assert load(moved).digest == digests[0]
    edit_json(folder / "open_clip_config.json", "preprocess_cfg", "interpolation", value="bilinear")
    digests.append(load(folder).digest)
    edit_json(folder / "config.json", "layer_norm_eps", value=1e-6)
    digests.append(load(folder).digest)
    path = folder / "vocab.txt"
    path.write_text(path.read_text().replace("shadow\n", "lesion\n"))
    digests.append(load(folder).digest)
    edit_weights(folder, lambda state: state["logit_scale"].add_(1e-3))
    digests.append(load(folder).digest)
    assert len(set(digests)) == 5


def test_the_digest_does_not_depend_on_the_order_of_its_parts(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"weights")
    assert backbone_digest(file, {"a": "1", "b": "2"}) == backbone_digest(
        file, {"b": "2", "a": "1"}
    )
    assert backbone_digest(file, {"a": "1", "b": "2"}) != backbone_digest(
        file, {"a": "12", "b": ""}
    )
    with pytest.raises(BackboneError, match="Cannot read"):
        backbone_digest(tmp_path / "absent", {})


# Dropout


class Recorder(TextDropout):
    """Counts the values that a rate was asked for, and drops nothing."""

    def __init__(self) -> None:
        super().__init__([])
        self.calls: list[tuple[float, tuple[int, ...]]] = []

    def __call__(self, values: Tensor, rate: float) -> Tensor:
        self.calls.append((rate, tuple(values.shape)))
        return values


def streams(*seeds: int) -> TextDropout:
    return TextDropout([torch.Generator().manual_seed(seed) for seed in seeds])


TEXTS = ["a photo of a benign tumor.", "chest scan"]


def test_dropout_that_drops_nothing_equals_evaluation(backbone: OpenClipBackbone) -> None:
    tokens = backbone.tokenize(TEXTS)
    words = backbone.embed(tokens)
    plain = backbone.encode_text(words, tokens)
    dropped = backbone.encode_text(words, tokens, dropout=Recorder())
    torch.testing.assert_close(dropped, plain, rtol=0, atol=1e-6)


def test_dropout_stands_where_bert_has_it_with_berts_rates(folder: Path) -> None:
    edit_json(folder / "config.json", "hidden_dropout_prob", value=0.25)
    edit_json(folder / "config.json", "attention_probs_dropout_prob", value=0.5)
    backbone = load(folder)
    tokens = backbone.tokenize(TEXTS)
    recorder = Recorder()
    backbone.encode_text(backbone.embed(tokens), tokens, dropout=recorder)
    length = tokens.ids.shape[1]
    hidden, attention = (0.25, (2, length, 24)), (0.5, (2, 3, length, length))
    assert recorder.calls == [hidden] + 2 * [attention, hidden, hidden]


def test_dropout_keeps_the_expected_share_of_values(folder: Path) -> None:
    edit_json(folder / "config.json", "hidden_dropout_prob", value=0.3)
    model = load(folder)._model.text.bert
    kept = streams(0)(torch.ones(64, 64, 24), model.config.hidden_dropout_prob)
    assert (kept > 0).float().mean().item() == pytest.approx(0.7, abs=0.01)
    assert kept.mean().item() == pytest.approx(1.0, abs=0.01)


def test_streams_in_one_batch_equal_each_stream_alone(backbone: OpenClipBackbone) -> None:
    tokens = backbone.tokenize(TEXTS)
    twice = Tokens(ids=tokens.ids.repeat(2, 1), mask=tokens.mask.repeat(2, 1))
    together = backbone.encode_text(backbone.embed(twice), twice, dropout=streams(1, 2))
    words = backbone.embed(tokens)
    alone = [backbone.encode_text(words, tokens, dropout=streams(seed)) for seed in (1, 2)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-6)
    assert (alone[0] - alone[1]).abs().max() > 1e-3


def test_the_explicit_forward_equals_transformers_own(backbone: OpenClipBackbone) -> None:
    model = backbone._model.text.bert
    tokens = backbone.tokenize(TEXTS)
    own = model(input_ids=tokens.ids, attention_mask=tokens.mask.long()).last_hidden_state
    ours = bert_hidden(model, backbone.embed(tokens), tokens.mask)
    torch.testing.assert_close(ours[tokens.mask], own[tokens.mask], rtol=0, atol=1e-5)


def test_max_pooling_looks_at_tokens_and_never_at_padding(folder: Path) -> None:
    edit_json(
        folder / "open_clip_config.json",
        "model_cfg",
        "text_cfg",
        "hf_pooler_type",
        value="max_pooler",
    )
    backbone = load(folder)
    alone = backbone.encode_texts(["chest scan"])
    beside = backbone.tokenize(["chest scan", TEXTS[0]])
    padded = backbone.encode_text(backbone.embed(beside), beside)[:1]
    torch.testing.assert_close(alone, padded, rtol=0, atol=1e-5)
