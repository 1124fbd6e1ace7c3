from __future__ import annotations

import itertools
import json
from collections.abc import Mapping

import pytest
import torch
from blake3 import blake3
from transformers import AlbertForPreTraining, AutoModel, AutoTokenizer

from minga.core.errors import ConfigurationError, StorageError
from minga.recipes.albert.model import SIZES, albert_logits
from minga.recipes.albert.recipe import AlbertRecipe
from minga.recipes.initial import new_model
from minga.recipes.interface import StreamPosition
from minga.recipes.registry import published
from minga.recipes.text.corpus import HELDOUT_FILE, TRAINING_FILE
from minga.recipes.text.tokenizer import TOKENIZER_FILE
from minga.security.randomness.public_batch import PublicBatch
from tests.worlds.recipe_text import ALICE, GENESIS, long_text, small_recipe, small_spec, write_files


@pytest.fixture
def files(tmp_path):
    return write_files(tmp_path)


@pytest.fixture
def recipe() -> AlbertRecipe:
    return small_recipe()


def test_preparing_checks_the_text_and_the_model(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(f'{{"text": "Sentence number {i} has nobody at its side"}}' for i in range(50)))
    with pytest.raises(ConfigurationError, match="no document to train on has two sentences"):
        small_recipe(data={"files": [str(path)]}).prepare()
    with pytest.raises(ConfigurationError, match=r"recipe\.albert\.overrides"):
        small_recipe(albert={"overrides": {"hidden_sise": 3}}).prepare()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"no_such_setting": 1}, r"recipe\.albert\.overrides\.no_such_setting: albert has no such setting"),
        ({"vocab_size": 10}, r"recipe\.albert\.overrides\.vocab_size: .* vocabulary_size say it"),
        ({"pad_token_id": 7}, r"recipe\.albert\.overrides\.pad_token_id: the run's tokenizer .* say it"),
        ({"hidden_size": "many"}, "transformers takes no albert with these settings: .* 'hidden_size'"),
        ({"hidden_size": 33}, "transformers makes no albert of these settings: hidden_size is no multiple"),
        ({"num_attention_heads": 0}, "makes no albert of these settings: one of them is 0, and another is divided"),
        ({"hidden_size": -32}, "transformers makes no albert of these settings"),
        ({"num_hidden_layers": True}, "transformers takes no albert with these settings: .* 'num_hidden_layers'"),
        ({"num_hidden_groups": 10**9}, "num_hidden_groups = 1000000000: at most"),
        ({"num_hidden_groups": 0}, "transformers runs no albert of these settings: one of them is 0"),
        ({"max_position_embeddings": 16}, "transformers runs no albert of these settings: The size of tensor"),
        ({"return_dict": False}, "transformers runs no albert of these settings: .* 'last_hidden_state'"),
        ({"chunk_size_feed_forward": 7}, "transformers runs no albert of these settings: The dimension to be chunked"),
        ({"type_vocab_size": 0}, "token_type_embeddings.weight has no elements"),
        ({"layer_norm_eps": -1.0}, "layer_norm_eps = -1.0: at least 0"),
        ({"hidden_act": "no_such_activation"}, "transformers makes no albert of these settings"),
    ],
)
def test_bad_overrides(overrides, words):
    with pytest.raises(ConfigurationError, match=words):
        small_recipe(albert={"overrides": overrides}).prepare()


@pytest.mark.parametrize("size", SIZES)
def test_no_size_draws_in_its_loss(size):
    shape = json.loads(published(small_spec(albert={"size": size, "overrides": {}})).recipe_settings["config"])
    assert {value for name, value in shape.items() if "dropout" in name} == {0.0}


