"""The recipe of split learning: conformance, who has which samples, tables of one's own, and parts of one network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.recipes import StreamPosition, new_model
from minga.recipes.running.trained_model import from_run_folder, with_state
from minga.recipes.split.recipe import SplitRecipe, figures_of
from minga.split import NoPeek
from minga.testing import RECIPE_CHECKS, RecipeCase
from minga.testing import recipe_suite as suite
from minga.training.replica.replica import Replica
from minga.training.state.snapshot import StateSnapshot

IN_ANOTHER_PROCESS = (suite.check_equal_models, suite.check_public_batches)
TABLE = {"data": "table", "features": 3, "classes": 2, "bottom": [8], "top": [4]}


def recipe(**settings: object) -> SplitRecipe:
    found = RecipeCase("split", settings).recipe()
    assert isinstance(found, SplitRecipe)
    return found


@pytest.mark.parametrize("check", RECIPE_CHECKS, ids=lambda check: check.__name__)
def test_pictures_conform(check: Callable[[RecipeCase, Path], None], checked: Path) -> None:
    check(RecipeCase("split", {"channels": [4, 8], "bottom": [32], "top": [16]}), checked)


def test_tables_conform(tmp_path: Path) -> None:
    for check in (check for check in RECIPE_CHECKS if check not in IN_ANOTHER_PROCESS):
        check(RecipeCase("split", {"data": "breast-cancer", "bottom": [16], "no_peek": 1.0}), tmp_path)


@pytest.mark.parametrize("settings", [{"channels": [4]}, {"data": "wine"}])
def test_parts_after_one_another_are_the_whole_network(settings: dict[str, object]) -> None:
    own = recipe(**settings)
    samples = own.heldout_samples()
    assert samples is not None
    expected = new_model(own)(samples.inputs)
    for u_shaped in (False, True):
        bottom, top, head = own.parts(u_shaped=u_shaped)
        assert (head is not None) == u_shaped
        found = top(bottom(samples.inputs))
        assert torch.equal(found if head is None else head(found), expected)


def test_clients_have_samples_of_their_own_and_nobody_those_that_are_held_out() -> None:
    own = recipe(data="wine", clients=3, heldout=0.25)
    held = own.heldout_samples()
    assert held is not None
    parts = [own.client_samples({}, number) for number in range(3)]
    everything = torch.cat([held.inputs, *(each.inputs for each in parts)])
    assert len(everything) == 178
    assert len(torch.unique(everything, dim=0)) == 178
    assert [len(each.labels) for each in parts] == [45, 45, 44]
    assert torch.equal(parts[1].inputs, recipe(data="wine", clients=3, heldout=0.25).client_samples({}, 1).inputs)
    with pytest.raises(ConfigurationError, match="--part 4: this run has the parts 1 to 3"):
        own.client_samples({}, 3)
    with pytest.raises(ConfigurationError, match="too few samples"):
        recipe(data="wine", clients=200).prepare()


def test_the_weight_of_no_peek_is_the_clients_penalty() -> None:
    assert recipe().penalty is None
    assert recipe(no_peek=1.5).penalty == NoPeek(1.5)


def test_a_client_trains_on_tables_of_its_own(tmp_path: Path) -> None:
    own = recipe(**TABLE)
    assert own.prepare() == {}
    assert own.heldout_samples() is None
    assert own.evaluate(new_model(own), {}) == {}
    (tmp_path / "a.csv").write_text("age,dose,rate,ill\n1,2,3,0\n4,5,6.5,1\n")
    (tmp_path / "b.csv").write_text("7,8,9,1\n")
    again, files = own.own_data({}, [str(tmp_path / "*.csv")], tmp_path / "kept")
    samples = again.client_samples(files, 7)
    assert samples.inputs.tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.5], [7.0, 8.0, 9.0]]
    assert samples.labels.tolist() == [0, 1, 1]
    batch = next(again.batches(files, StreamPosition("a1" * 32), 3))
    assert sorted(batch["inputs"][:, 0].tolist()) == [1.0, 4.0, 7.0]
    assert bool(again.loss(new_model(again), batch).total.isfinite())
    with pytest.raises(ConfigurationError, match="with --data"):
        own.client_samples({}, 0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1,2,3\n", "3 columns"),
        ("1,2,3,2\n", "classes go from 0 to 1"),
        ("1,2,3,-1\n", "classes go from 0 to 1"),
        ("1,2,3,0.5\n", "no whole number"),
        ("1,2,nan,1\n", "not finite"),
        ("a,b,c,d\n1,2,x,1\n", "cannot be read"),
        ("", "columns|cannot be read"),
    ],
)
@pytest.mark.filterwarnings("ignore:loadtxt")
def test_tables_that_are_none_are_refused(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text(text)
    with pytest.raises(ConfigurationError, match=why):
        recipe(**TABLE).own_data({}, [str(tmp_path / "own.csv")], tmp_path / "kept")


def test_a_pattern_without_files_and_samples_that_were_damaged_are_refused(tmp_path: Path) -> None:
    own = recipe(**TABLE)
    with pytest.raises(ConfigurationError, match="no such file"):
        own.own_data({}, [str(tmp_path / "none.csv")], tmp_path)
    (tmp_path / "own-samples.safetensors").write_bytes(b"damaged")
    with pytest.raises(ConfigurationError, match="not a file of samples"):
        own.client_samples({"own-samples.safetensors": tmp_path / "own-samples.safetensors"}, 0)


@pytest.mark.parametrize(
    "settings",
    [
        {"data": "table"},
        {"data": "table", "features": 3, "classes": 1},
        {"features": 3},
        {"data": "wine", "channels": [4]},
        {"bottom": []},
        {"top": []},
        {"bottom": [0]},
        {"no_peek": -1.0},
        {"heldout": 0.0},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=r"recipe\.split"):
        recipe(**settings)


def test_figures_are_those_of_a_model_in_evaluation_mode() -> None:
    own = recipe(data="wine")
    samples = own.heldout_samples()
    assert samples is not None
    model = nn.Sequential(nn.Dropout(0.9), new_model(own))
    found = figures_of(model, samples)
    assert model.training
    assert found == own.evaluate(model[1], {})
    assert 0.0 < found["heldout_accuracy"] < 1.0


def test_nobody_exports_a_model_that_is_cut() -> None:
    spec = RunSpec.from_mapping({"name": "x", "model": {"recipe": "split"}, "split": {"variant": "vanilla"}})

    def state(_: Replica) -> StateSnapshot:
        raise AssertionError("no peer is asked for a state")

    with pytest.raises(ConfigurationError, match="each side has its part"):
        with_state(spec, {}, state)


@pytest.mark.parametrize("kept", ["top.safetensors", "client-ab/parts.safetensors"])
def test_nobody_exports_one_side_of_it_either(kept: str, tmp_path: Path) -> None:
    (tmp_path / kept).parent.mkdir(exist_ok=True)
    (tmp_path / kept).write_bytes(b"parts")
    with pytest.raises(ConfigurationError, match="each side has its part"):
        from_run_folder(tmp_path)
