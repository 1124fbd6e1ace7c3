"""Labelled examples of a task, and how they are split into training, validation and test.

An example goes to one side by the BLAKE3 digest of its text alone, so equal texts never stand on two sides, and the
split is the same on every machine and for every order of the source.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import numpy as np

from minga.core.errors import ConfigurationError, reason_of
from minga.core.files import NOT_TEXT, decode_text
from minga.core.units import counted
from minga.recipes.data.hold_out import content_rank
from minga.recipes.data.hub import opened
from minga.recipes.data_source import check_on_hub

TEST_SHARE = VALIDATION_SHARE = 0.1

logger = logging.getLogger("minga.recipes")


@dataclass(frozen=True)
class TaggedSentence:
    """A sentence in words, each with a tag of the IOB2 scheme such as B-person, I-person or O."""

    words: tuple[str, ...]
    tags: tuple[str, ...]

    @property
    def text(self) -> str:
        """The words with blanks between them."""
        return " ".join(self.words)


@dataclass(frozen=True)
class LabelledText:
    """A text and its class."""

    text: str
    label: str


E = TypeVar("E", TaggedSentence, LabelledText)


@dataclass(frozen=True)
class TaskData(Generic[E]):
    """The examples of a task by side, in an order of their contents alone, and all labels, sorted, "O" first."""

    training: tuple[E, ...]
    validation: tuple[E, ...]
    test: tuple[E, ...]
    labels: tuple[str, ...]

    def first(self, count: int) -> TaskData[E]:
        """The same with `count` training examples only."""
        return TaskData(self.training[:count], self.validation, self.test, self.labels)


def split_examples(examples: Iterable[E], labels: Sequence[str]) -> TaskData[E]:
    """Ten per cent for testing, ten for validation. Raises `ConfigurationError` if one side would be empty, and for a
    single label, which any model finds.
    """
    sides: tuple[list[E], list[E], list[E]] = [], [], []
    for rank, example in sorted(
        ((content_rank(each.text), each) for each in set(examples)), key=lambda ranked: (ranked[0], repr(ranked[1]))
    ):
        sides[2 if rank < TEST_SHARE else 1 if rank < TEST_SHARE + VALIDATION_SHARE else 0].append(example)
    if not all(sides):
        raise ConfigurationError(
            f"{sum(map(len, sides))} examples are too few to train, validate and test with: some hundred are needed"
        )
    if len(found := set(labels)) < 2:
        raise ConfigurationError(f"all examples have the label {found.pop()!r}: a task needs two at least")
    training, validation, test = map(tuple, sides)
    return TaskData(training, validation, test, tuple(sorted(found, key=lambda label: (label != "O", label))))


def shuffled(examples: Sequence[E], seed: int) -> list[E]:
    """The examples in the order of a seed."""
    return [examples[place] for place in np.random.default_rng(seed).permutation(len(examples))]


# ---- Labelled data from files and from the Hugging Face hub.
#
# entities   a text file with a word, a tab and its tag on each line, and a blank line after each sentence; or a data
#            set with the columns `tokens` and `ner_tags`
# classes    a folder with a folder of .txt files for each class; a .jsonl file with the keys `text` and `label`; or a
#            data set with these columns


HUB: Final = "hub:"
MAX_FILE_BYTES: Final = 512 << 20
MAX_TEXT_CHARACTERS: Final = 1 << 20


def read_entities(source: str) -> TaskData[TaggedSentence]:
    """The sentences of a file, or of a data set written as hub:OWNER/NAME or hub:OWNER/NAME:CONFIG.

    Raises `ConfigurationError` if they cannot be read, or a line has no tag of the IOB2 scheme.
    """
    if source.startswith(HUB):
        rows = _hub_rows(source)
        return tagged(_from_tokens(rows, source))
    return tagged(tagged_lines(_lines(_text_of(Path(source))), source))


def read_classes(source: str) -> TaskData[LabelledText]:
    """The texts of a folder, a .jsonl file or a data set; raises `ConfigurationError` if they cannot be read."""
    if source.startswith(HUB):
        return labelled(_from_columns((source, row) for row in _hub_rows(source)))
    path = Path(source)
    return labelled(_from_folder(path) if path.is_dir() else _from_columns(_rows_in_lines(path)))


def tagged(sentences: Iterable[TaggedSentence]) -> TaskData[TaggedSentence]:
    """The sentences, split; their labels are all tags that occur."""
    found = list(sentences)
    return split_examples(found, [tag for sentence in found for tag in sentence.tags])


def labelled(texts: Iterable[LabelledText]) -> TaskData[LabelledText]:
    """The texts, split; their labels are all classes that occur."""
    found = list(texts)
    return split_examples(found, [text.label for text in found])


def tagged_lines(lines: Iterable[str], source: str) -> Iterator[TaggedSentence]:
    """The sentences in lines of word, tab, tag. Raises `ConfigurationError` naming the first line that is none."""
    words: list[str] = []
    tags: list[str] = []
    for number, line in enumerate([*lines, ""], start=1):
        word, _, tag = line.rstrip("\r\n").rpartition("\t")
        if line.strip():
            if not word or not _is_tag(tag):
                raise ConfigurationError(f"{source}, line {number}: not a word, a tab and a tag such as B-person or O")
            words.append(word.strip())
            tags.append(tag)
        elif words:
            yield TaggedSentence(tuple(words), tuple(tags))
            words, tags = [], []


def _is_tag(tag: str) -> bool:
    return tag == "O" or tag[:2] in ("B-", "I-")


def _from_tokens(rows: Iterable[dict[str, Any]], source: str) -> Iterator[TaggedSentence]:
    unlabelled = 0
    for row in rows:
        try:
            words, tags = [str(word) for word in row["tokens"]], list(row["ner_tags"])
        except (KeyError, TypeError) as error:
            raise ConfigurationError(f"{source}: a data set of entities has the columns tokens and ner_tags") from error
        if any(map(_is_none, tags)):
            unlabelled += 1
        elif len(words) == len(tags) and words:
            if wrong := [tag for tag in map(str, tags) if not _is_tag(tag)]:
                raise ConfigurationError(
                    f"{source}: {wrong[0]!r} in ner_tags is no tag such as B-person or O; a column of numbers needs "
                    "names of its classes"
                )
            yield TaggedSentence(tuple(words), tuple(map(str, tags)))
    _warn_of_unlabelled(unlabelled)


def _from_columns(rows: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[LabelledText]:
    """Of rows, each with where it stands, those that have a text and a class."""
    unlabelled = 0
    for where, row in rows:
        if "text" not in row or "label" not in row:
            raise ConfigurationError(f"{where}: a data set of classes has the columns text and label")
        if row["text"] is None or _is_none(row["label"]):
            unlabelled += 1
            continue
        yield LabelledText(str(row["text"])[:MAX_TEXT_CHARACTERS], str(row["label"]))
    _warn_of_unlabelled(unlabelled)


def _is_none(label: Any) -> bool:
    """Whether that is how data sets write that something has no label."""
    return label is None or (isinstance(label, int | float) and not label >= 0)  # not a number, too


def _warn_of_unlabelled(count: int) -> None:
    if count:
        logger.warning("%s without a text or a label are left out", counted(count, "example"))


def _from_folder(folder: Path) -> Iterator[LabelledText]:
    for path in sorted(folder.glob("*/*.txt")):
        yield LabelledText(_text_of(path, "latin-1")[:MAX_TEXT_CHARACTERS], path.parent.name)


def _rows_in_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(_lines(_text_of(path)), start=1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"{where}: not JSON: {str(error)[:200]}") from error
        if not isinstance(row, dict):
            raise ConfigurationError(f"{where}: not an object with the keys text and label")
        yield where, row


def _lines(text: str) -> list[str]:
    """The lines of a file: `splitlines` also cuts at what may stand in the midst of one, such as U+2028."""
    return text.replace("\r\n", "\n").split("\n")


def _text_of(path: Path, fallback: str | None = None) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigurationError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB")
        data = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {reason_of(error)}") from error
    try:
        return decode_text(data)
    except UnicodeDecodeError as error:
        if fallback is not None:
            return data.decode(fallback)
        raise ConfigurationError(f"{path}: {NOT_TEXT}") from error


def _hub_rows(source: str) -> Iterator[dict[str, Any]]:
    """The rows of all splits, class numbers as their names."""
    name, _, config = source.removeprefix(HUB).partition(":")
    check_on_hub(name, "--data")
    found = opened(source, name, name=config or None, streaming=False)
    for split in found.values():
        names = {column: _class_names(feature) for column, feature in split.features.items()}
        for row in split:
            yield {column: _named(value, names[column]) for column, value in row.items()}


def _class_names(feature: Any) -> list[str] | None:
    names = getattr(getattr(feature, "feature", feature), "names", None)
    return list(names) if names else None


def _named(value: Any, names: list[str] | None) -> Any:
    """The name of a class, or of each of a list; a number that stands for none stays as it is."""
    if names is None or _is_none(value):
        return value
    return [_named(one, names) for one in value] if isinstance(value, list) else names[value]
