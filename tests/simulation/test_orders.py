"""Organisers act in a scenario: orders, bans, a machine that burns, a backup; one history comes of it."""

from __future__ import annotations

import itertools
import json
import tomllib
from pathlib import Path

import pytest

from minga.core.errors import ConfigurationError
from minga.simulation import Outcome, Scenario, Simulation
from minga.simulation.lifecycle import population
from minga.simulation.scenario.scenario import read_scenario

SHORT = """
name = "short"
[training]
target_batch_size = 24
[optimizer]
name = "adamw"
learning_rate = 0.003
warmup_steps = 0
[stop]
time = "60s"
[[peers]]
name = "organiser"
role = "auxiliary"
[[peers]]
name = "home"
count = 4
samples_per_second = 8
arrival = "1s"
[faults]
script = "kill organiser-1 at 14s"
[[orders]]
at = "5s"
order = "amend"
changes = { "optimizer.learning_rate" = 0.001 }
[[orders]]
at = "7s"
order = "backup"
peer = "organiser-1"
[[orders]]
at = "8s"
order = "ban"
peer = "home-4"
lasts = "5s"
[[orders]]
at = "10s"
order = "pause"
[[orders]]
at = "16s"
order = "resume"
[[orders]]
at = "16s"
order = "amend"
changes = { "training.target_batch_size" = 32 }
[[orders]]
at = "19s"
order = "restore"
peer = "organiser-1"
[[orders]]
at = "26s"
order = "stop"
"""


def check(outcome: Outcome, orders: dict[str, int], least_peers: int) -> None:
    """One history: equal states, all orders known, each step taken once, and the end where the organisers said."""
    summary = outcome.summary()
    assert summary["ended_by"] == "stopped"
    assert summary["orders"] == orders
    assert "order.failed" not in summary["incidents"]
    agreement = outcome.agreement
    assert agreement is not None
    assert (agreement.states, agreement.has_same_orders, agreement.has_all_steps) == (1, True, True)
    assert agreement.peers >= least_peers


def test_orders_bans_and_a_restored_organiser_leave_one_history() -> None:
    scenario = Scenario.from_mapping(tomllib.loads(SHORT))
    outcome = Simulation(scenario).run()
    check(outcome, {"amend": 2, "backup": 1, "ban": 1, "pause": 1, "resume": 1, "restore": 1, "stop": 1}, 4)
    times = [step.applied_s for step in outcome.steps]
    assert max(late - early for early, late in itertools.pairwise(times)) > 2.0, "the run was paused"


@pytest.mark.soak
def test_a_month() -> None:
    outcome = Simulation(Scenario.from_mapping(read_scenario("month"))).run()
    check(outcome, {"amend": 3, "backup": 1, "ban": 2, "pause": 1, "resume": 1, "restore": 1, "stop": 1}, 4)
    assert outcome.timeline.last_step > 40


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('order = "amend"', "amend, and only it, needs changes"),
        ('order = "pause"\nchanges = { "training.target_batch_size" = 4 }', "amend, and only it, needs changes"),
        ('order = "amend"\nchanges = { "averaging.codec" = "int8" }', "averaging.codec cannot change"),
        ('order = "ban"', "peer belongs to ban, backup and restore"),
        ('order = "stop"\npeer = "home-1"', "peer belongs to ban, backup and restore"),
        ('order = "ban"\npeer = "home-9"', "peer: 'home-9'"),
        ('order = "stop"\nlasts = "3s"', "lasts belongs to ban"),
    ],
)
def test_wrong_orders_are_named(text: str, message: str) -> None:
    peers = '[[peers]]\nname = "home"\ncount = 2\nsamples_per_second = 1\n'
    with pytest.raises(ConfigurationError) as caught:
        Scenario.from_mapping(tomllib.loads(f'{peers}[[orders]]\nat = "3s"\n{text}'))
    assert message in str(caught.value)


BACK = (("3s", "backup"), ("6s", "restore"))
MOVES = ("peer.arrived", "peer.left")
HOME = """
[model]
kind = "ghost"
parameters = 1000
[training]
target_batch_size = 64
[[peers]]
name = "home"
count = 2
samples_per_second = 20
"""


@pytest.mark.parametrize(
    ("stop", "peers", "order"),
    [
        ('steps = 6\ntime = "20s"', "", 'at = "0s"\norder = "stop"'),
        ('time = "9s"', 'session = "3s"\naway = "3s"', 'at = "4s"\norder = "pause"'),
        ('time = "5s"', "", 'at = "3s"\norder = "restore"\npeer = "home-1"'),
    ],
    ids=["a stop that fails", "nobody is there", "a restore without a backup"],
)
def test_an_order_that_failed_is_told_and_does_nothing(stop: str, peers: str, order: str) -> None:
    text = f"{HOME}{peers}\n[stop]\n{stop}\n[[orders]]\n{order}\n"
    summary = Simulation(Scenario.from_mapping(tomllib.loads(text))).run().summary()
    assert summary["incidents"]["order.failed"] == 1
    assert summary["ended_by"] != "stopped"


@pytest.mark.parametrize("away", ["", 'session = "1h"\naway = "3s"'], ids=["for good", "would come back"])
def test_a_restored_peer_stays_and_its_end_is_told(away: str, tmp_path: Path) -> None:
    """Also of a class whose peers come back by themselves: its life goes on from the backup, and only there."""
    orders = "".join(f'[[orders]]\nat = "{at}"\norder = "{order}"\npeer = "host-1"\n' for at, order in BACK)
    faults = '[faults]\nscript = """\nkill host-1 at 4s\nkill host-1 at 9s\n"""\n'
    host = f'[[peers]]\nname = "host"\nsamples_per_second = 20\n{away}\n[stop]\ntime = "14s"\n'
    log = tmp_path / "log.jsonl"
    Simulation(Scenario.from_mapping(tomllib.loads(HOME + host + orders + faults)), log).run()
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    moves = [
        (round(each["t"]), each["kind"]) for each in entries if each.get("peer") == "host-1" and each["kind"] in MOVES
    ]
    assert moves == [(0, MOVES[0]), (4, MOVES[1]), (6, MOVES[0]), (9, MOVES[1])]


def test_sessions_begin_a_day_apart() -> None:
    peers = (
        '[[peers]]\nname = "home"\nsamples_per_second = 1\narrival = "18h"\nsession = "uniform 2h 5h"\nevery = "24h"\n'
    )
    (peer,) = population(Scenario.from_mapping(tomllib.loads(peers)))
    stays, begun_s = peer.stays(), 0.0
    for day in range(5):
        stay = next(stays)
        begun_s += stay.after_s
        assert begun_s == pytest.approx((24 * day + 18) * 3600.0)
        begun_s += stay.for_s or 0.0
    with pytest.raises(ConfigurationError, match="both say when"):
        Scenario.from_mapping(tomllib.loads(peers + 'away = "1h"\n'))


def test_a_session_that_a_fault_ends_moves_no_later_one() -> None:
    daily = '[[peers]]\nname = "daily"\nsamples_per_second = 20\nsession = "4s"\nevery = "6s"\n[stop]\ntime = "8s"\n'
    faults = '[faults]\nscript = "kill daily-1 at 1s"\n'
    outcome = Simulation(Scenario.from_mapping(tomllib.loads(HOME + daily + faults))).run()
    there = [(round(time_s), alive) for time_s, alive in outcome.timeline.alive]
    assert there[3:] == [(0, 3), (1, 2), (6, 3)]
