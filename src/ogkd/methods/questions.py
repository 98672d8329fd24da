"""Heads of a task: one for each of its questions, joined into one and read back.

A method fits each question by itself: for several findings F problems of two classes, absent and
present. Which other finding an image shows plays no part: sharing a covariance between findings
would hide each from itself (docs/evidence/cases.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ogkd.backbones.base import Backbone
from ogkd.data.task import Task
from ogkd.data.tasks import Findings, OneOf
from ogkd.methods.base import Method, TextSide
from ogkd.methods.heads import Head, LinearHead, take

# What the names of saved tensors start with, by the number of the question.
_PREFIX: Mapping[str, str] = {OneOf.kind: "", Findings.kind: "{}."}


@dataclass(frozen=True)
class FindingsHead(Head):
    """Log-odds [N, F] of findings: z_f1 - z_f0 + prior_f, from a head of two classes for each.

    The classes of an inner head are that the finding is absent, and that it is present.
    """

    heads: tuple[Head, ...]
    prior: Tensor  # [F] log-odds before an image is seen
    # The same as one linear head, if all inner heads are linear; made here, because what is first
    # computed while a graph is exported is no tensor of numbers.
    linear: LinearHead | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        pairs = [(head.W, head.b) for head in self.heads if isinstance(head, LinearHead)]
        linear = None
        if len(pairs) == len(self.heads):
            W, b = (torch.stack(parts) for parts in zip(*pairs, strict=True))  # [F, 2, d], [F, 2]
            linear = LinearHead(W[:, 1] - W[:, 0], b[:, 1] - b[:, 0] + self.prior)
        object.__setattr__(self, "linear", linear)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.heads), self.heads[0].shape[1]

    @property
    def weights(self) -> Tensor | None:
        pairs = [head.weights for head in self.heads]
        if any(W is None for W in pairs):
            return None
        return torch.stack([W[1] - W[0] for W in pairs if W is not None])

    @property
    def class_texts(self) -> Tensor | None:
        """The texts that say that a finding is present."""
        pairs = [head.class_texts for head in self.heads]
        if any(T is None for T in pairs):
            return None
        return torch.stack([T[1] for T in pairs if T is not None])

    def logits(self, features: Tensor) -> Tensor:
        if self.linear is not None:
            return self.linear.logits(features)
        z = [head.logits(features) for head in self.heads]
        return torch.stack([pair[..., 1] - pair[..., 0] for pair in z], dim=-1) + self.prior

    def tensors(self) -> dict[str, Tensor]:
        inner = {
            _PREFIX[Findings.kind].format(f) + name: tensor
            for f, head in enumerate(self.heads)
            for name, tensor in head.tensors().items()
        }
        return {**inner, "prior": self.prior}

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(note for head in self.heads for note in head.notes))

    @property
    def export_error(self) -> str | None:
        errors = (head.export_error for head in self.heads)
        return next((error for error in errors if error is not None), None)


def join_heads(task: Task, heads: Sequence[Head], counts: Sequence[tuple[int, int]] = ()) -> Head:
    """The head that answers the task, from those of its questions.

    `counts` are cases of the first two classes of each question. Findings get their log-odds: a
    method takes classes to be equally frequent, and would announce a rare finding far too often.
    """
    if not _PREFIX[task.kind]:
        return heads[0]
    pairs = torch.tensor(counts or [(0, 0)] * len(heads), dtype=torch.float32) + 1
    return FindingsHead(tuple(heads), (pairs[:, 1] / pairs[:, 0]).log())


def read_head(
    method: Method, tensors: Mapping[str, Tensor], task: Task, backbone: Backbone, scale: float
) -> Head:
    """Rebuild a task's head from its saved tensors; a KeyError names one that is missing."""
    names, normal = task.question_names(), task.question_normal()
    heads = []
    for number, (classes, healthy) in enumerate(zip(names, normal, strict=True)):
        prefix = _PREFIX[task.kind].format(number)
        inner = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        heads.append(method.read_head(inner, TextSide(backbone, classes, (), healthy), scale))
    shapes = [head.shape for head in heads]
    if shapes != [(len(classes), heads[0].shape[1]) for classes in names]:
        raise ValueError(f"heads of shapes {shapes}")
    head = join_heads(task, heads)
    if not isinstance(head, FindingsHead):
        return head
    (prior,) = take(tensors, prior="F")
    if len(prior) != len(heads):
        raise ValueError(f"a prior of {len(prior)} findings for {len(heads)} heads")
    return FindingsHead(head.heads, prior)
