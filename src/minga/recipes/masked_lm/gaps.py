"""Sentences of held-out text with a word left out, and the words that a model puts there: for people to judge."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tokenizers import Tokenizer

from minga.recipes.text.foreign_tokenizer import encoded_texts

GAP: Final = "____"
GAPS: Final = 3
EVERYWHERE: Final = 0.2
"""Share of the sentences from which a word is taken to say nothing: its place alone tells it, not the others."""

FEWEST_WORDS, MOST_WORDS = 6, 16
_WORD: Final = re.compile(r"\w(?:[\w\u0981-\u09fe\u200c\u200d])+")
"""A word of two letters or more; the vowel signs and joiners of Bengali are no letters for Python."""


@dataclass(frozen=True)
class WordGap:
    """A sentence as tokens, with the place of the one that is left out."""

    ids: tuple[int, ...]
    place: int
    sentence: str
    word: str


def find_gaps(documents: Iterable[str], split: Callable[[str], list[str]], tokenizer: Tokenizer) -> list[WordGap]:
    """A gap for each of the commonest words that are one token: in the first sentence that has it in its midst.

    Common words are what a model learns first, so a short training is seen there if anywhere. Those that stand nearly
    everywhere come last.
    """
    sentences = [each for document in documents for each in split(document) if _is_short(each)]
    places = defaultdict[str, list[tuple[str, re.Match[str]]]](list)
    for sentence in sentences:
        for match in _WORD.finditer(sentence):
            places[match.group()].append((sentence, match))
    found: list[WordGap] = []
    most = EVERYWHERE * len(sentences)
    for word in sorted(places, key=lambda word: (len(places[word]) > most, -len(places[word]))):
        used = {gap.sentence for gap in found}
        gap = next((gap for gap in _gaps_of(places[word], tokenizer) if gap.sentence not in used), None)
        if gap is not None:
            found.append(gap)
        if len(found) == GAPS:
            break
    return found


def _is_short(sentence: str) -> bool:
    return FEWEST_WORDS <= len(sentence.split()) <= MOST_WORDS


def _gaps_of(places: list[tuple[str, re.Match[str]]], tokenizer: Tokenizer) -> Iterator[WordGap]:
    for sentence, match in places:
        if not 0.25 < match.start() / len(sentence) < 0.75:
            continue
        (encoding,) = encoded_texts(tokenizer, [sentence], with_places=True)
        for place, (start, end) in enumerate(encoding.offsets):
            # Some tokenizers count the blank before a word as a part of it.
            if end == match.end() and sentence[start:end].strip() == match.group():
                shown = f"{sentence[: match.start()]}{GAP}{sentence[match.end() :]}"
                yield WordGap(tuple(encoding.ids), place, shown, match.group())
