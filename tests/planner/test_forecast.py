"""Plans of runs that do not exist yet: models, devices, figures, warnings, and the commands."""

from __future__ import annotations

import asyncio
import json
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import save_file

import minga.cli
from minga.averaging.strategy_choice import StrategyChoice
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import OptimizerSection
from minga.planner.advice import warnings
from minga.planner.comparison import advised_batch, best_of, compare, frugal_of
from minga.planner.devices import DEVICES, Measurement, keep_measurements, look_up, read_measurements
from minga.planner.forecast import Forecast, encoded_bytes, forecast, gossip_bytes_per_s, memory_of
from minga.planner.model_facts import ModelFacts, model_facts, recipe_spec
from minga.planner.peer_text import parse_peers
from minga.planner.planned_run import PlannedRun, resolve
from minga.planner.ways import TrainingWay, local_way
from minga.recipes.registry import load_recipe
from minga.simulation import run_virtual
from tests.worlds.board_swarm import Swarm
from tests.worlds.seeds import soaked

SMALL = model_facts("18M")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("minga.cli.gc.freeze", lambda: None)
    monkeypatch.setattr("minga.cli.terminal.interrupt.Interruption.__init__", lambda self, **_: None)
    monkeypatch.setattr("minga.cli.terminal.context.gc.disable", lambda: None)
    monkeypatch.setattr("minga.planner.devices.table_path", lambda: tmp_path / "devices.json")


LAMB = OptimizerSection(name="lamb")
BOTH = (StrategyChoice("synchronous"), StrategyChoice("delayed"))


def plan(peers: str, batch: int = 4096, model: ModelFacts = SMALL, codec: str = "float16", **settings: Any) -> Forecast:
    volunteers = resolve(parse_peers(peers), model, LAMB, batch, precision="half")
    return forecast(
        PlannedRun(volunteers, model, LAMB, batch, StrategyChoice(settings.get("strategy", "synchronous")), codec)
    )


# ---- models and devices


def test_peers_that_take_few_steps_alone_are_told_of() -> None:
    peers = "4x(v100, up=1Gbit, down=1Gbit, samples_per_s=100, micro_batch=8)"
    (said,) = [each for each in warnings(plan(peers, batch=320, strategy="local")) if "inner steps" in each]
    assert said.startswith('v100 takes about 10 inner steps between two means, and strategy = "local"')
    assert "wants 30 with this momentum: raise the target batch to 960, or lower that" in said
    for quiet in (plan(peers, batch=960, strategy="local"), plan(peers, batch=320, strategy="synchronous")):
        assert not [each for each in warnings(quiet) if "inner steps" in each]
    setting = plan(peers, batch=960, strategy="local").setting
    larger = forecast(replace(setting, strategy=StrategyChoice("local", {"local_batch": 20})))  # three micro-batches
    (said,) = [each for each in warnings(larger) if "inner steps" in each]
    assert "takes about 10 inner steps" in said


@cache
def albert_large() -> ModelFacts:
    """To count its operations takes a second."""
    return model_facts("albert-large")


def test_the_recipe_s_sizes_are_counted() -> None:
    large = albert_large()
    assert large.parameters == 17_847_474
    assert large.tokens == 512
    # What collaborations with T4s were planned with: 10 samples a second, in half precision.
    assert DEVICES["t4"].samples_per_s(large.operations, "half") == pytest.approx(10.0, rel=0.2)


