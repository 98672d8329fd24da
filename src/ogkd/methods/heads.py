"""Heads, the result of a fit: global image features in, logits out, tensors to save."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torch import Tensor
from torch.nn.functional import normalize

from ogkd.errors import TrainingError
from ogkd.methods.ranking import Ranking


class Head(ABC):
    """Computes logits of global features; `tensors` is all that must be saved to rebuild it."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """The number of classes and of features."""

    @abstractmethod
    def logits(self, features: Tensor) -> Tensor:
        """Logits [N, C] of features [N, d]: globals, or rows with deeper features."""

    def of_rows(self, rows: Tensor) -> Tensor:
        """Logits of rows that may have deeper features that this head does not read."""
        return self.logits(rows[..., : self.shape[1]])

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """The tensors to save, by name."""

    def not_finite(self) -> list[str]:
        """The tensors with values that are not numbers: after a training that diverged."""
        return [name for name, tensor in self.tensors().items() if not tensor.isfinite().all()]

    @property
    def class_texts(self) -> Tensor | None:
        """Text features of the classes [C, d], if the head has one for each class."""
        return None

    @property
    def weights(self) -> Tensor | None:
        """W [C, d] if logits are W v and a constant, v a feature of unit length; else None."""
        return None

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about the fit."""
        return ()

    @property
    def ranking(self) -> Ranking | None:
        """How to rank a new image among those of the support; None if the method cannot."""
        return None

    @property
    def export_error(self) -> str | None:
        """Why the head cannot be exported as a graph of tensor operations; None if it can."""
        return None


def refuse_diverged(heads: Iterable[Head], method: str) -> None:
    """Stop if a fit ended in values that are not numbers."""
    for head in heads:
        if names := head.not_finite():
            raise TrainingError(
                f"{method} diverged: what it learned ({', '.join(names)}) contains values that are "
                "not numbers. Use settings nearer to the defaults, such as a lower learning rate."
            )


def take(tensors: Mapping[str, Tensor], **axes: str) -> list[Tensor]:
    """Saved tensors by name, as floats; axes of the same letter must have the same length.

    >>> take({"W": Tensor(3, 8), "b": Tensor(3)}, W="Cd", b="C")[1].shape
    torch.Size([3])
    """
    lengths: dict[str, int] = {}
    for name, letters in axes.items():
        shape = tuple(tensors[name].shape)
        expected = tuple(lengths.setdefault(*pair) for pair in zip(letters, shape, strict=False))
        if len(shape) != len(letters) or shape != expected:
            raise ValueError(f"{name} of shape {shape}, which is not [{', '.join(letters)}]")
    return [tensors[name].float() for name in axes]


@dataclass(frozen=True)
class ClassTextHead(Head):
    """The base of heads with class texts T [C, d] and the scale of cosines with them."""

    T: Tensor
    scale: float

    @property
    def shape(self) -> tuple[int, int]:
        return self.T.shape[0], self.T.shape[1]

    @property
    def class_texts(self) -> Tensor:
        return self.T


@dataclass(frozen=True)
class TextHead(ClassTextHead):
    """Logits are scale * v T'.

    `extra` are tensors that are saved with it, such as the context that T was computed from.
    """

    extra: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def weights(self) -> Tensor:
        return self.scale * self.T

    def logits(self, features: Tensor) -> Tensor:
        return self.scale * normalize(features, dim=-1) @ self.T.mT

    def tensors(self) -> dict[str, Tensor]:
        return {"T": self.T.contiguous(), **self.extra}


@dataclass(frozen=True)
class LinearHead(Head):
    """Weights W [C, d] and biases b [C]: logits are v W' + b."""

    W: Tensor
    b: Tensor

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor]) -> LinearHead:
        """Rebuild it from its tensors."""
        return LinearHead(*take(tensors, W="Cd", b="C"))

    @property
    def shape(self) -> tuple[int, int]:
        return self.W.shape[0], self.W.shape[1]

    @property
    def weights(self) -> Tensor:
        return self.W

    def logits(self, features: Tensor) -> Tensor:
        return normalize(features, dim=-1) @ self.W.mT + self.b

    def tensors(self) -> dict[str, Tensor]:
        return {"W": self.W.contiguous(), "b": self.b.contiguous()}


@dataclass(frozen=True)
class KernelHead(ClassTextHead):
    """Text and a cache of images: logits are scale * v T' + exp(-beta (1 - v K')) A.

    K [M, d] are the features of M support images, A [M, C] their votes for the classes.
    """

    K: Tensor
    A: Tensor
    beta: float

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor], scale: float) -> KernelHead:
        """Rebuild it from its tensors."""
        T, K, A = take(tensors, T="Cd", K="Md", A="MC")
        return cls(T, scale, K, A, float(tensors["beta"]))

    def logits(self, features: Tensor) -> Tensor:
        v = normalize(features, dim=-1)
        near = (-self.beta * (1 - v @ self.K.mT)).exp()  # [N, M]
        return self.scale * v @ self.T.mT + near @ self.A

    def tensors(self) -> dict[str, Tensor]:
        beta = self.T.new_tensor(self.beta)
        return {"T": self.T.contiguous(), "K": self.K.contiguous(), "A": self.A, "beta": beta}
