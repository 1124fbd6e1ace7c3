"""What one peer alone has beside the state that all share, and its file in the run's folder.

A checkpoint holds the shared state. Beside it a peer keeps the residuals of lossy uploads, what its sketch left out,
and the local tensors of its strategy. They are written with the peer's checkpoint of the same step, and with a last
one at a polite end: `own-….safetensors`, with JSON in its metadata. A file counts only with the shared state of its
step and history (`minga.training.lineage`), in the run, for the vector and with the strategy for which it was written.

After a kill the others may have gone on, and rounds after the checkpoint may have counted some of what it holds. So
what such a file brings back is in doubt, unless the peer goes on from the very step of the file. A file of a polite
end is final: no round took anything of it afterwards. Of a copy of it nobody knows that, so backups leave it out.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import torch
from blake3 import blake3
from safetensors import SafetensorError, safe_open

from minga.averaging.codecs.interface import is_finite
from minga.averaging.codecs.residual import KeptResidual
from minga.averaging.codecs.tensor_bytes import as_bytes
from minga.core.decoding import DECODING_ERRORS, decode_json
from minga.core.errors import StorageError, reason_of
from minga.core.files import replacing, unfinished_of
from minga.core.spec.run_spec import RunSpec
from minga.network.interface import PeerId
from minga.training.state.checkpoints import Pieces, check_format, write_tensors
from minga.training.state.snapshot import DTYPE_NAMES, TensorEntry

FORMAT = 2
MAX_HEADER_BYTES = 1 << 20
_LOCAL, _RESIDUAL, _SKETCH = "local/", "residual/", "sketch/"
_NAME = re.compile(r"own-[0-9a-f]{16}\.safetensors")

logger = logging.getLogger("minga.training")

T = TypeVar("T")


@dataclass(frozen=True)
class OwnState:
    """The own part of a peer's state after global step `step`, to which these `rounds` led (`Lineage.rounds`).

    `local` are the tensors of its `strategy`, `residuals` those of uploads by the fingerprints of their layouts, and
    `left_out` what its sketch left out, by those of the vectors. `is_final`: the peer has given nothing to any round
    since.
    """

    step: int
    rounds: str
    is_final: bool
    strategy: str
    local: Mapping[str, torch.Tensor] = field(default_factory=dict)
    residuals: Mapping[str, KeptResidual] = field(default_factory=dict)
    left_out: Mapping[str, KeptResidual] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether a peer without it would go on in the same way."""
        return not (self.local or self.residuals or self.left_out)


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The metadata: `owner` names run, vector and strategy; `residual_steps` are those of the last committed rounds,
    `blake3` is of all tensors in the order of their names.
    """

    format: int
    owner: str
    step: int
    rounds: str
    is_final: bool
    residual_steps: dict[str, int]
    blake3: str


def is_own_state(name: str) -> bool:
    """Whether a file of this name is such a one."""
    return _NAME.fullmatch(name) is not None


class OwnStateFile:
    """The file of one peer. All methods block: use a thread."""

    def __init__(self, directory: Path, peer: PeerId, spec: RunSpec, vector: str) -> None:
        self.path = directory / f"own-{peer[:16]}.safetensors"
        self._owner = f"{spec.run_id} {vector}"

    def save(self, state: OwnState) -> None:
        """Write it in the place of the last one, which stays if the disk refuses: that raises `StorageError`."""
        tensors = {f"{_LOCAL}{name}": tensor.contiguous() for name, tensor in state.local.items()}
        kept = {f"{_RESIDUAL}{name}": each for name, each in state.residuals.items()}
        kept |= {f"{_SKETCH}{name}": each for name, each in state.left_out.items()}
        tensors |= {name: each.mass for name, each in kept.items()}
        steps = {name: each.step for name, each in kept.items()}
        owner = f"{self._owner} {state.strategy}"
        header = _Header(FORMAT, owner, state.step, state.rounds, state.is_final, steps, _hash_of(tensors))
        try:
            with replacing(self.path) as path, path.open("wb") as file:
                write_tensors(file, _with_bytes(tensors), {"minga": msgspec.json.encode(header).decode()})
        except OSError as error:
            raise StorageError(
                f"{self.path} could not be written: {reason_of(error)}; the last one is untouched"
            ) from error

    def load(self, step: int, rounds: str, limit_bytes: int, strategy: str) -> OwnState | None:
        """What was written with the shared state of `step` to which these `rounds` led, and which is `strategy`'s; None
        if there is none, or none that can be used.

        A file of more than `limit_bytes` of tensors is not read. What cannot be used is removed, and logged; so is,
        without a word, what earlier processes had begun to write when they were killed. Raises `StorageError` for one
        of a newer minga, which stays.
        """
        for unfinished in unfinished_of(self.path):
            with contextlib.suppress(OSError):
                unfinished.unlink()
        if not self.path.exists():
            return None
        try:
            return self._read(step, rounds, limit_bytes, strategy)
        except (OSError, ValueError, SafetensorError, *DECODING_ERRORS) as error:
            logger.warning("%s is not used: %s; what this peer alone had begins anew", self.path, error)
            with contextlib.suppress(OSError):
                self.path.unlink()
            return None

    def _read(self, step: int, rounds: str, limit_bytes: int, strategy: str) -> OwnState:
        with safe_open(self.path, framework="pt", device="cpu") as file:
            text = (file.metadata() or {}).get("minga", "")
            check_format(text, FORMAT, self.path)
            if self.path.stat().st_size > limit_bytes + MAX_HEADER_BYTES:
                raise ValueError("it is impossibly large")
            header = decode_json(text, _Header)
            if header.format != FORMAT or header.owner != f"{self._owner} {strategy}":
                raise ValueError("it is of another run, another model or another strategy")
            if header.step != step:
                raise ValueError(f"it is of step {header.step}, and the state here is of step {step}")
            if header.rounds != rounds:
                raise ValueError("other rounds led to its state than to the one here")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (this is no dictionary)
        if _hash_of(tensors) != header.blake3:
            raise ValueError("it is damaged")
        kept = {name: KeptResidual(header.residual_steps.get(name, -1), tensor) for name, tensor in tensors.items()}
        kept = {name: each for name, each in kept.items() if not name.startswith(_LOCAL)}
        for name, each in kept.items():
            known = name.startswith((_RESIDUAL, _SKETCH))
            right = each.mass.dtype == torch.float32 and each.mass.dim() == 1 and 0 <= each.step < max(step, 1)
            if not (known and right and is_finite(each.mass)):
                raise ValueError(f"its {name[:80]!r} is no residual of an earlier step")
        return OwnState(
            step,
            rounds,
            header.is_final,
            strategy,
            _inside(_LOCAL, tensors),
            _inside(_RESIDUAL, kept),
            _inside(_SKETCH, kept),
        )


def _inside(folder: str, found: Mapping[str, T]) -> dict[str, T]:
    """What is in one folder of names, by the rest of these."""
    return {name.removeprefix(folder): each for name, each in found.items() if name.startswith(folder)}


def _with_bytes(tensors: Mapping[str, torch.Tensor]) -> list[tuple[TensorEntry, Pieces]]:
    return [
        (TensorEntry(name, DTYPE_NAMES[tensor.dtype], tuple(tensor.shape)), partial(_bytes_of, tensor))
        for name, tensor in tensors.items()
    ]


def _bytes_of(tensor: torch.Tensor) -> Iterator[memoryview]:
    yield as_bytes(tensor.view(-1).view(torch.uint8))


def _hash_of(tensors: Mapping[str, torch.Tensor]) -> str:
    hasher = blake3()
    for name in sorted(tensors):
        tensor = tensors[name]
        hasher.update(json.dumps([name, DTYPE_NAMES[tensor.dtype], list(tensor.shape)]).encode())
        hasher.update(as_bytes(tensor.contiguous().view(-1).view(torch.uint8)))
    return hasher.hexdigest()