def test_other_models(tmp_path: Path) -> None:
    assert model_facts("18M").parameters == 18_000_000
    assert model_facts("1.5b").parameters == 1_500_000_000
    assert model_facts("gpt2").operations == pytest.approx(6 * 124e6 * 1024, rel=0.2)
    weights = tmp_path / "own.safetensors"
    save_file({"w": torch.zeros(30, 7), "b": torch.zeros(7), "s": torch.zeros(())}, weights)
    assert sorted(model_facts(str(weights)).tensors) == [1, 7, 210]
    spec = tmp_path / "run.toml"
    spec.write_text('name = "r"\n[recipe.albert]\nsize = "tiny"\nmax_length = 64\nvocabulary_size = 512\n', "utf-8")
    assert model_facts(str(spec)).tokens == 64
    spec.write_text('name = "r"\n[model]\nrecipe = "custom"\n', "utf-8")
    with pytest.raises(ConfigurationError, match="does not say how large the model is"):
        model_facts(str(spec))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("alber", "no model of this name; there are: albert-tiny"),
        ("albert-huge", "the recipe has no such model; there are: albert-tiny"),
        ("0", "a model has from 1 to"),
        ("9999T", "a model has from 1 to"),
        ("nowhere.safetensors", "nowhere.safetensors: cannot be read as safetensors: No such file"),
    ],
)
def test_models_that_are_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        model_facts(text)
    assert said in str(refused.value)


def test_gossip_takes_what_the_page_about_it_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "planning.md").read_text("utf-8").split("## Large swarms")[1]
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) \|$", page, re.MULTILINE)
    assert {int(peers) for peers, _ in rows} >= {2, 10, 50, 100, 200}
    for peers, size in rows:
        assert gossip_bytes_per_s(int(peers)) == pytest.approx(1000.0 * float(size), rel=0.1)


@pytest.mark.parametrize("size", [4, soaked(8), soaked(25)])
def test_gossip_takes_what_is_foreseen(size: int) -> None:
    """So the table of the page does not grow stale."""

    async def sent_per_s() -> float:
        swarm = Swarm(seed=1)
        await swarm.grow(size)
        await asyncio.sleep(12.0)
        before = sum(peer.node.traffic()[0] for peer in swarm.peers)
        await asyncio.sleep(12.0)
        after = sum(peer.node.traffic()[0] for peer in swarm.peers)
        await swarm.close()
        return (after - before) / size / 12.0

    assert run_virtual(sent_per_s()) == pytest.approx(gossip_bytes_per_s(size), rel=0.15)


def test_a_model_has_one_size_by_whatever_name() -> None:
    paper = load_recipe(recipe_spec("causal-lm-paper")).parameter_sizes()
    assert model_facts("gpt2").parameters == paper.parameters


def test_unknown_devices_are_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"no device called 't5'; there are: t4, p100.*samples_per_s="):
        look_up("t5")
    with pytest.raises(ConfigurationError, match=r"at character 14, '\(t5, 1Gbit\)': no device called 't5'"):
        plan("(t4, 1Gbit); (t5, 1Gbit)")


def test_this_machine_s_measurements(tmp_path: Path) -> None:
    shape = (SMALL.parameters, SMALL.operations, SMALL.tokens)
    one = Measurement("cpu", "own", *shape, 8, 2.5, 0.1, None, "cpu, 2 threads")
    path = tmp_path / "devices.json"
    keep_measurements([one, Measurement("cuda:0", "18M", *shape, 32, 40.0, 0.01, 1 << 30, "fast")], path)
    keep_measurements([Measurement("cpu", "18M", *shape, 8, 3.0, 0.1, None, "cpu, 2 threads")], path)
    measured = read_measurements(path)
    assert {each.device: each.samples_per_s for each in measured} == {"cuda:0": 40.0, "cpu": 3.0}
    (own,) = resolve(parse_peers("(this, 1Gbit)"), SMALL, LAMB, 4096, measured=measured)
    assert (own.samples_per_s, own.micro_batch, own.speed_origin) == (40.0, 32, "measured")
    with pytest.raises(ConfigurationError, match=r"--precision single: this machine was measured in the precision"):
        resolve(parse_peers("(this, 1Gbit)"), SMALL, LAMB, 4096, precision="single", measured=measured)
    (told,) = resolve(
        parse_peers("(this, 1Gbit, samples_per_s=9)"), SMALL, LAMB, 4096, precision="single", measured=measured
    )
    assert (told.samples_per_s, told.speed_origin) == (9.0, "given")
    with pytest.raises(
        ConfigurationError,
        match=r"not measured with 18M of 18,000,000 parameters with 512 tokens.*models of recipes alone",
    ):
        resolve(parse_peers("(this, 1Gbit)"), SMALL, LAMB, 4096)
    with pytest.raises(ConfigurationError, match=r"run `minga plan --measure --model albert-tiny`"):
        resolve(parse_peers("(this, 1Gbit)"), model_facts("albert-tiny"), LAMB, 4096, measured=measured)
    namesake = [msgspec.structs.replace(one, model="albert-tiny", tokens=512)]
    with pytest.raises(ConfigurationError, match=r"run `minga plan --measure --model albert-tiny --tokens 512`"):
        resolve(parse_peers("(this, 1Gbit)"), model_facts("albert-tiny", 512), LAMB, 4096, measured=namesake)
    path.write_text("[]", "utf-8")
    with pytest.raises(ConfigurationError, match=r"devices\.json: no table of devices"):
        read_measurements(path)
    assert read_measurements(tmp_path / "none.json") == []


