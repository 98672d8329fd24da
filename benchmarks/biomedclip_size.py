"""BiomedCLIP's architecture at full size with random weights, for timing. No download."""

from __future__ import annotations

import json
import string
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from ogkd.backbones._bert import BertConfigFile, BertTower
from ogkd.backbones._folder import key_table, layouts, tower_keys
from ogkd.backbones._tokenizer import bert_tokenizer
from ogkd.backbones._towers import Towers, TowersBackbone
from ogkd.backbones._vit import ImageTower, VisionSpec
from ogkd.images.transforms import Preprocessing

__all__ = ["WORDS", "make_backbone", "write_folder"]

# Words that stand as single tokens; all others are spelled in pieces of one letter.
_WORDS = """a photo of the image shows with and in on tissue lesion margin dark bright irregular
smooth normal tumor cyst stone kidney brain glioma meningioma pituitary round large small diffuse
focal signal density border shadow class"""
WORDS = tuple(_WORDS.split())


_CONFIG = {
    "embed_dim": 512,
    "vision_cfg": {
        "timm_model_name": "vit_base_patch16_224",
        "timm_pool": "",
        "timm_proj": "linear",
        "image_size": 224,
    },
    "text_cfg": {
        "hf_model_name": "bert",
        "hf_tokenizer_name": "bert",
        "hf_proj_type": "mlp",
        "hf_pooler_type": "cls_last_hidden_state_pooler",
        "context_length": 256,
    },
}


def make_backbone(seed: int = 0) -> TowersBackbone:
    """195.9 million random parameters behind the usual contract."""
    torch.manual_seed(seed)
    bert = BertConfigFile(
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        vocab_size=30522,
        max_position_embeddings=512,
        type_vocab_size=2,
    )
    spec = VisionSpec(
        width=768, depth=12, heads=12, inner=3072, patch=16, image_size=224, embed_dim=512
    )
    model = _towers(spec, bert)
    _randomise(model.image)
    _randomise(model.text)
    torch.nn.init.constant_(model.logit_scale, 4.4454)
    return TowersBackbone(
        model,
        _tokenizer(bert.vocab_size),
        Preprocessing(),
        name="biomedclip-size",
        digest=f"random-{seed}",
        context_length=256,
        device=torch.device("cpu"),
    )


def _towers(spec: VisionSpec, bert: BertConfigFile) -> Towers:
    text = _CONFIG["text_cfg"]
    pooling, proj = text["hf_pooler_type"], text["hf_proj_type"]
    return Towers(ImageTower(spec), BertTower(bert, spec.embed_dim, pooling=pooling, proj=proj))


def write_folder(backbone: TowersBackbone, folder: Path) -> Path:
    """Write it in open_clip's format, as a download would be; returns the weight file."""
    folder.mkdir(parents=True)
    model, own = backbone.model, dict(backbone.model.named_parameters())
    keys = tower_keys("timm", "visual.trunk", "image")
    keys |= {layouts("open_clip")["heads"]["linear"]: "image.head", "logit_scale": "logit_scale"}
    keys |= {"text.transformer": "text.bert", "text.proj": "text.proj"}
    table = key_table(model, keys)
    weights = folder / "open_clip_model.safetensors"
    stacked = {
        key: torch.cat([own[name] for name in names]) if len(names) > 1 else own[names[0]].clone()
        for key, names in table.items()
    }
    save_file(stacked, weights)
    stored = {"model_cfg": _CONFIG, "preprocess_cfg": {}}
    (folder / "open_clip_config.json").write_text(json.dumps(stored))
    (folder / "config.json").write_text(model.text.bert.config.model_dump_json())
    (folder / "vocab.txt").write_text(_vocabulary(), encoding="utf-8")
    return weights


def _randomise(tower: torch.nn.Module) -> None:
    """Weights large enough that different inputs give different outputs."""
    for key, parameter in tower.named_parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.04)
        elif "norm" in key.lower() and key.endswith("weight"):
            torch.nn.init.ones_(parameter)
        else:
            torch.nn.init.zeros_(parameter)


def _vocabulary() -> str:
    characters = string.ascii_lowercase + string.digits + string.punctuation
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*characters, *(f"##{c}" for c in characters)]
    words = [word for word in WORDS if len(word) > 1]
    return "\n".join([*special, *pieces, *words]) + "\n"


def _tokenizer(rows: int) -> object:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "vocab.txt").write_text(_vocabulary(), encoding="utf-8")
        return bert_tokenizer(Path(folder), rows=rows)
