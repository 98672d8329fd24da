"""Train the built-in vision-language model on phantoms, from nothing, on two cores.

    python tools/train_builtin.py

draws the training images, trains, and writes the model's folder. A stopped run goes on
where its last checkpoint was. Nothing of the held-out datasets and classes is used.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import CLIPConfig, CLIPModel

from builtin_data import GRID, INPUT, Pool, build_pools, crop
from builtin_text import BOS, EOS, MAX_TOKENS, PAD, UNK, build_tokenizer
from captions import Described, Fact, all_facts, write
from evaluate_builtin import zero_shot_table
from lexicon import PHRASES
from ogkd.files import folder_atomically, write_atomically, write_json, write_text

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "src" / "ogkd" / "backbones" / "builtin_data"
MEAN, STD = (0.45, 0.38, 0.37), (0.27, 0.24, 0.24)


def make_config(vocabulary: int) -> CLIPConfig:
    text = {
        "vocab_size": vocabulary, "hidden_size": 160, "intermediate_size": 480,
        "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": MAX_TOKENS,
        "hidden_act": "gelu", "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3,
    }  # fmt: skip
    vision = {
        "image_size": INPUT, "patch_size": INPUT // GRID, "hidden_size": 192,
        "intermediate_size": 576, "num_hidden_layers": 5, "num_attention_heads": 4,
        "hidden_act": "gelu",
    }  # fmt: skip
    return CLIPConfig(text_config=text, vision_config=vision, projection_dim=160)


class Trainee(nn.Module):
    """The model to keep, and two heads that only help it to learn."""

    def __init__(self, config: CLIPConfig, keys: dict[str, list[str]]) -> None:
        super().__init__()
        self.clip = CLIPModel(config)
        self.keys = keys
        self.facts = nn.ModuleDict(
            {str(i): nn.Linear(config.projection_dim, len(v)) for i, v in enumerate(keys.values())}
        )
        self.where = nn.Linear(config.projection_dim, 1)

    def images(self, pixels: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Projected class token [B, d] and patches [B, K, d], as the adapter computes them.

        Only the patches in `kept` [B, K] are looked at: half of them for most of the
        training, which halves its cost.
        """
        vision = self.clip.vision_model
        tokens = vision.embeddings(pixels)
        rows = torch.arange(len(tokens))[:, None]
        tokens = torch.cat([tokens[:, :1], tokens[rows, kept + 1]], dim=1)
        tokens = vision.encoder(inputs_embeds=vision.pre_layrnorm(tokens)).last_hidden_state
        projected = self.clip.visual_projection(vision.post_layernorm(tokens))
        return projected[:, 0], projected[:, 1:]

    def texts(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Projected texts [B, d]; short texts go together, for padding is work for nothing."""
        lengths = mask.sum(1)
        order = lengths.argsort(stable=True)
        parts = []
        for rows in order.chunk(4):
            longest = int(lengths[rows].max())
            part = self.clip.text_model(input_ids=ids[rows, :longest]).pooler_output
            parts.append(part)
        pooled = torch.cat(parts)[order.argsort()]
        return self.clip.text_projection(pooled)


@dataclass
class Batch:
    pixels: Tensor
    where: Tensor  # [B, K] part of each kept patch that the finding covers
    kept: Tensor  # [B, K] which patches the model looks at
    ids: Tensor
    mask: Tensor
    agrees: Tensor  # [captions, images] 1 where all that the caption says is true of the image
    labels: list[Tensor]  # per key of facts: value per image, -1 where it does not apply
    stated: list[Tensor]  # the same per caption, -1 where it does not say


class Source:
    """Batches by step number: step k is the same whatever was run before."""

    def __init__(self, pools: list[Pool], tokenizer: Tokenizer, seed: int, size: int) -> None:
        self.pools, self.tokenizer, self.seed, self.size = pools, tokenizer, seed, size
        self.keys = _fact_keys(pools)
        self.columns = {fact: i for i, fact in enumerate(_flat(self.keys))}

    def batch(self, step: int, keep: int = GRID * GRID) -> Batch:
        rng = np.random.default_rng([self.seed, step])
        # Few families per batch: the negatives are then of the same kind, and hard.
        families = rng.choice(len(self.pools), 4, replace=False)
        views = []
        for place in range(self.size):
            pool = self.pools[families[place % 4]]
            views.append(crop(pool, int(rng.integers(len(pool.images))), rng))
        images = [view[2] for view in views]
        written = [write(image, rng) for image in images]
        texts = [_disturb(text, rng, self.tokenizer) for text, _ in written]
        encoded = self.tokenizer.encode_batch(texts)
        kept = torch.from_numpy(rng.random((self.size, GRID * GRID)).argsort(1)[:, :keep])
        where = torch.from_numpy(np.stack([view[1] for view in views])).flatten(1)
        pixels = torch.from_numpy(np.stack([view[0] for view in views])).permute(0, 3, 1, 2)
        return Batch(
            pixels=normalise(pixels),
            where=where.gather(1, kept),
            kept=kept,
            ids=torch.tensor([e.ids for e in encoded]),
            mask=torch.tensor([e.attention_mask for e in encoded]),
            agrees=self._agreement(images, [facts for _, facts in written]),
            labels=self._labels([all_facts(image) for image in images]),
            stated=self._labels([facts for _, facts in written]),
        )

    def _agreement(self, images: list[Described], said: list[frozenset[Fact]]) -> Tensor:
        true = torch.zeros(len(images), len(self.columns))
        for row, image in enumerate(images):
            true[row, [self.columns[fact] for fact in all_facts(image)]] = 1
        told = torch.zeros(len(said), len(self.columns))
        for row, facts in enumerate(said):
            told[row, [self.columns[fact] for fact in facts]] = 1
        return (told @ true.T >= told.sum(1, keepdim=True) - 0.5).float()

    def _labels(self, told: list[frozenset[Fact]]) -> list[Tensor]:
        known = [dict(facts) for facts in told]
        return [
            torch.tensor([values.index(facts[key]) if key in facts else -1 for facts in known])
            for key, values in self.keys.items()
        ]


def _fact_keys(pools: list[Pool]) -> dict[str, list[str]]:
    values: dict[str, set[str]] = {}
    for key, value in PHRASES:
        values.setdefault(key, set()).add(value)
    for pool in pools:
        for pair in pool.described:
            for key, value in all_facts(pair[0]):
                values.setdefault(key, set()).add(value)
    return {key: sorted(found) for key, found in sorted(values.items())}


def _flat(keys: dict[str, list[str]]) -> list[Fact]:
    return [(key, value) for key, values in keys.items() for value in values]


def _disturb(text: str, rng: np.random.Generator, tokenizer: Tokenizer) -> str:
    """Sometimes put in a word that means nothing here, so that unknown words do little harm."""
    if rng.random() > 0.2:
        return text
    words = text.split(" ")
    for _ in range(int(rng.integers(1, 4))):
        stray = tokenizer.id_to_token(int(rng.integers(4, tokenizer.get_vocab_size())))
        words.insert(int(rng.integers(len(words) + 1)), stray.removeprefix("##"))
    return " ".join(words)


def normalise(pixels: Tensor) -> Tensor:
    mean, std = torch.tensor(MEAN).view(1, 3, 1, 1), torch.tensor(STD).view(1, 3, 1, 1)
    return (pixels.float() / 255 - mean) / std


def contrast(images: Tensor, texts: Tensor, agrees: Tensor, scale: Tensor) -> Tensor:
    """Soft-target InfoNCE both ways; chance matches count as matches."""
    logits = scale * texts @ images.T  # [captions, images]
    by_text = -(F.log_softmax(logits, 1) * agrees / agrees.sum(1, keepdim=True)).sum(1).mean()
    columns = agrees / agrees.sum(0, keepdim=True)
    by_image = -(F.log_softmax(logits, 0) * columns).sum(0).mean()
    return (by_text + by_image) / 2


def fact_loss(model: Trainee, features: Tensor, labels: list[Tensor]) -> Tensor:
    """Read each fact off the features. Images and texts share the readers: that aligns them."""
    parts = [features.new_zeros(())]
    for head, wanted in zip(model.facts.values(), labels, strict=True):
        rows = (wanted >= 0).nonzero()[:, 0]
        if len(rows):
            loss = F.cross_entropy(head(features[rows]), wanted[rows], reduction="sum")
            parts.append(loss / len(wanted))
    return torch.stack(parts).sum()


def losses(model: Trainee, batch: Batch) -> dict[str, Tensor]:
    image, patches = model.images(batch.pixels, batch.kept)
    said = model.texts(batch.ids, batch.mask)
    texts = F.normalize(said, dim=-1)
    scale = model.clip.logit_scale.exp().clamp(max=100)
    # Patches of the finding (all of them where there is none) should say what the text says.
    weight = (batch.where > 0.25).float()
    weight = torch.where(weight.sum(1, keepdim=True) > 0, weight, torch.ones_like(weight))
    unit = F.normalize(patches, dim=-1)
    local = (unit * weight[..., None]).sum(1) / weight.sum(1, keepdim=True)
    where = F.binary_cross_entropy_with_logits(model.where(patches)[..., 0], batch.where)
    return {
        "global": contrast(F.normalize(image, dim=-1), texts, batch.agrees, scale),
        "local": 0.4 * contrast(F.normalize(local, dim=-1), texts, batch.agrees, scale),
        "facts": 0.4 * fact_loss(model, image, batch.labels),
        "stated": 1.0 * fact_loss(model, said, batch.stated),
        "where": 1.0 * where,
    }


def make_optimizer(model: Trainee, lr: float) -> torch.optim.AdamW:
    plain = [p for n, p in model.named_parameters() if p.ndim < 2 or "position" in n]
    decayed = [p for n, p in model.named_parameters() if not (p.ndim < 2 or "position" in n)]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98))


def rate(step: int, steps: int, peak: float, warmup: int = 100) -> float:
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (0.01 + 0.99 * 0.5 * (1 + np.cos(np.pi * (step - warmup) / (steps - warmup))))


def save_checkpoint(path: Path, model: Trainee, optimizer: torch.optim.AdamW, step: int) -> None:
    tensors = {f"model.{k}": v.contiguous() for k, v in model.state_dict().items()}
    for i, state in optimizer.state_dict()["state"].items():
        tensors |= {f"adam.{i}.{k}": v.contiguous().clone() for k, v in state.items()}
    with write_atomically(path) as aside:
        save_file(tensors, aside, metadata={"step": str(step)})


def load_checkpoint(path: Path, model: Trainee, optimizer: torch.optim.AdamW) -> None:
    tensors = load_file(path)
    model.load_state_dict(
        {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
    )
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("adam."):
            _, index, key = name.split(".")
            state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


def export(out: Path, model: Trainee, tokenizer: Tokenizer) -> None:
    """Write the folder that the package loads; the model card beside it is kept."""
    card = out / "MODEL_CARD.md"
    text = card.read_text(encoding="utf-8") if card.exists() else ""
    config = json.loads(model.clip.config.to_json_string(use_diff=True))
    config["architectures"] = ["CLIPModel"]
    weights = {
        k: v.detach().to(torch.float16 if v.is_floating_point() else v.dtype).contiguous()
        for k, v in model.clip.state_dict().items()
    }
    with folder_atomically(out) as aside:
        save_file(weights, aside / "model.safetensors", metadata={"format": "pt"})
        write_json(aside / "config.json", config)
        tokenizer.save(str(aside / "tokenizer.json"))
        write_json(
            aside / "tokenizer_config.json",
            {
                "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": MAX_TOKENS,
                "pad_token": PAD, "unk_token": UNK, "bos_token": BOS, "eos_token": EOS,
            },
        )  # fmt: skip
        write_json(
            aside / "preprocessor_config.json",
            {
                "image_processor_type": "CLIPImageProcessor", "do_convert_rgb": True,
                "do_resize": True, "size": {"shortest_edge": INPUT}, "resample": 3,
                "do_center_crop": True, "crop_size": {"height": INPUT, "width": INPUT},
                "do_rescale": True, "rescale_factor": 1 / 255,
                "do_normalize": True, "image_mean": list(MEAN), "image_std": list(STD),
            },
        )  # fmt: skip
        if text:
            write_text(aside / "MODEL_CARD.md", text)


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    work = options.work
    pools = build_pools(work / "images", options.images, options.seed, processes=options.threads)
    tokenizer = build_tokenizer()
    source = Source(pools, tokenizer, options.seed, options.batch)
    model = Trainee(make_config(tokenizer.get_vocab_size()), source.keys)
    optimizer = make_optimizer(model, options.lr)
    log = work / "log.jsonl"
    checkpoint = work / "checkpoint.safetensors"
    done = _resume(checkpoint, model, optimizer, options)
    size = sum(p.numel() for p in model.clip.parameters())
    print(f"{size / 1e6:.2f} M parameters, vocabulary {tokenizer.get_vocab_size()}", flush=True)
    clock = time.monotonic()
    for step in range(done, options.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, options.steps, options.lr)
        model.train()
        half = step < options.whole * options.steps
        parts = losses(model, source.batch(step, GRID * GRID // 2 if half else GRID * GRID))
        total = torch.stack(list(parts.values())).sum()
        optimizer.zero_grad()
        total.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 20 == 0:
            seconds = (time.monotonic() - clock) / (step + 1 - done)
            note = {"step": step + 1, "seconds_per_step": round(seconds, 3)}
            note |= {k: round(v.item(), 4) for k, v in parts.items()}
            note["scale"] = round(model.clip.logit_scale.exp().item(), 2)
            _note(log, note)
        if (step + 1) % options.every == 0 or step + 1 == options.steps:
            save_checkpoint(checkpoint, model, optimizer, step + 1)
            model.eval()
            table = zero_shot_table(model.clip, tokenizer, per_class=20, stream=1)
            _note(log, {"step": step + 1, "zero_shot": table})
    model.eval()
    export(options.out, model, tokenizer)
    print(f"wrote {options.out}", flush=True)


def _resume(
    path: Path, model: Trainee, optimizer: torch.optim.AdamW, options: argparse.Namespace
) -> int:
    if not path.exists():
        return 0
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        step = int(file.metadata()["step"])
    load_checkpoint(path, model, optimizer)
    print(f"going on from step {step} of {options.steps}", flush=True)
    return step


def _note(log: Path, note: dict[str, object]) -> None:
    line = json.dumps(note)
    print(line, flush=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--whole", type=float, default=0.85, help="part with half the patches")
    parser.add_argument("--images", type=int, default=3000, help="per dataset")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--every", type=int, default=200, help="steps between checkpoints")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "builtin")
    parser.add_argument("--out", type=Path, default=OUT)
    return parser.parse_args()


if __name__ == "__main__":
    main()
