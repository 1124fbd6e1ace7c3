"""Causal language models: any architecture that transformers has for guessing each next token, on any text.

The loss is a mean over samples. Where all are equally long, as `stream` and `best-fit` cut them, it is the mean over
tokens as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn

from minga.recipes.causal_lm.evaluation import HeldOutRows, continuations, evaluate_model, heldout_rows
from minga.recipes.causal_lm.model import FAMILY, SIZES, CausalLmSettings, token_losses
from minga.recipes.data.files import file_of
from minga.recipes.interface import (
    Batch,
    DemoGoal,
    Exhibit,
    Files,
    Loss,
    Metric,
    RecipeContext,
    Sample,
    SampleOptions,
    Showing,
    Shown,
    StreamPosition,
)
from minga.recipes.language.export import CAUSAL
from minga.recipes.language.recipe import LanguageRecipe
from minga.recipes.text.corpus import HELDOUT_FILE, unpack_documents
from minga.recipes.text.samples import Packing, Tokens
from minga.recipes.text.tokenizer import CAUSAL_TOKENS, find_special_tokens, tokens_before
from minga.security.randomness.public_batch import PublicBatch

# ---- From rows of tokens to batches: each row one token longer than a sample, which is guessed from the ones before.


def make_batch(rows: Sequence[Tokens], length: int, padding: int) -> Batch:
    """A batch of n rows of at most `length` + 1 tokens:

    * `input_ids`: int64 [n, length], the first tokens of each row, filled up by `padding`;
    * `labels`: int64 [n, length], the token after each;
    * `label_weights`: float32 [n, length], sum 1 in each row, 0 where the row has ended.
    """
    ids = np.full((len(rows), length + 1), padding, dtype=np.int64)
    weights = np.zeros((len(rows), length), dtype=np.float32)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
        weights[place, : len(row) - 1] = np.float32(1.0 / (len(row) - 1))
    arrays = {"input_ids": ids[:, :-1].copy(), "labels": ids[:, 1:].copy(), "label_weights": weights}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


SHOWN_TEXTS, SHOWN_WORDS, SHOWN_TOKENS = 3, 4, 24


class CausalLmRecipe(LanguageRecipe[CausalLmSettings]):
    """A causal language model on the text that the settings name; see `Recipe` for what each method promises."""

    Settings = CausalLmSettings
    headline = Metric("heldout_perplexity", better="lower")
    demo_goal = DemoGoal(300.0, steps=100)
    family, sizes = FAMILY, tuple(SIZES)
    trained_tokens, end_role = CAUSAL_TOKENS, "end"

    def __init__(self, settings: CausalLmSettings, context: RecipeContext) -> None:
        super().__init__(settings, context)
        self._evaluation: tuple[Path, HeldOutRows] | None = None

    @classmethod
    def demo_spec(cls) -> Mapping[str, Any]:
        """The tiny model on the Bible."""
        return {
            "recipe": {"causal-lm": {"size": "tiny", "data": {"source": "bible"}}},
            "optimizer": {
                "name": "adamw",
                "learning_rate": 0.003,
                "betas": [0.9, 0.95],
                "weight_decay": 0.1,
                "warmup_steps": 10,
                "schedule": "constant",
            },
            "training": {"target_batch_size": 32},
        }

    @property
    def packing(self) -> Packing:
        """As the settings say it."""
        return self.settings.packing

    @property
    def row_length(self) -> int:
        """One token more than a sample: the first is not guessed, the last not read."""
        return self.resolved.max_length + 1

    def check_text(self, documents: list[str], tokenizer: Tokenizer, what: str) -> None:
        """Training text must fill a row; of held-out text any token can be guessed."""
        if what != "held out":
            self.check_rows(documents, tokenizer, what, self.packing)

    def encoded(self, documents: Iterable[str], tokenizer: Tokenizer) -> Iterator[Tokens]:
        """With what stands before each."""
        found, end = super().encoded(documents, tokenizer), find_special_tokens(tokenizer)["end"]
        before = np.array(tokens_before(tokenizer, end, apart=self.packing == "document"), dtype=np.int32)
        return (np.concatenate([before, each]) for each in found)

    def batches(self, files: Files, position: StreamPosition, micro_batch_size: int) -> Iterator[Batch]:
        """Batches as `make_batch` describes them."""
        rows = self.rows(files, position, self.packing)
        padding = self._end(files)
        while True:
            yield make_batch(list(islice(rows, micro_batch_size)), self.resolved.max_length, padding)

    def public_batch(self, files: Files, batch: PublicBatch) -> Batch:
        """Rows of the training text by number; nothing in them is left to chance."""
        rows = self.numbered_rows(files, self.packing)
        chosen = [rows[number] for number in batch.indices(len(rows)).tolist()]
        return make_batch(chosen, self.resolved.max_length, self._end(files))

    def synthetic_batch(self, size: int) -> Batch:
        """Random tokens, all rows as long as the run's longest."""
        settings = self.resolved
        ids = np.random.default_rng(0).integers(0, settings.vocabulary_size, (size, settings.max_length + 1))
        return make_batch(list(ids.astype(np.int32)), settings.max_length, 0)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Cross-entropy in nats a token: a float32 scalar, the mean over the batch's samples."""
        losses = token_losses(model, batch["input_ids"], batch["labels"])
        mean = (losses * batch["label_weights"]).sum(dim=1).mean()
        return Loss(mean, {"loss": mean})

    def evaluate(self, model: nn.Module, files: Files) -> dict[str, float]:
        """`heldout_loss` in nats a token, `heldout_perplexity` and `heldout_bits_per_byte`."""
        if HELDOUT_FILE not in files:
            return {}
        path = files[HELDOUT_FILE]
        if self._evaluation is None or self._evaluation[0] != path:
            tokenizer = self.tokenizer(files)
            end = find_special_tokens(tokenizer)["end"]
            documents, length = list(unpack_documents(path)), self.resolved.max_length
            rows = heldout_rows(documents, tokenizer, end, length, apart=self.packing == "document")
            self._evaluation = (path, rows)
        return evaluate_model(model, self._evaluation[1])

    def sample(self, model: nn.Module, files: Files, prompts: Sequence[str], options: SampleOptions) -> list[Sample]:
        """Continuations of the prompts."""
        tokenizer = self.tokenizer(files)
        end = find_special_tokens(tokenizer)["end"]
        return continuations(model, tokenizer, end, prompts, options, self.resolved.max_length)

    def show(self, models: Sequence[nn.Module], files: Files) -> Showing:
        """How the models go on from the first words of held-out texts."""
        documents = list(islice(unpack_documents(file_of(files, HELDOUT_FILE)), SHOWN_TEXTS))
        prompts = [" ".join(document.split()[:SHOWN_WORDS]) for document in documents]
        options = SampleOptions(temperature=0.7, top_k=40, length=SHOWN_TOKENS)
        drawn = zip(*(self.sample(model, files, prompts, options) for model in models), strict=True)
        rows = [
            Shown(Exhibit(prompt), tuple(Exhibit(each.text.removeprefix(prompt).strip()) for each in samples))
            for prompt, samples in zip(prompts, drawn, strict=True)
        ]
        return Showing(self.settings.data.in_words(), rows)

    @property
    def auto_class(self) -> str:
        """See `LanguageRecipe`."""
        return CAUSAL

    def _end(self, files: Files) -> int:
        return find_special_tokens(self.tokenizer(files))["end"]
