"""The exchange of the organisers' orders: what one peer may send, and what peers that disagree make of each other."""

from __future__ import annotations

import asyncio
import contextlib
import tracemalloc
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from minga.access.admission import Admission
from minga.access.standing_orders import (
    MAX_ORDERS,
    METHOD,
    TIMEOUT_S,
    OrderExchange,
    Orders,
    OrdersCompared,
    OrdersHeld,
)
from minga.core.errors import ProtocolError, RejectedError, RemoteError
from minga.core.events.bus import Event, EventBus
from minga.core.refusal_code import RefusalCode
from minga.core.spec.sections import MAX_ORGANISERS
from minga.identity.access.ledger import (
    AccessLedger,
    InvalidOrderError,
    Organisers,
    PublicOrder,
    draft_range_ban,
    draft_revocation,
)
from minga.identity.access.orders import MAX_BARRED, MAX_TERMS, Barred, Grant, Revocation, Transfer
from minga.identity.access.token import Token
from minga.identity.keys.keys import Identity
from minga.network.interface import Address, Connection, PeerId
from minga.network.rpc.handshake import Hello
from minga.network.rpc.node import Node
from minga.network.rpc.run_clock import RunClock
from minga.network.rpc.stream import MessageStream
from minga.network.virtual.internet import HostSettings, VirtualInternet
from tests.worlds.swarm_tools import virtually

PAGES = 40
RUN = bytes([0xAB] * 32)
FIRST, SECOND, THIRD, GUEST = (Identity.from_seed(bytes([i]) * 32) for i in (220, 221, 222, 223))


class Stream:
    peer = PeerId("a" * 64)

    def __init__(self) -> None:
        key = bytes(32)
        barred = tuple(Barred(i.to_bytes(32, "big"), 1) for i in range(MAX_BARRED * MAX_ORGANISERS))
        transfer = Transfer(key, 1, 1, (), organisers=(key,), needed=1, barred=barred)
        self.page = msgspec.msgpack.encode(Orders((transfer,), more=True))
        self.sent = 0

    async def receive(self, kind: type[Any]) -> Any:
        if self.sent == PAGES:
            raise AssertionError(f"all {PAGES} transfers were taken in, and {MAX_ORDERS - PAGES} more would be")
        self.sent += 1
        return msgspec.msgpack.decode(self.page, type=kind)


def key(identity: Identity) -> bytes:
    return bytes.fromhex(identity.peer_id)


class Peer:
    """One that goes by a ledger of three organisers, of whom `needed` have to sign; a member if some `admitted` it."""

    def __init__(
        self,
        internet: VirtualInternet,
        addresses: dict[PeerId, Address],
        needed: int = 1,
        admitted: tuple[Identity, int] | None = None,
        up_bytes_per_s: float | None = None,
    ) -> None:
        host = internet.host(HostSettings(latency_s=0.01, up_bytes_per_s=up_bytes_per_s))
        addresses[host.peer_id] = host.address
        self.address, self.peer_id, self.log = host.address, host.peer_id, list[Event]()
        events = EventBus(asyncio.get_running_loop().time)
        events.subscribe(self.log.append)
        token = None
        if admitted is not None:
            signer, term = admitted
            lasting = Grant(RUN, term, 1, (), bytes.fromhex(host.peer_id), 0, 1, 1 << 32)
            token = Token(lasting.signed_by(signer))
        self.admission = admission = Admission(host.peer_id, RunClock.of(host), token)
        organisers = Organisers(frozenset(each.peer_id for each in (FIRST, SECOND, THIRD)), needed)
        self.ledger = AccessLedger(RUN.hex(), organisers, FIRST.peer_id, is_open=admitted is None)
        admission.enforce(self.ledger)
        self.node = Node(
            host, run_id=RUN.hex(), role="trainer", lookup=addresses.get, events=events, authorizer=admission
        )
        self.exchange = OrderExchange(self.node, admission, self.ledger)
        admission.on_orders = self.exchange.spread
        host.process.context.run(self.node.start)
        self.take = admission.take

    @property
    def offences(self) -> list[str]:
        return [str(event.data) for event in self.log if event.kind == "peer.offence"]

    @property
    def connections(self) -> int:
        """How many it ever had."""
        return sum(event.kind == "peer.connected" for event in self.log)


