"""The processes of a peer, and the few things that they tell each other.

    words, counts, shards     gloo, in CPU memory, through a group of their own
    a vector of rank 0        memory that all ranks map, if they are on one machine; else gloo
    sums of gradients         from device to device (NCCL on cards of NVIDIA), if each rank has one of its own

Nothing can mix with what the program sends. If a rank dies, the others' calls fail: all end together.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
import torch.distributed as dist
from blake3 import blake3

from minga.core.decoding import decode_msgpack
from minga.core.errors import ClosedError, ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.optim.arithmetic import is_out_of_memory

PATIENCE: Final = timedelta(days=7)
"""How long a rank waits for the others; only a rank that hangs without dying ever takes that long."""

CONNECTING: Final = timedelta(seconds=30)
"""How long the ranks may take to connect, once all are there: one may be told to end in this very moment."""

LOOK_S: Final = 0.02
"""Seconds between two looks whether all ranks are there."""

NEVER_SENT: Final = 1
"""A tag that no message has."""

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108  (files that only this user may open)
"""Where Linux has files that are memory. Elsewhere ranks have none in common."""


class RankCommand(msgspec.Struct, frozen=True, array_like=True):
    """What rank 0 has all ranks do: a `method` and its arguments, of which the first is a vector that follows if it
    `has_vector`.
    """

    method: str
    arguments: tuple[Any, ...] = ()
    has_vector: bool = False


class ProcessGroup:
    """The processes of this peer, with the few things that they tell each other. All methods are collective."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        with _together():
            self._group: dist.ProcessGroup | None = _connected(self.size)
        self._devices: dist.ProcessGroup | None = None
        self._board: torch.Tensor | None = None
        atexit.register(self._leave)

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
        atexit.unregister(self._leave)
        groups, self._group, self._devices = (self._group, self._devices), None, None
        for group in groups:
            if group is not None and dist.is_initialized():  # the program may have ended all groups by itself
                dist.destroy_process_group(group)

    def _leave(self) -> None:
        """The process ends before the group did, and waits for nobody."""
        self.abandon()
        self._devices = None
        self.end()

    def abandon(self) -> None:
        """End with `ClosedError` whatever other threads wait for in this group, which is of no use then; on any thread,
        and not collective.

        gloo has no call for that. But when it waits in vain for one thing it gives up all.
        """
        if self._group is not None and self.size > 1:
            with contextlib.suppress(RuntimeError, ValueError):  # the program may have ended all groups by itself
                room = torch.zeros(1, dtype=torch.uint8, device="cpu")
                never = dist.irecv(room, (self.rank + 1) % self.size, self._group, NEVER_SENT)
                _wait(never, patience=timedelta(milliseconds=1))

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def agree(self, fine: bool) -> bool:
        """Whether `fine` holds in all ranks."""
        return self.total(int(not fine)) == (0,)

    def total(self, *counts: int) -> tuple[int, ...]:
        """The sums of some counts over all ranks."""
        sums = torch.tensor(counts, dtype=torch.int64, device="cpu")
        with _together():
            dist.all_reduce(sums, group=self._group)
        return tuple(int(each) for each in sums)

    def rows(self, numbers: Sequence[float]) -> list[tuple[float, ...]]:
        """Those of each rank, in order; all have equally many."""
        own = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        rows = [torch.empty_like(own) for _ in range(self.size)]
        with _together():
            dist.all_gather(rows, own, group=self._group)
        return [tuple(row.tolist()) for row in rows]

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
            _wait(dist.isend(tensor, dst=0, group=self._group))

    def receive(self, tensors: Sequence[tuple[int, torch.Tensor]]) -> None:
        """At rank 0: fill each tensor (CPU, contiguous) with what the rank named with it sends."""
        with _together():
            waiting = [dist.irecv(tensor, src=rank, group=self._group) for rank, tensor in tensors]
            _wait(*waiting)

    def send_each(self, tensors: Sequence[tuple[int, torch.Tensor]]) -> None:
        """At rank 0: give each tensor (CPU, contiguous) to the rank named with it, which calls `take`."""
        with _together():
            waiting = [dist.isend(tensor, dst=rank, group=self._group) for rank, tensor in tensors]
            _wait(*waiting)

    def take(self, tensor: torch.Tensor) -> None:
        """Fill `tensor` (CPU, contiguous) with what rank 0 sends by `send_each`."""
        with _together():
            _wait(dist.irecv(tensor, src=0, group=self._group))

    def share_bytes(self, data: bytes = b"") -> bytes:
        """Every rank returns rank 0's `data`."""
        length = torch.tensor([len(data)], dtype=torch.int64, device="cpu")
        self.share(length)
        if not (size := int(length)):
            return b""
        buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8) if self.leads else _bytes(size)
        self.share(buffer)
        return buffer.numpy().tobytes()

    # ---- from device to device: nothing here waits for a device

    def open_devices(self, device: torch.device | None) -> bool:
        """Whether the ranks can add up on their accelerators, of which each has another one; None is none."""
        names = [torch.zeros(1, dtype=torch.int64, device="cpu") for _ in range(self.size)]
        own = torch.tensor([0 if device is None else _number_of(device)], device="cpu")
        with _together():
            dist.all_gather(names, own, group=self._group)
        numbers = {int(name) for name in names}
        backend = "" if device is None else dist.Backend.default_device_backend_map.get(device.type, "")
        # PyTorch names gloo for a Mac's GPU, of which gloo knows nothing.
        is_fit = device is not None and device.type in dist.Backend.backend_capability.get(backend, ())
        is_there = is_fit and dist.is_backend_available(backend)
        if not self.agree(is_there and len(numbers) == self.size and 0 not in numbers):
            return False
        with _together():
            self._devices = dist.new_group(backend=backend)
            one = torch.zeros(1, device=device)
        self.sum_there(one)  # a device that cannot take part says so now: NCCL connects here
        return True

    def sum_there(self, vector: torch.Tensor) -> None:
        """Replace a vector on the devices by the sum over all ranks."""
        with _together():
            dist.all_reduce(vector, group=self._devices)

    def scatter_sum(self, vector: torch.Tensor, own: torch.Tensor) -> None:
        """Fill `own` with this rank's part of the sum of the ranks' vectors on their devices: one of as many equal ones
        as ranks.
        """
        with _together():
            _by_name("reduce_scatter_single", "reduce_scatter_tensor")(own, vector, group=self._devices)

    def join_parts(self, own: torch.Tensor) -> torch.Tensor:
        """Such parts of all ranks, one behind the other."""
        vector = torch.empty(own.numel() * self.size, dtype=own.dtype, device=own.device)
        with _together():
            _by_name("all_gather_single", "all_gather_into_tensor")(vector, own, group=self._devices)
        return vector

    # ---- memory that all ranks map

    def common_memory(self, numel: int) -> torch.Tensor | None:
        """A zeroed float32 vector in memory of all ranks; None if they are on several machines, or there is no room."""
        own = _memory_file(4 * numel) if self.leads else ""
        try:
            name, vector = self.share_bytes(own.encode()).decode(), None
            if name and Path(name).exists():
                with contextlib.suppress(OSError, RuntimeError):
                    vector = torch.from_file(name, shared=True, size=numel, dtype=torch.float32)
            return vector if self.agree(vector is not None) else None
        finally:
            if own:
                Path(own).unlink()  # the memory goes with the last rank that maps it, however that ends

    def open_board(self, numel: int) -> None:
        """Have memory for `post`, if there is such."""
        self._board = self.common_memory(numel)

    def post(self, vector: torch.Tensor | None = None) -> torch.Tensor | None:
        """Every rank returns rank 0's vector, to be read before the next call; None if no memory is common."""
        if self._board is None:
            return None
        self.agree(True)  # nobody reads the last one any more
        if vector is not None:
            self._board[: vector.numel()].copy_(vector)
        self.agree(True)
        return self._board

    def share_spec(self, spec: RunSpec | None) -> RunSpec:
        """Every rank returns rank 0's run spec."""
        data = self.share_bytes(b"" if spec is None else spec.canonical_bytes())
        return RunSpec.from_canonical(data, "run spec of rank 0") if spec is None else spec


