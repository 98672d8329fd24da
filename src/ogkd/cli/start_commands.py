"""`commands.sh` of `ogkd start`: the single commands that give the same results."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    path = Path(name).expanduser()
    return str(path.resolve()) if path.exists() else name
