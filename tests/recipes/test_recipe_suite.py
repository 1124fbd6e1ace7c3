"""The conformance suite of recipes: on ALBERT, on a recipe of another package, and on recipes that break promises."""

from __future__ import annotations

import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.planner.model_facts import recipe_spec
from minga.recipes import RECIPES, load_recipe
from minga.testing import RECIPE_CHECKS, RecipeCase, Violation
from minga.testing.recipe_suite import (
    check_batches,
    check_damaged_files,
    check_demo,
    check_equal_models,
    check_evaluation,
    check_loss,
    check_public_batches,
    check_synthetic_batch,
)
from tests.worlds.extension_world import install_extras
from tests.worlds.plugin_packages import install, look_again
from tests.worlds.recipe_text import GENESIS

ALBERT = {
    "max_length": 32,
    "vocabulary_size": 300,
    "overrides": {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64, "embedding_size": 16},
    "data": {"source": "files", "files": [str(GENESIS)], "heldout_fraction": 0.1},
}
BLOBS = """
import numpy as np, torch
from torch import nn
from minga.recipes import Exhibit, Showing, Shown, whole
from minga_extras.recipe import Corners, CornersSettings

class BlobsSettings(CornersSettings):
    \"\"\"Points around the corners of a square.\"\"\"
    corners: int = whole(0, 0, 4, "corners to tell apart", special="; 0: as many as the data have")

class Blobs(Corners):
    Settings = BlobsSettings

    def published_settings(self):
        return self.settings.model_copy(update={"corners": self.settings.corners or 4})

    def prepare(self):
        return {"y.bin": b"labels"}

    def build_model(self):
        hidden, corners = self.settings.hidden, self.settings.corners
        return nn.Sequential(nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, corners))

class Moody(Blobs):
    def build_model(self):
        return super().build_model().double()

class Drawing(Blobs):
    def build_model(self):
        model = super().build_model()
        model[0].weight.data.bernoulli_()
        return model

class Trusting(Blobs):
    def batches(self, files, *position):
        files["y.bin"]
        return super().batches(files, *position)

class Dropping(Blobs):
    def build_model(self):
        return super().build_model().append(nn.Dropout(0.5))

    def evaluate(self, model, files):
        model.eval()
        return super().evaluate(model, files)

class Careless(Blobs):
    def synthetic_batch(self, size):
        return {"x": torch.zeros(size, 2, dtype=torch.float64), "y": torch.zeros(size, dtype=torch.long)}

    def batches(self, files, position, micro_batch_size):
        while True:
            yield self.rows(np.arange(micro_batch_size))

    def evaluate(self, model, files):
        return {"accuracy": 1.0}

class Large(Blobs):
    sizes = ("large",)

    @classmethod
    def size_settings(cls, size, tokens):
        return {"hiden": 16}

class Proud(Blobs):
    @classmethod
    def demo_spec(cls):
        return {"optimizer": {"name": "nonsense"}}

class Showy(Blobs):
    def show(self, models, files):
        return Showing("corners", [Shown(Exhibit("a point"), (Exhibit("a corner"),))])

class Once(Blobs):
    def batches(self, files, position, micro_batch_size):
        order = super().batches(files, position, micro_batch_size)
        return (next(order) for _ in range(3500 // micro_batch_size))
"""
"""A recipe of another package whose settings are complete when they are published, and some that break a promise."""

BLOB_RECIPES = ("blobs", "moody", "drawing", "careless", "trusting", "dropping", "once", "large", "proud", "showy")


@pytest.fixture
def blobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """That package, as if it were installed."""
    install_extras(tmp_path, monkeypatch)
    entries = {"minga.recipes": {name: f"tiny_blobs:{name.title()}" for name in BLOB_RECIPES}}
    install(tmp_path, "tiny-blobs", "1.2", entries, {"tiny_blobs": BLOBS})
    look_again(monkeypatch, RECIPES)
    yield
    sys.modules.pop("tiny_blobs", None)


