"""A client's part on its way to the next client: two flat vectors, and the digest of what they stand for.

    module ─▶ floating-point tensors as one float32 vector, whole numbers as one int64 vector, digest ─▶ next module

The digest covers names, shapes and types of all parameters and persistent buffers, and the values as they travel. So a
part arrives as it was sent, or not at all, and at a module of the same kind only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from blake3 import blake3
from torch import nn

from minga.averaging.codecs.tensor_bytes import as_bytes
from minga.split.computing.parts import Tensors


class WrongPartError(ValueError):
    """What came is not what was sent, or belongs to another module."""


def pack(module: nn.Module) -> tuple[Tensors, str]:
    """The vectors (one or two, none for a module without state), and the digest, 64 hexadecimal digits."""
    state = module.state_dict()
    floating = [each.detach().to("cpu", torch.float32).flatten() for each in _of(state, floating=True)]
    whole = [each.detach().to("cpu", torch.int64).flatten() for each in _of(state, floating=False)]
    vectors = tuple(torch.cat(each) for each in (floating, whole) if each)
    vectors = tuple(each for each in vectors if each.numel())
    return vectors, _digest(module, vectors)


def unpack(module: nn.Module, vectors: Sequence[torch.Tensor], digest: str) -> None:
    """Put what `pack` made of another module of this kind into this one, in place.

    Raises `WrongPartError`, with nothing changed, for anything else.
    """
    state = module.state_dict()
    groups = [
        found for found in (_of(state, floating=True), _of(state, floating=False)) if sum(e.numel() for e in found)
    ]
    if [each.numel() for each in vectors] != [sum(e.numel() for e in found) for found in groups]:
        raise WrongPartError("it has other sizes than the clients' part here")
    if _digest(module, vectors) != digest:
        raise WrongPartError("its digest is another one")
    with torch.no_grad():
        for vector, found in zip(vectors, groups, strict=True):
            start = 0
            for each in found:
                each.copy_(vector[start : start + each.numel()].view(each.shape))
                start += each.numel()


def _of(state: dict[str, torch.Tensor], *, floating: bool) -> list[torch.Tensor]:
    return [state[name] for name in sorted(state) if state[name].is_floating_point() == floating]


def _digest(module: nn.Module, vectors: Sequence[torch.Tensor]) -> str:
    hasher = blake3()
    for name, tensor in sorted(module.state_dict().items()):
        hasher.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
    for vector in vectors:
        hasher.update(as_bytes(vector.contiguous().view(torch.uint8)))
    return hasher.hexdigest()
