"""Train the built-in vision-language model on phantoms, on two cores.

    python tools/train_builtin.py
    python tools/train_builtin.py --start-from FOLDER --steps 600 --lr 3e-4

draws the training images, trains, and writes the model's folder: the first from nothing, the
second with the weights of a model that this command wrote before. A stopped run goes on
where its last checkpoint was. Nothing of the held-out datasets and classes is used.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from builtin_vlm.batches import Source
from builtin_vlm.data import GRID, build_pools
from builtin_vlm.losses import losses
from builtin_vlm.model import Trainee, make_config, start_from_principal_patches
from builtin_vlm.storage import export, load_checkpoint, load_weights, save_checkpoint
from builtin_vlm.text import build_tokenizer
from evaluate_builtin import zero_shot_table

ROOT = Path(__file__).resolve().parent.parent
HEADS, HEADS_LR = 100, 3e-3
OUT = ROOT / "src" / "ogkd" / "backbones" / "builtin_data"


def make_optimizer(model: Trainee, lr: float) -> torch.optim.AdamW:
    plain = [p for n, p in model.named_parameters() if p.ndim < 2 or "position" in n]
    decayed = [p for n, p in model.named_parameters() if not (p.ndim < 2 or "position" in n)]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98))


def rate(step: int, steps: int, peak: float, warmup: int = 100) -> float:
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (0.01 + 0.99 * 0.5 * (1 + np.cos(np.pi * (step - warmup) / (steps - warmup))))


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    work = options.work
    pools = build_pools(work / "images", options.images, options.seed, processes=options.threads)
    tokenizer = build_tokenizer()
    source = Source(pools, tokenizer, options.seed, options.batch, options.favour)
    model = Trainee(make_config(tokenizer.get_vocab_size()), source.keys)
    if options.start_from:
        load_weights(options.start_from, model, tokenizer)
    else:
        start_from_principal_patches(model.clip, pools, options.seed)
    optimizer = make_optimizer(model, options.lr)
    log = work / "log.jsonl"
    checkpoint = work / "checkpoint.safetensors"
    done = load_checkpoint(checkpoint, model, optimizer)
    size = sum(p.numel() for p in model.clip.parameters())
    print(f"{size / 1e6:.2f} M parameters, vocabulary {tokenizer.get_vocab_size()}")
    print(f"steps {done} to {options.steps}", flush=True)
    clock = time.monotonic()
    # New helper heads would disturb trained weights: at first only the heads learn.
    heads = HEADS if options.start_from else 0
    for step in range(done, options.steps):
        model.clip.requires_grad_(step >= heads)
        lr = rate(step - heads, options.steps - heads, options.lr) if step >= heads else HEADS_LR
        for group in optimizer.param_groups:
            group["lr"] = lr
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


def _note(log: Path, note: dict[str, object]) -> None:
    line = json.dumps(note)
    print(line, flush=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=3200)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--whole", type=float, default=0.88, help="part with half the patches")
    parser.add_argument("--images", type=int, default=3000, help="per dataset")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--every", type=int, default=350, help="steps between checkpoints")
    parser.add_argument("--start-from", type=Path, help="folder of a model to train further")
    parser.add_argument(
        "--favour", nargs="*", default=[], metavar="DATASET", help="draw these four times as often"
    )
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "builtin")
    parser.add_argument("--out", type=Path, default=OUT)
    return parser.parse_args()


if __name__ == "__main__":
    main()
