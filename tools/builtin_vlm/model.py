"""The model that is trained, and how it starts."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from transformers import CLIPConfig, CLIPModel

from builtin_vlm.data import GRID, INPUT, Pool, crop, normalise
from builtin_vlm.text import MAX_TOKENS


def make_config(vocabulary: int) -> CLIPConfig:
    text = {
        "vocab_size": vocabulary, "hidden_size": 160, "intermediate_size": 480,
        "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": MAX_TOKENS,
        "hidden_act": "gelu", "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3,
    }  # fmt: skip
    vision = {
        "image_size": INPUT, "patch_size": INPUT // GRID, "hidden_size": 192,
        "intermediate_size": 576, "num_hidden_layers": 5, "num_attention_heads": 4,
        "hidden_act": "gelu",
    }  # fmt: skip
    return CLIPConfig(text_config=text, vision_config=vision, projection_dim=160)


class Trainee(nn.Module):
    """The model to keep, and two heads that only help it to learn."""

    def __init__(self, config: CLIPConfig, keys: dict[str, list[str]]) -> None:
        super().__init__()
        self.clip = CLIPModel(config)
        self.keys = keys
        self.facts = nn.ModuleDict(
            {str(i): nn.Linear(config.projection_dim, len(v)) for i, v in enumerate(keys.values())}
        )
        self.where = nn.Linear(config.projection_dim, 1)

    def images(self, pixels: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Projected class token [B, d] and patches [B, K, d], as the adapter computes them.

        Only the patches in `kept` [B, K] are looked at: half of them for most of the
        training, which halves its cost.
        """
        vision = self.clip.vision_model
        tokens = vision.embeddings(pixels)
        rows = torch.arange(len(tokens))[:, None]
        tokens = torch.cat([tokens[:, :1], tokens[rows, kept + 1]], dim=1)
        tokens = vision.encoder(inputs_embeds=vision.pre_layrnorm(tokens)).last_hidden_state
        projected = self.clip.visual_projection(vision.post_layernorm(tokens))
        return projected[:, 0], projected[:, 1:]

    def texts(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Projected texts [B, d]; short texts go together, for padding is work for nothing."""
        lengths = mask.sum(1)
        order = lengths.argsort(stable=True)
        parts = []
        for rows in order.chunk(4):
            longest = int(lengths[rows].max())
            part = self.clip.text_model(input_ids=ids[rows, :longest]).pooler_output
            parts.append(part)
        pooled = torch.cat(parts)[order.argsort()]
        return self.clip.text_projection(pooled)


@torch.no_grad()
def start_from_principal_patches(model: CLIPModel, pools: list[Pool], seed: int) -> None:
    """Begin with the main components of real patches, faint ones lifted.

    A random start sees little but the mean colour of a patch, and takes long to find texture.
    """
    rng = np.random.default_rng(seed)
    side = INPUT // GRID
    patches = []
    for pool in pools:
        for row in rng.integers(0, len(pool.images), 150):
            pixels = crop(pool, int(row), rng)[0]
            cells = pixels.reshape(GRID, side, GRID, side, 3).transpose(0, 2, 4, 1, 3)
            patches.append(cells.reshape(GRID * GRID, 3, side, side)[rng.permutation(64)[:16]])
    data = normalise(torch.from_numpy(np.concatenate(patches))).flatten(1).double()
    data = data - data.mean(0)
    values, vectors = torch.linalg.eigh(data.T @ data / len(data))
    weight = model.vision_model.embeddings.patch_embedding.weight
    count = weight.shape[0]
    values, vectors = values.flip(0)[:count], vectors.flip(1)[:, :count]
    lift = (values + 1e-3 * values[0]) ** -0.4
    weight.copy_((vectors * lift).T.reshape(weight.shape) / (values**0.5 * lift).mean())
