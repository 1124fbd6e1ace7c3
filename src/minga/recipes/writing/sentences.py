"""Cutting documents into sentences.

A sentence ends at a line break or after a terminator (. ! ? … and those of other scripts), with the quotation marks
and brackets that close behind it, if blank space and something that can begin a sentence follow. After Latin full stops
that are part of an initial or a common abbreviation it does not end. Scripts that write no blanks end a sentence at
their terminator alone. Wrong cuts do little harm here: they only move where a pair of segments may be split.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_ABBREVIATIONS = frozenset(
    (
        *("mr", "mrs", "ms", "dr", "prof", "st", "sr", "jr", "rev", "gen", "col", "capt", "lt", "sgt", "hon", "al"),
        *("vs", "etc", "no", "vol", "fig", "eq", "ch", "sec", "pp", "ca", "cf", "e.g", "i.e", "u.s", "u.k", "a.d"),
    )
)
# Right single and double quotation marks, closing guillemet.
_CLOSING = "\"'\u2019\u201d\u00bb)\\]}"
# Ellipsis; the full stops of Urdu and of Devanagari, single and double; the Arabic question mark.
_SPACED = ".!?\u2026\u06d4\u0964\u0965\u061f"
# Full stops, exclamation and question marks of Chinese and Japanese, and the brackets and quotation marks that close.
_UNSPACED = "\u3002\uff61\uff01\uff1f"
_UNSPACED_CLOSING = "\u300d\u300f\uff09\u201d\u2019"
_END = re.compile(
    # What follows must not be a small letter or a mark that goes on with the sentence.
    rf"(?:[{_SPACED}]+[{_CLOSING}]*(?=\s+[^\sa-z,;:])"
    rf"|[{_UNSPACED}]+[{_UNSPACED_CLOSING}]*)\s*"
)
_LAST_WORD = re.compile(r"([^\s(\[\"'\u201c\u2018]+)\.$")


def split_sentences(document: str) -> list[str]:
    """The sentences of a document in their order, without blanks at their ends; none is empty."""
    return split_at(_END, document, _is_abbreviation)


def split_at(end: re.Pattern[str], document: str, is_abbreviation: Callable[[str], bool]) -> list[str]:
    """What stands between line breaks and matches of `end`, unless an abbreviation stands before its full stop."""
    sentences: list[str] = []
    for line in document.split("\n"):
        start = 0
        for match in end.finditer(line):
            sentence = line[start : match.end()].strip()
            last_word = _LAST_WORD.search(sentence[-40:])
            if sentence and not (last_word is not None and is_abbreviation(last_word.group(1))):
                sentences.append(sentence)
                start = match.end()
        rest = line[start:].strip()
        if rest:
            sentences.append(rest)
    return sentences


def _is_abbreviation(word: str) -> bool:
    # A single capital is an initial, except the pronoun.
    return word.lower() in _ABBREVIATIONS or (len(word) == 1 and word.isupper() and word != "I")
