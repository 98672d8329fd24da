"""Measure the numbers of docs/evidence and write its tables.

python -m benchmarks              which experiments there are, how long they take, how old they are
python -m benchmarks run NAME     measure what is missing; the same command goes on after a stop
python -m benchmarks write        write tables and pictures from the results in the repository
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.evidence import BACKBONE, experiments, run, write_pages


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", nargs="?", choices=["list", "run", "write"], default="list")
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments; all if left out")
    parser.add_argument("--out", type=Path, default=Path("runs/evidence"), help="folder of runs")
    options = parser.parse_args()
    known = experiments()
    if unknown := [name for name in options.names if name not in known]:
        print(f"There is no experiment {unknown[0]}: {', '.join(known)}.", file=sys.stderr)
        return 2
    chosen = [known[name] for name in options.names or known]
    if options.action == "list":
        for one in chosen:
            print(f"{one.name:14} {one.minutes:4} min  {one.state}\n    {one.question}")
        print(f"\nAll of them: {sum(one.minutes for one in chosen)} minutes of two cores.")
        return 0
    if options.action == "run":
        if not BACKBONE.is_dir():
            message = f"{BACKBONE} is missing: name the developers' folder in OGKD_SHARED."
            print(message, file=sys.stderr)
            return 2
        for one in chosen:
            run(one, options.out)
    write_pages()
    return 0


if __name__ == "__main__":
    sys.exit(main())
