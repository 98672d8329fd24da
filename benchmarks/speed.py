"""How much faster this is than a plain loop that does what the released code does.

Both run in this process, turn by turn, on BiomedCLIP's architecture at full size with random
weights; processor seconds of one thread, so that a busy machine does little harm. Prints JSON;
`--table` turns a JSON file into Markdown. Whole runs: whole_run.py.

    python benchmarks/speed.py --classes 4 --classes 8 --out runs/speed.json
    python benchmarks/speed.py --table runs/speed.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from biomedclip_size import WORDS, make_backbone
from ogkd.backbones._towers import TowersBackbone
from ogkd.backbones.base import TextDropout
from ogkd.core.batches import Batch
from ogkd.core.prompting import ContextConfig, PromptLearner
from ogkd.core.training import train_step
from ogkd.files import write_json
from ogkd.methods.ogkd import OGKDConfig, OGKDObjective
from plain_loop import PlainLoop

NAMES = ["glioma tumor", "kidney stone", "normal brain", "cyst kidney"]
NAMES += ["pituitary tumor", "normal tissue", "meningioma tumor", "smooth lesion"]
CONFIG = OGKDConfig(top_ratio=0.4, lambda_gad=1.75, lambda_lgd=0.05, lambda_sccm=0.5, gamma=0.5)
SEEDS = (1, 3, 10)
SHOTS, EPOCHS, BATCH = 16, 100, 4
STEPS = 3  # of ours against one of the plain loop's, which takes as long as a dozen


def make_bank(classes: int, count: int = 50) -> list[list[str]]:
    """Sentences of 10 to 30 words, which is about the length of real prompts."""
    rng = np.random.default_rng(0)
    return [
        [" ".join(rng.choice(WORDS, rng.integers(10, 30))) + "." for _ in range(count)]
        for _ in range(classes)
    ]


def clock(work: Callable[[], Any]) -> float:
    """Processor seconds of a piece of work."""
    began = time.process_time()
    work()
    return time.process_time() - began


class Ours:
    """The package's own step for S seeds, on features that are computed once."""

    def __init__(
        self, backbone: TowersBackbone, names: list[str], bank: list[list[str]], seeds: int
    ) -> None:
        features = [backbone.encode_texts(rows) for rows in bank]
        self.learner = PromptLearner(backbone, names, ContextConfig())
        self.objective = OGKDObjective(CONFIG, features, backbone.logit_scale, "cpu")
        start = self.learner.initial_context(torch.Generator())
        self.contexts = torch.stack([start] * seeds).requires_grad_()
        self.optimiser = torch.optim.SGD(
            [self.contexts], lr=2.5e-3, momentum=0.9, weight_decay=5e-4
        )
        self.dropout = TextDropout(range(seeds))

    def step(self, batch: Batch, *, dropout: bool = True) -> dict[str, float]:
        """One step of all seeds."""
        terms = train_step(
            self.learner,
            self.objective,
            self.contexts,
            self.optimiser,
            batch,
            self.dropout if dropout else None,
        )
        return {name: float(value.detach()[0]) for name, value in terms.items()}


def cached_batch(
    backbone: TowersBackbone, pixels: Tensor, labels: Tensor, seeds: int, *, half: bool
) -> Batch:
    """What the store would give for these crops."""
    features = backbone.encode_images(pixels)
    assert features.patches is not None
    patches = features.patches.half().float() if half else features.patches
    return Batch(
        features.globals.expand(seeds, -1, -1),
        labels.expand(seeds, -1),
        patches.expand(seeds, -1, -1, -1),
    )


def agreement(
    plain: PlainLoop, backbone: TowersBackbone, names: list[str], bank: list[list[str]]
) -> dict[str, float]:
    """Largest difference of any loss term over five steps on the same crops, no dropout."""
    exact, half = (Ours(backbone, names, bank, 1) for _ in range(2))
    worst = {"float32": 0.0, "patches in half precision": 0.0}
    side = backbone.preprocessing.size
    for step in range(5):
        generator = torch.Generator().manual_seed(step)
        pixels = torch.randn(BATCH, 3, side, side, generator=generator)
        labels = torch.randint(len(names), (BATCH,), generator=generator)
        expected = plain.step(pixels, labels, dropout=False)
        for kind, ours, rounded in (
            ("float32", exact, False),
            ("patches in half precision", half, True),
        ):
            batch = cached_batch(backbone, pixels, labels, 1, half=rounded)
            found = ours.step(batch, dropout=False)
            differences = [abs(found[name] - value) for name, value in expected.items()]
            worst[kind] = max(worst[kind], *differences)
    return worst


