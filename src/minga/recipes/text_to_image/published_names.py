"""Parameters as dalle-pytorch names them, so that a state of the paper's run becomes one of this recipe.

There each layer lists the weights that it shares with others once more; all copies have to be equal. Its layers are
those of `PATTERN`, with token shift, rotary embeddings and shared input and output embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from minga.core.errors import ConfigurationError
from minga.recipes.text_to_image.decoder.model import TextToImageDecoder
from minga.recipes.text_to_image.decoder.shape import DecoderShape

_ATTENTION: Final = {
    "query_key_value.weight": "to_qkv.weight",
    "out.weight": "to_out.0.weight",
    "out.bias": "to_out.0.bias",
}
_FEED_FORWARD: Final = {
    "gated.weight": "net.0.weight",
    "gated.bias": "net.0.bias",
    "out.weight": "net.3.weight",
    "out.bias": "net.3.bias",
}
_HEAD: Final = {
    "norm.weight": "to_logits.0.weight",
    "norm.bias": "to_logits.0.bias",
    "logits.weight": "to_logits.1.weight",
    "logits.bias": "to_logits.1.bias",
}
_INNER: Final = "net.fn.fn.fn"
"""The way to the weights of a sub-layer there: scale, norm, shift."""


def published_names(shape: DecoderShape) -> dict[str, str]:
    """Our name of each of their parameters."""
    names = {theirs: ours for ours, theirs in _HEAD.items()}
    for number, layer in enumerate(shape.plan()):
        for side, part, stack, inner in (
            ("f", "attention", "attentions", _ATTENTION),
            ("g", "feed_forward", "feed_forwards", _FEED_FORWARD),
        ):
            block = f"transformer.layers.blocks.{number}.{side}"
            own = f"layers.{number}.{part}"
            names[f"{block}.net.scale"] = f"{own}.scale"
            names[f"{block}.net.fn.norm.weight"] = f"{own}.norm.weight"
            names[f"{block}.net.fn.norm.bias"] = f"{own}.norm.bias"
            for ours, theirs in inner.items():
                names[f"{block}.{_INNER}.{theirs}"] = f"{stack}.{layer.weights}.{ours}"
    return names


def from_published(state: Mapping[str, Tensor], shape: DecoderShape) -> dict[str, Tensor]:
    """Our state dict out of theirs; what is no parameter there, such as tables of positions, is left out.

    Raises `ConfigurationError` if parameters are missing, have other shapes, or copies of shared weights differ.
    """
    with torch.device("meta"):
        wanted = {name: each.shape for name, each in TextToImageDecoder(shape).state_dict().items()}
    found: dict[str, Tensor] = {}
    for theirs, ours in published_names(shape).items():
        if theirs not in state:
            raise ConfigurationError(f"the published state has no {theirs}, so it is of another model")
        tensor = state[theirs].detach().float().reshape(-1)
        if tensor.numel() != wanted[ours].numel():
            raise ConfigurationError(f"{theirs} has {tensor.numel()} values; this size needs {tuple(wanted[ours])}")
        tensor = tensor.reshape(wanted[ours])
        if ours in found and not torch.equal(found[ours], tensor):
            raise ConfigurationError(f"{theirs} differs from other copies of the same weights")
        found[ours] = tensor
    return found


def read_published(path: Path, shape: DecoderShape) -> dict[str, Tensor]:
    """`from_published` of a file that torch wrote; it may hold tensors only, and nothing in it is run.

    Raises `ConfigurationError` for anything else.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler raises errors of many kinds for what it refuses
        raise ConfigurationError(f"{path}: not a state of parameters: {str(error)[:200]}") from error
    if not isinstance(state, Mapping):
        raise ConfigurationError(f"{path}: not a state of parameters")
    return from_published({str(name): each for name, each in state.items() if isinstance(each, Tensor)}, shape)
