"""Scenarios: files, what contradicts itself and how that is said, who takes part, changed values."""

from __future__ import annotations

import itertools
import tomllib
from pathlib import Path
from typing import Any

import pytest

from minga.core.errors import ConfigurationError
from minga.simulation.lifecycle import ScheduledPeer, population
from minga.simulation.scenario.scenario import Scenario, changed, read_scenario, shipped, split_change, sweeps

HOME = '[[peers]]\nname = "home"\ncount = 4\nsamples_per_second = 10\n'
GHOST = '[model]\nkind = "ghost"\nname = "albert-large"\n'


def scenario(text: str) -> Scenario:
    return Scenario.from_mapping(tomllib.loads(text), "file.toml")


def test_a_small_file_is_enough() -> None:
    found = scenario(HOME)
    assert (found.model.kind, found.stop.steps, found.stop.time.values) == ("classifier", None, (86_400.0,))
    spec = found.run_spec()
    assert spec.training.target_batch_size == 4096
    assert spec.model.recipe == "custom"


def test_sections_of_a_run_spec_mean_the_same() -> None:
    text = 'seed = 7\n[training]\ntarget_batch_size = 64\nstrategy = "delayed"\n[averaging]\ncodec = "int8"\n'
    text += '[optimizer]\nname = "sgd"\nlearning_rate = 0.5\n[network]\nminority = "stop"\n[state]\ndigest_every = 3\n'
    spec = scenario(text + HOME).run_spec()
    assert (spec.training.target_batch_size, spec.training.strategy, spec.training.seed) == (64, "delayed", 7)
    assert (spec.averaging.codec, spec.optimizer.name, spec.optimizer.learning_rate) == ("int8", "sgd", 0.5)
    assert (spec.network.minority, spec.state.digest_every) == ("stop", 3)


