"""What the built-in model knows: whether an image looks like the phantoms it was trained on.

phantoms.safetensors, beside the model, describes its features of each phantom dataset k by a
Gaussian: mean m, the first directions U with variances e, and one variance s for all the others.
The distance of a feature v is D_k = |U'(v - m)|^2 / e + |(v - m) - UU'(v - m)|^2 / s; v looks like
a phantom if D_k is below the dataset's limit for any k. `tools/phantom_statistics.py` writes the
file; docs/evidence/trust.md has the measured rates.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

if TYPE_CHECKING:
    from ogkd.backbones.base import Backbone

# A small CLIP that is part of the package (see MODEL_CARD.md there). It knows phantom images
# only; with it everything runs at once and offline.
BUILTIN_FOLDER = Path(__file__).parent / "builtin_data"
STATISTICS = BUILTIN_FOLDER / "phantoms.safetensors"


class Domain(NamedTuple):
    """Gaussians of K phantom datasets, and the digest of the model whose features they describe."""

    mean: NDArray[np.float32]  # [K, d]
    directions: NDArray[np.float32]  # [K, r, d], orthonormal rows
    variances: NDArray[np.float32]  # [K, r]
    rest: NDArray[np.float32]  # [K], the variance along every other direction
    limit: NDArray[np.float32]  # [K], of the distance
    digest: str

    def distances(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """The distances [N, K] of features [N, d]."""
        c = np.asarray(features, np.float32)[:, None] - self.mean  # [N, K, d]
        along = np.einsum("nkd,krd->nkr", c, self.directions)
        beside = np.maximum((c**2).sum(2) - (along**2).sum(2), 0.0)
        D: NDArray[np.float32] = (along**2 / self.variances).sum(2) + beside / self.rest
        return D

    def excludes(self, features: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Whether each of the features [N, d or more] is of an image that is not a phantom, [N]."""
        width = self.mean.shape[1]
        if features.shape[1] > width:
            features = features[:, :width]
            features = features / np.linalg.norm(features, axis=1, keepdims=True)
        return np.asarray((self.distances(features) > self.limit).all(axis=1))


@cache
def phantom_domain() -> Domain:
    """The file beside the built-in model."""
    with safe_open(STATISTICS, framework="np") as file:
        arrays = {name: file.get_tensor(name).astype(np.float32) for name in file.keys()}  # noqa: SIM118
        return Domain(**arrays, digest=file.metadata()["digest"])


# Of one image that the backbone knows nothing of:
OUT_OF_DOMAIN = (
    "The built-in model knows only computer-drawn phantoms, and this image is not one: do not rely "
    "on the answer."
)


def is_builtin(backbone: Backbone) -> bool:
    """Whether these are the built-in model's weights, under whatever name and with any engine."""
    return backbone.out_of_domain(np.zeros((0, backbone.embed_dim), np.float32)) is not None


def mostly_strange(strange: int, images: int) -> bool:
    """Whether images are not phantoms as a set, if `strange` of them do not look like any.

    A few percent of phantoms look strange, and about half or more of real images.
    """
    return strange > 0 and (strange == images or strange > 1 + images / 4)


def domain_warning(strange: int, images: int) -> str:
    """The warning for a set of images that the built-in model cannot know; else nothing."""
    if not mostly_strange(strange, images):
        return ""
    return (
        f"The built-in model knows only computer-drawn phantoms, but {strange} of {images} "
        "image(s) are not phantoms. Do not rely on these results: use a real backbone, such as "
        "biomedclip."
    )