async def two(one: Iterable[PublicOrder], other: Iterable[PublicOrder], needed: int = 1) -> tuple[Peer, Peer]:
    """Two peers that heard of these orders, and meet."""
    internet, addresses = VirtualInternet(1), dict[PeerId, Address]()
    first, second = Peer(internet, addresses, needed), Peer(internet, addresses, needed)
    assert not first.take(one)
    assert not second.take(other)
    await first.node.dial(second.address)
    await asyncio.sleep(5.0)
    return first, second


async def close(*peers: Peer) -> None:
    for peer in peers:
        await peer.node.close()


def bar(subject: int, version: int = 1, signer: Identity = THIRD) -> Revocation:
    return Revocation(RUN, 0, 1, (), subject.to_bytes(32, "big"), version, "").signed_by(signer)


def test_no_more_transfers_are_taken_in_than_a_ledger_can_hold() -> None:
    stream = Stream()
    exchange = object.__new__(OrderExchange)
    exchange._ledger = AccessLedger(RUN.hex(), Organisers(frozenset({FIRST.peer_id}), 1), FIRST.peer_id)
    exchange._take = lambda *_, **__: None  # type: ignore[method-assign]
    tracemalloc.start()
    try:
        asyncio.run(exchange._receive(stream))  # type: ignore[arg-type]
    except ProtocolError:
        pass
    except AssertionError as error:
        held = tracemalloc.get_traced_memory()[1]
        raise AssertionError(f"{error}: {held >> 20} MiB for {PAGES} of them of {len(stream.page)} bytes") from None
    finally:
        tracemalloc.stop()
    assert stream.sent <= MAX_TERMS + 1


@virtually
async def test_who_stops_in_the_middle_has_one_exchange_and_only_for_a_while() -> None:
    victim, guest = await two([], [])
    ended = list[RemoteError]()

    async def stop_in_the_middle() -> None:
        try:
            async with guest.node.open(victim.peer_id, METHOD) as stream:
                await stream.send(OrdersHeld(bytes(32)))
                assert not (await stream.receive(OrdersCompared)).same
                await stream.receive(Orders)
                await stream.receive_end()
        except RemoteError as error:
            ended.append(error)

    tasks = [asyncio.get_running_loop().create_task(stop_in_the_middle()) for _ in range(3)]
    await asyncio.sleep(5.0)
    assert [type(error) for error in ended] == [RejectedError] * 2, "one at a time"
    await asyncio.sleep(TIMEOUT_S)
    assert len(ended) == 3
    victim.take([bar(1)])
    await guest.exchange.exchange(victim.peer_id)
    assert guest.ledger.barred() == victim.ledger.barred() != {}
    await asyncio.gather(*tasks)
    await close(victim, guest)


@virtually
async def test_all_come_to_the_same_keys_where_one_organiser_bars_more_than_it_may() -> None:
    """It gave others to each of two members: each held a full list, and the other's orders for an offence."""
    one, other = await two(map(bar, range(5, 5 + MAX_BARRED)), map(bar, range(MAX_BARRED)), needed=2)
    assert list(one.ledger.orders()) == list(other.ledger.orders())
    assert len(one.ledger.proposed()) == MAX_BARRED
    assert one.ledger.barred() == {}
    assert one.node.is_connected(other.peer_id)
    assert one.offences == other.offences == []
    await close(one, other)