@pytest.mark.parametrize("name", sorted(shipped()))
def test_shipped_scenarios_are_valid_and_commented(name: str) -> None:
    found = Scenario.from_mapping(read_scenario(name), name)
    assert found.name == name
    assert found.run_spec().name == name
    assert shipped()[name].endswith(".")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "peers: missing; it must be 1 to 100 tables, each under its own [[peers]]"),
        ("peers = []", "peers: missing; there must be at least one [[peers]] table"),
        ("peers = 3", "peers = 3: must be 1 to 100 tables"),
        (HOME + "cout = 3", "[[peers]] number 1: cout: unknown key; did you mean count?"),
        ("pears = 3\n" + HOME, "pears: unknown key; did you mean peers?"),
        ("[stop]\nsteps = 0\n" + HOME, "stop.steps = 0: must be a whole number from 1 to 1,000,000"),
        ('[stop]\ntime = "uniform 1h 2h"\n' + HOME, "stop.time = 'uniform 1h 2h': it must be one duration"),
        (HOME.replace("4", "0"), "[[peers]] number 1: count = 0: must be a whole number from 1 to 10,000"),
        (HOME + 'up = "10"', "[[peers]] number 1: up = '10': rate = '10' is not a rate"),
        (HOME + 'up = "exponential 1Mbit"', "it must be more than 0 in every draw"),
        (HOME + "up = [1]", 'up = [1]: it must be a value such as "50Mbit", or a distribution'),
        (HOME + "dialable = 1.5", "dialable = 1.5: must be a number of at least 0 and at most 1"),
        (HOME + 'latency = "2min"', "[[peers]] number 1: latency = '2min': a latency is at most 60 s"),
        (HOME + 'latency = "exponential 1h"', "a latency is at most 60 s"),
        (
            HOME + 'region = "x"\n[[paths]]\nbetween = ["x"]\nlatency = "3min"',
            "[[paths]] number 1: latency = '3min': a latency is at most 60 s",
        ),
        (HOME + "dialable = 0", "peers: all only dial out"),
        (HOME + 'nat = "symmetric"', "peers: no router lets anybody in"),
        (HOME + 'nat = "cone"', 'must be one of "none", "one-to-one", "full-cone", "port-restricted", "symmetric"'),
        (HOME + 'relay = "x"', "[[peers]] number 1: relay: 'x' is no relay of [[relays]]; there are: none"),
        (HOME + '[[relays]]\nname = "x"\n' * 2, "[[relays]] number 2: name = 'x': used twice"),
        (HOME + '[[relays]]\nname = "x"\nrate = "uniform 1Mbit 2Mbit"', "it must be one rate"),
        (HOME + '[faults]\nscript = "stop_relay x at 3s"', "line 1: 'x' is no relay of [[relays]]; there are: none"),
        (HOME + 'away = "1h"', "away and crash are about the end of a session"),
        (HOME + 'role = "auxiliary"', "an auxiliary computes no gradients; leave samples_per_second out"),
        ('[[peers]]\nname = "cpu"\nrole = "auxiliary"', "peers: nobody trains"),
        ('[[peers]]\nname = "home"', "a trainer needs samples_per_second"),
        ('[[peers]]\nname = "no blanks"\nsamples_per_second = 1', "must be a name of 1 to 40 letters"),
        (HOME + HOME, "[[peers]] number 2: name = 'home': used twice"),
        (HOME + 'arrival = "2d"', "arrival = '2d': after stop.time, so they never come"),
        (GHOST + HOME + 'memory = "100MB"', "this model and optimizer need at least 428 MB"),
        (HOME.replace("4", "9999") + HOME.replace("home", "other"), "10003 peers in all; there may be at most 10000"),
        ('[model]\nkind = "ghost"\n' + HOME, "a ghost has either a name"),
        (GHOST + "parameters = 5\n" + HOME, "a ghost has either a name"),
        ("[model]\nparameters = 5\n" + HOME, 'name and parameters are for kind = "ghost"'),
        (GHOST + "[stop]\nloss = 1.0\n" + HOME, "stop.loss: a ghost model has no numbers and so no loss"),
        (GHOST + '[averaging]\nsketch = "thirds"\n' + HOME, "sketch: 'thirds' is none of identity"),
        (
            GHOST + "[averaging]\naverage_parameters_every = 5\n" + HOME,
            "averaging.average_parameters_every: it evens out",
        ),
        ("[training]\nseed = 3\n" + HOME, "training.seed: in a scenario it is seed, above all sections"),
        ("[training]\nstop_after_steps = 3\n" + HOME, "training.stop_after_steps: in a scenario it is steps in [stop]"),
        ('[network]\nrelay = "public"\n' + HOME, "network.relay: a scenario has tables under [[relays]]"),
        (
            HOME + 'region = "x"\n[[paths]]\nbetween = ["x"]\nlatency = "3s"\nrate = "uniform 1Mbit 2Mbit"',
            "[[paths]] number 1: rate = 'uniform 1Mbit 2Mbit': it must be one rate, not a distribution",
        ),
        (
            HOME + 'region = "x"\n[[relays]]\nname = "r"\nregion = "y"\n'
            '[[paths]]\nbetween = ["x", "y"]\nlatency = "3s"\nrate = "1Mbit"',
            "[[paths]] number 1: rate: only relays are in 'y', and what they carry is limited by their own rate",
        ),
        (HOME + '[[paths]]\nbetween = ["mars"]\nlatency = "3s"', "'mars' is no region of [[peers]]; there are: none"),
        (
            HOME + 'region = "x"\n' + '[[paths]]\nbetween = ["x"]\nlatency = "3s"\n' * 2,
            "[[paths]] number 2: between = ['x']: there is one for these already",
        ),
        (HOME + '[faults]\nscript = "kil home-1"', "fault script, line 1, at `kil`: unknown fault"),
        (HOME + '[faults]\nscript = "kill home-5"', "'home-5' is neither a role"),
        (HOME + '[faults]\nscript = "kill home-02"', "'home-02' is neither a role"),
        (
            HOME + '[faults]\nscript = "lie home-1 wrong-aggregate"',
            "'wrong-aggregate' is for [[attackers]], with from_step",
        ),
        (
            HOME + '[[faults.random]]\naction = "stall"\nper_hour = 3',
            "[[faults.random]] number 1: stall needs lasts",
        ),
        (HOME + '[[faults.random]]\naction = "kill"\nper_hour = 3\nlasts = "3s"', "kill is for good; leave lasts out"),
        (HOME + '[[faults.random]]\naction = "kill"\nper_hour = 3\nto = "1Mbit"', "belongs to slow_link"),
        (HOME + '[[faults.random]]\naction = "kill"\nper_hour = 3\npeers = "x"', "'x' is no class of [[peers]]"),
        (HOME + '[[attackers]]\npeers = "home"\nbehaviour = "sign-flip"', "only with security.verification"),
        ('[averaging]\ncodec = "int3"\n' + HOME, "codec: 'int3' is none of float32, "),
        ('[training]\nstrategy = "rushed"\n' + HOME, "strategy: 'rushed' is none of synchronous, delayed"),
        (
            '[training]\ntarget_batch_size = 80\n[security]\nverification = "byzantine"\naggregator = "krum"\n' + HOME,
            "'krum' is none of centered_clip",
        ),
        (HOME + '[[attackers]]\npeers = "home"\nbehaviour = "rude"', "'rude' is none of false-rates, false-state"),
        (HOME + '[[attackers]]\npeers = "home"\ncount = 9\nbehaviour = "false-rates"', "count = 9: there are 4 peers"),
        (GHOST + HOME + '[[attackers]]\npeers = "home"\nbehaviour = "false-state"', "no numbers to falsify"),
        (
            HOME + '[[attackers]]\npeers = "home"\nbehaviour = "false-rates"\n' * 2,
            "[[attackers]] number 2: peers = 'home': there is one for this class already",
        ),
        (
            HOME + '[stop]\ntime = "30s"\n[[orders]]\nat = "10min"\norder = "pause"',
            "[[orders]] number 1: at = '10min': after stop.time, so it never happens",
        ),
    ],
)
def test_what_is_refused_and_what_is_said(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        scenario(text)
    assert said in str(refused.value)
    assert all(line.startswith("file.toml: ") for line in str(refused.value).splitlines())


def test_every_mistake_is_told_on_a_line_of_its_own() -> None:
    with pytest.raises(ConfigurationError) as refused:
        scenario(HOME.replace("4", "0") + 'up = "x"\n[stop]\nsteps = 0\n[model]\nkind = "g"\n')
    keys = [line.split(": ", 1)[1].split(" = ")[0] for line in str(refused.value).splitlines()]
    assert keys == ["model.kind", "stop.steps", "[[peers]] number 1: count", "[[peers]] number 1: up"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for content, said in (
        (b"a = ", "not valid TOML"),
        (b"\xff", "not a text in UTF-8"),
        (b"#" * (2 << 20), "more than"),
    ):
        path = tmp_path / "bad.toml"
        path.write_bytes(content)
        with pytest.raises(ConfigurationError, match=said):
            read_scenario(str(path))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_scenario(str(tmp_path / "absent.toml"))
    with pytest.raises(
        ConfigurationError, match="neither a file nor a scenario that comes with minga; there are: attack-alie, "
    ):
        read_scenario("absent")
    with pytest.raises(ConfigurationError, match="neither a file nor a scenario"):
        read_scenario("a" * 5000)


# ---- other values


def test_changes_reach_into_tables_and_lists_of_tables() -> None:
    values: dict[str, Any] = tomllib.loads(HOME)
    texts = ["stop.steps=5", "peers.home.count=7", "peers.1.up=10Mbit", "training.strategy=delayed", "seed = 3"]
    found = Scenario.from_mapping(changed(values, [split_change(text, "--set") for text in texts]))
    assert (found.stop.steps, found.peers[0].count, found.training.strategy, found.seed) == (5, 7, "delayed", 3)
    assert found.peers[0].up is not None
    assert values["peers"][0]["count"] == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seed", "write KEY=VALUE"),
        ("=3", "write KEY=VALUE"),
        ("peers.other.count=3", "there is no 'other' here; there are: home"),
        ("peers.home.name.x=3", "is no table of settings"),
    ],
)
def test_changes_that_make_no_sense(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        changed(tomllib.loads(HOME), [split_change(text, "--set")])


@pytest.mark.parametrize("text", ["9" * 5000, "[" * 5000, "1\nother = 2"])
def test_what_is_no_value_is_taken_as_text(text: str) -> None:
    assert changed({}, [("seed", text)]) == {"seed": text}


def test_sweeps_combine() -> None:
    assert list(sweeps(["a=1,2", "b.c=x, y"])) == [
        [("a", a), ("b.c", b)] for a, b in itertools.product(("1", "2"), ("x", "y"))
    ]
    for texts in (["a=1,1"], ["a=1", "a=2"]):
        with pytest.raises(ConfigurationError, match="write each key once, with different values"):
            list(sweeps(texts))
    with pytest.raises(ConfigurationError, match="2500 runs; there may be at most 1000"):
        list(sweeps([f"{key}={','.join(map(str, range(50)))}" for key in "ab"]))
    with pytest.raises(ConfigurationError, match="no value is given"):
        list(sweeps(["a=1,2", "b=,"]))


# ---- who takes part


MIXED = """
[[peers]]
name = "home"
count = 20
samples_per_second = "uniform 5 15"
up = "lognormal median=20Mbit sigma=0.5"
dialable = 0.3
memory = "choice 100kB 1GB"
session = "exponential 1h"
away = "exponential 10min"
crash = 0.5
[[peers]]
name = "late"
samples_per_second = 3
arrival = "1h"
"""


DRAWN = """
[[peers]]
name = "home"
count = 3
samples_per_second = "lognormal median=10 sigma=0.4"
up = "uniform 5Mbit 20Mbit"
latency = "uniform 5ms 30ms"
arrival = "uniform 0s 60s"
session = "uniform 1h 2h"
"""


def test_everybody_draws_from_the_seed() -> None:
    first, same = population(scenario(MIXED)), population(scenario(MIXED))
    assert [each.host for each in first] == [each.host for each in same]
    other = population(scenario("seed = 1\n" + MIXED))
    assert [each.host for each in first] != [each.host for each in other]
    for one, two in zip(first, same, strict=True):
        assert list(itertools.islice(one.stays(), 5)) == list(itertools.islice(two.stays(), 5))


def test_a_share_can_be_dialled_and_comes_first() -> None:
    found = population(scenario(MIXED))
    assert sum(each.host.dialable for each in found[:20]) == 6
    assert found[0].host.dialable
    assert found[-1].name == "late-1"
    assert {each.fits for each in found} == {True, False}


def test_who_cannot_be_dialled_waits_for_the_first_who_can() -> None:
    text = HOME + 'dialable = 0\n[[peers]]\nname = "open"\nsamples_per_second = 1\narrival = "5min"\n'
    assert population(scenario(text))[0].name == "open-1"
    assert {each.arrival_s for each in population(scenario(text))} == {300.0}


@pytest.mark.parametrize("change", ["samples_per_second=10", "up=10Mbit", "latency=lognormal median=20ms sigma=0.3"])
def test_another_form_of_a_setting_leaves_the_draws_of_the_others_alone(change: str) -> None:
    def drawn(*changes: tuple[str, str]) -> dict[str, dict[str, float | None]]:
        found = population(Scenario.from_mapping(changed(tomllib.loads(DRAWN), changes)))
        return {each.name: drawn_of(each) for each in found}

    def drawn_of(each: ScheduledPeer) -> dict[str, float | None]:
        stay = next(each.stays())
        settings = {"up": each.host.up_bytes_per_s, "latency": each.host.latency_s, "arrival": each.arrival_s}
        speed = None if each.trainer is None else each.trainer.micro_batch_s
        return {**settings, "samples_per_second": speed, "session": stay.for_s}

    setting, _, value = change.partition("=")
    before, after = drawn(), drawn((f"peers.home.{setting}", value))
    for name, values in before.items():
        assert {key for key, each in values.items() if after[name][key] != each} == {setting}


def test_no_latency_is_longer_than_the_network_permits() -> None:
    found = population(scenario(HOME.replace("4", "50") + 'latency = "lognormal median=10s sigma=3"'))
    assert max(each.host.latency_s for each in found) == 60.0


def test_sessions_end_as_the_class_says() -> None:
    one = scenario(HOME + 'session = "2h"\n')
    assert [(stay.for_s, stay.crashes) for stay in population(one)[0].stays()] == [(7200.0, False)]
    (only,) = population(scenario(HOME))[0].stays()
    assert only.for_s is None
    crashes = [stay.crashes for stay in itertools.islice(population(scenario(MIXED))[0].stays(), 400)]
    assert 150 < sum(crashes) < 250
