"""Secure steps with members that say well-formed nonsense: only those go."""

from __future__ import annotations

import msgspec
import pytest
import torch

from minga.security.protocol.attempt_record import AttemptRecord
from minga.security.protocol.statements import Result
from minga.security.step.member import ExcludedError
from minga.simulation.attacks.gradient_attacks import Attack, LyingProjections
from tests.worlds.secure_swarm import SecureSwarm
from tests.worlds.secure_world import Helpless, NoNumber, Quadratic
from tests.worlds.swarm_tools import virtually


class Huge(Attack):
    """Hands out an aggregate whose distances cannot be told."""

    def value(self, value: torch.Tensor, clip: float, record: AttemptRecord) -> tuple[torch.Tensor, float]:
        return (torch.full_like(value, 3e38) if self.is_on else value), clip


class NoRadius(Attack):
    """Names a radius of clipping that is none."""

    def result(self, result: Result) -> Result | None:
        return msgspec.structs.replace(result, clip=0.0) if self.is_on else result


@pytest.mark.parametrize(
    ("attack", "bans"),
    [
        (NoNumber, {"p3": "UNDELIVERED"}),
        (Huge, {"p3": "UNDELIVERED"}),
        (NoRadius, {"p3": "SILENT"}),
        (Helpless, {}),
        (LyingProjections, {"p3": "FALSE_CLAIMS"}),
    ],
)
def test_nonsense_costs_only_its_author(attack: type[Attack], bans: dict[str, str]) -> None:
    @virtually
    async def run() -> None:
        swarm = SecureSwarm(6, lambda: Quadratic(100), {"p3": lambda allies: attack(2, allies)})
        ends = await swarm.run(6)
        assert isinstance(ends["p3"], ExcludedError)
        for peer in swarm.honest:
            assert ends[peer.name] is None
            assert swarm.bans(peer) == bans
            assert len(peer.member.membership.members) == 5

    run()


def test_a_step_in_which_no_gradient_is_finite_does_not_stop_those_after_it() -> None:
    class Undefined(Quadratic):
        """The loss of everybody is not finite in the first steps: their gradients count as nothing."""

        async def gradient(self, step: int, seed: bytes) -> torch.Tensor:
            return (await super().gradient(step, seed)) * (step > 1)

    @virtually
    async def run() -> None:
        swarm = SecureSwarm(4, lambda: Undefined(100))
        ends = await swarm.run(6)
        assert set(ends.values()) == {None}
        for peer in swarm.honest:
            assert isinstance(peer.work, Quadratic)
            assert peer.work.loss < 0.4
            assert not swarm.bans(peer)

    run()
