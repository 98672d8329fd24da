"""Model folders of both formats: what may be in them, and what is refused by name."""

from __future__ import annotations

import json
import shutil
import socket
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ogkd.backbones._bert import derive_bert_config
from ogkd.backbones._folder import Weights
from ogkd.backbones.loading import load_folder
from ogkd.errors import BackboneError
from tiny_backbones import SIZE, TEXTS, make_clip, make_siglip

FIXTURES = Path(__file__).parents[1] / "parity" / "fixtures"
WEIGHTS = {"open_clip": "open_clip_model.safetensors", "clip": "model.safetensors"}
BINARY = {"open_clip": "open_clip_pytorch_model.bin", "clip": "pytorch_model.bin"}
CPU = torch.device("cpu")
Spoil = Callable[[Path], object]


def make(folder: Path, kind: str) -> Path:
    if kind == "open_clip":
        shutil.copytree(FIXTURES / "mean_linear", folder)
        (folder / "expected.safetensors").unlink()
    else:
        make_clip(folder)
    return folder


def load(folder: Path) -> Any:
    return load_folder(folder, name="tiny", device=CPU)


@pytest.fixture(params=WEIGHTS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def folder(tmp_path: Path, kind: str) -> Path:
    return make(tmp_path / "model", kind)


def edit_json(path: Path, *keys: str, value: Any) -> None:
    content = json.loads(path.read_text()) if path.is_file() else {}
    part = content
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = value
    path.write_text(json.dumps(content))


# Each of these returns a function that spoils a folder.


def setting(file: str, dotted: str, value: Any) -> Spoil:
    return lambda folder: edit_json(folder / file, *dotted.split("."), value=value)


def text(file: str, content: str) -> Spoil:
    return lambda folder: (folder / file).write_text(content)


def without(file: str) -> Spoil:
    return lambda folder: (folder / file).unlink()


def replaced(file: str, old: str, new: str) -> Spoil:
    return lambda folder: (folder / file).write_text((folder / file).read_text().replace(old, new))


def tensor(key: str, change: Callable[[Any], Any]) -> Spoil:
    """`change` takes the stored tensor, or None, and gives another; None removes it."""

    def spoil(folder: Path) -> None:
        (path,) = folder.glob("*model.safetensors")
        state = load_file(path)
        value = change(state.pop(key, None))
        save_file(state if value is None else {**state, key: value}, path)

    return spoil


def removed(key: str) -> Spoil:
    return tensor(key, lambda _: None)


def shaped(key: str, *shape: int) -> Spoil:
    return tensor(key, lambda _: torch.zeros(shape))


OPEN_CLIP = "open_clip_config.json"
QKV = "visual.trunk.blocks.1.attn.qkv.weight"
WORDS = "text.transformer.embeddings.word_embeddings.weight"
# kind of folder, what the message names, what is done to the folder
REFUSED: list[tuple[str, str, Spoil]] = [
    # Weights
    *(("open_clip", key, removed(key)) for key in ("visual.trunk.cls_token", QKV, "logit_scale")),
    ("clip", "text_projection.weight", removed("text_projection.weight")),
    ("open_clip", "reg_token", shaped("visual.trunk.reg_token", 24)),
    ("clip", "unexpected keys: odd", shaped("odd", 2)),
    *(
        ("open_clip", key, shaped(key, 2, 0, 2, 2))
        for key in ("visual.trunk.pos_embed", QKV, WORDS)
    ),
    ("open_clip", "[17, 24] float32", shaped("text.proj.weight", 17, 24)),
    ("clip", "logit_scale is [7]", shaped("logit_scale", 7)),
    ("open_clip", "int8", tensor("text.proj.weight", lambda value: value.to(torch.int8))),
    # Configuration
    *(
        ("open_clip", file, text(file, content))
        for file, content in ((OPEN_CLIP, '{"model_cfg": '), ("config.json", "[]"))
    ),
    *(
        ("open_clip", key, setting(OPEN_CLIP, f"model_cfg.{path}{key}", value))
        for path, key, value in (
            ("vision_cfg.", "timm_pool", "map"),
            ("vision_cfg.", "image_size", 224),
            ("text_cfg.", "hf_pooler_type", "last_pooler"),
            ("text_cfg.", "tokenizer_kwargs", {"strip_sep_token": True}),
            ("text_cfg.", "context_length", 512),
            ("", "embed_dim", 0),
        )
    ),
    *(
        ("open_clip", key, setting(OPEN_CLIP, f"preprocess_cfg.{key}", value))
        for key, value in (("resize_mode", "longest"), ("mean", [0.5]), ("std", [0.0, 1.0, 1.0]))
    ),
    *(
        ("open_clip", words, setting("timm/config.json", key, value))
        for key, value, words in (
            ("architecture", "vit_base_patch16_siglip_224", "siglip"),
            ("model_args.pre_norm", True, "pre_norm"),
            ("model_args.class_token", False, "class_token"),
            ("model_args.mlp_ratio", 2.5, "mlp_ratio"),
        )
    ),
    ("open_clip", "model_type", setting("config.json", "model_type", "roberta")),
    ("open_clip", "config.json", without("config.json")),
    ("clip", OPEN_CLIP, setting("config.json", "model_type", "resnet")),
    ("clip", "hidden_size", setting("config.json", "text_config.hidden_size", "wide")),
    ("clip", "attention heads", setting("config.json", "text_config.num_attention_heads", 3)),
    ("clip", "eos_token_id", setting("config.json", "text_config.eos_token_id", 9)),
    # Tokenizer
    ("open_clip", "vocab.txt", without("vocab.txt")),
    ("open_clip", "tokenizer.json", text("tokenizer.json", '{"version": "1.0"')),
    ("open_clip", "120 embeddings", replaced("vocab.txt", "scan\n", "scan\n" + "x\n" * 60)),
    ("open_clip", "vocab.txt", replaced("vocab.txt", "[SEP]\n", "plain\n")),
    ("clip", "tokenizer.json", without("tokenizer.json")),
    ("clip", "ids up to 500", setting("tokenizer.json", "model.vocab.extra", 500)),
    # Preprocessing
    *(
        ("clip", words, text("preprocessor_config.json", json.dumps(settings)))
        for settings, words in (
            ({"size": {"shortest_edge": 64}, "crop_size": 64}, "the model takes 32 px"),
            ({"size": {"shortest_edge": 64}, "crop_size": SIZE}, "crop"),
            ({"size": {"height": 32, "width": 16}}, "not square"),
            ({"resample": 1}, "resample"),
            ({"rescale_factor": 1.0}, "rescale_factor"),
            ({"do_center_crop": False}, "no crop"),
        )
    ),
]


@pytest.mark.parametrize(
    ("kind", "words", "spoil"), REFUSED, ids=[f"{kind}: {words}" for kind, words, _ in REFUSED]
)
def test_a_wrong_folder_is_refused_by_what_is_wrong(
    tmp_path: Path, kind: str, words: str, spoil: Spoil
) -> None:
    folder = make(tmp_path / "model", kind)
    spoil(folder)
    with pytest.raises(BackboneError) as caught:
        load(folder)
    assert words in str(caught.value)


@pytest.mark.parametrize("kept", [0, 200, None])
def test_a_damaged_or_missing_weight_file_is_named(
    folder: Path, kind: str, kept: int | None
) -> None:
    path = folder / WEIGHTS[kind]
    content = path.read_bytes()
    path.unlink()
    if kept is not None:
        path.write_bytes(content[:kept])
    with pytest.raises(BackboneError) as caught:
        load(folder)
    assert WEIGHTS[kind] in str(caught.value)


def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(
    folder: Path, kind: str, tmp_path: Path
) -> None:
    class Payload:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "executed",)

    torch.save({"logit_scale": Payload()}, folder / BINARY[kind])
    (folder / WEIGHTS[kind]).unlink()
    with pytest.raises(BackboneError):
        load(folder)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_pytorch_file_gives_the_same_model(folder: Path, kind: str, checkpoint: bool) -> None:
    before = load(folder)
    state = load_file(folder / WEIGHTS[kind])
    prefix = {"open_clip": "text.transformer", "clip": "text_model"}[kind]
    state[f"{prefix}.embeddings.position_ids"] = torch.arange(48)[None]  # of old releases
    if checkpoint:
        state = {f"module.{key}": value for key, value in state.items()}
    options = Namespace(lr=np.float32(0.1), name="run")
    progress = {"epoch": np.int64(3), "best": np.float64(0.5), "args": options}
    content = {**progress, "state_dict": state} if checkpoint else state
    torch.save(content, folder / BINARY[kind])
    (folder / WEIGHTS[kind]).unlink()
    pairs = zip(before.model.parameters(), load(folder).model.parameters(), strict=True)
    assert all(torch.equal(first, second) for first, second in pairs)


