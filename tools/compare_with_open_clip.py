"""Compare ogkd with outputs that `make_open_clip_fixtures.py` saved from the real open_clip.

    python tools/compare_with_open_clip.py FOLDER EXPECTED.safetensors

Prints the largest absolute differences, and seconds, as JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from ogkd.backbones.base import Backbone, ImageFeatures
from ogkd.backbones.open_clip_format import load_open_clip
from ogkd.images.decode import read_image
from ogkd.images.transforms import to_pixels


def gap(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max())


def timed(action: Callable[[], Any], *, runs: int = 1) -> tuple[Any, float]:
    """A value and the least CPU time of `runs` runs: other programs do not count."""
    times = []
    for _ in range(runs):
        start = time.process_time()
        value = action()
        times.append(time.process_time() - start)
    return value, round(min(times), 3)


def encode(backbone: Backbone, pixels: Tensor) -> ImageFeatures:
    parts = [backbone.encode_images(batch) for batch in pixels.split(16)]
    patches = torch.cat([part.patches for part in parts if part.patches is not None])
    return ImageFeatures(torch.cat([part.globals for part in parts]), patches)


def compare(folder: Path, expected: Path, *, runs: int) -> dict[str, Any]:
    """Every output of `expected` beside ours, from the same pixels and the same texts."""
    with safe_open(expected, "pt") as file:
        want = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        notes = file.metadata()
    backbone, load_seconds = timed(
        lambda: load_open_clip(folder, name=str(folder), device=torch.device("cpu"))
    )
    texts, short = json.loads(notes["texts"]), want["short"]
    images, image_seconds = timed(lambda: encode(backbone, want["pixels"]), runs=runs)
    alone, alone_seconds = timed(
        lambda: backbone.encode_images(want["pixels"][:16], patches=False).globals, runs=runs
    )
    padded = backbone.tokenize(texts)
    ids = want["ids"]
    same_ids = torch.equal(ids[:, : padded.ids.shape[1]], padded.ids)
    full = type(padded)(ids=ids, mask=ids != 0)
    trimmed = backbone.tokenize(
        [text for text, is_short in zip(texts, short, strict=True) if is_short]
    )
    with torch.no_grad():
        in_full, full_seconds = timed(
            lambda: backbone.encode_text(backbone.embed(full), full), runs=runs
        )
        cut, cut_seconds = timed(
            lambda: backbone.encode_text(backbone.embed(trimmed), trimmed), runs=runs
        )
    result: dict[str, Any] = {
        "images": len(want["pixels"]),
        "texts": len(texts),
        "tokens": {"padded": ids.shape[1], "trimmed": trimmed.ids.shape[1]},
        "same_ids": same_ids,
        "largest_difference": {
            "globals": gap(images.globals, want["globals"]),
            "globals, no patches asked": gap(alone, want["globals"][:16]),
            "patches": gap(images.patches, want["patches"]),  # type: ignore[arg-type]
            "texts padded, both": gap(in_full, want["texts_padded"]),
            "texts trimmed, both": gap(cut, want["texts_trimmed"]),
            "texts ours trimmed, theirs padded": gap(cut, want["texts_padded"][short]),
        },
        "cpu_seconds": {
            "load": load_seconds,
            "images": image_seconds,
            "at most 16 images, no patches asked": alone_seconds,
            "texts_padded": full_seconds,
            "texts_trimmed": cut_seconds,
        },
        "open_clip_cpu_seconds": json.loads(notes.get("seconds", "{}")),
        "threads": torch.get_num_threads(),
        "torch": {"ours": torch.__version__, "theirs": notes["torch"]},
    }
    if "files" in notes:
        files = json.loads(notes["files"])
        pixels = to_pixels([read_image(path) for path in files], backbone.preprocessing)
        ours = encode(backbone, pixels)
        result["largest_difference"] |= {
            "pixels from files": gap(pixels, want["pixels"]),
            "globals from files": gap(ours.globals, want["globals"]),
        }
        theirs = (want["globals"] @ want["texts_padded"].T).argmax(dim=1)
        agree = (ours.globals @ in_full.T).argmax(dim=1) == theirs
        result["same_best_text"] = f"{int(agree.sum())} of {len(agree)}"
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("expected", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1, help="repetitions to time")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(json.dumps(compare(options.folder, options.expected, runs=options.runs), indent=1))


if __name__ == "__main__":
    main()