@virtually
async def test_two_transfers_of_one_term_part_the_organisers_and_cut_nobody_off() -> None:
    def hand_over(heir: Identity, signer: Identity) -> Transfer:
        return Transfer(RUN, 0, 1, (), (key(heir),), 1).signed_by(signer)

    one, other = await two([hand_over(FIRST, SECOND)], [hand_over(GUEST, THIRD)])
    one.take([draft_revocation(one.ledger, "1" * 64, "", 2).signed_by(FIRST)])
    other.take([draft_revocation(other.ledger, "2" * 64, "", 2).signed_by(GUEST)])
    await asyncio.sleep(30.0)
    assert (list(one.ledger.barred()), list(other.ledger.barred())) == (["1" * 64], ["2" * 64])
    assert one.node.is_connected(other.peer_id)
    assert one.offences == other.offences == []
    assert "access.invalid_order" in {event.kind for event in one.log}
    await close(one, other)


@virtually
async def test_who_heard_of_a_transfer_before_its_signer_was_barred_commits_no_offence() -> None:
    transfer = Transfer(RUN, 0, 1, (), (key(GUEST),), 1).signed_by(FIRST)
    one, other = await two([transfer], [Revocation(RUN, 0, 1, (), key(FIRST), 1, "").signed_by(SECOND)])
    one.take([draft_revocation(one.ledger, "1" * 64, "", 2).signed_by(GUEST)])
    await asyncio.sleep(30.0)
    assert (one.ledger.term, other.ledger.term) == (1, 0), "each keeps what came first"
    assert one.node.is_connected(other.peer_id)
    assert one.offences == other.offences == []
    with pytest.raises(InvalidOrderError, match="0 of the 1"):
        other.ledger.take(Transfer(RUN, 0, 1, (), (key(GUEST),), 1).signed_by(GUEST))
    await close(one, other)


@virtually
async def test_who_missed_a_transfer_hears_of_it_though_it_knows_of_a_ban_that_the_transfer_ended() -> None:
    for dialler in range(2):
        internet, addresses = VirtualInternet(1), dict[PeerId, Address]()
        away = Peer(internet, addresses, admitted=(FIRST, 0))
        heirs = Peer(internet, addresses, admitted=(GUEST, 1))
        away.admission.address_of = addresses.get
        now = int(away.admission.clock.now())
        ban = draft_range_ban(away.ledger, heirs.address.direct[0].rsplit(":", 1)[0], now + 1000, "", now)
        assert not away.take([ban.signed_by(THIRD)])
        assert not heirs.take([Transfer(RUN, 0, 1, (), (key(GUEST),), 1).signed_by(FIRST)])
        one, other = (away, heirs) if dialler == 0 else (heirs, away)
        await one.node.dial(other.address)
        assert away.ledger.term == 1
        await asyncio.sleep(1.0)
        assert away.node.is_connected(heirs.peer_id)
        assert heirs.node.is_connected(away.peer_id)
        assert away.offences == heirs.offences == []
        await close(away, heirs)


@virtually
async def test_who_missed_a_transfer_hears_of_it_though_all_orders_take_longer_than_a_dial() -> None:
    bans = list(map(bar, range(1, 101)))
    assert sum(len(msgspec.msgpack.encode(page)) for page in Orders.of(bans).pages()) > 15_000
    for thin in (FIRST, GUEST):
        internet, addresses = VirtualInternet(1), dict[PeerId, Address]()
        away, heirs = (
            Peer(internet, addresses, admitted=(signer, term), up_bytes_per_s=1000.0 if signer is thin else None)
            for signer, term in ((FIRST, 0), (GUEST, 1))
        )
        for peer in (away, heirs):
            assert not peer.take(bans)
        assert not heirs.take([Transfer(RUN, 0, 1, (), (key(GUEST),), 1).signed_by(FIRST)])
        await heirs.node.dial(away.address)
        assert away.ledger.term == 1
        assert away.node.is_connected(heirs.peer_id)
        assert ["of term 1" in str(event.data) for event in away.log if event.kind == "peer.turned_away"] == [True]
        await close(away, heirs)


