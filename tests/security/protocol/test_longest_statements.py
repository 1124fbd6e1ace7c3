"""What honest members say can be said and had, however much hostile members give them to say."""

from __future__ import annotations

import msgspec
import pytest

from minga.core.events.bus import Event
from minga.identity.keys.keys import Identity
from minga.network.gossip import records
from minga.network.interface import PeerId
from minga.network.rpc.stream import MessageStream
from minga.security.accountability import evidence
from minga.security.accountability.rulings import hidden_parts
from minga.security.messaging.spread import ASK, MAX_ANSWER_BYTES, AskStatements, FoundStatements, StatementGossip
from minga.security.protocol import members, protocol_state, rules, statements
from minga.security.protocol.members import MAX_CHARGES
from minga.security.protocol.statements import (
    MAX_ACCUSATIONS,
    MAX_CANDIDATES,
    MAX_MEMBERS,
    Accusation,
    Charge,
    Claims,
    Commit,
    Confirm,
    Heard,
    Judgement,
    Phase,
    Result,
    Revealed,
    Slot,
    read,
    state,
)
from minga.security.randomness.coin import Reveal
from minga.security.verification.claims import PartClaim
from minga.security.verification.count_sketch import DEFAULT_DIRECTIONS
from tests.worlds.node_world import RUN_ID, World
from tests.worlds.swarm_tools import virtually

DIGEST = bytes(range(32))
RANKS = tuple(range(MAX_MEMBERS))
PEERS = tuple(f"{rank:064x}" for rank in RANKS)
HOSTILE = PEERS[: (MAX_MEMBERS - 1) // 2]
CANDIDATES = tuple(f"{rank:064x}" for rank in range(MAX_MEMBERS, MAX_MEMBERS + 2 * MAX_CANDIDATES))
ACCUSATION = Accusation(1 << 48, PEERS[-1], Charge.CLAIMS, MAX_MEMBERS - 1)
EVERY_PAIR = [(part, owner) for part in RANKS for owner in RANKS]

LONGEST = {
    Phase.COMMIT: Commit(
        DIGEST,
        DIGEST,
        DIGEST,
        DIGEST,
        (ACCUSATION,) * MAX_ACCUSATIONS,
        tuple(Judgement(peer, ACCUSATION, guilty=True) for peer in PEERS[:MAX_CHARGES]),
        (*CANDIDATES[:MAX_CANDIDATES], *HOSTILE),
        tuple((peer, DIGEST) for peer in CANDIDATES),
        HOSTILE,
    ),
    Phase.RESULT: Result(DIGEST, 1e30 / 3, DIGEST, DIGEST, RANKS),
    Phase.REVEAL: Revealed(Reveal(DIGEST, DIGEST), DIGEST, (RANKS[-1], RANKS[-1])),
    Phase.CLAIMS: Claims((PartClaim((1.0 / 3,) * DEFAULT_DIRECTIONS, 1.0 / 3),) * MAX_MEMBERS, DIGEST, RANKS),
    Phase.CONFIRM: Confirm.of(DIGEST, EVERY_PAIR),
    Phase.COMMIT_VOTE: Heard(tuple((rank, DIGEST) for rank in RANKS)),
}


@pytest.mark.parametrize("phase", LONGEST, ids=lambda phase: phase.name)
def test_the_longest_that_an_honest_member_has_to_say_can_be_read(phase: Phase) -> None:
    body: msgspec.Struct = LONGEST[phase]
    statement = state(Identity.from_seed(bytes(32)), RUN_ID, Slot(1 << 48, 255, phase), body)
    assert read(msgspec.msgpack.decode(msgspec.msgpack.encode(statement), type=type(statement)), type(body)) == body


def test_of_any_number_of_parts_that_most_lack_all_are_counted() -> None:
    members = PEERS[:5]
    lacking = {peer: EVERY_PAIR if rank < 3 else EVERY_PAIR[:7] for rank, peer in enumerate(members)}
    confirms = {peer: Confirm.of(DIGEST, pairs) for peer, pairs in lacking.items()}
    assert hidden_parts(members, confirms) == EVERY_PAIR  # type: ignore[arg-type]


@virtually
async def test_who_lacks_more_statements_than_fit_into_an_answer_gets_them_all_at_once() -> None:
    world = World()
    slot, authors = Slot(0, 0, Phase.COMMIT), [Identity.from_seed(bytes([number]) * 32) for number in range(1, 31)]
    nodes = [await world.node() for _ in range(2)]
    having, lacking = (
        StatementGossip(node, Identity.from_seed(bytes(32)), lambda _: True, lambda *_: True, lambda _: True)
        for node in nodes
    )
    for author in authors:
        having.slots.put(state(author, RUN_ID, slot, LONGEST[Phase.COMMIT]))
    assert sum(len(said.body) for said in having.slots.of(slot).values()) > MAX_ANSWER_BYTES
    await lacking.pull(slot, having.slots.of(slot), [nodes[0].peer_id])
    assert lacking.slots.of(slot) == having.slots.of(slot)
    for node in nodes:
        await node.close()


@virtually
async def test_who_answers_with_the_statements_of_others_than_was_asked_for_is_to_blame() -> None:
    world, slot = World(), Slot(0, 0, Phase.REVEAL)
    liar, asker = [await world.node() for _ in range(2)]
    unasked, wanted = (state(Identity.from_seed(bytes([n]) * 32), RUN_ID, slot, LONGEST[Phase.REVEAL]) for n in (1, 2))

    async def answer(peer: PeerId, stream: MessageStream) -> None:
        await stream.receive(AskStatements)
        await stream.send(FoundStatements((unasked,)))

    liar.serve(ASK, answer)
    heard = list[Event]()
    asker.events.subscribe(heard.append)
    gossip = StatementGossip(asker, Identity.from_seed(bytes(32)), lambda _: True, lambda *_: True, lambda _: True)
    await gossip.pull(slot, [PeerId(wanted.author)], [liar.peer_id])
    assert not gossip.slots.of(slot)
    assert [event.fields["peer"] for event in heard if event.kind == "peer.offence"] == [liar.peer_id]
    for node in (liar, asker):
        await node.close()


def test_what_is_signed_or_hashed_as_a_whole_takes_no_unknown_field() -> None:
    """Two texts would be one statement otherwise; see CONTRIBUTING on what may change on the wire."""
    signed = [
        each
        for module in (records, statements, evidence, members, protocol_state, rules)
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, msgspec.Struct) and each.__module__ == module.__name__
    ]
    assert len(signed) >= 24
    for each in signed:
        assert each.__struct_config__.forbid_unknown_fields, each
        assert each.__struct_config__.frozen, each
