"""A failure that can be an accident suspends, each time for longer; a proven lie bans for ever."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from minga.network.interface import PeerId
from minga.security.accountability.log import EvidenceLog, MembershipChanges
from minga.security.protocol.members import (
    FIRST_SUSPENSION_STEPS,
    FORMER_SHARE,
    LAPSES,
    MAX_BANS,
    Members,
    Reason,
    probation_of,
)
from minga.security.protocol.protocol_state import ProtocolState, StepProgress
from minga.security.protocol.rules import SecureSettings
from minga.security.protocol.statements import Body, Phase, Slot
from minga.security.step.member import ExcludedError
from minga.simulation.attacks.gradient_attacks import SignFlip
from tests.worlds.secure_swarm import RUN_ID, SecureSwarm, verify_log
from tests.worlds.secure_world import Quadratic
from tests.worlds.swarm_tools import virtually

PEERS = [PeerId(f"{number:064x}") for number in range(4)]


@pytest.mark.parametrize("reason", sorted(LAPSES))
def test_each_lapse_suspends_for_twice_as_long_and_lengthens_the_probation(reason: Reason) -> None:
    members, step = Members(PEERS), 100
    for count in range(1, 5):
        members.ban(PEERS[1], step, reason)
        assert PEERS[1] not in members
        until = step + FIRST_SUSPENSION_STEPS * 2 ** (count - 1)
        assert members.bans[PEERS[1]].until == until
        assert members.is_barred(PEERS[1], until - 1)
        assert not members.is_barred(PEERS[1], until)
        assert probation_of(PEERS[1], members, 30) == 30 // FORMER_SHARE * 2 ** (count - 1)
        members.admit(PEERS[1])
        assert PEERS[1] in members
        step = until
    assert probation_of(PEERS[0], members, 30) == 30


def test_a_proven_lie_bans_for_ever_also_a_suspended_peer() -> None:
    members = Members(PEERS)
    members.ban(PEERS[1], 5, Reason.SILENT)
    members.ban(PEERS[1], 6, Reason.WRONG_GRADIENT)
    assert members.bans[PEERS[1]].until is None
    members.ban(PEERS[1], 7, Reason.SILENT)
    assert members.bans[PEERS[1]].reason is Reason.WRONG_GRADIENT
    assert members.is_barred(PEERS[1], 1 << 40)


def test_silence_does_not_spare_a_liar_its_ban() -> None:
    progress, told = StepProgress(ProtocolState.first("run", PEERS)), list[str]()
    events = SimpleNamespace(emit=lambda data: told.append(data.why))
    node = cast(Any, SimpleNamespace(events=events, run_id="run", peer_id=PEERS[0]))
    changes = MembershipChanges(node, cast(Any, None), progress, EvidenceLog())
    assert changes.leave_out({PEERS[1]: Reason.SILENT})
    assert not changes.leave_out({PEERS[1]: Reason.UNDELIVERED})  # it is suspended already
    assert changes.leave_out({PEERS[1]: Reason.WRONG_GRADIENT})
    assert not changes.leave_out({PEERS[1]: Reason.EQUIVOCATED})  # it is banned already
    assert told == [
        Reason.SILENT.words + f"; suspended until step {FIRST_SUSPENSION_STEPS}",
        Reason.WRONG_GRADIENT.words,
    ]
    assert progress.membership.bans[PEERS[1]].until is None


@virtually
async def test_absence_does_not_spare_a_liar_its_ban() -> None:
    class Away(SignFlip):
        """Goes away, without blame, as soon as a validator is to look into what it sent."""

        scale = 1.0

        def tells(self, slot: Slot, body: Body, everybody: Sequence[PeerId]) -> Sequence[tuple[Body, Sequence[PeerId]]]:
            is_drawn = self.me in swarm.peers["p3"].member._register.draw().values()
            return [] if slot.phase is Phase.COMMIT and slot.step > self.from_step and is_drawn else [(body, everybody)]

    settings = SecureSettings(peers_per_validator=3)
    swarm = SecureSwarm(7, lambda: Quadratic(70), {"p3": lambda allies: Away(2, allies)}, settings=settings)
    ends = await swarm.run(8)
    assert isinstance(ends["p3"], ExcludedError)
    for peer in swarm.honest:
        assert swarm.bans(peer) == {"p3": "WRONG_GRADIENT"}
        assert verify_log(RUN_ID, swarm.names, peer.member.evidence.entries).members == peer.member.membership.members


def test_newcomers_learn_of_suspensions_and_all_agree_upon_them() -> None:
    progress = StepProgress(ProtocolState.first("run", PEERS))
    digests = {progress.standing.digest}
    for count in (1, 2):
        progress.membership.ban(PEERS[2], 3, Reason.SILENT)
        standing = progress.standing
        standing.check()
        digests.add(standing.digest)
        assert standing.membership.bans == progress.membership.bans
        assert standing.membership.lapses(PEERS[2]) == count
        progress.membership.admit(PEERS[2])
    assert len(digests) == 3
    state = progress.standing
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=ProtocolState) == state
    for reason, lapses in ((0, 1), (99, 1), ("SILENT", 1), (1, 0), (1, -1), (1, 1 << 40), (1, 1.5)):
        bad = msgspec.structs.replace(state, bans=((PEERS[2], 3, reason, lapses),))
        with pytest.raises(msgspec.ValidationError, match=r"\$\[4\]"):
            msgspec.msgpack.decode(msgspec.msgpack.encode(bad), type=ProtocolState)


def test_memory_of_bans_is_bounded() -> None:
    members = Members(PEERS)
    for number in range(MAX_BANS + 10):
        members.ban(PeerId(f"{number:064x}"), 1, Reason.SILENT)
    assert len(members.bans) == MAX_BANS
