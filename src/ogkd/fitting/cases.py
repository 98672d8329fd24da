"""Fitting on cases: any method learns from images; held-out cases choose how images are pooled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ogkd.core.pooling import Pooling, fit_pooling, is_pooled
from ogkd.data.case import Case, case_numbers, evenly, image_targets
from ogkd.data.task import Task
from ogkd.methods import (
    Head,
    Method,
    Support,
    TextSide,
    TrainingFolder,
    find_carriers,
    folds,
    join_heads,
)
from ogkd.progress import progress_bar

_FOLDS = 4  # held-out cases that the pooling is chosen on
_SLOW_FOLDS = 2  # where a fit takes minutes


@dataclass(frozen=True)
class CaseSupport:
    """Images of cases to learn from, and what is known of both."""

    support: Support  # of all images
    rows: Tensor  # [N, w]: features of whole images; [N, 0] if each image is a case
    case: Tensor  # [N]: the number of each image's case
    labels: Tensor  # [B] or [B, F]: of cases
    image_labels: Tensor | None  # [N] or [N, F]; None: only cases are labelled

    @classmethod
    def of(cls, task: Task, cases: Sequence[Case], support: Support, rows: Tensor) -> CaseSupport:
        targets = image_targets(cases)
        return cls(
            support,
            rows,
            torch.from_numpy(case_numbers(cases)),
            torch.from_numpy(task.labels([case.target for case in cases])),
            None if targets is None else torch.from_numpy(task.labels(targets)),
        )

    def question(self, task: Task, number: int) -> CaseSupport:
        """What is known of one question: the cases whose answer is, with labels [B] and [N]."""
        labels = task.question_labels(self.labels)[number]
        image_labels = self.image_labels
        image_labels = None if image_labels is None else task.question_labels(image_labels)[number]
        whole = replace(self, labels=labels, image_labels=image_labels)
        return whole if bool((labels >= 0).all()) else whole.subset(labels >= 0)

    def subset(self, kept: Tensor) -> CaseSupport:
        """Some of the cases, by a mask [B], numbered from 0 again."""
        numbers = kept.long().cumsum(0) - 1
        images = kept[self.case].nonzero().squeeze(1)
        return CaseSupport(
            self.support.subset(images),
            self.rows[images],
            numbers[self.case[images]],
            self.labels[kept],
            None if self.image_labels is None else self.image_labels[images],
        )


def learn(
    method: Method,
    given: CaseSupport | None,
    task: Task,
    texts: Sequence[TextSide],
    *,
    seed: int,
    folder: TrainingFolder | None = None,
) -> tuple[Head, tuple[Pooling, ...]]:
    """Fit a head for images and the poolings that make answers about cases of them.

    Each question of the task is fitted by itself. A pooling is chosen on cases that were held out,
    each by a head that has not seen it; where each image is a case, there is none.
    """
    heads: list[Head] = []
    poolings: list[Pooling] = []
    priors: list[tuple[int, int]] = []
    for number, text in enumerate(texts):
        asked = None if given is None else given.question(task, number)
        heads.append(_fit_head(method, asked, text, seed, folder))
        if asked is not None:
            priors.append((int((asked.labels == 0).sum()), int((asked.labels == 1).sum())))
            if is_pooled(asked.case):
                poolings.append(_choose_pooling(method, asked, text, seed))
    return join_heads(task, heads, priors), tuple(poolings)


def _choose_pooling(method: Method, given: CaseSupport, text: TextSide, seed: int) -> Pooling:
    z = _held_out(method, given, text, seed)
    if z is None:
        return Pooling(normal=text.normal)
    return fit_pooling(z, given.case, given.labels, text.normal)


def _held_out(method: Method, given: CaseSupport, text: TextSide, seed: int) -> Tensor | None:
    """Logits [N, C] of images by heads that have not seen their cases; None with too few cases."""
    if not method.needs_images:
        return _fit_head(method, given, text, seed).of_rows(given.rows).double()
    fold = folds(given.labels, _SLOW_FOLDS if method.needs_training else _FOLDS)
    if fold is None:
        return None
    z = torch.zeros(len(given.case), len(text.class_names), dtype=torch.float64)
    numbers = fold.unique().tolist()
    with progress_bar("Fitting without some cases", len(numbers)) as bar:
        for number in numbers:
            head = _fit_head(method, given.subset(fold != number), text, seed)
            out = (fold == number)[given.case]
            z[out] = head.of_rows(given.rows[out].float()).double()
            bar.advance()
    return z


def _fit_head(
    method: Method,
    given: CaseSupport | None,
    text: TextSide,
    seed: int,
    folder: TrainingFolder | None = None,
) -> Head:
    """Fit a head for images. Where only cases are labelled, on those that seem to carry the label.

    A trained context learns from a few images of each case, with the case's label.
    """
    if given is None or not method.needs_images:
        return method.fit(None, text, seed=seed, folder=folder)
    labels = given.image_labels
    if labels is None and method.needs_training:
        labels = given.labels[given.case]
    elif labels is None:
        labels = find_carriers(given.rows, given.case, given.labels, text)
    chosen = (labels >= 0).nonzero().squeeze(1)
    if method.needs_training and is_pooled(given.case):
        chosen = _few(chosen, given.case, labels)
    support = given.support
    if len(chosen) < len(labels):
        support = support.subset(chosen)
    support = replace(support, labels=labels[chosen], case=given.case[chosen])
    return method.fit(support, text, seed=seed, folder=folder)


def _few(chosen: Tensor, case: Tensor, labels: Tensor) -> Tensor:
    """At most 8 of the images of a case with the same label, evenly spaced."""
    kept = []
    for pair in torch.stack([case[chosen], labels[chosen]]).unique(dim=1).T:
        members = chosen[(case[chosen] == pair[0]) & (labels[chosen] == pair[1])]
        kept.append(members[evenly(len(members))])
    return torch.cat(kept).sort().values