# ---- figures


def test_published_setups_of_heterogeneous_peers() -> None:
    """16 peers of 10 samples/s that send 0.571 Gbit in float16: the step times of the specification's own model."""
    both = ModelFacts("gradients and parameters", (35_700_000,), 1.0, 512, None, "")
    speed = "samples_per_s=10, micro_batch=1, latency=0ms"
    fast = plan(f"16x({speed}, 25Gbit)", model=both)
    mixed = plan(f"4x({speed}, 200Mbit); 8x({speed}, 100Mbit); 4x({speed}, 50Mbit)", model=both)
    helped = plan(f"4x({speed}, 200Mbit); 8x({speed}, 100Mbit); 4x({speed}, 50Mbit); 4x(aux, 500Mbit)", model=both)
    assert fast.filling_s == pytest.approx(25.6, rel=0.01)
    assert mixed.round_s == pytest.approx(11.4, rel=0.02)
    assert helped.round_s == pytest.approx(mixed.round_s, rel=0.01)
    delayed = plan(f"4x({speed}, 200Mbit); 8x({speed}, 100Mbit); 4x({speed}, 50Mbit)", model=both, strategy="delayed")
    assert delayed.step_s == pytest.approx(25.6, rel=0.01)
    assert delayed.utilisation == pytest.approx(1.0, abs=0.01)


def test_traffic_memory_and_sync() -> None:
    found = plan("4x(t4, 100Mbit, samples_per_s=10, micro_batch=4); (aux, 1Gbit)")
    trainer, auxiliary = found.classes
    assert trainer.upload_bytes_per_day >= trainer.upload_bytes * 86_400 / found.step_s
    assert trainer.upload_bytes == pytest.approx(36e6, rel=0.01)  # the auxiliary reduces nearly all
    memory, of_auxiliary = memory_of(found, 0), memory_of(found, 1)
    assert (memory.parameters, memory.gradients, memory.moments) == (72_000_000, 72_000_000, 144_000_000)
    assert (memory.sums, memory.averaging) == (72_000_000, 144_000_000)
    assert not memory.passes.is_known  # nothing is known of what 18M parameters do
    assert of_auxiliary.sums == of_auxiliary.passes.of(64) == 0
    assert memory.wire * 4 + of_auxiliary.wire == pytest.approx(found.vector_bytes, rel=0.01)
    assert of_auxiliary.wire > 0.9 * found.vector_bytes
    assert found.setting.state_bytes == 216_000_000
    assert trainer.sync_s == pytest.approx(216e6 / 12.5e6, rel=0.01)
    assert auxiliary.sync_s < trainer.sync_s


