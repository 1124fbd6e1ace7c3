"""strategy = "auto": synchronous where lines are fast, with fewer bits where they are not, else local steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minga.averaging.strategy_choice import StrategyChoice
from minga.combinations import check_combinations
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import OptimizerSection
from minga.planner.auto_choice import AutoChoice, choose, with_chosen_strategy
from minga.planner.model_facts import ModelFacts, facts_of_recipe
from minga.planner.peer_text import parse_peers
from minga.planner.planned_run import PlannedRun, resolve
from minga.planner.ways import FEW_INNER_STEPS, SYNCHRONOUS
from minga.training.plugins_of_run import with_origins

MODEL = ModelFacts("18M", (18_000_000,), 1e12, 512, None, "as given")
SPEED = "samples_per_s=10, micro_batch=4"


COUNTED: dict[str, ModelFacts] = {}


def counted_once(spec: RunSpec, source: str) -> ModelFacts:
    """To count the model, which is the same in all these runs, would be most of the work."""
    settings = str(spec.recipe_settings)
    return COUNTED.get(settings) or COUNTED.setdefault(settings, facts_of_recipe(spec, source))


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("minga.planner.devices.table_path", lambda: tmp_path / "devices.json")
    monkeypatch.setattr("minga.planner.auto_choice.facts_of_recipe", counted_once)


ADAMW = OptimizerSection(name="adamw")


def chosen(
    lines: str, batch: int = 640, optimizer: OptimizerSection = ADAMW, others: str = "", **settings: Any
) -> AutoChoice:
    peers = resolve(parse_peers(f"8x({SPEED}, {lines}){others}"), MODEL, optimizer, batch)
    return choose(PlannedRun(peers, MODEL, optimizer, batch, SYNCHRONOUS, "float16"), **settings)


def spec(**training: Any) -> RunSpec:
    tables = {"recipe": {"albert": {"size": "tiny"}}, "training": {"strategy": "auto", **training}}
    return RunSpec.from_mapping({"name": "x", **tables})


def test_the_slower_the_lines_the_rarer_peers_average() -> None:
    """A batch takes 8 s of computing; its float16 round takes 36 MB x 8 x 2 x 7/8 / rate."""
    found = [chosen(f"{rate}Mbit") for rate in (1000, 100, 10, 0.1)]
    assert [each.compared.way.strategy.name for each in found] == ["synchronous", "synchronous", "local", "local"]
    assert [each.compared.way.codec for each in found] == ["adaptive", "int4", "int4", "int4"]
    assert [each.kappa for each in found] == pytest.approx([0.063, 0.63, 6.3, 630.0], rel=0.02)
    slow, slower = (each.compared.way for each in found[2:])
    assert 10 <= slow.batches < slower.batches <= 500
    assert slow.strategy.table["local_batch"] == 80
    assert "comes" in found[3].reason
    assert "communication hardly shows" in found[0].reason


def test_with_muon_home_lines_take_few_inner_steps_and_two_bits_for_each_movement() -> None:
    """As the benchmark found; with AdamW they take four."""
    home, helper, muon = "up=2Mbit, down=10Mbit", "; (aux, 100Mbit)", OptimizerSection(name="muon")
    ways = [chosen(home, optimizer=each, others=helper).compared.way for each in (muon, ADAMW)]
    assert [way.strategy.name for way in ways] == ["local", "local"]
    assert [way.codec for way in ways] == ["sign(magnitudes=2)", "int4"]
    assert ways[0].strategy.table["overlap"] is True
    assert ways[0].batches == 10


def test_beside_a_sketch_no_codec_is_chosen_that_leaves_something_out_too() -> None:
    found = {sketch: beside_a_sketch(sketch).averaging.codec for sketch in ("identity", "powersgd")}
    assert found == {"identity": "sign(magnitudes=2)", "powersgd": "int4"}


def beside_a_sketch(sketch: str) -> RunSpec:
    """What is chosen for slow home lines, where that is local steps."""
    tables = {"recipe": {"albert": {"size": "tiny"}}, "optimizer": {"name": "muon"}}
    training, averaging = {"strategy": "auto", "target_batch_size": 64}, {"sketch": sketch}
    named = RunSpec.from_mapping({"name": "x", "training": training, "averaging": averaging, **tables})
    return with_chosen_strategy(named, f"8x({SPEED}, up=0.1Mbit, down=1Mbit); (aux, 9Mbit)")[0]


def test_the_beginning_in_which_a_sketch_leaves_nothing_out_is_as_many_samples_as_before() -> None:
    """In as many rounds of many batches the run would be over before the sketch makes anything smaller."""
    for sketch, start in (("powersgd", 100), ("powersgd(rank=2, start=1000)", 1000)):
        begun = beside_a_sketch(sketch)
        rounds = -(-start // (int(begun.training.target_batch_size) // 64))
        assert f"start={rounds}" in begun.averaging.sketch
        assert ("rank=2" in begun.averaging.sketch) is ("rank=2" in sketch)


def test_a_codec_of_the_organiser_s_stays_and_a_batch_that_leaders_choose_excludes_local_steps() -> None:
    assert chosen("10Mbit", codec="float32").compared.way.codec == "float32"
    found, reason = with_chosen_strategy(spec(target_batch_size="auto"), f"8x({SPEED}, 1Mbit)")
    assert found.training.strategy in ("synchronous", "delayed")
    assert found.training.target_batch_size == "auto"
    assert "need a number" in reason
    tables = {"recipe": {"albert": {"size": "tiny"}}, "averaging": {"codec": "float16"}}
    kept = RunSpec.from_mapping({"name": "x", "training": {"strategy": "auto", "target_batch_size": 64}, **tables})
    found, _ = with_chosen_strategy(kept, f"8x({SPEED}, 1Mbit)")
    assert (found.training.strategy, found.averaging.codec) == ("local", "float16")


def test_what_is_counted_in_steps_is_counted_in_rounds_then() -> None:
    begun, reason = with_chosen_strategy(
        spec(target_batch_size=64, stop_after_steps=10_000), "8x(samples_per_s=10, micro_batch=4, 1Mbit)"
    )
    batches = int(begun.training.target_batch_size) // 64
    assert begun.training.strategy == "local"
    assert begun.training.stop_after_steps == -(-10_000 // batches)
    assert begun.optimizer.total_steps == -(-125_000 // batches)
    assert begun.checkpoints.archive_every == 0
    assert begun.strategy["local"]["local_batch"] == 8
    assert with_origins(begun).training == begun.training
    assert f"target_batch_size = {begun.training.target_batch_size}" in reason
    assert "for 8x(samples_per_s=10" in reason


def test_what_goes_by_rounds_or_with_shared_steps_alone_goes_with_what_is_chosen() -> None:
    averaging = {"codec": "topk(k=64)", "average_parameters_every": 100}
    asked = spec(target_batch_size=64).amended({f"averaging.{key}": value for key, value in averaging.items()})
    begun, _ = with_chosen_strategy(asked, "8x(samples_per_s=10, micro_batch=4, 0.1Mbit)")
    assert begun.training.strategy == "local"
    check_combinations(begun)


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ({"model": {"recipe": "custom"}}, "how large the model is"),
        ({"security": {"verification": "byzantine"}}, "check each other"),
    ],
)
def test_where_nothing_can_be_foreseen_the_usual_strategy_is_taken_and_why_is_said(
    tables: dict[str, Any], why: str
) -> None:
    found, reason = with_chosen_strategy(
        RunSpec.from_mapping({"name": "x", "training": {"strategy": "auto"}, **tables})
    )
    assert found.training.strategy == "synchronous"
    assert why in reason


def test_a_spec_that_names_its_strategy_is_left_alone_and_auto_goes_no_further() -> None:
    plain = RunSpec(name="x")
    assert with_chosen_strategy(plain) == (plain, "")
    with pytest.raises(ConfigurationError, match=r"leave training\.strategy_changes out"):
        with_chosen_strategy(spec(strategy_changes=[{"from_step": 3, "strategy": "delayed"}]))
    with pytest.raises(ConfigurationError, match="is chosen by `minga host`"):
        with_origins(spec())


def test_the_fewest_inner_steps_are_those_that_the_strategy_itself_wants() -> None:
    assert StrategyChoice("local").facts.least_micro_batches == FEW_INNER_STEPS
