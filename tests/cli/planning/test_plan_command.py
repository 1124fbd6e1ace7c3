"""`minga plan`: scenarios, the explanation, live boards."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path

import pytest
from rich.console import Console

import minga.cli
from minga.averaging.links import Links
from minga.averaging.planning.contributor_choice import StepWork
from minga.averaging.solver.division import PeerRates, SwarmRates
from minga.averaging.strategy_choice import StrategyChoice
from minga.cli.planning.plan import _simulated, plan_table
from minga.cli.taking_part.status import plan_line
from minga.core.errors import ConfigurationError
from minga.core.spec.sections import OptimizerSection
from minga.network.gossip.record_kinds import AddressInfo
from minga.network.interface import PeerId
from minga.planner.explanation import alternatives, explain, plan_json, plan_text
from minga.planner.forecast import forecast
from minga.planner.model_facts import ModelFacts
from minga.planner.peer_text import parse_peers
from minga.planner.planned_run import PlannedRun, resolve
from minga.training.record_kinds import Progress
from minga.training.status.run_status import LiveRates, PlanWatch, live_rates
from tests.training.status.test_run_status import Swarm
from tests.worlds.cli_run import last_json, run
from tests.worlds.planner_swarms import GBIT, SETUPS, auxiliary, client, peer, two_sites

HEAD = """[model]
kind = "ghost"
parameters = 17_850_000
[training]
target_batch_size = 4096
[averaging]
codec = "float16"
"""
HOME = '[[peers]]\nname = "home"\ncount = 8\nup = "20Mbit"\ndown = "100Mbit"\nsamples_per_second = 10\n'
CLOUD = '[[peers]]\nname = "cloud"\nup = "1Gbit"\ndown = "1Gbit"\nrole = "auxiliary"\n'
WORK = StepWork(0.286 * GBIT, 4096.0)
SIZE = 100_000_000


@pytest.fixture(autouse=True)
def _keep_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minga.cli.gc.freeze", lambda: None)
    monkeypatch.setattr("minga.cli.terminal.interrupt.Interruption.__init__", lambda self, **_: None)


def written(folder: Path, text: str) -> Path:
    path = folder / "swarm.toml"
    path.write_text(text, "utf-8")
    return path


def test_a_scenario_is_planned_with_the_peers_that_it_has(tmp_path: Path) -> None:
    text = HEAD + HOME + "dialable = 0.5\n" + CLOUD
    swarm = _simulated(str(written(tmp_path, text)))
    by_name = dict(zip(swarm.names, swarm.rates.peers, strict=True))
    assert set(by_name) == {*(f"home-{number}" for number in range(1, 9)), "cloud-1"}
    assert swarm.work == StepWork(35_700_000.0, 4096, overlapped=False)
    home, cloud = by_name["home-1"], by_name["cloud-1"]
    assert (home.upload, home.download, home.samples_per_second) == (2.5e6, 12.5e6, pytest.approx(10.0))
    assert (home.sends, home.aggregates, cloud.sends, cloud.aggregates) == (True, True, False, True)
    assert sum(not each.aggregates for each in swarm.rates.peers) == 4
    found = explain(swarm.rates, swarm.work)
    assert found.step_s == pytest.approx(4096 / 80 + found.round_s)
    small = _simulated(str(written(tmp_path, HEAD + HOME + 'memory = "choice 10MB 16GB"\n' + CLOUD)))
    assert 1 < len(small.names) < 9, "who has too little memory stays away"


@pytest.mark.parametrize(
    ("strategy", "codec"), [("synchronous", "float16"), ("leader", "float16"), ("synchronous", "topk(k=41)")]
)
def test_a_scenario_has_the_rounds_of_a_forecast(strategy: str, codec: str, tmp_path: Path) -> None:
    """Also where one peer alone contributes, and where a mean takes more bytes than a contribution."""
    head = HEAD.replace("float16", codec).replace("[training]\n", f'[training]\nstrategy = "{strategy}"\n')
    swarm = _simulated(str(written(tmp_path, head + HOME)))
    model = ModelFacts("17.85M", (17_850_000,), 1e9, 512, None, "as given")
    optimizer, line = OptimizerSection(), "8x(samples_per_s=10, up=20Mbit, down=100Mbit)"
    peers = resolve(parse_peers(line), model, optimizer, 4096)
    foreseen = forecast(PlannedRun(peers, model, optimizer, 4096, StrategyChoice(strategy), codec))
    found, others = explain(swarm.rates, swarm.work), alternatives(swarm.rates, swarm.work)
    assert found.round_s == pytest.approx(foreseen.round_s)
    assert found.computing_s == pytest.approx(4096 / 80)
    sent = sum(task.upload_bytes for task in found.tasks) / 8
    assert sent == pytest.approx(foreseen.classes[0].upload_bytes)
    assert others.resting_step_s == pytest.approx(found.step_s)


def test_a_scenario_whose_rounds_carry_a_fragment_has_these(tmp_path: Path) -> None:
    local = HEAD.replace("[training]\n", '[strategy.local]\nfragments = 4\n[training]\nstrategy = "local"\n')
    whole, part = (_simulated(str(written(tmp_path, head + HOME))).work for head in (HEAD, local))
    assert (part.vector_bytes, part.batch) == (whole.vector_bytes / 4, whole.batch / 4)


def test_paths_between_the_regions_of_a_scenario_are_planned_with_their_rates(tmp_path: Path) -> None:
    text = HEAD
    for name, region in (("a", "north"), ("b", "north"), ("c", "south")):
        text += HOME.replace("home", name).replace("8", "2") + f'region = "{region}"\n'
    text += '[[paths]]\nbetween = ["north", "south"]\nlatency = "1ms"\nrate = "50Mbit"\n'
    text += '[[paths]]\nbetween = ["south"]\nlatency = "1ms"\nrate = "10Mbit"\n'
    swarm = _simulated(str(written(tmp_path, text)))
    rate_of = {(swarm.names[i][0], swarm.names[j][0]): rate for (i, j), rate in swarm.rates.pairs.items()}
    slow = dict.fromkeys((("a", "c"), ("b", "c"), ("c", "a"), ("c", "b")), 6250000.0)
    assert rate_of == slow | {("c", "c"): 1.25e6}
    assert len(swarm.rates.pairs) == 2 * 4 * 2 + 2


def test_lines_whose_rate_is_left_out_are_without_limit(tmp_path: Path) -> None:
    text = HEAD + HOME.replace('down = "100Mbit"\n', "") + '[[peers]]\nname = "rack"\nsamples_per_second = 10\n'
    swarm = _simulated(str(written(tmp_path, text)))
    found = explain(swarm.rates, swarm.work)
    assert found.tasks[swarm.names.index("rack-1")].reduces == pytest.approx(1.0, rel=0.01)
    assert found.round_s == pytest.approx(35.7e6 / 2.5e6, rel=0.01)
    bare = _simulated(str(written(tmp_path, text.replace('up = "20Mbit"\n', ""))))
    assert explain(bare.rates, bare.work).round_s < 0.001


def test_means_of_a_scenario_travel_by_their_own_codec(tmp_path: Path) -> None:
    swarm = _simulated(str(written(tmp_path, HEAD + 'download_codec = "int4"\n' + HOME)))
    assert swarm.work.sizes is not None
    up, down = swarm.work.sizes
    assert up == 35_700_000.0
    assert down < up / 3


def test_a_scenario_whose_peers_share_a_relay_has_no_plan(tmp_path: Path) -> None:
    text = HEAD + HOME + 'nat = "symmetric"\n[[relays]]\nname = "rented"\n'
    assert len(_simulated(str(written(tmp_path, text))).names) == 8, "a relay without limit is as good as no relay"
    with pytest.raises(ConfigurationError, match="home-1 and home-2 have no direct path"):
        _simulated(str(written(tmp_path, text + 'rate = "8Mbit"\n')))
    text = HEAD + HOME + 'nat = "port-restricted"\n[[relays]]\nname = "rented"\nrate = "8Mbit"\n'
    assert len(_simulated(str(written(tmp_path, text))).names) == 8, "these get a direct path in the end"


@pytest.mark.parametrize(
    ("source", "said"), [("attack-alie", "do not trust each other"), ("split-clinics", "the model is cut")]
)
def test_a_scenario_without_a_plan_is_refused(source: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        _simulated(source)


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, HEAD + HOME + CLOUD)
    for arguments in ([str(path)], [str(path), "--json"]):
        with pytest.raises(SystemExit) as end:
            minga.cli.main(["plan", *arguments])
        assert end.value.code == 0
    printed = capfd.readouterr().out
    assert "it waits for the upload of home-1" in printed
    assert "home-1 and 7 more" in printed
    values = json.loads(printed.splitlines()[-1])
    assert values["round_s"] == pytest.approx(14.28)
    assert values["binding"] == {"kind": "upload", "peer": "home-1", "other": None}
    assert values["parts"] == [{"share": 1.0, "root": "cloud-1", "relays": []}]


# ---- the explanation


def test_one_more_auxiliary_helps_where_uploads_bind() -> None:
    trainers = SwarmRates((peer(0.2, samples_per_second=10.0),) * 16)
    found, others = explain(trainers, WORK), alternatives(trainers, WORK)
    assert others.auxiliary_round_s < found.round_s / 1.2
    assert others.auxiliary_step_s < found.step_s
    # Where each is busy with its own vector already, nobody can help.
    homes = SwarmRates((*(peer(0.02, 0.1),) * 8, auxiliary(1.0)))
    assert alternatives(homes, WORK).auxiliary_round_s == pytest.approx(explain(homes, WORK).round_s)


def test_reasons_and_traffic() -> None:
    rates = SwarmRates((*(peer(1.0, samples_per_second=10.0),) * 3, client(0.5), peer(0.3), auxiliary(2.0)))
    found = explain(rates, WORK)
    reasons = [task.reason for task in found.tasks]
    assert "not all can reach it" in reasons[3]
    assert reasons[4] == "sending its own gradient takes all the time"
    assert found.tasks[5].reduces > found.tasks[0].reduces
    assert math.fsum(task.reduces for task in found.tasks) == pytest.approx(1.0, abs=1e-6)
    daily = found.tasks[3].upload_bytes * 86_400 / found.step_s
    assert found.tasks[3].upload_bytes_per_day == pytest.approx(daily)
    nobody = explain(SwarmRates((auxiliary(1.0),) * 3), WORK)
    assert nobody.step_s == math.inf
    assert nobody.tasks[0].upload_bytes_per_day == 0.0
    told = list(plan_text(nobody, alternatives(SwarmRates((auxiliary(1.0),) * 3), WORK), ["a", "b", "c"], WORK))
    assert any(line.startswith("How long a step takes is not known") for line in told)
    assert not any("A step takes" in line for line in told)


def test_sites_are_told() -> None:
    rates = two_sites(ends=1.0)
    names = [f"[{index}]" for index in range(8)]
    found, others = explain(rates, WORK), alternatives(rates, WORK)
    text = "\n".join(plan_text(found, others, names, WORK))
    assert "in two levels" in text
    assert "A site: [4], [5], [6], [7]." in text
    assert found.tasks[0].relays > 0.0
    values = plan_json(found, others, names, WORK)
    assert values["two_level"] is True
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    console = Console(width=120, record=True)
    console.print(plan_table(found, names))
    assert "[0]" in console.export_text()


def test_absurd_rates_are_told() -> None:
    rates = SwarmRates((*SETUPS["A"].peers, peer(1e30)), {(0, 1): math.nan, (2, 3): 0.0})
    names = [str(index) for index in range(9)]
    found, others = explain(rates, WORK), alternatives(rates, WORK)
    text = "\n".join(plan_text(found, others, names, WORK))
    assert "8: upload of 1.25e+38 bytes/s is no rate: taken as unknown." in text
    assert "0 to 1: a path of nan bytes/s is no path: taken as unknown." in text
    json.dumps(plan_json(found, others, names, WORK), allow_nan=False)


# ---- live runs


def test_rates_of_a_board() -> None:
    async def main() -> None:
        swarm = Swarm()
        trainer = Progress(3, 10, 12.5, "training")
        helper = swarm.peer(AddressInfo("auxiliary"), Progress(3, 0, 0.0, "training"))
        hidden = swarm.peer(AddressInfo("client"), Progress(3, 5, 4.0, "averaging", client=True))
        measured = swarm.peer(AddressInfo("trainer"), trainer, Links(upload_cap=1_000_000))
        swarm.peer(AddressInfo("trainer"), Progress(0, 0, 0.0, "syncing"))
        swarm.peer(AddressInfo("monitor"))
        live = live_rates(swarm.board)
        found = dict(zip(live.peers, live.rates.peers, strict=True))
        assert set(found) == {helper, hidden, measured}
        assert (found[helper].sends, found[helper].aggregates, found[helper].receives) == (False, True, True)
        assert (found[hidden].aggregates, found[hidden].samples_per_second) == (False, 4.0)
        assert (found[measured].samples_per_second, found[measured].upload) == (12.5, 1e6)
        assert live_rates(Swarm().board).peers == ()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("told", "agreed"),
    [
        ([], 0),
        ([0, 0], 0),
        ([700, 0], 700),
        ([700, 700, 1], 700),
        ([2**53, 700, 700], 700),
        ([2**53, 2**53, 0, 0, 700, 700, 700], 700),
        ([1, 1, 700, 700, 700, 2**53, 0], 700),
    ],
)
def test_the_size_of_the_vector_is_what_most_tell(told: list[int], agreed: int) -> None:
    async def main() -> None:
        swarm = Swarm()
        swarm.peer(AddressInfo("monitor"), Progress(3, 0, 1.0, "training", vector_bytes=5))
        swarm.peer(AddressInfo("trainer"), Progress(0, 0, 0.0, "syncing", vector_bytes=5))
        for size in told:
            swarm.peer(AddressInfo("trainer"), Progress(3, 0, 1.0, "training", vector_bytes=size))
        assert live_rates(swarm.board).vector_bytes == agreed

    asyncio.run(main())


def test_status_tells_the_plan_in_short() -> None:
    names = tuple(PeerId(f"{letter}" * 64) for letter in "abcd")
    rates = SwarmRates((peer(0.4), peer(0.4), peer(0.1), client(0.4)))
    watch = PlanWatch()
    plan = watch.at(100.0, LiveRates(names, rates, SIZE))
    assert plan is not None
    assert plan.reduces == {"a" * 64: 0.5, "b" * 64: 0.5, "c" * 64: 0.0, "d" * 64: 0.0}
    assert plan.binding == ("upload", "c" * 64, None)
    assert plan.round_s == pytest.approx(8.0)
    line = plan_line(plan)
    assert line == ("plan: aaaaaaaaaa 50%, bbbbbbbbbb 50% · rounds take 8 s and wait for the upload of cccccccccc")
    assert plan_line(plan, 792.0) == "plan: aaaaaaaaaa 50%, bbbbbbbbbb 50% · computing takes 99% of a step"
    # Not sooner than the period, and not with too few.
    assert watch.at(101.0, LiveRates(names[:1], SwarmRates(rates.peers[:1]), SIZE)) is plan
    assert watch.at(200.0, LiveRates(names[:1], SwarmRates(rates.peers[:1]), SIZE)) is None
    assert PlanWatch().at(0.0, LiveRates(names[:2], SwarmRates((client(1.0),) * 2), SIZE)) is None
    assert PlanWatch().at(0.0, LiveRates(names, rates, 0)) is None
    unknown = PlanWatch().at(0.0, LiveRates(names[:2], SwarmRates((PeerRates(None, None),) * 2), SIZE))
    assert unknown is not None
    assert plan_line(unknown) == "plan: aaaaaaaaaa 50%, bbbbbbbbbb 50%"
    split = PlanWatch().at(0.0, LiveRates(tuple(PeerId(f"{i}" * 64) for i in range(8)), two_sites(ends=1.0), SIZE))
    assert split is not None
    assert "in two levels" in plan_line(split)


@pytest.mark.parametrize(
    "how",
    [
        ("--peers", "2x(t4, 100Mbit)"),
        ("--memory", "8GB", "--strategy", "locl"),
    ],
)
def test_a_strategy_that_is_not_known_is_refused_in_one_line(how: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('name = "x"\n[training]\nstrategy = "locl"\n')
    model = "18M" if "--strategy" in how else str(path)
    done = run("plan", "--model", model, *how)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("minga: ")]
    assert "locl" in said
    assert "synchronous, delayed, local, leader, elastic, demo" in said
    assert ("--strategy" in said) == ("--strategy" in how)


def test_a_plan_of_a_run_with_a_warm_start_says_how_many_samples_it_gets(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        'name = "x"\n[model]\nrecipe = "causal-lm"\n[recipe.causal-lm]\noverrides = { num_hidden_layers = 1 }\n'
        '[training]\nstrategy = "local"\ntarget_batch_size = 51200\nstop_after_steps = 1000\n'
        "[strategy.local]\nsynchronous_for = 5_120_000\nsynchronous_batch = 512\n"
    )
    done = run("plan", "--model", str(path), "--peers", "2x(t4, 100Mbit)")
    said = " ".join(done.stdout.split())
    assert "synchronous up to step 10000, then local; " in said, done.stderr
    assert "10,000 steps of 512 samples, then 900 steps of 51,200 samples: 51,200,000 samples in all" in said


def test_a_plan_of_a_run_goes_by_its_micro_batches_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        'name = "x"\n[security]\nverification = "byzantine"\nmicro_batch_size = 8\n'
        "[recipe.albert]\noverrides = { num_hidden_layers = 1 }\n"
    )
    asked = ("plan", "--model", str(path), "--peers", "5x(a100, 1Gbit)")
    (planned,) = last_json(run(*asked, "--json").stdout)["classes"]
    assert planned["micro_batch"] == 8
    assert "check each other's work" in run(*asked).stdout