def test_half_precision_files_are_computed_in_float32(tmp_path: Path) -> None:
    make_clip(tmp_path)
    expected = load(tmp_path).encode_texts(TEXTS)
    state = load_file(tmp_path / "model.safetensors")
    save_file({key: value.half() for key, value in state.items()}, tmp_path / "model.safetensors")
    backbone = load(tmp_path)
    assert all(p.dtype == torch.float32 for p in backbone.model.parameters())
    torch.testing.assert_close(backbone.encode_texts(TEXTS), expected, atol=5e-3, rtol=0)


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


def test_a_standard_width_implies_the_text_towers_shape_without_a_configuration() -> None:
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


def test_names_in_a_configuration_are_not_looked_up_on_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(tmp_path / "model", "open_clip")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("looked up"))
    name = "hf-hub:timm/vit_tiny_patch16_224.augreg"
    setting(OPEN_CLIP, "model_cfg.vision_cfg.timm_model_name", name)(folder)
    assert load(folder).encode_texts(["a scan"]).shape == (1, 16)


# Preprocessing and digest


OWN = {"image_mean": [0.1, 0.2, 0.3], "image_std": [1, 2, 4]}
BOTH = {"height": SIZE, "width": SIZE}


@pytest.mark.parametrize(
    ("maker", "settings", "resize", "interpolation", "mean"),
    [
        (make_clip, {"size": SIZE, "crop_size": SIZE, "resample": 3}, "shortest", "bicubic", 0.1),
        (make_clip, {"size": {"shortest_edge": SIZE}, "resample": 2}, "shortest", "bilinear", 0.1),
        (make_clip, {"size": BOTH, "resample": 0}, "squash", "nearest", 0.1),
        (make_clip, {"crop_size": BOTH}, "shortest", "bicubic", 0.1),
        (make_clip, None, "shortest", "bicubic", 0.48145466),  # without a file: of the family
        (make_siglip, None, "squash", "bicubic", 0.5),
    ],
)
def test_preprocessor_files_are_understood(
    tmp_path: Path,
    maker: Callable[[Path], Any],
    settings: dict[str, Any] | None,
    resize: str,
    interpolation: str,
    mean: float,
) -> None:
    maker(tmp_path)
    if settings is not None:
        text("preprocessor_config.json", json.dumps(settings | OWN))(tmp_path)
    prep = load(tmp_path).preprocessing
    assert (prep.size, prep.resize, prep.interpolation) == (SIZE, resize, interpolation)
    assert prep.mean[0] == pytest.approx(mean)