def test_ways_that_no_run_can_have_are_not_compared_and_a_price_is_told() -> None:
    setting = plan("4x(t4, 100Mbit, samples_per_s=10, micro_batch=4)").setting
    elastic = StrategyChoice("elastic")
    ways = [TrainingWay(strategy, codec) for strategy in (*BOTH, elastic) for codec in ("float16", "gtopk")]
    found = compare(setting, ways)
    assert [(each.way.strategy.name, each.way.codec) for each in found] == [
        (each.name, "float16") for each in (*BOTH, elastic)
    ]
    with pytest.raises(
        ConfigurationError, match=r'averaging\.codec = "gtopk" leaves out.*set averaging\.codec = "float16"'
    ):
        compare(setting, [TrainingWay(strategy, "gtopk") for strategy in BOTH])


def test_what_never_arrived_in_the_benchmark_is_not_advised(capfd: pytest.CaptureFixture[str]) -> None:
    slow = plan("8x(t4, 1Mbit, samples_per_s=10, micro_batch=4)").setting
    synchronous, delayed, sparse = (
        TrainingWay(BOTH[0], "float16"),
        TrainingWay(BOTH[1], "float16"),
        TrainingWay(BOTH[0], "topk(k=41)", "gtopk"),
    )
    found = compare(slow, [synchronous, delayed, sparse])
    assert [each.arrives for each in found] == [True, False, False]
    assert min(found, key=lambda each: each.equal_s).way == sparse
    assert best_of(found).way == synchronous
    assert frugal_of(found, found[0]) is None
    assert best_of(found[2:]).way == sparse  # where nothing else was asked for, and then it is said
    peers = ("--model", "gpt2", "--peers", "8x(t4, up=20Mbit, down=100Mbit)")
    code, text = call(capfd, "plan", *peers, "--strategy", "delayed", "--codec", "int8")
    assert code == 0
    assert "! Delayed with int8 never came to the loss of synchronous steps" in " ".join(text.split())
    for strategy in ("synchronous", "local"):
        code, text = call(capfd, "plan", *peers, "--strategy", strategy, "--codec", "topk(k=64, values=2bit)")
        assert code == 0
        assert f"! {strategy.capitalize()}" in text
        assert "with topk(values=2bit) never came to the loss of synchronous steps" in " ".join(text.split())
    _, text = call(capfd, "plan", *peers)
    assert "± 0 " not in text
    assert "(2 runs)" in text


def test_a_way_that_sends_far_less_and_is_hardly_later_is_named_beside_the_best() -> None:
    setting = plan("8x(t4, 20Mbit, samples_per_s=0.9, micro_batch=4)", batch=512).setting
    delayed, few = compare(setting, [TrainingWay(BOTH[1], "int8"), local_way(20, "int4")])
    assert few.traffic_per_day[0] < delayed.traffic_per_day[0] / 4
    assert few.gap is not None
    late = replace(few, gap=replace(few.gap, least=90.0, most=90.0))
    assert frugal_of([delayed, late], delayed) is None
    near = replace(few, gap=replace(few.gap, least=0.0, most=0.0))
    assert frugal_of([delayed, late, near], delayed) is near
    assert frugal_of([delayed, replace(near, gap=None)], delayed) is None
    assert frugal_of([near], near) is None


def test_a_round_whose_means_are_larger_than_its_contributions_waits_for_the_downloads() -> None:
    """Eight homes and an auxiliary that reduces: each sends its own and receives one mean."""
    peers = "8x(t4, up=20Mbit, down=20Mbit, samples_per_s=10, nat); (aux, 1Gbit)"
    plain = plan(peers, codec="topk(k=41)")
    up, down = encoded_bytes(SMALL, "topk(k=41)", "gtopk")
    assert down > 4 * up
    found = forecast(replace(plain.setting, download_codec="gtopk"))
    assert found.round_s == pytest.approx(down / 2.5e6, rel=0.01)
    assert found.binding is not None
    assert found.binding.kind == "download"
    assert found.classes[0].upload_bytes == pytest.approx(up, rel=0.01)
    assert found.classes[0].download_bytes == pytest.approx(down, rel=0.01)


