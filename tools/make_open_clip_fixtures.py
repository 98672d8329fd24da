"""Make the parity fixtures with the real open_clip, in an environment of its own.

Needs open_clip_torch, timm, transformers and safetensors; none of them but the last two is a
dependency of ogkd. `docs/evidence/parity.md` has the commands.

    python tools/make_open_clip_fixtures.py                            the committed fixtures
    python tools/make_open_clip_fixtures.py --full-size DIR --config F  one random model of F's size
    python tools/make_open_clip_fixtures.py --folder F --images DIR --out FILE   outputs of F itself
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import open_clip
import torch
from PIL import Image
from safetensors.torch import save_file
from torch.nn.functional import normalize

FIXTURES = Path(__file__).parents[1] / "tests" / "parity" / "fixtures"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    *("a", "an", "the", "of", "with", "photo", "scan", "image", "benign", "malignant", "tumor"),
    *("normal", "ultrasound", "chest", "ray", "grade", "shadow", "margin", "##s", "##al", "##ed"),
    *(".", ",", "-", "'", '"', "&", "0", "1", "2", "3", "4"),
]
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
TEXTS = [
    "a photo of a benign tumor.",
    "An  ULTRASOUND\tscan, with shadows",
    "chest X-ray",
    "Barrett\u2019s \u201cna\u00efve\u201d &amp; grade-3 \ufb01brosis \u0153dema",
    "",
    " ".join(["malignant margins of the scan"] * 80),
]
# pool, projection and the two text options as open_clip spells them; "timm" is what overrides
# the named network, to make it small.
CASES: dict[str, dict[str, Any]] = {
    "class_token_mlp": {
        "vision": {"timm_model_name": "vit_tiny_patch16_224", "timm_pool": "", "image_size": 48},
        "timm": {"patch_size": 16},
        "text": {"hf_proj_type": "mlp", "hf_pooler_type": "cls_last_hidden_state_pooler"},
        "context_length": 256,
    },
    "mean_linear": {
        "vision": {
            "timm_model_name": "vit_tiny_patch16_224",
            "timm_pool": "avg",
            "timm_proj_bias": True,
            "image_size": 32,
        },
        "timm": {"patch_size": 16, "qkv_bias": False},
        "text": {"hf_proj_type": "linear", "hf_pooler_type": "mean_pooler"},
    },
    "layer_scale": {
        "vision": {
            "timm_model_name": "vit_small_patch16_224",
            "timm_pool": "token",
            "timm_proj": "mlp",
            "image_size": 32,
        },
        "timm": {"patch_size": 16, "init_values": 1e-5},
        "text": {"hf_proj_type": None, "hf_pooler_type": "cls_pooler"},
        "embed_dim": 24,
    },
    "patch_14": {
        "vision": {
            "timm_model_name": "vit_small_patch14_dinov2",
            "timm_pool": "",
            "image_size": 42,
        },
        "timm": {"patch_size": 14, "init_values": 1e-5},
        "text": {"hf_proj_type": "linear", "hf_pooler_type": "mean_pooler"},
        "tokenizer_json": True,
        "half": True,
    },
    "norm_after_mean": {
        "vision": {
            "timm_model_name": "vit_tiny_patch16_224",
            "timm_pool": "avg",
            "timm_proj": "none",
            "image_size": 32,
        },
        "timm": {"patch_size": 16},
        "text": {"hf_proj_type": "linear", "hf_pooler_type": "mean_pooler"},
        "embed_dim": 24,
    },
    "trunk_head": {
        "vision": {
            "timm_model_name": "vit_tiny_patch16_224",
            "timm_pool": "token",
            "timm_proj": None,
            "image_size": 32,
        },
        "timm": {"patch_size": 16},
        "text": {"hf_proj_type": "mlp", "hf_pooler_type": "mean_pooler"},
    },
}


def randomise(model: torch.nn.Module, seed: int, *, half: bool = False) -> None:
    """Give every parameter its own noise: zeros and ones would hide a wrong mapping."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in model.named_parameters():
        noise = torch.randn(value.shape, generator=generator)
        if name == "logit_scale":
            value.data.fill_(4.0)
            continue
        if value.dim() >= 2 and "embed" not in name and "token" not in name:
            new = noise / value[0].numel() ** 0.5  # keeps the size of what passes through
        else:
            new = 0.3 * noise
            if name.lower().endswith((".gamma", "norm.weight", "norm1.weight", "norm2.weight")):
                new = new + 1.0
        value.data = new.half().float() if half else new


