"""The shipped scenario of clinics whose model is cut: its log shows that each batch was applied exactly once."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from minga.core.errors import ConfigurationError
from minga.simulation.event_log import Log
from minga.simulation.outcome import Outcome
from minga.simulation.runner import Simulation
from minga.simulation.scenario.scenario import Scenario, changed, read_scenario, split_change
from minga.simulation.split.tally import BatchTally
from minga.simulation.timeline import Timeline


def clinics(*changes: str, log: Path | None = None) -> Outcome:
    values = changed(read_scenario("split-clinics"), [split_change(each, "--set") for each in changes])
    return Simulation(Scenario.from_mapping(values, "split-clinics"), log).run()


def test_clinics_come_and_go_and_each_batch_is_applied_exactly_once(tmp_path: Path) -> None:
    outcome = clinics("stop.time=35s", "peers.clinic.session=exponential 15s", "seed=3", log=tmp_path / "log.jsonl")
    told, incidents = outcome.summary()["split"], outcome.summary()["incidents"]
    print(told, incidents)
    assert told["exactly_once"]
    assert (told["clients"], told["applied"]) == (8, outcome.timeline.last_step)
    assert told["answered"] + told["unanswered"] == told["applied"]
    assert incidents["split.retried"] >= 4, "the server stood still for some seconds, and links failed"
    kinds = [(entry["kind"], entry.get("how")) for entry in Log(tmp_path / "log.jsonl")]
    assert ("peer.left", "goodbye") in kinds
    assert ("peer.left", "crash") in kinds
    losses = [loss for _, loss in outcome.losses()]
    half = len(losses) // 2
    assert fmean(losses[half:]) < 0.95 * fmean(losses[:half]), "one loss alone is a matter of chance"
    replayed = Timeline()
    for entry in Log(tmp_path / "log.jsonl"):
        replayed.add(entry)
    assert replayed.batches.summary() == told


def test_equal_seeds_of_clinics_give_equal_logs() -> None:
    first, again, other = (clinics("stop.steps=8", f"seed={seed}") for seed in (3, 3, 4))
    assert first.log_digest == again.log_digest
    assert first.log_digest != other.log_digest
    assert first.timeline.last_step == 8


def tally(*entries: tuple[str, int]) -> BatchTally:
    found = BatchTally()
    for number, (kind, batch) in enumerate(entries):
        if kind == "applied":
            found.take_applied({"t": float(number), "peer": "server-1", "other": "a", "batch": batch, "samples": 2})
        elif kind == "answered":
            found.take_answered({"peer": "a", "batch": batch})
        else:
            found.take_given_up({"peer": "a", "batch": batch})
    return found


def test_a_tally_finds_what_was_applied_twice_or_never() -> None:
    good = tally(("applied", 1), ("answered", 1), ("applied", 2), ("given up", 2), ("applied", 4))
    assert good.is_exactly_once
    assert good.summary()["unanswered"] == 2
    assert good.summary()["batches_per_second"] == 0.5
    assert not tally(("applied", 1), ("applied", 1), ("answered", 1)).is_exactly_once
    assert not tally(("applied", 1), ("answered", 1), ("answered", 1)).is_exactly_once
    assert tally(("applied", 1), ("answered", 2)).summary()["answered_unapplied"] == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("split.variant=none", 'role = "server" is for a model that is cut'),
        ("model.kind=ghost", "a ghost has no parts"),
        ("peers.server.count=2", 'needs one peer of role = "server"'),
        ("peers.server.role=trainer", "a trainer needs samples_per_second"),
        ("peers.server.session=1h", "a server computes at once and stays to the end"),
        ("peers.clinic.role=auxiliary", "an auxiliary computes no gradients"),
    ],
)
def test_what_a_scenario_with_a_cut_model_cannot_be(change: str, said: str) -> None:
    changes = [split_change(each, "--set") for each in (change, "model.name=gpt2")[: 2 if "ghost" in change else 1]]
    with pytest.raises(ConfigurationError) as caught:
        Scenario.from_mapping(changed(read_scenario("split-clinics"), changes), "clinics")
    assert said in str(caught.value)
