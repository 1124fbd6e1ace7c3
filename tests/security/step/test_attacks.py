"""The attack lab: who goes, and why; honest members stay, and end in equal states."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from benchmarks._attack_virtual import Digits, Extent, hostile_names, run_plainly, run_swarm
from benchmarks.attacks import aggregation
from minga.security.protocol.behaviour import TrainingBackend
from minga.security.protocol.rules import SecureSettings
from minga.security.step.member import BannedError, ExcludedError
from minga.simulation.attacks.interface import attack as attack_of
from minga.simulation.attacks.interface import attacks
from tests.worlds.secure_swarm import SecureSwarm
from tests.worlds.secure_world import OtherDevice, Quadratic, hide_parts
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import virtually

pytestmark = pytest.mark.promise("when-members-are-hostile")

HOSTILE = ("p1", "p3", "p5")


class Flippable(Quadratic):
    """Work whose wrong labels pull the other way, and which remembers the longest step."""

    longest = 0.0

    async def apply(self, step: int, mean: torch.Tensor) -> None:
        self.longest = max(self.longest, float(mean.norm()))
        await super().apply(step, mean)

    async def flipped_gradient(self, step: int, seed: bytes) -> torch.Tensor:
        return 2 - await self.gradient(step, seed)


@pytest.fixture(scope="module")
def digits() -> Digits:
    return Digits(0)


async def end_alike(swarm: SecureSwarm, steps: int) -> None:
    """Take so many steps; all honest members come to the same end, and ban no other honest one."""
    ends = await swarm.run(steps)
    assert {type(end) for end in ends.values()} <= {type(None), ExcludedError, BannedError}
    assert all(ends[peer.name] is None for peer in swarm.honest)
    assert len({await peer.work.digest() for peer in swarm.honest}) == 1
    assert len({peer.member._progress.standing.digest for peer in swarm.honest}) == 1
    assert swarm.bans(swarm.honest[0]).keys() <= swarm.peers.keys() - {peer.name for peer in swarm.honest}


async def fight(
    attack: str,
    count: int,
    hostile: tuple[str, ...],
    steps: int,
    seed: int = 0,
    *,
    hides: bool = False,
    make_work: Callable[[], TrainingBackend] = lambda: Flippable(100),
) -> SecureSwarm:
    """A swarm that went through an attack, in which all honest members came to the same end; who `hides` shows nobody
    what it is asked for.
    """
    swarm = SecureSwarm(count, make_work, dict.fromkeys(hostile, attack_of(attack).begin(2)), seed=seed)
    for name in hostile if hides else ():
        hide_parts(swarm.peers[name])
    await end_alike(swarm, steps)
    return swarm


AT_ONCE = {
    "far-covered-aggregate": {"WRONG_AGGREGATE", "FALSE_CLAIMS"},
    "equivocating-commit": {"EQUIVOCATED"},
    "equivocating-claims": {"EQUIVOCATED"},
    "divisive-proof": {"EQUIVOCATED"},
    "false-complaints": {"UNDELIVERED"},
    "slander": {"FALSE_ACCUSATION"},
}
"""Attacks that nobody has to draw a lot to see, and the reasons of the bans. In `accountability/test_evidence.py` one
attacker plays more of them.
"""


@pytest.mark.parametrize(("attack", "reasons"), AT_ONCE.items())
@virtually
async def test_attackers_who_show_themselves_are_gone_within_few_steps(attack: str, reasons: set[str]) -> None:
    hostile = HOSTILE[:2]
    swarm = await fight(attack, 5, hostile, 4, seed=2)  # with which the lots fall on both who slander
    bans = swarm.bans(swarm.honest[0])
    assert bans.keys() == set(hostile)
    assert set(bans.values()) <= reasons


@virtually
async def test_who_complains_of_half_of_the_members_costs_one_other_its_place() -> None:
    swarm = SecureSwarm(9, lambda: Quadratic(60), dict.fromkeys(HOSTILE, attack_of("moderate-complaints").begin(2)))
    ends = await swarm.run(5)
    left = [peer for peer in swarm.honest if ends[peer.name] is None]
    assert len(left) == 3
    bans = swarm.bans(left[0])
    assert set(HOSTILE) < bans.keys()
    assert list(bans.values()) == ["UNDELIVERED"] * 6
    assert all(swarm.bans(peer) == bans for peer in left)


WRONG = [name for name in attacks() if attack_of(name).changes == "gradient"]


@pytest.mark.parametrize("attack", [name if name == "own-parts" else soaked(name) for name in WRONG])
def test_validators_find_all_who_send_wrong_gradients(attack: str) -> None:
    """Also when half of those who contribute are hostile, because the validator of the step is honest; and though
    neither senders nor aggregators show anybody the parts in which they lie: who does not where a radius raised a doubt
    goes for that.

    With this seed the lots fall on all three within eight steps. To those who compute again the others are gradients as
    wrong as any; `simulation/test_simulated_security.py` has some of them in whole swarms.
    """
    hides = attack == "own-parts"

    @virtually
    async def run() -> None:
        swarm = await fight(attack, 7, HOSTILE, 9, seed=4, hides=hides)
        bans = swarm.bans(swarm.honest[0])
        assert bans.keys() == set(HOSTILE)
        assert set(bans.values()) <= {"WRONG_GRADIENT", *(["UNDELIVERED"] if hides else [])}

    run()


@virtually
async def test_an_aggregator_whose_ally_covers_its_shift_falls_with_it() -> None:
    """Also where nobody's gradient is that of another to the last bit."""
    devices = itertools.count()
    swarm = await fight("covered-aggregate", 8, HOSTILE, 8, make_work=lambda: OtherDevice(100, devices))
    bans = swarm.bans(swarm.honest[0])
    assert len(bans) >= 2  # the last one has nobody left to cover it
    assert "FALSE_CLAIMS" in bans.values()


