"""Causal language models: what a row costs in memory, what held-out figures mean, how a model travels and goes on."""

from __future__ import annotations

import json
import math
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.recipes import Recipe, SampleOptions, load_recipe, new_model
from minga.recipes.causal_lm import model as losses_module
from minga.recipes.causal_lm.evaluation import evaluate_model, heldout_rows
from minga.recipes.causal_lm.model import PLAIN_HEADS, token_losses
from minga.recipes.causal_lm.recipe import make_batch
from minga.recipes.init_from import INITIAL_FILE, initial_file, load_initial
from minga.recipes.interface import StreamPosition
from minga.recipes.text.corpus import HELDOUT_FILE, unpack_documents
from minga.recipes.text.samples import TOKENS_FILE, StoredTokens, pack_rows
from minga.recipes.text.tokenizer import END_OF_TEXT, TOKENIZER_FILE, parsed, read_tokenizer, train_tokenizer
from minga.security.randomness.public_batch import PublicBatch
from tests.worlds.language_models import case, gradients, language_recipe, prepared, published
from tests.worlds.recipe_text import ALICE, GENESIS
from tests.worlds.seeds import soaked


@pytest.fixture(scope="module")
def recipe() -> Recipe[Any]:
    return language_recipe("gpt2")


@pytest.fixture(scope="module")
def files(recipe: Recipe[Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return prepared(recipe, tmp_path_factory.mktemp("run"))


@pytest.mark.parametrize("architecture", sorted(PLAIN_HEADS))
def test_losses_in_slices_are_those_of_the_whole(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = {"hidden_size": 32, "num_hidden_layers": 2} | ({} if architecture == "gpt2" else {"head_dim": 8})
    if architecture in ("qwen2", "olmo2", "mistral"):  # heads as wide as the model says
        overrides |= {"num_attention_heads": 4, "num_key_value_heads": 4}
    if architecture in ("qwen2", "olmo2"):
        del overrides["head_dim"]
    recipe = case("gpt2", architecture=architecture, overrides=overrides).recipe()
    model, batch = new_model(recipe), recipe.synthetic_batch(3)
    whole = recipe.total_loss(model, batch)
    whole.backward()  # type: ignore[no-untyped-call]
    expected = gradients(model)
    model.zero_grad()
    monkeypatch.setattr(losses_module, "SLICE_SCORES", 400 * 7)
    sliced = token_losses(model, batch["input_ids"], batch["labels"], most_scores=1)
    loss = (sliced * batch["label_weights"]).sum(1).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(whole.item(), rel=1e-6)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "bert", "modernbert"])
def test_checkpointed_activations_give_equal_gradients(architecture: str) -> None:
    recipe = language_recipe(architecture)
    model, batch = new_model(recipe), recipe.synthetic_batch(2)
    recipe.total_loss(model, batch).backward()  # type: ignore[no-untyped-call]
    expected = gradients(model)
    model.zero_grad()
    recipe.checkpoint_activations(model)
    recipe.total_loss(model, batch).backward()  # type: ignore[no-untyped-call]
    for name, gradient in gradients(model).items():
        assert torch.equal(gradient, expected[name]), name


def test_models_that_keep_their_activations_say_so(recipe: Recipe[Any]) -> None:
    with pytest.raises(ConfigurationError, match="Linear does not do that"):
        recipe.checkpoint_activations(nn.Linear(1, 1))


def test_compiling_reaches_the_layers_below_the_head(recipe: Recipe[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    monkeypatch.setattr(nn.Module, "compile", lambda self: compiled.append(type(self).__name__))
    recipe.compile_model(new_model(recipe))
    assert compiled == ["GPT2LMHeadModel", "GPT2Model"]


def test_no_earlier_token_depends_on_a_later_one(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"head_dim": 8, "intermediate_size": 32, "vocab_size": 400, "max_position_embeddings": 32}
    gemma = {"model_type": "gemma3_text", "use_bidirectional_attention": True, **sizes}
    sight = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    seeing = (  # as the hub has them of models that make embeddings
        {"model_type": "qwen2", "is_causal": False, **sizes},
        gemma,
        {"model_type": "gemma3", "text_config": gemma, "vision_config": sight, "vocab_size": 400},
    )
    recipes: list[Any] = [language_recipe(architecture) for architecture in ("gpt2", "llama", "qwen3")]
    recipes.append(language_recipe("gpt2", architecture="bert"))  # which looks ahead by default
    for config in seeing:
        (tmp_path / "config.json").write_text(json.dumps(config))
        recipes.append(published(language_recipe("gpt2", architecture="", config_from=str(tmp_path), overrides={})))
    for recipe in recipes:
        model, ids = new_model(recipe).eval(), recipe.synthetic_batch(1)["input_ids"]
        changed = ids.clone()
        changed[0, 20] = (changed[0, 20] + 1) % 400
        before, after = (token_losses(model, each, ids)[0].detach() for each in (ids, changed))
        torch.testing.assert_close(before[:20], after[:20], rtol=0, atol=1e-5)
        assert not torch.allclose(before[20:], after[20:], atol=1e-4)


def test_every_document_is_joined_by_an_end(recipe: Recipe[Any], files: dict[str, Path]) -> None:
    stored = StoredTokens(files[TOKENS_FILE], 400)
    assert all(document[-1] == 0 and 0 not in document[:-1] for document in stored.documents())
    batch = next(recipe.batches(files, StreamPosition(ALICE), 4))
    assert torch.equal(batch["input_ids"][:, 1:], batch["labels"][:, :-1])
    public = recipe.public_batch(files, PublicBatch(b"1" * 32, 3))
    rows = [stored.tokens[n * 33 : n * 33 + 33].tolist() for n in range(len(stored.tokens) // 33)]
    for ids, last in zip(public["input_ids"].tolist(), public["labels"][:, -1].tolist(), strict=True):
        assert [*ids, last] in rows


def test_texts_are_begun_from_an_end_however_they_are_packed(tmp_path: Path) -> None:
    """Samples and held-out figures begin texts so; where no row held two documents, no row did. Then rows did, and the
    tokenizer of the export did not.
    """
    words = GENESIS.read_text("utf-8").split()[:2700]
    documents = [" ".join(words[start : start + 9]) for start in range(0, len(words), 9)]
    (tmp_path / "short.jsonl").write_text("\n".join(json.dumps({"text": each}) for each in documents))
    data = {"source": "files", "files": [str(tmp_path / "short.jsonl")], "heldout_fraction": 0.1}
    for packing in ("stream", "best-fit", "document"):
        recipe = case("gpt2", packing=packing, data=data).recipe()
        files = prepared(recipe, tmp_path / packing)
        batch = next(recipe.batches(files, StreamPosition(ALICE), 64))
        begun = ((batch["input_ids"] == 0) & (batch["label_weights"] > 0)).sum(1)
        public = recipe.public_batch(files, PublicBatch(b"1" * 32, 64))
        assert begun.sum() > 20, packing
        assert ((public["input_ids"] == 0) & (public["label_weights"] > 0)).any()
        stored, target = StoredTokens(files[TOKENS_FILE], 400), tmp_path / packing / "exported"
        recipe.export(new_model(recipe), files, target, recipe.provenance(1))
        read = PreTrainedTokenizerFast.from_pretrained(target)(documents).input_ids
        assert all(each[:-1].tolist() in read for each in stored.documents()), packing
        if packing == "document":
            assert all(each[0] == each[-1] == 0 and 0 not in each[1:-1] for each in stored.documents())
            assert begun.max() == 1
            _, own = recipe.own_data(files, data["files"], tmp_path / "own")
            assert all(each[0] == 0 for each in StoredTokens(own[TOKENS_FILE], 400).documents())


class Uniform(nn.Module):
    """Gives every token the same probability."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(vocabulary))
        self.config: Any = type("Config", (), {"vocab_size": vocabulary, "model_type": "uniform"})()

    def forward(self, input_ids: Tensor, use_cache: bool) -> Any:
        return type("Output", (), {"logits": self.scores.expand(*input_ids.shape, -1)})()


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_bits_per_byte_are_those_of_the_text(kind: Any) -> None:
    documents = [f"{text} Œuvre, naïve — 𝄞\nend" for text in GENESIS.read_text("utf-8").split("\n\n")[:5]]
    tokenizer = read_tokenizer(train_tokenizer(documents, 500, kind, [END_OF_TEXT, "<unk>"]), 500)
    rows = heldout_rows(documents, tokenizer, 0, 24)
    encoded = [tokenizer.encode(document, add_special_tokens=False) for document in documents]
    ends = [max(stop for _, stop in one.offsets) for one in encoded]
    read = sum(len(text[:end].encode()) for text, end in zip(documents, ends, strict=True))
    first_of_rows = rows.sizes.shape[0]  # what begins a row is read, and guessed by none
    assert 0 <= read - rows.sizes[rows.is_text].sum() <= 20 * first_of_rows
    tokens = sum(len(one.ids) for one in encoded) + len(documents)
    assert rows.counts.sum() == tokens - first_of_rows
    figures = evaluate_model(Uniform(500), rows)
    assert figures["heldout_loss"] == pytest.approx(math.log(500))
    assert figures["heldout_perplexity"] == pytest.approx(500)
    bits = math.log2(500) * rows.is_text.sum() / rows.sizes[rows.is_text].sum()
    assert figures["heldout_bits_per_byte"] == pytest.approx(bits)


def test_figures_are_made_with_some_documents_of_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [f"{word} {number}" for word in ("cow", "barn") for number in range(200)]
    tokenizer = read_tokenizer(train_tokenizer(documents, 400, "wordpiece", [END_OF_TEXT, "<unk>"]), 400)
    monkeypatch.setattr("minga.recipes.causal_lm.evaluation.MAX_EVALUATION_ROWS", 10)
    rows = heldout_rows(documents, tokenizer, 0, 23)
    assert rows.ids.shape == (10, 24)
    counts = [int((rows.ids == tokenizer.token_to_id(word)).sum()) for word in ("cow", "barn")]
    assert min(counts) > 15
    assert np.array_equal(rows.ids, heldout_rows(documents[::-1], tokenizer, 0, 23).ids)


def test_documents_that_are_trained_on_apart_are_judged_by_apart(tmp_path: Path) -> None:
    """They followed each other in full rows: most tokens stood where a model of short texts had never learned any."""
    words = GENESIS.read_text("utf-8").split()[:2700]
    documents = [" ".join(words[start : start + 2 + start % 40]) for start in range(0, len(words), 9)]
    (tmp_path / "short.jsonl").write_text("\n".join(json.dumps({"text": each}) for each in documents))
    data = {"source": "files", "files": [str(tmp_path / "short.jsonl")], "heldout_fraction": 0.2}
    recipe: Any = case("gpt2", packing="document", data=data).recipe()
    files, model = prepared(recipe, tmp_path / "run"), new_model(recipe)
    tokenizer, heldout = recipe.tokenizer(files), list(unpack_documents(files[HELDOUT_FILE]))
    batch = make_batch(list(pack_rows(recipe.encoded(heldout, tokenizer), 33, "document")), 32, 0)
    losses, carries = token_losses(model, batch["input_ids"], batch["labels"]), batch["label_weights"] > 0
    assert 0.3 < carries.float().mean() < 0.9, "some rows are full"
    assert recipe.evaluate(model, files)["heldout_loss"] == pytest.approx(losses[carries].mean().item(), rel=1e-5)
    rows = heldout_rows(heldout, tokenizer, 0, 400, apart=True)  # one each
    assert rows.sizes[rows.is_text].sum() == sum(len(each.encode()) for each in heldout)


def test_a_run_begins_from_a_saved_model_and_a_joiner_needs_no_folder(
    recipe: Recipe[Any], files: dict[str, Path], tmp_path: Path
) -> None:
    model = new_model(recipe)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    saved = tmp_path / "saved"
    recipe.export(model, files, saved, recipe.provenance(3))
    expected = recipe.evaluate(model, files)["heldout_loss"]
    settings = {"data": case("gpt2").settings["data"]}
    values = {"name": "x", "model": {"recipe": "causal-lm", "init_from": str(saved)}, "recipe": {"causal-lm": settings}}
    organiser = load_recipe(RunSpec.from_mapping(values))
    own = prepared(organiser, tmp_path / "run")
    (tmp_path / "run" / INITIAL_FILE).write_bytes(initial_file(str(saved)))
    own[INITIAL_FILE] = tmp_path / "run" / INITIAL_FILE
    joiner = published(organiser)
    (saved / "config.json").unlink()
    begun = new_model(joiner)
    load_initial(begun, own)
    assert joiner.evaluate(begun, own)["heldout_loss"] == pytest.approx(expected, abs=1e-6)
    joiner.total_loss(begun, next(joiner.batches(own, StreamPosition(ALICE), 2))).backward()  # type: ignore[no-untyped-call]


def test_an_exported_model_generates(recipe: Recipe[Any], files: dict[str, Path], tmp_path: Path) -> None:
    model, target = new_model(recipe), tmp_path / "exported"
    recipe.export(model, files, target, recipe.provenance(1))
    loaded, tokenizer = AutoModelForCausalLM.from_pretrained(target), AutoTokenizer.from_pretrained(target)
    batch = recipe.synthetic_batch(2)
    scores = model.eval()(input_ids=batch["input_ids"]).logits
    torch.testing.assert_close(loaded(input_ids=batch["input_ids"]).logits, scores, rtol=0, atol=1e-6)
    assert (tokenizer.eos_token, tokenizer.model_max_length) == (END_OF_TEXT, 32)
    encoded = tokenizer("In the beginning", return_tensors="pt")
    assert loaded.generate(**encoded, max_new_tokens=4).shape[1] > encoded["input_ids"].shape[1]
    card = (target / "README.md").read_text("utf-8")
    assert "AutoModelForCausalLM" in card
    assert f"| heldout_loss | {recipe.evaluate(model, files)['heldout_loss']:.4f} |" in card
    assert "The text: files of the organiser. No licence is stated here" in card
    assert {stat.S_IMODE(path.stat().st_mode) for path in target.iterdir()} == {0o644}, "others can read it"


def test_what_the_readme_of_an_export_loads_reads_text_as_training_did(tmp_path: Path) -> None:
    # AutoTokenizer would make Qwen's own for this architecture, whatever `tokenizer.json` says.
    overrides = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4}
    recipe = case("gpt2", architecture="qwen2", overrides=overrides).recipe()
    files, target = prepared(recipe, tmp_path / "run"), tmp_path / "exported"
    recipe.export(new_model(recipe), files, target, recipe.provenance(1))
    _, _, rest = (target / "README.md").read_text("utf-8").partition("```python\n")
    loaded: dict[str, Any] = {}
    exec(rest.partition("```")[0].replace("PATH OF THIS DIRECTORY", str(target)), loaded)
    text = "In 1950 the village had 1350 cows"
    expected = read_tokenizer((target / TOKENIZER_FILE).read_bytes(), 400).encode(text).ids
    assert loaded["tokenizer"](text)["input_ids"] == expected


@pytest.mark.parametrize(
    ("single", "packing", "first"),
    [
        soaked("<s> $A", "stream", [1]),
        ("<s> $A", "document", [1]),
        ("<s> <unk> $A", "stream", [1, 0]),
        ("</s> $A </s>", "stream", [2]),
    ],
    ids=["as of Llama", "as of Llama, apart", "as of GLM", "by the end alone"],
)
def test_the_tokenizer_of_an_export_begins_texts_as_training_did(
    single: str, packing: str, first: list[int], tmp_path: Path
) -> None:
    """The exported one set a token before each text that no row of the run had."""
    text = GENESIS.read_text("utf-8")
    given = parsed(train_tokenizer([text], 400, "bpe", ["<unk>", "<s>", "</s>"]))
    given.post_processor = TemplateProcessing(single=single, special_tokens=[("<unk>", 0), ("<s>", 1), ("</s>", 2)])
    given.save(str(tmp_path / TOKENIZER_FILE))
    recipe: Any = case("gpt2", tokenizer=f"from:{tmp_path}", packing=packing).recipe()
    files, target, model = prepared(recipe, tmp_path / "run"), tmp_path / "exported", new_model(recipe)
    recipe.export(model, files, target, recipe.provenance(1))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(target)
    asked = [*first, *given.encode("In the beginning", add_special_tokens=False).ids]
    assert tokenizer("In the beginning").input_ids == asked, "and no end, behind which nothing goes on"
    assert tokenizer.bos_token_id == GenerationConfig.from_pretrained(target).bos_token_id == first[0]
    rows = heldout_rows(list(unpack_documents(files[HELDOUT_FILE])), given, 2, 32, apart=packing == "document")
    is_said = first != [2]  # an end stands before a text anyway
    for document in [*StoredTokens(files[TOKENS_FILE], 400).documents(), rows.ids[0]]:
        assert (document[: len(first)].tolist() == first) == is_said
        assert 1 not in document[1:]
    assert not (rows.is_text & np.isin(rows.ids[:, 1:], [0, 1, 2])).any()
    drawn: list[list[int]] = []
    model.register_forward_pre_hook(lambda _, __, how: drawn.append(how["input_ids"][0].tolist()), with_kwargs=True)
    recipe.sample(model, files, ["In the beginning"], SampleOptions(length=1))
    assert drawn[0] == asked


@pytest.mark.parametrize(
    ("architecture", "words"),
    [
        ("bart", "an encoder and a decoder"),
        ("roberta", "numbers positions from the padding"),
        ("cpmant", "sees the tokens that it is to guess"),
    ],
)
def test_architectures_that_are_no_causal_models(architecture: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        case("gpt2", architecture=architecture, overrides={}).recipe().published_settings()


def test_samples_go_on_from_prompts(recipe: Recipe[Any], files: dict[str, Path]) -> None:
    model = new_model(recipe)
    generator = torch.random.get_rng_state()
    options = SampleOptions(count=2, length=6, top_k=20, top_p=0.9, temperature=0.8, seed=4)
    samples = recipe.sample(model, files, ["In the beginning", ""], options)
    assert [each.prompt for each in samples] == ["In the beginning"] * 2 + [""] * 2
    assert all(each.text.startswith(each.prompt) for each in samples)
    assert samples == recipe.sample(model, files, ["In the beginning", ""], options)
    assert samples != recipe.sample(model, files, ["In the beginning", ""], SampleOptions(count=2, length=6, seed=5))
    assert torch.equal(generator, torch.random.get_rng_state())
    assert model.training
    greedy = [recipe.sample(model, files, ["God"], SampleOptions(temperature=0.0, seed=seed)) for seed in (1, 2)]
    assert greedy[0] == greedy[1]
    with pytest.raises(ConfigurationError, match="at most 31"):
        recipe.sample(model, files, ["God said " * 40], SampleOptions())


def test_a_demo_shows_how_the_model_goes_on(recipe: Recipe[Any], files: dict[str, Path]) -> None:
    showing = recipe.show([new_model(recipe)], files)
    first = next(iter(unpack_documents(files[HELDOUT_FILE]))).split()
    assert showing.rows[0].given.text == " ".join(first[:4])
    assert showing.rows[0].made[0].text


def test_training_on_files_of_ones_own(recipe: Recipe[Any], files: dict[str, Path], tmp_path: Path) -> None:
    text = tmp_path / "own.txt"
    text.write_text("The quick brown fox. " * 200)
    own, paths = recipe.own_data(files, [str(text)], tmp_path / "own")
    batch = next(own.batches(paths, StreamPosition(ALICE), 2))
    tokenizer = read_tokenizer(files["tokenizer.json"].read_bytes(), 400)
    assert "quick brown fox" in tokenizer.decode(batch["input_ids"][0].tolist())
    assert paths[HELDOUT_FILE] == files[HELDOUT_FILE]


def test_too_little_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("Few words.\n\nAnd few more.")
    data = {"source": "files", "files": [str(path)], "heldout_fraction": 0.0}
    with pytest.raises(ConfigurationError, match="too few tokens for a row of 33"):
        case("gpt2", data=data).recipe().prepare()