def test_local_steps_are_ranked_by_the_time_to_a_loss_and_fragments_divide_their_rounds() -> None:
    setting = plan("8x(t4, up=2Mbit, down=10Mbit, samples_per_s=10, micro_batch=4)", batch=320).setting
    few, many = local_way(20, "int8"), local_way(100, "int8")
    streaming = local_way(100, "int8", overlap=True, fragments=2)
    synchronous, *local = compare(setting, [TrainingWay(BOTH[0], "int8"), few, many, streaming])
    assert [each.forecast.setting.target_batch_size for each in local] == [6400, 32_000, 32_000]
    assert [each.forecast.setting.round_batch_size for each in local] == [6400, 32_000, 16_000]
    assert local[0].traffic_per_day[0] > 2 * local[1].traffic_per_day[0]
    assert all(each.equal_s < synchronous.equal_s for each in local)
    assert best_of([synchronous, *local]).way.strategy.name == "local"
    assert all(each.way.strategy.table["local_batch"] == 320 // 8 for each in local)  # ten of their micro-batches
    assert [each.forecast.setting.strategy for each in local] == [each.way.strategy for each in local]


def test_nobody_rests_in_a_large_swarm_since_its_leaders_would_not_ask() -> None:
    speed = "samples_per_s=20, micro_batch=4"
    found = plan(f"40x({speed}, 1Gbit); 20x({speed}, up=1Mbit, down=50Mbit)")
    assert [figures.resting for figures in found.classes] == [0, 20]
    assert found.round_s < 36e6 / 125e3
    larger = plan(f"100x({speed}, 1Gbit); 20x({speed}, up=1Mbit, down=50Mbit)")
    assert [figures.resting for figures in larger.classes] == [0, 0]
    assert larger.round_s >= 0.99 * larger.vector_bytes / 125e3


@pytest.mark.parametrize(
    ("peers", "said"),
    [("2x(aux, 1Gbit)", "nobody computes gradients"), ("2x(t4, nat, 1Gbit)", "all are clients, so nobody can reduce")],
)
def test_swarms_that_cannot_train(peers: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        plan(peers)


# ---- warnings


def said_of(found: Forecast) -> str:
    return "\n".join(warnings(found))


def test_a_newcomer_that_cannot_keep_up() -> None:
    found = plan("8x(v100, up=4Mbit, down=4Mbit, samples_per_s=100, micro_batch=8)", strategy="delayed", codec="int8")
    assert "needs 7 min" in said_of(found)
    assert "to sync, your step takes" in said_of(found)


def test_communication_that_takes_most_of_the_time() -> None:
    found = plan("8x(t4, 50Mbit, samples_per_s=100, micro_batch=8)", batch=1024)
    advised = advised_batch(found)
    assert f"of each step: raise the target batch to {advised:,}" in said_of(found)
    assert plan("8x(t4, 50Mbit, samples_per_s=100, micro_batch=8)", batch=advised).idle <= 0.21


def test_micro_batches_that_are_too_long() -> None:
    found = plan("4x(t4, 1Gbit, samples_per_s=10, micro_batch=64)", batch=300)
    assert (found.batch, found.filling_s) == (320, pytest.approx(12.8))
    never = plan("8x(v100, 1Gbit, samples_per_s=50, micro_batch=8); (t4, 1Gbit, samples_per_s=1, micro_batch=64)", 2048)
    assert "it never contributes" in said_of(never)


def test_memory_that_does_not_suffice() -> None:
    large = albert_large()
    found = plan("4x(t4, 1Gbit)", model=large)
    assert found.setting.volunteers[0].micro_batch == 16
    assert "--micro-batch" not in said_of(found), "minga join finds out by itself what fits into a GPU"
    slow = plan("4x(cpu, 1Gbit, memory=6GB)", model=large)
    assert slow.setting.volunteers[0].micro_batch == 4
    assert "a processor takes larger ones unasked: join there with --micro-batch 4" in said_of(slow)
    assert "a micro-batch of 64 takes" in said_of(plan("4x(t4, 1Gbit, micro_batch=64)", model=large))
    assert "the model does not fit there" in said_of(plan("4x(t4, 1Gbit)", model=model_facts("gpt2-xl")))


# ---- the commands


def call(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        minga.cli.main(list(arguments))
    assert isinstance(end.value.code, int)
    told = capfd.readouterr()
    return end.value.code, told.out + told.err


PEERS = "6x(t4, up=50Mbit, down=200Mbit); 2x(a100, 1Gbit)"


def test_the_command_for_people_and_for_programs(capfd: pytest.CaptureFixture[str]) -> None:
    code, text = call(capfd, "plan", "--model", "18M", "--peers", PEERS)
    assert code == 0
    for word in ("steps an hour", "6 x t4", "(estimate)", "best", "Estimates, which may be off", "18,000,000"):
        assert word in text
    code, text = call(capfd, "plan", "--model", "18M", "--peers", PEERS, "--target-batch", "512", "--json")
    last = json.loads(text.splitlines()[-1])
    assert code == 0
    assert last["steps_per_hour"] == pytest.approx(3600 / last["step_s"], rel=1e-3)
    ways = {(way["strategy"], way["codec"], way["batches_of_a_round"]): way for way in last["ways"]}
    best = next(way for way in ways.values() if way["target_batch_size"] == last["target_batch_size"])
    assert (best["strategy"], best["codec"]) == (last["strategy"], last["codec"])
    reference, local = ways["synchronous", "float16", 1], ways["local", "float16", 20]
    assert (reference["target_batch_size"], local["target_batch_size"]) == (512, 20 * 512)
    assert reference["loss_gap_percent"] == [0.0, 0.0]
    assert reference["upload_bytes_per_day"] > local["upload_bytes_per_day"] > 0
    equal = local["samples_per_s"] / local["extra_samples"]
    assert local["equal_loss_samples_per_s"] == pytest.approx(equal, rel=1e-3)
    assert set(last["traffic"]) == set(last["memory_bytes"]) == {"t4", "a100"}
    assert set(last["traffic"]["t4"]) == {"upload_bytes_per_day", "download_bytes_per_day"}
    assert last["memory_bytes"]["t4"]["pass"] is None
    assert 0 < last["utilisation"] <= 1
    assert last["sync_s"] > 0 < last["round_s"] < math.inf
    assert all(isinstance(text, str) for text in last["warnings"])


def test_a_run_spec_decides_what_it_says(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "run.toml"
    spec.write_text(
        'name = "r"\n[recipe.albert]\nsize = "tiny"\n[training]\ntarget_batch_size = 777\nstrategy = "delayed"\n'
        '[averaging]\ncodec = "float32"\n[optimizer]\nname = "sgd"\n', "utf-8",
    )  # fmt: skip
    code, text = call(capfd, "plan", "--model", str(spec), "--peers", "2x(cpu, 10Mbit)", "--json")
    last = json.loads(text.splitlines()[-1])
    assert (code, last["target_batch_size"], last["strategy"], last["codec"]) == (0, 777, "delayed", "float32")
    assert len(last["ways"]) == 1
    assert last["memory_bytes"]["cpu"]["moments"] == last["memory_bytes"]["cpu"]["parameters"]


def test_the_means_of_a_planned_run_travel_as_its_spec_says(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spec, found = tmp_path / "run.toml", []
    for download in ("", 'download_codec = "int8"\n'):
        text = f'name = "r"\n[recipe.albert]\nsize = "tiny"\n[averaging]\ncodec = "topk"\n{download}'
        spec.write_text(text, "utf-8")
        code, text = call(capfd, "plan", "--model", str(spec), "--peers", "2x(cpu, 10Mbit)", "--json")
        assert code == 0
        found.append(json.loads(text.splitlines()[-1]))
    assert 3 * found[0]["vector_bytes"] < found[1]["vector_bytes"], "by default they are sparse, too"
    assert any(warning.startswith('the setting averaging.codec = "topk" sends old') for warning in found[0]["warnings"])


def test_the_leaders_own_choice_of_the_batch(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "run.toml"
    text = 'name = "r"\n[recipe.albert]\noverrides = { num_hidden_layers = 1 }\n'
    text += '[training]\ntarget_batch_size = "auto"\nmost_communication = 0.05\n'
    spec.write_text(text, "utf-8")
    peers = "8x(20Mbit, samples_per_s=50, micro_batch=4)"
    code, told = call(capfd, "plan", "--model", str(spec), "--peers", peers, "--json")
    last = json.loads(told.splitlines()[-1])
    assert code == 0
    assert 1 - last["filling_s"] / last["step_s"] == pytest.approx(0.05, abs=0.002)
    spec.write_text(text + "target_batch_size_max = 1000\n", "utf-8")
    _, told = call(capfd, "plan", "--model", str(spec), "--peers", peers, "--json")
    assert json.loads(told.splitlines()[-1])["target_batch_size"] == 1000
    _, told = call(capfd, "plan", "--model", str(spec), "--peers", peers)
    assert "the leaders raise the target batch from 256 to it" in " ".join(told.split())
    _, told = call(capfd, "plan", "--model", str(spec), "--peers", peers, "--target-batch", "512", "--json")
    assert json.loads(told.splitlines()[-1])["target_batch_size"] == 512


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "18M"], "give a SCENARIO, a LINK or --model with one of --peers, --memory and --measure"),
        (["x.toml", "--model", "18M", "--peers", PEERS], "give a SCENARIO, a LINK or --model with --peers"),
        (["--model", "18M", "--peers", PEERS, "--memory", "8GB"], "with one of --peers, --memory and --measure"),
        (["--model", "18M", "--peers", PEERS, "--offload"], "--offload: not with --peers"),
        (["--model", "18M", "--memory", "8GB", "--codec", "int8"], "--codec: not with --memory"),
        (["--model", "18M", "--memory", "8"], "is not a size"),
        (["--model", "18M", "--memory", "8GB", "--precision", "x"], "it must be one of auto, single, half"),
        (["--model", "18M", "--memory", "8GB", "--optimizer", "sgd", "--state-bits", "8"], "state_bits = 8 is for"),
        (["--model", "gpt2", "--memory", "8GB", "--checkpoint-activations"], "only a recipe says"),
        (["x.toml", "--codec", "int8", "--tokens", "5"], "--codec, --tokens: not with a SCENARIO or LINK"),
        (["--model", "resnet-50", "--peers", PEERS, "--tokens", "5"], "--tokens: samples of resnet-50 are images"),
        (["--model", "18M", "--peers", PEERS, "--codec", "int5"], "--codec 'int5': 'int5' is none of float32"),
        (
            ["--model", "18M", "--peers", PEERS, "--strategy", "x"],
            "--strategy 'x': it must be one of synchronous, delayed",
        ),
        (["--model", "18M", "--peers", PEERS, "--precision", "x"], "it must be one of auto, single, half"),
        (
            ["--model", "18M", "--peers", PEERS, "--optimizer", "x"],
            "it must be one of lamb, adamw, muon, sgd, lars, larc",
        ),
    ],
)
def test_bad_options(arguments: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, text = call(capfd, "plan", *arguments)
    assert code == 2
    assert said in " ".join(text.split())


def test_this_machine_is_measured_and_used(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "run.toml"
    mapping = {
        "name": "r",
        "recipe": {
            "albert": {
                "size": "tiny",
                "max_length": 16,
                "overrides": {"hidden_size": 16, "intermediate_size": 16},
                "vocabulary_size": 64,
            }
        },
    }
    spec.write_text(RunSpec.from_mapping(mapping).to_toml(), "utf-8")
    code, text = call(capfd, "plan", "--measure", "--model", str(spec), "--device", "cpu", "--seconds", "0.1", "--json")
    last = json.loads(text.splitlines()[-1])
    assert code == 0
    assert last["path"] == str(tmp_path / "devices.json")
    (one,) = last["devices"]
    assert one["samples_per_s"] > 0 < one["update_s"]
    code, text = call(capfd, "plan", "--model", str(spec), "--peers", "2x(this, 10Mbit)", "--json")
    last = json.loads(text.splitlines()[-1])
    assert (code, last["classes"][0]["speed_origin"]) == (0, "measured")
    assert last["classes"][0]["samples_per_s"] == pytest.approx(one["samples_per_s"], rel=1e-3)


def test_a_round_with_one_contributor_is_foreseen_without_the_uploads_of_the_others() -> None:
    peers = "8x(t4, up=20Mbit, down=100Mbit, samples_per_s=10, micro_batch=4); (aux, 1Gbit)"
    leader, everybody = (plan(peers, strategy=name) for name in ("leader", "synchronous"))
    assert leader.round_s <= everybody.round_s
    of_homes = [found.classes[0].upload_bytes for found in (leader, everybody)]
    assert of_homes[0] < 0.3 * of_homes[1]
    assert leader.filling_s == everybody.filling_s


def test_a_strategy_that_brings_its_own_optimizer_is_planned_with_plain_descent_alone() -> None:
    setting = plan("2x(t4, 1Gbit, samples_per_s=10, micro_batch=4)").setting
    demo = [TrainingWay(StrategyChoice("demo"), "float16")]
    (found,) = compare(replace(setting, optimizer=OptimizerSection(name="sgd")), demo)
    assert found.forecast.step_s < math.inf
    with pytest.raises(ConfigurationError, match=r'set optimizer\.name = "sgd"'):
        compare(setting, demo)


def test_moments_of_8_bits_are_counted_as_they_are_kept_and_fetched() -> None:
    plain = plan("2x(t4, 1Gbit, samples_per_s=10, micro_batch=4)")
    coded = forecast(replace(plain.setting, optimizer=OptimizerSection(state_bits=8)))
    assert memory_of(plain, 0).moments == 144_000_000
    assert 36_000_000 < memory_of(coded, 0).moments < 36_100_000
    assert memory_of(coded, 0).state_copy == 72_000_000 + memory_of(coded, 0).moments
    assert coded.classes[0].sync_s < 0.6 * plain.classes[0].sync_s


def test_adapters_on_a_frozen_model_are_planned_by_what_travels_and_what_is_held(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The sizes are those of Llama 3.1 of 8 billion parameters, with adapters for all linear layers of its blocks."""
    peers = ("--peers", "8x(3060, up=20Mbit)")
    code, text = call(capfd, "plan", "--model", "llama-8b", "--fine-tune", *peers, "--json")
    last = json.loads(text.splitlines()[-1])
    assert code == 0
    reference = next(each for each in last["ways"] if (each["strategy"], each["codec"]) == ("synchronous", "float16"))
    memory, by_bits = last["memory_bytes"]["3060"], last["memory_of_base_bits"]
    assert memory["parameters"] == 4 * 41_943_040
    assert memory["moments"] == 2 * memory["parameters"]
    assert by_bits["16"]["base"] == 2 * 8_030_261_248
    assert [round(by_bits[bits]["base"] / 1e9, 1) for bits in ("16", "8", "4")] == [16.1, 9.1, 5.7]
    assert [by_bits[bits]["device_of_one"] <= 0.9 * (12 << 30) for bits in ("16", "8", "4")] == [False, True, True]
    assert memory["device"] <= 0.9 * (12 << 30)
    assert reference["upload_bytes_per_day"] == pytest.approx(
        86_400 / reference["step_s"] * 2 * 41_943_040 * 7 / 8 * 2, rel=0.02
    )
    code, text = call(capfd, "plan", "--model", "llama-8b", "--fine-tune", *peers)
    assert "the vector is small, 0.52% of the 8.03 billion parameters" in " ".join(text.split())
    code, text = call(capfd, "plan", "--model", "gpt2", "--fine-tune", *peers)
    assert (code, "there are: llama-1b" in " ".join(text.split())) == (2, True)