@virtually
async def test_who_does_not_commit_itself_leaves_without_blame() -> None:
    swarm = await fight("silent-commit", 5, HOSTILE[:2], 4)
    assert not swarm.bans(swarm.honest[0])
    assert len(swarm.honest[0].member.membership.members) == 3


@virtually
async def test_lying_judges_in_the_minority_change_nothing() -> None:
    judges = dict.fromkeys(("p5", "p6"), attack_of("lying-judge").begin(2))
    swarm = SecureSwarm(7, lambda: Flippable(100), {"p3": attack_of("sign-flip").begin(2), **judges})
    await end_alike(swarm, 6)
    assert swarm.bans(swarm.honest[0]) == {"p3": "WRONG_GRADIENT"}


@pytest.mark.parametrize("attack", [name for name in attacks() if attack_of(name).changes != "protocol"])
def test_each_attack_can_be_tried_on_a_plain_mean(digits: Digits, attack: str) -> None:
    told = run_plainly(digits, attack_of(attack), Extent(peers=6, hostile=2, steps=3, attack_from=1))
    assert len(told.accuracies) == 4


@pytest.mark.parametrize(
    "attack",
    [
        name if name == "withholding-sybil" else soaked(name)
        for name in attacks()
        if attack_of(name).who_comes != "nobody"
    ],
)
def test_attacks_where_somebody_comes_later_harm_nobody(digits: Digits, attack: str) -> None:
    """`rechecking/test_candidates.py` plays the others."""
    told = run_swarm(digits, attack_of(attack), Extent(peers=6, hostile=2, steps=12, attack_from=2))
    assert told.all_equal
    assert told.stayed == (set() if attack_of(attack).who_comes == "attackers" else {*hostile_names(Extent(6, 2))})


def test_the_plain_mean_falls_where_another_one_stands(digits: Digits) -> None:
    extent = Extent(peers=8, hostile=3, steps=50, attack_from=10)
    mean, trimmed = (
        run_plainly(digits, attack_of("sign-flip"), extent, aggregation(kind)).metric
        for kind in ("mean", "trimmed_mean")
    )
    assert mean < 0.3
    assert trimmed > 0.6


@virtually
async def test_a_step_in_which_most_contributors_are_hostile_goes_no_farther_than_a_few_others() -> None:
    make, settings = attack_of("random-direction").begin(4), SecureSettings(peers_per_validator=2)
    swarm = SecureSwarm(7, lambda: Flippable(100), dict.fromkeys(HOSTILE, make), settings=settings, seed=4)
    await swarm.run(8)  # by then the first of them is found, and no later step goes farther
    work = swarm.honest[0].work
    assert isinstance(work, Flippable)
    assert set(swarm.bans(swarm.honest[0]).values()) == {"WRONG_GRADIENT"}
    assert work.longest < 10 * torch.ones(100).norm()
