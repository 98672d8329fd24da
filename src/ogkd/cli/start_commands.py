"""What `ogkd start` says at its end, and `commands.sh`: single commands with the same results."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ogkd.files import home

_FEW = 5  # test images of a class that say next to nothing about it
_SCRIPT = """\
#!/bin/sh
# What `ogkd start` did, as single commands. They write to a new folder:
#   sh commands.sh NEW_FOLDER
set -e
out=${{1:?Give the name of a new folder}}
mkdir -p "$out"
ogkd data check {data} {slice} --json "$out/check.json" --html "$out/check.html" || [ $? -eq 1 ]
ogkd data split {data} {slice} {bags} --seed {seed} \\
  --out "$out/split.csv" --left-out "$out/left-out.csv"
ogkd fit "$out/split.csv" {fit} --out "$out/model"
{calibrate}
ogkd evaluate "$out/model" "$out/split.csv" --split test --out "$out/evaluation.json"
ogkd report "$out/model" "$out/split.csv" --split test --out "$out/report.html"
"""


def commands(data: Path, out: Path, options: Mapping[str, Any]) -> str:
    """The script for a start with these options, whose model is in `out`."""
    from ogkd.images.slices import SlicesRule
    from ogkd.model.calibration import CALIBRATION
    from ogkd.model.card import ModelCard
    from ogkd.model.classifier import CARD

    used = {**options, "backbone": ModelCard.read(out / "model" / CARD).backbone.name}
    words: list[str] = []
    keys = ("backbone", "method", "shots", "seed", "prompts", "slice", "bags", "slices", "normal")
    for key in keys:
        values = used[key] if isinstance(used[key], list) else [used[key]]
        words += [word for one in values if one is not None for word in (f"--{key}", str(one))]
    calibrate = 'ogkd calibrate "$out/model" "$out/split.csv" --split val'
    if not (out / "model" / CALIBRATION).is_file():
        calibrate = f"# too few images: {calibrate}"
    rule, bags = options["slice"], options["bags"]
    if options["slices"] is not None:  # one slice stands for all where files are checked
        rule = str(SlicesRule.parse(options["slices"]).middle)
    return _SCRIPT.format(
        data=shlex.quote(anywhere(str(data))),
        slice="" if rule is None else f"--slice {shlex.quote(rule)}",
        bags="" if bags is None else f"--bags {shlex.quote(bags)}",
        seed=options["seed"],
        fit=shlex.join(words),
        calibrate=calibrate,
    )


def anywhere(name: str) -> str:
    """A name as it is; a path that exists so that it can be used from other folders."""
    path = home(name)
    return str(path.resolve()) if path.exists() else name


def summary(out: Path) -> Iterator[str]:
    """The last lines of a start: the verdict, what was hardly tested, and what is where."""
    result = json.loads((out / "evaluation.json").read_text(encoding="utf-8"))
    yield ""
    yield result["verdict"]["text"]
    if result.get("asks") == "findings":
        few = {name: row["present"] for name, row in result["per_finding"].items()}
    else:
        few = {name: row["images"] for name, row in result["per_class"].items()}
    if untested := [name for name, images in few.items() if not images]:
        yield f"Not tested, because there were no images to test on: {', '.join(untested)}."
    if hardly := [f"{name} ({n})" for name, n in few.items() if 0 < n < _FEW]:
        yield f"Tested on very few images: {', '.join(hardly)}."
    yield f"\nEverything is in {out}:"
    yield "  report.html     how good the model is, and when to trust it (open it in a browser)"
    yield "  check.html      what is wrong with the images; left-out.csv: what was left out"
    yield "  split.csv       which image was learned from, calibrated on, tested on"
    yield "  model           the model; commands.sh: the single commands that make all this"
    yield f"Next:  ogkd predict {shlex.quote(str(out / 'model'))} NEW_IMAGES > out.csv"