def test_open_clips_preprocessing_is_the_configurations(tmp_path: Path) -> None:
    folder = make(tmp_path / "model", "open_clip")
    setting(OPEN_CLIP, "preprocess_cfg.resize_mode", "squash")(folder)
    setting(OPEN_CLIP, "preprocess_cfg.interpolation", "bilinear")(folder)
    prep = load(folder).preprocessing
    assert (prep.size, prep.mean, prep.std) == (32, (0.5, 0.4, 0.3), (0.3, 0.2, 0.25))
    assert (prep.resize, prep.interpolation) == ("squash", "bilinear")


CHANGES: dict[str, list[Spoil]] = {
    "open_clip": [
        setting(OPEN_CLIP, "preprocess_cfg.interpolation", "bilinear"),
        setting("config.json", "layer_norm_eps", 1e-6),
        replaced("vocab.txt", "shadow\n", "lesion\n"),
        tensor("logit_scale", lambda value: value + 1e-3),
    ],
    "clip": [
        text("preprocessor_config.json", '{"image_mean": [0.5, 0.5, 0.5]}'),
        setting("config.json", "vision_config.hidden_act", "gelu"),
        replaced("tokenizer.json", "{", "{ "),
        tensor("logit_scale", lambda value: value + 1),
    ],
}


def test_the_digest_follows_everything_that_is_computed_with_but_not_the_path(
    folder: Path, kind: str, tmp_path: Path
) -> None:
    digests = [load(folder).digest]
    assert load(Path(shutil.copytree(folder, tmp_path / "moved"))).digest == digests[0]
    for change in CHANGES[kind]:
        change(folder)
        digests.append(load(folder).digest)
    assert len(set(digests)) == 5
