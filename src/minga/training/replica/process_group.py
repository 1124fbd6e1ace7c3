"""A peer of several processes: the ranks of one `torch.distributed` group, as `torchrun` starts them.

Theory of operation. The swarm sees one peer, which lives in rank 0. All ranks call `minga.Optimizer` and its methods
alike and equally often. At each micro-batch the ranks' gradients are combined in rank 0; whatever rank 0 then does to
its replica because the swarm says so, it has the others do as well, before all of them go on:

    rank 0                            other ranks
      ◀────── gradients, samples ──────    collect
      ── APPLY step, vector ──────────▶    apply
      ── INNER vector ────────────────▶    step_by
      ── ADOPT step, vector ──────────▶    adopt
      ── AMEND settings ──────────────▶    amend
      ── WRITE vector ────────────────▶    write_values
      ── RESTORE state ───────────────▶    restore
      ── RELEASE finished ────────────▶    back to the program
      ── FAIL reason ─────────────────▶    raise ClosedError

Each message is a header of three int64 numbers, then the tensor that it announces. All travel by gloo, in CPU memory,
through a group of their own, so that they cannot mix with those of the program. Ranks that start from the same bytes
and apply the same bytes stay equal to the last bit. If a rank dies, the others' calls fail: all end together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

import msgspec
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from minga.core.errors import ClosedError, ConfigurationError, MingaError
from minga.core.spec.run_spec import RunSpec
from minga.training.replica.replica import Replica
from minga.training.state.scalars import Json
from minga.training.state.snapshot import StateSnapshot, TensorEntry

APPLY: Final = 1
WRITE: Final = 2
RESTORE: Final = 3
RELEASE: Final = 4
FAIL: Final = 5
INNER: Final = 6
ADOPT: Final = 7
AMEND: Final = 8

PATIENCE: Final = timedelta(days=7)
"""How long a rank waits for the others; only a rank that hangs without dying ever takes that long."""


class Header(NamedTuple):
    """What rank 0 announces: `value` is a step or, for RELEASE, whether the run is finished; `size` counts bytes."""

    kind: int
    value: int = 0
    size: int = 0


class _StateHead(msgspec.Struct, array_like=True, frozen=True):
    """A snapshot without its bytes."""

    step: int
    tensors: tuple[TensorEntry, ...]
    scalars: dict[str, Any]


class ProcessGroup:
    """The processes of this peer, with the few things that they tell each other. All methods are collective."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._group: dist.ProcessGroup | None = dist.new_group(backend="gloo", timeout=PATIENCE)

    @classmethod
    def of_this_process(cls, *, has_peer: bool) -> ProcessGroup | None:
        """The ranks if `torch.distributed` is initialised with more than one of them, else None.

        Raises `ConfigurationError`, in all of them, unless exactly rank 0 has a peer.
        """
        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            if not has_peer:
                raise ConfigurationError(
                    "peer=None is for ranks other than 0 of an initialised torch.distributed group; call "
                    "torch.distributed.init_process_group first, or join the run"
                )
            return None
        ranks = cls()
        if not ranks.agree(has_peer == (ranks.rank == 0)):
            raise ConfigurationError(
                "the processes of a torch.distributed group are one peer: rank 0 joins the run, the others pass "
                "peer=None"
            )
        return ranks

    def end(self) -> None:
        """Leave the group, once its ranks have nothing to tell each other any more; waits for its threads.

        A thread of gloo lets go of the tensors of an operation after the operation is over, for which it needs the
        interpreter. A process that ends just then would be aborted.
        """
        group, self._group = self._group, None
        if group is not None:
            dist.destroy_process_group(group)

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def agree(self, fine: bool) -> bool:
        """Whether `fine` holds in all ranks."""
        return self.total(int(not fine)) == (0,)

    def total(self, *counts: int) -> tuple[int, ...]:
        """The sums of some counts over all ranks."""
        sums = torch.tensor(counts, dtype=torch.int64)
        with _together():
            dist.all_reduce(sums, group=self._group)
        return tuple(int(each) for each in sums)

    def sum_at_leader(self, vector: torch.Tensor) -> None:
        """Replace rank 0's `vector` by the sum over all ranks; those of the others are used up."""
        with _together():
            dist.reduce(vector, dst=0, group=self._group)

    def announce(self, header: Header) -> Header:
        """Rank 0 sends `header`; every rank returns rank 0's."""
        numbers = torch.tensor(header, dtype=torch.int64)
        self.share(numbers)
        return Header(*(int(each) for each in numbers))

    def share(self, tensor: torch.Tensor) -> None:
        """Fill `tensor` (CPU) with rank 0's."""
        with _together():
            dist.broadcast(tensor, src=0, group=self._group)

    def share_bytes(self, data: bytes = b"") -> bytes:
        """Every rank returns rank 0's `data`."""
        size = self.announce(Header(0, 0, len(data))).size
        if size == 0:
            return b""
        buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8) if self.leads else _bytes(size)
        self.share(buffer)
        return buffer.numpy().tobytes()

    def share_spec(self, spec: RunSpec | None) -> RunSpec:
        """Every rank returns rank 0's run spec."""
        data = self.share_bytes(b"" if spec is None else spec.canonical_bytes())
        return RunSpec.from_canonical(data, "run spec of rank 0") if spec is None else spec


