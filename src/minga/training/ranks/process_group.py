"""The processes of a peer, and the few things that they tell each other.

All of it travels by gloo, in CPU memory, through a group of their own, so that it cannot mix with what the program
sends. If a rank dies, the others' calls fail: all end together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

import msgspec
import torch
import torch.distributed as dist

from minga.core.decoding import decode_msgpack
from minga.core.errors import ClosedError, ConfigurationError
from minga.core.spec.run_spec import RunSpec

PATIENCE: Final = timedelta(days=7)
"""How long a rank waits for the others; only a rank that hangs without dying ever takes that long."""


class RankCommand(msgspec.Struct, frozen=True, array_like=True):
    """What rank 0 has all ranks do: a `method` of their replicas, its arguments but for vectors, which follow, and how
    many bytes of a state follow.
    """

    method: str
    numbers: tuple[int, ...] = ()
    data: bytes = b""
    size: int = 0


class ProcessGroup:
    """The processes of this peer, with the few things that they tell each other. All methods are collective."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        with _together():  # they connect here
            self._group: dist.ProcessGroup | None = dist.new_group(backend="gloo", timeout=PATIENCE)

    @classmethod
    def of_this_process(cls, *, has_peer: bool, is_sharded: bool = False) -> ProcessGroup | None:
        """The ranks if `torch.distributed` is initialised with more than one of them, or the model is sharded; else
        None.

        Raises `ConfigurationError`, in all of them, unless exactly rank 0 has a peer.
        """
        fewest = 1 if is_sharded else 2
        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() >= fewest):
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
        if group is not None and dist.is_initialized():  # the program may have ended all groups by itself
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

    def command(self, command: RankCommand | None = None) -> RankCommand:
        """Rank 0 gives a command; every rank returns rank 0's."""
        data = self.share_bytes(b"" if command is None else msgspec.msgpack.encode(command))
        return decode_msgpack(data, RankCommand) if command is None else command

    def share(self, tensor: torch.Tensor) -> None:
        """Fill `tensor` (CPU) with rank 0's."""
        with _together():
            dist.broadcast(tensor, src=0, group=self._group)

    def send(self, tensor: torch.Tensor) -> None:
        """Give `tensor` (CPU, contiguous) to rank 0, which calls `receive`; not collective."""
        with _together():
            dist.send(tensor, dst=0, group=self._group)

    def receive(self, tensors: Sequence[tuple[int, torch.Tensor]]) -> None:
        """At rank 0: fill each tensor (CPU, contiguous) with what the rank named with it sends."""
        with _together():
            waiting = [dist.irecv(tensor, src=rank, group=self._group) for rank, tensor in tensors]
            for each in waiting:
                if each is not None:
                    each.wait()

    def send_each(self, tensors: Sequence[tuple[int, torch.Tensor]]) -> None:
        """At rank 0: give each tensor (CPU, contiguous) to the rank named with it, which calls `take`."""
        with _together():
            waiting = [dist.isend(tensor, dst=rank, group=self._group) for rank, tensor in tensors]
            for each in waiting:
                if each is not None:
                    each.wait()

    def take(self, tensor: torch.Tensor) -> None:
        """Fill `tensor` (CPU, contiguous) with what rank 0 sends by `send_each`."""
        with _together():
            dist.recv(tensor, src=0, group=self._group)

    def share_bytes(self, data: bytes = b"") -> bytes:
        """Every rank returns rank 0's `data`."""
        length = torch.tensor([len(data)], dtype=torch.int64)
        self.share(length)
        if not (size := int(length)):
            return b""
        buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8) if self.leads else _bytes(size)
        self.share(buffer)
        return buffer.numpy().tobytes()

    def share_spec(self, spec: RunSpec | None) -> RunSpec:
        """Every rank returns rank 0's run spec."""
        data = self.share_bytes(b"" if spec is None else spec.canonical_bytes())
        return RunSpec.from_canonical(data, "run spec of rank 0") if spec is None else spec


def _bytes(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """Turns the failure of a collective operation into the error that users know."""
    try:
        yield
    except RuntimeError as error:
        raise ClosedError(f"another process of this peer has ended: {str(error)[:200]}") from error
