"""What a member concludes from the board about the others: who is alive, how far the swarm is, who is behind."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from minga.averaging.links import BrokenPaths, Links, links_of
from minga.averaging.matchmaking.follower import ASK_S
from minga.core.thread_guard import loop_bound
from minga.network.bandwidth.access_link import AccessRates
from minga.network.gossip.board import Board, Change, Observer
from minga.network.gossip.record_kinds import ADDRESS, LEFT, AddressInfo, Left
from minga.network.gossip.record_store import MAX_OWNERS
from minga.network.interface import Address, PeerId
from minga.network.rpc.node import Node
from minga.training.lineage import Lineage, Standing
from minga.training.record_kinds import PROGRESS, Progress

# ---- Newcomers: which peers fetch the state, and for how long, as one member sees it on the board.


FORGIVEN_S = 600.0
"""Seconds after which a peer's earlier attempts count no more, and the swarm waits for it again."""

FORGIVEN_TIMES = 20.0
"""They count for so many times as long as they took, if that is longer: where steps are long, attempts are, too, and a
peer that only pretends would otherwise never be given up."""


BEGINS_ANEW_S = ASK_S + 0.5
"""Seconds in which a peer whose state came too late for its step asks around, hears at its first join that the step is
over, and is heard to fetch the next state. An attempt counts for so long at least: for one of a moment a step waits as
long for the peer to join, and one that says in each step that it fetches would hold up all of them.
"""


@dataclass
class _Effort:
    """One peer's attempts since `first_s`, which count `spent_s`; and `since_s` a further one, None if that ended at
    `ended_s`.
    """

    first_s: float
    since_s: float | None
    spent_s: float = 0.0
    ended_s: float = 0.0