class LeaderReplica(Replica):
    """Rank 0's copy: has the other ranks do what it does."""

    def __init__(self, ranks: ProcessGroup, spec: RunSpec, optimizer: torch.optim.Optimizer, **settings: Any) -> None:
        super().__init__(spec, optimizer, **settings)
        self._ranks, self._combiner = ranks, _Combiner(ranks, self, settings.get("model"))

    def collect(self, samples: int) -> int:
        """Combine the micro-batches of all ranks; returns the samples of all that are finite."""
        self.check_schedule()
        return self._combiner.combine(samples)

    def accumulate(self, vector: torch.Tensor, weight: float) -> bool:
        """Add what `collect` combined."""
        return self._combiner.accumulate(vector, weight)

    def apply(self, mean: torch.Tensor, step: int) -> None:
        """Take the optimizer step in all ranks."""
        self._ranks.announce(Header(APPLY, step))
        self._ranks.share(mean)
        super().apply(mean, step)

    def amend(self, changes: Mapping[str, Any]) -> None:
        """Go by other settings of the optimizer in all ranks."""
        self._ranks.announce(Header(AMEND))
        self._ranks.share_bytes(msgspec.json.encode(dict(changes)))
        super().amend(changes)

    def inner_step(self) -> bool:
        """Take an optimizer step of this peer alone in all ranks, by the gradients that `collect` combined."""
        gradients = self.vector.new()
        if not self.accumulate(gradients, 1.0):
            return False
        self._ranks.announce(Header(INNER))
        self._ranks.share(gradients)
        return self.step_by(gradients)

    def adopt(self, values: torch.Tensor, step: int) -> None:
        """Come to `step` with these parameters in all ranks."""
        self._ranks.announce(Header(ADOPT, step))
        self._ranks.share(values)
        super().adopt(values, step)

    def put(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Put some tensors back, and have the other ranks take over everything that is here then."""
        super().put(tensors)
        self._send(self.capture_all())

    def write_values(self, values: torch.Tensor) -> None:
        """Set the parameters in all ranks."""
        self._ranks.announce(Header(WRITE))
        self._ranks.share(values)
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
        self._ranks.announce(Header(RELEASE, int(finished)))
        if finished:
            self._ranks.end()

    def fail(self, error: BaseException) -> None:
        """End the other ranks, if they still listen."""
        if isinstance(error, Exception):  # an interrupted process is in no state to talk; the others see it go
            reason = str(error).encode("utf-8")[:4096]
            with contextlib.suppress(MingaError):
                self._ranks.announce(Header(FAIL))
                self._ranks.share_bytes(reason)

    def _send(self, snapshot: StateSnapshot) -> None:
        head = _StateHead(snapshot.step, snapshot.tensors, snapshot.scalars)
        self._ranks.announce(Header(RESTORE, snapshot.step, snapshot.buffer.numel()))
        self._ranks.share_bytes(msgspec.json.encode(head))
        self._ranks.share(snapshot.buffer)
        snapshot.release()


class FollowerReplica(Replica):
    """The copy of any other rank: does what rank 0 does."""

    def __init__(self, ranks: ProcessGroup, spec: RunSpec, optimizer: torch.optim.Optimizer, **settings: Any) -> None:
        super().__init__(spec, optimizer, **settings)
        self._ranks, self._combiner = ranks, _Combiner(ranks, self, settings.get("model"))

    def collect(self, samples: int) -> int:
        """Give this rank's micro-batch to rank 0; returns the samples of all that are finite."""
        self.check_schedule()
        return self._combiner.combine(samples)

    def obey(self) -> bool:
        """Do what rank 0 says until it lets this rank go on; returns whether the run is finished.

        Raises `ClosedError` when rank 0 has ended.
        """
        vector: torch.Tensor | None = None
        while (header := self._ranks.announce(Header(0))).kind != RELEASE:
            if header.kind in (APPLY, WRITE, INNER, ADOPT):
                vector = self.vector.new() if vector is None else vector
                self._ranks.share(vector)
                if header.kind == APPLY:
                    self.apply(vector, header.value)
                elif header.kind == ADOPT:
                    self.adopt(vector, header.value)
                elif header.kind == INNER:
                    self.step_by(vector)
                else:
                    self.write_values(vector)
            elif header.kind == AMEND:
                self.amend(msgspec.json.decode(self._ranks.share_bytes(), type=dict[str, Any]))
            elif header.kind == RESTORE:
                self.restore(self._receive(header))
            else:
                raise ClosedError(f"rank 0 of this peer ended: {self._ranks.share_bytes().decode('utf-8', 'replace')}")
        finished = bool(header.value)
        if finished:
            self._ranks.end()
        return finished

    def _receive(self, header: Header) -> StateSnapshot:
        head = msgspec.json.decode(self._ranks.share_bytes(), type=_StateHead)
        scalars: dict[str, Json] = head.scalars
        buffer = _bytes(header.size)
        self._ranks.share(buffer)
        return StateSnapshot(head.step, head.tensors, scalars, buffer)


class _Combiner:
    """Makes one micro-batch of those of all ranks: the mean gradient by samples.

    Under `DistributedDataParallel` the gradients are the mean over ranks already, so that only samples are added up.
    """

    def __init__(self, ranks: ProcessGroup, replica: Replica, model: torch.nn.Module | None) -> None:
        self._ranks, self._replica, self._vector = ranks, replica, replica.vector
        self._vector.quick = False  # what one rank adds is not looked at again before the sum over all
        self._sum = None if isinstance(model, DistributedDataParallel) else replica.vector.new()
        self._samples = 0

    def combine(self, samples: int) -> int:
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
        if self._sum is None:
            return self._vector.accumulate(vector, weight)
        if self._samples:
            vector.add_(self._sum, alpha=weight / self._samples)
        return bool(self._samples)


def _bytes(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """Turns the failure of a collective operation into the error that users know."""
    try:
        yield
    except RuntimeError as error:
        raise ClosedError(f"another process of this peer has ended: {str(error)[:200]}") from error
