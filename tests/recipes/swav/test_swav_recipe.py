"""The recipe in runs: the conformance suite, a swarm with a death and a late join, figures and the export."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import minga
from minga.recipes import new_model
from minga.recipes.running.run import RecipeRun, Work
from minga.recipes.swav.evaluation import (
    features_of,
    knn_accuracy,
    linear_probe_accuracy,
    precise_copy,
    renumbered,
    standardized,
)
from minga.recipes.swav.model import PROTOTYPES, SwavModel
from minga.recipes.swav.pictures import packed_files
from minga.simulation.swarm.simulated_peer import TrainerSettings
from minga.testing import RECIPE_CHECKS, RecipeCase
from tests.worlds.extension_world import RecipeReplica, hosted, recipe_swarm
from tests.worlds.swarm_tools import kill_in_a_round, virtually
from tests.worlds.swav_world import SMALL, few_pictures, made_up, small_run

FROZEN = 3


@pytest.fixture(scope="module")
def few(checked: Path) -> Path:
    """The folder of the checks, with few pictures in the place of all digits."""
    _, files = few_pictures(checked)
    (checked / "names.json").write_text(json.dumps(sorted(files)))
    return checked


@pytest.mark.parametrize("check", RECIPE_CHECKS, ids=lambda check: check.__name__)
def test_swav_conforms(check: Callable[[RecipeCase, Path], None], few: Path) -> None:
    check(RecipeCase("swav", SMALL), few)


def test_prototypes_have_norm_1_on_every_peer_after_every_step(tmp_path: Path) -> None:
    _, files = small_run(tmp_path)
    seen: list[tuple[int, torch.Tensor]] = []

    class Watched(RecipeReplica):
        def apply(self, mean: torch.Tensor, step: int) -> None:
            super().apply(mean, step)
            seen.append((step, self.tensors()[f"model/{PROTOTYPES}"].clone()))

    @virtually
    async def main() -> None:
        spec = hosted(
            {
                "name": "swav",
                "model": {"recipe": "swav"},
                "recipe": {"swav": {**SMALL, "freeze_prototypes_steps": FROZEN}},
                "training": {"target_batch_size": 24, "stop_after_steps": 6},
                "optimizer": {"name": "larc", "learning_rate": 2.4, "warmup_steps": 0, "max_grad_norm": "off"},
                "averaging": {"codec": "float16"},
                "state": {"digest_every": 1},
            }
        )
        swarm = recipe_swarm(spec, {}, from_step=0, files=files)
        swarm._make_replica = Watched
        trainer = TrainerSettings(8, 0.2)
        peers = [swarm.add(trainer=trainer) for _ in range(3)]
        await swarm.run_until_step(2, limit_s=300)
        peers.append(swarm.add(trainer=trainer))
        await swarm.run_until_step(4, limit_s=300)
        await kill_in_a_round(swarm, peers.pop(1))
        for peer in peers:
            await peer.ended.wait()
        assert [(peer.error, peer.replica.step) for peer in peers] == [(None, 6)] * 3
        assert len(set(swarm.digests([peer.name for peer in peers]).values())) == 1
        assert not swarm.log.of("member.diverged")
        await swarm.close()

    main()
    first = new_model(RecipeCase("swav", SMALL, seed=0).recipe()).state_dict()[PROTOTYPES]
    for step, prototypes in seen:
        assert (prototypes.norm(dim=1) - 1.0).abs().max() <= 1e-6
        assert torch.equal(prototypes, first) == (step <= FROZEN)
    assert {step for step, _ in seen} == set(range(1, 7))


def test_a_peer_takes_the_micro_batch_of_the_run_and_no_other(tmp_path: Path) -> None:
    spec = hosted(
        {
            "name": "fixed",
            "model": {"recipe": "swav"},
            "recipe": {"swav": SMALL},
            "training": {"target_batch_size": 16, "stop_after_steps": 2},
            "network": {"relay": "none"},
        }
    )
    case, files = small_run(tmp_path / "files")
    del case
    options = minga.PeerOptions(ephemeral=True, directory=tmp_path, host="127.0.0.1")
    with minga.host(spec, options) as peer:
        peer.files.update(files)
        with pytest.raises(minga.ConfigurationError, match="in this run all compute 8 samples at once"):
            RecipeRun(peer, Work("cpu", micro_batch=4))
        sizes: list[int] = []
        run = RecipeRun(peer, Work("cpu"))
        run.train(lambda _: False, lambda step, samples, loss: sizes.append(samples))
        assert run.finished
        assert set(sizes) == {8}


def test_buffers_do_not_matter_to_figures(tmp_path: Path) -> None:
    case, files = few_pictures(tmp_path)
    recipe = case.recipe()
    model = new_model(recipe)
    figures = recipe.evaluate(model, files)
    shares = {f"heldout_{name}_accuracy" for name in ("one_label", "probe", "knn")}
    assert set(figures) == {"heldout_swav_loss", *shares}
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("running_var"):
                buffer.fill_(100.0)
    assert recipe.evaluate(model, files) == figures


def test_precise_statistics_are_those_of_the_pictures() -> None:
    pictures = made_up(300, side=16, channels=1)
    model = new_model(RecipeCase("swav", SMALL).recipe())
    assert isinstance(model, SwavModel)
    precise = precise_copy(model, pictures)
    with torch.no_grad():
        convolved = precise.trunk.embedder.embedder.convolution((pictures.pictures.float() / 255.0 - 0.449) / 0.226)
    mean = precise.trunk.embedder.embedder.normalization.running_mean
    assert torch.allclose(mean, convolved.mean(dim=(0, 2, 3)), atol=0.05)
    assert model.training
    assert not precise.training


def test_without_labels_the_loss_alone_is_told(tmp_path: Path) -> None:
    case, _ = small_run(tmp_path)
    found = made_up(60, channels=1)
    found.labels.fill_(-1)
    files = {}
    for name, body in packed_files(found, 0.2).items():
        files[name] = tmp_path / f"new-{name}"
        files[name].write_bytes(body)
    recipe = case.recipe()
    assert set(recipe.evaluate(new_model(recipe), files)) == {"heldout_swav_loss"}


@pytest.mark.parametrize("settings", [{}, {"crops": [[2, 24, 0.3, 1.0]], "micro_batch_size": 4}])
def test_the_export_gives_the_features_of_the_model_by_the_code_of_its_readme(
    settings: dict[str, object], tmp_path: Path
) -> None:
    case, files = few_pictures(tmp_path / "run", **settings)
    recipe = case.recipe()
    model = new_model(recipe)
    assert isinstance(model, SwavModel)
    target = tmp_path / "export"
    recipe.export(model, files, target, recipe.provenance(3))
    text = (target / "README.md").read_text()
    assert "heldout_probe_accuracy" in text
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert code is not None
    space: dict[str, object] = {}
    exec(code[1].replace("PATH OF THIS DIRECTORY", str(target)), space)
    trunk = space["trunk"]
    assert isinstance(trunk, torch.nn.Module)
    trunk.eval()
    pictures = made_up(4, side=16, channels=1).pictures
    precise = precise_copy(model, recipe._known(files))
    with torch.no_grad():
        ours = precise.features(pictures)
        theirs = trunk((pictures.float() / 255.0 - 0.449) / 0.226).pooler_output.flatten(1)
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_a_model_that_gives_all_pictures_one_answer_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    case, files = few_pictures(tmp_path)
    recipe = case.recipe()
    model: Any = new_model(recipe)
    recipe.evaluate(model, files)
    with torch.no_grad():
        model.prototypes.weight.zero_()  # equal scores everywhere
    assert not caplog.records
    for _ in range(4):
        recipe.evaluate(model, files)
    (told,) = caplog.messages
    assert "gives every picture the same answer" in told
    assert "smaller epsilon" in told


def test_figures_are_of_pictures_as_large_as_training_shows_them(tmp_path: Path) -> None:
    case, files = small_run(tmp_path)
    recipe: Any = case.recipe()
    model: Any = precise_copy(new_model(recipe), recipe._known(files))
    small = made_up(4, side=8, channels=1).pictures
    large = torch.nn.functional.interpolate(small.float(), size=(model.side,) * 2, mode="bilinear").round()
    assert torch.allclose(features_of(model, small), features_of(model, large.to(torch.uint8)), atol=1e-5)


def test_the_demo_shows_which_pictures_are_alike(tmp_path: Path) -> None:
    case, files = small_run(tmp_path / "run")
    recipe = case.recipe()
    rows = recipe.show([new_model(recipe)], files).rows
    for row in rows:
        assert row.given.picture is not None
        (made,) = row.made
        assert made.picture is not None
        near = made.text.split()
        assert made.picture.shape == (8, len(near) * 8, 3)
        assert len(set(near)) == len(near) > 1, "one picture of each class"
    assert len({row.given.text for row in rows}) == len(rows) > 1


# ---- Classifiers on features: right where classes lie apart, at chance where they do not.


def blobs(count: int, apart: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 4
    centres = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)) * apart
    return centres[labels] + torch.randn(count, 6, generator=chance), labels


def test_classes_that_lie_apart_are_found() -> None:
    (training, labels), (test, test_labels) = blobs(400, 5.0, 1), blobs(200, 5.0, 2)
    known, asked = standardized(training, test)
    assert knn_accuracy(known, labels, asked, test_labels) > 0.97
    assert linear_probe_accuracy(known, labels, asked, test_labels) > 0.97


def test_noise_is_classified_by_chance() -> None:
    (training, labels), (test, test_labels) = blobs(400, 0.0, 1), blobs(400, 0.0, 2)
    assert abs(knn_accuracy(training, labels, test, test_labels) - 0.25) < 0.1
    assert abs(linear_probe_accuracy(training, labels, test, test_labels) - 0.25) < 0.1


def test_a_feature_that_never_changes_is_no_harm() -> None:
    training, test = torch.ones(5, 3), torch.ones(2, 3)
    assert all(bool(each.isfinite().all()) for each in standardized(training, test))


def test_labels_are_renumbered_so_that_none_takes_memory_by_its_size() -> None:
    own, others = renumbered(torch.tensor([7, 1_000_000, 7, 3]), torch.tensor([3, 1_000_000, 5, 2_000_000, 7]))
    assert own.tolist() == [1, 2, 1, 0]
    assert others.tolist() == [0, 2, -1, -1, 1]
