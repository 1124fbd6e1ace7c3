"""Members that want to have contributed more than they did, or others less."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
import pytest

from minga.averaging.messages import MAX_STEP, Plan
from minga.network.interface import PeerId
from minga.receipts import book as book_module
from minga.receipts.attestation import (
    LAST,
    MAX_PASSED_ON,
    Attestation,
    Claim,
    Count,
    Entry,
    JoinNote,
    JudgedCount,
    LastAttestation,
    PlanNote,
    Taken,
    passed_on,
)
from minga.receipts.book import ReceiptBook
from minga.receipts.receipts import Receipts
from minga.simulation.swarm.simulated_peer import SimulatedPeer
from minga.simulation.swarm.swarm import Swarm
from tests.worlds.receipt_world import (
    IDS,
    KEYS,
    given,
    hurry,
    make_count,
    make_swarm,
    receipts_of,
    sign,
    sign_all,
    totals_at,
)
from tests.worlds.swarm_tools import offences, virtually

pytestmark = pytest.mark.promise("receipts")

STEPS = 14


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


async def joined(swarm: Swarm) -> list[SimulatedPeer]:
    """All peers, once their members are there."""
    while not all(peer.session.member is not None for peer in swarm.peers.values()):
        await asyncio.sleep(0.01)
    return list(swarm.peers.values())


def inflate(peer: SimulatedPeer, factor: int) -> None:
    """Claim so many times what was given, and vouch for every claim."""
    receipts = receipts_of(peer)
    sight = receipts._sight
    honest = sight.claim

    def claim(step: int) -> Claim | None:
        found = honest(step)
        return found and msgspec.structs.replace(
            found, samples=factor * found.samples + factor, reduced=factor * found.reduced + factor
        )

    sight.claim = claim  # type: ignore[method-assign]
    vouch_for_all(peer)


def vouch_for_all(peer: SimulatedPeer) -> None:
    """Have no doubts at all, and count as a witness."""
    receipts_of(peer)._sight.judge = lambda count: JudgedCount(count, b"", is_witness=True)  # type: ignore[method-assign]


def assert_honest_ones_count(swarm: Swarm, viewer: str, honest: list[str], share: float = 0.6) -> None:
    """Most of what they gave is attested, and no more than that: the last steps are not claimed yet."""
    totals, gave = totals_at(swarm, viewer), given(swarm)
    for name in honest:
        assert share * gave[name] <= totals[name].samples <= gave[name], name


@virtually
async def test_a_colluding_third_gets_nothing_attested_and_takes_little_from_the_others() -> None:
    """They claim more, vouch for each other, and as leaders make up claims of their own and leave out those of others,
    or tell each member something else.
    """
    swarm = make_swarm(6)
    peers = await joined(swarm)
    friends = [peer.network.peer_id for peer in peers[:2]]
    for number, peer in enumerate(peers[:2]):
        inflate(peer, 2)
        lead_badly(peer, friends, equivocate=number == 1)
    await swarm.run_until_step(STEPS)
    await sign_all(swarm)
    totals = totals_at(swarm, "peer-3")
    for name in ("peer-0", "peer-1"):
        assert (totals[name].samples, totals[name].reduced_bytes) == (0, 0)
    # What stood in a count that too few attest is lost, which is a third of the counts at most.
    assert_honest_ones_count(swarm, "peer-3", ["peer-2", "peer-3", "peer-4", "peer-5"], share=0.4)
    assert offences(swarm) == []
    await swarm.close()


def lead_badly(peer: SimulatedPeer, friends: list[PeerId], *, equivocate: bool) -> None:
    """As the leader, claim a lot for friends; or pass notes on that differ with each call."""
    receipts = receipts_of(peer)
    honest = receipts.with_plan

    def with_plan(plan: Plan, notes: Mapping[PeerId, bytes]) -> bytes:
        note = PlanNote.decode(honest(plan, notes))
        if not note.claims:
            return honest(plan, notes)
        made_up = tuple(
            Claim(5, 5, 10_000, 10_000) if member in friends else None if equivocate else claim
            for member, claim in zip(plan.ids, note.claims, strict=True)
        )
        return msgspec.msgpack.encode(PlanNote(made_up, note.attestations))

    receipts.with_plan = with_plan  # type: ignore[method-assign]


@virtually
async def test_forged_attestations_and_replays_say_nothing() -> None:
    """A member sends, in the place of its own attestation, others' with changed doubts, old ones, and nonsense. It
    claims more than it gave, and so does a client: others hear it, though it hears nobody.
    """
    swarm = make_swarm(5, clients=1)
    peers = await joined(swarm)
    evil = receipts_of(peers[0])
    inflate(peers[0], 2)
    inflate(peers[4], 3)
    honest, sent = evil.for_leader, [0]

    def forge(step: int) -> bytes:
        note = JoinNote.decode(honest(step))
        genuine = list(evil.book.attestations(count.place for count in evil.book.counts))
        if not genuine:
            return honest(step)
        sent[0] += 1
        old = genuine[0]
        other = next(key for key in evil.book.counts[0].members if key != old.key)
        named_other = msgspec.structs.replace(old, key=other)
        entries = tuple(msgspec.structs.replace(entry, doubts=b"") for entry in old.entries)
        vouched = msgspec.structs.replace(old, entries=entries, signature=old.signature[::-1])
        choices = [old.travelling, named_other.travelling, vouched.travelling, b"\xff" * 200, b""]
        return msgspec.msgpack.encode(JoinNote(note.claim, choices[sent[0] % len(choices)]))

    evil.for_leader = forge  # type: ignore[method-assign]
    await swarm.run_until_step(STEPS)
    await sign_all(swarm)
    assert sent[0] > 5
    for viewer in ("peer-1", "peer-3"):
        totals = totals_at(swarm, viewer)
        for name in ("peer-0", "peer-4"):
            assert (totals[name].samples, totals[name].reduced_bytes) == (0, 0)
        assert totals["peer-4"].claimed > 2
        assert_honest_ones_count(swarm, viewer, ["peer-1", "peer-2", "peer-3"])
        book = receipts_of(swarm.peers[viewer]).book
        assert all(each.is_genuine(swarm.spec.run_id) for each in book.attestations(c.place for c in book.counts))
    assert offences(swarm) == []
    await swarm.close()


@virtually
async def test_a_member_has_no_part_in_a_count_that_misquotes_it() -> None:
    swarm = make_swarm(3)
    peers = await joined(swarm)
    victim = peers[2].network.peer_id

    def misquote(receipts: Receipts) -> None:
        honest = receipts.with_plan

        def with_plan(plan: Plan, notes: Mapping[PeerId, bytes]) -> bytes:
            said = PlanNote.decode(honest(plan, notes))
            claims = [
                claim and msgspec.structs.replace(claim, samples=claim.samples + (peer == victim))
                for peer, claim in zip(plan.ids, said.claims, strict=False)
            ]
            return msgspec.msgpack.encode(PlanNote(tuple(claims), said.attestations))

        receipts.with_plan = with_plan  # type: ignore[method-assign]

    for peer in peers:
        misquote(receipts_of(peer))
    await swarm.run_until_step(STEPS)
    await sign_all(swarm)
    assert [len(receipts_of(peer).book) > 0 for peer in peers] == [True, True, False]
    await swarm.close()


@virtually
async def test_a_peer_that_reports_samples_and_sends_others_is_counted_by_what_it_sends() -> None:
    """What enters the mean is what each root weights; a peer that tells roots different weights has the least."""
    swarm = make_swarm(4)
    peers = await joined(swarm)
    port = peers[0].port
    honest = port.seal

    async def seal() -> tuple[object, int]:
        vector, weight = await honest()
        return vector, max(1, weight // 2)

    port.seal = seal  # type: ignore[method-assign,assignment]
    sight = receipts_of(peers[0])._sight
    note = sight.note
    sight.note = lambda outcome, samples, batch: note(outcome, 2 * samples, batch)  # type: ignore[method-assign]
    vouch_for_all(peers[0])
    await swarm.run_until_step(STEPS)
    await sign_all(swarm)
    assert totals_at(swarm, "peer-2")["peer-0"].samples == 0
    assert_honest_ones_count(swarm, "peer-2", ["peer-1", "peer-2", "peer-3"])
    await swarm.close()


def test_a_count_is_bound_to_its_run_and_its_claims() -> None:
    count = make_count(9, [Claim(3, 3, 5, 0), Claim(3, 3, 6, 0)])
    other = make_count(9, [Claim(3, 3, 50, 0), Claim(3, 3, 6, 0)])
    attestation = sign(KEYS[0], count)
    assert attestation.is_genuine("ab" * 32)
    assert not attestation.is_genuine("cd" * 32)
    assert not msgspec.structs.replace(attestation, digests=(other.digest,)).is_genuine("ab" * 32)
    assert isinstance(other, Count)


@virtually
async def test_steps_that_no_run_reaches_make_nobody_accuse_those_who_ask_about_them() -> None:
    """All leaders pass on an attestation of peer-1's, made up: of a step that all know and one far too large."""
    swarm = make_swarm(4)
    peers = await joined(swarm)
    victim = bytes.fromhex(peers[1].network.peer_id)

    def lie(receipts: Receipts) -> None:
        honest = receipts.with_plan

        def with_plan(plan: Plan, notes: Mapping[PeerId, bytes]) -> bytes:
            note = PlanNote.decode(honest(plan, notes))
            known = receipts.book.counts[0].step if len(receipts.book) else 0
            entries = [(2 * known, b""), *((1 << 50, b"") for _ in range(8))]
            forged = msgspec.msgpack.encode((victim, 0, entries, bytes(64), ()))
            return msgspec.msgpack.encode(PlanNote(note.claims, (forged, *note.attestations[:7])))

        receipts.with_plan = with_plan  # type: ignore[method-assign]

    for peer in peers:
        lie(receipts_of(peer))
    await swarm.run_until_step(STEPS)
    assert offences(swarm) == []
    await swarm.close()


