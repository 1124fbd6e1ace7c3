"""The recipe fine-tune: adapters on a base that is given, what samples they learn from, and what it exports."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.recipes.data.hold_out import content_rank
from minga.recipes.fine_tune.adapters import with_adapters
from minga.recipes.fine_tune.base import _of_hub
from minga.recipes.fine_tune.chats import _conversation
from minga.recipes.fine_tune.recipe import FineTuneRecipe
from minga.recipes.fine_tune.samples import PACKED, Chat, Samples
from minga.recipes.fine_tune.settings import LoraSettings
from minga.recipes.initial import new_model
from minga.recipes.interface import SampleOptions, StreamPosition
from minga.recipes.registry import check_published, load_recipe, published
from minga.recipes.running.run import first_model
from minga.testing import RECIPE_CHECKS, RecipeCase
from minga.training.replica.replica import Replica
from minga.training.transfer.run_files import describe_file
from tests.recipes.fine_tune.conftest import RunOf, chats
from tests.worlds.seeds import soaked

peft = pytest.importorskip("peft", reason="peft makes the adapters")
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # of peft


@pytest.mark.parametrize("check", RECIPE_CHECKS, ids=lambda check: check.__name__)
def test_fine_tune_conforms(check: Callable[[RecipeCase, Path], None], made_base: Path, checked: Path) -> None:
    settings = {"base": str(made_base), "max_length": 64, "data": {"files": [str(made_base.parent / "chats.jsonl")]}}
    check(RecipeCase("fine-tune", settings), checked)


def test_conversations_of_which_nothing_is_learned_are_told_of(
    base: Path, run_of: RunOf, caplog: pytest.LogCaptureFixture
) -> None:
    long = [{"prompt": "where is the cow " * 40 + str(number), "completion": "at the hill"} for number in range(100)]
    short = [{"prompt": f"where is the cow {number}", "completion": "at the hill"} for number in range(20)]
    path = base.parent / "long.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in [*long, *short]))
    data = {"files": [str(path)], "heldout_fraction": 0.0}
    with caplog.at_level(logging.WARNING, "minga.recipes"):
        run_of({"data": data})
    assert "of 100 of 120 conversations nothing is learned" in caplog.text
    assert "max_length = 64" in caplog.text
    path.write_text("".join(f"{json.dumps(each)}\n" for each in long))
    with pytest.raises(ConfigurationError, match="of no conversation anything can be learned; raise max_length"):
        run_of({"data": data})
    caplog.clear()
    run_of()
    assert "is learned" not in caplog.text


def test_held_out_conversations_that_are_too_long_stop_no_run(
    base: Path, run_of: RunOf, caplog: pytest.LogCaptureFixture
) -> None:
    """The organiser read that of no conversation anything could be learned."""
    questions = [f"{number}: {'where is the cow ' * 40}" for number in range(1000)]
    held_out = min(questions, key=lambda each: content_rank(_conversation(each, "at the hill")))
    path = base.parent / "one_long.jsonl"
    rows = [*chats(), {"prompt": held_out, "completion": "at the hill"}]
    path.write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    _, files = run_of({"data": {"files": [str(path)], "heldout_fraction": 1e-9}})
    assert "heldout.safetensors" not in files
    assert "no held-out figures: in none of 1 held-out conversation the assistant says anything" in caplog.text


@pytest.mark.parametrize("lora", [{}, soaked({"dora": True, "rslora": True})], ids=["lora", "dora, rslora"])
def test_adapters_learn_on_a_given_base_and_are_exported_alone_and_merged(
    lora: dict[str, Any], base: Path, run_of: RunOf
) -> None:
    spec, files = run_of({"lora": lora})
    recipe = load_recipe(spec)
    model = first_model(recipe, files)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    ids = torch.arange(12).view(1, -1)
    torch.testing.assert_close(model(input_ids=ids).logits, plain(input_ids=ids).logits)

    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.02)
    before = recipe.evaluate(model, files)
    assert before["heldout_loss"] == pytest.approx(before["heldout_loss_of_base"])
    for batch in islice(recipe.batches(files, StreamPosition("ab" * 32), 8), 40):
        recipe.total_loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    after = recipe.evaluate(model, files)
    assert after["heldout_loss"] < 0.7 * before["heldout_loss"]
    assert after["heldout_loss_of_base"] == pytest.approx(before["heldout_loss"])

    replica = Replica(spec, optimizer, model=model)
    names = [entry.name for entry in replica.capture().tensors if entry.name.startswith("model/")]
    assert names
    assert all("lora_" in name for name in names)
    options = SampleOptions(temperature=0.0, length=12)
    (answer,) = recipe.sample(model, files, ["where is the cow number 3"], options)
    assert answer.text != answer.of_base
    (untrained,) = recipe.sample(first_model(recipe, files), files, ["where is the cow number 3"], options)
    assert answer.of_base == untrained.text == untrained.of_base
    form = json.loads(files["tokenizer_config.json"].read_bytes())
    hostile = base.parent / "hostile.json"
    hostile.write_text(json.dumps({**form, "chat_template": "{{ 1 / 0 }}"}))
    others = {**files, "tokenizer_config.json": hostile}
    assert recipe.sample(model, others, ["where is the cow number 3"], options) == [answer], "nobody renders it"

    out, whole = base.parent / "out", base.parent / "whole"
    recipe.export(model, files, out, recipe.provenance(40))
    wanted = model.eval()(input_ids=ids).logits
    recipe.export_merged(model, files, whole, recipe.provenance(40))
    torch.testing.assert_close(wanted, peft.PeftModel.from_pretrained(plain, out)(input_ids=ids).logits)
    again = AutoModelForCausalLM.from_pretrained(whole, dtype=torch.float32)
    torch.testing.assert_close(wanted, again(input_ids=ids).logits, atol=1e-4, rtol=1e-4)
    assert sum(each.stat().st_size for each in out.iterdir()) < 0.6 * (base / "model.safetensors").stat().st_size
    said = [{"role": "user", "content": "where"}]
    for folder in (out, whole):
        assert "user: where" in AutoTokenizer.from_pretrained(folder).apply_chat_template(said, tokenize=False)


def test_the_files_of_the_base_travel_as_they_are_and_name_no_place(base: Path, run_of: RunOf) -> None:
    spec, files = run_of()
    assert files["base/model.safetensors"].read_bytes() == (base / "model.safetensors").read_bytes()
    assert str(base) not in spec.canonical_bytes().decode()
    check_published(spec)
    assert load_recipe(spec).elsewhere(spec.files) is None


def test_a_base_of_the_hub_is_pinned_and_taken_from_there(
    base: Path, run_of: RunOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0123456789abcdef" * 2 + "01234567"
    snapshot = base.parent / "hub" / commit
    snapshot.parent.mkdir()
    base.rename(snapshot)
    asked: list[tuple[str, Any]] = []

    def snapshot_download(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((name, revision))
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    _of_hub.cache_clear()
    spec, files = run_of({"base": "hub:owner/small@main"})
    assert asked == [("owner/small", "main")]  # once: what is read later is of the same commit
    assert spec.recipe_settings["base"] == f"hub:owner/small@{commit}"
    check_published(spec)

    class Metadata:
        size = (snapshot / "model.safetensors").stat().st_size

    def hf_hub_download(name: str, file: str, revision: str) -> str:
        assert (name, file, revision) == ("owner/small", "model.safetensors", commit)
        return str(snapshot / file)

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda address: Metadata)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    entries = {name: describe_file(path) for name, path in files.items()}
    assert load_recipe(spec).elsewhere(entries) == snapshot
    Metadata.size += 1  # nothing larger than the run says
    assert load_recipe(spec).elsewhere(entries) is None

    class ConnectError(Exception):
        """As of an HTTP client."""

    def unreachable(address: str) -> None:
        raise ConnectError(address)

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", unreachable)
    assert load_recipe(spec).elsewhere(entries) is None  # peers have it
    cached = str(snapshot / "model.safetensors")
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda name, file, revision: cached)
    assert load_recipe(spec).elsewhere(entries) == snapshot


def test_bases_that_cannot_serve_are_refused(base: Path, run_of: RunOf) -> None:
    for settings, message in (
        ({"base": ""}, "name the model to tune"),
        ({"base": "nowhere"}, "no such folder"),
        ({"max_length": 4096}, "128 positions"),
        ({"lora": {"targets": ["no_such_layer"]}}, "no_such_layer"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            new_model(load_recipe(run_of(settings)[0]))
    (base / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="--merge"):
        run_of()


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")  # of peft, before it is refused here
@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_no_adapter_is_for_one_of_two_layers_that_share_their_weights(target: str) -> None:
    shape = LlamaConfig(
        vocab_size=32,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        tie_word_embeddings=True,
    )
    with pytest.raises(ConfigurationError, match=f"{target} has the same weights as another layer"):
        with_adapters(LlamaForCausalLM(shape), LoraSettings(targets=("q_proj", target)))
    with_adapters(LlamaForCausalLM(shape), LoraSettings())


def _chat(*ids: int, says: int) -> Chat:
    import numpy as np

    carries = np.array([0] * (len(ids) - says) + [1] * says, dtype=np.uint8)
    return Chat(np.array(ids, dtype=np.int32), carries)


@pytest.mark.parametrize("architecture", sorted(PACKED))
def test_no_conversation_attends_to_another_of_its_sample(architecture: str) -> None:
    if architecture not in CONFIG_MAPPING:
        pytest.skip("this transformers has no such architecture")
    small = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 64,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "sliding_window": 4,
    }
    usual = CONFIG_MAPPING[architecture]()
    config = CONFIG_MAPPING[architecture](**{name: value for name, value in small.items() if hasattr(usual, name)})
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    chats = [_chat(*range(3, 15), says=5), _chat(*range(20, 27), says=3), _chat(*range(40, 49), says=4)]
    packed = Samples(chats, 32, 0, packing=True)
    assert len(packed) == 1
    batch = packed.batch([0])
    with torch.no_grad():
        together = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False).logits
        for chat in chats:
            ids = torch.tensor(chat.ids[:-1].astype("int64")).unsqueeze(0)
            start = batch["input_ids"][0].tolist().index(int(chat.ids[0]))
            alone = model(input_ids=ids, use_cache=False).logits
            torch.testing.assert_close(together[:, start : start + ids.shape[1]], alone, atol=1e-5, rtol=1e-4)


def test_every_token_that_carries_loss_counts_alike_packed_or_not() -> None:
    chats = [_chat(*range(12), says=5), _chat(*range(7), says=3), _chat(*range(40), says=30), _chat(1, 2, says=1)]
    for packing in (True, False):
        samples = Samples(chats, 20, 0, packing=packing)
        weights = samples.batch(range(len(samples)))["label_weights"]
        assert weights.sum().item() == pytest.approx(len(samples))
        assert len({round(each, 6) for each in weights.unique().tolist()} - {0.0}) == 1
        assert int((weights > 0).sum()) == 5 + 3 + 11 + 1


def test_a_packed_batch_has_the_loss_of_its_conversations_padded(run_of: RunOf) -> None:
    totals = []
    for packing in (True, False):
        spec, files = run_of({"packing": packing})
        recipe = load_recipe(spec)
        assert isinstance(recipe, FineTuneRecipe)
        samples, model = recipe._samples_of(files), first_model(recipe, files)
        batch = samples.batch(range(len(samples)))
        assert packing == ("position_ids" in batch)
        losses = recipe.total_loss(model, batch)
        totals.append((losses * len(samples) / (batch["label_weights"] > 0).sum() * samples._usual).item())
    assert totals[0] == pytest.approx(totals[1], rel=1e-5)


def test_the_small_base_of_minga_makes_a_run_without_any_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minga.recipes.fine_tune.base.TINY_STEPS", 1)
    spec = RunSpec.from_mapping({"name": "x", "model": {"recipe": "fine-tune"}, **FineTuneRecipe.demo_spec()})
    made = load_recipe(spec).prepare()
    files = {name: tmp_path / name for name in made}
    for name, content in made.items():
        files[name].parent.mkdir(exist_ok=True)
        files[name].write_bytes(content)
    recipe = load_recipe(published(spec))
    showing = recipe.show([first_model(recipe, files)], files)
    assert "eat on" in showing.rows[0].given.text
    assert showing.rows[0].right.text.startswith("the ")


def test_the_base_draws_nothing_at_random_where_members_compute_again(base: Path, run_of: RunOf) -> None:
    """Devices draw otherwise: honest members would be banned."""
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.1}))
    drawn = []
    for verification in ("none", "byzantine"):
        spec, _ = run_of(security={"verification": verification})
        drawn.append(json.loads(spec.recipe_settings["config"])["attention_dropout"])
    assert drawn == [0.1, 0.0]


@pytest.mark.parametrize("settings", [{"lora": {"dropout": 0.1}}, {"base_bits": 16}, {"base_bits": 4}])
def test_what_nobody_computes_again_cannot_be_verified(settings: dict[str, Any], run_of: RunOf) -> None:
    with pytest.raises(ConfigurationError, match="dropout = 0 and base_bits"):
        run_of(settings, security={"verification": "byzantine"})


def test_a_base_that_lacks_a_tensor_is_refused(base: Path, run_of: RunOf) -> None:
    tensors = load_file(base / "model.safetensors")
    tensors["model.norm.bias"] = tensors.pop("model.norm.weight")
    save_file(tensors, base / "model.safetensors")
    spec, files = run_of()
    with pytest.raises(ConfigurationError, match=r"lack model\.norm\.weight"):
        first_model(load_recipe(spec), files)
