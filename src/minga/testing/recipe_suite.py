"""What every recipe must do, as checks to be run against a recipe with settings.

    @pytest.mark.parametrize("check", RECIPE_CHECKS)
    def test_my_recipe(check, tmp_path):
        check(RecipeCase("digits", {"hidden": 16}), tmp_path)

or all at once by `check_recipe("digits", {"hidden": 16}, tmp_path)`. The recipe is found by its name, as runs find it;
the settings should make it small. Each check raises `Violation` with what failed. All chance comes from fixed
seeds; the checks in a second process give it other seeds of torch and of hashes, and another number of threads.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from blake3 import blake3
from torch import Tensor, nn

from minga.core.errors import ConfigurationError, StorageError
from minga.core.files import write
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import check_file_names
from minga.recipes.exported import read_provenance
from minga.recipes.initial import new_model
from minga.recipes.interface import Batch, Files, Recipe, StreamPosition
from minga.recipes.registry import RECIPES, example_toml, load_recipe, published
from minga.security.randomness.public_batch import PublicBatch
from minga.testing.other_process import said_elsewhere
from minga.testing.violation import Violation

_ALICE, _BOB = "a1" * 32, "b0" * 32
_CLOSE: Final = 1e-5
_LEARNING_STEPS: Final = 30
_LEARNING_RATE: Final = 0.01
_MOST_AT_ONCE: Final = 256


@dataclass(frozen=True)
class _AskedIndices(PublicBatch):
    """Remembers among how many samples a recipe chooses."""

    dataset_sizes: list[int] = field(default_factory=list)

    def indices(self, dataset_size: int) -> npt.NDArray[np.int64]:
        self.dataset_sizes.append(dataset_size)
        return super().indices(dataset_size)


@dataclass(frozen=True)
class RecipeCase:
    """A recipe by name, and the settings with which it is tried. `seed` is the run's."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 3

    def spec(self, **settings: Any) -> RunSpec:
        """A run spec of the case, with `settings` besides or instead."""
        return RunSpec.from_mapping(
            {
                "name": "conformance",
                "model": {"recipe": self.name},
                "recipe": {self.name: {**self.settings, **settings}},
                "training": {"seed": self.seed},
            }
        )

    def recipe(self) -> Recipe[Any]:
        """A new recipe as its organiser has it, with the settings as they are given."""
        return load_recipe(self.spec())

    def published(self) -> Recipe[Any]:
        """A new recipe as all peers of a run have it, with the settings as they are published."""
        return load_recipe(published(self.spec()))

    def files(self, folder: Path) -> dict[str, Path]:
        """What the organiser prepares, in `folder`, once for all checks there."""
        index = folder / "names.json"
        if not index.is_file():
            prepared = self.recipe().prepare()
            for name, content in prepared.items():
                write(folder / name, content)
            index.write_text(json.dumps(sorted(prepared)))
        return {name: folder / name for name in json.loads(index.read_text())}


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise Violation(what)


def digest(tensors: Mapping[str, Tensor]) -> str:
    """BLAKE3 of names, types, shapes and bytes."""
    found = blake3()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        found.update(f"{name}/{tensor.dtype}/{tuple(tensor.shape)}/".encode())
        found.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _first(
    recipe: Recipe[Any], files: Files, peer: str = _ALICE, size: int = 3, count: int = 3, **at: int
) -> list[Batch]:
    return list(itertools.islice(recipe.batches(files, StreamPosition(peer, **at), size), count))


def check_settings(case: RecipeCase, folder: Path) -> None:
    """Defaults are valid, the example explains them, published settings survive each form, unknown ones are refused."""
    del folder
    found = RECIPES.get(case.name)
    example = RunSpec.from_toml(example_toml(case.name))
    _require(load_recipe(example).settings == found.Settings(), "the example does not hold the defaults")
    for name, each in found.Settings.model_fields.items():
        _require(bool(each.description) or hasattr(each.annotation, "model_fields"), f"{name} has no meaning in words")
    shown = published(case.spec())
    _require(published(shown) == shown, "published settings are published as others")
    for again in (RunSpec.from_toml(shown.to_toml()), RunSpec.from_canonical(shown.canonical_bytes())):
        _require(again.run_id == shown.run_id, "published settings do not survive being written and read")
    missing = set(found.Settings.model_fields) - set(shown.recipe_settings)
    _require(not missing, f"published settings lack {', '.join(sorted(missing))}")
    try:
        load_recipe(case.spec(no_such_setting_here=1))
    except ConfigurationError as error:
        _require("no_such_setting_here" in str(error), "an unknown setting is refused without its name")
    else:
        raise Violation("an unknown setting is taken")


