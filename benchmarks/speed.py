"""How much faster this is than a plain loop that does what the released code does.

Both run in this process, turn by turn, on BiomedCLIP's architecture at full size with random
weights. Prints JSON; `--table` turns a JSON file into Markdown.

    python benchmarks/speed.py --classes 4 --classes 8 --out runs/speed.json
    python benchmarks/speed.py --table runs/speed.json
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from biomedclip_size import WORDS, make_backbone
from ogkd.backbones.base import TextDropout
from ogkd.backbones.open_clip_format import OpenClipBackbone
from ogkd.core.prompting import ContextConfig, PromptLearner
from ogkd.core.training import Batch, train_step
from ogkd.files import write_json
from ogkd.methods.ogkd import OGKDConfig, OGKDObjective
from plain_loop import PlainLoop

NAMES = ["glioma tumor", "kidney stone", "normal brain", "cyst kidney"]
NAMES += ["pituitary tumor", "normal tissue", "meningioma tumor", "smooth lesion"]
CONFIG = OGKDConfig(top_ratio=0.4, lambda_gad=1.75, lambda_lgd=0.05, lambda_sccm=0.5, gamma=0.5)
SEEDS = (1, 3, 10)
SHOTS, EPOCHS, TEST_IMAGES, BATCH = 16, 100, 200, 4
STEPS = 3  # of ours against one of the plain loop's, which takes as long as a dozen


def make_bank(classes: int, count: int = 50) -> list[list[str]]:
    """Sentences of 10 to 30 words, which is about the length of real prompts."""
    rng = np.random.default_rng(0)
    return [
        [" ".join(rng.choice(WORDS, rng.integers(10, 30))) + "." for _ in range(count)]
        for _ in range(classes)
    ]


def clock(work: Callable[[], Any]) -> float:
    """Seconds that a piece of work takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Ours:
    """The package's own step for S seeds, on features that are computed once."""

    def __init__(
        self, backbone: OpenClipBackbone, names: list[str], bank: list[list[str]], seeds: int
    ) -> None:
        features = [backbone.encode_texts(rows) for rows in bank]
        self.learner = PromptLearner(backbone, names, ContextConfig())
        self.objective = OGKDObjective([CONFIG] * seeds, features, backbone.logit_scale, "cpu")
        start = self.learner.initial_context(torch.Generator())
        self.contexts = torch.stack([start] * seeds).requires_grad_()
        self.optimiser = torch.optim.SGD(
            [self.contexts], lr=2.5e-3, momentum=0.9, weight_decay=5e-4
        )
        generators = [torch.Generator().manual_seed(seed) for seed in range(seeds)]
        self.dropout = TextDropout(generators)

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
    backbone: OpenClipBackbone, pixels: Tensor, labels: Tensor, seeds: int, *, half: bool
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
    plain: PlainLoop, backbone: OpenClipBackbone, names: list[str], bank: list[list[str]]
) -> Any:
    """Largest difference of any loss term over five steps on the same crops, no dropout."""
    exact, half = (Ours(backbone, names, bank, 1) for _ in range(2))
    worst = {"float32": 0.0, "patches in half precision": 0.0}
    for step in range(5):
        generator = torch.Generator().manual_seed(step)
        pixels = torch.randn(BATCH, 3, 224, 224, generator=generator)
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


def measure(backbone: OpenClipBackbone, classes: int, rounds: int) -> dict[str, Any]:
    """All timings at one number of classes."""
    names, bank = NAMES[:classes], make_bank(classes)
    result: dict[str, Any] = {"classes": classes, "rounds": rounds}
    texts = [text for rows in bank for text in rows]
    plain = PlainLoop(backbone, names, bank, CONFIG)
    ours_start = [clock(lambda: backbone.encode_texts(texts))]
    plain_start = clock(plain.start_up)
    ours_start.append(clock(lambda: backbone.encode_texts(texts)))
    result["start-up s"] = {"plain": plain_start, "ours": statistics.median(ours_start)}
    result["start-up ratio"] = plain_start / statistics.median(ours_start)
    result["largest loss difference"] = agreement(plain, backbone, names, bank)

    pixels = torch.randn(BATCH, 3, 224, 224)
    labels = torch.arange(BATCH) % classes
    runs = {seeds: Ours(backbone, names, bank, seeds) for seeds in SEEDS}
    batches = {seeds: cached_batch(backbone, pixels, labels, seeds, half=True) for seeds in SEEDS}
    plain_steps: list[float] = []
    our_steps: dict[int, list[float]] = {seeds: [] for seeds in SEEDS}
    for turn in range(rounds + 1):
        plain_seconds = clock(lambda: plain.step(pixels, labels))
        if turn:
            plain_steps.append(plain_seconds)
        for seeds in SEEDS:
            runs[seeds].step(batches[seeds])  # the plain step has emptied the processor's caches
            together = clock(lambda s=seeds: [runs[s].step(batches[s]) for _ in range(STEPS)])
            if turn:  # the first turn warms up
                our_steps[seeds].append(together / STEPS / seeds)
    result["step s"] = {"plain": statistics.median(plain_steps)} | {
        f"ours, {seeds} seeds (per seed)": statistics.median(our_steps[seeds]) for seeds in SEEDS
    }
    result["step ratio"] = {
        f"{seeds} seeds": statistics.median(
            p / o for p, o in zip(plain_steps, our_steps[seeds], strict=True)
        )
        for seeds in SEEDS
    }
    result["end to end"] = end_to_end(backbone, plain, result, classes)
    return result


