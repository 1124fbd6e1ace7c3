"""The replicas of a peer whose processes each hold the whole model.

Theory of operation. The swarm sees one peer, which lives in rank 0. All ranks call `minga.Optimizer` and its methods
alike and equally often. At each micro-batch the ranks' gradients are combined: on their devices, of which each has a
share of the sum then (`rank_sums.py`), or else in the RAM of rank 0 (`WholeCombiner`). Whatever rank 0 then does to its
replica because the swarm says so, it has the others do as well, before all of them go on:

    rank 0                            other ranks
      ◀────── gradients, samples ──────    collect
      ── open_sum number ─────────────▶    make a share of it
      ── add number, weight ──────────▶    add the micro-batch to that share
      ── inner_step ──────────────────▶    take a step by the micro-batch
      ── apply step, vector ──────────▶    apply
      ── step_by vector ──────────────▶    step_by
      ── adopt step, vector ──────────▶    adopt
      ── amend settings ──────────────▶    amend
      ── write_values vector ─────────▶    write_values
      ── restore state ───────────────▶    restore
      ── release finished ────────────▶    back to the program
      ── fail reason ─────────────────▶    raise ClosedError

Each message is a `RankCommand`, then the tensor that it announces, unless that is in memory that all ranks map. Ranks
that start from the same bytes and apply the same bytes stay equal to the last bit.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from functools import cached_property
from itertools import chain
from typing import Any

import msgspec
import torch
from torch.nn.parallel import DistributedDataParallel

from minga.core.decoding import decode_json
from minga.core.errors import ClosedError, MingaError, UnfitError
from minga.core.spec.run_spec import RunSpec
from minga.core.units import and_others
from minga.training.ranks.process_group import ProcessGroup, RankCommand
from minga.training.ranks.rank_sums import CopyShares, RankShares, RankSum
from minga.training.ranks.shard_map import rows_of
from minga.training.replica.accelerator import Accelerator, verdict_of
from minga.training.replica.flat_vector import ParameterVector
from minga.training.replica.gradient_sum import GradientSum
from minga.training.replica.replica import Replica
from minga.training.replica.trained_record import TrainedRecord
from minga.training.state.base import Base, BaseTensor, largest
from minga.training.state.scalars import Json
from minga.training.state.snapshot import StateSnapshot, TensorEntry


class _StateHead(msgspec.Struct, array_like=True, frozen=True):
    """A snapshot without its bytes."""

    step: int
    tensors: tuple[TensorEntry, ...]
    scalars: dict[str, Any]


class RankReplica(Replica):
    """What the replicas of all ranks have in common."""

    def __init__(self, ranks: ProcessGroup, spec: RunSpec, optimizer: torch.optim.Optimizer, **settings: Any) -> None:
        self._ranks = ranks
        super().__init__(spec, optimizer, **settings)
        self.vector.quick = False  # what one rank adds is not looked at again before the sum over all
        self._ranks.open_board(self.vector.numel)
        self._is_distributed = isinstance(settings.get("model"), DistributedDataParallel)
        self._shares = self._new_shares()

    def collect(self, samples: int, loss: float | torch.Tensor | None = None) -> int:
        """Combine the micro-batches of all ranks; returns the samples of all that are finite, as far as it is known."""
        super().collect(samples, loss)
        self.drop_frozen()
        total = None if self._shares is None else self._shares.combine(samples)
        if total is None:
            self.sum_in_ram()
            total = self._combiner.combine(samples)
        return total

    @cached_property
    def _combiner(self) -> WholeCombiner:
        return WholeCombiner(self._ranks, self, are_combined=self._is_distributed)

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
        return CopyShares(self._ranks, self, are_combined=self._is_distributed)

    def _step_there(self, shares: CopyShares) -> bool:
        """Take an optimizer step of this peer alone without a crossing; all ranks have the gradients, or none."""
        gradients = shares.mean()
        return gradients is not None and super().step_by(gradients)

    def _let_go(self, *, finished: bool = False) -> None:
        """The present micro-batch is not needed any more; if the run is `finished`, the other ranks neither."""
        if self._shares is not None:
            self._shares.let_go()
            if finished:
                self._shares.end()
        if finished:
            self._end()

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


class LeaderReplica(RankReplica):
    """Rank 0's copy: has the other ranks do what it does."""

    _sums = 0  # of the present strategy
    _alone: RankSum | None = None  # of one micro-batch

    def new_sum(self) -> GradientSum:
        """A sum of gradients, which is 0."""
        if self._shares is None:
            return GradientSum(self)
        self._sums += 1
        return RankSum(self, self._ranks, self._shares, self._sums)

    def hand_over(self, strategy: str, *, keeps_uncounted: bool) -> None:
        """Have another strategy go on, which has sums of its own."""
        super().hand_over(strategy, keeps_uncounted=keeps_uncounted)
        self._sums = 0

    def accumulate(self, vector: torch.Tensor, weight: float) -> bool:
        """Add what `collect` combined in RAM."""
        if self._shares is None or self._shares.lacks_room:
            return self._combiner.accumulate(vector, weight)
        alone = self._alone = self._alone or RankSum(self, self._ranks, self._shares, 0)
        is_taken = verdict_of(alone.add(weight))
        if is_taken:
            vector.add_(alone.vector())
        alone.clear()
        return is_taken

    def apply(self, mean: torch.Tensor, step: int) -> None:
        """Take the optimizer step in all ranks."""
        self._tell("apply", mean, step)
        super().apply(mean, step)

    def amend(self, changes: Mapping[str, Any]) -> None:
        """Go by other settings of the optimizer in all ranks."""
        self._ranks.command(RankCommand("amend", data=msgspec.json.encode(dict(changes))))
        super().amend(changes)

    def inner_step(self) -> bool:
        """Take an optimizer step of this peer alone in all ranks, by the gradients that `collect` combined."""
        if isinstance(self._shares, CopyShares) and not self._shares.lacks_room:
            self._ranks.command(RankCommand("inner_step"))
            return self._step_there(self._shares)
        gradients = self.vector.new()
        if not self.accumulate(gradients, 1.0):
            return False
        return self.step_by(gradients)

    def step_by(self, gradients: torch.Tensor) -> bool:
        """The same by the gradients in a vector."""
        self._tell("step_by", gradients)
        return super().step_by(gradients)

    def adopt(self, values: torch.Tensor, step: int) -> torch.Tensor:
        """Come to `step` with these parameters in all ranks."""
        self._tell("adopt", values, step)
        return super().adopt(values, step)

    def put(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Put some tensors back, and have the other ranks take over everything that is here then."""
        super().put(tensors)
        self._send(self.capture_all())

    def write_values(self, values: torch.Tensor) -> None:
        """Set the parameters in all ranks."""
        self._tell("write_values", values)
        super().write_values(values)

    def restore(self, snapshot: StateSnapshot) -> None:
        """Become what `snapshot` holds, in all ranks."""
        super().restore(snapshot)
        self._send(snapshot)

    def share(self) -> None:
        """Have the other ranks start from this one's state."""
        self._send(self.capture())

    def release(self, *, finished: bool) -> None:
        """Let all ranks go on."""
        self._ranks.command(RankCommand("release", (int(finished),)))
        self._let_go(finished=finished)

    def fail(self, error: BaseException) -> None:
        """End the other ranks, if they still listen."""
        if isinstance(error, Exception):  # an interrupted process is in no state to talk; the others see it go
            reason = str(error).encode("utf-8")[:4096]
            with contextlib.suppress(MingaError):
                self._ranks.command(RankCommand("fail", data=reason))

    def _tell(self, method: str, vector: torch.Tensor, *numbers: int) -> None:
        """Have the other ranks call a method with a vector and some numbers."""
        self._let_go()
        self._ranks.command(RankCommand(method, numbers))
        self._share_vector(vector)

    def _share_vector(self, vector: torch.Tensor) -> None:
        if self._ranks.post(vector) is None:
            self._ranks.share(vector)

    def _send(self, snapshot: StateSnapshot) -> None:
        self._announce_state(snapshot)
        self._ranks.share(snapshot.buffer)
        snapshot.release()

    def _announce_state(self, snapshot: StateSnapshot) -> None:
        """Say which state the other ranks are to become; its bytes follow."""
        head = _StateHead(snapshot.step, snapshot.tensors, snapshot.scalars)
        self._ranks.command(RankCommand("restore", data=msgspec.json.encode(head), size=snapshot.buffer.numel()))


class FollowerReplica(RankReplica):
    """The copy of any other rank: does what rank 0 does."""

    def obey(self) -> bool:
        """Do what rank 0 says until it lets this rank go on; returns whether the run is finished.

        Raises `ClosedError` when rank 0 has ended.
        """
        vector: torch.Tensor | None = None
        while (command := self._ranks.command()).method != "release":
            if command.method in ("apply", "step_by", "adopt", "write_values"):
                self._let_go()
                vector = self._receive_vector(vector)
                getattr(self, command.method)(vector, *command.numbers)
            elif command.method == "amend":
                self.amend(decode_json(command.data, dict[str, Any]))
            elif command.method == "restore":
                self.restore(self._receive(command))
                self.strategy_tensors()  # rank 0 alone has a strategy
            elif command.method == "fail":
                raise ClosedError(f"rank 0 of this peer ended: {command.data.decode('utf-8', 'replace')}")
            else:
                self._take_part(command)
        finished = command.numbers == (1,)
        self._let_go(finished=finished)
        return finished

    def _take_part(self, command: RankCommand) -> None:
        """Do this rank's part of what else rank 0 does."""
        if self._shares is not None and command.method == "add":
            key, weight, is_first = command.numbers
            self._shares.add(int(key), weight, is_first=bool(is_first))
        elif self._shares is not None and command.method == "open_sum":
            self._shares.open(int(command.numbers[0]))
        elif isinstance(self._shares, CopyShares) and command.method == "inner_step":
            self._step_there(self._shares)
        else:
            raise ClosedError(
                f"rank 0 of this peer says {command.method}, which means nothing here: is it of another version?"
            )

    def _receive_vector(self, memory: torch.Tensor | None) -> torch.Tensor:
        """Rank 0's vector, in `memory` if there is some."""
        if (vector := self._ranks.post()) is not None:
            return vector
        vector = self.vector.new() if memory is None else memory
        self._ranks.share(vector)
        return vector

    def _receive(self, command: RankCommand) -> StateSnapshot:
        head = decode_json(command.data, _StateHead)
        scalars: dict[str, Json] = head.scalars
        return StateSnapshot(head.step, head.tensors, scalars, self._receive_bytes(command.size))

    def _receive_bytes(self, size: int) -> torch.Tensor:
        """The bytes of the state that rank 0 announced."""
        buffer = torch.empty(size, dtype=torch.uint8)
        self._ranks.share(buffer)
        return buffer


class WholeCombiner:
    """Of ranks that each have the gradients of the whole model, in the RAM of rank 0: the mean gradient by samples.

    They are the mean over ranks already if they `are_combined`, so that only samples are added up.
    """

    def __init__(self, ranks: ProcessGroup, replica: Replica, *, are_combined: bool) -> None:
        self._ranks, self._vector = ranks, replica.vector
        self._sum = None if are_combined else replica.vector.new()
        self._samples = 0

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
