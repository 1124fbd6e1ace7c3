"""The recipe fine-tune: conversations as tokens, adapters on a base that comes with the run, and what it exports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from minga.cli.taking_part.prepared_files import prepared_files
from minga.core.errors import ConfigurationError
from minga.core.files import Content
from minga.core.spec.run_spec import RunSpec
from minga.recipes.fine_tune.chats import USUAL_TEMPLATE, ChatWriter, conversations
from minga.recipes.init_from import load_initial
from minga.recipes.initial import new_model
from minga.recipes.interface import SampleOptions, StreamPosition
from minga.recipes.registry import load_recipe, published
from minga.recipes.text.tokenizer import CAUSAL_TOKENS, read_tokenizer, train_tokenizer
from minga.recipes.text.writing import WRITINGS
from minga.training.replica.replica import Replica

peft = pytest.importorskip("peft", reason="peft makes the adapters")
PLACES = ("river", "barn", "hill", "road")
ANIMALS = ("cow", "cat", "bear", "monkey")


def chats() -> list[dict[str, Any]]:
    found = []
    for number in range(64):
        place, animal = PLACES[number % 4], ANIMALS[number // 4 % 4]
        question, answer = f"where is the {animal} number {number}", f"the {animal} is at the {place}"
        found.append({"prompt": question, "completion": answer})
    return found


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A small model that was never trained, with its tokenizer."""
    texts = [f"{each['prompt']} {each['completion']} user: assistant:" for each in chats()]
    content = train_tokenizer(texts * 4, 300, "bpe", CAUSAL_TOKENS, WRITINGS[""])
    torch.manual_seed(3)
    shape = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.3,  # as if it had learned something
    )
    folder = tmp_path / "base"
    LlamaForCausalLM(shape).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(content)
    (tmp_path / "chats.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in chats()))
    return folder


def run_of(base: Path) -> tuple[RunSpec, dict[str, Path]]:
    """The run as its organiser publishes it, and its files."""
    spec = RunSpec.from_mapping(
        {
            "name": "tuned",
            "model": {"recipe": "fine-tune", "init_from": str(base)},
            "recipe": {"fine-tune": {"max_length": 64, "chats": {"files": [str(base.parent / "chats.jsonl")]}}},
            "optimizer": {"name": "adamw", "learning_rate": 0.01, "warmup_steps": 0},
        }
    )
    made: Mapping[str, Content] = prepared_files(spec, base.parent / "cache")
    folder = base.parent / "files"
    folder.mkdir(exist_ok=True)
    for name, content in made.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.read_bytes())
    return published(spec), {name: folder / name for name in made}


def test_only_what_the_assistant_says_carries_loss(base: Path) -> None:
    tokenizer = read_tokenizer((base / "tokenizer.json").read_bytes(), 300)
    writer = ChatWriter(tokenizer, USUAL_TEMPLATE)
    turns = [("user", "where is the cow"), ("assistant", "at the hill"), ("user", "and"), ("assistant", "the barn")]
    messages = [{"role": role, "content": content} for role, content in turns]
    ((ids, carries),) = writer.marked([json.dumps({"messages": messages})])
    learned = tokenizer.decode(ids[carries == 1].tolist(), skip_special_tokens=False)
    assert "at the hill" in learned
    assert "the barn" in learned
    assert "cow" not in learned
    assert learned.count("<|endoftext|>") == 2
    ((_, everything),) = writer.marked([json.dumps({"text": "the cow is at the hill"})])
    assert everything.all()


def test_files_of_conversations_are_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    for line in ("{", "[]", '{"messages": [{"role": "user", "content": "x"}]}', '{"messages": [{"role": "god"}]}'):
        path.write_text(f'{{"text": "fine"}}\n{line}\n')
        with pytest.raises(ConfigurationError, match=r"bad\.jsonl, line 2"):
            list(conversations([str(path)]))


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # of peft
def test_adapters_learn_on_the_base_that_comes_with_the_run_and_are_exported_alone(base: Path) -> None:
    spec, files = run_of(base)
    assert spec.model.init_from is None
    recipe = load_recipe(spec)
    model = new_model(recipe)
    load_initial(model, files)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    ids = torch.arange(12).view(1, -1)
    torch.testing.assert_close(model(input_ids=ids).logits, plain(input_ids=ids).logits)

    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.02)
    before = recipe.evaluate(model, files)
    assert before["heldout_loss"] == pytest.approx(before["heldout_loss_of_base"])
    for batch in islice(recipe.batches(files, StreamPosition("ab" * 32), 8), 60):
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
    (answer,) = recipe.sample(model, files, ["where is the cow number 3"], SampleOptions(temperature=0.0, length=12))
    assert answer.text

    out = base.parent / "out"
    recipe.export(model, files, out, recipe.provenance(60))
    loaded = peft.PeftModel.from_pretrained(plain, out)
    model.eval()
    torch.testing.assert_close(model(input_ids=ids).logits, loaded(input_ids=ids).logits)
    assert sum(each.stat().st_size for each in out.iterdir()) < 0.6 * (base / "model.safetensors").stat().st_size
