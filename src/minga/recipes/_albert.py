"""The ALBERT recipe: masked language model plus sentence order, on text.

The organiser trains the tokenizer and sends it, with the text, along with the run; each peer tokenises the text as it
comes to it. The loss is a mean over samples, not over masked tokens as in `AlbertForPreTraining.forward`: only so do
peers with different micro-batches add up to one large batch. The two agree where all samples are equally long.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional
from transformers import AlbertForPreTraining

from minga.core._errors import ConfigurationError, StorageError
from minga.core._run_spec import RunSpec
from minga.recipes._batching import make_batch
from minga.recipes._corpus import (
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
from minga.recipes._evaluation import evaluate_model, heldout_batches
from minga.recipes._export import export_model
from minga.recipes._instances import encode_documents, make_instances
from minga.recipes._interface import Batch, Files, Recipe, StreamPosition
from minga.recipes._model import albert_logits, initialize
from minga.recipes._public_samples import PublicSamples
from minga.recipes._sizes import albert_config
from minga.recipes._stream import Corpus, StoredCorpus, StreamedCorpus, epoch_seed, instances
from minga.recipes._tokenizer import read_tokenizer, train_tokenizer
from minga.security._data_seeds import PublicBatch

TOKENIZER_FILE = "tokenizer.json"


class AlbertRecipe(Recipe):
    """ALBERT on the text that the run spec names; see `Recipe` for what each method promises."""

    def __init__(self, spec: RunSpec) -> None:
        super().__init__(spec)
        self._evaluation: tuple[Path, list[Batch]] | None = None
        self._public: tuple[Path, PublicSamples, int] | None = None

    def prepare(self) -> dict[str, bytes]:
        """`tokenizer.json`, the held-out documents, and the training documents unless peers stream them."""
        data = self.spec.data
        albert_config(self.spec)
        if data.source == "datasets":
            training, heldout = first_streamed(data)
        else:
            training, heldout = split_documents(local_documents(data), data.heldout_fraction)
        files = {TOKENIZER_FILE: train_tokenizer(training, data.vocabulary_size, data.tokenizer)}
        tokenizer = read_tokenizer(files[TOKENIZER_FILE], data.vocabulary_size)
        self._check_yield(training[:1000], tokenizer, "to train on")
        if heldout:
            self._check_yield(heldout, tokenizer, "held out")
            files[HELDOUT_FILE] = pack_documents(heldout)
        if data.source != "datasets":
            files[TRAINING_FILE] = pack_documents(training)
        return files

    def build_model(self) -> AlbertForPreTraining:
        """The model of `model.size` with parameters from `training.seed`; see `initialize`."""
        with torch.random.fork_rng(devices=[]):
            model = AlbertForPreTraining(albert_config(self.spec))
        initialize(model, self.spec.training.seed)
        return model.train()

    def batches(self, files: Files, position: StreamPosition, micro_batch_size: int) -> Iterator[Batch]:
        """Batches as `make_batch` describes them."""
        if micro_batch_size < 1:
            raise ConfigurationError(f"the micro-batch size must be at least 1, not {micro_batch_size}")
        spec = self.spec
        tokenizer = self._tokenizer(files)
        stream = instances(self._corpus(files, tokenizer), spec.training.seed, position, spec.model.max_length)
        # Epoch -1 is no epoch: the masks have a random generator of their own.
        random = np.random.default_rng(epoch_seed(spec.training.seed, position, -1))
        while True:
            yield make_batch(
                list(islice(stream, micro_batch_size)),
                random,
                masked_fraction=spec.data.masked_fraction,
                vocabulary_size=tokenizer.get_vocab_size(),
            )

    def public_batch(self, files: Files, batch: PublicBatch) -> Batch:
        """As `make_batch` describes it, of samples of the training documents; see `PublicSamples`."""
        path = _file(files, TRAINING_FILE)
        if self._public is None or self._public[0] != path:
            tokenizer = self._tokenizer(files)
            samples = PublicSamples(unpack_documents(path), tokenizer, self.spec.model.max_length)
            self._public = (path, samples, tokenizer.get_vocab_size())
        _, samples, vocabulary_size = self._public
        random = np.random.default_rng(batch.number)
        instances = [samples.instance(number, random) for number in batch.indices(len(samples)).tolist()]
        return make_batch(
            instances, random, masked_fraction=self.spec.data.masked_fraction, vocabulary_size=vocabulary_size
        )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Masked language model plus sentence order, each the mean over the batch's samples; float32 scalar."""
        masked_logits, sop_logits = albert_logits(model, batch)
        masked = functional.cross_entropy(masked_logits.float(), batch["labels"], reduction="none")
        order = functional.cross_entropy(sop_logits.float(), batch["sop_labels"])
        return torch.dot(masked, batch["label_weights"]) + order

    def samples(self, batch: Batch) -> int:
        """The number of sequences."""
        return batch["input_ids"].shape[0]

    def evaluate(self, model: nn.Module, files: Files) -> dict[str, float]:
        """`heldout_mlm_loss` (nats per masked token) and `heldout_sop_accuracy` on the held-out documents."""
        if HELDOUT_FILE not in files:
            return {}
        path = files[HELDOUT_FILE]
        if self._evaluation is None or self._evaluation[0] != path:
            documents = list(unpack_documents(path))
            batches = heldout_batches(
                documents, self._tokenizer(files), self.spec.model.max_length, self.spec.data.masked_fraction
            )
            self._evaluation = (path, batches)
        return evaluate_model(model, self._evaluation[1])

    def export(self, model: nn.Module, files: Files, directory: Path, *, step: int) -> None:
        """A directory for `AutoModel.from_pretrained` and `AutoTokenizer.from_pretrained`, with a README."""
        if not isinstance(model, AlbertForPreTraining):
            raise TypeError(f"not a model of this recipe: {type(model).__name__}")
        export_model(model, self._tokenizer(files), directory, name=self.spec.name, run_id=self.spec.run_id, step=step)

    def _tokenizer(self, files: Files) -> Tokenizer:
        path = _file(files, TOKENIZER_FILE)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StorageError(f"{path}: cannot be read: {error.strerror}") from error
        return read_tokenizer(data, self.spec.data.vocabulary_size)

    def _corpus(self, files: Files, tokenizer: Tokenizer) -> Corpus:
        data = self.spec.data
        if data.source != "datasets":
            return StoredCorpus(list(unpack_documents(_file(files, TRAINING_FILE))), tokenizer)

        def open_epoch(seed: int) -> Iterator[str]:
            for document in streamed_documents(data, order=seed):
                if heldout_rank(document) >= data.heldout_fraction:
                    yield document

        return StreamedCorpus(open_epoch, tokenizer)

    def _check_yield(self, documents: list[str], tokenizer: Tokenizer, what: str) -> None:
        encoded = encode_documents(tokenizer, documents)
        if next(make_instances(encoded, self.spec.model.max_length, np.random.default_rng(0)), None) is None:
            raise ConfigurationError(
                f"data: no document {what} has two sentences that fit into model.max_length = "
                f"{self.spec.model.max_length} tokens"
            )


def _file(files: Files, name: str) -> Path:
    if name not in files:
        raise ConfigurationError(f"the run came without the file {name}, which its recipe needs")
    return files[name]
