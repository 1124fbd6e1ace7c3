"""The seams between averaging and the rest of a peer, and what group formation is told of the run and its peers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch

from minga.averaging.links import BrokenPaths, Links
from minga.averaging.messages import Plan, Report
from minga.averaging.strategy_choice import Contributors, StrategyFacts
from minga.core.aio import Signal
from minga.core.errors import ProtocolError
from minga.network.bandwidth.access_link import AccessRates
from minga.network.gossip.board import Observer
from minga.network.interface import Address, PeerId

# ---- The seams: what produces the vectors, what the organisers ordered, and what members tell each other besides.


class Contributor(Protocol):
    """What a round needs from the local trainer. All is called on the event loop; all but `seal` returns at once.

    `changed` fires on the loop whenever `report()` would say something new.
    """

    changed: Signal

    @property
    def facts(self) -> StrategyFacts:
        """Those of the strategy that goes on now."""

    def report(self) -> Report:
        """How far the local peer is within the step, right now."""

    def limit(self, samples: int | None) -> None:
        """Stop at the end of the first micro-batch with at least so many samples in this step (`report().parked` tells
        when), and go on up to there if it stopped before; None: no limit.
        """

    def rest(self, *, resting: bool) -> None:
        """Leave off computing until told otherwise: the upload of its gradient would cost the others too much time."""

    async def seal(self) -> tuple[torch.Tensor | None, int]:
        """Take what was accumulated: the mean gradient (float32, flat, CPU) and the number of samples behind it.

        None and 0 where there is nothing. A micro-batch that is being added at this moment counts. The tensor stays
        unchanged until the round has ended.
        """


class RunOrders(Protocol):
    """The organisers' amendments, by their ids, as far as rounds are concerned."""

    def due(self, step: int) -> tuple[str, ...]:
        """Those that a leader puts in force in the round of `step`."""

    def batch_range(self, orders: Sequence[str], step: int) -> tuple[int, int] | None:
        """The smallest and the largest target batch size of `step` under these orders; None if nothing changes it."""

    async def obtain(self, orders: Sequence[str], peer: PeerId, step: int) -> None:
        """Get those that are not known here from `peer`, which wants them in force in the round of `step`.

        Raises `RemoteError` if it does not have them either, or if one of them is for later steps.
        """


class WithoutOrders:
    """Those of a run that nobody amends."""

    def due(self, step: int) -> tuple[str, ...]:  # noqa: ARG002
        """None."""
        return ()

    def batch_range(self, orders: Sequence[str], step: int) -> tuple[int, int] | None:  # noqa: ARG002
        """Nothing."""
        return None

    async def obtain(self, orders: Sequence[str], peer: PeerId, step: int) -> None:  # noqa: ARG002
        """There are none to get; a plan that names one is refused, by `ProtocolError`."""
        if orders:
            raise ProtocolError("the plan names orders in a run without organisers", peer=peer, phase="group")


WITHOUT_ORDERS: Final[RunOrders] = WithoutOrders()


class RoundNotes(Protocol):
    """What travels with the messages of group formation and is no business of it: small, rare, and without a call of
    its own. A note that cannot be read says nothing.
    """

    def for_leader(self, step: int) -> bytes:
        """What this peer gives to the leader of `step`."""

    def with_plan(self, plan: Plan, notes: Mapping[PeerId, bytes]) -> bytes:
        """What this peer, as the leader, gives to all members with the plan, from the notes that each of them gave."""

    def take(self, plan: Plan, note: bytes) -> None:
        """What came with a plan in which this peer takes part; its own as the leader, too."""


class WithoutNotes:
    """Those of a peer that has nothing to say."""

    def for_leader(self, step: int) -> bytes:  # noqa: ARG002
        """Nothing."""
        return b""

    def with_plan(self, plan: Plan, notes: Mapping[PeerId, bytes]) -> bytes:  # noqa: ARG002
        """Nothing."""
        return b""

    def take(self, plan: Plan, note: bytes) -> None:
        """It is not read."""


WITHOUT_NOTES: Final[RoundNotes] = WithoutNotes()


# ---- What group formation is told: what the board knows of the other peers, and the settings of the run.


class SwarmView(Protocol):
    """What group formation reads from the board."""

    def observe(self, observer: Observer) -> object:
        """Call `observer` with each change on the board from now on."""

    def alive(self) -> Collection[PeerId]:
        """Trainers and auxiliaries that are alive, this peer included."""

    def active(self) -> Collection[PeerId]:
        """Other living members that take part in rounds at present, at whatever step."""

    def through(self, step: int) -> Collection[PeerId]:
        """Others whose newest word is that they take part in no round any more, since for them the run was over at
        `step` or before; also if they have died since.
        """

    def at(self, step: int) -> Collection[PeerId]:
        """Other living members, not syncing, that are at `step`."""

    def averaging(self, step: int) -> Collection[PeerId]:
        """Other living members whose round of `step` still runs."""

    def eligible(self, step: int) -> Collection[PeerId]:
        """Other members at `step` that may lead, whether or not they can be reached."""

    def current(self, step: int) -> Collection[PeerId]:
        """The eligible that can be dialled, or are connected anyway."""

    def ahead(self, step: int) -> Collection[PeerId]:
        """Other living members with a state of their own that are past `step`."""

    def is_behind(self, step: int) -> bool:
        """Whether at least half of those alive are at a later step, so that `step` is over."""

    def syncing(self, step: int = 0) -> Mapping[PeerId, float]:
        """Living newcomers that are fetching state, and for how many seconds each has done so by now; also those whose
        state came just now, and too late for `step`.
        """

    def address(self, peer: PeerId) -> Address | None:
        """Where a peer can be dialled, if known."""

    def links(self) -> Mapping[PeerId, Links]:
        """What each living peer publishes of its links, this one included."""

    def broken_paths(self) -> BrokenPaths:
        """Which living peers cannot reach which others."""

    def rates(self) -> AccessRates:
        """This peer's own present rates."""


@dataclass(frozen=True)
class RoundVector:
    """The vector of a round: the fingerprint of its `layout`, its elements, and the bytes they take as encoded.

    Parts should begin at multiples of `block_elements`, where a codec chooses within blocks.
    """

    layout: str
    numel: int
    encoded_bytes: int
    block_elements: int = 1


@dataclass(frozen=True)
class GroupSettings:
    """What stays the same in all groups of a run.

    `vectors` tells which vector the round of a step averages, as a function of the step's number alone, the same for
    all peers. Of this peer: whether it can be dialled by all and so `aggregates` for them, and whether it `computes`
    (an auxiliary does not).
    With a `largest_batch_size` the target batch size is only the smallest one, and chosen so that communication takes
    no more than the share `most_communication`. Where half of a round's members are left, those go on that have the
    `organiser` among them.
    `orders` may change the target batch size. `averages_every` tells what a leader writes into the plan of the round of
    a step, see `Plan`. `notes` travel along.
    """

    target_batch_size: int
    vectors: Callable[[int], RoundVector]
    aggregates: bool
    computes: bool = True
    wait_in_minority: bool = True
    largest_batch_size: int | None = None
    most_communication: float = 0.1
    organiser: PeerId | None = None
    orders: RunOrders = WITHOUT_ORDERS
    averages_every: Callable[[int], int] = lambda _: 0
    contributors: Callable[[int], Contributors] = lambda _: "all"
    notes: RoundNotes = WITHOUT_NOTES
