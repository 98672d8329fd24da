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
from ogkd.model.card import BackboneCard, ModelCard, versions
from ogkd.model.classifier import Classifier


def import_context(
    path: str | Path,
    class_names: Sequence[str],
    *,
    backbone: str | Path | Backbone = "biomedclip",
    device: str = "auto",
) -> Classifier:
    """A classifier from `prompt_learner.ctx` of a released checkpoint."""
    path = Path(path)
    names = tuple(name.replace("_", " ").strip() for name in class_names)
    if len(names) < 2 or "" in names or len({name.casefold() for name in names}) < len(names):
        raise ConfigError(
            "Give at least two different class names, in the order of the labels, but got: "
            f"{', '.join(class_names) or 'none'}."
        )
    names = read_class_names(names)
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
    card = ModelCard(
        method=method.name,
        config=method.config.model_dump(mode="json"),
        asks=OneOf(names).as_json(),
        backbone=BackboneCard.of(backbone),
        logit_scale=backbone.logit_scale,
        prompts_sha256="",
        data_sha256="",
        support_counts=(0,) * len(names),
        seed=0,
        versions=dict(versions()),
        imported_sha256=sha256_file(path),
    )
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
        raise _refusal(path, error) from error
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(state, dict):
        raise ConfigError(
            f"{path} contains no table of tensors. Give a file like model.pth.tar-100."
        )
    contexts = [state[key] for key in ("prompt_learner.ctx", "ctx") if key in state]
    if not contexts or not isinstance(contexts[0], Tensor):
        known = ", ".join(sorted(map(str, state))[:8]) or "nothing"
        raise ConfigError(f"{path} contains no 'prompt_learner.ctx'. It contains: {known}.")
    context = contexts[0].detach()
    plain = context.layout is torch.strided and not context.is_meta and not context.is_nested
    if not plain or not context.is_floating_point():
        raise ConfigError(
            f"The context in {path} is not a plain tensor of floating-point numbers "
            f"({context.layout}, {context.dtype}). Give a file as the released code saved it."
        )
    context = context.float()
    if not bool(torch.isfinite(context).all()):
        raise ConfigError(f"The context in {path} is not finite: its training had failed.")
    return context


def _refusal(path: Path, error: Exception) -> ConfigError:
    # torch's own message advises to load the file unsafely: only the culprit's name is of use.
    named = re.search(r"GLOBAL (\S+)", str(error))
    trouble = (
        f"contains code ({named[1]}), which is not loaded"
        if named
        else "is damaged, or not a checkpoint of tensors"
    )
    return ConfigError(
        f"{path} {trouble}. Give a file like model.pth.tar-100, as the released code saved it."
    )
