"""What only a real accelerator shows: gradients near those of a processor, memory that runs out, number formats."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import minga
from minga.core.spec.run_spec import RunSpec
from minga.optim.arithmetic import forbid_rounded_products
from minga.recipes import load_recipe, new_model
from minga.recipes.running.micro_batch import MadeUpPasses
from minga.recipes.running.precision import choose_precision
from minga.recipes.running.run import RecipeRun, Work
from minga.security.protocol.rules import HONEST_ERROR
from minga.security.verification.claims import relative
from minga.security.verification.count_sketch import distance, norm
from minga.security.verification.gradient_match import _scales
from tests.worlds.extension_world import hosted
from tests.worlds.recipe_text import prepared_genesis, small_spec
from tests.worlds.swav_world import SMALL

GPU, CPU = torch.device("cuda"), torch.device("cpu")
SAMPLES = 8
VERIFIABLE = [
    ("albert", {"size": "tiny"}),
    ("masked-lm", {"size": "tiny"}),
    ("causal-lm", {"size": "tiny"}),
    ("text-to-image", {"size": "tiny"}),
    ("swav", SMALL),
]

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device"),
]


@pytest.fixture(autouse=True)
def _all_memory_afterwards() -> Iterator[None]:
    yield
    gc.collect()
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def gradients_on(device: torch.device, recipe_name: str, settings: dict[str, Any]) -> list[Any]:
    """The gradients of one micro-batch in a Byzantine-tolerant run, of the model as it begins."""
    mapping = {"name": "gpu", "model": {"recipe": recipe_name}, "recipe": {recipe_name: settings}}
    spec = RunSpec.from_mapping({**mapping, "security": {"verification": "byzantine", "micro_batch_size": SAMPLES}})
    recipe, precision = load_recipe(spec), choose_precision("auto", device, spec)
    forbid_rounded_products()
    model = new_model(recipe).to(device)
    torch.manual_seed(3)
    batch = {name: tensor.to(device) for name, tensor in recipe.synthetic_batch(SAMPLES).items()}
    with precision.autocast():
        loss = recipe.total_loss(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    return [each.grad.cpu().numpy().ravel() for each in model.parameters() if each.grad is not None]


def gradient_error(sent: list[Any], recomputed: list[Any]) -> float:
    """The largest relative error of a gradient given in parts, over the parts and the whole."""
    errors = [distance(theirs, own) for theirs, own in zip(sent, recomputed, strict=True)]
    norms, numels = [norm(own) for own in recomputed], [len(own) for own in recomputed]
    whole = relative(math.hypot(*errors), math.hypot(*norms))
    return max(whole, *map(relative, errors, _scales(norms, numels)))


@pytest.mark.parametrize(("recipe", "settings"), VERIFIABLE)
def test_a_processor_confirms_the_gradients_of_a_gpu(recipe: str, settings: dict[str, Any]) -> None:
    """Members of Byzantine-tolerant runs compute each other's gradients again, on devices of any kind."""
    here, there, again = (gradients_on(device, recipe, settings) for device in (CPU, GPU, GPU))
    assert 0.0 < gradient_error(there, here) < HONEST_ERROR
    assert gradient_error(again, there) < HONEST_ERROR / 10


def options(folder: Path) -> minga.PeerOptions:
    return minga.PeerOptions(ephemeral=True, directory=folder, host="127.0.0.1")


def hosting(folder: Path, target: int, steps: int) -> minga.Peer:
    """A peer of a run with a small ALBERT."""
    training = {"target_batch_size": target, "stop_after_steps": steps}
    spec = small_spec(training=training, network={"relay": "none"})
    return minga.host(hosted(spec.model_dump(mode="json")), options(folder), files=dict(prepared_genesis()))


def limit_memory(mebibytes: int) -> None:
    """Let this process have so much more than it has reserved."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (mebibytes << 20)) / total)


def test_the_micro_batch_is_as_large_as_the_gpu_has_memory_for(tmp_path: Path) -> None:
    with hosting(tmp_path, 1 << 16, 2) as peer:
        limit_memory(96)
        run = RecipeRun(peer, Work("cuda"))
        assert run.precision.name == "bfloat16"
        passes = MadeUpPasses(run.recipe, run.model, run.device, run.precision)
        assert passes.seconds(run.micro_batch_size) > 0.0
        with pytest.raises(torch.OutOfMemoryError):
            passes.seconds(1 << 16)
        assert 1 <= run.micro_batch_size < 1 << 16


def test_a_gpu_that_runs_out_of_memory_goes_on_with_half_the_micro_batch(tmp_path: Path) -> None:
    with hosting(tmp_path, 1 << 11, 2) as peer:
        run = RecipeRun(peer, Work("cuda"))
        before = run.micro_batch_size
        torch.cuda.reset_peak_memory_stats()
        own = torch.cuda.memory_allocated()
        MadeUpPasses(run.recipe, run.model, run.device, run.precision).seconds(before)
        limit_memory((torch.cuda.max_memory_allocated() - own) >> 21)  # half of what a micro-batch takes
        losses: list[float] = []
        run.train(lambda _: False, lambda step, samples, loss: losses.append(loss))
        assert run.micro_batch_size < before
        assert losses
        assert run.step == 2


@pytest.mark.parametrize("precision", ["bfloat16", "float16", "float32"])
def test_a_gpu_learns_in_each_number_format(precision: str, tmp_path: Path) -> None:
    losses: list[float] = []
    with hosting(tmp_path, 16, 50) as peer:
        run = RecipeRun(peer, Work("cuda", micro_batch=16, precision=precision))
        run.train(lambda _: False, lambda step, samples, loss: losses.append(loss))
        assert (run.precision.name, run.step) == (precision, 50)
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])
    assert {value.dtype for value in run.model.parameters()} == {torch.float32}
