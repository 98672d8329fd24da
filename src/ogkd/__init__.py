"""Few-shot adaptation of frozen biomedical vision-language models.

>>> import ogkd
>>> model = ogkd.fit("my_images/", shots=16)  # doctest: +SKIP
>>> model.predict(["new.png"])  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ogkd.errors import BackboneError, ConfigError, DataError, OgkdError, StorageError

if TYPE_CHECKING:
    from ogkd.backbones import Backbone, load_backbone
    from ogkd.datasets.read import read_manifest
    from ogkd.evaluation import evaluate
    from ogkd.fitting.estimator import OGKDClassifier
    from ogkd.fitting.pipeline import fit
    from ogkd.images import read_image
    from ogkd.model.classifier import Classifier, load
    from ogkd.model.explain import draw, evidence

__all__ = [
    "Backbone",
    "BackboneError",
    "Classifier",
    "ConfigError",
    "DataError",
    "OGKDClassifier",
    "OgkdError",
    "StorageError",
    "draw",
    "evaluate",
    "evidence",
    "fit",
    "load",
    "load_backbone",
    "read_image",
    "read_manifest",
]

# Loaded when first used, so that `import ogkd` and `ogkd --help` need not wait for torch.
_WHERE = {
    "Backbone": "ogkd.backbones",
    "load_backbone": "ogkd.backbones",
    "Classifier": "ogkd.model.classifier",
    "load": "ogkd.model.classifier",
    "read_manifest": "ogkd.datasets.read",
    "OGKDClassifier": "ogkd.fitting.estimator",
    "evaluate": "ogkd.evaluation",
    "draw": "ogkd.model.explain",
    "evidence": "ogkd.model.explain",
    "fit": "ogkd.fitting.pipeline",
    "read_image": "ogkd.images",
}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'ogkd' has no attribute '{name}'")
    return getattr(import_module(_WHERE[name]), name)
