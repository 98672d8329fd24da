"""The benchmark's plain loop: transformers' own BERT, padded prompts, losses written out."""

from __future__ import annotations

from pathlib import Path

import pytest

NAMES = ["cyst", "large stone", "normal tissue"]
BANK = [[f"{word} {name}." for word in ("a scan of", "the", "bright", "dark")] for name in NAMES]


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))


def test_our_losses_equal_those_of_the_plain_loop_step_by_step(bert_backbone):
    from plain_loop import PlainLoop
    from speed import CONFIG, agreement

    plain = PlainLoop(bert_backbone, NAMES, BANK, CONFIG)
    plain.start_up()
    start = plain.context.detach().clone()
    worst = agreement(plain, bert_backbone, NAMES, BANK)
    assert worst["float32"] < 1e-4
    assert worst["patches in half precision"] < 1e-3
    assert not plain.context.equal(start)  # it has learned something