def measure(
    backbone: TowersBackbone,
    classes: int,
    prompts: int,
    rounds: int,
    together: Sequence[int] = SEEDS,
) -> dict[str, Any]:
    """All timings at one number of classes."""
    names, bank = NAMES[:classes], make_bank(classes, prompts)
    result: dict[str, Any] = {"classes": classes, "prompts": prompts, "rounds": rounds}
    texts = [text for rows in bank for text in rows]
    plain = PlainLoop(backbone, names, bank, CONFIG)
    ours_start = [clock(lambda: backbone.encode_texts(texts))]
    plain_start = clock(plain.start_up)
    ours_start.append(clock(lambda: backbone.encode_texts(texts)))
    result["start-up s"] = {"plain": plain_start, "ours": statistics.median(ours_start)}
    result["start-up ratio"] = plain_start / statistics.median(ours_start)
    if together == SEEDS:
        result["largest loss difference"] = agreement(plain, backbone, names, bank)

    pixels = torch.randn(BATCH, 3, 224, 224)
    labels = torch.arange(BATCH) % classes
    ways = {f"{seeds} seeds": (Ours(backbone, names, bank, seeds), seeds) for seeds in together}
    batches = {
        f"{seeds} seeds": cached_batch(backbone, pixels, labels, seeds, half=True)
        for seeds in together
    }
    ways["auto"] = Ours(backbone, names, bank, 1), 1
    batches["auto"] = full_batch(batches["1 seeds"], classes)
    plain_steps: list[float] = []
    our_steps: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(rounds + 1):
        plain_seconds = clock(lambda: plain.step(pixels, labels))
        if turn:  # the first turn warms up
            plain_steps.append(plain_seconds)
        for way, (ours, seeds) in ways.items():
            dropout = way != "auto"

            def step(o: Ours = ours, w: str = way, d: bool = dropout) -> None:
                o.step(batches[w], dropout=d)

            step()  # the plain step has emptied the processor's caches
            seconds = clock(lambda s=step: [s() for _ in range(STEPS)])
            if turn:
                our_steps[way].append(seconds / STEPS / seeds)
    result["step s"] = {"plain": statistics.median(plain_steps)} | {
        way: statistics.median(times) for way, times in our_steps.items()
    }
    result["step ratio"] = {
        way: statistics.median(p / o for p, o in zip(plain_steps, times, strict=True))
        for way, times in our_steps.items()
    }
    return result


def full_batch(batch: Batch, classes: int) -> Batch:
    """All images of 16 shots, as `auto` takes them in each step; the same few, repeated."""
    assert batch.patches is not None
    times = SHOTS * classes // BATCH
    parts = batch.globals, batch.labels, batch.patches
    return Batch(*(torch.cat([part] * times, dim=1) for part in parts))


def to_table(report: dict[str, Any], auto_steps: int) -> str:
    """The report as Markdown; `auto_steps` is what `auto` takes on real images."""
    lines = [f"| | {' | '.join(str(r['classes']) + ' classes' for r in report['runs'])} |"]
    lines.append("|---" * (len(report["runs"]) + 1) + "|")

    def row(label: str, pick: Callable[[dict[str, Any]], str]) -> None:
        lines.append(f"| {label} | {' | '.join(pick(run) for run in report['runs'])} |")

    def training(run: dict[str, Any]) -> str:
        steps = SHOTS * run["classes"] // BATCH * EPOCHS
        ratio = run["step ratio"]["auto"] * steps / auto_steps
        return f"{steps:,} steps against {auto_steps} (**{ratio:.0f}x**)"

    row("start-up of the text side, plain", lambda r: f"{r['start-up s']['plain']:.1f} s")
    row("start-up of the text side, ours", lambda r: f"{r['start-up s']['ours']:.1f} s")
    row("ratio", lambda r: f"**{r['start-up ratio']:.1f}x**")
    row("step, plain", lambda r: f"{r['step s']['plain']:.2f} s")
    for way in report["runs"][0]["step ratio"]:
        label = "`auto`, all images" if way == "auto" else f"{way} together, per seed"
        row(
            f"step, ours, {label}",
            lambda r, w=way: f"{1000 * r['step s'][w]:.0f} ms (**{r['step ratio'][w]:.1f}x**)",
        )
    row("training, `auto` against the plain loop", training)
    if "largest loss difference" not in report["runs"][0]:
        return "\n".join(lines)
    row("largest loss difference", lambda r: f"{r['largest loss difference']['float32']:.1e}")
    row(
        "the same, patches in half precision",
        lambda r: f"{r['largest loss difference']['patches in half precision']:.1e}",
    )
    return "\n".join(lines)


def main() -> None:
    """Measure or print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--classes", type=int, action="append")
    parser.add_argument("--prompts", type=int, default=50, help="of each class")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="one seed, losses not compared")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="print a JSON report as Markdown")
    parser.add_argument("--auto-steps", type=int, default=100, help="that auto takes, for --table")
    arguments = parser.parse_args()
    if arguments.table:
        print(to_table(json.loads(arguments.table.read_text()), arguments.auto_steps))
        return
    torch.set_num_threads(arguments.threads)
    backbone = make_backbone()
    report: dict[str, Any] = {
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "torch": torch.__version__,
        "threads": arguments.threads,
        "runs": [],
    }
    for classes in arguments.classes or [4, 8]:
        together = (1,) if arguments.quick else SEEDS
        found = measure(backbone, classes, arguments.prompts, arguments.rounds, together)
        report["runs"].append(found)
        print(json.dumps(found, indent=2), flush=True)
        if arguments.out:
            write_json(arguments.out, report)


if __name__ == "__main__":
    main()
