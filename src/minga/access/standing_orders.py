"""The organisers' orders while a run goes on: how they reach every member, and which settings are in force.

Theory of operation. The leader of a round puts into its plan the ids of the amendments that are due: `from_step` is
reached, and none with a higher number overrules them. All members of the round take the step by the settings of exactly
these, and get from the leader what they do not know. So no step mixes two values, even if the order reached one member
late: whether an amendment counts in a step is part of what the round decides, like its vector. A round that adopts the
result of an earlier attempt adopts its amendments, too (`averaging/allreduce/commit.py`). The next leader took part in
that round, or fetched its state, so it knows them: what is in force stays so until a higher number overrules it.

The strategy makes contributions before there is a plan: so it changes at the end of a round. A leader has amendments
of it in the plan of the round before `from_step`, and what that round leads to is the first state of the new strategy.

A pause is no value that a step uses. Each peer forms no round while the newest order about it that is due at its step
says `paused`; a peer that hears later is alone with its wish for a round.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final
from weakref import WeakValueDictionary

import msgspec
from blake3 import blake3

from minga.access.admission import Admission
from minga.averaging.strategy_choice import facts_of, round_batch_range
from minga.core.errors import ConfigurationError, ProtocolError, RejectedError, UnreachableError
from minga.core.events.training import AccessInvalidOrder
from minga.core.refusal_code import RefusalCode
from minga.core.spec.problems import suggestion
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import MAX_ORGANISERS
from minga.core.thread_guard import loop_bound
from minga.identity.access.ledger import AccessLedger, PublicOrder
from minga.identity.access.orders import (
    MAX_AMENDED_STEP,
    MAX_AMENDMENTS,
    MAX_BARRED,
    MAX_RANGES,
    MAX_REGROUPS,
    MAX_TERMS,
    Amendment,
    Amendments,
    RangeBan,
    Regroup,
    Regroups,
    Revocation,
    Transfer,
)
from minga.network.interface import Connection, PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream

PAUSED: Final = "paused"
STOP: Final = "training.stop_after_steps"
STRATEGY: Final = "training.strategy"
OPTIMIZER: Final = "optimizer."
RATE: Final = "optimizer.learning_rate"
NORM: Final = "optimizer.max_grad_norm"
EARLY: Final = (STRATEGY,)
"""What the plan of the round before its step has to say already."""
BATCH: Final = "training.target_batch_size"
AMENDABLE: Final = (
    RATE,
    NORM,
    STRATEGY,
    BATCH,
    "training.target_batch_size_min",
    "training.target_batch_size_max",
    STOP,
    "checkpoints.every_steps",
    "checkpoints.keep",
)
"""The settings that a running run can change; no other value is read again while it goes on."""

WHY_NOT: Final = {
    "network.relay": "a peer opens its network before it can hear orders",
    "training.strategy_changes": "amend training.strategy, with a step",
    "averaging.codec": "peers with another codec could not read each other's vectors",
    "averaging.download_codec": "peers with another codec could not read each other's vectors",
    "averaging.sketch": "peers with another map could not average",
    "training.seed": "it was used when the run began",
}


def check_changes(spec: RunSpec, changes: dict[str, Any], step: int) -> None:
    """Raise `ConfigurationError`, which names the setting and what can change, unless these, and no others, can be in
    force in the round of `step` of a run that began by `spec`.
    """
    if spec.security.verification == "byzantine":
        raise ConfigurationError(
            'a run with verification = "byzantine" cannot be amended: its members take steps without a leader whose '
            "plan could say which settings are in force. Begin a new run from its checkpoint"
        )
    for key in changes:
        if key != PAUSED and key not in AMENDABLE:
            because = _why_not(key)
            stop = "" if because.endswith("?") else "."
            raise ConfigurationError(
                f"{key} cannot change in a running run{because}{stop} These can: {', '.join(AMENDABLE)}"
            )
    if isinstance(spec.training.target_batch_size, int) != isinstance(
        changes.get(BATCH, spec.training.target_batch_size), int
    ):
        raise ConfigurationError(
            "training.target_batch_size can change from number to number; where it is auto, target_batch_size_min and "
            "target_batch_size_max can"
        )
    if not isinstance(changes.get(PAUSED, False), bool):
        raise ConfigurationError("paused is true or false")
    at_work = amended_spec(spec, changes).at(step)
    if facts_of(at_work).owns_optimizer:
        _check_own_optimizer(spec, at_work.training.strategy, clips=changes.get(NORM) not in (None, "off"))


def _check_own_optimizer(spec: RunSpec, strategy: str, *, clips: bool) -> None:
    """Raise `ConfigurationError` for what peers look at only when they begin: the optimizer of their program, and
    whether it clips.
    """
    if clips:
        raise ConfigurationError(f'{STRATEGY} = "{strategy}" does not step by gradients: leave {NORM} "off"')
    if spec.model.recipe == "custom" and strategy not in spec.training.strategies:
        raise ConfigurationError(
            f'{STRATEGY} = "{strategy}" brings its own optimizer, and nobody looked whether the programs of this run '
            "have one that does nothing else: name it in training.strategy_changes from the beginning, if need be at a "
            "step that never comes"
        )


def _why_not(key: str) -> str:
    """The reason, or a setting that was probably meant, as it goes on after "cannot change in a running run"."""
    if key.startswith("strategy."):
        return (
            ": peers that fetch a state, or come back from a checkpoint, make its strategy by the tables of the run "
            "spec, so these have to be there when the run begins. training.strategy can change to one with a table: "
            "name it in training.strategy_changes, if need be at a step that never comes"
        )
    return f": {WHY_NOT[key]}" if key in WHY_NOT else suggestion(key, list(AMENDABLE)).partition("; there")[0]


def amended_spec(spec: RunSpec, changes: Mapping[str, Any]) -> RunSpec:
    """The spec with these changes, which overrule what `strategy_changes` says of the same. Raises
    `ConfigurationError`.
    """
    values = {key: value for key, value in changes.items() if key != PAUSED}
    scheduled = spec.training.model_dump(mode="json")["strategy_changes"]
    overruled = {"strategy": values[STRATEGY]} if STRATEGY in values else {}
    overruled |= {"target_batch_size": None} if BATCH in values else {}
    if scheduled and overruled:
        values["training.strategy_changes"] = [{**each, **overruled} for each in scheduled]
    return spec.amended(values) if values else spec


def spec_due(spec: RunSpec, ledger: AccessLedger | None, step: int) -> RunSpec:
    """The run spec as the orders in `ledger` that are due at `step` amend it. On the loop of the ledger."""
    if ledger is None:
        return spec
    orders = StandingOrders(spec, ledger)
    return orders.spec(orders.due(step), step)


@loop_bound
class StandingOrders:
    """The amendments of a run, and its last regroup; none without a `ledger`. `fetch` exchanges orders with a peer."""

    def __init__(
        self, spec: RunSpec, ledger: AccessLedger | None, fetch: Callable[[PeerId], Awaitable[None]] | None = None
    ) -> None:
        self._spec, self._fetch = spec, fetch
        self._amendments = Amendments() if ledger is None else ledger.amendments
        self._regroups = Regroups() if ledger is None else ledger.regroups
        self.can_be = ledger is not None
        """Whether the run has organisers whose orders this peer follows."""
        self._found: dict[tuple[Any, ...], tuple[dict[str, Any], RunSpec]] = {}

    # ---- for rounds; see `RunOrders`

    def due(self, step: int) -> tuple[str, ...]:
        """Those that a leader puts in force in the round of `step`."""
        return self._amendments.due(step, EARLY)

    def batch_range(self, orders: Sequence[str], step: int) -> tuple[int, int] | None:
        """The smallest and the largest number of samples with which a round of `step` may close under these orders."""
        return round_batch_range(self.spec(orders, step).at(step))

    async def obtain(self, orders: Sequence[str], peer: PeerId, step: int) -> None:
        """Get those that are not known here from `peer`, which wants them in force in the round of `step`.

        Raises `RemoteError` if it does not have them either, or if one of them is for later steps: a leader may not
        know all orders yet, but it does not move what the organisers signed.
        """
        if self._fetch is not None and not all(name in self._amendments for name in orders):
            await self._fetch(peer)
        if unknown := [name for name in orders if name not in self._amendments]:
            why = f"its plan is by the order {unknown[0]}, which it does not have"
            raise ProtocolError(why, peer=peer, phase="group")
        if early := self._amendments.not_due(orders, step, EARLY):
            why = f"its plan for step {step} is by the order {early[0]}, which is for later steps"
            raise ProtocolError(why, peer=peer, phase="group")

    # ---- for the member

    def changes(self, orders: Sequence[str], step: int) -> dict[str, Any]:
        """What these amendments change in the round of `step`, value by key, as far as this version of minga can.

        What was left out is the organiser's of a newer minga, or it signed what its own refuses. Or it is clipping,
        and by now a strategy is at work, as the run spec planned it, that does not step by gradients.
        """
        return dict(self._as_amended(orders, step)[0])

    def _read(self, waiting: Mapping[str, str], step: int) -> tuple[dict[str, Any], dict[str, Exception]]:
        """What of this JSON by key can be in force in the round of `step`, and why the rest cannot."""
        found: dict[str, Any] = {}
        refused: dict[str, Exception] = {}
        count = -1
        while len(found) > count:  # again as long as some came in: a smallest value may go only with its largest
            count, refused = len(found), {}
            for key in [key for key in waiting if key not in found]:
                try:
                    value = json.loads(waiting[key])
                    check_changes(self._spec, {**found, key: value}, step)
                except (ValueError, RecursionError, ConfigurationError) as error:
                    refused[key] = error
                else:
                    found[key] = value
        return found, refused

    def spec(self, orders: Sequence[str], step: int) -> RunSpec:
        """The run spec as amended by these in the round of `step`."""
        return self._as_amended(orders, step)[1]

    def _as_amended(self, orders: Sequence[str], step: int) -> tuple[dict[str, Any], RunSpec]:
        """What these change, and the spec by it, which is checked once for all rounds of which the same is said."""
        waiting = self._amendments.changes(orders)
        said = (*waiting.items(), self._spec.training.at(step).strategy)
        if said not in self._found:
            if len(self._found) > 2 * len(AMENDABLE):
                self._found.clear()
            changes, _ = self._read(waiting, step)
            self._found[said] = changes, amended_spec(self._spec, changes)
        return self._found[said]

    def regroup(self, epoch: int) -> Regroup | None:
        """The organisers' newest regroup, if it is of a later epoch than this, or this one's counts no more."""
        newest = self._regroups.newest
        is_void = epoch > 0 and epoch not in self._regroups
        return newest if newest is not None and (newest.epoch > epoch or is_void) else None

    def is_paused(self, step: int) -> bool:
        """Whether the organisers want no round of `step`."""
        return self.changes(self.due(step), step).get(PAUSED) is True

    # ---- for those who sign

    def check(self, order: Amendment, step: int) -> RunSpec:
        """The run spec in the first round that `order` is in force in, the run being at `step`.

        Raises `ConfigurationError` unless peers obey it from then on, and go on to obey the others: what is due in that
        round, and whenever another order comes, is read as they read it. What the run spec schedules for later is not
        looked at: it may never come. One that waited for signatures may be overruled by now, and the last order that
        there can be may not leave the run paused for good.
        """
        amendments, first = self._amendments.plus(order), max(step, order.first_step(EARLY))
        if order.id not in amendments.due(first, EARLY):
            raise ConfigurationError("later orders change all that this one would; make a new one")
        last = amendments.changes(amendments.due(MAX_AMENDED_STEP, EARLY))
        if amendments.is_full and last.get(PAUSED) == "true":
            raise ConfigurationError(
                f"a run has at most {MAX_AMENDMENTS} amendments: this is the last, and no other could end the pause"
            )
        starts = {first, *(each.first_step(EARLY) for each in amendments)}
        for start in sorted(start for start in starts if start >= first):
            _, before = self._read(self._amendments.changes(self.due(start)), first)
            _, refused = self._read(amendments.changes(amendments.due(start, EARLY)), first)
            for key, why in refused.items():
                if key not in before or key in dict(order.changes):
                    raise ConfigurationError(str(why)) from why
        changes, _ = self._read(amendments.changes(amendments.due(first, EARLY)), first)
        amended = amended_spec(self._spec, changes)
        last_step = amended.training.stop_after_steps
        if STOP in dict(order.changes) and last_step is not None and last_step <= first:
            raise ConfigurationError(
                f"{STOP} = {last_step}: the run can end after step {first + 1} at the earliest, since it is at step "
                f"{step} and the order takes effect at step {first}"
            )
        return amended


# ---- The exchange of orders: how they reach every member.
#
#     access.orders   OrdersHeld -> OrdersCompared; unless they are the same also pages of Orders, and pages back
#
# The caller tells a digest of the orders that it holds. If the other side holds others, both send what they have, and
# each enters what is new to it, page by page. A peer begins one exchange at a time with each other one. That happens on
# every new connection, with one random neighbour every `EXCHANGE_S` seconds, and at once with all neighbours when an
# order is new. Orders are rare, and every peer verifies them itself, so they flood the swarm within a few round trips.


METHOD = "access.orders"
EXCHANGE_S, TIMEOUT_S = 20.0, 120.0
MAX_ORDERS = (MAX_BARRED + MAX_RANGES) * MAX_ORGANISERS + MAX_TERMS + MAX_AMENDMENTS + MAX_REGROUPS
ORDERS_A_PAGE = 200
"""A revocation takes at most 0.7 kB, a transfer 320 kB: so a page stays well below the largest message."""


class OrdersHeld(msgspec.Struct, frozen=True, array_like=True):
    """BLAKE3 of what the orders say that the caller holds; which of those who may sign did so does not matter."""

    digest: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class OrdersCompared(msgspec.Struct, frozen=True, array_like=True):
    """Whether the other side holds the same."""

    same: bool


class Orders(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Those of a ledger, as they are kept on disk; or a page of them, as they travel, after which `more` pages follow.

    They can be taken in this order.
    """

    transfers: Annotated[tuple[Transfer, ...], msgspec.Meta(max_length=MAX_TERMS)] = ()
    revocations: Annotated[tuple[Revocation, ...], msgspec.Meta(max_length=MAX_BARRED * MAX_ORGANISERS)] = ()
    ranges: Annotated[tuple[RangeBan, ...], msgspec.Meta(max_length=MAX_RANGES * MAX_ORGANISERS)] = ()
    amendments: Annotated[tuple[Amendment, ...], msgspec.Meta(max_length=MAX_AMENDMENTS)] = ()
    regroups: Annotated[tuple[Regroup, ...], msgspec.Meta(max_length=MAX_REGROUPS)] = ()
    more: bool = False

    @classmethod
    def of(cls, orders: Iterable[PublicOrder]) -> Orders:
        """The orders of a ledger."""
        listed = list(orders)
        return cls(
            tuple(order for order in listed if isinstance(order, Transfer)),
            tuple(order for order in listed if isinstance(order, Revocation)),
            tuple(order for order in listed if isinstance(order, RangeBan)),
            tuple(order for order in listed if isinstance(order, Amendment)),
            tuple(order for order in listed if isinstance(order, Regroup)),
        )

    def all(self) -> list[PublicOrder]:
        """All kinds."""
        return [*self.transfers, *self.revocations, *self.ranges, *self.amendments, *self.regroups]

    def pages(self) -> Iterator[Orders]:
        """One transfer each, then revocations, and at last all range bans, amendments and regroups: less than a MiB."""
        for transfer in self.transfers:
            yield Orders((transfer,), more=True)
        for start in range(0, len(self.revocations), ORDERS_A_PAGE):
            yield Orders(revocations=self.revocations[start : start + ORDERS_A_PAGE], more=True)
        yield msgspec.structs.replace(self, transfers=(), revocations=())


