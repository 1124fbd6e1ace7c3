"""The replicas of a peer whose model is sharded over its ranks by `fully_shard`.

As in `rank_replicas.py` rank 0 says what is done. But no vector and no state travels whole: where rank 0 loads or reads
one, every rank streams its own shard (`shard_stream.py`). Beside the messages there:

    rank 0                            other ranks
      ◀────── samples ─────────────────    collect: the gradients stay where they are
      ── GATHER ──────────────────────▶    send the shard of the gradients; not if the micro-batch is dropped
      ── READ ────────────────────────▶    send the shard of the parameters
      ── STATE ───────────────────────▶    send the shard of the state
      ── DIGEST ──────────────────────▶    the same, and hear the digest

FSDP has taken the mean of the gradients over the ranks, each as much as any other. The optimizer steps on shards in
every rank; norms are those of whole tensors (`minga.optim`), so optimizers of `minga.optim` come to equal bits with a
peer of one process.
"""

from __future__ import annotations

import atexit
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import torch

from minga.averaging.strategy_choice import StrategyChoice
from minga.core.decoding import decode_json
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.training.ranks.process_group import DIGEST, GATHER, READ, STATE, Header, ProcessGroup
from minga.training.ranks.rank_replicas import Combiner, FollowerReplica, LeaderReplica, RankReplica
from minga.training.ranks.shard_map import count_shards
from minga.training.ranks.shard_stream import ShardStream
from minga.training.ranks.sharded_state import ShardedAccess, check_kept
from minga.training.ranks.sharded_vector import ShardedVector
from minga.training.replica.flat_vector import ParameterVector
from minga.training.replica.trained_record import TrainedRecord
from minga.training.state.sketch import Sketch, sketch_of
from minga.training.state.snapshot import StateSnapshot
from minga.training.state.state_dict import STRATEGY
from minga.training.state.tensor_access import TensorAccess

_OTHER_STATE: Final = (
    "the strategy of this run keeps another state than model and optimizer, which a peer with a sharded model cannot; "
    "take part with a model that is not sharded"
)


class ShardedReplica(RankReplica):
    """What the ranks have in common. Raises `ConfigurationError` for what a sharded model cannot have."""

    vector: ShardedVector

    def __init__(self, ranks: ProcessGroup, spec: RunSpec, optimizer: torch.optim.Optimizer, **settings: Any) -> None:
        self._reshard = _resharding(settings.get("model"))
        if settings.get("rules") is not None or settings.get("after_update") is not None:
            raise ConfigurationError("rules= and after_update= read whole parameters: they are not for a sharded model")
        later = spec.training.strategies[1:]
        if not all(StrategyChoice.of(spec, name).facts.shares_optimizer for name in later):
            raise ConfigurationError(_OTHER_STATE)
        given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        trained = [parameter for parameter in given if parameter.requires_grad]
        self._stream = ShardStream(ranks, count_shards(trained, settings["model"].parameters(), ranks.size))
        super().__init__(ranks, spec, optimizer, **settings)
        atexit.register(ranks.end)

    def settle(self) -> None:
        """Give back what FSDP has put together for a forward pass, such as an evaluation that no backward followed."""
        for reshard in self._reshard:
            reshard()

    def collect(self, samples: int, loss: float | torch.Tensor | None = None) -> int:
        """Count the micro-batches of all ranks, whose gradients FSDP has combined."""
        self.settle()
        return super().collect(samples, loss)

    def _new_vector(
        self, optimizer: torch.optim.Optimizer, spec: RunSpec, model: torch.nn.Module | None
    ) -> ParameterVector:
        return ShardedVector(self._ranks, self._stream, optimizer, self._buffers, spec.averaging, model)

    def _new_access(self) -> TensorAccess:
        return ShardedAccess(self._ranks, self._stream)

    def _agreed(self, record: TrainedRecord) -> TrainedRecord:
        hashes = self._ranks.share_bytes(msgspec.json.encode([record.frozen, record.packed]))  # rank 0 alone read all
        frozen, packed = decode_json(hashes, tuple[dict[str, str], dict[str, str]])
        return dataclasses.replace(record, frozen=frozen, packed=packed)

    def _new_combiner(self, model: torch.nn.Module | None) -> Combiner:  # noqa: ARG002
        return _ShardedCombiner(self._ranks, self)

    def _end(self) -> None:
        """The state can still be read after the run; the ranks part at the end of their processes."""


