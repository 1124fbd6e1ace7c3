"""Sums of gradients of a peer of several processes: each rank adds up a share, and brings it when a round wants it.

    micro-batch   gradients ── summed from device to device ──▶ share of the sum   where each rank has its gradients
    round         share ──▶ memory that all ranks map, else a message ──▶ the sum in RAM   at rank 0

Theory of operation. For a micro-batch all ranks have one flag, which they sum on their devices: what is not finite in
one of them counts for nothing in all. Of copies of a model each rank has an equal part of the vector, and gets the sum
of that part (of copies under `DistributedDataParallel` the gradients are the mean already); of a sharded model it has
its shard. Rank 0 has the end of the vector besides, which says how buffers moved and which gradients there are.

A share is a `GradientSum` as that of a peer of one process: on the device where that has room, else in RAM, which is
the affair of that rank alone. On the training threads rank 0 says to which sum the micro-batch is added. But its loop
may close a step at any time, while all ranks compute. So in each other rank a second thread, the *carrier*, waits for
the word to bring a share, through a group of its own. It begins when that rank has made and added to sums as often as
rank 0. Whoever has a sum changes it under one lock (`Strategy.arithmetic`), so nothing is added meanwhile.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from minga.core.errors import ClosedError, MingaError
from minga.optim.arithmetic import is_out_of_memory
from minga.training.ranks.process_group import ProcessGroup, RankCommand
from minga.training.ranks.shard_map import ShardMap, ShardStream
from minga.training.replica.accelerator import Accelerator, LateVerdict
from minga.training.replica.flat_vector import ParameterVector, add_there
from minga.training.replica.gradient_sum import DeviceSum, GradientSum
from minga.training.replica.replica import Replica

ITEM_BYTES: Final = 4
"""Bytes of an element of the vector, float32."""
END_S: Final = 2.0
"""How long a process that ends waits for a share that is under way, or still wanted."""
GIVEN_UP_S: Final = 30.0
"""How long it then waits at most until nothing waits for gloo any more, on a machine that has much else to do."""

logger = logging.getLogger("minga.training")


@dataclass(eq=False)
class _Share:
    """One rank's share of a sum, the whole sum, if all ranks map it, and why something that was told is not in it."""

    sum: GradientSum
    whole: torch.Tensor | None
    failure: Exception | None = None