@virtually
async def test_a_peer_that_leaves_has_a_word_of_its_own_alone() -> None:
    """It sends back what no leader has passed on yet, and has others ask a third peer about what that never signed."""
    swarm = make_swarm(3)
    await swarm.run_until_step(STEPS)
    liar, victim, third = swarm.peers.values()
    receipts, asked = receipts_of(victim), list[PeerId]()
    unheard = sign(receipts._identity, receipts.book.counts[-1], run=swarm.spec.run_id).travelling
    receipts._outbox[unheard] = None
    receipts.for_leader = lambda step: b""  # type: ignore[method-assign]
    receipts._ask_digests = lambda attestation: asked.append(attestation.attester)  # type: ignore[method-assign]
    entries = (Entry(2 * receipts.book.counts[0].step),)
    keys = [bytes.fromhex(peer.network.peer_id) for peer in (third, liar)]
    for word in (unheard, *(Attestation(key, 0, entries, bytes(64)).travelling for key in keys)):
        call = receipts_of(liar)._node.call(victim.network.peer_id, LAST, LastAttestation(word), Taken)
        await liar.network.process.run(call)
    assert unheard in receipts._outbox
    assert asked == [liar.network.peer_id], "what its own word means"
    await swarm.close()


def test_members_that_always_send_an_attestation_keep_nobody_from_being_heard() -> None:
    notes = [
        (peer, JoinNote(None, sign(key, make_count(4, [None])).travelling)) for peer, key in zip(IDS, KEYS, strict=True)
    ]
    heard = {note for step in range(3) for note in passed_on(step, notes)}
    assert heard == {note.attestation for _, note in notes}
    assert len(passed_on(1, notes)) == MAX_PASSED_ON
    in_the_name_of_another = [(IDS[1], notes[0][1]), (IDS[0], JoinNote(None, b"\xff")), notes[2]]
    assert passed_on(5, in_the_name_of_another) == [notes[2][1].attestation]


