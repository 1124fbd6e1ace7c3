"""`minga evaluate`: a trained language model on a task, beside the same architecture from scratch.

Each seed is a run of its own: the rate is chosen by the loss on validation examples, and the test examples are looked
at once. The row "from scratch" has the same configuration, tokenizer, data, rates and seeds, and random parameters; the
difference is what the pre-training gave. Too little pre-training can make it negative, and that is told as it is.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from minga.core.errors import ConfigurationError
from minga.recipes.exported import PROVENANCE_FILE
from minga.recipes.task_report import Say, TaskOptions, TaskReport, in_words, summary
from minga.recipes.tasks.examples import LabelledText, TaggedSentence, TaskData, read_classes, read_entities, shuffled

# ---- One fine-tuning: epochs of AdamW until the loss on the validation examples falls no more.
#
# The state with the least validation loss is kept. Nothing here knows what the task is: a task gives batches, and the
# model returns its loss and logits, as those of transformers do.


Batches = Callable[[str, int], Iterator[dict[str, Tensor]]]
"""The batches of a side, "training", "validation" or "test", in the order of a seed."""


@dataclass(frozen=True)
class FineTuning:
    """How to fine-tune. An epoch without `least_gain` less validation loss counts; after `patience` of them it ends."""

    learning_rates: tuple[float, ...] = (1e-5, 3e-5, 1e-4)
    batch_size: int = 128
    max_length: int = 128
    epochs: int = 20
    patience: int = 3
    least_gain: float = 0.01
    weight_decay: float = 0.01
    max_gradient_norm: float = 1.0


def fine_tune(model: nn.Module, batches: Batches, how: FineTuning, learning_rate: float, seed: int) -> float:
    """Fine-tune `model` in place; returns its loss on the validation examples."""
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, weight_decay=how.weight_decay)
    best, best_state, without_gain = math.inf, copy.deepcopy(model.state_dict()), 0
    for epoch in range(how.epochs):
        model.train()
        for batch in batches("training", seed * 1000 + epoch):
            loss = _output(model, batch).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), how.max_gradient_norm)
            optimizer.step()
        found = mean_loss(model, batches)
        without_gain = 0 if found < best - how.least_gain else without_gain + 1
        if found < best:
            best, best_state = found, copy.deepcopy(model.state_dict())
        if without_gain >= how.patience:
            break
    model.load_state_dict(best_state)
    return best


@torch.no_grad()
def mean_loss(model: nn.Module, batches: Batches) -> float:
    """The mean of the losses of the validation batches, by their examples."""
    model.eval()
    total = count = 0.0
    for batch in batches("validation", 0):
        size = len(batch["input_ids"])
        total += float(_output(model, batch).loss) * size
        count += size
    return total / count if count else math.inf


@torch.no_grad()
def predictions(model: nn.Module, batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    """Labels and predicted classes of the test batches, equally shaped."""
    model.eval()
    for batch in batches("test", 0):
        yield batch["labels"], _output(model, batch).logits.argmax(-1)


def chunks(examples: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """`examples` in pieces of `size`, the last one shorter."""
    for start in range(0, len(examples), size):
        yield examples[start : start + size]


def _output(model: nn.Module, batch: dict[str, Tensor]) -> Any:
    return model(**batch)


# ---- Examples as tensors: tags stand on the first sub-token of their word, all other positions do not count.
#
# Batches are dictionaries for `AutoModelForTokenClassification` and `AutoModelForSequenceClassification`: `input_ids`
# and `attention_mask`, int64 [n, length], and `labels`, int64 [n, length] or [n].


IGNORED: Final = -100
"""The label of positions that count neither in the loss nor in a score."""


def encode_tagged(
    tokenizer: Any, sentences: Sequence[TaggedSentence], labels: Mapping[str, int], max_length: int
) -> dict[str, Tensor]:
    """A batch of tagged sentences, padded to its longest, cut to `max_length` tokens.

    They are encoded as the text that they are: of a word by itself many tokenizers make other tokens than the model
    knows from text, where a blank comes before it.
    """
    encoded = _padded(tokenizer, [each.text for each in sentences], max_length, return_offsets_mapping=True)
    rows = []
    for sentence, places in zip(sentences, encoded["offset_mapping"].tolist(), strict=True):
        words = [number for number, word in enumerate(sentence.words) for _ in f"{word} "]  # of each character
        row, before = [], -1
        for start, stop in places:
            word = words[stop - 1] if start < stop else before
            row.append(IGNORED if word == before else labels[sentence.tags[word]])
            before = word
        rows.append(row)
    return {**_inputs(encoded), "labels": torch.tensor(rows)}


def encode_texts(
    tokenizer: Any, texts: Sequence[LabelledText], labels: Mapping[str, int], max_length: int
) -> dict[str, Tensor]:
    """A batch of labelled texts, padded to its longest, cut to `max_length` tokens."""
    encoded = _padded(tokenizer, [each.text for each in texts], max_length)
    return {**_inputs(encoded), "labels": torch.tensor([labels[each.label] for each in texts])}


def _padded(tokenizer: Any, rows: Sequence[Any], max_length: int, **options: Any) -> Any:
    return tokenizer(rows, truncation=True, max_length=max_length, padding=True, return_tensors="pt", **options)


def _inputs(encoded: Any) -> dict[str, Tensor]:
    return {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}


# ---- Entities out of IOB2 tags, and how well predicted ones agree with true ones.
#
# An entity is a B- tag and the I- tags of the same type that follow it. Models also predict I- tags without their B-:
# as in CoNLL's evaluation, such a tag begins an entity. An entity counts as found if type, first and last word agree.


class Entity(NamedTuple):
    """An entity: its type, its first word and the word after its last one."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True)
