"""Runs for members, in virtual time: who is let in, who is not, and whose access ends."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from minga.access.access_files import AccessFiles
from minga.access.admission import Admission
from minga.core.errors import RejectedError, RemoteError
from minga.core.refusal_code import RefusalCode
from minga.core.spec.run_spec import RunSpec
from minga.identity.access.ledger import CLOCK_SKEW_S, AccessLedger
from minga.identity.access.orders import Grant, Revocation, Transfer
from minga.identity.access.token import Token
from minga.identity.keys.keys import Identity
from minga.identity.links.links import EntryPoint, Link, LinkAccess
from minga.identity.links.signed_spec import SignedRunSpec
from minga.network.gossip.record_kinds import AddressInfo, Credential, Payload
from minga.network.gossip.records import Verdict, make_record
from minga.network.interface import PeerId
from minga.network.rpc.run_clock import RunClock
from minga.network.virtual.internet import EPOCH_S, HostSettings
from minga.simulation.swarm.simulated_peer import TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.training.own_access import RunAccess
from minga.training.record_kinds import RUN_KINDS, Progress
from minga.training.session import Session, SessionSettings
from minga.training.transfer.run_files import RunFileServer
from tests.worlds.swarm_tools import assert_equal_states, make_spec, offences
from tests.worlds.swarm_tools import virtually as virtually_for

pytestmark = pytest.mark.promise("who-may-take-part")

ORGANISER, SECOND, THIRD = (Identity.from_seed(bytes([i]) * 32) for i in (200, 201, 202))
NOW = int(EPOCH_S)
virtually = functools.partial(virtually_for, limit_s=300.0)
DAY_S = 86_400


def members_spec(batch: int = 16, organisers: tuple[Identity, ...] = (), needed: int = 1, **sections: Any) -> RunSpec:
    security = {
        "admission": "members",
        "organisers": [organiser.peer_id for organiser in organisers],
        "organisers_needed": needed,
    }
    return make_spec(batch, security=security, **sections)


def grant(spec: RunSpec, subject: str, *signers: Identity, **changes: Any) -> Grant:
    fields = {"uses": 0, "version": 1, "expires": NOW + DAY_S, "issued": NOW, "term": 0, **changes}
    unsigned = Grant(run=bytes.fromhex(spec.run_id), subject=bytes.fromhex(subject), signatures=(), **fields)
    for signer in signers or (ORGANISER,):
        unsigned = unsigned.signed_by(signer)
    return unsigned


def invitation(spec: RunSpec, *signers: Identity, uses: int = 10, seed: int = 77, **changes: Any) -> LinkAccess:
    key = Identity.from_seed(bytes([seed]) * 32)
    return LinkAccess(grant(spec, key.peer_id, *signers, uses=uses, **changes), key.seed)


def make_swarm(spec: RunSpec) -> Swarm:
    return Swarm(spec, organiser=ORGANISER)


async def grow(swarm: Swarm, access: LinkAccess, count: int = 3) -> list[str]:
    """Add members, and wait until they train; their names."""
    names = [swarm.add(access=access).name for _ in range(count)]
    await swarm.run_until_step(2, peers=names)
    return names


async def train_on(swarm: Swarm, names: Sequence[str], steps: int = 3) -> None:
    """These peers take some more steps, and end up equal."""
    step = max(swarm.peers[name].replica.step for name in names)
    await swarm.run_until_step(step + steps, peers=names)
    await assert_equal_states(swarm, names)


def ended(swarm: Swarm, who: str) -> dict[str, str]:
    """Who saw off `who`, and why."""
    gone = swarm.peers[who].network.peer_id
    events = [logged for logged in swarm.log.of("access.ended") if logged.event.fields["peer"] == gone]
    return {logged.peer: str(logged.event.fields["why"]) for logged in events}


def turned_away(swarm: Swarm) -> set[tuple[str, str]]:
    """Who refused whom, apart from peers that only tried whether somebody can be dialled, and hung up."""
    events = [(logged.peer, logged.event.fields) for logged in swarm.log.of("peer.turned_away")]
    return {(who, str(f["peer"])) for who, f in events if "the other side closed" not in str(f["reason"])}


def revocation(
    spec: RunSpec, subject: str, signer: Identity = ORGANISER, version: int = 1, why: str = ""
) -> Revocation:
    run = bytes.fromhex(spec.run_id)
    return Revocation(run, 0, NOW, (), bytes.fromhex(subject), version, why).signed_by(signer)


def order(swarm: Swarm, at: str, *orders: Revocation | Transfer) -> None:
    """Let one peer hear of orders; the others hear of them from it."""
    assert swarm.peers[at].session.admission.take(orders) == []


def is_unknown(swarm: Swarm, who: str, to: Sequence[str]) -> bool:
    """Whether nobody among `to` has a connection or a record of `who`."""
    peer = swarm.peers[who].network.peer_id
    sessions = [swarm.peers[name].session for name in to]
    return all(not s.node.is_connected(peer) and peer not in s.board.store.owners for s in sessions)


@virtually
async def test_who_is_invited_trains_and_a_stranger_is_refused() -> None:
    """Whatever the clocks say, up to a quarter of an hour."""
    spec = members_spec()
    swarm = make_swarm(spec)
    hosts = [HostSettings(clock_skew_s=skew_s) for skew_s in (-840.0, 0.0, 840.0)]
    names = [swarm.add(host, access=invitation(spec)).name for host in hosts]
    await swarm.run_until_step(2, peers=names)
    stranger = swarm.add(name="stranger")
    await stranger.ended.wait()
    assert isinstance(stranger.error, RejectedError)
    assert stranger.error.code == RefusalCode.ACCESS
    assert f"for members only; ask its organiser to admit the peer {stranger.network.peer_id}" in str(stranger.error)
    late = swarm.add(access=invitation(spec))
    await train_on(swarm, [*names, late.name])
    assert late.samples_done > 0
    assert is_unknown(swarm, "stranger", [*names, late.name])
    assert not turned_away(swarm) & {(who, swarm.peers[name].network.peer_id) for who in names for name in names}
    assert not swarm.log.of("access.ended")
    assert offences(swarm) == []
    await swarm.close()


def spoilt(spec: RunSpec, what: str, victim: str) -> bytes:
    """A credential that is none, in one of the ways that a stranger could try."""
    good = invitation(spec).token_for(victim).encode()
    stranger = Identity.from_seed(b"s" * 32)
    return {
        "forged": Token(grant(spec, victim, stranger)).encode(),
        "replayed by another key": good,
        "truncated": good[:-9],
        "oversized": good + bytes(2000),
    }[what]


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        ("forged", "0 of the 1 organisers"),
        ("replayed by another key", "belongs to another peer"),
        ("truncated", "no access token"),
        ("oversized", "closed|lost|malformed|gone"),
    ],
)
@virtually
async def test_a_bad_token_is_refused_in_words_and_disturbs_nobody(what: str, cause: str) -> None:
    spec = members_spec()
    swarm = make_swarm(spec)
    names = await grow(swarm, invitation(spec), 2)
    bad = swarm.add(name="bad")
    victim = swarm.peers[names[0]] if what.startswith("replayed") else bad
    credential = spoilt(spec, what, victim.network.peer_id)
    bad.session.admission.credential = lambda: credential  # type: ignore[method-assign]
    await bad.ended.wait()
    assert bad.error is not None
    assert re.search(cause, str(bad.error)), str(bad.error)
    await train_on(swarm, names)
    assert {peer for who, peer in turned_away(swarm) if who in names} == {bad.network.peer_id}, "told by name"
    assert is_unknown(swarm, "bad", names)
    await swarm.close()


@virtually
async def test_who_is_barred_goes_when_the_step_ends_and_does_not_come_back() -> None:
    spec = members_spec()
    swarm = make_swarm(spec)
    first, second, barred = await grow(swarm, invitation(spec))
    peer = swarm.peers[barred]
    order(swarm, first, revocation(spec, peer.network.peer_id, why="sent nonsense"))
    await peer.ended.wait()
    assert isinstance(peer.error, RejectedError)
    assert "this machine's access to the run has ended: the organisers barred this peer" in str(peer.error)
    assert "sent nonsense" in str(peer.error)
    await train_on(swarm, [first, second])
    assert ended(swarm, barred).keys() >= {first, second}
    assert is_unknown(swarm, barred, [first, second])
    applied = [logged.event.time for logged in swarm.log.of("step.applied") if logged.peer == first]
    assert any(logged.event.time in applied for logged in swarm.log.of("access.ended") if logged.peer == first)
    await peer.session.close()
    swarm.internet.kill(barred)
    again = swarm.restart(barred)
    await again.ended.wait()
    assert isinstance(again.error, RejectedError)
    assert "sent nonsense" in str(again.error)
    await train_on(swarm, [first, second])
    assert is_unknown(swarm, barred, [first, second])
    assert offences(swarm) == []
    await swarm.close()


@virtually
async def test_a_token_that_expires_in_mid_run_ends_with_a_step() -> None:
    spec = members_spec()
    swarm = make_swarm(spec)
    slow, ended_s = TrainerSettings(4, 5.0), 80  # before it came: clocks may differ
    first, second = (swarm.add(trainer=slow, access=invitation(spec)).name for _ in range(2))
    short = swarm.add(trainer=slow, access=invitation(spec, seed=78, expires=NOW - ended_s), name="short")
    await swarm.run_until_step(3)
    assert short.samples_done > 0
    await short.ended.wait()
    assert isinstance(short.error, RejectedError)
    assert "expired; ask the organiser for a new invitation" in str(short.error)
    assert asyncio.get_running_loop().time() >= CLOCK_SKEW_S - ended_s
    await train_on(swarm, [first, second])
    assert is_unknown(swarm, "short", [first, second])
    by_step = {logged.event.time for logged in swarm.log.of("step.applied")}
    assert {logged.event.time for logged in swarm.log.of("access.ended")} <= by_step
    assert offences(swarm) == []
    await swarm.close()


@virtually
async def test_two_organisers_who_disagree() -> None:
    # At the same moment and with the same version one bars a key and the other admits it.
    spec = members_spec(organisers=(SECOND, THIRD))
    swarm = make_swarm(spec)
    invited = invitation(spec, SECOND)
    names = await grow(swarm, invited)
    subject = Identity.from_seed(swarm.peers[names[2]].network.private_key).peer_id
    order(swarm, names[0], revocation(spec, subject, THIRD, version=2))
    swarm.peers[names[2]].session.admission.token = Token(grant(spec, subject, SECOND, version=2))
    await swarm.peers[names[2]].ended.wait()
    await train_on(swarm, names[:2])
    # A newer admission is above the revocation: the key comes back.
    swarm.internet.kill(names[2])
    swarm.peers[names[2]].access = LinkAccess(grant(spec, subject, SECOND, version=3))
    again = swarm.restart(names[2])
    await train_on(swarm, names)
    assert again.error is None
    await swarm.close()


@virtually
async def test_the_role_is_handed_over_in_mid_run() -> None:
    spec = members_spec()
    swarm = make_swarm(spec)
    names = await grow(swarm, invitation(spec))
    unsigned = Transfer(bytes.fromhex(spec.run_id), 0, NOW, (), (bytes.fromhex(SECOND.peer_id),), 1)
    order(swarm, names[0], unsigned.signed_by(ORGANISER))
    await train_on(swarm, names)
    assert all(swarm.peers[name].session.admission.ledger.term == 1 for name in names)  # type: ignore[union-attr]
    old = swarm.add(access=invitation(spec, seed=80, term=1), name="by the old one")
    await old.ended.wait()
    assert "0 of the 1 organisers" in str(old.error)
    by_heir = invitation(spec, SECOND, seed=81, term=1)
    new = swarm.add(access=by_heir)
    await train_on(swarm, [*names, new.name])
    # Nobody is left whom the organisers of the run spec admitted: a newcomer knows of no others until it asks.
    late = swarm.add(access=by_heir, entries=[new.network.address])
    await train_on(swarm, [*names, new.name, late.name])
    # It did not take its access for ended before it knew who had given it, and notices when it does end.
    key, run = bytes.fromhex(late.network.peer_id), bytes.fromhex(spec.run_id)
    order(swarm, names[0], Revocation(run, 1, NOW, (), key, 1).signed_by(SECOND))
    await late.ended.wait()
    assert [logged.peer for logged in swarm.log.of("access.lost")] == [late.name]
    await swarm.close()


@virtually
async def test_who_was_cut_off_while_the_role_was_handed_over_finds_the_run_again() -> None:
    spec = members_spec()
    swarm = make_swarm(spec)
    old, away = (swarm.peers[name] for name in await grow(swarm, invitation(spec), 2))
    swarm.internet.cut(old.network, away.network)
    unsigned = Transfer(bytes.fromhex(spec.run_id), 0, NOW, (), (bytes.fromhex(SECOND.peer_id),), 1)
    order(swarm, old.name, unsigned.signed_by(ORGANISER))
    new = swarm.add(access=invitation(spec, SECOND, seed=81, term=1), entries=[old.network.address])
    swarm.internet.cut(new.network, away.network)
    while new.network.peer_id not in old.session.board.store.owners:
        await asyncio.sleep(1.0)
    await old.session.close()
    swarm.internet.restore(new.network, away.network)
    while away.session.board.get(new.network.peer_id, AddressInfo) is None:
        await asyncio.sleep(1.0)
    assert away.session.node.is_connected(new.network.peer_id)
    assert away.session.admission.permits(new.network.peer_id, "board.exchange")
    assert offences(swarm) == []
    await swarm.close()


@virtually
async def test_an_invitation_is_used_up() -> None:
    spec = members_spec()
    swarm = make_swarm(spec)
    twice = invitation(spec, uses=2)
    names = await grow(swarm, twice, 2)
    third = swarm.add(access=twice, name="third")
    await third.ended.wait()
    assert "good for 2 times and is used up" in str(third.error)
    swarm.internet.kill("third")
    # Who came by it before is known, and comes again.
    swarm.internet.kill(names[1])
    swarm.restart(names[1])
    await train_on(swarm, names)
    await swarm.close()


@virtually
async def test_one_invitation_at_two_places_at_once_splits_nobody() -> None:
    spec = members_spec()
    swarm = make_swarm(spec)
    names = await grow(swarm, invitation(spec))
    once = invitation(spec, seed=82, uses=1)
    doors = [[swarm.peers[name].network.address] for name in names[:2]]
    guests = [swarm.add(access=once, entries=door).name for door in doors]
    await train_on(swarm, [*names, *guests], 6)
    assert swarm.log.of("access.overused"), "it is told to the organiser"
    await swarm.close()


@virtually
async def test_records_of_strangers_are_not_kept_or_passed_on() -> None:
    spec = members_spec()
    swarm = make_swarm(spec)
    names = await grow(swarm, invitation(spec))
    stranger = Identity.from_seed(b"s" * 32)
    helper = swarm.peers[names[2]].session
    helper.admission._admitted[PeerId(stranger.peer_id)] = next(iter(helper.admission.members().values()))
    expires = int((EPOCH_S + 3000) * 1000)
    payloads: list[Payload] = [AddressInfo("trainer", ("192.0.2.1:9",)), Credential(helper.admission.credential())]
    for payload in payloads:
        code, body = RUN_KINDS.of(type(payload)).code, RUN_KINDS.encode(payload)
        record = make_record(stranger, spec.run_id, code, expires - 10**6, expires, body)
        if helper.board.receive(record, helper.peer_id) is Verdict.NEW:
            helper.gossip._pusher.add(record.owner, code, record.owner)
    assert stranger.peer_id in helper.board.store.owners
    await train_on(swarm, names)
    for name in names[:2]:
        board = swarm.peers[name].session.board
        assert stranger.peer_id not in board.store.owners
        assert board.verdicts[Verdict.NOT_ADMITTED] > 0
    assert offences(swarm) == [], "an honest peer may hear later of who was barred"
    await swarm.close()


@virtually
async def test_forged_orders_are_a_breach_of_the_protocol() -> None:
    spec = members_spec()
    swarm = make_swarm(spec)
    liar, second, third = await grow(swarm, invitation(spec))
    forged = revocation(spec, swarm.peers[third].network.peer_id, SECOND)
    ledger = swarm.peers[liar].session.admission.ledger
    assert ledger is not None
    ledger.orders = lambda: iter([forged])  # type: ignore[method-assign]
    await swarm.peers[liar].session.spread_orders()
    await train_on(swarm, [liar, second, third])
    assert {(who, what) for _, who, what in offences(swarm)} == {
        (liar, f"peer {swarm.peers[liar].network.peer_id[:10]}: sent an order of the organisers that is none: "
        "no organiser signed it")
    }  # fmt: skip
    assert not ended(swarm, third)
    await swarm.close()


@virtually
async def test_who_only_looks_on_takes_part_in_nothing() -> None:
    spec = members_spec()
    swarm = make_swarm(spec)
    names = await grow(swarm, invitation(spec), 2)
    member = Identity.from_seed(swarm.peers[names[0]].network.private_key)
    network = swarm.internet.host(name="watcher")
    token = Token.for_watcher(
        spec.run_id, member, invitation(spec).token_for(member.peer_id), network.peer_id, NOW + 3600
    )
    entries = [swarm.peers[name].network.address for name in names]
    admission = Admission(network.peer_id, RunClock.of(network, entries), token)
    identity = Identity.from_seed(network.private_key)
    session = Session(network, identity, spec.run_id, SessionSettings(role="monitor"), entries, admission)
    session.follow_orders(AccessLedger.of_spec(spec.run_id, spec, ORGANISER.peer_id))
    await session.start()
    await train_on(swarm, names)
    assert session.board.payloads(Progress).keys() == {swarm.peers[name].network.peer_id for name in names}
    for method in ("group.join", "round.part", "anything"):
        with pytest.raises(RejectedError, match=r"not admitted|no such method"):
            await session.node.call(swarm.peers[names[0]].network.peer_id, method, Credential(b""), Credential)
    session.board.put(AddressInfo("trainer", ("192.0.2.1:9",)))
    await train_on(swarm, names)
    for name in names:
        assert network.peer_id not in swarm.peers[name].session.board.payloads(AddressInfo)
    await session.close()
    await swarm.close()


@virtually
async def test_a_newcomer_does_not_believe_an_impostor() -> None:
    """Of two entries one is a peer that lets everybody in and is itself no member."""
    spec = members_spec()
    swarm = make_swarm(spec)
    names = await grow(swarm, invitation(spec), 2)
    signed = SignedRunSpec.sign(spec, ORGANISER)
    everybody = [swarm.peers[name].session for name in names]
    impostor_host = swarm.internet.host(name="impostor")
    impostor = Session(
        impostor_host, Identity.from_seed(impostor_host.private_key), spec.run_id, SessionSettings(may_be_alone=True)
    )
    await impostor.start()
    for session in [*everybody, impostor]:
        RunFileServer(session.node, signed, {}, {})
    network = swarm.internet.host(name="newcomer")
    entries = [session.node.address for session in [impostor, *everybody]]
    link_entries = tuple(EntryPoint(address.peer_id) for address in entries)
    link = Link(spec.run_id, ORGANISER.peer_id, link_entries, invitation(spec))
    access = RunAccess(AccessFiles(Path("/nonexistent")), link, keeps=False)
    token = access.token(network.peer_id, network.wall_time())
    for only, is_in in ((entries[:1], False), (entries, True)):
        session = Session(
            network, Identity.from_seed(network.private_key), spec.run_id, SessionSettings(role="monitor"), only,
            Admission(network.peer_id, RunClock.of(network, only), token), access.meet,
        )  # fmt: skip
        access.known = None
        if not is_in:
            with pytest.raises(RemoteError):
                await session.start()
            assert impostor_host.peer_id not in session.board.store.owners
            await session.close()
            network = swarm.internet.host(name="newcomer again")
            token = access.token(network.peer_id, network.wall_time())
            continue
        await session.start()
        await train_on(swarm, names)
        assert impostor_host.peer_id not in session.board.store.owners
        assert set(session.node.connected()) <= {member.peer_id for member in everybody}
        await session.close()
    await impostor.close()
    await swarm.close()
