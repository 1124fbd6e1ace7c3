"""The model: its sizes to the last parameter, and prototypes of norm 1."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.recipes import load_recipe, new_model
from minga.recipes.swav.model import SwavModel, build_trunk, normalize_prototypes, normalized
from minga.recipes.swav.settings import SwavSettings
from minga.testing import RecipeCase
from tests.worlds.swav_world import SMALL


def counted(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_paper_s_model_has_28_354_752_parameters_and_resnet_18_has_11_176_512() -> None:
    with torch.device("meta"):
        paper = SwavModel(SwavSettings(size="paper"))
        small = build_trunk(SwavSettings(size="small", stem="7x7"))
    assert counted(paper) == 28_354_752
    assert (counted(paper.trunk), counted(paper.head), counted(paper.prototypes)) == (23_508_032, 4_462_720, 384_000)
    assert counted(small) == 11_176_512


def test_plans_know_what_an_image_of_the_paper_costs() -> None:
    facts = RecipeCase("swav", {"size": "paper"}).recipe().facts()
    assert facts.name == "swav-paper"
    assert sum(facts.tensors) == 28_354_752
    assert facts.operations == pytest.approx(75.3e9, rel=0.01)


def test_small_pictures_get_a_small_stem() -> None:
    shapes = {}
    for stem in ("auto", "7x7"):
        trunk = build_trunk(SwavSettings(stem=stem))
        shapes[stem] = tuple(trunk(torch.zeros(1, 1, 28, 28)).last_hidden_state.shape[2:])
    assert shapes == {"auto": (4, 4), "7x7": (2, 2)}


def test_a_model_with_groups_has_no_statistics() -> None:
    model = SwavModel(SwavSettings(**{**SMALL, "norm": "group"}))
    assert not list(model.buffers())
    one = torch.zeros(1, 1, 16, 16, dtype=torch.uint8)
    assert model.embed(model.features(one)).norm().item() == pytest.approx(1.0)


def test_prototypes_begin_with_norm_1_and_to_normalise_them_twice_changes_nothing() -> None:
    model = new_model(RecipeCase("swav", SMALL).recipe())
    assert isinstance(model, SwavModel)
    weight = model.prototypes.weight
    assert (weight.norm(dim=1) - 1.0).abs().max() <= 1e-6
    with torch.no_grad():
        weight.mul_(torch.linspace(0.5, 2.0, len(weight)).view(-1, 1))
        weight[3] = 0.0
    normalize_prototypes(model)
    once = weight.detach().clone()
    assert (once.norm(dim=1) - (torch.arange(len(once)) != 3).float()).abs().max() <= 1e-6
    normalize_prototypes(model)
    assert torch.equal(weight, once)


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_normalised_to_about_0_and_1(channels: int) -> None:
    pictures = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(2, channels, 16, 16)
    found = normalized(pictures)
    assert found.dtype == torch.float32
    assert found[0, 0, 0, 0].item() == pytest.approx(-0.449 / 0.226 if channels == 1 else -0.485 / 0.229)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"crops": [[1, 28, 0.3, 1.0]]}, "at least two crops"),
        ({"crops": [[2, 28, 0.9, 0.3]]}, "exceeds the largest"),
        ({"crops": [[2, 4, 0.3, 1.0]]}, "crops"),
        ({"size": "huge"}, "size"),
        ({"data": {"source": "hub"}}, "needs name"),
        ({"data": {"source": "shards"}}, "needs urls"),
        ({"data": {"source": "digits", "folder": "x"}}, 'for source = "folder" only'),
        ({"micro_batch_size": 8192}, "at most the run's target batch size, 4096"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        RecipeCase("swav", settings).recipe()


def test_a_strangers_run_names_no_shards_on_this_machine() -> None:
    for url in ("/home/me/*.tar", "file:///home/me/a.tar", "http://10.0.0.1/a.tar", "a.tar"):
        settings = {"data": {"source": "shards", "urls": ["https://example.org/a.tar", url]}}
        with pytest.raises(ConfigurationError, match="no https address"):
            RecipeCase("swav", settings).recipe().check_received()
    RecipeCase("swav", {"data": {"source": "shards", "urls": ["https://example.org/a.tar"]}}).recipe().check_received()


@pytest.mark.parametrize(
    ("settings", "size", "message"),
    [
        ({"micro_batch_size": 16, "queue": 8}, 16, "queue = 0"),
        ({"micro_batch_size": 16, "size": "paper", "queue": 0}, 16, "travel as arrays"),
        ({"micro_batch_size": 64}, 16, "security.micro_batch_size = 16 must equal it"),
        ({"micro_batch_size": 16}, 16, ""),
    ],
)
def test_what_members_cannot_check_is_refused(settings: dict[str, object], size: int, message: str) -> None:
    security = {"verification": "byzantine", "micro_batch_size": size}
    mapping = {"name": "x", "model": {"recipe": "swav"}, "recipe": {"swav": settings}, "security": security}
    spec = RunSpec.from_mapping(mapping)
    if not message:
        assert load_recipe(spec).fixed_micro_batch_size == 16
        return
    with pytest.raises(ConfigurationError, match=message):
        load_recipe(spec)


def test_settings_are_published_as_the_size_says(tmp_path: Path) -> None:
    settings = SwavSettings(size="paper", epsilon=0.05, data={"source": "folder", "folder": str(tmp_path)})
    assert (settings.prototypes, settings.epsilon, settings.queue, settings.data.packed_size) == (3000, 0.05, 3840, 0)
    assert SwavSettings.model_validate(settings.model_dump()) == settings