class SpanScores:
    """Shares from 0 to 1; `accuracy` is that of the tags. A share of nothing is 0."""

    precision: float
    recall: float
    f1: float
    accuracy: float


def spans_of(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sentence, in order."""
    found: list[Entity] = []
    kind, start = "", 0
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, current = tag.partition("-")
        goes_on = prefix == "I" and current == kind != ""
        if kind and not goes_on:
            found.append(Entity(kind, start, place))
            kind = ""
        if not goes_on and prefix in ("B", "I"):
            kind, start = current, place
    return found


def score_spans(pairs: Iterable[tuple[Sequence[str], Sequence[str]]]) -> SpanScores:
    """The scores over all sentences, each given as its true and its predicted tags, equally many."""
    true = predicted = both = right = words = 0
    for wanted, given in pairs:
        expected, found = set(spans_of(wanted)), set(spans_of(given))
        true, predicted, both = true + len(expected), predicted + len(found), both + len(expected & found)
        right += sum(a == b for a, b in zip(wanted, given, strict=True))
        words += len(wanted)
    precision, recall = _share(both, predicted), _share(both, true)
    return SpanScores(precision, recall, _share(2 * precision * recall, precision + recall), _share(right, words))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


TASKS: Final = ("ner", "ncc")
"""Entities in sentences, and classes of texts."""

SMALL_PARAMETERS: Final = 5_000_000
SMALL_MODEL: Final = FineTuning(learning_rates=(5e-4, 1e-3), batch_size=16)
"""How to fine-tune models with fewer parameters than that."""


def evaluate_model(
    model: Path | str, options: TaskOptions, say: Say = lambda _: None, how: FineTuning | None = None
) -> TaskReport:
    """Fine-tune and test `model`, a folder of `minga export` or a name on the hub (safetensors only).

    `how` is by the size of the model, unless it is given.

    Raises `ConfigurationError` if model or data cannot be read or are too little.
    """
    if options.data is None:
        raise ConfigurationError(
            "--data: name the examples of the task: for ner a file with a word, a tab and its tag a line; for ncc a "
            "folder with a folder of .txt files for each class, or a .jsonl file with text and label; or for either a "
            "data set of the hub, hub:OWNER/NAME[:CONFIG]"
        )
    work = _Work.load(str(model), options, options.data, how)
    trained, scratch = [], []
    for seed in range(options.runs):
        trained.append(work.score(seed, from_scratch=False))
        say(f"run {seed + 1} of {options.runs}: {in_words(trained[-1])}")
        scratch.append(work.score(seed, from_scratch=True))
        say(f"  from scratch: {in_words(scratch[-1])}")
    count = len(work.data.training)
    return TaskReport(options.task, options.data, count, options.runs, summary(trained), summary(scratch))


class _Work:
    """A model, a tokenizer and the data of a task."""

    def __init__(self, name: str, task: str, tokenizer: Any, data: TaskData[Any], how: FineTuning) -> None:
        self.name, self.task, self.tokenizer, self.data, self.how = name, task, tokenizer, data, how
        self._numbers = {label: number for number, label in enumerate(data.labels)}

    @classmethod
    def load(cls, name: str, options: TaskOptions, source: str, how: FineTuning | None) -> _Work:
        """Everything but the model. Raises `ConfigurationError`."""
        from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast

        if name.startswith((".", "/", "~")) and not Path(name).is_dir():
            raise ConfigurationError(f"{name}: no such folder; `minga export` writes one")
        data: TaskData[Any] = read_entities(source) if options.task == "ner" else read_classes(source)
        if options.training_examples is not None:
            data = data.first(options.training_examples)
        try:
            config = AutoConfig.from_pretrained(name)
            _check_no_kernel(config.to_dict() | config.get_config_dict(name)[0], name)
            # Of what minga exports: AutoTokenizer makes one by rules of its own for some architectures.
            is_exported = (Path(name) / PROVENANCE_FILE).is_file()
            tokenizer = (PreTrainedTokenizerFast if is_exported else AutoTokenizer).from_pretrained(name)
        except (OSError, ValueError, KeyError) as error:
            raise ConfigurationError(f"{name}: no model that transformers can load: {str(error)[:300]}") from error
        if how is None:
            how = SMALL_MODEL if _parameters(config) < SMALL_PARAMETERS else FineTuning()
        longest = getattr(config, "max_position_embeddings", how.max_length)
        tokenizer.model_max_length = min(how.max_length, longest, tokenizer.model_max_length)
        return cls(name, options.task, tokenizer, data, how)

    def score(self, seed: int, *, from_scratch: bool) -> dict[str, float]:
        """Fine-tune with each rate and test the model with the least validation loss."""
        best: tuple[float, nn.Module] | None = None
        for rate in self.how.learning_rates:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = self._model(from_scratch=from_scratch)
                loss = fine_tune(model, self._batches, self.how, rate, seed)
            if best is None or loss < best[0]:
                best = loss, model
        if best is None:
            raise ConfigurationError("no learning rate to fine-tune with")
        return self._test(best[1])

    def _model(self, *, from_scratch: bool) -> nn.Module:
        from transformers import AutoConfig, AutoModelForSequenceClassification, AutoModelForTokenClassification

        kind = AutoModelForTokenClassification if self.task == "ner" else AutoModelForSequenceClassification
        named: dict[str, Any] = {"id2label": dict(enumerate(self.data.labels)), "label2id": self._numbers}
        if self.tokenizer.pad_token_id is not None:  # causal models know none, and classify by the last other token
            named["pad_token_id"] = self.tokenizer.pad_token_id
        try:
            if from_scratch:
                model: nn.Module = kind.from_config(
                    AutoConfig.from_pretrained(self.name, **named),
                    dtype=torch.float32,  # else that of the file, in which training rounds away most of an update
                )
            else:
                model = kind.from_pretrained(self.name, use_safetensors=True, dtype=torch.float32, **named)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{self.name}: cannot be fine-tuned: {str(error)[:300]}") from error
        return model

    def _batches(self, side: str, seed: int) -> Iterator[dict[str, Tensor]]:
        examples: Sequence[Any] = getattr(self.data, side)
        if side == "training":
            examples = shuffled(examples, seed)
        encode: Callable[..., dict[str, Tensor]] = encode_tagged if self.task == "ner" else encode_texts
        for some in chunks(examples, self.how.batch_size):
            yield encode(self.tokenizer, some, self._numbers, self.tokenizer.model_max_length)

    def _test(self, model: nn.Module) -> dict[str, float]:
        """Named figures of the test examples, from 0 to 1."""
        names, found = self.data.labels, predictions(model, self._batches)
        if self.task == "ncc":
            right = torch.cat([labels == classes_ for labels, classes_ in found])
            return {"accuracy": float(right.float().mean())}
        pairs = []
        for labels, classes_ in found:
            for wanted, given in zip(labels, classes_, strict=True):
                counts = wanted != IGNORED
                pairs.append(([names[i] for i in wanted[counts]], [names[i] for i in given[counts]]))
        return asdict(score_spans(pairs))


def _parameters(config: Any) -> int:
    """How many parameters the encoder has, counted without memory."""
    from transformers import AutoModel

    with torch.device("meta"):
        return sum(parameter.numel() for parameter in AutoModel.from_config(config).parameters())


def _check_no_kernel(config: Mapping[str, Any], name: str) -> None:
    """Raise `ConfigurationError` for a configuration that names a kernel of the hub, which is a program."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            _check_no_kernel(value, name)
        elif str(key).endswith("_implementation") and "/" in str(value):
            raise ConfigurationError(f"{name}: its config.json names a program, {str(value)[:60]!r}, as {key}")