@loop_bound
class Newcomers:
    """Adds up how long each peer has been fetching state; `clock` tells the time in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._efforts: dict[PeerId, _Effort] = {}

    def look(self, progress: Mapping[PeerId, Progress]) -> None:
        """Take note of what all living members say."""
        now = self._clock()
        syncing = {peer for peer, each in progress.items() if not each.is_settled}
        for peer, effort in list(self._efforts.items()):
            if peer not in syncing and effort.since_s is not None:
                effort.spent_s += max(now - effort.since_s, BEGINS_ANEW_S)
                effort.since_s, effort.ended_s = None, now
            forgiven_s = max(FORGIVEN_S, FORGIVEN_TIMES * effort.spent_s)
            if effort.since_s is None and now - effort.first_s > forgiven_s:
                del self._efforts[peer]
        for peer in syncing:
            effort = self._efforts.setdefault(peer, _Effort(now, now))
            effort.since_s = now if effort.since_s is None else effort.since_s

    def syncing(self, progress: Mapping[PeerId, Progress], step: int = 0) -> dict[PeerId, float]:
        """Those of all living members that fetch state at present, and for how many seconds each has done so.

        Also those that have fetched one just now which is older than that of `step`: they are about to begin anew. If
        they were not counted, a step that is about as long as their download might never see them.
        """
        now, found = self._clock(), dict[PeerId, float]()
        for peer, effort in self._efforts.items():
            if peer not in progress:
                continue
            if effort.since_s is not None:
                found[peer] = effort.spent_s + now - effort.since_s
            elif progress[peer].step < step and now - effort.ended_s < BEGINS_ANEW_S:
                found[peer] = effort.spent_s
        return found


# ---- The board as one member sees it.


MOST_DONORS = 24
"""Each donor costs a connection, and among this many false donors are hardly the majority."""


_READ = (PROGRESS.name, ADDRESS.name, LEFT.name)
"""The kinds of records that change what is kept here: a goodbye voids what its owner said before."""


class _Roster(dict[PeerId, Progress]):
    """The progress of some peers; the order is brought up to date when somebody reads it."""

    _has_newcomer = False

    def place(self, peer: PeerId, progress: Progress | None) -> None:
        """Take in what a peer says now; None if it does not belong here."""
        if progress is None:
            self.pop(peer, None)
            return
        self._has_newcomer = self._has_newcomer or peer not in self
        self[peer] = progress

    def in_order(self) -> dict[PeerId, Progress]:
        """This roster, in order of the ids."""
        if self._has_newcomer:
            items = sorted(self.items())
            self.clear()
            self.update(items)
            self._has_newcomer = False
        return self


@loop_bound
class BoardView:
    """Reads the board for one member (`SwarmView` of group formation).

    What it concludes is kept, and brought up to date for those of whom something changed: members ask several times a
    second, and in a large swarm something changes each time.
    """

    def __init__(self, board: Board, node: Node, organiser: PeerId | None = None) -> None:
        self._board, self._node, self._organiser = board, node, organiser
        self._newcomers = Newcomers(asyncio.get_running_loop().time)
        self._known, self._settled, self._active = _Roster(), _Roster(), _Roster()
        self._changed: dict[PeerId, None] | None = None  # since these were brought up to date; None is all of them
        self._present: set[PeerId] = set()  # trainers, clients and auxiliaries of this peer's epoch
        self._alive: list[PeerId] | None = None
        self._standings: Counter[tuple[Standing, bool]] | None = None  # of the settled, clients apart
        self._places: dict[PeerId, tuple[Standing, bool]] = {}  # which of these each of them is
        self._lineage = Lineage()
        self._last_step: int | None = None
        self._ended: tuple[Standing, str] | None = None  # the highest that was seen to finish the run, and its rounds
        self._finished: dict[PeerId, Progress] = {}  # those whose newest word was that; they may have died since
        self._random = random.Random(f"minga donors {node.peer_id}")
        board.observe(self._note)

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Call `observer` with each change on the board from now on; returns the function that ends this."""
        return self._board.observe(observer)

    @property
    def lineage(self) -> Lineage:
        """That of this peer's state. It goes with peers of the same founding and epoch only, and looks up to those of a
        higher standing (`minga.training.lineage`) only, whatever their step.
        """
        return self._lineage

    @lineage.setter
    def lineage(self, lineage: Lineage) -> None:
        before, self._lineage = self._lineage, lineage
        if (before.founding, before.epoch) != (lineage.founding, lineage.epoch):
            self._changed, self._ended = None, None

    @property
    def last_step(self) -> int | None:
        """After which step the run ends by the orders that this peer knows; None if no end is set. A peer that says it
        finished the run at an earlier step has no final state: it has not heard yet that the organisers let the run go
        on, or it does not tell the truth. Where no end is set nobody has one.
        """
        return self._last_step

    @last_step.setter
    def last_step(self, step: int | None) -> None:
        if step != self._last_step:
            self._last_step, self._standings, self._ended = step, None, None

    def alive(self) -> list[PeerId]:
        """Trainers, clients and auxiliaries that are alive, this peer included."""
        self._progress()
        if self._alive is None:
            self._alive = sorted(self._present | {self._node.peer_id})
        return list(self._alive)

    def said_goodbye(self, peer: PeerId) -> bool:
        """Whether that was its newest word."""
        return self._board.get(peer, Left) is not None

    def active(self) -> Mapping[PeerId, Progress]:
        """The progress of all other living members that take part in rounds at present; copy it to keep it."""
        self._progress()
        return self._active.in_order()

    def settled(self) -> Mapping[PeerId, Progress]:
        """The progress of all other living members that have a state of their own, those that finished included; copy
        it to keep it.
        """
        self._progress()
        return self._settled.in_order()

    def through(self, step: int) -> set[PeerId]:
        """Others whose newest word is that they finished the run at `step` or before, with no higher standing than this
        peer's, though it goes on by the orders that this peer knows: as they are, or were when they died, they take
        part in no further round.
        """
        self._progress()
        finished = {peer: p for peer, p in self._finished.items() if p.step <= step and self._is_kin(p.lineage)}
        if not finished:  # as a rule
            return set()
        standings, own = {peer: self._standing_of(p) for peer, p in finished.items()}, self.standing(step)
        return {peer for peer, standing in standings.items() if standing <= own and not standing.final}

    def distances(self, step: int) -> dict[PeerId, int]:
        """How far each other living member is from the last round that has a state and may be in that of `step`."""
        through = self.through(step)
        return {peer: progress.distance for peer, progress in self.settled().items() if peer not in through}

    def with_state(self) -> set[PeerId]:
        """Other living members that have a state of the run, also if they fetch a newer one just now."""
        return {peer for peer, p in self._progress().items() if p.is_settled or p.lineage.is_founded}

    def at(self, step: int) -> list[PeerId]:
        """Other active members at `step`, at which this peer is, with the same history."""
        return [peer for peer, progress in self.active().items() if self._is_at(progress, step)]

    def alike(self) -> set[PeerId]:
        """Other living members whose state this peer's can be compared with: none that went on alone from a step that
        both had, or is to give way to such a one.
        """
        own, known = self._lineage, self._progress()
        return {peer for peer, p in known.items() if (p.lineage.solo, p.lineage.alone) == (own.solo, own.alone)}

    def averaging(self, step: int) -> list[PeerId]:
        """Other active members whose round of `step` still runs."""
        return [peer for peer, p in self.active().items() if p.step == step and p.status == "averaging"]

    def eligible(self, step: int) -> list[PeerId]:
        """Other active members at `step` that may lead, whether or not they can be reached."""
        return [peer for peer, p in self.active().items() if self._is_at(p, step) and not p.client]

    def current(self, step: int) -> list[PeerId]:
        """The eligible that can be dialled, or are connected anyway."""
        return [peer for peer in self.eligible(step) if self._reachable(peer)]

    def syncing(self, step: int = 0) -> dict[PeerId, float]:
        """Living newcomers that are fetching state, and for how many seconds each has done so by now; also those whose
        state came just now, and too late for `step`.
        """
        return self._newcomers.syncing(self._progress(), step)

    def newest(self) -> Standing | None:
        """The highest standing that at least half of the other active members have reached; None if there are none.

        A single peer that is ahead of all others, by mistake or on purpose, does not drag them along.
        """
        everyone, dialable = self._bodies()
        reached = list((dialable or everyone).elements())
        return sorted(reached, reverse=True)[(len(reached) - 1) // 2] if reached else None

    def standing(self, step: int) -> Standing:
        """That of this peer's history, if rounds with others lead it to `step`."""
        standings, own = self._standings_of_all(), self._lineage.standing(step, self._organiser)
        final = own._replace(final=True)  # if another finished the run with this history
        return final if (final, False) in standings or (final, True) in standings else own

    def ahead(self, step: int) -> list[PeerId]:
        """Other settled members that stand higher than this peer at `step`."""
        own = self.standing(step)
        if all(each <= own for each, _ in self._standings_of_all()):
            return []
        return [peer for peer, progress in self.settled().items() if self._standing_of(progress) > own]

    def is_behind(self, step: int) -> bool:
        """Whether at least half of the settled members, this one counted, stand higher than this peer at `step`: half
        of those that can be dialled, or of all. All that can be dialled may come back with less than their clients.
        """
        own = self.standing(step)
        for members in self._bodies():
            ahead = sum(count for each, count in members.items() if each > own)
            if ahead and 2 * ahead >= members.total() + 1:
                return True
        return False

    def is_over(self) -> bool:
        """Whether others have finished the run, as far as `newest` goes by them."""
        newest = self.newest()
        return newest is not None and newest.final

    def gave_way_too_late(self, step: int) -> bool:
        """Whether this peer took its last round alone, to `step`, and another one was seen to finish the run by other
        rounds, with a higher standing.
        """
        self._standings_of_all()
        if self._ended is None or self._lineage.alone != self._node.peer_id:
            return False
        standing, rounds = self._ended
        return rounds != self._lineage.rounds and standing > self._lineage.standing(step, self._organiser, final=True)

    def donors(self) -> list[PeerId]:
        """Members that could serve state: all of them, or in a large swarm `MOST_DONORS` at random, others each time.

        Those of the highest standing come first.
        """
        settled, unreached = self.settled(), self._node.unreached()
        able = sorted(peer for peer in settled if self._reachable(peer))
        able = [peer for peer in able if peer not in unreached] or able
        chosen = able if len(able) <= MOST_DONORS else self._random.sample(able, MOST_DONORS)
        return sorted(sorted(chosen), key=lambda peer: self._standing_of(settled[peer]), reverse=True)

    def address(self, peer: PeerId) -> Address | None:
        """Where a peer can be dialled, if known."""
        return self._node.address if peer == self._node.peer_id else self._board.address_of(peer)

    def reachable(self) -> list[PeerId]:
        """Other active members that can be dialled, or are connected anyway."""
        return [peer for peer in sorted(self.active()) if self._reachable(peer)]

    def links(self) -> Mapping[PeerId, Links]:
        """The rates that each living peer publishes of its links, and those that this peer measured of its own; copy it
        to keep it.
        """
        return _LinksOfAll(self._board.payloads(Links), self._node)

    def broken_paths(self, peers: Collection[PeerId] | None = None) -> BrokenPaths:
        """Which of all living peers, or of these, cannot reach which others of them."""
        known = self._board.payloads(Links)
        some = known if peers is None else {peer: known[peer] for peer in peers if peer in known}
        return BrokenPaths.of(some, len(known))

    def rates(self) -> AccessRates:
        """This peer's own present rates and caps."""
        return self._node.access_link.rates()

    def _note(self, peer: PeerId, change: Change) -> None:
        """Something about one peer changed on the board."""
        if isinstance(change, str) and change not in _READ:
            return
        if self._changed is not None:
            self._changed[peer] = None
        self._note_finished(peer)

    def _note_finished(self, peer: PeerId) -> None:
        """Its owner may die before anybody asks. What a process said before counts no more once the next one is here,
        and has said nothing yet.
        """
        progress = self._board.get(peer, Progress)
        if progress is not None and progress.status == "finished" and peer != self._node.peer_id:
            self._finished[peer] = progress
            if len(self._finished) > MAX_OWNERS:
                del self._finished[next(iter(self._finished))]
        elif progress is not None or self._board.is_alive(peer):
            self._finished.pop(peer, None)

    def _progress(self) -> dict[PeerId, Progress]:
        """The records of all other living members, monitors excepted, in order of their ids."""
        looks_at_all = self._changed is None
        if self._changed is None:
            self._known, self._settled, self._active = _Roster(), _Roster(), _Roster()
            self._present, self._alive, self._standings = set(), None, None
            self._changed = dict.fromkeys([*self._board.payloads(AddressInfo), *self._board.payloads(Progress)])
            for peer in self._changed:
                self._note_finished(peer)
        if self._changed:
            changed, self._changed = self._changed, {}
            peers, infos = self._board.payloads(Progress), self._board.payloads(AddressInfo)
            has_syncing, me = looks_at_all, self._node.peer_id
            for peer in changed:
                before, now, info = self._known.get(peer), peers.get(peer), infos.get(peer)
                is_here = info is not None and info.role != "monitor" and (now is None or self._is_kin(now.lineage))
                self._place(peer, is_here=is_here)
                now = now if is_here and peer != me else None
                self._replace(peer, now)
                for each in (before, now):
                    has_syncing = has_syncing or (each is not None and not each.is_settled)
            if has_syncing:
                self._newcomers.look(self._known)
        return self._known.in_order()

    def _place(self, peer: PeerId, *, is_here: bool) -> None:
        if is_here != (peer in self._present):
            self._alive = None
            (self._present.add if is_here else self._present.discard)(peer)

    def _replace(self, peer: PeerId, now: Progress | None) -> None:
        settled = now if now is not None and now.is_settled else None
        self._known.place(peer, now)
        self._settled.place(peer, settled)
        self._active.place(peer, now if now is not None and now.is_active else None)
        if now is not None:
            self._note_end(now)
        if self._standings is not None:
            if (place := self._places.pop(peer, None)) is not None:
                self._standings[place] -= 1
                if not self._standings[place]:
                    del self._standings[place]
            if settled is not None:
                self._count(self._standings, peer, settled)

    def _note_end(self, progress: Progress) -> None:
        """Its owner may leave before anybody asks."""
        if progress.status != "finished":
            return
        standing = self._standing_of(progress)
        if standing.final and (self._ended is None or standing > self._ended[0]):
            self._ended = standing, progress.lineage.rounds

    def _standings_of_all(self) -> Counter[tuple[Standing, bool]]:
        """How many of the other settled members stand where, clients apart."""
        self._progress()
        if self._standings is None:
            self._standings, self._places = Counter(), {}
            for peer, progress in self._settled.items():
                self._count(self._standings, peer, progress)
                self._note_end(progress)
        return self._standings

    def _count(self, standings: Counter[tuple[Standing, bool]], peer: PeerId, progress: Progress) -> None:
        place = self._places[peer] = self._standing_of(progress), progress.client
        standings[place] += 1

    def _bodies(self) -> tuple[Counter[Standing], Counter[Standing]]:
        """How many of the other settled members stand where: of all, and of those that can be dialled."""
        everyone, dialable = Counter[Standing](), Counter[Standing]()
        for (standing, client), count in self._standings_of_all().items():
            everyone[standing] += count
            if not client:
                dialable[standing] += count
        return everyone, dialable

    def _is_at(self, progress: Progress, step: int) -> bool:
        return progress.step == step and progress.lineage.rounds == self._lineage.rounds

    def _is_kin(self, lineage: Lineage) -> bool:
        """Whether a state of this lineage may have to do with this peer's; one that has none yet is nobody's foe."""
        foundings = {lineage.founding, self._lineage.founding} - {""}
        return len(foundings) <= 1 and lineage.epoch == self._lineage.epoch

    def _standing_of(self, progress: Progress) -> Standing:
        is_final = progress.status == "finished" and self._last_step is not None and progress.step >= self._last_step
        return progress.lineage.standing(progress.step, self._organiser, final=is_final)

    def _reachable(self, peer: PeerId) -> bool:
        if self._node.is_connected(peer):
            return True
        address = self._board.address_of(peer)
        return address is not None and address.dialable


class _LinksOfAll(Mapping[PeerId, Links]):
    """What others published, and what this peer knows of its own lines and paths: that is made when it is asked for."""

    def __init__(self, published: Mapping[PeerId, Links], node: Node) -> None:
        self._published, self._node = published, node

    def __getitem__(self, peer: PeerId) -> Links:
        return links_of(self._node, self._published) if peer == self._node.peer_id else self._published[peer]

    def __iter__(self) -> Iterator[PeerId]:
        yield from self._published
        if self._node.peer_id not in self._published:
            yield self._node.peer_id

    def __len__(self) -> int:
        return len(self._published) + (self._node.peer_id not in self._published)
