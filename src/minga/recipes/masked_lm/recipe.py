"""Masked language models: any architecture that transformers has for guessing masked tokens, on any text.

The loss is a mean over samples, not over masked tokens as in transformers: only so do peers with different
micro-batches add up to one large batch. The two agree where all samples are equally long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from minga.core.errors import ConfigurationError
from minga.core.spec.fields import Section
from minga.recipes.data.files import file_of
from minga.recipes.data.order import chance_within
from minga.recipes.evaluation_mode import evaluating
from minga.recipes.interface import (
    Batch,
    Beside,
    DemoGoal,
    Exhibit,
    Files,
    Loss,
    Metric,
    RecipeContext,
    Showing,
    Shown,
    StreamPosition,
)
from minga.recipes.language.config_guard import read_config
from minga.recipes.language.recipe import LanguageRecipe
from minga.recipes.language.shape import ModelFamily
from minga.recipes.masked_lm.batching import pairs_batch, rows_batch, synthetic_batch
from minga.recipes.masked_lm.evaluation import WordGap, commonest_share, evaluate_model, find_gaps, heldout_batches
from minga.recipes.masked_lm.model import (
    FAMILY,
    FAMILY_WITH_ORDER,
    SIZES,
    MaskedLmSettings,
    masked_and_order_scores,
    masked_scores,
)
from minga.recipes.text.corpus import HELDOUT_FILE, TRAINING_FILE, unpack_documents
from minga.recipes.text.samples import (
    Corpus,
    Instance,
    Packing,
    PublicSamples,
    StoredCorpus,
    StreamedCorpus,
    Tokens,
    encode_documents,
    instances,
    make_instances,
    pack_rows,
)
from minga.recipes.text.tokenizer import MASKED_TOKENS, SpecialTokens, find_special_tokens
from minga.security.randomness.public_batch import PublicBatch

M = TypeVar("M", bound=MaskedLmSettings)


class MaskedLmRecipe(LanguageRecipe[M]):
    """A masked language model on the text that the settings name; see `Recipe` for what each method promises."""

    Settings: ClassVar[type[Section]] = MaskedLmSettings
    headline = Metric("heldout_mlm_loss", better="lower")
    demo_goal = DemoGoal(1.2, steps=60)
    family = FAMILY
    sizes = tuple(SIZES)
    trained_tokens, end_role = MASKED_TOKENS, "sep"

    def __init__(self, settings: M, context: RecipeContext) -> None:
        super().__init__(settings, context)
        self._evaluation: tuple[Path, list[Batch]] | None = None
        self._public: tuple[Path, PublicSamples, SpecialTokens] | None = None

    @classmethod
    def demo_spec(cls) -> Mapping[str, Any]:
        """The tiny model on plain sentences: on real text a few minutes of two cores teach it only which words are
        common.
        """
        return {
            "recipe": {"masked-lm": {"packing": "pairs", **cls.demo_settings()}},
            "optimizer": {
                "name": "adamw",
                "learning_rate": 0.003,
                "betas": [0.9, 0.95],
                "weight_decay": 0.1,
                "warmup_steps": 10,
                "schedule": "constant",
            },
            "training": {"target_batch_size": 64},
        }

    @staticmethod
    def demo_settings() -> dict[str, Any]:
        """What the demos of all masked language models have in common.

        Parameters begin five times as large as is usual: else a narrow model takes hundreds of steps until it looks at
        the words around a gap.
        """
        return {
            "size": "tiny",
            "overrides": {"initializer_range": 0.1},
            "max_length": 48,
            "vocabulary_size": 256,
            "data": {"source": "sentences", "heldout_fraction": 0.1},
        }

    # ---- what the settings say

    @property
    def packing(self) -> Packing | None:
        """Rows of text, or None for pairs of segments."""
        return "stream" if self.settings.packing == "stream" else None

    @property
    def has_order(self) -> bool:
        """Whether the model also has to tell if two segments changed places."""
        return self.settings.objective == "mlm+sop"

    @property
    def row_length(self) -> int:
        """A sample without [CLS] and [SEP]."""
        return self.resolved.max_length - 2

    def model_family(self) -> ModelFamily:
        """With a head for the order of segments, if that is an objective."""
        return FAMILY_WITH_ORDER if self.has_order else FAMILY

    # ---- data

    def check_tokens(self, special: SpecialTokens) -> None:
        """It needs tokens for padding, both ends and masks."""
        for role in ("pad", "cls", "sep", "mask"):
            special[role]

    def check_text(self, documents: list[str], tokenizer: Tokenizer, what: str) -> None:
        """There must be a row, or a pair of sentences."""
        if self.packing is not None:
            self.check_rows(documents, tokenizer, what, self.packing)
            return
        if read_config(self.resolved.config).get("type_vocab_size") == 1:
            raise ConfigurationError(
                f'recipe.{self.context.recipe}.packing = "pairs": this model knows one type of segments '
                '(type_vocab_size = 1), and pairs have two; take packing = "stream"'
            )
        encoded = encode_documents(tokenizer, documents, self.writing.split)
        length = self.resolved.max_length
        if next(make_instances(encoded, length, np.random.default_rng(0)), None) is None:
            raise ConfigurationError(
                f"data: no document {what} has two sentences that fit into max_length = {length} tokens"
            )

    def batches(self, files: Files, position: StreamPosition, micro_batch_size: int) -> Iterator[Batch]:
        """Batches as `pairs_batch` and `rows_batch` describe them."""
        if micro_batch_size < 1:
            raise ConfigurationError(f"the micro-batch size must be at least 1, not {micro_batch_size}")
        tokenizer = self.tokenizer(files)
        special = find_special_tokens(tokenizer)
        random = chance_within(self.context.seed, position)
        if self.packing is not None:
            rows = self.rows(files, position, self.packing)
            while True:
                yield self._rows_batch(list(islice(rows, micro_batch_size)), random, special)
        stream = instances(self._corpus(files, tokenizer), self.context.seed, position, self.resolved.max_length)
        while True:
            yield self._pairs_batch(list(islice(stream, micro_batch_size)), random, special)

    def public_batch(self, files: Files, batch: PublicBatch) -> Batch:
        """Samples of the training text by number, masked by chance that the batch's number decides."""
        random = np.random.default_rng(batch.number)
        if self.packing is not None:
            rows = self.numbered_rows(files, self.packing)
            chosen = [rows[number] for number in batch.indices(len(rows)).tolist()]
            return self._rows_batch(chosen, random, find_special_tokens(self.tokenizer(files)))
        path = file_of(files, TRAINING_FILE)
        if self._public is None or self._public[0] != path:
            tokenizer = self.tokenizer(files)
            samples = PublicSamples(unpack_documents(path), tokenizer, self.resolved.max_length, self.writing.split)
            self._public = (path, samples, find_special_tokens(tokenizer))
        _, samples, special = self._public
        pairs = [samples.instance(number, random) for number in batch.indices(len(samples)).tolist()]
        return self._pairs_batch(pairs, random, special)

    def synthetic_batch(self, size: int) -> Batch:
        """Random tokens, all samples as long as the run's longest."""
        settings = self.resolved
        return synthetic_batch(
            size, settings.max_length, settings.vocabulary_size, settings.masked_fraction, pairs=self.packing is None
        )

    def _pairs_batch(self, pairs: Sequence[Instance], random: np.random.Generator, special: SpecialTokens) -> Batch:
        return pairs_batch(pairs, random, masked_fraction=self.settings.masked_fraction, special=special)

    def _rows_batch(self, rows: Sequence[Tokens], random: np.random.Generator, special: SpecialTokens) -> Batch:
        return rows_batch(rows, random, masked_fraction=self.settings.masked_fraction, special=special)

    def _corpus(self, files: Files, tokenizer: Tokenizer) -> Corpus:
        if self.is_drawn:
            return StreamedCorpus(lambda seed: self.drawn(files, seed), tokenizer, self.writing.split)
        documents = list(unpack_documents(file_of(files, TRAINING_FILE)))
        return StoredCorpus(documents, tokenizer, self.writing.split)

    # ---- loss and figures

    def scores(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Scores of the vocabulary at the masked places, [m, vocabulary], and of the order of segments, [n, 2]."""
        return masked_and_order_scores(model, batch) if self.has_order else (masked_scores(model, batch), None)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Of masked tokens, and of the order of segments where that is an objective, each the mean over the batch's
        samples; float32 scalars.
        """
        masked_logits, order_logits = self.scores(model, batch)
        losses = functional.cross_entropy(masked_logits.float(), batch["labels"], reduction="none")
        masked = torch.dot(losses, batch["label_weights"])
        if order_logits is None:
            return Loss(masked, {"mlm_loss": masked})
        order = functional.cross_entropy(order_logits.float(), batch["sop_labels"])
        return Loss(masked + order, {"mlm_loss": masked, "sop_loss": order})

    def samples(self, batch: Batch) -> int:
        """The number of sequences."""
        return batch["input_ids"].shape[0]

    def evaluate(self, model: nn.Module, files: Files) -> dict[str, float]:
        """`heldout_mlm_loss` (nats per masked token), `heldout_mlm_accuracy`, and `heldout_sop_accuracy` where the
        order is an objective, on the held-out documents.
        """
        return evaluate_model(model, self._heldout(files), self.scores) if HELDOUT_FILE in files else {}

    def show(self, models: Sequence[nn.Module], files: Files) -> Showing:
        """Sentences with a gap, and the words that the models put there."""
        tokenizer, documents = self.tokenizer(files), unpack_documents(file_of(files, HELDOUT_FILE))
        gaps = find_gaps(documents, self.writing.split, tokenizer)
        rows = [
            Shown(
                Exhibit(gap.sentence),
                tuple(Exhibit(self._filled(model, gap, tokenizer)) for model in models),
                Exhibit(gap.word),
            )
            for gap in gaps
        ]
        beside = {
            "heldout_mlm_accuracy": Beside(
                "always the commonest token", commonest_share(self._heldout(files)), is_chance=True
            )
        }
        return Showing(self.settings.data.in_words(), rows, beside)

    def _filled(self, model: nn.Module, gap: WordGap, tokenizer: Tokenizer) -> str:
        special, device = find_special_tokens(tokenizer), next(model.parameters()).device
        ids = [special["cls"], *gap.ids, special["sep"]]
        ids[gap.place + 1] = special["mask"]
        row = torch.tensor([ids], device=device)
        batch = {
            "input_ids": row,
            "token_type_ids": torch.zeros_like(row),
            "attention_mask": torch.ones_like(row),
            "masked_positions": torch.tensor([gap.place + 1], device=device),
        }
        known = self.synthetic_batch(1).keys()
        with evaluating(model):
            scores, _ = self.scores(model, {name: each for name, each in batch.items() if name in known})
        return tokenizer.decode([int(special.ordinary[int(scores[0].cpu()[special.ordinary].argmax())])]).strip()

    def _heldout(self, files: Files) -> list[Batch]:
        """The batches that every evaluation uses."""
        path = files[HELDOUT_FILE]
        if self._evaluation is None or self._evaluation[0] != path:
            self._evaluation = (path, self._heldout_batches(list(unpack_documents(path)), self.tokenizer(files)))
        return self._evaluation[1]

    def _heldout_batches(self, documents: list[str], tokenizer: Tokenizer) -> list[Batch]:
        special = find_special_tokens(tokenizer)
        packing = self.packing
        if packing is not None:
            return heldout_batches(
                lambda _: list(pack_rows(self.encoded(documents, tokenizer), self.row_length, packing)),
                lambda rows, random: self._rows_batch(rows, random, special),
            )
        encoded = encode_documents(tokenizer, documents, self.writing.split)
        return heldout_batches(
            lambda random: list(make_instances(encoded, self.resolved.max_length, random, vary_start=False)),
            lambda pairs, random: self._pairs_batch(pairs, random, special),
        )

    @property
    def auto_class(self) -> str:
        """See `LanguageRecipe`."""
        return "AutoModelForPreTraining" if self.has_order else "AutoModelForMaskedLM"
