"""Labelled examples of a task, and how they are split into training, validation and test.

An example goes to one side by the BLAKE3 digest of its text alone, so equal texts never stand on two sides, and the
split is the same on every machine and for every order of the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from blake3 import blake3

from minga.core.errors import ConfigurationError

TEST_SHARE = VALIDATION_SHARE = 0.1


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
    """Ten per cent for testing, ten for validation. Raises `ConfigurationError` if one side would be empty."""
    sides: tuple[list[E], list[E], list[E]] = [], [], []
    for rank, example in sorted(
        ((_rank(each.text), each) for each in set(examples)), key=lambda ranked: (ranked[0], repr(ranked[1]))
    ):
        sides[2 if rank < TEST_SHARE else 1 if rank < TEST_SHARE + VALIDATION_SHARE else 0].append(example)
    if not all(sides):
        raise ConfigurationError(
            f"{sum(map(len, sides))} examples are too few to train, validate and test with: some hundred are needed"
        )
    training, validation, test = map(tuple, sides)
    return TaskData(training, validation, test, tuple(sorted(set(labels), key=lambda label: (label != "O", label))))


def shuffled(examples: Sequence[E], seed: int) -> list[E]:
    """The examples in the order of a seed."""
    return [examples[place] for place in np.random.default_rng(seed).permutation(len(examples))]


def _rank(text: str) -> float:
    """A number in [0, 1) that depends on the text alone."""
    return int.from_bytes(blake3(text.encode("utf-8", "ignore")).digest(length=8), "big") / 2**64
