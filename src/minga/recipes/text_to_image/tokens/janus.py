"""A published image tokenizer: the VQ auto-encoder of Janus, as transformers has it, from a folder or the hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from minga.core.errors import ConfigurationError
from minga.recipes.language.config_guard import bounded_modules
from minga.recipes.text_to_image.tokens.fsq import Codes, Pictures, as_tensor

_AT_A_TIME: Final = 16
_MOST: Final = 1 << 16
_TAKEN: Final = frozenset(
    {"embed_dim", "num_embeddings", "double_latent", "latent_channels", "num_patches", "in_channels", "out_channels"}
    | {"base_channels", "channel_multiplier", "num_res_blocks", "dropout", "initializer_range", "projection_dim"}
    | {"num_hidden_layers", "hidden_act", "image_token_embed_dim"}
)
"""What a configuration may say; other keys name programs and places, or have no meaning here."""


class JanusTokenizer(nn.Module):
    """`transformers.JanusVQVAE` of a configuration, with the interface of our tokenizers."""

    kind = "janus"

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        if not isinstance(config, Mapping):
            raise TypeError("its configuration is no table")
        self.config = {name: value for name, value in config.items() if name in _TAKEN}
        numbers = [value for each in self.config.values() for value in (each if isinstance(each, list) else [each])]
        if any(isinstance(value, int | float) and abs(value) > _MOST for value in numbers):
            raise ValueError("a number of its configuration is too large")
        from transformers import JanusVQVAE, JanusVQVAEConfig  # takes seconds, and few runs need it

        try:
            with bounded_modules():
                self.model = JanusVQVAE(JanusVQVAEConfig(**self.config))
        except ConfigurationError:
            raise
        except Exception as error:  # the library has errors of its own for each setting
            raise ValueError(str(error)) from error

    @property
    def codes(self) -> int:
        """How many codes there are."""
        return int(self.model.config.num_embeddings)

    def description(self) -> dict[str, Any]:
        """The configuration."""
        return {"config": self.config}

    def encode(self, pictures: Pictures) -> Codes:
        """The codes of `pictures`."""
        parts = []
        with torch.no_grad():
            for start in range(0, len(pictures), _AT_A_TIME):
                some = as_tensor(pictures[start : start + _AT_A_TIME])
                parts.append(self.model.encode(some).image_tokens.reshape(len(some), -1).long().numpy())
        return np.concatenate(parts)

    def decode(self, codes: Codes) -> Pictures:
        """The pictures of codes [n, S²]."""
        parts = []
        with torch.no_grad():
            for start in range(0, len(codes), _AT_A_TIME):
                drawn = self.model.decode(torch.from_numpy(codes[start : start + _AT_A_TIME]))
                pixels = ((drawn.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
                parts.append(pixels.movedim(1, -1).numpy())
        return np.concatenate(parts)


def published_tokenizer(source: str) -> JanusTokenizer:
    """The tokenizer in a folder, or of the hub (`OWNER/NAME`), by its safetensors; no code of theirs runs.

    Raises `ConfigurationError` if there is none.
    """
    from transformers import JanusVQVAE

    local = Path(source).expanduser()
    try:
        model = JanusVQVAE.from_pretrained(
            str(local) if local.is_dir() else source, use_safetensors=True, trust_remote_code=False
        )
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        raise ConfigurationError(
            f"image_tokenizer: {source!r} is no JanusVQVAE with safetensors: {str(error)[:300]}"
        ) from error
    tokenizer = JanusTokenizer(model.config.to_diff_dict())
    tokenizer.model.load_state_dict(model.state_dict())
    for each in tokenizer.parameters():
        each.requires_grad_(False)
    return tokenizer.eval()
