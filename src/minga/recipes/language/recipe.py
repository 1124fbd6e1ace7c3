"""What recipes of language models share: text and tokenizer that ship with the run, held-out documents, export.

The organiser makes or fetches the tokenizer and sends it along with the run. Rows of tokens are cut from documents that
travel as tokens (`recipes/text/samples.py`); pairs of sentences are cut from documents that travel as text.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn

from minga.core.errors import ConfigurationError
from minga.core.files import store
from minga.recipes.counting import shapes_of_model, takes_shapes
from minga.recipes.data.files import body_of, file_of
from minga.recipes.data.hold_out import content_rank
from minga.recipes.exported import Provenance
from minga.recipes.initial import new_model
from minga.recipes.interface import Files, Recipe, RecipeContext, RecipeFacts, Settings, StreamPosition
from minga.recipes.language.config_guard import read_config
from minga.recipes.language.export import export_model
from minga.recipes.language.settings import LanguageSettings
from minga.recipes.language.shape import (
    GIVEN,
    OF_THE_RUN,
    ModelFamily,
    build,
    has_shape,
    reason_of,
    resolve,
    without_chance,
)
from minga.recipes.task_report import Say, TaskOptions, TaskReport
from minga.recipes.tasks.evaluate import TASKS, evaluate_model
from minga.recipes.text.corpus import (
    HELDOUT_FILE,
    TRAINING_FILE,
    first_streamed,
    local_documents,
    mixed,
    mixed_sources,
    pack_documents,
    prepare_mixture,
    split_documents,
    streamed_documents,
    unpack_documents,
)
from minga.recipes.text.samples import (
    TOKENS_FILE,
    NumberedRows,
    Packing,
    StoredTokens,
    Tokens,
    encoded,
    endless_rows,
    pack_rows,
    pack_tokens,
)
from minga.recipes.text.settings import TextData
from minga.recipes.text.sources import matching_files, text_files
from minga.recipes.text.tokenizer import (
    MAX_TOKENIZER_BYTES,
    TOKENIZER_FILE,
    Kind,
    SpecialTokens,
    find_special_tokens,
    given_content,
    given_file,
    read_tokenizer,
    train_tokenizer,
)
from minga.recipes.text.writing import WRITINGS, Writing

S = TypeVar("S", bound=Settings)
T = TypeVar("T", bound=LanguageSettings)
CHECKED_DOCUMENTS = 1000


class TransformersRecipe(Recipe[S]):
    """A recipe whose model is one of transformers."""

    def checkpoint_activations(self, model: nn.Module) -> None:
        """By what transformers has for it."""
        if not getattr(model, "supports_gradient_checkpointing", False):
            raise ConfigurationError(f"--checkpoint-activations: {type(model).__name__} does not do that")
        if hasattr(model, "activation_checkpointing_enable"):
            model.activation_checkpointing_enable()  # type: ignore[operator]
        else:  # what it was called before transformers 5
            model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]

    def compile_model(self, model: nn.Module) -> None:
        """The model, and the layers below its heads, which losses may run by themselves."""
        model.compile()
        if isinstance(below := getattr(model, "base_model", None), nn.Module) and below is not model:
            below.compile()


class LanguageRecipe(TransformersRecipe[T]):
    """A language model of the shape that the settings name, trained on text; see `Recipe` for what each method
    promises.
    """

    family: ClassVar[ModelFamily]

    model_files = (TOKENIZER_FILE,)
    tasks = TASKS
    trained_tokens: ClassVar[tuple[str, ...]]
    """The special tokens of a tokenizer that the organiser trains."""

    end_role: ClassVar[str]
    """The role of the token that ends a document in a row."""

    def __init__(self, settings: T, context: RecipeContext) -> None:
        super().__init__(settings, context)
        self._resolved: T | None = None
        self._numbered: tuple[Path, NumberedRows] | None = None

    # ---- what the recipes say

    @property
    def is_streamed(self) -> bool:
        """Whether peers read texts themselves."""
        return self.settings.data.is_streamed

    @property
    @abstractmethod
    def packing(self) -> Packing | None:
        """How rows are cut from documents; None for pairs of sentences, which need the text."""

    @property
    @abstractmethod
    def row_length(self) -> int:
        """Tokens of a row as it is cut from the documents."""

    @property
    @abstractmethod
    def auto_class(self) -> str:
        """The Auto class of transformers that loads an exported model."""

    @abstractmethod
    def check_text(self, documents: list[str], tokenizer: Tokenizer, what: str) -> None:
        """Raise `ConfigurationError` if these documents, which are there `what`, give no sample."""

    # ---- what the settings say

    @property
    def resolved(self) -> T:
        """The settings with the shape of the model, its vocabulary and length. Raises `ConfigurationError`."""
        if self._resolved is None:
            family = self.model_family()
            found = resolve(self.settings, family, self.trained_tokens, self.tokenizer_source, self.context.init_from)
            if self.context.is_public:
                found = found.model_copy(update={"config": without_chance(found.config, family)})
            self._resolved = found
        return self._resolved

    def model_family(self) -> ModelFamily:
        """Which kind of model transformers is to make."""
        return self.family

    @property
    def tokenizer_source(self) -> str:
        """`train:` and a kind, or `from:` and a place, as the settings say it; but that of the model with whose
        parameters the run begins, unless they say from where.
        """
        source = self.context.init_from
        if own := self.files_of_model().get(TOKENIZER_FILE):
            return f"{GIVEN}{own.parent}"
        if source is not None and "tokenizer" not in self.settings.model_fields_set and has_shape(source):
            return f"{GIVEN}{source}"  # which is refused, as it has none
        return self.settings.tokenizer

    def files_of_model(self) -> Mapping[str, Path]:
        """None where the settings say from where the tokenizer comes."""
        is_said = self.settings.tokenizer.startswith(GIVEN) and self.settings.tokenizer != OF_THE_RUN
        return {} if is_said else super().files_of_model()

    @classmethod
    def size_settings(cls, size: str, tokens: int | None) -> dict[str, Any]:
        """A size, with its usual vocabulary and length unless told otherwise."""
        return {"size": size, "max_length": tokens or 0}

    # ---- organiser

    def published_settings(self) -> T:
        """With the shape of the model as one JSON object, and a tokenizer that comes with the run."""
        return self.resolved

    def check_public(self) -> None:
        """A streamed data set is not the same for all."""
        if self.settings.data.is_streamed:
            raise ConfigurationError(
                'security.verification = "byzantine" needs text that comes with the run, so '
                f"recipe.{self.context.recipe}.data must not name a data set of the hub"
            )

    def prepare(self) -> dict[str, bytes]:
        """`tokenizer.json`, the held-out documents, and the training documents unless peers stream them."""
        self._check_pass()
        data, sources = self.resolved.data, dict[str, bytes]()
        if data.source == "mixture":
            training, heldout, sources = prepare_mixture(data, self.context.seed)
        elif data.source == "datasets":
            training, heldout = first_streamed(data)
        else:
            training, heldout = split_documents(local_documents(data), data.heldout_fraction)
        files = {TOKENIZER_FILE: self._tokenizer_file(training)}
        tokenizer = read_tokenizer(files[TOKENIZER_FILE], self.resolved.vocabulary_size)
        self.check_tokens(find_special_tokens(tokenizer))
        self.check_text(training[:CHECKED_DOCUMENTS], tokenizer, "to train on")
        if heldout:
            self.check_text(heldout, tokenizer, "held out")
            files[HELDOUT_FILE] = pack_documents(heldout)
        return {**files, **(sources if self.is_drawn else self._packed(training, tokenizer))}

    def _check_pass(self) -> None:
        """Raise `ConfigurationError` if the model takes no batch.

        A pass without values costs little; where it fails, as it does in models that branch on values, a real one
        decides.
        """
        batch, kind = self.synthetic_batch(1), read_config(self.resolved.config)["model_type"]
        shapes = shapes_of_model(self.build_model)
        for name, parameter in shapes.named_parameters():
            if not parameter.numel():
                raise ConfigurationError(f"transformers runs no {kind} of these settings: {name} has no elements")
        if takes_shapes(shapes, batch, self.total_loss):
            return
        model = new_model(self)
        try:
            with torch.no_grad():
                self.total_loss(model, batch)
        except Exception as error:  # each architecture has errors of its own
            raise ConfigurationError(f"transformers runs no {kind} of these settings: {reason_of(error)}") from error

    @property
    def is_drawn(self) -> bool:
        """Whether each peer draws documents from a stream, instead of going through those of a file in passes.

        A mixture whose sources all travel with the run is drawn once, by the organiser.
        """
        return self.settings.data.is_streamed

    @property
    def writing(self) -> Writing:
        """How the language of the text is written."""
        return WRITINGS[self.settings.data.language]

    def check_tokens(self, special: SpecialTokens) -> None:
        """Raise `ConfigurationError` if a tokenizer lacks a special token that this recipe needs."""
        special[self.end_role]

    def inputs(self) -> Sequence[Path]:
        """The organiser's own text files, and a tokenizer of this machine."""
        data = self.settings.data
        paths = [path for source in (data, *data.sources) for path in matching_files(source.files)]
        if self.tokenizer_source.startswith(GIVEN):
            paths.append(given_file(self.tokenizer_source.removeprefix(GIVEN), TOKENIZER_FILE, "tokenizer"))
        return paths

    def check_own_data(self, patterns: Sequence[str], names: Collection[str]) -> None:  # noqa: ARG002
        """Each has to name .txt or .jsonl files."""
        text_files(patterns, "--data")

    def own_data(self, files: Files, patterns: Sequence[str], folder: Path) -> tuple[LanguageRecipe[T], Files]:
        """Same tokenizer, same held-out text, other training documents: .txt and .jsonl files."""
        now = self.settings.data
        data = TextData(
            source="files",
            files=tuple(patterns),
            language=now.language,
            text_column=now.text_column,
            heldout_fraction=now.heldout_fraction,
        )
        held_out = set(unpack_documents(files[HELDOUT_FILE])) if HELDOUT_FILE in files else set()
        normalize = self.writing.normalize
        documents = [each for each in map(normalize, local_documents(data)) if each and each not in held_out]
        if not documents:
            raise ConfigurationError(f"--data {' '.join(patterns)}: no text to train on besides what is held out")
        packed = self._packed(documents, self.tokenizer(files))
        own = {name: store(folder / name, content) for name, content in packed.items()}
        settings = self.settings.model_copy(update={"data": data})
        return type(self)(settings, self.context), {**files, **own}

    def _tokenizer_file(self, training: list[str]) -> bytes:
        way, _, rest = self.tokenizer_source.partition(":")
        if way == GIVEN.rstrip(":"):
            return given_content(rest, TOKENIZER_FILE, "tokenizer", MAX_TOKENIZER_BYTES)
        kind: Kind = rest  # type: ignore[assignment]  # settings allow no other
        return train_tokenizer(training, self.resolved.vocabulary_size, kind, self.trained_tokens, self.writing)

    def _packed(self, documents: list[str], tokenizer: Tokenizer) -> dict[str, bytes]:
        if self.packing is None:
            return {TRAINING_FILE: pack_documents(documents)}
        return {TOKENS_FILE: pack_tokens(list(self.encoded(documents, tokenizer)))}

    # ---- training

    def check_received(self) -> None:
        """The shape of the model has to be there: else its tokenizer and configuration would be looked up."""
        if not self.settings.config:
            raise ConfigurationError(
                f"this run does not spell out the shape of its model (recipe.{self.context.recipe}.config); ask the "
                "organiser to host it anew"
            )

    def build_model(self) -> nn.Module:
        """The model of the published shape; transformers initialises it as it does for this architecture."""
        return build(self.resolved.config, self.model_family())

    def tokenizer(self, files: Files) -> Tokenizer:
        """The tokenizer that came with the run."""
        return read_tokenizer(body_of(files, TOKENIZER_FILE), self.resolved.vocabulary_size)

    def encoded(self, documents: Iterable[str], tokenizer: Tokenizer) -> Iterator[Tokens]:
        """Documents as tokens, each with its end."""
        return encoded(documents, tokenizer, find_special_tokens(tokenizer)[self.end_role])

    def rows(self, files: Files, position: StreamPosition, packing: Packing) -> Iterator[Tokens]:
        """One peer's endless stream of rows of tokens."""
        if self.is_drawn:
            tokenizer = self.tokenizer(files)

            def open_epoch(seed: int) -> Iterator[Tokens]:
                return self.encoded(self.drawn(files, seed), tokenizer)
        else:
            stored = StoredTokens(file_of(files, TOKENS_FILE), self.resolved.vocabulary_size)

            def open_epoch(seed: int) -> Iterator[Tokens]:
                return stored.documents(np.random.default_rng(seed).permutation(len(stored)))

        return endless_rows(open_epoch, self.context.seed, position, self.row_length, packing)

    def drawn(self, files: Files, seed: int) -> Iterator[str]:
        """The training documents of a mixture, without end, or of a data set of the hub, in an order of the seed."""
        data = self.settings.data
        if data.source == "mixture":
            return mixed(mixed_sources(data, files, seed), seed, data.shuffle_buffer)
        documents = map(self.writing.normalize, streamed_documents(data, order=seed))
        return (document for document in documents if content_rank(document) >= data.heldout_fraction)

    def numbered_rows(self, files: Files, packing: Packing) -> NumberedRows:
        """The rows of the run's text by number."""
        path = file_of(files, TOKENS_FILE)
        if self._numbered is None or self._numbered[0] != path:
            stored = StoredTokens(path, self.resolved.vocabulary_size)
            self._numbered = (path, NumberedRows(stored, self.row_length, packing))
        return self._numbered[1]

    def check_rows(self, documents: list[str], tokenizer: Tokenizer, what: str, packing: Packing) -> None:
        """Raise `ConfigurationError` if the documents give no row."""
        if next(pack_rows(self.encoded(documents, tokenizer), self.row_length, packing), None) is None:
            raise ConfigurationError(
                f"data: the text {what} has too few tokens for a row of {self.row_length}; add text, or lower "
                "max_length"
            )

    # ---- a trained model

    def export(self, model: nn.Module, files: Files, directory: Path, provenance: Provenance) -> None:
        """A directory for `auto_class` and for `PreTrainedTokenizerFast.from_pretrained`, with a README."""
        export_model(
            model,
            self.tokenizer(files),
            directory,
            provenance,
            title=self.context.run_name,
            figures=self.evaluate(model, files),
            text=self.settings.data.in_words(),
            auto=self.auto_class,
            length=self.resolved.max_length,  # of positions a shape may have more, which nothing was learned of
            apart=self.packing == "document",
        )

    @classmethod
    def judge(cls, model: str, options: TaskOptions, say: Say) -> TaskReport:
        """Fine-tuned on a task, beside the same architecture from scratch; `model` may also be a name on the hub."""
        return evaluate_model(model, options, say)

    @property
    def sample_tokens(self) -> int:
        """As many as the longest has."""
        return self.resolved.max_length

    def facts(self) -> RecipeFacts:
        """With the size of the vocabulary, which makes most of a small model."""
        facts = super().facts()
        return replace(facts, origin=f"{facts.origin}, a vocabulary of {self.resolved.vocabulary_size}")
