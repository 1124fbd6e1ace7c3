"""Secure steps in virtual time: honest members agree, and whoever does something else goes."""

from __future__ import annotations

import pytest
import torch

from minga.security.protocol.behaviour import MakeBehaviour
from minga.security.step.member import BannedError, ExcludedError
from minga.simulation.attacks.gradient_attacks import SignFlip
from minga.simulation.attacks.protocol_attacks import LyingJudge
from tests.worlds.secure_swarm import SecureSwarm
from tests.worlds.secure_world import Quadratic
from tests.worlds.swarm_tools import virtually

pytestmark = pytest.mark.promise("when-members-are-hostile")


async def played(count: int, steps: int, hostile: dict[str, MakeBehaviour] | None = None) -> SecureSwarm:
    """A swarm that took so many steps, in which all honest members ended in the same state and with the same bans."""
    swarm = SecureSwarm(count, lambda: Quadratic(100), hostile)
    ends = await swarm.run(steps)
    assert {type(end) for end in ends.values()} <= {type(None), BannedError, ExcludedError}
    first = swarm.honest[0]
    for peer in swarm.honest:
        assert ends[peer.name] is None
        assert isinstance(peer.work, Quadratic)
        assert isinstance(first.work, Quadratic)
        assert torch.equal(peer.work.parameters[steps], first.work.parameters[steps])
        assert swarm.bans(peer) == swarm.bans(first)
    return swarm


@virtually
async def test_honest_members_take_the_same_steps_and_ban_nobody() -> None:
    swarm = await played(4, 12)
    assert not swarm.bans(swarm.honest[0])
    work = swarm.honest[0].work
    assert isinstance(work, Quadratic)
    assert work.loss < 0.1


@virtually
async def test_lying_judges_in_the_minority_change_nothing() -> None:
    hostile: dict[str, MakeBehaviour] = {
        "p3": lambda allies: SignFlip(2, allies),
        "p5": lambda allies: LyingJudge(2, allies),
        "p6": lambda allies: LyingJudge(2, allies),
    }
    swarm = await played(7, 14, hostile)
    assert swarm.bans(swarm.honest[0]) == {"p3": "WRONG_GRADIENT"}
