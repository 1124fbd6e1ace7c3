"""The ALBERT recipe: masked language model plus sentence order, on text.

The organiser trains the tokenizer and sends it, with the text, along with the run; each peer tokenises the text as it
comes to it. The loss is a mean over samples, not over masked tokens as in `AlbertForPreTraining.forward`: only so do
peers with different micro-batches add up to one large batch. The two agree where all samples are equally long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional
from transformers import AlbertForPreTraining

from minga.core.errors import ConfigurationError, StorageError
from minga.core.files import write_atomically
from minga.recipes.albert.batching import make_batch, synthetic_batch
from minga.recipes.albert.evaluation import evaluate_model, heldout_batches
from minga.recipes.albert.export import export_model
from minga.recipes.albert.facts import albert_facts
from minga.recipes.albert.model import albert_logits, initialize
from minga.recipes.albert.settings import AlbertSettings, from_version_2
from minga.recipes.albert.sizes import SIZES, albert_config
from minga.recipes.interface import Batch, Files, Metric, Recipe, RecipeContext, RecipeFacts, StreamPosition
from minga.recipes.order import epoch_seed
from minga.recipes.text.corpus import (
    HELDOUT_FILE,
    TRAINING_FILE,
    first_streamed,
    heldout_rank,
    local_documents,
    pack_documents,
    split_documents,
    streamed_documents,
    unpack_documents,
)
from minga.recipes.text.document_stream import Corpus, StoredCorpus, StreamedCorpus, instances
from minga.recipes.text.public_samples import PublicSamples
from minga.recipes.text.sentence_pairs import encode_documents, make_instances
from minga.recipes.text.settings import TextData
from minga.recipes.text.sources import matching_files
from minga.recipes.text.tokenizer import read_tokenizer, train_tokenizer
from minga.security.randomness.public_batch import PublicBatch

TOKENIZER_FILE = "tokenizer.json"
USUAL_VOCABULARY, USUAL_TOKENS = 30_000, 512


class AlbertRecipe(Recipe[AlbertSettings]):
    """ALBERT on the text that the settings name; see `Recipe` for what each method promises."""

    Settings = AlbertSettings
    headline = Metric("heldout_mlm_loss", better="lower")
    demo_goal = 6.4
    sizes = tuple(SIZES)
    model_files = (TOKENIZER_FILE,)

    def __init__(self, settings: AlbertSettings, context: RecipeContext) -> None:
        super().__init__(settings, context)
        self._evaluation: tuple[Path, list[Batch]] | None = None
        self._public: tuple[Path, PublicSamples, int] | None = None

    @classmethod
    def from_version_2(cls, table: dict[str, Any]) -> dict[str, Any]:
        """Today's settings out of `[model]` and `[data]`."""
        return from_version_2(table)

    @classmethod
    def size_settings(cls, size: str, tokens: int | None) -> dict[str, Any]:
        """The published sizes, with a vocabulary of 30,000 and 512 tokens a sample unless told otherwise."""
        return {"size": size, "max_length": tokens or USUAL_TOKENS, "vocabulary_size": USUAL_VOCABULARY}

    @classmethod
    def demo_spec(cls) -> Mapping[str, Any]:
        """The tiny model on the Bible: a few minutes on two cores show it learning."""
        return {
            "recipe": {"albert": {"size": "tiny", "max_length": 64, "data": {"source": "bible"}}},
            "optimizer": {
                "name": "adamw",
                "learning_rate": 0.002,
                "betas": [0.9, 0.95],
                "weight_decay": 0.1,
                "warmup_steps": 10,
                "schedule": "constant",
            },
            "training": {"target_batch_size": 256},
        }

    def check_public(self) -> None:
        """A streamed data set is not the same for all."""
        if self.settings.data.source == "datasets":
            raise ConfigurationError(
                'security.verification = "byzantine" needs text that comes with the run, so recipe.albert.data.source '
                'must not be "datasets"'
            )

    def prepare(self) -> dict[str, bytes]:
        """`tokenizer.json`, the held-out documents, and the training documents unless peers stream them."""
        settings, data = self.settings, self.settings.data
        albert_config(settings)
        if data.source == "datasets":
            training, heldout = first_streamed(data)
        else:
            training, heldout = split_documents(local_documents(data), data.heldout_fraction)
        files = {TOKENIZER_FILE: train_tokenizer(training, settings.vocabulary_size, settings.tokenizer)}
        tokenizer = read_tokenizer(files[TOKENIZER_FILE], settings.vocabulary_size)
        self._check_yield(training[:1000], tokenizer, "to train on")
        if heldout:
            self._check_yield(heldout, tokenizer, "held out")
            files[HELDOUT_FILE] = pack_documents(heldout)
        if data.source != "datasets":
            files[TRAINING_FILE] = pack_documents(training)
        return files

    def build_model(self) -> AlbertForPreTraining:
        """The model of `size` with parameters from the run's seed; see `initialize`."""
        with torch.random.fork_rng(devices=[]):
            model = AlbertForPreTraining(albert_config(self.settings))
        initialize(model, self.context.seed)
        return model.train()

    def batches(self, files: Files, position: StreamPosition, micro_batch_size: int) -> Iterator[Batch]:
        """Batches as `make_batch` describes them."""
        if micro_batch_size < 1:
            raise ConfigurationError(f"the micro-batch size must be at least 1, not {micro_batch_size}")
        tokenizer = self._tokenizer(files)
        stream = instances(self._corpus(files, tokenizer), self.context.seed, position, self.settings.max_length)
        # Epoch -1 is no epoch: the masks have a random generator of their own.
        random = np.random.default_rng(epoch_seed(self.context.seed, position, -1))
        while True:
            yield make_batch(
                list(islice(stream, micro_batch_size)),
                random,
                masked_fraction=self.settings.masked_fraction,
                vocabulary_size=tokenizer.get_vocab_size(),
            )

    def public_batch(self, files: Files, batch: PublicBatch) -> Batch:
        """As `make_batch` describes it, of samples of the training documents; see `PublicSamples`."""
        path = _file(files, TRAINING_FILE)
        if self._public is None or self._public[0] != path:
            tokenizer = self._tokenizer(files)
            samples = PublicSamples(unpack_documents(path), tokenizer, self.settings.max_length)
            self._public = (path, samples, tokenizer.get_vocab_size())
        _, samples, vocabulary_size = self._public
        random = np.random.default_rng(batch.number)
        instances = [samples.instance(number, random) for number in batch.indices(len(samples)).tolist()]
        return make_batch(
            instances, random, masked_fraction=self.settings.masked_fraction, vocabulary_size=vocabulary_size
        )

    def synthetic_batch(self, size: int) -> Batch:
        """Random tokens, all samples as long as the run's longest."""
        settings = self.settings
        return synthetic_batch(size, settings.max_length, settings.vocabulary_size, settings.masked_fraction)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Masked language model plus sentence order, each the mean over the batch's samples; float32 scalar."""
        masked_logits, sop_logits = albert_logits(model, batch)
        masked = functional.cross_entropy(masked_logits.float(), batch["labels"], reduction="none")
        order = functional.cross_entropy(sop_logits.float(), batch["sop_labels"])
        return torch.dot(masked, batch["label_weights"]) + order

    def samples(self, batch: Batch) -> int:
        """The number of sequences."""
        return batch["input_ids"].shape[0]

    def inputs(self) -> Sequence[Path]:
        """The organiser's own text files."""
        return [path for pattern in self.settings.data.files for path in matching_files(pattern)]

    def own_data(self, files: Files, patterns: Sequence[str], folder: Path) -> tuple[AlbertRecipe, Files]:
        """Same tokenizer, same held-out text, other training documents: .txt and .jsonl files."""
        now = self.settings.data
        data = TextData(
            source="files",
            files=tuple(patterns),
            text_column=now.text_column,
            heldout_fraction=now.heldout_fraction,
        )
        held_out = set(unpack_documents(files[HELDOUT_FILE])) if HELDOUT_FILE in files else set()
        documents = [document for document in local_documents(data) if document not in held_out]
        if not documents:
            raise ConfigurationError(f"--data {' '.join(patterns)}: no text to train on besides what is held out")
        path = folder / TRAINING_FILE
        try:
            write_atomically(path, pack_documents(documents))
        except OSError as error:
            raise StorageError(f"{path}: cannot be written: {error.strerror}") from error
        settings = self.settings.model_copy(update={"data": data})
        return AlbertRecipe(settings, self.context), {**files, TRAINING_FILE: path}

    def facts(self) -> RecipeFacts:
        """Counted by the shape of the model."""
        return albert_facts(self.settings)

    def evaluate(self, model: nn.Module, files: Files) -> dict[str, float]:
        """`heldout_mlm_loss` (nats per masked token) and `heldout_sop_accuracy` on the held-out documents."""
        if HELDOUT_FILE not in files:
            return {}
        path = files[HELDOUT_FILE]
        if self._evaluation is None or self._evaluation[0] != path:
            documents = list(unpack_documents(path))
            batches = heldout_batches(
                documents, self._tokenizer(files), self.settings.max_length, self.settings.masked_fraction
            )
            self._evaluation = (path, batches)
        return evaluate_model(model, self._evaluation[1])

    def export(self, model: nn.Module, files: Files, directory: Path, *, step: int) -> None:
        """A directory for `AutoModel.from_pretrained` and `AutoTokenizer.from_pretrained`, with a README."""
        if not isinstance(model, AlbertForPreTraining):
            raise TypeError(f"not a model of this recipe: {type(model).__name__}")
        export_model(
            model, self._tokenizer(files), directory, name=self.context.run_name, run_id=self.context.run_id, step=step
        )

    def _tokenizer(self, files: Files) -> Tokenizer:
        path = _file(files, TOKENIZER_FILE)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StorageError(f"{path}: cannot be read: {error.strerror}") from error
        return read_tokenizer(data, self.settings.vocabulary_size)

    def _corpus(self, files: Files, tokenizer: Tokenizer) -> Corpus:
        data = self.settings.data
        if data.source != "datasets":
            return StoredCorpus(list(unpack_documents(_file(files, TRAINING_FILE))), tokenizer)

        def open_epoch(seed: int) -> Iterator[str]:
            for document in streamed_documents(data, order=seed):
                if heldout_rank(document) >= data.heldout_fraction:
                    yield document

        return StreamedCorpus(open_epoch, tokenizer)

    def _check_yield(self, documents: list[str], tokenizer: Tokenizer, what: str) -> None:
        encoded = encode_documents(tokenizer, documents)
        if next(make_instances(encoded, self.settings.max_length, np.random.default_rng(0)), None) is None:
            raise ConfigurationError(
                f"data: no document {what} has two sentences that fit into max_length = "
                f"{self.settings.max_length} tokens"
            )


def _file(files: Files, name: str) -> Path:
    if name not in files:
        raise ConfigurationError(f"the run came without the file {name}, which its recipe needs")
    return files[name]
