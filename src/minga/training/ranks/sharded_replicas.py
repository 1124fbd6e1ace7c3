"""The replicas of a peer whose model is sharded over its ranks by `fully_shard`.

As in `rank_replicas.py` rank 0 says what is done. But no vector and no state travels whole: gradients are added up
where their shards are (`rank_sums.py`), and where rank 0 loads or reads a vector or a state, every rank streams its own
shard (`shard_map.py`). So to read the parameters or the state is in all ranks, too.

FSDP has taken the mean of the gradients over the ranks, each as much as any other. The optimizer steps on shards in
every rank; norms are those of whole tensors (`minga.optim`), so optimizers of `minga.optim` come to equal bits with a
peer of one process.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final

import torch

from minga.averaging.strategy_choice import StrategyChoice
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import AveragingSection
from minga.optim.shards import is_sharded, local
from minga.training.ranks.process_group import ProcessGroup
from minga.training.ranks.rank_replicas import RankReplica, in_all_ranks
from minga.training.ranks.rank_sums import ITEM_BYTES, RankShares
from minga.training.ranks.shard_map import Placed, ShardMap, ShardStream, count_shards, is_split
from minga.training.replica.accelerator import Accelerator
from minga.training.replica.buffers import SharedBuffers, flat_movements
from minga.training.replica.flat_vector import ParameterVector
from minga.training.replica.replica import Replica
from minga.training.state.base import Base, hashed
from minga.training.state.sketch import Sketch, sketch_of
from minga.training.state.snapshot import StateMemory, StateSnapshot, padded
from minga.training.state.state_dict import STRATEGY
from minga.training.state.tensor_access import TensorAccess

# ---- The tensors of a state that is sharded over the ranks, as the bytes that any peer has of it.


class ShardedAccess(TensorAccess):
    """Rank 0 reads and fills the tensors of all ranks; the others take part, and hold nothing but their shards.

    Both methods are collective. Rank 0 has the snapshot; those of other ranks have its description only. Tensors that
    are not sharded are read at rank 0 and filled in all ranks.
    """

    is_local = False

    def __init__(self, ranks: ProcessGroup, stream: ShardStream) -> None:
        self._ranks, self._stream = ranks, stream

    def memory(self, size_bytes: int, directory: Path | None) -> StateMemory:
        """Memory for the whole state at rank 0, and for nothing elsewhere."""
        return super().memory(size_bytes if self._ranks.leads else 0, directory)

    @torch.no_grad()
    def read(self, tensors: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        """See `TensorAccess`; other ranks than 0 get nothing."""
        placed, start = list[Placed](), 0
        for tensor in tensors:
            placed.append(Placed(start, tensor, tensor.itemsize))
            start += padded(tensor.numel() * tensor.itemsize)
        shards = ShardMap.of_tensors(placed, self._stream.shards, start)
        parts = [local(tensor).reshape(-1) for tensor in tensors]
        for _, piece in self._stream.gather(shards, parts):
            yield piece

    @torch.no_grad()
    def fill(self, placed: Sequence[tuple[int, torch.Tensor | None]], snapshot: StateSnapshot) -> None:
        """See `TensorAccess`."""
        targets = [(start, tensor) for start, tensor in placed if tensor is not None]
        total = max((start + tensor.numel() * tensor.itemsize for start, tensor in targets), default=0)
        described = [Placed(start, each, each.itemsize) for start, each in targets]
        shards = ShardMap.of_tensors(described, self._stream.shards, total)
        own = [local(tensor) for _, tensor in targets]
        parts = [tensor.reshape(-1) for tensor in own]

        last = (0, 0)

        def read(start: int, stop: int) -> torch.Tensor:
            nonlocal last
            snapshot.release(*last)
            last = start, stop
            return snapshot.buffer[start:stop]

        self._stream.scatter(shards, parts, read)
        snapshot.release(*last)
        for tensor, part in zip(own, parts, strict=True):
            if part.data_ptr() != tensor.data_ptr():  # it was not contiguous, so that its flat form is a copy
                tensor.copy_(part.view(tensor.shape))


def check_kept(optimizer: torch.optim.Optimizer) -> None:
    """Raise `ConfigurationError` if `optimizer` keeps a tensor for a sharded parameter that is this rank's alone."""
    for parameter, kept in optimizer.state.items():
        for key, value in kept.items() if is_sharded(parameter) else ():
            if isinstance(value, torch.Tensor) and value.numel() > 1 and not is_sharded(value):
                raise ConfigurationError(
                    f"{type(optimizer).__name__} keeps {key} as a tensor of one process, while the parameter is "
                    "sharded; such an optimizer cannot train a sharded model together with others"
                )


