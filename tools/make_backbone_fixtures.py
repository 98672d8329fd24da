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
from open_clip.transformer import AttentionalPooler, TextTransformer
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import normalize

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from made_weights import PIXEL_SCALE, made, made_state  # noqa: E402

OUT = ROOT / "tests" / "parity" / "towers"
Maker = Callable[[], tuple[nn.Module, dict[str, Any], dict[str, Tensor]]]
MAKERS: dict[str, Maker] = {}
# Two texts: the second one is shorter. 17 words, of which the last two start and end a text.
CLIP_IDS = torch.tensor([[15, 0, 1, 2, 7, 16], [15, 13, 16, 0, 0, 0]])
CONCH_IDS = torch.tensor([[1, 3, 4, 5, 9, 2], [1, 8, 2, 0, 0, 0]])  # 0 is padding
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
    return PIXEL_SCALE * torch.from_numpy(made("pixels", (2, 3, size, size)))


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


# Towers whose heads are told by their width alone, 64 each
WIDE = {key: value for key, value in BERT.items() if key != "model_type"} | {
    "hidden_size": 128,
    "num_attention_heads": 2,
}


def wide_bert() -> Any:
    return transformers.BertModel(transformers.BertConfig(**WIDE))


def early_mean(model: Any) -> Tensor:
    """Of the states after the first two blocks and the last one, over the text's own tokens."""
    states = read_bert(model).hidden_states
    mean = torch.stack([states[1], states[2], states[-1]]).mean(0)
    lengths = (BERT_IDS != 0).sum(1)
    rows = zip(mean, lengths, strict=True)
    return torch.stack([row[:length].mean(0) for row, length in rows])


def resnet() -> Any:
    """torchvision's, with as few blocks as its stages can have, and no classifier."""
    model = torchvision.models.resnet.ResNet(torchvision.models.resnet.Bottleneck, [1, 2, 1, 1])
    model.fc = nn.Identity()
    return model


def last_map(model: Any, images: Tensor) -> Tensor:
    values = model.maxpool(model.relu(model.bn1(model.conv1(images))))
    return model.layer4(model.layer3(model.layer2(model.layer1(values))))


@case
def keep() -> Any:
    sizes = {"img_size": 224, "patch_size": 32, "embed_dim": 128, "depth": 2, "num_heads": 2}
    visual = timm.create_model("vit_large_patch16_224", num_classes=0, init_values=1e-5, **sizes)
    head = nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 128))
    model: Any = fill(tree(visual=visual, visual_head=head, text=wide_bert(), logit_scale=scale()))
    outputs = {
        "globals": model.visual_head(visual(pixels(224))),
        "patches": model.visual_head(visual.forward_features(pixels(224))[:, 1::7]),
        "texts": read_bert(model.text).pooler_output,
    }
    return model, {"config.json": {"model_type": "keep", "text_config": WIDE}}, outputs


@case
def flair() -> Any:
    vision = tree(
        model=resnet(),
        projection_head_vision=tree(projection=nn.Linear(2048, 20, bias=False)),
    )
    text = tree(
        model=wide_bert(), projection_head_text=tree(projection=nn.Linear(128, 20, bias=False))
    )
    model: Any = fill(tree(vision_model=vision, text_model=text, logit_scale=scale()))
    head = vision.projection_head_vision.projection
    outputs = {
        "globals": head(normalize(vision.model(pixels(512)), dim=-1)),
        "patches": head(last_map(vision.model, pixels(512)).flatten(2).mT[:, ::16]),
        "texts": text.projection_head_text.projection(normalize(early_mean(text.model), dim=-1)),
    }
    return model, {"config.json": {"vision_type": "resnet_v1"}}, outputs


@case
def medclip() -> Any:
    vision = tree(model=resnet())
    vision.model.fc = nn.Linear(2048, 20, bias=False)
    text = tree(model=wide_bert(), projection_head=nn.Linear(128, 20, bias=False))
    model: Any = fill(tree(vision_model=vision, text_model=text, logit_scale=scale()))
    outputs = {
        "globals": vision.model(pixels(224)),
        "patches": vision.model.fc(last_map(vision.model, pixels(224)).flatten(2).mT),
        "texts": text.projection_head(early_mean(text.model)),
    }
    return model, {}, outputs


def biovil_head(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(width, 24, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 24, 1)
    )


