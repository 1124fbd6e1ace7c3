"""A word that reaches half of the members in the last moment parts them; they come together again, even at the end.

Of four members those whom it did not reach go on without its author, and soon without the one that heard it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from minga.core.errors import RejectedError
from minga.core.refusal_code import RefusalCode
from minga.identity.keys.keys import Identity
from minga.network.interface import PeerId
from minga.network.rpc.stream import MessageStream
from minga.security.messaging.spread import ASK, TELL
from minga.security.protocol.behaviour import Behaviour
from minga.security.protocol.rules import SecureSettings
from minga.security.protocol.statements import Body, Phase, Slot, Told, state
from tests.worlds.secure_swarm import RUN_ID, SecurePeer, SecureSwarm
from tests.worlds.secure_world import Quadratic
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import later, virtually

LATE_S = 5.06
"""After two members gave up waiting, and before their votes arrive at the one that waits longer."""
LONGER_S = 1.0


class LateOnce(Behaviour):
    """Tells its word of one phase so late; `peer` is set when it exists."""

    peer: SecurePeer

    def __init__(self, step: int, phase: Phase) -> None:
        self._step, self._phase = step, phase

    def tells(self, slot: Slot, body: Body, everybody: Sequence[PeerId]) -> Sequence[tuple[Body, Sequence[PeerId]]]:
        if slot != Slot(self._step, 0, self._phase):
            return [(body, everybody)]
        gossip, node = self.peer.member._gossip, self.peer.node
        word = state(Identity.from_seed(self.peer.network.private_key), RUN_ID, slot, body)
        gossip.slots.put(word)
        until_s = asyncio.get_running_loop().time() + LATE_S

        async def answer(peer: PeerId, stream: MessageStream) -> None:
            if asyncio.get_running_loop().time() < until_s:
                raise RejectedError("not yet", code=RefusalCode.ABSENT)
            await gossip._serve_ask(peer, stream)

        node.serve(ASK, answer)
        later(LATE_S, lambda: gossip._spread(TELL, Told.of(word), everybody))
        return []


def part(step: int, phase: Phase, compute_s: float = 0.0) -> SecureSwarm:
    """Four members, of whom p0 and p3 hear p3 in that phase, and p1 and p2 do not."""
    late, usual = LateOnce(step, phase), SecureSettings()
    swarm = SecureSwarm(4, lambda: Quadratic(70, compute_s=compute_s), {"p3": lambda _: late}, returns=True)
    late.peer = swarm.peers["p3"]
    longer = replace(usual.patience, slack_s=usual.patience.slack_s + LONGER_S)
    swarm.peers["p0"].member._settings = replace(usual, patience=longer)
    return swarm


async def end_alike(swarm: SecureSwarm, steps: int) -> None:
    ends = await swarm.run(steps)
    assert set(ends.values()) == {None}
    works = [peer.work for peer in swarm.peers.values()]
    for work in works:
        assert isinstance(work, Quadratic)
        assert isinstance(works[0], Quadratic)
        assert torch.equal(work.parameters[steps], works[0].parameters[steps])


@pytest.mark.parametrize("phase", [soaked(Phase.COMMIT), Phase.CLAIMS])
@virtually
async def test_the_half_that_waits_in_vain_follows_the_other_one_soon(phase: Phase) -> None:
    await end_alike(part(2, phase, compute_s=2.0), 20)
    assert asyncio.get_running_loop().time() < 150


@pytest.mark.parametrize("phase", [Phase.COMMIT, soaked(Phase.RESULT), Phase.REVEAL, Phase.CLAIMS])
@virtually
async def test_halves_that_the_last_step_parts_end_in_one_state(phase: Phase) -> None:
    """One half waits in vain for the step, or, where the claims part them, has applied what the other one dropped: no
    commitment follows that would show it.
    """
    swarm = part(4, phase)
    await end_alike(swarm, 5)
    assert asyncio.get_running_loop().time() < 200
    if phase is Phase.CLAIMS:
        assert swarm.bans(swarm.peers["p0"]) == {"p3": "SILENT"}
        assert [len(peer.member.membership.members) for peer in swarm.peers.values()] == [2] * 4


class Miscounting(Quadratic):
    """Takes one step wrongly, by an error of its machine."""

    async def apply(self, step: int, mean: torch.Tensor) -> None:
        await super().apply(step, mean + 1.0 if step == 4 else mean)


@virtually
async def test_who_comes_to_another_state_by_the_last_step_takes_that_of_most() -> None:
    works = iter([Quadratic, Quadratic, Miscounting, Quadratic])
    swarm = SecureSwarm(4, lambda: next(works)(70), returns=True)
    await end_alike(swarm, 5)
    assert {peer.member.membership.members for peer in swarm.peers.values()} == {swarm.founders}
