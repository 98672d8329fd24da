"""Make `tests/parity/towers`: what other libraries compute with the layers of published models.

Needs open_clip_torch, timm, torchvision and transformers in an environment of its own
(`docs/evidence/parity.md`). Where a model's own package cannot be installed, its layers are put
together here from those libraries, by the keys of its weight file. Weights are not stored: key and
shape determine them (`tests/made_weights.py`).

    python tools/make_backbone_fixtures.py [NAME ...]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import open_clip
import timm
import torch
import torchvision
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import normalize

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from made_weights import made, made_state  # noqa: E402

OUT = ROOT / "tests" / "parity" / "towers"
Maker = Callable[[], tuple[nn.Module, dict[str, Any], dict[str, Tensor]]]
MAKERS: dict[str, Maker] = {}
# Two texts: the second one is shorter. 17 words, of which the last two start and end a text.
CLIP_IDS = torch.tensor([[15, 0, 1, 2, 7, 16], [15, 13, 16, 0, 0, 0]])
BERT_IDS = torch.tensor([[2, 5, 6, 7, 12, 3], [2, 18, 3, 0, 0, 0]])
BERT = {
    "model_type": "bert",
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 32,
    "vocab_size": 24,
    "max_position_embeddings": 16,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
}


def case(maker: Maker) -> Maker:
    MAKERS[maker.__name__] = maker
    return maker


def fill(model: nn.Module) -> nn.Module:
    """The weights of `made_weights`, by the model's own keys."""
    own = model.state_dict()
    counts = {key: value for key, value in own.items() if not value.is_floating_point()}
    values = made_state({key: list(value.shape) for key, value in own.items()})
    state = {key: torch.from_numpy(value) for key, value in values.items()} | counts
    model.load_state_dict(state)
    return model.eval()


def pixels(size: int) -> Tensor:
    return torch.from_numpy(made("pixels", (2, 3, size, size)) * size)


def tree(**parts: Any) -> nn.Module:
    """Modules and parameters under the names that they have in a checkpoint."""
    module = nn.Module()
    for name, part in parts.items():
        (module.register_parameter if isinstance(part, nn.Parameter) else module.add_module)(
            name, part
        )
    return module


def scale() -> nn.Parameter:
    return nn.Parameter(torch.zeros(()))


def bert(*, pooler: bool = True) -> Any:
    settings = {key: value for key, value in BERT.items() if key != "model_type"}
    return transformers.BertModel(transformers.BertConfig(**settings), add_pooling_layer=pooler)


def read_bert(model: Any) -> Any:
    mask = (BERT_IDS != 0).long()
    return model(input_ids=BERT_IDS, attention_mask=mask, output_hidden_states=True)


def clip_outputs(model: Any, size: int, patches: Tensor) -> dict[str, Tensor]:
    return {
        "globals": model.encode_image(pixels(size)),
        "patches": patches,
        "texts": model.encode_text(pad(CLIP_IDS, 16)),
    }


def pad(ids: Tensor, length: int) -> Tensor:
    return nn.functional.pad(ids, (0, length - ids.shape[1]))


VIT = {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8}
TEXT = {"context_length": 16, "vocab_size": 17, "width": 24, "heads": 2, "layers": 2}


@case
def own_vit() -> Any:
    settings = {"embed_dim": 20, "vision_cfg": VIT, "text_cfg": TEXT, "quick_gelu": True}
    model: Any = fill(open_clip.model.CLIP(**settings))
    visual = model.visual
    tokens = visual.ln_post(visual.transformer(visual._embeds(pixels(32)))[:, 1:])
    config = {"open_clip_config.json": {"model_cfg": settings}}
    return model, config, clip_outputs(model, 32, tokens @ visual.proj)


@case
def clip_resnet() -> Any:
    vision = {"image_size": 64, "layers": [1, 2, 1, 1], "width": 8, "patch_size": None}
    settings = {"embed_dim": 20, "vision_cfg": vision, "text_cfg": TEXT}
    sizes = vision | {"head_width": 64}
    model: Any = fill(open_clip.model.CLIP(**(settings | {"vision_cfg": sizes})))
    visual = model.visual
    patches = attention_patches(visual, pixels(64))
    config = {"open_clip_config.json": {"model_cfg": settings}}
    return model, config, clip_outputs(model, 64, patches)


def attention_patches(visual: Any, images: Tensor) -> Tensor:
    """Each position through the pool's values and output alone."""
    values = visual.stem(images)
    for stage in (visual.layer1, visual.layer2, visual.layer3, visual.layer4):
        values = stage(values)
    pool = visual.attnpool
    tokens = values.flatten(2).transpose(1, 2) + pool.positional_embedding[1:]
    return pool.c_proj(pool.v_proj(tokens))


@case
def own_vit_bert() -> Any:
    """QuiltNet-B-16-PMB and, with another prefix, UniMed-CLIP."""
    text = {"hf_proj_type": "mlp", "hf_pooler_type": "cls_last_hidden_state_pooler"}
    settings = {"embed_dim": 20, "vision_cfg": VIT, "text_cfg": {**text, "context_length": 16}}
    own = open_clip.model.CLIP(20, VIT, TEXT, quick_gelu=True)
    head = nn.Sequential(nn.Linear(24, 22, bias=False), nn.GELU(), nn.Linear(22, 20, bias=False))
    parts = tree(transformer=bert(pooler=False), proj=head)
    model: Any = fill(tree(visual=own.visual, text=parts, logit_scale=scale()))
    visual = model.visual
    tokens = visual.ln_post(visual.transformer(visual._embeds(pixels(32)))[:, 1:])
    outputs = {
        "globals": visual(pixels(32)),
        "patches": tokens @ visual.proj,
        "texts": parts.proj(read_bert(parts.transformer).last_hidden_state[:, 0]),
    }
    config = {"open_clip_config.json": {"model_cfg": settings | {"quick_gelu": True}}}
    return model, config | {"config.json": BERT}, outputs


def main() -> None:
    torch.set_num_threads(1)
    libraries = (open_clip, timm, torchvision, transformers, torch)
    versions = {module.__name__: module.__version__ for module in libraries}
    OUT.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or MAKERS:
        with torch.no_grad():
            model, config, outputs = MAKERS[name]()
        shapes = {
            key: list(value.shape)
            for key, value in model.state_dict().items()
            if value.is_floating_point()
        }
        metadata = versions | {"shapes": json.dumps(shapes), "config": json.dumps(config)}
        tensors = {key: normalize(value, dim=-1).contiguous() for key, value in outputs.items()}
        save_file(tensors, OUT / f"{name}.safetensors", metadata)
        print(name, (OUT / f"{name}.safetensors").stat().st_size)


if __name__ == "__main__":
    main()
