"""Masked language models: the last layers on masked places alone, and what a tokenizer must have."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer, PreTrainedTokenizerFast

from minga.core.errors import ConfigurationError
from minga.core.spec.sections import OptimizerSection
from minga.recipes import Recipe, new_model
from minga.recipes.interface import StreamPosition
from minga.recipes.masked_lm.evaluation import GAP
from minga.recipes.masked_lm.model import HEADS, masked_and_order_scores, masked_scores
from minga.recipes.registry import RECIPES
from minga.recipes.text.corpus import HELDOUT_FILE, unpack_documents
from minga.recipes.text.tokenizer import CAUSAL_TOKENS, train_tokenizer
from minga.security.randomness.public_batch import PublicBatch
from minga.testing import RecipeCase
from minga.training.replica.build_optimizer import build_optimizer
from tests.worlds.language_models import SMALL, TEXT, case, language_recipe, prepared
from tests.worlds.recipe_text import ALICE, GENESIS
from tests.worlds.seeds import soaked

OTHERS = ("electra",)
"""Architectures without a known head, which run as a whole."""


def of(architecture: str) -> Recipe[Any]:
    return case("roberta", architecture=architecture, overrides=SMALL).recipe()


@pytest.mark.parametrize("architecture", [*HEADS, *OTHERS])
def test_scores_of_masked_places_are_those_of_the_whole(architecture: str) -> None:
    recipe = of(architecture)
    model, batch = new_model(recipe).eval(), recipe.synthetic_batch(3)
    whole = model(input_ids=batch["input_ids"]).logits.flatten(0, 1)[batch["masked_positions"]]
    torch.testing.assert_close(masked_scores(model, batch), whole, rtol=0, atol=1e-6)
    expected = functional.cross_entropy(whole, batch["labels"])
    assert recipe.total_loss(model, batch).item() == pytest.approx(expected.item(), abs=1e-6)


def test_the_tokenizer_of_an_export_frames_texts_as_training_did(tmp_path: Path) -> None:
    """One from elsewhere that does not say so left out the [CLS] and [SEP] that every row of the run has."""
    described = json.loads(train_tokenizer([GENESIS.read_text("utf-8")], 400))
    (tmp_path / "tokenizer.json").write_text(json.dumps({**described, "post_processor": None}))
    recipe = case("roberta", tokenizer=f"from:{tmp_path}").recipe()
    files = prepared(recipe, tmp_path / "run")
    recipe.export(new_model(recipe), files, tmp_path / "exported", recipe.provenance(1))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "exported")
    batch = next(recipe.batches(files, StreamPosition(ALICE), 1))["input_ids"][0]
    found = tokenizer("In the beginning").input_ids
    assert (found[0], found[-1]) == (batch[0], batch[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)


def test_scores_of_the_order_are_those_of_the_whole() -> None:
    recipe: Any = language_recipe("bert")
    model, batch = new_model(recipe).eval(), recipe.synthetic_batch(3)
    whole = model(**{name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")})
    masked, order = masked_and_order_scores(model, batch)
    torch.testing.assert_close(order, whole.seq_relationship_logits, rtol=0, atol=1e-6)
    expected = whole.prediction_logits.flatten(0, 1)[batch["masked_positions"]]
    torch.testing.assert_close(masked, expected, rtol=0, atol=1e-6)
    loss = recipe.loss(model, batch)
    assert loss.total.item() == pytest.approx(loss.parts["mlm_loss"].item() + loss.parts["sop_loss"].item())
    assert recipe.reported_loss(loss) is loss.parts["mlm_loss"]


def test_parts_have_held_out_twins(tmp_path: Path) -> None:
    recipe: Any = language_recipe("bert")
    model, files = new_model(recipe), prepared(recipe, tmp_path)
    assert set(recipe.evaluate(model, files)) == {"heldout_mlm_loss", "heldout_mlm_accuracy", "heldout_sop_accuracy"}
    del files[HELDOUT_FILE]  # of a run that holds nothing out
    assert recipe.evaluate(model, files) == {}


def test_exports_load_by_auto_classes(tmp_path: Path) -> None:
    for architecture, auto in (("roberta", AutoModelForMaskedLM), ("bert", AutoModelForPreTraining)):
        recipe = language_recipe(architecture)
        files, model = prepared(recipe, tmp_path / f"{architecture}-files"), new_model(recipe).eval()
        recipe.export(model, files, tmp_path / architecture, recipe.provenance(2))
        ids = {"input_ids": recipe.synthetic_batch(1)["input_ids"]}
        loaded = auto.from_pretrained(tmp_path / architecture)
        torch.testing.assert_close(loaded(**ids)[0], model(**ids)[0], rtol=0, atol=1e-6)
        assert auto.__name__ in (tmp_path / architecture / "README.md").read_text("utf-8")


def test_an_exported_tokenizer_cuts_texts_where_training_did(tmp_path: Path) -> None:
    longer = {"max_position_embeddings": 200}
    for architecture, overrides in (("roberta", SMALL), ("bert", SMALL | longer)):
        recipe = language_recipe(architecture, overrides=overrides)
        files, model = prepared(recipe, tmp_path / f"{architecture}-files"), new_model(recipe).eval()
        recipe.export(model, files, tmp_path / architecture, recipe.provenance(2))
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / architecture)
        assert tokenizer.model_max_length == recipe.resolved.max_length < model.config.max_position_embeddings
        long = tokenizer("the cow eats grass " * 400, truncation=True, return_tensors="pt")
        assert model(**long)[0].shape[1] == recipe.resolved.max_length
        card = (tmp_path / architecture / "README.md").read_text("utf-8")
        (said,) = [line for line in card.split("\n") if "longest sequence, in tokens" in line]
        assert f" {recipe.resolved.max_length} " in said


def test_public_batches_are_rows_by_number(tmp_path: Path) -> None:
    recipe = language_recipe("roberta")
    files = prepared(recipe, tmp_path)
    one, two = (recipe.public_batch(files, PublicBatch(b"5" * 32, 3)) for _ in "ab")
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert (one["input_ids"][:, 0] == 2).all()
    assert next(recipe.batches(files, StreamPosition(ALICE), 3))["input_ids"].shape == one["input_ids"].shape


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"objective": "mlm+sop", "packing": "stream"}, "only pairs have an order"),
        ({"objective": "mlm+sop", "packing": "pairs", "architecture": "roberta"}, "no such model"),
    ],
)
def test_objectives_that_a_model_has_no_head_for(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        case("bert", **settings).recipe().published_settings()


def test_pairs_are_refused_where_a_model_knows_one_type_of_segments() -> None:
    overrides = {**SMALL, "type_vocab_size": 1}
    with pytest.raises(ConfigurationError, match="one type of segments"):
        case("roberta", overrides=overrides, packing="pairs").recipe().prepare()
    case("roberta", overrides=overrides).recipe().prepare()


def test_a_tokenizer_without_masks_is_refused(tmp_path: Path) -> None:
    text = [GENESIS.read_text("utf-8")]
    (tmp_path / "tokenizer.json").write_bytes(train_tokenizer(text, 400, "bpe", CAUSAL_TOKENS))
    with pytest.raises(ConfigurationError, match="no token for"):
        case("roberta", tokenizer=f"from:{tmp_path}", data=TEXT).recipe().prepare()


def test_a_roberta_has_a_position_for_each_token_whatever_the_number_of_the_padding(tmp_path: Path) -> None:
    names = ("[CLS]", "[SEP]", "[MASK]", "[UNK]", "[PAD]")
    (tmp_path / "tokenizer.json").write_bytes(train_tokenizer([GENESIS.read_text("utf-8")], 400, "bpe", names))
    recipe = case("roberta", tokenizer=f"from:{tmp_path}", max_length=512).recipe()
    batch = next(recipe.batches(prepared(recipe, tmp_path / "run"), StreamPosition(ALICE), 1))
    assert batch["input_ids"].shape[1] == 512
    assert recipe.total_loss(new_model(recipe), batch).isfinite()


def test_the_library_s_own_tokenizers_serve(tmp_path: Path) -> None:
    text = [GENESIS.read_text("utf-8")]
    names = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    (tmp_path / "tokenizer.json").write_bytes(train_tokenizer(text, 300, "bpe", ("a", "b", *names)))
    recipe = case("roberta", tokenizer=f"from:{tmp_path}", vocabulary_size=0, data=TEXT).recipe()
    files = prepared(recipe, tmp_path / "run")
    batch = next(recipe.batches(files, StreamPosition(ALICE), 4))
    assert (batch["input_ids"][:, 0] == 4).all()
    assert (batch["input_ids"] == 6).any()
    assert recipe.published_settings().vocabulary_size == 300
    assert recipe.total_loss(new_model(recipe), batch).isfinite()


@pytest.mark.parametrize(("name", "samples"), [("masked-lm", 16), soaked("albert", 64), soaked("sahajbert", 64)])
def test_the_demo_learns_which_words_fill_its_gaps(name: str, samples: int, tmp_path: Path) -> None:
    tables: Any = RECIPES.get(name).demo_spec()
    recipe: Any = RecipeCase(name, tables["recipe"][name]).recipe()
    files, model = prepared(recipe, tmp_path), new_model(recipe)
    before = recipe.evaluate(model, files)
    inner, _ = build_optimizer(OptimizerSection(**tables["optimizer"]), model, recipe.decayed)
    for batch in islice(recipe.batches(files, StreamPosition(ALICE), samples), 30):
        inner.zero_grad()
        recipe.total_loss(model, batch).backward()
        inner.step()
    showing, after = recipe.show([model], files), recipe.evaluate(model, files)
    chance = showing.beside["heldout_mlm_accuracy"].value
    assert before["heldout_mlm_accuracy"] < chance < 0.2
    assert after["heldout_mlm_accuracy"] > chance + 0.4
    assert len({row.right.text for row in showing.rows}) == 3


@pytest.mark.parametrize("architecture", ["bert", "roberta", soaked("modernbert")])
def test_the_demo_shows_words_that_fill_gaps(architecture: str, tmp_path: Path) -> None:
    recipe: Any = language_recipe(architecture)
    files = prepared(recipe, tmp_path)
    showing = recipe.show([new_model(recipe)], files)
    assert 0 < showing.beside["heldout_mlm_accuracy"].value < 0.5
    heldout = " ".join(unpack_documents(files[HELDOUT_FILE]))
    assert showing.rows
    for row in showing.rows:
        assert row.given.text.replace(GAP, row.right.text) in heldout
        assert row.made[0].text