def cxr_bert() -> nn.Module:
    head = tree(
        dense_to_hidden=nn.Linear(128, 24),
        LayerNorm=nn.LayerNorm(24, 1e-12),
        dense_to_output=nn.Linear(24, 24),
    )
    unused = tree(predictions=tree(bias=nn.Parameter(torch.zeros(24))))
    bert = transformers.BertModel(transformers.BertConfig(**WIDE), add_pooling_layer=False)
    return tree(bert=bert, cls=unused, cls_projection_head=head)


def biovil_texts(model: Any) -> Tensor:
    head = model.cls_projection_head
    token = read_bert(model.bert).last_hidden_state[:, 0]
    inner = head.LayerNorm(nn.functional.gelu(head.dense_to_hidden(token)))
    return head.dense_to_output(inner)


BIOVIL = {"config.json": WIDE | {"model_type": "cxr-bert", "projection_size": 24}}


@case
def biovil() -> Any:
    text = cxr_bert()
    image = {"encoder": tree(encoder=resnet()), "projector": tree(model=biovil_head(2048))}
    model: Any = fill(tree(**image, **dict(text.named_children())))
    patches = model.projector.model(last_map(model.encoder.encoder, pixels(480)))
    outputs = {"globals": patches.mean((2, 3)), "patches": patches.flatten(2).mT[:, ::16]}
    return model, BIOVIL, outputs | {"texts": biovil_texts(model)}


@case
def biovil_t() -> Any:
    text = cxr_bert()
    encoder = tree(
        encoder=resnet(),
        backbone_to_vit=nn.Conv2d(2048, 32, 1, bias=False),
        missing_previous_emb=nn.Parameter(torch.zeros(1, 32, 1, 1)),
        vit_pooler=tree(pos_drop=nn.Linear(2, 2)),  # of pairs of images alone
    )
    image = {"encoder": encoder, "projector": tree(model=biovil_head(64))}
    model: Any = fill(tree(**image, **dict(text.named_children())))
    current = encoder.backbone_to_vit(last_map(encoder.encoder, pixels(448)))
    missing = encoder.missing_previous_emb.repeat(2, 1, 14, 14)
    patches = model.projector.model(torch.cat([current, missing], dim=1))
    outputs = {"globals": patches.mean((2, 3)), "patches": patches.flatten(2).mT[:, ::16]}
    return model, BIOVIL, outputs | {"texts": biovil_texts(model)}


@case
def pmc_clip() -> Any:
    visual: Any = open_clip.modified_resnet.ModifiedResNet([1, 1, 1, 1], 20, 8, 224, 16)
    text = wide_bert()
    projection = nn.Parameter(torch.zeros(128, 20))
    parts = dict(visual.named_children()) | dict(text.named_children())
    model: Any = fill(tree(**parts, text_projection_layer=projection))
    outputs = {
        "globals": visual(pixels(224)),
        "patches": attention_patches(visual, pixels(224)),
        "texts": read_bert(text).pooler_output @ projection,
    }
    return model, {}, outputs


@case
def conch() -> Any:
    sizes = {"img_size": 448, "patch_size": 64, "embed_dim": 128, "depth": 2, "num_heads": 2}
    trunk = timm.create_model("vit_base_patch16_224", num_classes=0, **sizes)
    pool = AttentionalPooler(24, 128, 8, 1)
    visual = tree(
        trunk=trunk,
        attn_pool_contrast=pool,
        ln_contrast=nn.LayerNorm(24),
        proj_contrast=nn.Parameter(torch.zeros(24, 24)),
        attn_pool_caption=tree(ln_q=nn.LayerNorm(24)),
        ln_caption=nn.LayerNorm(24),
    )
    text = TextTransformer(127, 17, 128, 2, 2, output_dim=24, embed_cls=True, pad_id=0)
    decoder = tree(ln_final=nn.LayerNorm(24))
    model: Any = fill(tree(visual=visual, text=text, text_decoder=decoder, logit_scale=scale()))
    tokens = trunk.forward_features(pixels(448))
    each = torch.cat([pool(tokens[:, [p]]) for p in range(1, tokens.shape[1])], dim=1)
    outputs = {
        "globals": visual.ln_contrast(pool(tokens)[:, 0]) @ visual.proj_contrast,
        "patches": visual.ln_contrast(each) @ visual.proj_contrast,
        "texts": text(pad(CONCH_IDS, 127)),
    }
    return model, {}, outputs


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