def _connected(size: int) -> dist.ProcessGroup:
    """A group of all ranks, for which this one waits.

    While ranks connect, PyTorch heeds neither signals nor the death of a rank that has not connected yet. So they meet
    at the store of the program's own group first. A rank that is told to end meanwhile leaves a word there, by which
    the others end, too, now and at each later attempt. Once all are there they have little time to connect, where
    PyTorch can change the time limit of a group afterwards.
    """
    store, there, left = dist.distributed_c10d._get_default_store(), "minga/ranks there", "minga/ranks that left"  # noqa: SLF001
    before = store.add(there, 1) - 1  # a program may make one group after the other
    try:
        while not store.check([left]) and int(store.get(there)) < before - before % size + size:
            time.sleep(LOOK_S)
        if store.check([left]):
            raise RuntimeError("a rank left before all had come")
    except BaseException:
        with contextlib.suppress(RuntimeError):  # the store has ended with its rank
            store.add(left, 1)
        raise
    limit = CONNECTING if _limits_change() else PATIENCE
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=limit)
    dist.distributed_c10d._set_pg_timeout(PATIENCE, group)  # noqa: SLF001  (of what is collective)
    return group


def _limits_change() -> bool:
    """Whether this PyTorch takes up another time limit for a gloo group that exists; before 2.10 it says so only."""
    major, minor = torch.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (2, 10)


def _wait(*under_way: dist.Work | None, patience: timedelta = PATIENCE) -> None:
    """For what goes from one rank to another."""
    for each in under_way:
        if each is not None:
            each.wait(patience)


def _memory_file(size_bytes: int) -> str:
    """A file of so many bytes that is memory; empty if there is none, or no room for it."""
    try:
        descriptor, name = tempfile.mkstemp(prefix="minga-", dir=SHARED_MEMORY)
    except OSError:
        return ""
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)  # what is only promised would end the process when it is used
    except OSError:
        Path(name).unlink()
        return ""
    finally:
        os.close(descriptor)
    return name


def _number_of(device: torch.device) -> int:
    """A number other than 0 that no other accelerator has."""
    module: Any = getattr(torch, device.type, None)
    name = f"{socket.gethostname()}/{device.index}"
    if hasattr(module, "get_device_properties"):
        name = str(getattr(module.get_device_properties(device), "uuid", name))
    return int.from_bytes(blake3(f"{device.type}/{name}".encode()).digest(7), "little") or 1


def _by_name(name: str, before: str) -> Any:
    """A function of `torch.distributed` that has another name since PyTorch 2.13, which warns of the one `before`."""
    return getattr(dist, name, None) or getattr(dist, before)


def _bytes(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cpu")


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """Turns the failure of a collective operation into the error that users know."""
    try:
        yield
    except (RuntimeError, ValueError) as error:  # ValueError: the program has ended all groups by itself
        why = "another process of this peer has ended"
        if is_out_of_memory(error):
            why = "this process lacks memory to reach the others"
        raise ClosedError(f"{why}: {str(error)[:200]}") from error