@virtually
async def test_an_exchange_of_orders_that_does_not_end_leaves_both_sides_the_reason_of_the_refusal() -> None:
    internet, addresses = VirtualInternet(1), dict[PeerId, Address]()
    member, stranger = Peer(internet, addresses, admitted=(FIRST, 0)), Peer(internet, addresses, admitted=(GUEST, 1))
    stranger.node.exchange_orders = lambda _: asyncio.Event().wait()  # type: ignore[assignment, return-value]
    with pytest.raises(RejectedError, match="of term 1, of which nothing is known here"):
        await stranger.node.dial(member.address)
    await asyncio.sleep(1.0)
    reasons = [str(event.data) for event in member.log if event.kind == "peer.turned_away"]
    assert ["of term 1" in reason for reason in reasons] == [True, True]
    await close(member, stranger)


@virtually
async def test_who_is_not_admitted_brings_orders_and_gets_none() -> None:
    internet, addresses = VirtualInternet(1), dict[PeerId, Address]()
    member, stranger = Peer(internet, addresses, admitted=(FIRST, 0)), Peer(internet, addresses, admitted=(GUEST, 1))
    assert not member.take([bar(1)])
    assert not stranger.take([bar(2)])
    with pytest.raises(RejectedError):
        await stranger.node.dial(member.address)
    assert stranger.ledger.barred().keys() == {f"{2:064x}"}
    assert member.ledger.barred().keys() == {f"{1:064x}", f"{2:064x}"}
    await close(member, stranger)


@virtually
async def test_who_shows_a_token_of_an_unknown_term_has_one_stream_for_orders_and_no_connection() -> None:
    internet, addresses = VirtualInternet(1), dict[PeerId, Address]()
    member, stranger = Peer(internet, addresses, admitted=(FIRST, 0)), Peer(internet, addresses, admitted=(GUEST, 1))
    stranger.admission.open_to_all()
    stranger.admission.ledger = None
    tried, served = list[str](), list[PeerId]()

    async def serve(peer: PeerId, stream: MessageStream) -> None:
        served.append(peer)
        await stream.send(OrdersCompared(same=True))

    async def pry(connection: Connection) -> None:
        for method in ("run.spec", "run.spec", METHOD):
            tried.append(method)
            with contextlib.suppress(RemoteError):
                await stranger.node.call(member.peer_id, method, OrdersHeld(bytes(32)), OrdersCompared, over=connection)

    member.node.serve("run.spec", serve)
    stranger.node.exchange_orders = pry
    with pytest.raises(RejectedError, match="of term 1, of which nothing is known here") as refused:
        await stranger.node.dial(member.address)
    assert refused.value.code is RefusalCode.ORDERS
    assert (tried, served) == (["run.spec", "run.spec", METHOD], []), "once, though it dials twice"
    with pytest.raises(RejectedError):
        await member.node.dial(stranger.address)
    assert member.connections == 0
    assert member.node.clock.time_at(stranger.peer_id) is None
    await close(member, stranger)


@virtually
async def test_nothing_more_is_heard_from_a_stranger_whose_order_is_none() -> None:
    internet, addresses = VirtualInternet(1), dict[PeerId, Address]()
    member, stranger = Peer(internet, addresses, admitted=(FIRST, 0)), Peer(internet, addresses, admitted=(GUEST, 7))
    liar = Identity.from_seed(bytes([9]) * 32)
    assert not member.take([Transfer(RUN, 0, 1, (), (key(GUEST),), 1).signed_by(FIRST)])
    as_of_other_heirs = Transfer(RUN, 0, 2, (), (key(liar),), 1).signed_by(liar)

    async def lie(connection: Connection) -> None:
        async with stranger.node.open(member.peer_id, METHOD, over=connection) as stream:
            await stream.send(OrdersHeld(bytes(32)))
            await stream.receive(OrdersCompared)
            await stream.receive(Orders)
            await stream.send(Orders((as_of_other_heirs,), more=True))
            for subject in range(5):
                false = Revocation(RUN, 1, 1, (), subject.to_bytes(32, "big"), 1, "").signed_by(liar)
                await stream.send(Orders(revocations=(false,), more=subject < 4))
            await stream.finish()
            await stream.receive_end()

    stranger.node.exchange_orders = lie
    with pytest.raises(RejectedError):
        await stranger.node.dial(member.address)
    assert [event.kind for event in member.log].count("access.invalid_order") == 1
    assert member.offences == []
    await close(member, stranger)


