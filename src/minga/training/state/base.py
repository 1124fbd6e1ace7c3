"""The base of a run: tensors of the model that no step changes, which states name and do not hold.

Theory of operation. Whoever trains an adapter, or a head on a body that stays, trains a small part of a large model.
The rest is the base: each peer brings it, and nobody sends or saves it. A state says of each of its tensors the dtype,
the shape and a hash, under the scalar `trains`. So the base is part of every digest, from that of the run's first state
on, and a peer or a checkpoint that has another one is refused by the name of a tensor.

The base consists of the parameters that require no gradient or are not in the optimizer, and of all that layers with
packed weights keep beside them (buffers, and the scales that some save without a name of their own). A packed layer is
one that has integers of at least two dimensions, other than indices (int64): no layer learns those. Other buffers move,
and belong to the buffers policy of the run.

Peers may hold the same base in forms of their own, such as in 8 bits. Then the program says what it is
(`minga.Optimizer(base=...)`), by what all of them have: the files that they loaded. That is taken on trust for tensors
that are here in another form; all others are hashed and have to be what the program says.

Two things make frozen parameters a part of the state instead: an `after_update`, by which they may follow the trained
ones as an average of these does, and a run spec that says `state.share_base`, so that newcomers get them from peers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, Final

import msgspec
import torch
from blake3 import blake3
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from minga.core.decoding import DECODING_ERRORS, take_as
from minga.core.errors import ConfigurationError, UnfitError
from minga.core.printable import is_printable
from minga.core.units import and_others
from minga.optim.shards import is_sharded
from minga.training.state.manifest import MAX_DIMENSIONS, MAX_NAME_CHARACTERS
from minga.training.state.model_names import ModelNames, by_name
from minga.training.state.scalars import TRAINS, Json
from minga.training.state.tensor_access import TensorAccess

BASE: Final = "base"
"""The key of the base in what a state says of what trains."""
_HASH_CHARACTERS: Final = 32
_PARALLEL_BYTES: Final = 32 << 20
"""Tensors of at least this size are hashed by several threads."""


class BaseTensor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a state says of one tensor of the base."""

    dtype: Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9_]{1,60}\Z")]
    shape: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(max_length=MAX_DIMENSIONS)]
    hash: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
    """32 hexadecimal digits that stand for dtype, shape and bytes."""


Base = Mapping[str, BaseTensor]
"""All of them, by their names in the model."""


def base_of(scalars: Mapping[str, Json]) -> dict[str, BaseTensor]:
    """The base of a state with these scalars, which another peer may have written; empty if they speak of none.

    Raises `ConfigurationError` if they are malformed.
    """
    said = scalars.get(TRAINS)
    if not isinstance(said, dict) or BASE not in said:
        return {}
    try:
        base: dict[str, BaseTensor] = take_as(said[BASE], dict[str, BaseTensor])
    except DECODING_ERRORS as error:
        raise ConfigurationError(f"the state's scalars are malformed: the base of the run: {error}") from error
    if any(len(name) > MAX_NAME_CHARACTERS or not is_printable(name) for name in base):
        raise ConfigurationError("the state's scalars are malformed: a tensor of the base has no usable name")
    return base


def hashed(tensors: Mapping[str, torch.Tensor], access: TensorAccess, given: Base | None = None) -> Base:
    """What a state says of these `tensors`, in the order of their names: about 0.3 s per GB and core, and the way from
    a device. Of those that are here in another form than the program has `given`, it says what is given.
    """
    given = given or {}
    return {
        name: given[name]
        if name in given and not has_form(each, given[name])
        else BaseTensor(_dtype(each), tuple(each.shape), hash_of(each, access))
        for name, each in by_name(tensors.items()).items()
    }


def has_form(tensor: torch.Tensor, said: BaseTensor) -> bool:
    """Whether a tensor has bytes of its own, in the dtype and shape that is `said`, so that its hash is to be that."""
    return not holds_others(tensor) and (_dtype(tensor), tuple(tensor.shape)) == (said.dtype, said.shape)


def hash_of(tensor: torch.Tensor, access: TensorAccess) -> str:
    """32 hexadecimal digits that stand for the dtype, shape and bytes of a tensor; of one that holds others in packed
    form, as quantised weights do, for theirs, and for how they are packed.
    """
    hasher = blake3(max_threads=blake3.AUTO if tensor.numel() * tensor.itemsize >= _PARALLEL_BYTES else 1)
    for part, packing in _stored(tensor):
        hasher.update(f"{part.dtype} {list(part.shape)}{packing}\n".encode())
        for piece in access.read([part.detach()]):
            hasher.update(piece.numpy().data)
    return hasher.hexdigest(length=_HASH_CHARACTERS // 2)


def holds_others(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no bytes of its own, but others that hold it in packed form."""
    kept: Any = tensor  # no type says that such tensors are tensors
    return bool(is_traceable_wrapper_subclass(kept)) and not is_sharded(tensor)


def check_base(run: Base, own: Base) -> None:
    """Raise `UnfitError` that names what both have otherwise: the largest, which is the weight of a layer."""
    if not (differing := [name for name in own if name in run and run[name] != own[name]]):
        return
    first = largest(differing, own)
    theirs, ours = (f"{base[first].dtype} {list(base[first].shape)}" for base in (run, own))
    found = "is frozen and has other values in the run than in this program"
    if theirs != ours:
        found = f"is frozen, and it is {theirs} in the run and {ours} in this program"
    raise UnfitError(
        f"`{first}` {found}{and_others(differing)}: begin from the same weights on all peers, with the "
        "same quantisation, or seed the model alike where they are random"
    )


def largest(names: Iterable[str], base: Base) -> str:
    """That of the tensor with the most elements."""
    return max(names, key=lambda name: math.prod(base[name].shape))


def packed_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What layers with packed weights keep beside their parameters, by name."""
    names, found = ModelNames(model), dict[str, torch.Tensor]()
    packed = {names.clean(path): any(map(_is_packed, _own_tensors(module))) for path, module in model.named_modules()}
    parameters = names.parameters() if any(packed.values()) else {}
    for name, value in names.saved().items() if parameters else ():
        home = name.rpartition(".")[0]
        while home and home not in packed:
            home = home.rpartition(".")[0]
        if packed.get(home) and isinstance(value, torch.Tensor) and name not in parameters:
            found[name] = value
    return by_name(found.items())


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _own_tensors(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)


def _is_packed(tensor: torch.Tensor) -> bool:
    return tensor.ndim >= 2 and tensor.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32)


def _stored(tensor: torch.Tensor, packing: str = "") -> Iterator[tuple[torch.Tensor, str]]:
    """The tensors that hold the bytes of one, each with how those around it are packed, such as in blocks of 32."""
    if not holds_others(tensor):
        yield tensor, packing
        return
    holder: Any = tensor
    names, settings = holder.__tensor_flatten__()
    packing += f" {_in_words(settings)}"
    for name in names:
        yield from _stored(getattr(tensor, name), packing)


def _in_words(settings: object) -> str:
    """Settings of the class of a library, without places in memory and whatever else differs from run to run."""
    if isinstance(settings, Mapping):
        return ",".join(f"{key}:{_in_words(settings[key])}" for key in sorted(settings, key=str))
    if isinstance(settings, Sequence) and not isinstance(settings, str):
        return f"({','.join(map(_in_words, settings))})"
    is_plain = settings is None or isinstance(settings, (bool, int, float, str, Enum, torch.dtype))
    return str(settings) if is_plain else type(settings).__name__
