"""What a member makes of the others' words in a phase."""

from __future__ import annotations

import types
from collections.abc import Callable

import msgspec

from minga.averaging.codecs.layout import VectorLayout
from minga.identity.keys.keys import Identity
from minga.network.interface import PeerId
from minga.security.parts.equal_parts import EqualParts
from minga.security.parts.part_store import PartStore
from minga.security.protocol.attempt_record import AttemptRecord, Terms
from minga.security.protocol.behaviour import Behaviour
from minga.security.protocol.rules import Rules, SecureSettings
from minga.security.protocol.statements import Commit, Phase, Slot, Statement, state
from minga.security.step.attempt import PhaseExchange
from tests.worlds.secure_swarm import RUN_ID
from tests.worlds.swarm_tools import virtually


@virtually
async def test_words_are_understood_by_what_they_say_and_not_by_their_signature() -> None:
    author = Identity.from_seed(bytes(32))
    members = (PeerId(author.peer_id),)
    rules = Rules.of(layout := VectorLayout((10,), "float32"), SecureSettings())
    terms = Terms(RUN_ID, 0, 0, members, frozenset(), EqualParts.equal(layout, 1), rules)
    record = AttemptRecord(terms, PartStore((), ()))
    said = state(author, RUN_ID, Slot(0, 0, Phase.COMMIT), Commit(*[bytes(32)] * 4))
    nonsense = msgspec.structs.replace(said, body=b"nonsense")
    looked_at = list[bool]()

    async def collect(slot: Slot, is_sound: Callable[[Statement], bool], excused: object) -> dict[PeerId, Statement]:
        looked_at.extend((is_sound(nonsense), is_sound(said)))
        return {said.author: said}

    broadcast = types.SimpleNamespace(collect=collect, equivocators=(), voters=members)
    exchange = PhaseExchange(record, types.SimpleNamespace(), broadcast, Behaviour())  # type: ignore[arg-type]
    await exchange.hold(Phase.COMMIT, None)
    assert looked_at == [False, True]
    assert record.commits.keys() == {said.author}
