"""Cutting documents into sentences.

A sentence ends at a line break or after a terminator (. ! ? … and those of other scripts), with the quotation marks
and brackets that close behind it, if blank space and something that can begin a sentence follow. After Latin full stops
that are part of an initial or a common abbreviation it does not end. Scripts that write no blanks end a sentence at
their terminator alone. Wrong cuts do little harm here: they only move where a pair of segments may be split.
"""

from __future__ import annotations

import re

_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof st sr jr rev gen col capt lt sgt hon vs etc no vol fig eq ch sec pp ca cf al e.g i.e u.s".split()
)
_CLOSING = "\"'”’»)\\]}"
_END = re.compile(
    rf"(?:[.!?…؟۔।॥]+[{_CLOSING}]*(?=\s+[^\s\da-z,;:])"  # the next word starts with neither a small letter nor a digit
    rf"|[.!?…]+[{_CLOSING}]*(?=\s+\d)"
    r"|[。！？｡]+[」』）”’]*)\s*"
)
_LAST_WORD = re.compile(r"([^\s(\[\"'“‘]+)\.$")


def split_sentences(document: str) -> list[str]:
    """The sentences of a document in their order, without blanks at their ends; none is empty."""
    sentences: list[str] = []
    for line in document.split("\n"):
        start = 0
        for match in _END.finditer(line):
            sentence = line[start : match.end()].strip()
            if sentence and not _is_abbreviated(sentence):
                sentences.append(sentence)
                start = match.end()
        rest = line[start:].strip()
        if rest:
            sentences.append(rest)
    return sentences


def _is_abbreviated(sentence: str) -> bool:
    match = _LAST_WORD.search(sentence[-40:])
    if match is None:
        return False
    word = match.group(1)
    # A single capital is an initial, except the pronoun.
    return word.lower() in _ABBREVIATIONS or (len(word) == 1 and word.isupper() and word != "I")