class RankShares(ABC):
    """What this rank has of each sum, and of the present micro-batch, from which it is a `DeviceSource`.

    `places` says where in the vector the tensors of each share lie. All ranks call all methods alike, on their training
    threads, but `bring`, which is rank 0's.
    """

    def __init__(self, ranks: ProcessGroup, replica: Replica, places: ShardMap, shards: int) -> None:
        self._ranks, self._replica = ranks, replica
        self._whole: ParameterVector = replica.vector
        self.accelerator: Accelerator | None = replica.accelerator
        """Where the shares of this rank are; None is in RAM."""
        self._places, self._own = places, places.of(ranks.rank)
        self._tail_numel = self._whole.numel - self._whole.parameters_numel if ranks.leads else 0
        self.lacks_room = False
        """Whether a device could not combine a micro-batch: from then on sums are made in the RAM of rank 0 alone."""
        self._rows: list[tuple[int, torch.Tensor]] = []  # of the present micro-batch, each with its place in a share
        self._is_finite: bool | torch.Tensor = False
        self._divisor = 1.0
        self._rest: torch.Tensor | None = None
        self._shares: dict[int, _Share] = {}
        self._done, self._has_done = 0, threading.Condition()  # how often it made a sum, or added to one
        self._carriers, self._word, self._has_ended = ProcessGroup(), threading.Lock(), False
        self._stream = ShardStream(self._carriers, shards)
        self._carrier: threading.Thread | None = None
        if not ranks.leads:
            self._carrier = threading.Thread(target=self._carry, name="minga-rank-carrier", daemon=True)
            self._carrier.start()
        atexit.register(self._leave)

    @abstractmethod
    def combine(self, samples: int) -> int | None:
        """This rank's micro-batch of `samples` is ready. Returns the samples of all ranks; None, with nothing changed,
        if one of their devices lacks the memory to combine them.
        """

    @abstractmethod
    def _numels(self) -> list[int]:
        """Elements of the tensors in this rank's share, without the end of the vector."""

    @property
    def rest(self) -> torch.Tensor | None:
        """At rank 0: the end of the vector in the present micro-batch, the mean over the ranks; None if it is that of
        this rank.
        """
        return None if self._rest is None else self._rest / self._divisor

    def let_go(self) -> None:
        """Forget the present micro-batch: its gradients take memory that an update needs."""
        self._rows = []

    def open(self, key: int) -> torch.Tensor | None:
        """Make sum number `key`, or make it anew; the whole of it, if all ranks map that."""
        there = self.accelerator
        share = GradientSum(self) if there is None else DeviceSum(self, there, sum(self._numels()) + self._tail_numel)
        self._shares[key] = _Share(share, self._ranks.common_memory(self._whole.numel))
        self._count()
        return self._shares[key].whole

    def add(self, key: int, weight: float, *, is_first: bool) -> bool | LateVerdict:
        """Add the present micro-batch, `weight` times, to a sum, which is 0 before if it `is_first`. Once for each."""
        share = self._shares[key]
        try:
            if is_first:
                share.sum.clear()
            return share.sum.add(weight)
        except Exception as error:
            share.failure = error
            raise
        finally:
            self.let_go()
            self._count()

    def bring(self, key: int, whole: torch.Tensor) -> None:
        """At rank 0, on any thread: add what all ranks have of a sum to a vector, `open`'s if that gave one.

        Raises `ClosedError` if one of them cannot.
        """
        with self._word:
            if self._has_ended:
                raise ClosedError("the processes of this peer have parted")
            self._has_ended = True  # unless all goes well: there are no carriers then, or they wait for something else
            done = self._done
            self._carriers.command(RankCommand("bring", (key, done)))
            self._bring(key, done, whole)
            self._has_ended = False

    def end(self) -> None:
        """Nothing is brought any more."""
        atexit.unregister(self._leave)
        if self._carrier is not None:
            self._carrier.join(END_S)
            return
        with self._word:
            if not self._has_ended:
                self._has_ended = True
                self._carriers.command(RankCommand("end"))
        self._carriers.end()

    # ---- what sums ask for

    @property
    def vector(self) -> RankShares:
        """What sums are made of here: shares."""
        return self

    def new(self) -> torch.Tensor:
        """A zeroed share in RAM."""
        return torch.zeros(sum(self._numels()) + self._tail_numel, dtype=torch.float32, device="cpu")

    @torch.no_grad()
    def accumulate(self, vector: torch.Tensor, weight: float) -> bool:
        """See `GradientSource`."""
        if not self._is_finite:  # waits for the device, if there is one
            return False
        for first, flat in self._rows:
            vector[first : first + flat.numel()].add_(flat.to("cpu", torch.float32), alpha=weight / self._divisor)
        return True

    @torch.no_grad()
    def accumulate_there(self, accelerator: Accelerator, vector: torch.Tensor, weight: float) -> LateVerdict:
        """See `DeviceSource`."""
        is_finite = self._is_finite
        if not isinstance(is_finite, torch.Tensor):
            is_finite = torch.tensor(is_finite, device="cpu")
        verdict = LateVerdict(accelerator, is_finite, self._replica.take_loss())
        parts = [vector[first : first + flat.numel()] for first, flat in self._rows]
        add_there(parts, [flat for _, flat in self._rows], weight / self._divisor, is_finite)
        return verdict

    def sum_in_ram(self) -> None:
        """See `DeviceSource`: the shares of this rank are in RAM from now on."""
        if self.accelerator is not None:
            logger.warning(
                "%s lacks the memory for this process's share of a sum of gradients: it is added up in RAM instead, so "
                "that each micro-batch waits for a copy; smaller micro-batches leave room for it",
                self.accelerator.device,
            )
            self.accelerator = None

    # ---- for those of each kind

    def _agree_there(self, flats: Sequence[torch.Tensor | None], factor: float) -> None:
        """Of what `present_there` gave: sum the flags of all ranks on their devices, and `factor` times the end, which
        rank 0 adds to its share.
        """
        is_finite = self._whole.are_finite_there(flats)
        rest = [flat.to(torch.float32) for flat in flats[len(self._whole.parameters()) :] if flat is not None]
        told = torch.cat([torch.cat(rest).mul_(factor), (~is_finite).to(torch.float32).reshape(1)])
        self._ranks.sum_there(told)
        self._is_finite, self._rest = told[-1] == 0, told[:-1]
        self._rows = [(sum(self._numels()), self._rest)] if self._ranks.leads else []

    # ---- the carriers

    def _carry(self) -> None:
        """In other ranks than 0, on a thread of its own: bring what rank 0 asks for, until it ends."""
        with contextlib.suppress(MingaError):  # rank 0 has gone; the training thread hears of it, too
            while (command := self._carriers.command()).method == "bring":
                key, done = command.arguments
                self._bring(key, done, None)
        self._carriers.end()

    def _leave(self) -> None:
        """This process ends before the run does: no thread may be left that waits for gloo, which would abort the
        process if it told it something while the interpreter goes away.
        """
        if self._carrier is not None:
            self._carrier.join(END_S)
            if self._carrier.is_alive():
                self._carriers.abandon()
                self._carrier.join(GIVEN_UP_S)
            return
        if not self._word.acquire(timeout=END_S):
            self._carriers.abandon()
            if not self._word.acquire(timeout=GIVEN_UP_S):
                return
        self._word.release()
        with contextlib.suppress(ClosedError):
            self.end()

    def _count(self) -> None:
        with self._has_done:
            self._done += 1
            self._has_done.notify_all()

    @torch.no_grad()
    def _bring(self, key: int, done: int, whole: torch.Tensor | None) -> None:
        with self._has_done:
            self._has_done.wait_for(lambda: self._done >= done)
        share, parts, failure = self._shares[key], list[torch.Tensor](), None
        try:
            if share.failure is not None:
                raise share.failure
            parts = list(share.sum.vector().split_with_sizes([*self._numels(), self._tail_numel]))
            if whole is not None:
                whole[self._whole.parameters_numel :].add_(parts[-1])
            if share.whole is not None:
                self._put(parts, share.whole)
        except Exception as error:
            logger.exception("the share of a sum of gradients could not be brought")
            failure = error
        if not self._carriers.agree(failure is None):
            raise ClosedError(
                "a process of this peer could not bring its share of the gradients; it says why"
            ) from failure
        if share.whole is None:
            for start, piece in self._stream.gather(self._places, parts, torch.float32):
                values = piece.view(torch.float32)
                if whole is not None:
                    whole[start // ITEM_BYTES :][: values.numel()].add_(values)

    def _put(self, parts: Sequence[torch.Tensor], whole: torch.Tensor) -> None:
        for each in self._own:
            first = each.first // ITEM_BYTES
            place = whole[each.start // ITEM_BYTES : each.stop // ITEM_BYTES]
            place.add_(parts[each.tensor][first : first + place.numel()])


class CopyShares(RankShares):
    """Of ranks that each have the gradients of the whole model: an equal part of the vector is each one's share.

    They are the mean over all ranks already if they `are_combined`, as under `DistributedDataParallel`.
    """

    def __init__(self, ranks: ProcessGroup, replica: Replica, *, are_combined: bool) -> None:
        self._are_combined = are_combined
        super().__init__(
            ranks, replica, ShardMap.even(replica.vector.parameters_numel, ranks.size, ITEM_BYTES), ranks.size
        )

    def combine(self, samples: int) -> int | None:
        """See `RankShares`."""
        if self.lacks_room:
            return None
        flats, whole, own = list[torch.Tensor | None](), None, None
        try:
            flats = self._whole.present_there(self._device)
            if not self._are_combined:
                whole = self._joined(flats, samples)
                own = torch.empty(whole.numel() // self._ranks.size, dtype=whole.dtype, device=whole.device)
            is_ready = True
        except Exception as error:  # devices have no class of errors in common
            if not is_out_of_memory(error):
                raise
            is_ready = False
        total, lacking = self._ranks.total(samples, int(not is_ready))
        if lacking:
            self.lacks_room = True
            return None
        if whole is None or own is None:
            self._agree_there(flats, float(self._ranks.leads))  # each begins with the buffers of rank 0
            self._rows += self._own_of(flats)
        else:
            self._agree_there(flats, float(samples))
            self._ranks.scatter_sum(whole, own)
            self._rows.append((0, own[: sum(self._numels())]))
            self._divisor = float(total)
        return total

    @torch.no_grad()
    def mean(self) -> torch.Tensor | None:
        """The mean gradient of the present micro-batch, whole on the device of each rank; None if it is not finite."""
        if not self._is_finite or self._rest is None:  # waits for the device
            return None
        size = -(-self._whole.parameters_numel // self._ranks.size)
        own = torch.zeros(size, dtype=torch.float32, device=self._device)
        for first, flat in self._rows[self._ranks.leads :]:
            own[first : first + flat.numel()].add_(flat, alpha=1.0 / self._divisor)
        self.let_go()
        whole = self._ranks.join_parts(own)[: self._whole.parameters_numel]
        return torch.cat([whole, self._rest.div(self._divisor)])

    def _numels(self) -> list[int]:
        return [sum(each.size for each in self._own) // ITEM_BYTES]

    @property
    def _device(self) -> torch.device:
        return self._whole.parameters()[0].device

    @torch.no_grad()
    def _joined(self, flats: Sequence[torch.Tensor | None], samples: int) -> torch.Tensor:
        """The gradients times samples as one vector, of a length that can be cut into equal parts."""
        numels = [parameter.numel() for parameter in self._whole.parameters()]
        size = self._ranks.size
        whole = torch.zeros(-(-sum(numels) // size) * size, dtype=torch.float32, device=self._device)
        parts = whole[: sum(numels)].split_with_sizes(numels)
        rows = [(part, flat) for part, flat in zip(parts, flats, strict=False) if flat is not None]
        for dtype in {flat.dtype for _, flat in rows}:
            alike = [row for row in rows if row[1].dtype == dtype]
            torch._foreach_add_([part for part, _ in alike], [flat for _, flat in alike], alpha=float(samples))
        return whole

    def _own_of(self, flats: Sequence[torch.Tensor | None]) -> list[tuple[int, torch.Tensor]]:
        """The parts of some gradients that are in this rank's share, each with its place there."""
        found, start = list[tuple[int, torch.Tensor]](), 0
        first, last = (self._own[0].start // ITEM_BYTES, self._own[-1].stop // ITEM_BYTES) if self._own else (0, 0)
        for parameter, flat in zip(self._whole.parameters(), flats, strict=False):
            stop = start + parameter.numel()
            begin, end = max(start, first), min(stop, last)
            if flat is not None and begin < end:
                found.append((begin - first, flat[begin - start : end - start]))
            start = stop
        return found
