"""What a language asks for beyond the usual: a spelling, and its own way to end sentences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from minga.recipes.writing.bengali import TOKENIZER_RULES, normalize_bengali, split_bengali
from minga.recipes.writing.sentences import split_sentences


def as_it_is(text: str) -> str:
    """The text."""
    return text


@dataclass(frozen=True)
class Writing:
    """How a language is written. `rules` are replacements (a regular expression, and what takes the place of a match)
    that a tokenizer makes before all others, so that it reads a text of anybody as training read it.
    """

    split: Callable[[str], list[str]] = split_sentences
    normalize: Callable[[str], str] = as_it_is
    rules: tuple[tuple[str, str], ...] = ()


USUAL: Final = Writing()
WRITINGS: Final = {
    "": USUAL,
    "bn": Writing(split_bengali, normalize_bengali, TOKENIZER_RULES),
    "bn-paper": Writing(split_bengali, partial(normalize_bengali, paper=True), TOKENIZER_RULES),
}
"""By the code of a language. With "bn-paper" joiners become blanks, as in the tokenizer of sahajBERT."""
