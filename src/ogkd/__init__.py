"""Few-shot adaptation of frozen biomedical vision-language models.

Fit a classifier on a folder of labelled images, use it, and measure how good it is:

    >>> import ogkd
    >>> model = ogkd.fit("my_images/", shots=16)  # doctest: +SKIP
    >>> model.predict(["new.png"])  # doctest: +SKIP
    >>> ogkd.evaluate(model, "my_images/")  # doctest: +SKIP
    >>> ogkd.report(model, "my_images/", "report.html")  # doctest: +SKIP
    >>> model.save("my_model"); model = ogkd.load("my_model")  # doctest: +SKIP

fit, load, OGKDClassifier        a classifier from images, from a folder, as scikit-learn has one
zero_shot                        a classifier from class names alone
evaluate, report                 metrics on labelled images; an HTML page about them
compare                          two models on the same images, with a paired interval
learning_curve                   accuracy by the number of labels, and a forecast for more
calibrate, Policy                temperature and sets; which promise a decision has to keep
plots                            evaluations, class graphs and trainings as matplotlib axes
explain, draw                    which parts of an image support a class
read_dataset, read_image         labelled images as a table; any image as an array
load_backbone, Backbone          the frozen encoders
methods, Method, register        every method, and how to add one; plugins: code of other packages
losses, geometry, teacher        the paper's mathematics, as functions of tensors
OgkdError and its subclasses     what a user can cause and fix

Everything is imported when first used, so `import ogkd` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ogkd.errors import BackboneError, ConfigError, DataError, OgkdError, StorageError

if TYPE_CHECKING:
    from ogkd import methods, plugins
    from ogkd.backbones import Backbone, load_backbone
    from ogkd.core import geometry, losses, teacher
    from ogkd.data.read import read_dataset
    from ogkd.evaluation import plots
    from ogkd.evaluation.calibrate import calibrate
    from ogkd.evaluation.compare import compare
    from ogkd.evaluation.evaluate import evaluate
    from ogkd.fitting.estimator import OGKDClassifier
    from ogkd.fitting.learning_curve import learning_curve
    from ogkd.fitting.pipeline import fit, zero_shot
    from ogkd.images import read_image
    from ogkd.methods import Method, register
    from ogkd.model.calibration import Calibration
    from ogkd.model.classifier import Classifier
    from ogkd.model.drawing import draw
    from ogkd.model.explain import Evidence, explain
    from ogkd.model.load import load
    from ogkd.model.policy import Policy
    from ogkd.report import report

    __version__: str

__all__ = [
    "Backbone",
    "BackboneError",
    "Calibration",
    "Classifier",
    "ConfigError",
    "DataError",
    "Evidence",
    "Method",
    "OGKDClassifier",
    "OgkdError",
    "Policy",
    "StorageError",
    "__version__",
    "calibrate",
    "compare",
    "draw",
    "evaluate",
    "explain",
    "fit",
    "geometry",
    "learning_curve",
    "load",
    "load_backbone",
    "losses",
    "methods",
    "plots",
    "plugins",
    "read_dataset",
    "read_image",
    "register",
    "report",
    "teacher",
    "zero_shot",
]

_MODULES = {  # module: what it offers here
    "ogkd.backbones": ("Backbone", "load_backbone"),
    "ogkd.core": ("geometry", "losses", "teacher"),
    "ogkd.data.read": ("read_dataset",),
    "ogkd.evaluation": ("evaluate", "plots"),
    "ogkd.evaluation.calibrate": ("calibrate",),
    "ogkd.evaluation.compare": ("compare",),
    "ogkd.fitting.estimator": ("OGKDClassifier",),
    "ogkd.fitting.learning_curve": ("learning_curve",),
    "ogkd.fitting.pipeline": ("fit", "zero_shot"),
    "ogkd.images": ("read_image",),
    "ogkd.methods": ("Method", "register"),
    "ogkd.model.calibration": ("Calibration",),
    "ogkd.model.classifier": ("Classifier",),
    "ogkd.model.load": ("load",),
    "ogkd.model.policy": ("Policy",),
    "ogkd.model.explain": ("Evidence", "explain"),
    "ogkd.model.drawing": ("draw",),
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version  # slow to import

        return version("ogkd")
    if name in ("methods", "plugins", "report"):  # the last can be called
        return import_module(f"ogkd.{name}")
    for module, names in _MODULES.items():
        if name in names:
            return getattr(__import__(module, fromlist=[name]), name)  # which may be a module
    raise AttributeError(f"module 'ogkd' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
