"""Scenarios whose members check each other: the production path on virtual time, attackers, bans, pictures."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from minga.cli.simulating import step_json, summary_text
from minga.core.errors import ConfigurationError
from minga.simulation.outcome import Outcome, draw
from minga.simulation.runner import Simulation
from minga.simulation.scenario.scenario import Scenario, changed, split_change

SECURE = """
[training]
target_batch_size = 80
[optimizer]
name = "adamw"
learning_rate = 0.003
warmup_steps = 0
schedule = "constant"
[security]
verification = "byzantine"
founders = 5
micro_batch_size = 8
peers_per_validator = 5
[stop]
steps = 4
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


ATTACKED = (
    SECURE
    + """
[[peers]]
name = "evil"
count = 2
samples_per_second = 200
up = "20Mbit"
down = "50Mbit"
session = "1h"
away = "1s"
[[attackers]]
peers = "evil"
count = 2
behaviour = "equivocating-result"
from_step = 2
"""
)
SEVEN = ("security.founders=7", "training.target_batch_size=112")


@pytest.fixture(scope="module")
def attacked() -> Outcome:
    return simulate(ATTACKED, *SEVEN)


def test_attackers_are_honest_at_first_and_then_banned(attacked: Outcome) -> None:
    timeline = attacked.timeline
    assert timeline.attacks == dict.fromkeys(("evil-1", "evil-2"), ("equivocating-result", 2))
    assert {name: (ban.step, ban.reason) for name, ban in timeline.bans.items()} == dict.fromkeys(
        ("evil-1", "evil-2"), (3, "EQUIVOCATED")
    )
    assert [step.members for step in attacked.steps] == [7, 7, 5, 5]
    assert attacked.losses()[-1][1] < attacked.losses()[0][1]
    honest = attacked.steps[1]
    assert (honest.samples, honest.measured) == (112, 7)
    assert sum(honest.mean_phases_s.values()) == pytest.approx(honest.took_s, rel=0.1)
    assert honest.mean_phases_s["compute"] > 0.5  # 16 samples at 8 to 20 a second
    left = [entry for step in attacked.steps for entry in step.incidents if entry["kind"] == "peer.left"]
    # once each: with a key that was banned nobody comes back
    assert sorted((entry["peer"], entry["how"]) for entry in left) == [("evil-1", "banned"), ("evil-2", "banned")]


def test_bans_are_told_and_drawn(attacked: Outcome, tmp_path: Path) -> None:
    summary = attacked.summary()
    assert summary["members"] == 5
    assert summary["attack"] == {
        "behaviours": ["equivocating-result"],
        "from_step": 2,
        "attackers": 2,
        "attackers_banned": 2,
        "honest_banned": 0,
        "bans": summary["attack"]["bans"],
    }
    text = " ".join(summary_text(attacked))
    assert "2 of 7 peers attacked (equivocating-result) from step 3 on; 2 of them were banned, and 0 of" in text
    assert "evil-1 in step 3 (EQUIVOCATED)" in text
    assert step_json(attacked.steps[2])["banned"] == ["evil-1", "evil-2"]
    assert (tmp_path / "attack.png") in draw(attacked, tmp_path)


def test_attackers_with_wrong_labels_are_found() -> None:
    often = ("security.peers_per_validator=2", "attackers.1.behaviour=label-flip", "attackers.1.from_step=1")
    timeline = simulate(ATTACKED, *SEVEN, *often, "stop.steps=5", "seed=2").timeline
    assert timeline.bans  # how many are drawn by then is chance
    assert timeline.bans.keys() <= {"evil-1", "evil-2"}
    assert {ban.reason for ban in timeline.bans.values()} == {"WRONG_GRADIENT"}
    heard = sum(ban.step < 5 for ban in timeline.bans.values())  # of a ban in the last step, if there is time
    assert heard <= timeline.counts.pop("member.failed", 0) <= len(timeline.bans)
    assert not timeline.counts, "nothing else went wrong"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("security.admission=members",), "security.admission"),
        (("model.kind=ghost", "model.parameters=1000"), "model.kind: .* ghost model has none"),
        (("security.founders=8",), "security.founders: 8, and there are only 7"),
        (("peers.home.dialable=0.5",), "number 1: dialable = 0.5: in a byzantine run"),
        (("training.strategy=delayed",), "training.strategy"),
        (("attackers.1.behaviour=false-rates",), "from_step: false-rates begins at once"),
        (("peers.evil.count=6", "attackers.1.count=6"), "attackers: 6 of 11 peers attack"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_key(changes: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        scenario(ATTACKED, *changes)