@pytest.mark.parametrize("check", RECIPE_CHECKS, ids=lambda check: check.__name__)
def test_albert_conforms(check: Callable[[RecipeCase, Path], None], checked: Path) -> None:
    check(RecipeCase("albert", ALBERT), checked)


@pytest.mark.usefixtures("blobs")
def test_a_recipe_whose_settings_are_complete_once_they_are_published_conforms(tmp_path: Path) -> None:
    for check in RECIPE_CHECKS:
        if check not in (check_equal_models, check_public_batches):  # which start processes
            check(RecipeCase("blobs", {"hidden": 16}), tmp_path / "checked")


@pytest.mark.usefixtures("blobs")
@pytest.mark.parametrize(
    ("name", "check", "message"),
    [
        ("moody", check_equal_models, "float64"),
        ("drawing", check_equal_models, "would differ between machines"),
        ("careless", check_synthetic_batch, "float64"),
        ("careless", check_batches, "another peer gets the same batches"),
        ("once", check_batches, "batches end after a pass over 3500 samples"),
        ("careless", check_evaluation, "no figure heldout_accuracy"),
        ("trusting", check_damaged_files, r"y\.bin is missing, the recipe raises KeyError"),
        ("dropping", check_loss, "the model draws, as by dropout"),
        ("dropping", check_evaluation, "leaves the model in evaluation mode"),
        ("large", check_demo, "the settings of the size large are refused: .*hiden"),
        ("proud", check_demo, "the settings of demo_spec are refused: .*nonsense"),
        ("showy", check_demo, "does not hold what each of two models made"),
    ],
)
def test_broken_promises_are_found(name: str, check: Any, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with pytest.raises((Violation, NotImplementedError), match=message):
        check(RecipeCase(name), folder)


@pytest.mark.usefixtures("blobs")
def test_a_recipe_of_another_package_is_named_with_its_origin(tmp_path: Path) -> None:
    spec = RunSpec.from_mapping({"name": "x", "model": {"recipe": "blobs"}, "recipe": {"blobs": {"hidden": 16}}})
    assert load_recipe(spec).settings.hidden == 16
    assert str(RECIPES.origin("blobs")) == "tiny-blobs 1.2"
    (tmp_path / "run.toml").write_text(spec.to_toml())
    facts = load_recipe(recipe_spec(str(tmp_path / "run.toml"))).facts()  # of the settings as they are published
    assert facts.tensors == (32, 16, 64, 4)
    assert facts.operations == 2 * (2 * 16 * 2) + 2 * (16 * 4 * 3)  # the first layer's input needs no gradient
    with pytest.raises(ConfigurationError, match="files of one's own"):
        load_recipe(spec).own_data({}, ["x"], Path())
    with pytest.raises(ConfigurationError, match="files of one's own"):
        load_recipe(spec).check_own_data(["x"], ())


def test_the_registry_imports_no_recipe() -> None:
    code = "import sys, minga.recipes; print([name for name in ('torch', 'transformers') if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


class Long:
    """A recipe of 20,000 samples that knows how many elements of its batches are in memory at once."""

    def __init__(self) -> None:
        self.batch_sizes: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
        self.most = 0

    def batches(self, _: Any, position: Any, size: int) -> Iterator[dict[str, torch.Tensor]]:
        for place in range(20_000):
            x = torch.full((size,), hash(position) % 99991 + place)
            self.batch_sizes[place] = x
            self.most = max(self.most, sum(map(len, self.batch_sizes.values())))
            yield {"x": x}

    def samples(self, batch: dict[str, torch.Tensor]) -> int:
        return len(batch["x"])

    def public_batch(self, _: Any, batch: Any) -> None:
        batch.indices(20_000)


def test_a_pass_over_the_data_is_not_kept_in_memory(tmp_path: Path) -> None:
    recipe = Long()
    check_batches(SimpleNamespace(published=lambda: recipe, files=lambda _: {}), tmp_path)  # type: ignore[arg-type]
    assert recipe.most <= 1000