def write_config(folder: Path, case: dict[str, Any]) -> None:
    size = case["vision"]["image_size"]
    timm = {"img_size": size, "embed_dim": 24, "depth": 2, "num_heads": 3, **case["timm"]}
    context = case.get("context_length", 48)
    files = {
        "open_clip_config.json": {
            "model_cfg": {
                "embed_dim": case.get("embed_dim", 16),
                "vision_cfg": {"timm_proj": "linear", **case["vision"]},
                "text_cfg": {
                    "hf_model_name": "nobody/no-such-model",
                    "hf_tokenizer_name": "nobody/no-such-model",
                    "context_length": context,
                    **case["text"],
                },
            },
            "preprocess_cfg": {"mean": [0.5, 0.4, 0.3], "std": [0.3, 0.2, 0.25]},
        },
        "config.json": {
            "model_type": "bert",
            "hidden_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "intermediate_size": 48,
            "vocab_size": 120,  # more rows than words, as in BiomedCLIP
            "max_position_embeddings": context,
            "type_vocab_size": 2,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
        },
        "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "do_lower_case": True},
        "timm/config.json": {
            "architecture": case["vision"]["timm_model_name"],
            "model_args": timm,
            "pretrained_cfg": {"input_size": [3, size, size], "num_classes": 0},
        },
    }
    for name, value in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, indent=1) + "\n")
    vocabulary = [*SPECIAL, *WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")


def local_parts(folder: Path) -> dict[str, Any]:
    """The model's configuration with every name replaced by a place in `folder`."""
    config = json.loads((folder / "open_clip_config.json").read_text())["model_cfg"]
    vision, text = config["vision_cfg"], config["text_cfg"]
    if (folder / "timm" / "config.json").is_file():
        vision["timm_model_name"] = f"local-dir:{folder / 'timm'}"
    text["hf_model_name"] = text["hf_tokenizer_name"] = str(folder)
    text["hf_model_pretrained"] = False
    return dict(config)


def build(folder: Path, seed: int, *, half: bool = False) -> None:
    """Write random weights for the configuration in `folder`, as open_clip names them."""
    model = open_clip.model.CustomTextCLIP(**local_parts(folder))
    randomise(model, seed, half=half)
    state = {
        key: (value.half() if half else value).contiguous()
        for key, value in model.state_dict().items()
    }
    save_file(state, folder / "open_clip_model.safetensors")


def load(folder: Path) -> tuple[Any, Any, Any]:
    """Load a folder as open_clip itself does."""
    parts = local_parts(folder)
    model, preprocess = open_clip.create_model_from_pretrained(
        f"local-dir:{folder}",
        precision="fp32",
        vision_cfg=parts["vision_cfg"],
        text_cfg=parts["text_cfg"],
    )
    text = parts["text_cfg"]
    tokenizer = open_clip.tokenizer.HFTokenizer(
        str(folder), context_length=text.get("context_length", 77)
    )
    return model.eval(), preprocess, tokenizer


def image_outputs(model: Any, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
    visual = model.visual
    with torch.no_grad():
        tokens = visual.trunk.forward_features(pixels)[:, 1:]
        # fc_norm and head are identities unless timm itself pools or projects.
        patches = visual.head(visual.trunk.head(visual.trunk.fc_norm(tokens)))
        return {
            "globals": model.encode_image(pixels, normalize=True),
            "patches": normalize(patches, dim=-1),
        }


def text_outputs(model: Any, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Features of the padded ids, and of the texts that have padding once it is cut off."""
    lengths = (ids != 0).sum(dim=1)
    short = lengths < ids.shape[1]  # a text that fills the context leaves nothing to trim
    length = int(lengths[short].max())
    with torch.no_grad():
        padded = model.encode_text(ids, normalize=True)
        trimmed = model.encode_text(ids[short, :length], normalize=True)
    return {"ids": ids, "short": short, "texts_padded": padded, "texts_trimmed": trimmed}


def embedding_gradient(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """d(sum of features weighted 1, 2, 3, ...) / d(word embeddings), by open_clip's own parts."""
    text = model.text
    mask = (ids != 0).long()
    words = text.transformer.embeddings.word_embeddings(ids).detach().requires_grad_()
    hidden = text.transformer(inputs_embeds=words, attention_mask=mask)
    features = normalize(text.proj(text.pooler(hidden, mask)), dim=-1)
    weights = torch.arange(1, features.numel() + 1).view(features.shape) / features.numel()
    (gradient,) = torch.autograd.grad((features * weights).sum(), words)
    return gradient


def save(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    save_file({key: value.detach().contiguous() for key, value in tensors.items()}, path, metadata)


def versions() -> dict[str, str]:
    import timm
    import transformers

    return {
        "open_clip": open_clip.__version__,
        "timm": timm.__version__,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }


def make_fixtures() -> None:
    for seed, (name, case) in enumerate(CASES.items()):
        folder = FIXTURES / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_config(folder, case)
        build(folder, seed, half=case.get("half", False))
        model, _, tokenizer = load(folder)
        if case.get("tokenizer_json"):
            tokenizer.tokenizer.save_pretrained(folder)
            (folder / "vocab.txt").unlink(missing_ok=True)
        size = case["vision"]["image_size"]
        pixels = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(100 + seed))
        ids = tokenizer(TEXTS)
        tensors = {"pixels": pixels, **image_outputs(model, pixels), **text_outputs(model, ids)}
        tensors["logit_scale"] = model.logit_scale.exp()
        short = ids[:3, :12]
        tensors |= {"gradient_ids": short, "gradient": embedding_gradient(model, short)}
        save(folder / "expected.safetensors", tensors, {**versions(), "texts": json.dumps(TEXTS)})
        print(name, sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()))


def cpu_seconds(action: Callable[[], Any]) -> float:
    """The least of three runs, in seconds of this process: other programs do not count."""
    times = []
    with torch.no_grad():
        for _ in range(3):
            start = time.process_time()
            action()
            times.append(time.process_time() - start)
    return round(min(times), 3)


def make_full_size(folder: Path, config: Path) -> None:
    """One random model of a real configuration's size, too large to commit."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in config.iterdir():
        if file.suffix in (".json", ".txt"):
            shutil.copyfile(file, folder / file.name)
    build(folder, 0)
    model, _, tokenizer = load(folder)
    size = model.visual.image_size[0]
    pixels = torch.randn(8, 3, size, size, generator=torch.Generator().manual_seed(1))
    texts = [
        "this is a photo of chest X-ray",
        "a photo of a malignant tumor.",
        "brain MRI",
        "hematoxylin and eosin histopathology, high magnification, with atypical nuclei",
    ]
    ids = tokenizer(texts)
    length = int((ids != 0).sum(dim=1).max())
    seconds = {
        "images": cpu_seconds(lambda: image_outputs(model, pixels)) / 2,  # it runs the trunk twice
        "texts_padded": cpu_seconds(lambda: model.encode_text(ids)),
        "texts_trimmed": cpu_seconds(lambda: model.encode_text(ids[:, :length])),
    }
    tensors = {"pixels": pixels, **image_outputs(model, pixels), **text_outputs(model, ids)}
    metadata = {**versions(), "texts": json.dumps(texts), "seconds": json.dumps(seconds)}
    save(folder / "expected.safetensors", tensors, metadata)
    print(json.dumps({"seconds": seconds, "threads": torch.get_num_threads()}))


def make_outputs(folder: Path, images: list[Path], texts: list[str], out: Path) -> None:
    """What open_clip makes of image files and texts with the weights of `folder`."""
    model, preprocess, tokenizer = load(folder)
    pixels = torch.stack([preprocess(Image.open(path).convert("RGB")) for path in images])
    parts = [image_outputs(model, batch) for batch in pixels.split(16)]
    tensors = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    tensors |= {"pixels": pixels, **text_outputs(model, tokenizer(texts))}
    files = json.dumps([str(path) for path in images])
    save(out, tensors, {**versions(), "texts": json.dumps(texts), "files": files})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full-size", type=Path, help="write one random full-size model here")
    parser.add_argument("--config", type=Path, help="folder of its configuration and tokenizer")
    parser.add_argument("--folder", type=Path, help="an open_clip folder with real weights")
    parser.add_argument("--images", type=Path, help="images for it: every file below this folder")
    parser.add_argument("--texts", type=Path, help="texts for it, one per line")
    parser.add_argument("--out", type=Path, help="where its outputs go (safetensors)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.full_size:
        make_full_size(options.full_size.resolve(), options.config)
    elif options.folder:
        images = sorted(path for path in options.images.rglob("*") if path.is_file())
        texts = options.texts.read_text().splitlines() if options.texts else TEXTS
        make_outputs(options.folder.resolve(), images, texts, options.out)
    else:
        make_fixtures()


if __name__ == "__main__":
    main()