def check_prepare(case: RecipeCase, folder: Path) -> None:
    """Files have safe names, and published settings name no file of the organiser that `prepare` reads."""
    check_file_names(list(case.files(folder)))
    shown = published(case.spec()).canonical_bytes().decode()
    for path in case.recipe().inputs():
        _require(json.dumps(str(path))[1:-1] not in shown, f"the published spec names {path}")


def check_equal_models(case: RecipeCase, folder: Path) -> None:
    """Models are finite float32, in training mode, equal in every process, and made without torch's generator."""
    del folder
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    model = new_model(case.published())
    _require(torch.equal(before, torch.random.get_rng_state()), "to build a model changes torch's generator")
    _require(model.training, "a new model is not in training mode")
    for name, parameter in model.named_parameters():
        _require(parameter.dtype == torch.float32, f"{name} is {parameter.dtype}")
        _require(parameter.device.type == "cpu", f"{name} is on {parameter.device}")
        _require(bool(parameter.isfinite().all()), f"{name} is not finite")
    own = digest(model.state_dict())
    other = _in_another_process("digest(new_model(case.published()).state_dict())", case)
    _require(own == other, "another process begins with other parameters")
    different = new_model(RecipeCase(case.name, case.settings, case.seed + 1).published())
    _require(own != digest(different.state_dict()), "parameters do not depend on the run's seed")


def check_facts(case: RecipeCase, folder: Path) -> None:
    """Facts count the trained tensors exactly, and the model can be built on `meta`."""
    del folder
    recipe = case.published()
    facts = recipe.facts()
    own = tuple(each.numel() for each in new_model(recipe).parameters() if each.requires_grad)
    _require(sorted(facts.tensors) == sorted(own), f"facts name {sum(facts.tensors)} parameters, not {sum(own)}")
    _require(facts.operations > 0 and facts.tokens >= 1, "facts without operations or tokens")
    sizes = recipe.parameter_sizes()
    _require(sizes == (facts.tensors, facts.frozen_bytes), "facts and parameter sizes differ")
    with torch.device("meta"):
        recipe.build_model()