@loop_bound
class OrderExchange:
    """Keeps the orders of one peer and its neighbours the same."""

    def __init__(self, node: Node, admission: Admission, ledger: AccessLedger) -> None:
        self._node, self._admission, self._ledger = node, admission, ledger
        self._random = random.Random(f"minga orders {node.peer_id}")
        self._asking: WeakValueDictionary[PeerId, asyncio.Lock] = WeakValueDictionary()
        self._next = set[PeerId]()  # those with whom an exchange waits for the one that is under way
        self._serving = set[PeerId]()
        node.serve(METHOD, self._serve)
        node.on_connected.add(self._meet)
        node.exchange_orders = lambda connection: self._ask(connection.peer_id, connection)

    async def run(self) -> None:
        """Exchange orders with one neighbour after the other, until cancelled."""
        while True:
            if neighbours := self._node.connected():
                self.begin(self._random.choice(neighbours))
            await asyncio.sleep(EXCHANGE_S)

    def spread(self) -> None:
        """Tell all neighbours at once."""
        for peer in self._node.connected():
            self.begin(peer)

    def begin(self, peer: PeerId) -> None:
        """Exchange orders with one neighbour in the background."""
        self._node.spawn(self.exchange(peer))

    async def exchange(self, peer: PeerId) -> None:
        """Make the orders here and at `peer` the same, after the exchange that is under way. Raises `RemoteError`."""
        if (lock := self._asking.get(peer)) is None:
            lock = self._asking[peer] = asyncio.Lock()
        is_said = lock.locked() and peer in self._next  # the one that waits will tell all that is known by then
        waits = lock.locked() and not is_said
        if waits:
            self._next.add(peer)
        try:
            async with lock:
                if waits:
                    self._next.discard(peer)
                if not is_said:
                    await self._ask(peer)
        finally:
            if waits:
                self._next.discard(peer)

    async def _ask(self, peer: PeerId, over: Connection | None = None) -> None:
        async with _in_time(peer), self._node.open(peer, METHOD, over=over) as stream:
            await stream.send(OrdersHeld(self._digest()))
            compared = await stream.receive(OrdersCompared)
            if not compared.same:
                mine = self._pages()
                await self._receive(stream)
                await _send(stream, mine)
            await stream.finish()
            await stream.receive_end()

    async def _serve(self, peer: PeerId, stream: MessageStream) -> None:
        if peer in self._serving:
            raise RejectedError("this peer is in an exchange of orders already", code=RefusalCode.BUSY)
        self._serving.add(peer)
        try:
            async with _in_time(peer):
                held = await stream.receive(OrdersHeld)
                same = held.digest == self._digest()
                await stream.send(OrdersCompared(same))
                if not same:
                    # Others are heard, not told.
                    await _send(stream, self._pages() if self._is_admitted(peer) else [Orders()])
                    await self._receive(stream)
        finally:
            self._serving.discard(peer)

    def _is_admitted(self, peer: PeerId) -> bool:
        """Not one that is refused now: it may be known by a token that it showed before."""
        return self._node.is_connected(peer) and peer in self._admission.members()

    def _pages(self) -> list[Orders]:
        return list(Orders.of(self._ledger.orders()).pages())

    async def _receive(self, stream: MessageStream) -> None:
        """Enter what comes, page by page, so that who stops in the middle has little of this peer's memory."""
        orders = changes = transfers = 0
        is_blamed = True
        while True:
            page = await stream.receive(Orders)
            found = page.all()
            orders += len(found)
            transfers += len(page.transfers)
            changes += len(page.amendments) + len(page.regroups)
            empty = page.more and not found
            is_over = transfers > MAX_TERMS or changes > MAX_AMENDMENTS + MAX_REGROUPS
            if empty or orders > MAX_ORDERS or is_over:
                raise ProtocolError("orders without end", peer=stream.peer)
            is_blamed = is_blamed and not any(map(self._ledger.is_of_other_heirs, found))
            self._take(found, stream.peer, is_blamed=is_blamed)
            if not page.more:
                return

    def _take(self, orders: list[PublicOrder], peer: PeerId, *, is_blamed: bool) -> None:
        """`is_blamed`: who passes on an order that is none commits an offence. Who goes by other organisers, since of
        two transfers another one came there first, cannot know better. But no more is heard from one that is not
        admitted: it could go on without end.
        """
        term = self._ledger.term
        if invalid := self._admission.take(orders):
            self._node.events.emit(AccessInvalidOrder(peer=peer, why=str(invalid[0]), count=len(invalid)))
            if is_blamed and term == self._ledger.term:
                raise ProtocolError(f"sent an order of the organisers that is none: {invalid[0]}", peer=peer)
            if not self._is_admitted(peer):
                raise RejectedError(f"not admitted, and sent an order that is none: {invalid[0]}", peer=peer)

    def _digest(self) -> bytes:
        said = [(order.CONTEXT, order.statement()) for order in self._ledger.orders()]
        return bytes(blake3(msgspec.msgpack.encode(said)).digest())

    def _meet(self, peer: PeerId) -> None:
        if peer > self._node.peer_id:  # the other side begins otherwise
            self.begin(peer)


async def _send(stream: MessageStream, pages: Iterable[Orders]) -> None:
    for page in pages:
        await stream.send(page)


@contextlib.asynccontextmanager
async def _in_time(peer: PeerId) -> AsyncIterator[None]:
    """Raises `UnreachableError` after `TIMEOUT_S`."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield
    except TimeoutError as error:
        raise UnreachableError("the exchange of orders took too long", peer=peer) from error