# ---- The vector that peers average, of a model that is sharded over the ranks.
#
# Its order is that of the unsharded model, so peers of both kinds average with each other. The whole vector exists at
# rank 0 only, in CPU memory; other ranks hold their shards, and vectors of no elements stand for it there.


class ShardedVector(ParameterVector):
    """All methods that read or change numbers are collective, but `new` and `is_finite`."""

    def __init__(
        self,
        ranks: ProcessGroup,
        stream: ShardStream,
        optimizer: torch.optim.Optimizer,
        buffers: SharedBuffers,
        averaging: AveragingSection,
        model: torch.nn.Module | None,
    ) -> None:
        self._ranks, self._stream = ranks, stream
        super().__init__(optimizer, buffers, averaging.codec, averaging.download_codec, model=model)
        starts = accumulate((p.numel() * ITEM_BYTES for p in self._parameters), initial=0)
        placed = [
            Placed(start, p, ITEM_BYTES) for (start, _), p in zip(pairwise(starts), self._parameters, strict=True)
        ]
        self._map = ShardMap.of_tensors(placed, stream.shards, self.parameters_numel * ITEM_BYTES)
        self.numels = [local(p).numel() for p in self._parameters] + self.numels[len(self._parameters) :]
        self._runs = []

    def new(self, numel: int | None = None) -> torch.Tensor:
        """A zeroed float32 vector in CPU memory; of no elements in ranks other than 0."""
        return super().new(numel if self._ranks.leads else 0)

    @property
    def places(self) -> ShardMap:
        """Which shard has which bytes of the parameters in the vector."""
        return self._map

    def present(self) -> list[torch.Tensor | None]:
        """This rank's shards of the present gradients, None for empty ones; the rest as in `ParameterVector`."""
        gradients = [None if p.grad is None else local(p.grad).reshape(-1) for p in self._parameters]
        present = self._presence([gradient is not None for gradient in gradients])
        shards = [None if gradient is None or not gradient.numel() else gradient for gradient in gradients]
        return [*shards, *(movement.reshape(-1) for movement in self._buffers.movements()), present]

    @torch.no_grad()
    def load(self, vector: torch.Tensor) -> None:
        """Set the gradients of all ranks from rank 0's vector of means, and move the averaged buffers by theirs."""
        self.load_gradients(vector)
        self._advance_buffers(vector)

    @torch.no_grad()
    def load_gradients(self, vector: torch.Tensor) -> None:
        """Set the gradients of all ranks from rank 0's vector."""
        gradients = []
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            gradients.append(parameter.grad)
        self._scatter(gradients, vector)
        told = torch.zeros(len(gradients), dtype=torch.uint8, device="cpu")
        if self._ranks.leads:
            told.copy_(torch.tensor(self.has_gradient(vector), device="cpu"))
        self._ranks.share(told)
        for parameter, has_gradient in zip(self._parameters, told.tolist(), strict=True):
            if not has_gradient:
                parameter.grad = None

    @torch.no_grad()
    def read_values(self) -> torch.Tensor:
        """At rank 0 the parameters of all ranks, and the movements of its own averaged buffers."""
        values = self.new()
        parts = [local(parameter).reshape(-1) for parameter in self._parameters]
        for start, piece in self._stream.gather(self._map, parts, torch.float32):
            numbers = piece.view(torch.float32)
            values[start // ITEM_BYTES :][: numbers.numel()].copy_(numbers)
        if self._ranks.leads and self._buffers.averaged:
            movements = flat_movements(self._buffers.moved)
            values[self.parameters_numel :][: movements.numel()].copy_(movements)
        return values

    @torch.no_grad()
    def adopt(self, vector: torch.Tensor) -> None:
        """Set the parameters of all ranks from such a vector, and move the averaged buffers by their means."""
        self.write_values(vector)
        self._advance_buffers(vector)

    @torch.no_grad()
    def write_values(self, vector: torch.Tensor) -> None:
        """Set the parameters of all ranks from such a vector."""
        self._scatter(self._parameters, vector)

    def _scatter(self, tensors: list[torch.Tensor], vector: torch.Tensor) -> None:
        parts = [local(tensor).view(-1) for tensor in tensors]
        if (common := self._ranks.post(vector if self._ranks.leads else None)) is not None:
            self._stream.fill(self._map, parts, common.view(torch.uint8), torch.float32)
            return
        raw = vector[: self.parameters_numel].view(torch.uint8)
        self._stream.scatter(self._map, parts, lambda start, stop: raw[start:stop], torch.float32)

    def _advance_buffers(self, vector: torch.Tensor) -> None:
        sizes = [buffer.numel() for buffer in self._buffers.averaged]
        if not sizes:
            self._buffers.advance([])
            return
        start, stop = self.parameters_numel, self.parameters_numel + sum(sizes)
        room = torch.empty(stop - start, dtype=torch.float32, device="cpu")
        means = vector[start:stop].clone() if self._ranks.leads else room
        self._ranks.share(means)
        self._buffers.advance(list(torch.split(means, sizes)))


# ---- The replica: at rank 0 with the whole as the swarm sees it, elsewhere with the part of that rank.


_OTHER_STATE: Final = (
    "the strategy of this run keeps another state than model and optimizer, which a peer with a sharded model cannot; "
    "take part with a model that is not sharded"
)


class ShardedReplica(RankReplica):
    """One rank's part. Raises `ConfigurationError` for what a sharded model cannot have."""

    vector: ShardedVector
    known_digest = ""
    """The digest of the state of all ranks that was computed last."""

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

    # ---- what rank 0 does, and has the others do

    read_values = in_all_ranks(Replica.read_values)

    def capture(self) -> StateSnapshot:
        """A copy of the state of all ranks, in rank 0's CPU memory or in a file; its description elsewhere."""
        check_kept(self.optimizer)
        self.tell("capture")
        return super().capture()

    def digest(self) -> str:
        """The digest of the state of all ranks, by the word of rank 0."""
        check_kept(self.optimizer)
        self.tell("digest")
        if self.leads:
            self.known_digest = super().digest()
        else:
            self.capture()
        self.known_digest = self._ranks.share_bytes(self.known_digest.encode()).decode()
        return self.known_digest

    def restore(self, snapshot: StateSnapshot) -> None:
        """Become what `snapshot` holds, each rank its shard of it."""
        if self.leads:
            self.check(snapshot)
            self._announce(snapshot)
        super(RankReplica, self).restore(snapshot)

    def _commanded(self) -> tuple[Callable[..., object], ...]:
        """See `RankReplica`."""
        return (*super()._commanded(), self.read_values, self.capture, self.digest)

    # ---- rank 0 alone

    def define_shared(self, shared: Callable[[], Mapping[str, torch.Tensor]], *, optimizer: bool) -> None:
        """Raises `ConfigurationError` unless that is just what the ranks have: other tensors would not be sharded."""
        if not optimizer or shared().keys() != self.tensors().keys() or any(n.startswith(STRATEGY) for n in shared()):
            raise ConfigurationError(_OTHER_STATE)

    def sketch(self) -> Sketch:
        """That of the parameters of all ranks."""
        values = self.read_values()[: self.vector.parameters_numel]
        return sketch_of(torch.split(values, [parameter.numel() for parameter in self.vector.parameters()]))

    def capture_all(self) -> StateSnapshot:
        """The same as `capture`: all is shared."""
        return self.capture()

    # ---- inner workings: vectors and states travel in shards

    def _new_vector(
        self, optimizer: torch.optim.Optimizer, spec: RunSpec, model: torch.nn.Module | None
    ) -> ParameterVector:
        return ShardedVector(self._ranks, self._stream, optimizer, self._buffers, spec.averaging, model)

    def _new_access(self, accelerator: Accelerator | None) -> TensorAccess:  # noqa: ARG002
        return ShardedAccess(self._ranks, self._stream)

    def _base_parts(self, base: Base) -> dict[str, tuple[str, int]]:
        frozen = self._state.frozen(base)  # of which rank 0 alone has the hashes, and read no replica of a shard
        own = hashed({name: local(each) for name, each in frozen.items()}, TensorAccess())
        return {name: (own[name].hash, self._stream.shards if is_split(each) else 1) for name, each in frozen.items()}

    def _new_shares(self) -> RankShares:
        return ShardShares(self._ranks, self, self.vector.places, self._stream.shards)

    def _vector_of_rank_0(self, vector: torch.Tensor | None) -> torch.Tensor:
        return self.vector.new() if vector is None else vector

    def _send(self, snapshot: StateSnapshot) -> None:
        self.restore(snapshot)

    def _bytes_of_rank_0(self, size: int) -> torch.Tensor:  # noqa: ARG002
        return torch.empty(0, dtype=torch.uint8, device="cpu")

    def _end(self) -> None:
        """The state can still be read after the run; the ranks part at the end of their processes."""


class ShardShares(RankShares):
    """Of ranks that each have a shard of the mean gradient over all, as FSDP has made it."""

    def combine(self, samples: int) -> int:
        """See `RankShares`. If the gradients of one rank are not finite, those of none count.

        Raises `ConfigurationError`, in all ranks, if there are no gradients at all.
        """
        parameters = self._whole.parameters()
        if all(parameter.grad is None for parameter in parameters):
            raise ConfigurationError(
                "no parameter of the sharded model has a gradient: call step() after a backward() that combines those "
                "of the ranks, so with set_requires_gradient_sync(True)"
            )
        if self._replica.accelerator is not None:
            flats = self._whole.present_there(self._replica.accelerator.device)
            (total,) = self._ranks.total(samples)
            self._agree_there(flats, samples / total)
        else:
            flats = self._whole.present()
            broken, total = self._ranks.total(int(not self._whole.is_finite()), samples)
            self._is_finite, self._rows = not broken, []
            if self._is_finite:
                self._add_up_rest(flats, samples / total)
        place = 0
        for numel, flat in zip(self._numels(), flats, strict=False):
            if flat is not None:
                self._rows.append((place, flat))
            place += numel
        return total

    def _numels(self) -> list[int]:
        if self._ranks.rank >= self._stream.shards:  # another replica of the shards brings them
            return []
        return self._whole.numels[: len(self._whole.parameters())]

    @torch.no_grad()
    def _add_up_rest(self, flats: Sequence[torch.Tensor | None], share: float) -> None:
        """Rank 0 has the end of the vector in its share: the mean of the movements of buffers over the ranks, of which
        this one counts by its `share`, and which gradients there are.
        """
        rest = torch.cat([flat.cpu() for flat in flats[len(self._whole.parameters()) :] if flat is not None])
        self._ranks.sum_at_leader(rest.mul_(share))
        self._rest = rest
        if self._ranks.leads:
            self._rows.append((sum(self._numels()), rest))


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


# ---- Which replica a process has: its own, or that of a peer of several processes.


def trains_shards(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> bool:
    """Whether some parameter of `optimizer` is a DTensor.

    Raises `ConfigurationError` if `model` is sharded in a way that would not show in the parameters.
    """
    if any(is_sharded(parameter) for group in optimizer.param_groups for parameter in group["params"]):
        return True
    for module in model.modules() if model is not None else ():
        if type(module).__name__ == "FullyShardedDataParallel":
            raise ConfigurationError(
                "the model is wrapped by FullyShardedDataParallel, whose flat parameters other peers do not have; use "
                "torch.distributed.fsdp.fully_shard (FSDP2)"
            )
        if any(map(is_sharded, module.parameters(recurse=False))):
            raise ConfigurationError(
                "the model is sharded and the optimizer has its parameters from before; make the optimizer after "
                "fully_shard(model)"
            )
    return False


def make_replica(
    ranks: ProcessGroup | None,
    spec: RunSpec,
    optimizer: torch.optim.Optimizer,
    *,
    is_sharded: bool,
    **settings: Any,
) -> Replica:
    """The replica of this process. `settings` are those of `Replica`.

    Raises `ConfigurationError`, in all ranks, if these have different models or optimizers.
    """
    if ranks is None:
        return Replica(spec, optimizer, **settings)
    replica = (ShardedReplica if is_sharded else RankReplica)(ranks, spec, optimizer, **settings)
    trained = f"{replica.vector.layout.fingerprint} {replica.trains}".encode()
    if not ranks.agree(ranks.share_bytes(trained) == trained):
        raise ConfigurationError("the processes of this peer have different models or optimizers")
    return replica