def check_batches(case: RecipeCase, folder: Path) -> None:
    """Batches have exactly as many samples as asked for, and go on after a pass over the data; equal positions give
    equal ones, other positions others.
    """
    recipe, files = case.published(), case.files(folder)
    for size in (1, 3, 8):
        for batch in _first(recipe, files, size=size):
            _require(recipe.samples(batch) == size, f"a batch of {size} has {recipe.samples(batch)} samples")
            _require(all(each.device.type == "cpu" for each in batch.values()), "a batch is not on the CPU")
    own = [digest(batch) for batch in _first(recipe, files)]
    _require(own == [digest(batch) for batch in _first(case.published(), files)], "equal positions give other batches")
    for what, others in (
        ("another peer", _first(recipe, files, _BOB)),
        ("another worker", _first(recipe, files, worker=1)),
        ("another start", _first(recipe, files, start_step=5)),
    ):
        _require(own != [digest(batch) for batch in others], f"{what} gets the same batches")
    asked = _AskedIndices(b"7" * 32, 1)
    recipe.public_batch(files, asked)
    for samples in asked.dataset_sizes[:1]:  # of the data, unless the recipe chooses in a way of its own
        size = min(samples, _MOST_AT_ONCE)
        count = sum(
            1 for _ in itertools.islice(recipe.batches(files, StreamPosition(_ALICE), size), samples // size + 1)
        )
        _require(count > samples // size, f"batches end after a pass over {samples} samples")


def check_public_batches(case: RecipeCase, folder: Path) -> None:
    """The same public batch has the same bytes in every process; others have others."""
    recipe, files = case.published(), case.files(folder)
    own = recipe.public_batch(files, PublicBatch(b"7" * 32, 4))
    _require(recipe.samples(own) == 4, "a public batch of 4 has another number of samples")
    told = 'digest(case.published().public_batch(files, PublicBatch(b"7" * 32, 4)))'
    _require(digest(own) == _in_another_process(told, case, folder), "another process makes another public batch")
    other = recipe.public_batch(files, PublicBatch(b"8" * 32, 4))
    _require(digest(own) != digest(other), "two public batches are the same")


def check_synthetic_batch(case: RecipeCase, folder: Path) -> None:
    """Made-up batches look like real ones: names, types, ranks; and the loss takes them."""
    recipe = case.published()
    real, made = _first(recipe, case.files(folder), size=4, count=1)[0], recipe.synthetic_batch(4)
    _require(recipe.samples(made) == 4, "a synthetic batch of 4 has another number of samples")
    _require(list(real) == list(made), f"names are {', '.join(made)}, not {', '.join(real)}")
    for name in real:
        _require(real[name].dtype == made[name].dtype, f"{name} is {made[name].dtype}, not {real[name].dtype}")
        _require(real[name].ndim == made[name].ndim, f"{name} has {made[name].ndim} dimensions, not {real[name].ndim}")
    _require(bool(recipe.total_loss(new_model(recipe), made).isfinite()), "the loss of a synthetic batch is not finite")


def check_loss(case: RecipeCase, folder: Path) -> None:
    """The loss is a finite float32 scalar that repeats itself, reaches every parameter and can be learned.

    Where samples can be told apart, that is, where each tensor has one row for each, it is the mean of their losses.
    """
    recipe, files = case.published(), case.files(folder)
    model, batch = new_model(recipe), _first(recipe, files, size=8, count=1)[0]
    loss = recipe.total_loss(model, batch)
    _require(loss.shape == () and loss.dtype == torch.float32, f"the loss is {loss.dtype} {tuple(loss.shape)}")
    _require(bool(loss.isfinite()), "the loss is not finite")
    _require(
        loss.item() == recipe.total_loss(model, batch).item(),
        "the same batch has two losses: the model draws, as by dropout; draw in batches instead",
    )
    loss.backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and name not in recipe.frozen(0):
            gradient = parameter.grad
            _require(gradient is not None and bool(gradient.isfinite().all()), f"{name} has no finite gradient")
    if recipe.coupling == "none" and all(each.ndim and each.shape[0] == 8 for each in batch.values()):
        rows = [{name: each[row : row + 1] for name, each in batch.items()} for row in range(8)]
        mean = sum(recipe.total_loss(model, row).item() for row in rows) / 8
        _require(abs(mean - loss.item()) <= _CLOSE * max(1.0, abs(mean)), f"the loss is no mean of its samples' {mean}")
    optimizer = torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE)
    for _ in range(_LEARNING_STEPS):
        optimizer.zero_grad()
        recipe.total_loss(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    last = recipe.total_loss(model, batch).item()
    _require(last <= 0.8 * loss.item(), f"{_LEARNING_STEPS} steps on one batch took the loss to {last:.3g} only")


def check_updates(case: RecipeCase, folder: Path) -> None:
    """Frozen parameters exist, constraints applied twice change nothing more, coupled micro-batches have one size."""
    del folder
    recipe = case.published()
    model = new_model(recipe)
    names = {name for name, _ in model.named_parameters()}
    for step in (0, 1, 1000):
        _require(recipe.frozen(step) <= names, f"at step {step} a parameter is frozen that the model lacks")
        recipe.constrain(model, step)
        once = digest(model.state_dict())
        recipe.constrain(model, step)
        _require(digest(model.state_dict()) == once, "to constrain parameters twice changes them again")
    _require(
        all(isinstance(recipe.decayed(name, each), bool) for name, each in model.named_parameters()),
        "whether a parameter decays is no bool",
    )
    size = recipe.fixed_micro_batch_size
    _require((size is None) == (recipe.coupling == "none"), "only coupled micro-batches have a fixed size")


def check_evaluation(case: RecipeCase, folder: Path) -> None:
    """Figures repeat themselves, hold the headline, and leave the model and torch's generator as they were."""
    recipe, files = case.published(), case.files(folder)
    model = new_model(recipe)
    with _leaving_as_it_was(model, "to evaluate"):
        figures = recipe.evaluate(model, files)
        _require(figures == recipe.evaluate(model, files), "the same model has two figures")
        _require(figures == case.published().evaluate(model, files), "another recipe object finds other figures")
    _require(recipe.headline.name in figures, f"there is no figure {recipe.headline.name}")
    _require(all(isinstance(each, float) for each in figures.values()), "a figure is no float")


@contextmanager
def _leaving_as_it_was(model: nn.Module, what: str) -> Iterator[None]:
    before, generator = digest(model.state_dict()), torch.random.get_rng_state()
    yield
    _require(digest(model.state_dict()) == before, f"{what} changes the model")
    _require(model.training, f"{what} leaves the model in evaluation mode; minga.recipes.evaluating puts it back")
    _require(torch.equal(generator, torch.random.get_rng_state()), f"{what} changes torch's generator")
    _require(all(each.grad is None for each in model.parameters()), f"{what} leaves gradients")


def check_demo(case: RecipeCase, folder: Path) -> None:
    """The settings of the demo and of each size are valid; `show` has each model make something in each row, and leaves
    models and torch's generator as they were.
    """
    found = RECIPES.get(case.name)
    runs = {"demo_spec": found.demo_spec()}
    runs |= {f"the size {size}": {"recipe": {case.name: found.size_settings(size, None)}} for size in found.sizes}
    for what, tables in runs.items():
        try:
            load_recipe(RunSpec.from_mapping({"name": "conformance", "model": {"recipe": case.name}, **tables}))
        except ConfigurationError as error:
            raise Violation(f"the settings of {what} are refused: {error}") from error
    recipe = case.published()
    model = new_model(recipe)
    with _leaving_as_it_was(model, "to show models"):
        showing = recipe.show([model, model], case.files(folder))
    _require(all(len(row.made) == 2 for row in showing.rows), "a row does not hold what each of two models made")


def check_export(case: RecipeCase, folder: Path) -> None:
    """An export has a README, is whole, refuses a directory with content, and says its recipe if that has tasks."""
    recipe, files, target = case.published(), case.files(folder), folder / "exports" / "model"
    model: nn.Module = new_model(recipe)
    recipe.export(model, files, target, recipe.provenance(17))
    _require((target / "README.md").is_file(), "the export has no README.md")
    _require([each.name for each in target.parent.iterdir()] == ["model"], "the export leaves files beside it")
    if recipe.tasks:
        said = read_provenance(target)
        _require(
            said is not None and said.recipe == case.name, "its tasks are not found: no minga.json names the recipe"
        )
        _require(
            said is None or bool(type(recipe).Settings.model_validate(said.settings)),
            "minga.json has no settings of the recipe",
        )
    try:
        recipe.export(model, files, target, recipe.provenance(18))
    except ConfigurationError:
        return
    except Exception as error:
        raise Violation(
            f"an export to a directory with content raises {error!r}; it has to raise ConfigurationError"
        ) from error
    raise Violation("the export writes over a directory with content")


def check_damaged_files(case: RecipeCase, folder: Path) -> None:
    """Files that are missing or damaged give `ConfigurationError` or `StorageError`, if they matter, and no other."""
    files = case.files(folder)
    for name in files:
        broken = folder / "broken" / name
        broken.parent.mkdir(parents=True, exist_ok=True)
        broken.write_bytes(b"\x00damaged")
        for others in ({each: path for each, path in files.items() if each != name}, {**files, name: broken}):
            recipe, what = case.published(), "is damaged" if name in others else "is missing"
            for use in (_first, _evaluated):
                try:
                    use(recipe, others)
                except (ConfigurationError, StorageError):
                    continue
                except Exception as error:
                    raise Violation(
                        f"where the file {name} {what}, the recipe raises {error!r}; it has to raise ConfigurationError"
                    ) from error


def _evaluated(recipe: Recipe[Any], files: Files) -> object:
    return recipe.evaluate(new_model(recipe), files)


RECIPE_CHECKS: Final[tuple[Callable[[RecipeCase, Path], None], ...]] = (
    check_settings,
    check_prepare,
    check_equal_models,
    check_facts,
    check_batches,
    check_public_batches,
    check_synthetic_batch,
    check_loss,
    check_updates,
    check_evaluation,
    check_demo,
    check_export,
    check_damaged_files,
)


def check_recipe(name: str, settings: Mapping[str, Any], folder: Path) -> None:
    """Run every check on a recipe; `folder` is empty and writable."""
    for check in RECIPE_CHECKS:
        check(RecipeCase(name, settings), folder)


def _in_another_process(expression: str, case: RecipeCase, folder: Path | None = None) -> str:
    """The value of an expression about `case` (and its `files` in `folder`) in a process with other seeds."""
    words = (json.dumps([case.name, dict(case.settings), case.seed]), str(folder) if folder else None)
    return said_elsewhere(f"{_ELSEWHERE}say({expression})", *words)[-1]


_ELSEWHERE: Final = """
from pathlib import Path
from minga.testing.recipe_suite import PublicBatch, RecipeCase, digest, new_model
case, folder = RecipeCase(*json.loads(words[0])), words[1]
files = case.files(Path(folder)) if folder else {}
"""
