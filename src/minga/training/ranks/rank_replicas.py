"""The replicas of a peer whose processes each hold the whole model.

Theory of operation. The swarm sees one peer, which lives in rank 0. All ranks call `minga.Optimizer` and its methods
alike and equally often. At each micro-batch the ranks' gradients are combined: on their devices, of which each has a
share of the sum then (`rank_sums.py`), or else in the RAM of rank 0 (`WholeCombiner`). Whatever rank 0 then does to its
replica because the swarm says so, it has the others do as well, before all of them go on:

    rank 0                            other ranks
      ◀────── gradients, samples ──────    collect
      ── a method, its arguments ─────▶    obey: call the same method
      ── release finished ────────────▶    back to the program
      ── fail reason ─────────────────▶    raise ClosedError

A method that is `in_all_ranks` tells the others before it runs at rank 0. Each command is a `RankCommand`, then the
vector that it announces, unless that is in memory that all ranks map. Ranks that start from the same bytes and apply
the same bytes stay equal to the last bit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, wraps
from itertools import chain
from typing import Any, Final, TypeVar, cast

import msgspec
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from minga.core.decoding import decode_json
from minga.core.errors import ClosedError, ConfigurationError, MingaError, UnfitError
from minga.core.spec.run_spec import RunSpec
from minga.core.units import and_others
from minga.training.ranks.process_group import ProcessGroup, RankCommand
from minga.training.ranks.rank_sums import CopyShares, RankShares
from minga.training.ranks.shard_map import rows_of
from minga.training.replica.accelerator import Accelerator, LateVerdict, verdict_of
from minga.training.replica.flat_vector import ParameterVector
from minga.training.replica.gradient_sum import GradientSum
from minga.training.replica.replica import FIRST_STEPS, Replica
from minga.training.replica.trained_record import TrainedRecord
from minga.training.state.base import Base, BaseTensor, largest
from minga.training.state.sketch import NUMBERS, distance, length
from minga.training.state.snapshot import StateSnapshot, TensorEntry, layout_bytes

NOT_COMBINED: Final = 1e-3
"""Share of the gradients by which those of two ranks differ that were not combined; a sum of theirs rounds alike."""

Method = TypeVar("Method", bound=Callable[..., Any])


def in_all_ranks(method: Method) -> Method:
    """A method of a `RankReplica` that, called at rank 0, has all other ranks call it alike.

    Its arguments go by position: numbers, texts, lists and dicts of such, and before them at most one vector.
    """

    @wraps(method)
    def call(replica: RankReplica, *arguments: Any) -> Any:
        replica.tell(method.__name__, *arguments)
        return method(replica, *arguments)

    return cast("Method", call)


class _StateHead(msgspec.Struct, array_like=True, frozen=True):
    """A snapshot without its bytes."""

    step: int
    tensors: tuple[TensorEntry, ...]
    scalars: dict[str, Any]


class RankReplica(Replica):
    """One rank's copy. That of rank 0 is the peer's; the others `obey` it."""

    def __init__(self, ranks: ProcessGroup, spec: RunSpec, optimizer: torch.optim.Optimizer, **settings: Any) -> None:
        self._ranks = ranks
        super().__init__(spec, optimizer, **settings)
        self.vector.quick = False  # what one rank adds is not looked at again before the sum over all
        self._ranks.open_board(self.vector.numel)
        self._are_combined = _combines(settings.get("model"), self.vector.parameters(), ranks.size)
        self._shares = self._new_shares()
        self._sums = 0  # of the present strategy
        self._alone: RankSum | None = None  # of one micro-batch

    @property
    def leads(self) -> bool:
        """Whether this is rank 0's."""
        return self._ranks.leads

    @property
    def shares(self) -> RankShares:
        """This rank's shares of sums. Raises `ClosedError` if it has none while rank 0 has."""
        if self._shares is None:
            raise ClosedError("rank 0 of this peer adds up in shares, this process does not: is it of another version?")
        return self._shares

    def collect(self, samples: int, loss: float | torch.Tensor | None = None) -> int:
        """Combine the micro-batches of all ranks; returns the samples of all that are finite, as far as it is known."""
        super().collect(samples, loss)
        self.drop_frozen()
        total = None if self._shares is None else self._shares.combine(samples)
        if total is None:
            self.sum_in_ram()
            total = self._combiner.combine(samples)
        combiner = self._combiner if self._shares is None or self._shares.lacks_room else self._shares
        if self.leads and self._buffers.averaged and (rest := combiner.rest) is not None:
            self._buffers.take(rest)
        return total

    def look_at_loop(self) -> None:
        """See `Replica`. Raises `ConfigurationError`, in all ranks, if gradients that `DistributedDataParallel` is to
        have combined differ between them; a sample of those of the first steps shows it.
        """
        before = self._firsts
        super().look_at_loop()
        if not self._are_combined or self._firsts == before or self._firsts > FIRST_STEPS:
            return
        rows = self._ranks.rows(self._first or (math.nan,) * NUMBERS)
        if any(distance(each, rows[0]) > NOT_COMBINED * length(rows[0]) for each in rows if not math.isnan(each[0])):
            raise ConfigurationError(
                "the processes of this peer have different gradients, which DistributedDataParallel did not combine: "
                "call step() after a backward() outside of model.no_sync(), and wrap the model when all that is "
                "trained requires a gradient"
            )

    # ---- what rank 0 does, and has the others do

    apply = in_all_ranks(Replica.apply)
    step_by = in_all_ranks(Replica.step_by)
    adopt = in_all_ranks(Replica.adopt)
    write_values = in_all_ranks(Replica.write_values)
    amend = in_all_ranks(Replica.amend)

    def move_buffers(self, moved: torch.Tensor | None = None) -> None:
        """Have the buffers of all ranks stand where rank 0 says, which has the mean of what they moved."""
        if self._buffers.averaged:
            self.tell("move_buffers")
            found = torch.zeros(
                sum(buffer.numel() for buffer in self._buffers.averaged), dtype=torch.float32, device="cpu"
            )
            if moved is not None:
                found.copy_(moved[: found.numel()])
            self._ranks.share(found)
            super().move_buffers(found)

    @in_all_ranks
    def open_sum(self, key: int) -> torch.Tensor | None:
        """Make a share of sum number `key`; returns the whole sum, if all ranks map it."""
        return self.shares.open(key)

    @in_all_ranks
    def add_to_sum(self, key: int, weight: float, is_first: bool) -> bool | LateVerdict:
        """Add the micro-batch that `collect` combined to the share of a sum, which is 0 before if it `is_first`."""
        return self.shares.add(key, weight, is_first=is_first)

    @in_all_ranks
    def step_there(self) -> bool:
        """Take an optimizer step of this peer alone without a crossing; all ranks have the gradients, or none."""
        gradients = self._shares.mean() if isinstance(self._shares, CopyShares) else None
        return gradients is not None and super().step_by(gradients)

    def restore(self, snapshot: StateSnapshot) -> None:
        """Become what `snapshot` holds, in all ranks."""
        super().restore(snapshot)
        if self.leads:
            self._send(snapshot)

    def take_buffers(self, written: bytes = b"") -> None:
        """Go on with the buffers that rank 0 wrote, in all ranks."""
        self.tell("take_buffers")
        super().take_buffers(self._ranks.share_bytes(written))

    def take_state(self, head: bytes) -> None:
        """In other ranks: become what rank 0 sends."""
        found = decode_json(head, _StateHead)
        memory = self._bytes_of_rank_0(layout_bytes(found.tensors))
        self.restore(StateSnapshot(found.step, found.tensors, found.scalars, memory))
        self.strategy_tensors()  # rank 0 alone has a strategy

    def tell(self, method: str, *arguments: Any) -> None:
        """At rank 0: have the other ranks call a method."""
        if not self.leads:
            return
        vector = arguments[0] if arguments and isinstance(arguments[0], torch.Tensor) else None
        if vector is None:
            self._ranks.command(RankCommand(method, arguments))
            return
        self._let_go()
        self._ranks.command(RankCommand(method, arguments[1:], has_vector=True))
        self._vector_of_rank_0(vector)

    def obey(self) -> bool:
        """In other ranks: do what rank 0 says until it lets this rank go on; returns whether the run is finished.

        Raises `ClosedError` when rank 0 has ended.
        """
        methods = {method.__name__: method for method in self._commanded()}
        vector: torch.Tensor | None = None
        while (command := self._ranks.command()).method != "release":
            if command.method == "fail":
                raise ClosedError(f"rank 0 of this peer ended: {command.arguments[0]}")
            arguments = command.arguments
            if command.has_vector:
                self._let_go()
                vector = self._vector_of_rank_0(vector)
                arguments = (vector, *arguments)
            if command.method not in methods:
                raise ClosedError(
                    f"rank 0 of this peer says {command.method}, which means nothing here: is it of another version?"
                )
            methods[command.method](*arguments)
        (finished,) = command.arguments
        self._let_go(finished=finished)
        return bool(finished)

    def _commanded(self) -> tuple[Callable[..., object], ...]:
        """The methods that rank 0 may have other ranks call."""
        return (
            self.apply,
            self.step_by,
            self.adopt,
            self.write_values,
            self.move_buffers,
            self.amend,
            self.open_sum,
            self.add_to_sum,
            self.step_there,
            self.take_state,
            self.take_buffers,
        )

    # ---- rank 0 alone

    def new_sum(self) -> GradientSum:
        """A sum of gradients, which is 0."""
        if self._shares is None:
            return GradientSum(self)
        self._sums += 1
        return RankSum(self, self._sums)

    def hand_over(self, strategy: str, *, keeps_uncounted: bool) -> None:
        """Have another strategy go on, which has sums of its own."""
        super().hand_over(strategy, keeps_uncounted=keeps_uncounted)
        self._sums = 0

    def accumulate(self, vector: torch.Tensor, weight: float) -> bool:
        """Add what `collect` combined in RAM."""
        if self._shares is None or self._shares.lacks_room:
            return self._combiner.accumulate(vector, weight)
        alone = self._alone = self._alone or RankSum(self, 0)
        is_taken = verdict_of(alone.add(weight))
        if is_taken:
            vector.add_(alone.vector())
        alone.clear()
        return is_taken

    def inner_step(self) -> bool:
        """Take an optimizer step of this peer alone in all ranks, by the gradients that `collect` combined."""
        if isinstance(self._shares, CopyShares) and not self._shares.lacks_room:
            return self.step_there()
        gradients = self.vector.new()
        if not self.accumulate(gradients, 1.0):
            return False
        return self.step_by(gradients)

    def put(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Put some tensors back, and have the other ranks take over everything that is here then."""
        super().put(tensors)
        self._send(self.capture_all())

    def share(self) -> None:
        """Have the other ranks start from this one's state."""
        self._send(self.capture())

    def release(self, *, finished: bool) -> None:
        """Let all ranks go on."""
        self.tell("release", finished)
        self._let_go(finished=finished)

    def fail(self, error: BaseException) -> None:
        """End the other ranks, if they still listen."""
        if isinstance(error, Exception):  # an interrupted process is in no state to talk; the others see it go
            with contextlib.suppress(MingaError):
                self.tell("fail", str(error)[:4096])

    # ---- inner workings

    @cached_property
    def _combiner(self) -> WholeCombiner:
        return WholeCombiner(self._ranks, self, are_combined=self._are_combined)

    def _new_vector(
        self, optimizer: torch.optim.Optimizer, spec: RunSpec, model: torch.nn.Module | None
    ) -> ParameterVector:
        codecs = spec.averaging.codec, spec.averaging.download_codec
        return CopiedVector(self._ranks, optimizer, self._buffers, *codecs, model=model)

    def _adds_on(self, accelerator: Accelerator | None) -> bool:
        return self._ranks.open_devices(None if accelerator is None else accelerator.device)

    def _new_shares(self) -> RankShares | None:
        """Shares of sums in each rank; None if all of them are made in rank 0's RAM."""
        if self.accelerator is None:
            return None
        return CopyShares(self._ranks, self, are_combined=self._are_combined)

    def _let_go(self, *, finished: bool = False) -> None:
        """The present micro-batch is not needed any more; if the run is `finished`, the other ranks neither."""
        if self._shares is not None:
            self._shares.let_go()
            if finished:
                self._shares.end()
        if finished:
            self._end()

    def _vector_of_rank_0(self, vector: torch.Tensor | None) -> torch.Tensor:
        """Every rank returns rank 0's; the others may give memory for it."""
        if (posted := self._ranks.post(vector if self.leads else None)) is not None:
            return posted
        vector = self.vector.new() if vector is None else vector
        self._ranks.share(vector)
        return vector

    def _send(self, snapshot: StateSnapshot) -> None:
        """At rank 0: have the other ranks become what it holds."""
        self._announce(snapshot)
        self._ranks.share(snapshot.buffer)
        snapshot.release()

    def _announce(self, snapshot: StateSnapshot) -> None:
        """Say which state the other ranks are to become; its bytes follow."""
        self.tell("take_state", msgspec.json.encode(_StateHead(snapshot.step, snapshot.tensors, snapshot.scalars)))

    def _bytes_of_rank_0(self, size: int) -> torch.Tensor:
        """The bytes of the state that rank 0 announced."""
        buffer = torch.empty(size, dtype=torch.uint8, device="cpu")
        self._ranks.share(buffer)
        return buffer

    def _agreed(self, record: TrainedRecord) -> TrainedRecord:
        """The record with rank 0's base. Raises `UnfitError`, in all ranks, if what several hold of it differs."""
        base = decode_json(self._ranks.share_bytes(msgspec.json.encode(record.base)), dict[str, BaseTensor])
        if not self._ranks.agree(base.keys() == record.base.keys()):
            return record  # they have different models
        parts, size = self._base_parts(record.base), self._ranks.size
        rows = [[0] * len(parts) for _ in range(size)]
        rows[self._ranks.rank] = [int(found[:15], 16) for found, _ in parts.values()]  # fits into 64 bits
        told = self._ranks.total(*chain.from_iterable(rows), 0)
        found = []
        for index, (name, (_, count)) in enumerate(parts.items()):
            hashes = told[index : len(parts) * size : len(parts)]
            if any(each != hashes[rank % count] for rank, each in enumerate(hashes)):
                found.append(name)
        if found:
            first = largest(found, base)
            raise UnfitError(
                f"`{first}` is frozen and has other values in some processes of this peer{and_others(found)}: load "
                "the same weights in all of them, or seed the model alike where they are random"
            )
        return dataclasses.replace(record, base=base)

    def _base_parts(self, base: Base) -> dict[str, tuple[str, int]]:
        """The hash of what this rank holds of each tensor of the base, and into how many parts the ranks have cut it,
        in order: rank 0 holds the first of n, and so does rank n.
        """
        return {name: (each.hash, 1) for name, each in base.items()}

    def _end(self) -> None:
        self._ranks.end()


def _combines(model: torch.nn.Module | None, trained: Sequence[torch.Tensor], processes: int) -> bool:
    """Whether a backward pass takes the mean over so many processes of the gradients of all that is `trained`: a loss
    may have parameters of its own, and others may be left out.
    """
    if not isinstance(model, DistributedDataParallel) or dist.get_world_size(model.process_group) != processes:
        return False
    named = model.module.named_parameters(remove_duplicate=False)
    combined = {id(each) for name, each in named if name not in model.parameters_to_ignore}
    return all(id(each) in combined for each in trained)


class RankSum(GradientSum):
    """At rank 0: a sum of which all ranks have shares, and what they have brought, in RAM."""

    def __init__(self, replica: RankReplica, key: int) -> None:
        self._replica, self._shares, self._key = replica, replica.shares, key
        whole = replica.open_sum(key)
        self._vector = replica.vector.new() if whole is None else whole
        self._is_brought = True  # the shares have nothing that is not here

    def add(self, weight: float) -> bool | LateVerdict:
        """See `GradientSum`."""
        if self._shares.lacks_room:
            return self._replica.accumulate(self.vector(), weight)
        is_first, self._is_brought = self._is_brought, False
        return self._replica.add_to_sum(self._key, weight, is_first)

    def vector(self) -> torch.Tensor:
        """See `GradientSum`."""
        if not self._is_brought:
            self._shares.bring(self._key, self._vector)
            self._is_brought = True
        return self._vector

    def clear(self) -> None:
        """See `GradientSum`."""
        super().clear()
        self._is_brought = True


class WholeCombiner:
    """Of ranks that each have the gradients of the whole model, in the RAM of rank 0: the mean gradient by samples.

    They are the mean over ranks already if they `are_combined`, so that only samples are added up.
    """

    def __init__(self, ranks: ProcessGroup, replica: Replica, *, are_combined: bool) -> None:
        self._ranks, self._vector = ranks, replica.vector
        self._sum = None if are_combined else replica.vector.new()
        self._samples = 0

    @property
    def rest(self) -> torch.Tensor | None:
        """See `RankShares`."""
        if self._sum is None or not self._samples:
            return None
        return self._sum[self._vector.parameters_numel :] / self._samples

    def combine(self, samples: int) -> int:
        """In all ranks: this one's micro-batch of `samples` is ready. Returns the samples of all that count; of all, if
        none does.
        """
        if self._sum is None:
            return self._ranks.total(samples)[0]
        self._sum.zero_()
        finite = self._vector.accumulate(self._sum, samples)
        self._samples, everything = self._ranks.total(samples if finite else 0, samples)
        self._ranks.sum_at_leader(self._sum)
        return self._samples or everything

    def accumulate(self, vector: torch.Tensor, weight: float) -> bool:
        """At rank 0: add what was combined, `weight` times, to `vector`; False if none of it counts."""
        if self._sum is None:
            return self._vector.accumulate(vector, weight)
        if self._samples:
            vector.add_(self._sum, alpha=weight / self._samples)
        return bool(self._samples)


class CopiedVector(ParameterVector):
    """The vector of ranks that each have the whole model: on devices each brings its part, and all join these there."""

    def __init__(self, ranks: ProcessGroup, *settings: Any, **named: Any) -> None:
        self._ranks = ranks
        super().__init__(*settings, **named)
        self._part: torch.Tensor | None = None  # in RAM, as the device copies it best

    @torch.no_grad()
    def write_values(self, vector: torch.Tensor) -> None:
        """See `ParameterVector`."""
        super().write_values(vector if self.accelerator is None else self._bring(vector, self.accelerator))

    def _bring(self, vector: torch.Tensor, accelerator: Accelerator) -> torch.Tensor:
        first, last = rows_of(self._ranks.rank, self._ranks.size, self.parameters_numel)
        if self._part is None:
            self._part = accelerator.host_memory(-(-self.parameters_numel // self._ranks.size))
        self.wait_for_load()
        self._part[: last - first].copy_(vector[first:last])
        own = torch.empty_like(self._part, device=accelerator.device)
        accelerator.copy(self._part, own)
        self._loaded = accelerator.mark()
        return self._ranks.join_parts(own)[: self.parameters_numel]
