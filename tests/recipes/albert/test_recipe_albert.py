from __future__ import annotations

import itertools
import json
from collections.abc import Mapping

import datasets
import pytest
import torch
from blake3 import blake3
from torch import nn
from transformers import AlbertForPreTraining, AutoModel, AutoTokenizer
from transformers.activations import ACT2FN

from minga.core.errors import ConfigurationError, StorageError
from minga.recipes.albert.model import albert_logits
from minga.recipes.albert.recipe import AlbertRecipe
from minga.recipes.data.hold_out import content_rank
from minga.recipes.initial import new_model
from minga.recipes.interface import Batch, StreamPosition
from minga.recipes.registry import load_recipe
from minga.recipes.text.corpus import HELDOUT_FILE, TRAINING_FILE, unpack_documents
from minga.recipes.text.tokenizer import TOKENIZER_FILE
from minga.security.randomness.public_batch import PublicBatch
from minga.testing import RecipeCase
from minga.testing.recipe_suite import check_loss
from minga.training.replica.build_optimizer import build_optimizer
from tests.worlds.recipe_text import ALICE, BOB, GENESIS, long_text, small_recipe, small_spec, write_files


@pytest.fixture
def files(tmp_path):
    return write_files(tmp_path)


@pytest.fixture
def recipe() -> AlbertRecipe:
    return small_recipe()


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def rows(batch: Batch, start: int, end: int) -> Batch:
    """Some samples of a batch as a batch of their own."""
    width, n = batch["input_ids"].shape[1], batch["input_ids"].shape[0]
    inside = (batch["masked_positions"] >= start * width) & (batch["masked_positions"] < end * width)
    return {
        **{name: batch[name][start:end] for name in ("input_ids", "token_type_ids", "attention_mask", "sop_labels")},
        "masked_positions": batch["masked_positions"][inside] - start * width,
        "labels": batch["labels"][inside],
        "label_weights": batch["label_weights"][inside] * n / (end - start),
    }


def test_registry():
    assert isinstance(load_recipe(small_spec()), AlbertRecipe)


def test_prepared_files(files):
    assert set(files) == {TOKENIZER_FILE, HELDOUT_FILE, TRAINING_FILE}
    training, heldout = (list(unpack_documents(files[name])) for name in (TRAINING_FILE, HELDOUT_FILE))
    assert heldout
    assert not set(training) & set(heldout)
    assert " ".join(training + heldout).split().__len__() == len(GENESIS.read_text("utf-8").split())


def test_preparing_checks_the_text_and_the_model(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(f'{{"text": "Sentence number {i} has nobody at its side"}}' for i in range(50)))
    with pytest.raises(ConfigurationError, match="no document to train on has two sentences"):
        small_recipe(data={"files": [str(path)]}).prepare()
    with pytest.raises(ConfigurationError, match=r"recipe\.albert\.overrides"):
        small_recipe(albert={"overrides": {"hidden_sise": 3}}).prepare()


def test_equal_specs_give_equal_models_and_leave_torch_alone(recipe):
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, two = recipe.build_model(), small_recipe().build_model()
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    other = small_recipe(training={"seed": 4}).build_model()
    assert not torch.equal(one.albert.pooler.weight, other.albert.pooler.weight)
    words = one.albert.embeddings.word_embeddings.weight
    assert words.data_ptr() == one.predictions.decoder.weight.data_ptr()
    assert words.std().item() == pytest.approx(0.02, rel=0.05)
    assert not words[0].any()
    assert not one.predictions.bias.any()
    assert one.training


@pytest.mark.parametrize(
    ("size", "vocabulary", "millions"), [("tiny", 8192, 1.25), ("base", 30_000, 11.7), ("large", 30_000, 17.8)]
)
def test_sizes(size, vocabulary, millions):
    recipe = small_recipe(albert={"size": size, "overrides": {}, "vocabulary_size": vocabulary})
    with torch.device("meta"):
        model = recipe.build_model()
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.01)


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


def test_override_is_applied():
    overrides = {"num_hidden_layers": 5, "hidden_size": 32, "hidden_act": "relu"}
    model = small_recipe(albert={"overrides": overrides}).build_model()
    assert (model.config.num_hidden_layers, model.config.hidden_act) == (5, "relu")


@pytest.mark.parametrize("size", ["tiny", "small", "base", "large"])
def test_no_size_draws_in_its_loss(size, tmp_path):
    narrow = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    data = {"source": "files", "files": [str(GENESIS)]}
    settings = {"size": size, "max_length": 32, "vocabulary_size": 300, "overrides": narrow, "data": data}
    check_loss(RecipeCase("albert", settings), tmp_path)


def test_activation_is_that_of_albert():
    x = torch.linspace(-6, 6, 1001)
    torch.testing.assert_close(ACT2FN["gelu_pytorch_tanh"](x), ACT2FN["gelu_new"](x))


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


def test_weighted_gradients_of_parts_are_the_gradient_of_the_whole(recipe, files):
    model = recipe.build_model()
    batch = next(recipe.batches(files, StreamPosition(ALICE), 12))
    recipe.total_loss(model, batch).backward()
    whole = gradients(model)
    model.zero_grad()
    for start, end in ((0, 1), (1, 4), (4, 12)):
        (recipe.total_loss(model, rows(batch, start, end)) * (end - start) / 12).backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, whole[name], rtol=1e-4, atol=1e-6)