@virtually
async def test_whom_a_member_knows_by_an_earlier_token_is_a_stranger_too_while_it_is_refused() -> None:
    internet, addresses = VirtualInternet(1), dict[PeerId, Address]()
    member, guest = (Peer(internet, addresses, admitted=(FIRST, 0)) for _ in range(2))
    await guest.node.dial(member.address)
    await asyncio.sleep(1.0)
    await guest.node.disconnect(member.peer_id)
    await asyncio.sleep(1.0)
    assert guest.peer_id in member.admission.members()
    guest.admission.show(Token(Grant(RUN, 1, 1, (), bytes.fromhex(guest.peer_id), 0, 1, 1 << 32).signed_by(GUEST)))
    assert not member.take([bar(1)])
    served, ask = list[PeerId](), guest.node.exchange_orders
    assert ask is not None

    async def serve(peer: PeerId, stream: MessageStream) -> None:
        served.append(peer)
        await stream.send(OrdersCompared(same=True))

    async def pry(connection: Connection) -> None:
        await guest.node.call(member.peer_id, "run.spec", OrdersHeld(bytes(32)), OrdersCompared, over=connection)

    member.node.serve("run.spec", serve)
    for exchange in (ask, pry):
        guest.node.exchange_orders = exchange
        with pytest.raises(RejectedError):
            await guest.node.dial(member.address)
    assert served == []
    assert guest.ledger.barred() == {}
    await close(member, guest)


@virtually
async def test_who_is_barred_while_the_hellos_are_said_is_not_connected() -> None:
    internet, addresses = VirtualInternet(1), dict[PeerId, Address]()
    member, guest = (Peer(internet, addresses) for _ in range(2))
    check = member.node._check_guest

    async def slowly(hello: Hello, peer: PeerId) -> None:
        await check(hello, peer)
        member.take([bar(int(peer, 16))])

    member.node._check_guest = slowly  # type: ignore[method-assign]
    with contextlib.suppress(RemoteError):
        await guest.node.dial(member.address)
    await asyncio.sleep(1.0)
    assert not guest.node.is_connected(member.peer_id)
    assert member.connections == 0
    assert [event.kind for event in member.log].count("peer.turned_away") == 1
    await close(member, guest)


@pytest.mark.parametrize("needed", [1, 2])
def test_one_organiser_alone_moves_nobodys_versions(needed: int) -> None:
    """A version near the bound of what may be sent made the next order one that nobody can read."""
    organisers = Organisers(frozenset(each.peer_id for each in (FIRST, SECOND, THIRD)), needed)
    ledger = AccessLedger(RUN.hex(), organisers, FIRST.peer_id, is_open=True)
    assert ledger.take(bar(1, version=5))
    assert ledger.next_version == (6 if needed == 1 else 1)
    for signer in (FIRST, SECOND):
        ledger.take(draft_revocation(ledger, "1" * 64, "", 2).signed_by(signer))
    assert "1" * 64 in ledger.barred()


def test_an_organiser_that_bars_as_many_keys_as_it_may_keeps_no_other_from_barring_it() -> None:
    organisers = Organisers(frozenset(each.peer_id for each in (FIRST, SECOND, THIRD)), 1)
    ledger = AccessLedger(RUN.hex(), organisers, FIRST.peer_id, is_open=True)
    for subject in range(1, 1 + MAX_BARRED):
        ledger.take(bar(subject, version=10))
    assert not ledger.may_bar(THIRD.peer_id, FIRST.peer_id)
    assert ledger.may_bar(THIRD.peer_id, f"{1:064x}")
    assert ledger.may_bar(SECOND.peer_id, THIRD.peer_id)
    ledger.take(draft_revocation(ledger, THIRD.peer_id, "", 2).signed_by(SECOND))
    assert THIRD.peer_id in ledger.barred()
    assert ledger.take(bar(0, version=3)), "the last key by its digits makes room"
    assert ledger.next_version == 12, "grants of what is gone are not good again"
