"""SiglipModel folders: SigLIP and MedSigLIP."""

from __future__ import annotations

import re
import string
from collections.abc import Callable

from torch import Tensor, nn

from ogkd.backbones._model_folder import ModelFolder
from ogkd.backbones._open_clip_config import read_json
from ogkd.backbones._transformers_base import TransformersBackbone, run_layers
from ogkd.backbones.base import TextDropout, Tokens
from ogkd.errors import BackboneError
from ogkd.images.transforms import Preprocessing

__all__ = ["SiglipBackbone", "canonical", "load_siglip"]

_PUNCTUATION = str.maketrans("", "", string.punctuation)


class SiglipBackbone(TransformersBackbone):
    """SiglipModel: attention pooling of the image, last token of the text.

    Texts are padded to the full context and NOT trimmed: the tower was trained so, without a
    mask, attends both ways and reads its feature off the last position, padding or not. A
    shorter row would be another function. `Tokens.mask` still marks the text itself.

    There is no projection to share: patches are the normalised final states of the image tower.
    They live beside the pooled feature only roughly, as the pooling head has its own weights.
    The stored `logit_bias` is the same for all classes, so a softmax does not see it.
    """

    pads_fully = True

    def _widths(self) -> tuple[int, int]:
        config = self.model.config
        return config.vision_config.hidden_size, config.text_config.hidden_size

    def _word_embeddings(self) -> nn.Embedding:
        embeddings: nn.Embedding = self.model.text_model.embeddings.token_embedding
        return embeddings

    def _encode_pixels(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        output = self.model.vision_model(pixel_values=pixels)
        return output.pooler_output, output.last_hidden_state

    def _encode_embeddings(
        self, embeddings: Tensor, tokens: Tokens, dropout: TextDropout | None
    ) -> Tensor:
        if embeddings.shape[1] != self.context_length:
            raise BackboneError(
                f"{self.name} takes texts padded to {self.context_length} tokens but got "
                f"{embeddings.shape[1]}: SigLIP reads its feature off the last of them. "
                "Use the tokens of backbone.tokenize as they are."
            )
        text = self.model.text_model
        hidden = run_layers(
            text.encoder.layers,
            text.embeddings(inputs_embeds=embeddings),
            causal=False,
            dropout=dropout,
            rate=self.model.config.text_config.attention_dropout,
        )
        pooled: Tensor = text.head(text.final_layer_norm(hidden[:, -1]))
        return pooled


def canonical(text: str) -> str:
    """Lower case, no punctuation, single spaces: how SigLIP's tokenizer sees a text."""
    return re.sub(r"\s+", " ", text.lower().translate(_PUNCTUATION)).strip()


def load_siglip(source: ModelFolder) -> SiglipBackbone:
    """Read a SiglipModel folder."""
    from transformers import SiglipConfig, SiglipModel

    model = source.model(SiglipConfig, SiglipModel)
    text, vision = model.config.text_config, model.config.vision_config
    if text.projection_size != vision.hidden_size or not model.vision_model.use_head:
        raise BackboneError(
            f"{source.path / 'config.json'} has no common space: text features of "
            f"{text.projection_size} numbers, image features of {vision.hidden_size} with "
            f"pooling head {model.vision_model.use_head}. Use a whole SigLIP, not one tower of it."
        )
    half = (0.5, 0.5, 0.5)
    return SiglipBackbone(
        source,
        model,
        tokenizer=source.tokenizer(
            vocabulary=text.vocab_size,
            pad_id=text.pad_token_id,
            prepare=_preparation(source),
        ),
        preprocessing=source.preprocessing(
            Preprocessing(size=vision.image_size, mean=half, std=half, resize="squash")
        ),
        context_length=text.max_position_embeddings,
    )


def _preparation(source: ModelFolder) -> Callable[[str], str]:
    """What the tokenizer's Python class does to a text; tokenizer.json may leave it out."""
    path = source.path / "tokenizer_config.json"
    named = read_json(path, name=source.name).get("tokenizer_class") if path.is_file() else None
    # The second SigLIP uses Gemma's tokenizer and was trained on lower case, punctuation kept.
    return str.lower if str(named).startswith(("Gemma", "Siglip2")) else canonical
