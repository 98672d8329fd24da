"""Contexts learned by the released BiomedCoOp and OGKD code, read without running any of it."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from ogkd.backbones import Backbone, load_backbone
from ogkd.classifier import Classifier, versions
from ogkd.errors import ConfigError
from ogkd.files import sha256_file
from ogkd.methods import Head, TextSide, make_method
from ogkd.modelcard import BackboneCard, ModelCard

__all__ = ["import_context"]


def import_context(
    path: str | Path,
    class_names: Sequence[str],
    *,
    backbone: str | Path | Backbone = "biomedclip",
    device: str = "auto",
) -> Classifier:
    """A classifier from `prompt_learner.ctx` of a released checkpoint."""
    path = Path(path)
    if len(class_names) < 2:
        raise ConfigError("Give at least two class names, in the order of the labels.")
    context = _read_context(path)
    if not isinstance(backbone, Backbone):
        backbone = load_backbone(backbone, device=device)
    if context.dim() != 2 or context.shape[1] != backbone.text_width:
        raise ConfigError(
            f"The context in {path} has shape {tuple(context.shape)}, but '{backbone.name}' needs "
            f"[n, {backbone.text_width}]. Pass the backbone it was trained with."
        )
    method = make_method("ogkd", settings={"context.n_ctx": context.shape[0]})
    text = TextSide(backbone, tuple(class_names), tuple((name,) for name in class_names))
    head = method.head_for(Head(context, backbone.logit_scale, {"context": context}), text)
    card = ModelCard(
        method=method.name,
        config=method.config.model_dump(mode="json"),
        class_names=tuple(class_names),
        backbone=BackboneCard(
            name=backbone.name,
            digest=backbone.digest,
            embed_dim=backbone.embed_dim,
            preprocessing=asdict(backbone.preprocessing),
        ),
        logit_scale=backbone.logit_scale,
        prompts_sha256="",
        data_sha256="",
        support_counts=(0,) * len(class_names),
        seed=0,
        versions=dict(versions()),
        metrics={"imported_from_sha256": sha256_file(path)},
    )
    return Classifier(backbone, head, card)


def _read_context(path: Path) -> Tensor:
    """Find the context; only tensors and plain containers are ever unpickled."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise ConfigError(f"There is no file {path}. Check the path.") from error
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise ConfigError(
            f"{path} is not a checkpoint of tensors, or holds code, which is not loaded "
            f"({type(error).__name__})."
        ) from error
    state = content.get("state_dict", content) if isinstance(content, dict) else {}
    for key in ("prompt_learner.ctx", "ctx"):
        if isinstance(state, dict) and isinstance(state.get(key), Tensor):
            return state[key].detach().float()
    known = ", ".join(sorted(map(str, state))[:8]) if isinstance(state, dict) else "nothing"
    raise ConfigError(f"{path} holds no 'prompt_learner.ctx'. It holds: {known}.")