def end_to_end(
    backbone: OpenClipBackbone, plain: PlainLoop, result: dict[str, Any], classes: int
) -> dict[str, Any]:
    """16 shots, 100 epochs, 200 test images: extrapolated from measured parts only."""
    test = torch.randn(50, 3, 224, 224)
    plain_test = clock(lambda: plain.test_batch(test)) * TEST_IMAGES / len(test)
    ours_rate = len(test) / clock(lambda: backbone.encode_images(test, patches=False))
    patch_rate = 24 / clock(lambda: backbone.encode_images(test[:24]))
    steps = SHOTS * classes // BATCH * EPOCHS
    whole = result["start-up s"]["plain"] + steps * result["step s"]["plain"] + plain_test
    found: dict[str, Any] = {
        "steps": steps,
        "plain s": whole,
        "images/s": {"plain test": TEST_IMAGES / plain_test, "ours": ours_rate}
        | {"ours with patches": patch_rate},
    }
    for views in (1, 4, 16):
        for seeds in (1, 3):
            seconds = (
                result["start-up s"]["ours"] / seeds
                + SHOTS * classes * views / patch_rate
                + steps * result["step s"][f"ours, {seeds} seeds (per seed)"]
                + TEST_IMAGES / ours_rate / seeds
            )
            key = f"{views} views, {seeds} seeds"
            found[f"ours s, {key}"] = seconds
            found[f"ratio, {key}"] = whole / seconds
    return found


def peak_memory(kind: str, classes: int) -> float:
    """Peak resident GiB of two steps, in this process."""
    backbone = make_backbone()
    names, bank = NAMES[:classes], make_bank(classes, count=8)
    pixels, labels = torch.randn(BATCH, 3, 224, 224), torch.arange(BATCH) % classes
    if kind == "plain":
        plain = PlainLoop(backbone, names, bank, CONFIG)
        plain.start_up()
        for _ in range(2):
            plain.step(pixels, labels)
    else:
        seeds = int(kind)
        ours = Ours(backbone, names, bank, seeds)
        batch = cached_batch(backbone, pixels, labels, seeds, half=True)
        for _ in range(2):
            ours.step(batch)
    return peak_gib()


def peak_gib() -> float:
    """The process's own peak; ru_maxrss would start at that of the process which started it."""
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return float(line.split()[1]) / 1024**2
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1024**2


def memories(classes: int) -> dict[str, float]:
    """Peak memory of each way, each in a process of its own."""
    found = {}
    for kind in ("plain", "1", "3", "10"):
        arguments = [sys.executable, __file__, "--memory", kind, "--classes", str(classes)]
        answer = subprocess.run(arguments, capture_output=True, text=True, check=True)
        found[kind if kind == "plain" else f"{kind} seeds"] = float(answer.stdout)
    return found


def to_table(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    lines = [f"| | {' | '.join(str(r['classes']) + ' classes' for r in report['runs'])} |"]
    lines.append("|---" * (len(report["runs"]) + 1) + "|")

    def row(label: str, pick: Callable[[dict[str, Any]], str]) -> None:
        lines.append(f"| {label} | {' | '.join(pick(run) for run in report['runs'])} |")

    row("start-up of the text side, plain", lambda r: f"{r['start-up s']['plain']:.1f} s")
    row("start-up of the text side, ours", lambda r: f"{r['start-up s']['ours']:.1f} s")
    row("ratio", lambda r: f"**{r['start-up ratio']:.1f}x**")
    row("step, plain", lambda r: f"{r['step s']['plain']:.2f} s")
    for seeds in SEEDS:
        row(
            f"step per seed, ours, {seeds} together",
            lambda r, s=seeds: (
                f"{1000 * r['step s'][f'ours, {s} seeds (per seed)']:.0f} ms "
                f"(**{r['step ratio'][f'{s} seeds']:.1f}x**)"
            ),
        )
    row("images/s, plain test", lambda r: f"{r['end to end']['images/s']['plain test']:.1f}")
    row("images/s, ours", lambda r: f"{r['end to end']['images/s']['ours']:.1f}")
    row("whole run, plain", lambda r: f"{r['end to end']['plain s']:.0f} s")
    for views in (1, 4, 16):
        for seeds in (1, 3):
            key = f"{views} views, {seeds} seeds"
            row(
                f"whole run per seed, ours, {key}",
                lambda r, k=key: (
                    f"{r['end to end'][f'ours s, {k}']:.0f} s "
                    f"(**{r['end to end'][f'ratio, {k}']:.1f}x**)"
                ),
            )
    for kind in ("plain", "1 seeds", "3 seeds", "10 seeds"):
        row(f"peak memory, {kind}", lambda r, k=kind: f"{r['peak GiB'][k]:.2f} GiB")
    row(
        "largest loss difference",
        lambda r: f"{r['largest loss difference']['float32']:.1e}",
    )
    row(
        "the same, patches in half precision",
        lambda r: f"{r['largest loss difference']['patches in half precision']:.1e}",
    )
    return "\n".join(lines)


def main() -> None:
    """Measure or print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, action="append")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path)
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    parser.add_argument("--table", type=Path, help="print a JSON report as Markdown")
    arguments = parser.parse_args()
    if arguments.table:
        print(to_table(json.loads(arguments.table.read_text())))
        return
    torch.set_num_threads(arguments.threads)
    if arguments.memory:
        print(peak_memory(arguments.memory, arguments.classes[0]))
        return
    backbone = make_backbone()
    report: dict[str, Any] = {
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "torch": torch.__version__,
        "threads": arguments.threads,
        "runs": [],
    }
    for classes in arguments.classes or [4, 8]:
        report["runs"].append(measure(backbone, classes, arguments.rounds))
        print(json.dumps(report["runs"][-1], indent=2), flush=True)
    del backbone
    gc.collect()
    for run in report["runs"]:
        run["peak GiB"] = memories(run["classes"])
        if arguments.out:
            write_json(arguments.out, report)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
