"""A small base that was never trained, conversations, and a run that tunes it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from minga.core.files import Content, write
from minga.core.spec.run_spec import RunSpec
from minga.recipes.init_from import prepared_files
from minga.recipes.registry import published
from minga.recipes.text.tokenizer import CAUSAL_TOKENS, train_tokenizer
from minga.recipes.text.writing import WRITINGS

PLACES = ("river", "barn", "hill", "road")
ANIMALS = ("cow", "cat", "bear", "monkey")
RunOf = Callable[..., tuple[RunSpec, dict[str, Path]]]


def chats() -> list[dict[str, Any]]:
    found = []
    for number in range(64):
        place, animal = PLACES[number % 4], ANIMALS[number // 4 % 4]
        question, answer = f"where is the {animal} number {number}", f"the {animal} is at the {place}"
        found.append({"prompt": question, "completion": answer})
    return found


@pytest.fixture(scope="session")
def made_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the base; `chats.jsonl` lies beside it."""
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
    folder = tmp_path_factory.mktemp("made") / "base"
    LlamaForCausalLM(shape).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(content)
    (folder.parent / "chats.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in chats()))
    return folder


@pytest.fixture
def base(made_base: Path, tmp_path: Path) -> Path:
    """A copy of it, which a test may change."""
    return shutil.copytree(made_base.parent, tmp_path, dirs_exist_ok=True) / "base"


@pytest.fixture
def run_of(base: Path) -> RunOf:
    """The run as its organiser publishes it, and its files; with further settings of the recipe, and tables."""

    def make(settings: Mapping[str, Any] | None = None, **tables: Any) -> tuple[RunSpec, dict[str, Path]]:
        usual = {"base": str(base), "max_length": 64, "data": {"files": [str(base.parent / "chats.jsonl")]}}
        spec = RunSpec.from_mapping(
            {
                "name": "tuned",
                "model": {"recipe": "fine-tune"},
                "recipe": {"fine-tune": {**usual, **(settings or {})}},
                "optimizer": {"name": "adamw", "learning_rate": 0.01, "warmup_steps": 0},
                **tables,
            }
        )
        shown = published(spec)
        made: Mapping[str, Content] = prepared_files(spec)
        folder = base.parent / "files"
        for name, content in made.items():
            write(folder / name, content)
        return shown, {name: folder / name for name in made}

    return make
