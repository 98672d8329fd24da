"""From the heads of a task's questions to one head, and back from its tensors.

A method fits each question by itself: for several findings F problems of two classes, absent and
present. Which other finding an image shows plays no part: sharing a covariance between findings
would hide each from itself (docs/evidence/findings.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ogkd.backbones.base import Backbone
from ogkd.data.task import Task
from ogkd.data.tasks import Findings, OneOf
from ogkd.methods.base import Method, TextSide
from ogkd.methods.heads import FindingsHead, Head

_Counts = Sequence[tuple[int, int]]


def join_heads(task: Task, heads: Sequence[Head], counts: _Counts = ()) -> Head:
    """The head that answers the task, from those of its questions.

    `counts` are cases of the first two classes of each question. Findings get their log-odds: a
    method takes classes to be equally frequent, and would announce a rare finding far too often.
    """
    return _JOINED[task.kind](heads, counts)


def read_head(
    method: Method, tensors: Mapping[str, Tensor], task: Task, backbone: Backbone, scale: float
) -> Head:
    """Rebuild a task's head from its saved tensors; a KeyError names one that is missing."""
    prefixes = _PREFIXES[task.kind](len(task.names))
    heads = []
    for prefix, names, normal in zip(
        prefixes, task.question_names(), task.question_normal(), strict=True
    ):
        inner = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        heads.append(method.read_head(inner, TextSide(backbone, names, (), normal), scale))
    shapes = [head.shape for head in heads]
    if shapes != [(len(names), heads[0].shape[1]) for names in task.question_names()]:
        raise ValueError(f"heads of shapes {shapes}")
    head = _JOINED[task.kind](heads, ())
    if isinstance(head, FindingsHead):
        prior = tensors["prior"].float()
        if prior.shape != head.prior.shape:
            raise ValueError(f"a prior of shape {tuple(prior.shape)}")
        return FindingsHead(tuple(heads), prior)
    return head


def _only(heads: Sequence[Head], counts: _Counts) -> Head:
    return heads[0]


def _findings(heads: Sequence[Head], counts: _Counts) -> Head:
    pairs = torch.tensor(counts or [(0, 0)] * len(heads), dtype=torch.float32) + 1
    return FindingsHead(tuple(heads), (pairs[:, 1] / pairs[:, 0]).log())


_JOINED: Mapping[str, Callable[[Sequence[Head], _Counts], Head]]
_JOINED = {OneOf.kind: _only, Findings.kind: _findings}
_PREFIXES: Mapping[str, Callable[[int], list[str]]]
_PREFIXES = {
    OneOf.kind: lambda count: [""],
    Findings.kind: lambda count: [f"{f}." for f in range(count)],
}