def test_loss_is_that_of_the_transformers_model(recipe, files):
    model = recipe.build_model()
    batch = next(recipe.batches(files, StreamPosition(ALICE), 8))
    assert recipe.samples(batch) == 8
    labels = torch.full_like(batch["input_ids"], -100)
    labels.view(-1)[batch["masked_positions"]] = batch["labels"]
    inputs = {name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")}
    whole = model(**inputs, labels=labels, sentence_order_label=batch["sop_labels"])
    logits, sop = albert_logits(model, batch)
    torch.testing.assert_close(logits, whole.prediction_logits.flatten(0, 1)[batch["masked_positions"]])
    torch.testing.assert_close(sop, whole.sop_logits)
    equal = {**batch, "label_weights": torch.full_like(batch["label_weights"], 1 / len(batch["labels"]))}
    torch.testing.assert_close(recipe.total_loss(model, equal), whole.loss)


def test_exported_model_loads(recipe, files, tmp_path):
    model = recipe.build_model()
    target = tmp_path / "deep" / "exported"
    recipe.export(model, files, target, recipe.provenance(17))
    loaded = AutoModel.from_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(target)
    assert type(loaded).__name__ == "AlbertModel"
    assert torch.equal(loaded.pooler.weight, model.albert.pooler.weight)
    again = AlbertForPreTraining.from_pretrained(target)
    assert torch.equal(again.predictions.decoder.weight, model.predictions.decoder.weight)
    encoded = tokenizer("In the beginning", "God created", return_tensors="pt")
    assert encoded["input_ids"][0, 0] == 2
    assert encoded["token_type_ids"].max() == 1
    assert (tokenizer.pad_token, tokenizer.mask_token, tokenizer.model_max_length) == ("<pad>", "[MASK]", 48)
    assert loaded(**encoded).last_hidden_state.shape[-1] == 32
    card = (target / "README.md").read_text("utf-8")
    assert "# genesis" in card
    assert "17 global steps" in card
    assert recipe.context.run_id in card
    assert [p.name for p in target.parent.iterdir()] == ["exported"]
    with pytest.raises(ConfigurationError, match="not empty"):
        recipe.export(model, files, target, recipe.provenance(18))


def test_failed_export_leaves_nothing(recipe, files, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    model = recipe.build_model()
    monkeypatch.setattr(type(model), "save_pretrained", fail)
    target = tmp_path / "exported"
    target.mkdir()
    names = sorted(tmp_path.iterdir())
    with pytest.raises(StorageError, match="No space left"):
        recipe.export(model, files, target, recipe.provenance(1))
    assert sorted(tmp_path.iterdir()) == names
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be created"):
        recipe.export(model, files, tmp_path / "file" / "below", recipe.provenance(1))


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    hash_ = blake3()
    for name in sorted(tensors):
        hash_.update(name.encode())
        hash_.update(tensors[name].detach().contiguous().numpy().tobytes())
    return hash_.hexdigest()[:32]


def cut_as_before(text):
    documents, pending = [], []
    for paragraph in text.split("\n\n"):
        pending.append(paragraph.strip())
        if sum(map(len, pending)) >= 4000:
            documents.append("\n".join(pending))
            pending = []
    return documents + ["\n".join(pending)] * bool(pending)


def test_the_recipe_computes_what_it_computed_before_it_had_settings_of_its_own(tmp_path):
    # All figures are those of the code in which the run spec itself knew the recipe's words. The tokenizer is given,
    # since training one twice need not give the same bytes; so are the documents into which the text was cut then.
    text = tmp_path / "genesis.jsonl"
    text.write_text("\n".join(json.dumps({"text": document}) for document in cut_as_before(long_text())))
    data = {"files": [str(text)], "heldout_fraction": 0.02}  # which holds out the two documents that a share did then
    recipe = small_recipe(albert={"vocabulary_size": 300}, data=data)
    prepared = {**recipe.prepare(), TOKENIZER_FILE: (GENESIS.parent / "genesis_tokenizer.json").read_bytes()}
    assert blake3(prepared[HELDOUT_FILE]).hexdigest()[:32] == "73ab659cbb58c51f5ff900d2db1d59dd"
    assert blake3(prepared[TRAINING_FILE]).hexdigest()[:32] == "84e4759be9522f196b7bd97ee87abb4c"
    files = write_files(tmp_path, prepared)
    model = new_model(recipe)
    assert digest(model.state_dict()) == "a24870f6622d6b4973128219683528fb"
    batches = list(itertools.islice(recipe.batches(files, StreamPosition(ALICE), 4), 3))
    assert list(map(digest, batches)) == [
        "2880162e9e5744ec2735cbb67e58cd27",
        "07a3ed3419222682b5c8ef2801121fb1",
        "423aae37af09bdbb893a16f9eb1917d0",
    ]
    public = recipe.public_batch(files, PublicBatch(b"7" * 32, 4))
    assert digest(public) == "e66d6e5fd1677f0e28ad04580cb31e35"
    # Sums of floats depend on the processor, if little; here they were equal to the last bit.
    losses = [recipe.total_loss(model, batch).item() for batch in batches]
    assert losses == pytest.approx([6.416290760040283, 6.380298614501953, 6.400347709655762], abs=1e-5)
    optimizer, steps = torch.optim.SGD(model.parameters(), lr=0.1), []
    for batch in batches:
        optimizer.zero_grad()
        loss = recipe.total_loss(model, batch)
        loss.backward()
        optimizer.step()
        steps.append(loss.item())
    assert steps == pytest.approx([6.416290760040283, 6.375329494476318, 6.377816677093506], abs=1e-5)
