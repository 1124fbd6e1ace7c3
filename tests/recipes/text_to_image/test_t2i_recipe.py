"""The text-to-image recipe: the conformance suite, files, batches, loss, figures, sampling, export."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

from minga.core.errors import ConfigurationError
from minga.recipes.initial import new_model
from minga.recipes.interface import SampleOptions, StreamPosition
from minga.recipes.text.tokenizer import TOKENIZER_FILE
from minga.recipes.text_to_image.decoder import TextToImageDecoder
from minga.recipes.text_to_image.evaluation import unpack_captions
from minga.recipes.text_to_image.export import load_exported
from minga.recipes.text_to_image.pairs import Pairs, encode_captions, pack_pairs, read_pairs
from minga.recipes.text_to_image.prepare import HELDOUT_FILE, SAMPLES_FILE, TRAINING_FILE, prepare_files
from minga.recipes.text_to_image.recipe import TextToImageRecipe
from minga.recipes.text_to_image.settings import TextToImageSettings
from minga.recipes.text_to_image.tokens import DESCRIPTION_FILE, PARAMETERS_FILE
from minga.security.randomness.public_batch import PublicBatch
from minga.testing import RECIPE_CHECKS, RecipeCase
from tests.worlds.recipe_pictures import SMALL, picture_recipe, picture_spec, small_shape, write_pictures

ALICE = "a1" * 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("conformance")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    own = tmp_path / "files"
    own.mkdir()
    return write_pictures(own)


def trained(recipe, files, steps: int = 12) -> TextToImageDecoder:  # type: ignore[no-untyped-def]
    model = new_model(recipe)
    assert isinstance(model, TextToImageDecoder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for batch in itertools.islice(recipe.batches(files, StreamPosition(ALICE), 8), steps):
        optimizer.zero_grad()
        recipe.total_loss(model, batch).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("check", RECIPE_CHECKS, ids=lambda check: check.__name__)
def test_text_to_image_conforms(check: Callable[[RecipeCase, Path], None], folder: Path) -> None:
    check(RecipeCase("text-to-image", SMALL), folder)


def test_a_run_ships_codes_and_captions_as_ids_and_both_tokenizers(files: dict[str, Path]) -> None:
    assert set(files) == {
        TOKENIZER_FILE,
        TRAINING_FILE,
        HELDOUT_FILE,
        SAMPLES_FILE,
        DESCRIPTION_FILE,
        PARAMETERS_FILE,
    }
    shape = picture_recipe().settings.shape()
    training, heldout = read_pairs(files[TRAINING_FILE], shape), read_pairs(files[HELDOUT_FILE], shape)
    assert (len(training), len(heldout)) == (106, 14)
    assert training.codes.dtype == training.captions.dtype == np.uint16
    assert training.codes.shape == (106, 64)
    captions = unpack_captions(files[SAMPLES_FILE])
    assert len(captions) == 14
    assert all(" background, " in caption for caption in captions)


def test_the_loss_weighs_the_picture_seven_times_and_has_both_parts(files: dict[str, Path]) -> None:
    recipe = picture_recipe()
    model, batch = new_model(recipe), next(recipe.batches(files, StreamPosition(ALICE), 4))
    loss = recipe.loss(model, batch)
    assert loss.total.item() == pytest.approx((loss.parts["text_loss"] + 7 * loss.parts["image_loss"]).item() / 8)
    assert recipe.reported_loss(loss) is loss.parts["image_loss"]


def test_padding_is_predicted_only_if_the_run_says_so(files: dict[str, Path]) -> None:
    recipe, padded = picture_recipe(), picture_recipe(loss_on_padding=True)
    model, batch = new_model(recipe), next(recipe.batches(files, StreamPosition(ALICE), 4))
    batch["captions"][:, 3:] = 0
    ignoring, counting = (each.loss(model, batch).parts["text_loss"].item() for each in (recipe, padded))
    assert ignoring != counting
    batch["captions"][:] = 0
    assert recipe.loss(model, batch).parts["text_loss"].item() == 0
    assert padded.loss(model, batch).parts["text_loss"].item() > 1


def test_captions_are_left_out_of_the_share_of_samples_that_the_run_says(files: dict[str, Path]) -> None:
    recipe = picture_recipe(caption_dropout=0.5)
    batch = next(recipe.batches(files, StreamPosition(ALICE), 200))
    empty = (batch["captions"] == 0).all(dim=1).float().mean().item()
    assert 0.35 < empty < 0.65
    public = PublicBatch(b"5" * 32, 64)
    again = recipe.public_batch(files, public), picture_recipe(caption_dropout=0.5).public_batch(files, public)
    assert torch.equal(again[0]["captions"], again[1]["captions"])
    assert not torch.equal(again[0]["captions"], picture_recipe().public_batch(files, public)["captions"])


def test_figures_say_how_pictures_follow_captions(files: dict[str, Path]) -> None:
    recipe = picture_recipe()
    figures = recipe.evaluate(new_model(recipe), files)
    names = {"background", "position", "size", "drawing"}
    assert set(figures) == {"heldout_image_loss", "heldout_text_loss", *(f"sample_{name}_accuracy" for name in names)}
    assert all(0 <= value <= 1 for name, value in figures.items() if name.endswith("accuracy"))
    assert recipe.evaluate(new_model(recipe), {TRAINING_FILE: files[TRAINING_FILE]}) == {}


def test_equal_seeds_give_equal_pictures_and_no_picture_depends_on_the_others(files: dict[str, Path]) -> None:
    recipe = picture_recipe()
    model = trained(recipe, files)
    state = {name: each.clone() for name, each in model.state_dict().items()}
    prompts = ["a red apple on a blue background", "wolf on a red background, large, left"]
    many = recipe.sample(model, files, prompts, SampleOptions(count=3, seed=5))
    assert [each.prompt for each in many] == [prompts[0]] * 3 + [prompts[1]] * 3
    assert all(each.image is not None and each.image.shape == (32, 32, 3) for each in many)
    few = recipe.sample(model, files, prompts[:1], SampleOptions(count=2, seed=5))
    for one, other in zip(few, many[:2], strict=True):
        assert np.array_equal(one.image, other.image)  # type: ignore[arg-type]
    other = recipe.sample(model, files, prompts[:1], SampleOptions(count=1, seed=6))
    assert not np.array_equal(other[0].image, many[0].image)  # type: ignore[arg-type]
    assert model.training
    assert all(torch.equal(each, state[name]) for name, each in model.state_dict().items())


def test_an_export_can_be_read_without_a_run(files: dict[str, Path], tmp_path: Path) -> None:
    recipe = picture_recipe()
    model, target = trained(recipe, files, steps=2), tmp_path / "model"
    recipe.export(model, files, target, recipe.provenance(2))
    found = sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file())
    assert found == [
        "README.md",
        "config.json",
        "grid.png",
        "image_tokenizer/config.json",
        "image_tokenizer/model.safetensors",
        "minga.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    again = load_exported(target)
    batch = next(recipe.batches(files, StreamPosition(ALICE), 2))
    with torch.no_grad():
        for ours, theirs in zip(model.eval()(*batch.values()), again(*batch.values()), strict=True):
            assert torch.equal(ours, theirs)
    card = (target / "README.md").read_text("utf-8")
    assert "after 2 global steps" in card
    with Image.open(target / "grid.png") as grid:
        assert grid.text["seed"] == "0"  # type: ignore[attr-defined]


def test_a_word_with_the_id_of_padding_keeps_its_place() -> None:
    words = Tokenizer(models.WordLevel({"red": 0, "green": 1, "cat": 2, "[UNK]": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    assert encode_captions(words, ["red cat", "green red cat"], 4).tolist() == [[0, 2, 0, 0], [1, 0, 2, 0]]
    words.add_special_tokens(["red"])
    assert encode_captions(words, ["red cat", "green red cat"], 4).tolist() == [[2, 0, 0, 0], [1, 2, 0, 0]]


def test_a_folder_that_is_no_export_is_refused(tmp_path: Path) -> None:
    for body in ("{}", '{"model_type": "bert"}', "[", '{"model_type": "minga-text-to-image", "width": "4"}'):
        (tmp_path / "config.json").write_text(body)
        with pytest.raises(ConfigurationError, match="not an exported"):
            load_exported(tmp_path)


def test_a_demo_shows_pictures_beside_the_real_ones(files: dict[str, Path]) -> None:
    recipe = picture_recipe()
    showing = recipe.show([new_model(recipe)], files)
    for row in showing.rows:
        for view in (*row.made, row.right):
            assert view.picture is not None
            assert view.picture.shape == (32, 32, 3)
    assert len({row.given.text for row in showing.rows}) == len(showing.rows) > 1
    assert set(showing.beside) == {f"sample_{name}_accuracy" for name in ("background", "position", "size", "drawing")}
    assert not recipe.show([new_model(recipe)], {TRAINING_FILE: files[TRAINING_FILE]}).rows


def test_captions_that_a_model_cannot_read_whole_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    for overrides, words in (({}, []), ({"text_length": 6, "vocabulary": 64}, ["are cut at 6 tokens", "no room"])):
        settings = TextToImageRecipe.demo_spec()["recipe"]["text-to-image"]
        data = {**settings["data"], "compositions": 400}  # whose captions have all the words
        settings = {**settings, "overrides": {**settings["overrides"], **overrides}, "data": data}
        caplog.clear()
        prepare_files(TextToImageSettings.model_validate(settings), 0, {})
        assert [word for word in ("are cut at 6 tokens", "no room") if word in caplog.text] == words


def test_pairs_of_another_shape_and_ids_beyond_it_are_refused(tmp_path: Path) -> None:
    shape, path = small_shape(), tmp_path / "pairs"
    good = Pairs(np.ones((3, 5), dtype=np.int64), np.ones((3, 16), dtype=np.int64))
    path.write_bytes(pack_pairs(good, shape))
    assert len(read_pairs(path, shape)) == 3
    for bad in (
        Pairs(good.captions[:, :4], good.codes),
        Pairs(good.captions, good.codes[:2]),
        Pairs(good.captions * 20, good.codes),
        Pairs(good.captions, good.codes * 16),
        Pairs(good.captions[:0], good.codes[:0]),
    ):
        path.write_bytes(pack_pairs(bad, shape))
        with pytest.raises(ConfigurationError):
            read_pairs(path, shape)


def test_a_run_that_members_check_needs_pairs_that_travel_with_it() -> None:
    data = {"source": "hub", "name": "owner/pairs", "code_column": "code"}
    with pytest.raises(ConfigurationError, match="must not be streamed"):
        picture_recipe(data=data).check_public()
    picture_recipe().check_public()


def test_paths_of_the_organiser_are_not_published(tmp_path: Path) -> None:
    from minga.recipes import published

    data = {"source": "folder", "folder": str(tmp_path)}
    spec = picture_spec(data=data, tokenizer=f"from:{tmp_path}")
    assert str(tmp_path) not in published(spec).canonical_bytes().decode()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"levels": [64, 64]}, "4096 codes; the model of this size has 256"),
        ({"overrides": {"side": 40}}, "must stand for 4, 8 or 16 pixels"),
        ({"tokenizer": "from:/no/such/folder"}, "no such folder"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, object], words: str) -> None:
    data = {"compositions": 40}
    with pytest.raises(ConfigurationError, match=words):
        picture_recipe(**{**settings, "data": data}).prepare()
