"""Contexts learned by the released BiomedCoOp and OGKD code, read without running any of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ogkd.backbones import Backbone, load_backbone
from ogkd.data.names import read_class_names
from ogkd.data.tasks import OneOf
from ogkd.errors import ConfigError
from ogkd.files import sha256_file
from ogkd.methods import PAPER, TextHead, TextSide, make_method
from ogkd.model.card import ModelCard
from ogkd.model.classifier import Classifier

_EXPECTED = "Give a file like model.pth.tar-100, as the released code saved it."


def import_context(
    path: str | Path,
    class_names: Sequence[str],
    *,
    backbone: str | Path | Backbone = "biomedclip",
    device: str = "auto",
) -> Classifier:
    """A classifier from `prompt_learner.ctx` of a released checkpoint."""
    path = Path(path)
    names = read_class_names([name.replace("_", " ").strip() for name in class_names])
    if len(names) < 2:
        raise ConfigError(f"A model needs at least two classes, but got {len(names)}.")
    context = _read_context(path)
    if not isinstance(backbone, Backbone):
        backbone = load_backbone(backbone, device=device)
    if context.dim() != 2 or context.shape[1] != backbone.text_width:
        raise ConfigError(
            f"The context in {path} has shape {tuple(context.shape)}, but '{backbone.name}' needs "
            f"[n, {backbone.text_width}]. Pass the backbone it was trained with."
        )
    method = make_method(PAPER, settings={"context.n_ctx": context.shape[0]})
    text = TextSide(backbone, names, tuple((name,) for name in names))
    head = method.head_for(TextHead(context, backbone.logit_scale, {"context": context}), text)
    facts = {"support_counts": (0,) * len(names), "imported_sha256": sha256_file(path)}
    card = ModelCard.of(method, OneOf(names), backbone, **facts)
    return Classifier(backbone, head, card)


class _Inert:
    """Replaces an object of the checkpoint that is not needed; it can do nothing."""


def _plain_dict(*_: Any) -> dict[Any, Any]:
    return {}


# Released checkpoints keep the scheduler, and in it the optimiser, as objects. These names, and
# no others, are let through, and not as what they name: nothing of the file is ever built or run.
_STAND_INS: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    (_Inert, "torch.optim.sgd.SGD"),
    (_Inert, "torch.optim.lr_scheduler.CosineAnnealingLR"),
    (_plain_dict, "collections.defaultdict"),
    (dict, "builtins.dict"),
]


def _read_context(path: Path) -> Tensor:
    """Find the context; only tensors and plain containers are ever unpickled."""
    if not path.is_file():
        raise ConfigError(f"There is no file {path}. Check the path.")
    try:
        with torch.serialization.safe_globals(_STAND_INS):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can fail in any way
        # torch's own message advises to load the file unsafely: only the culprit's name is of use.
        code = re.search(r"GLOBAL (\S+)", str(error))
        what = f"contains code ({code[1]}), which is not loaded" if code else "is damaged"
        raise ConfigError(f"{path} {what}. {_EXPECTED}") from error
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    state = state if isinstance(state, dict) else {}
    context = state.get("prompt_learner.ctx", state.get("ctx"))
    if (
        not isinstance(context, Tensor)
        or context.layout is not torch.strided
        or context.is_meta
        or not context.is_floating_point()
    ):
        raise ConfigError(f"{path} contains no table of numbers 'prompt_learner.ctx'. {_EXPECTED}")
    context = context.detach().float()
    if not bool(torch.isfinite(context).all()):
        raise ConfigError(f"The context in {path} is not finite: its training had failed.")
    return context