class ShardedLeader(ShardedReplica, LeaderReplica):
    """Rank 0's part, and the whole as the swarm sees it."""

    def define_shared(self, shared: Callable[[], Mapping[str, torch.Tensor]], *, optimizer: bool) -> None:
        """Raises `ConfigurationError` unless that is just what the ranks have: other tensors would not be sharded."""
        if not optimizer or shared().keys() != self.tensors().keys() or any(n.startswith(STRATEGY) for n in shared()):
            raise ConfigurationError(_OTHER_STATE)

    def read_values(self) -> torch.Tensor:
        """The parameters of all ranks as a vector."""
        self._ranks.announce(Header(READ))
        return super().read_values()

    def sketch(self) -> Sketch:
        """That of the parameters of all ranks."""
        values = self.read_values()[: self.vector.parameters_numel]
        return sketch_of(torch.split(values, [parameter.numel() for parameter in self.vector.parameters()]))

    def capture(self) -> StateSnapshot:
        """A copy of the state of all ranks, in rank 0's CPU memory or in a file."""
        check_kept(self.optimizer)
        self._ranks.announce(Header(STATE))
        return super().capture()

    def capture_all(self) -> StateSnapshot:
        """The same: all is shared."""
        return self.capture()

    def digest(self) -> str:
        """The digest of the state of all ranks, which all then know."""
        check_kept(self.optimizer)
        self._ranks.announce(Header(DIGEST))
        digest = super().digest()
        self._ranks.share_bytes(digest.encode())
        return digest

    def restore(self, snapshot: StateSnapshot) -> None:
        """Become what `snapshot` holds, each rank its shard of it."""
        self.check(snapshot)
        self._send(snapshot)

    def release(self, *, finished: bool) -> None:
        """Let all ranks go on."""
        self.vector.let_go()
        super().release(finished=finished)

    def _share_vector(self, vector: torch.Tensor) -> None:
        """It is loaded piece by piece."""

    def _send(self, snapshot: StateSnapshot) -> None:
        self._announce_state(snapshot)
        super(LeaderReplica, self).restore(snapshot)


class ShardedFollower(ShardedReplica, FollowerReplica):
    """The part of any other rank."""

    known_digest = ""
    """The digest of the state that rank 0 told last."""

    def obey(self) -> bool:
        """See `FollowerReplica`."""
        try:
            return super().obey()
        finally:
            self.vector.let_go()

    def _take_part(self, header: Header) -> None:
        if header.kind == GATHER:
            self.vector.accumulate(self.vector.new(), 0.0)
        elif header.kind == READ:
            self.vector.read_values()
        elif header.kind in (STATE, DIGEST):
            self.capture()
            if header.kind == DIGEST:
                self.known_digest = self._ranks.share_bytes().decode()
        else:
            super()._take_part(header)

    def _receive_vector(self, memory: torch.Tensor | None) -> torch.Tensor:
        self.vector.let_go()
        return self.vector.new() if memory is None else memory

    def _receive_bytes(self, size: int) -> torch.Tensor:  # noqa: ARG002
        return torch.empty(0, dtype=torch.uint8)


class _ShardedCombiner:
    """Of ranks that each have a shard of the mean gradient over all."""

    def __init__(self, ranks: ProcessGroup, replica: ShardedReplica) -> None:
        self._ranks, self._vector, self._is_finite = ranks, replica.vector, False

    def combine(self, samples: int) -> int:
        """See `Combiner`. If the gradients of one rank are not finite, those of none count.

        Raises `ConfigurationError`, in all ranks, if there are no gradients at all.
        """
        if all(parameter.grad is None for parameter in self._vector.parameters()):
            raise ConfigurationError(
                "no parameter of the sharded model has a gradient: call step() after a backward() that combines those "
                "of the ranks, so with set_requires_gradient_sync(True)"
            )
        broken, total = self._ranks.total(int(not self._vector.is_finite()), samples)
        self._is_finite = not broken
        if self._is_finite:
            self._vector.hold(samples / total)
        return total

    def accumulate(self, vector: torch.Tensor, weight: float) -> bool:
        """See `Combiner`."""
        if not self._is_finite:
            return False
        self._ranks.announce(Header(GATHER))
        return self._vector.accumulate(vector, weight)


def _resharding(model: torch.nn.Module | None) -> list[Callable[[], object]]:
    """What gives back whole parameters, for each module that FSDP manages."""
    from torch.distributed.fsdp import FSDPModule  # takes long to import, and was by the program

    found: list[Callable[[], object]] = (
        [module.reshard for module in model.modules() if isinstance(module, FSDPModule)] if model else []
    )
    if not found:
        raise ConfigurationError(
            "parameters are DTensors, and no module of model=... was given to fully_shard: pass the model that was; "
            "other ways of sharding, such as tensor parallelism, are not possible"
        )
    return found
