"""One file per method, one registry, and the public bases to write further methods on.

`PromptMethod` is for a learned context: give it an objective. `FeatureMethod` is for a head on
cached features: give it `fit_rows`. Importing this package registers ogkd's own methods; those of
plugins join when the registry is first asked for something else (docs/how-to/add-a-method.md).
"""

from importlib import import_module
from pkgutil import iter_modules

from ogkd.core.batches import Batch
from ogkd.core.optimisers import TrainConfig
from ogkd.core.training import Objective
from ogkd.methods.base import Method, MethodConfig, Support, Teacher, TextSide, TrainingFolder
from ogkd.methods.carriers import find_carriers, folds
from ogkd.methods.feature_method import (
    FeatureMethod,
    PriorConfig,
    RivalConfig,
    Rows,
    rows_of,
    text_prior,
)
from ogkd.methods.grid_search import Trial, choose, search, trials
from ogkd.methods.heads import Head, KernelHead, LinearHead, TextHead, refuse_diverged
from ogkd.methods.prompt_method import PromptConfig, PromptMethod, image_logits
from ogkd.methods.questions import FindingsHead, join_heads, read_head
from ogkd.methods.ranking import Ranked
from ogkd.methods.registry import (
    DEFAULT,
    METHODS,
    flatten,
    make_method,
    not_built,
    presets,
    register,
    setting_help,
)

__all__ = [
    "DEFAULT",
    "METHODS",
    "Batch",
    "FeatureMethod",
    "FindingsHead",
    "Head",
    "KernelHead",
    "LinearHead",
    "Method",
    "MethodConfig",
    "Objective",
    "PriorConfig",
    "PromptConfig",
    "PromptMethod",
    "Ranked",
    "RivalConfig",
    "Rows",
    "Support",
    "Teacher",
    "TextHead",
    "TextSide",
    "TrainConfig",
    "TrainingFolder",
    "Trial",
    "choose",
    "find_carriers",
    "flatten",
    "folds",
    "image_logits",
    "join_heads",
    "make_method",
    "not_built",
    "presets",
    "read_head",
    "refuse_diverged",
    "register",
    "rows_of",
    "search",
    "setting_help",
    "text_prior",
    "trials",
]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