def test_batches_are_reproducible_and_differ_between_peers(recipe, files):
    def some(peer: str) -> list[Batch]:
        return list(itertools.islice(recipe.batches(files, StreamPosition(peer), 4), 5))

    for one, two in zip(some(ALICE), some(ALICE), strict=True):
        assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(some(ALICE)[0]["labels"][:10], some(BOB)[0]["labels"][:10])
    with pytest.raises(ConfigurationError, match="micro-batch"):
        next(recipe.batches(files, StreamPosition(ALICE), 0))


def test_evaluation_repeats_itself_and_leaves_no_trace(recipe, files):
    model = recipe.build_model()
    before = torch.random.get_rng_state()
    first = recipe.evaluate(model, files)
    again = small_recipe().evaluate(model, files)
    assert first == again == recipe.evaluate(model, files)
    assert torch.equal(before, torch.random.get_rng_state())
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert first["heldout_mlm_loss"] == pytest.approx(6.9, abs=0.1)  # ln(1000)
    assert 0.3 < first["heldout_sop_accuracy"] < 0.7
    without = {name: path for name, path in files.items() if name != HELDOUT_FILE}
    assert recipe.evaluate(model, without) == {}


def test_training_learns(files):
    spec = small_spec()
    recipe = load_recipe(spec)
    model = recipe.build_model()
    optimizer, scheduler = build_optimizer(spec.optimizer, model)
    first = recipe.evaluate(model, files)["heldout_mlm_loss"]
    for batch in itertools.islice(recipe.batches(files, StreamPosition(ALICE), 16), 25):
        optimizer.zero_grad()
        recipe.total_loss(model, batch).backward()
        optimizer.step()
        scheduler.step()
    assert recipe.evaluate(model, files)["heldout_mlm_loss"] < first - 0.5


def test_bfloat16_and_autocast(recipe, files):
    batch = next(recipe.batches(files, StreamPosition(ALICE), 4))
    model = recipe.build_model()
    full = recipe.total_loss(model, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = recipe.total_loss(model, batch)
    half = recipe.total_loss(model.bfloat16(), batch)
    for loss in (full, mixed, half):
        assert loss.dtype == torch.float32
        torch.testing.assert_close(loss, full, rtol=0.02, atol=0.0)


def test_other_models_are_refused(recipe, files, tmp_path):
    batch = next(recipe.batches(files, StreamPosition(ALICE), 1))
    with pytest.raises(TypeError, match="Linear"):
        recipe.total_loss(nn.Linear(1, 1), batch)
    with pytest.raises(TypeError, match="Linear"):
        recipe.export(nn.Linear(1, 1), files, tmp_path / "x", recipe.provenance(0))


def test_missing_and_damaged_files(recipe, files, tmp_path):
    model = recipe.build_model()
    with pytest.raises(ConfigurationError, match=r"tokenizer\.json"):
        next(recipe.batches({}, StreamPosition(ALICE), 1))
    with pytest.raises(ConfigurationError, match=TRAINING_FILE):
        next(recipe.batches({TOKENIZER_FILE: files[TOKENIZER_FILE]}, StreamPosition(ALICE), 1))
    with pytest.raises(StorageError, match="nowhere"):
        next(recipe.batches({**files, TOKENIZER_FILE: tmp_path / "nowhere"}, StreamPosition(ALICE), 1))
    files[HELDOUT_FILE].write_bytes(b"damaged")
    with pytest.raises(ConfigurationError, match=HELDOUT_FILE):
        recipe.evaluate(model, files)


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


def test_streamed_run(tmp_path, monkeypatch):
    text = GENESIS.read_text("utf-8").split("\n\n")
    path = tmp_path / "rows.txt"
    path.write_text("\n".join(text), encoding="utf-8")
    real = datasets.load_dataset
    monkeypatch.setattr(
        datasets,
        "load_dataset",
        lambda _name, **how: real(
            "text", **{**how, "data_files": str(path), "cache_dir": str(tmp_path / "cache"), "name": None}
        ),
    )
    spec = small_spec(data={"source": "datasets", "files": [], "name": "owner/genesis", "heldout_fraction": 0.2})
    recipe = load_recipe(spec)
    files = write_files(tmp_path, recipe.prepare())
    assert set(files) == {TOKENIZER_FILE, HELDOUT_FILE}
    heldout = list(unpack_documents(files[HELDOUT_FILE]))
    assert heldout
    assert all(content_rank(document) < 0.2 for document in heldout)
    assert "heldout_mlm_loss" in recipe.evaluate(recipe.build_model(), files)
    batches = [list(itertools.islice(recipe.batches(files, StreamPosition(p), 8), 4)) for p in (ALICE, ALICE, BOB)]
    assert torch.equal(batches[0][3]["input_ids"], batches[1][3]["input_ids"])
    assert not torch.equal(batches[0][0]["labels"][:9], batches[2][0]["labels"][:9])


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
