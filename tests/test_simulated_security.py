"""Scenarios whose members check each other: the production path on virtual time, attackers, bans, pictures."""

from __future__ import annotations

import tomllib

import pytest
from swarm_tools import virtually

from minga.core._errors import ConfigurationError
from minga.core._run_spec import RunSpec
from minga.simulation._changes import changed, split_change
from minga.simulation._outcome import Outcome
from minga.simulation._runner import Simulation
from minga.simulation._scenario import Scenario
from minga.simulation._swarm import Swarm

SECURE = """
[training]
target_batch_size = 80
[optimizer]
name = "adamw"
learning_rate = 0.003
warmup_steps = 0
schedule = "constant"
[security]
mode = "byzantine"
founders = 5
micro_batch_size = 8
peers_per_validator = 5
[stop]
steps = 6
[[peers]]
name = "home"
count = 5
samples_per_second = "uniform 8 20"
up = "20Mbit"
down = "50Mbit"
"""


def scenario(text: str = SECURE, *changes: str) -> Scenario:
    return Scenario.from_mapping(changed(tomllib.loads(text), [split_change(each, "--set") for each in changes]))


def simulate(text: str = SECURE, *changes: str) -> Outcome:
    return Simulation(scenario(text, *changes)).run()


def test_honest_members_train_and_ban_nobody() -> None:
    outcome = simulate()
    assert (outcome.ended_by, outcome.summary()["steps"]) == ("steps", 6)
    assert outcome.losses()[-1][1] < outcome.losses()[0][1]
    assert not outcome.ledger.counts
    for step in outcome.steps[1:]:
        assert (step.members, step.samples, step.measured) == (5, 80, 5)
        assert sum(step.mean_phases_s.values()) == pytest.approx(step.took_s, rel=0.1)
    computed_s = outcome.steps[-1].mean_phases_s["compute"]
    assert computed_s > 0.5  # 16 samples at 8 to 20 a second


@virtually
async def test_all_members_end_in_the_same_state() -> None:
    security = {"mode": "byzantine", "founders": 3, "micro_batch_size": 4, "peers_per_validator": 2}
    training = {"target_batch_size": 12, "stop_after_steps": 4}
    swarm = Swarm(
        RunSpec.from_mapping(
            {"name": "swarm", "model": {"recipe": "custom"}, "training": training, "security": security}
        )
    )
    peers = [swarm.add() for _ in range(3)]
    begun = peers[0].replica.digest()
    for peer in peers:
        await peer.ended.wait()
    assert [(peer.error, peer.replica.step) for peer in peers] == [(None, 4)] * 3
    digests = set(swarm.digests().values())
    assert len(digests) == 1
    assert digests != {begun}
    await swarm.close()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("security.mode=members",), "security.mode"),
        (("model.kind=ghost", "model.parameters=1000"), "model.kind: .* ghost model has none"),
        (("security.founders=6",), "security.founders: 6, and there are only 5"),
        (("peers.home.dialable=0.5",), "number 1: dialable = 0.5: in a byzantine run"),
        (("training.strategy=delayed",), "training.strategy"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_key(changes: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        scenario(SECURE, *changes)
