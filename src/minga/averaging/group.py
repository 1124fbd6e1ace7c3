"""What group formation is told: the run's settings, and what the board knows of the other peers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from minga.averaging.contracts import WITHOUT_NOTES, WITHOUT_ORDERS, RoundNotes, RunOrders
from minga.averaging.link_record import Links
from minga.averaging.strategy_choice import Contributors
from minga.network.bandwidth.access_link import AccessRates
from minga.network.gossip.changes import Observer
from minga.network.interface import Address, PeerId


class SwarmView(Protocol):
    """What group formation reads from the board."""

    def observe(self, observer: Observer) -> object:
        """Call `observer` with each change on the board from now on."""

    def alive(self) -> Collection[PeerId]:
        """Trainers and auxiliaries that are alive, this peer included."""

    def active(self) -> Collection[PeerId]:
        """Other living members that take part in rounds at present, at whatever step."""

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

    def syncing(self) -> Mapping[PeerId, float]:
        """Living newcomers that are fetching state, and for how many seconds each has done so by now."""

    def address(self, peer: PeerId) -> Address | None:
        """Where a peer can be dialled, if known."""

    def links(self) -> Mapping[PeerId, Links]:
        """What each living peer publishes of its links, this one included."""

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
    `overlapped` tells whether rounds go on beside the next step's computing, now, and `counts_late` whether what a peer
    does meanwhile counts however late it is. With a `largest_batch_size` the target batch size is only the smallest
    one, and chosen so that communication takes no more than the share `most_communication`. Where half of a round's
    members are left, those go on that have the `organiser` among them.
    `orders` may change the target batch size. `averages_every` tells what a leader writes into the plan of the round of
    a step, see `Plan`. `notes` travel along.
    """

    target_batch_size: int
    vectors: Callable[[int], RoundVector]
    aggregates: bool
    computes: bool = True
    wait_in_minority: bool = True
    overlapped: Callable[[], bool] = lambda: False
    counts_late: Callable[[], bool] = lambda: False
    largest_batch_size: int | None = None
    most_communication: float = 0.1
    organiser: PeerId | None = None
    orders: RunOrders = WITHOUT_ORDERS
    averages_every: Callable[[int], int] = lambda _: 0
    contributors: Callable[[int], Contributors] = lambda _: "all"
    notes: RoundNotes = WITHOUT_NOTES
