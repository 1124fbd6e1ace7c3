"""The replicas of a peer whose processes each hold the whole model.

Theory of operation. The swarm sees one peer, which lives in rank 0. All ranks call `minga.Optimizer` and its methods
alike and equally often. At each micro-batch the ranks' gradients are combined in rank 0; whatever rank 0 then does to
its replica because the swarm says so, it has the others do as well, before all of them go on:

    rank 0                            other ranks
      ◀────── gradients, samples ──────    collect
      ── apply step, vector ──────────▶    apply
      ── step_by vector ──────────────▶    step_by
      ── adopt step, vector ──────────▶    adopt
      ── amend settings ──────────────▶    amend
      ── write_values vector ─────────▶    write_values
      ── restore state ───────────────▶    restore
      ── release finished ────────────▶    back to the program
      ── fail reason ─────────────────▶    raise ClosedError

Each message is a `RankCommand`, then the tensor that it announces. Ranks that start from the same bytes and apply the
same bytes stay equal to the last bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
import torch
from torch.nn.parallel import DistributedDataParallel

from minga.core.decoding import decode_json
from minga.core.errors import ClosedError, MingaError, UnfitError
from minga.core.spec.run_spec import RunSpec
from minga.core.units import and_others
from minga.training.ranks.process_group import ProcessGroup, RankCommand
from minga.training.replica.replica import Replica
from minga.training.replica.trained_record import TrainedRecord
from minga.training.state.base import BaseTensor, largest
from minga.training.state.scalars import Json
from minga.training.state.snapshot import StateSnapshot, TensorEntry


class _StateHead(msgspec.Struct, array_like=True, frozen=True):
    """A snapshot without its bytes."""

    step: int
    tensors: tuple[TensorEntry, ...]
    scalars: dict[str, Any]


class Combiner(Protocol):
    """Makes one micro-batch of those of all ranks: the mean gradient by samples."""

    def combine(self, samples: int) -> int:
        """In all ranks: this one's micro-batch of `samples` is ready. Returns the samples of all that count; of all, if
        none does.
        """

    def accumulate(self, vector: torch.Tensor, weight: float) -> bool:
        """At rank 0: add what was combined, `weight` times, to `vector`; False if none of it counts."""


class RankReplica(Replica):
    """What the replicas of all ranks have in common."""

    adds_on_device = False

    def __init__(self, ranks: ProcessGroup, spec: RunSpec, optimizer: torch.optim.Optimizer, **settings: Any) -> None:
        self._ranks = ranks
        super().__init__(spec, optimizer, **settings)
        self._combiner = self._new_combiner(settings.get("model"))

    def collect(self, samples: int, loss: float | torch.Tensor | None = None) -> int:  # noqa: ARG002
        """Combine the micro-batches of all ranks; returns the samples of all that are finite."""
        self.look_at_loop()
        return self._combiner.combine(samples)

    def _new_combiner(self, model: torch.nn.Module | None) -> Combiner:
        return WholeCombiner(self._ranks, self, model)

    def _agreed(self, record: TrainedRecord) -> TrainedRecord:
        """Raises `UnfitError`, in all ranks, if these have different bases."""
        theirs = decode_json(self._ranks.share_bytes(msgspec.json.encode(record.base)), dict[str, BaseTensor])
        if self._ranks.agree(theirs.keys() == record.base.keys()):  # else they have different models
            differ = self._ranks.total(*(int(theirs[name] != each) for name, each in sorted(record.base.items())), 0)
            found = [name for name, ranks in zip(sorted(record.base), differ, strict=False) if ranks]
            if found:
                first = largest(found, record.base)
                raise UnfitError(
                    f"`{first}` is frozen and has other values in some processes of this peer{and_others(found)}: load "
                    "the same weights in all of them, or seed the model alike where they are random"
                )
        return record

    def _end(self) -> None:
        """The run is over: the ranks have nothing to tell each other any more."""
        self._ranks.end()


class LeaderReplica(RankReplica):
    """Rank 0's copy: has the other ranks do what it does."""

    def accumulate(self, vector: torch.Tensor, weight: float) -> bool:
        """Add what `collect` combined."""
        return self._combiner.accumulate(vector, weight)

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
        if finished:
            self._end()

    def fail(self, error: BaseException) -> None:
        """End the other ranks, if they still listen."""
        if isinstance(error, Exception):  # an interrupted process is in no state to talk; the others see it go
            reason = str(error).encode("utf-8")[:4096]
            with contextlib.suppress(MingaError):
                self._ranks.command(RankCommand("fail", data=reason))

    def _tell(self, method: str, vector: torch.Tensor, *numbers: int) -> None:
        """Have the other ranks call a method with a vector and some numbers."""
        self._ranks.command(RankCommand(method, numbers))
        self._share_vector(vector)

    def _share_vector(self, vector: torch.Tensor) -> None:
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
                self._take_part(command.method)
        finished = command.numbers == (1,)
        if finished:
            self._end()
        return finished

    def _take_part(self, method: str) -> None:
        """Do this rank's part of what else rank 0 does."""
        raise ClosedError(f"rank 0 of this peer says {method}, which means nothing here: is it of another version?")

    def _receive_vector(self, memory: torch.Tensor | None) -> torch.Tensor:
        """Rank 0's vector, in `memory` if there is some."""
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
    """Of ranks that each have the gradients of the whole model.

    Under `DistributedDataParallel` the gradients are the mean over ranks already, so that only samples are added up.
    """

    def __init__(self, ranks: ProcessGroup, replica: Replica, model: torch.nn.Module | None) -> None:
        self._ranks, self._replica, self._vector = ranks, replica, replica.vector
        self._vector.quick = False  # what one rank adds is not looked at again before the sum over all
        self._sum = None if isinstance(model, DistributedDataParallel) else replica.vector.new()
        self._samples = 0

    def combine(self, samples: int) -> int:
        """See `Combiner`."""
        self._replica.drop_frozen()
        if self._sum is None:
            self._vector.wait()
            return self._ranks.total(samples)[0]
        self._sum.zero_()
        finite = self._vector.accumulate(self._sum, samples)
        self._samples, everything = self._ranks.total(samples if finite else 0, samples)
        self._ranks.sum_at_leader(self._sum)
        return self._samples or everything

    def accumulate(self, vector: torch.Tensor, weight: float) -> bool:
        """See `Combiner`."""
        if self._sum is None:
            return self._vector.accumulate(vector, weight)
        if self._samples:
            vector.add_(self._sum, alpha=weight / self._samples)
        return bool(self._samples)
