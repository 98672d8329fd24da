"""Where the numbers in docs/evidence come from: `python -m benchmarks` lists the experiments."""
