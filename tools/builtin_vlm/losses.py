"""What the training minimises."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from builtin_vlm.batches import Batch
from builtin_vlm.model import Trainee


def contrast(images: Tensor, texts: Tensor, agrees: Tensor, scale: Tensor) -> Tensor:
    """Soft-target InfoNCE both ways; chance matches count as matches."""
    logits = scale * texts @ images.T  # [captions, images]
    by_text = -(F.log_softmax(logits, 1) * agrees / agrees.sum(1, keepdim=True)).sum(1).mean()
    columns = agrees / agrees.sum(0, keepdim=True)
    by_image = -(F.log_softmax(logits, 0) * columns).sum(0).mean()
    return (by_text + by_image) / 2


def fact_loss(model: Trainee, features: Tensor, labels: list[Tensor]) -> Tensor:
    """Read each fact off the features. Images and texts share the readers: that aligns them."""
    parts = [features.new_zeros(())]
    for head, wanted in zip(model.facts.values(), labels, strict=True):
        rows = (wanted >= 0).nonzero()[:, 0]
        if len(rows):
            loss = F.cross_entropy(head(features[rows]), wanted[rows], reduction="sum")
            parts.append(loss / len(wanted))
    return torch.stack(parts).sum()


def losses(model: Trainee, batch: Batch) -> dict[str, Tensor]:
    image, patches = model.images(batch.pixels, batch.kept)
    said = model.texts(batch.ids, batch.mask)
    texts = F.normalize(said, dim=-1)
    scale = model.clip.logit_scale.exp().clamp(max=100)
    # Patches of the finding (all of them where there is none) should say what the text says.
    weight = (batch.where > 0.25).float()
    weight = torch.where(weight.sum(1, keepdim=True) > 0, weight, torch.ones_like(weight))
    unit = F.normalize(patches, dim=-1)
    local = (unit * weight[..., None]).sum(1) / weight.sum(1, keepdim=True)
    finding = (patches * weight[..., None]).sum(1) / weight.sum(1, keepdim=True)
    where = F.binary_cross_entropy_with_logits(model.where(patches)[..., 0], batch.where)
    return {
        "global": contrast(F.normalize(image, dim=-1), texts, batch.agrees, scale),
        "local": 0.4 * contrast(F.normalize(local, dim=-1), texts, batch.agrees, scale),
        "facts": 0.4 * fact_loss(model, image, batch.labels),
        "found": 0.4 * fact_loss(model, finding, batch.labels),
        "stated": 1.0 * fact_loss(model, said, batch.stated),
        "where": 4.0 * where,
    }