def test_a_member_that_signs_the_same_counts_again_and_again_takes_no_room() -> None:
    """Each attestation says one thing that is new, and repeats 31 others."""
    book, counts = ReceiptBook(), [make_count(step, [Claim(1, 1, 1, 0)] * 3) for step in range(500)]
    for number, count in enumerate(counts, 1):
        book.add_count(JudgedCount(count, b"", is_witness=True))
        book.add(sign(KEYS[0], *counts[max(0, number - 32) : number]))
        if number % 10 == 0:
            assert book.add(sign(KEYS[1], *counts[number - 10 : number]))
    kept = list(book.attestations(count.place for count in counts))
    assert sum(len(each.entries) for each in kept if each.attester == IDS[0]) <= 2 * (len(counts) + 32)
    assert sum(len(each.entries) for each in kept if each.attester == IDS[1]) == len(counts)


def test_a_step_that_never_comes_keeps_no_attestation_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book_module, "MAX_COUNTS", 5)
    book, counts = ReceiptBook(), [make_count(step, [Claim(1, 1, 1, 0)] * 3) for step in range(20)]
    never = make_count(MAX_STEP, [None, None])
    for count in counts:
        book.add_count(JudgedCount(count, b"", is_witness=True))
        book.add(sign(KEYS[0], count, never))
        assert book.add(sign(KEYS[1], count))
    assert len(book._attestations) == 10
