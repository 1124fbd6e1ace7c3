"""How languages are written: where sentences end, and one spelling for what looks the same; each by `WRITINGS`."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

# ---- Cutting documents into sentences.
#
# A sentence ends with its paragraph (at a blank line; in a document without any, at each line break, as else lines are
# those of a page) or after a terminator (. ! ? … and those of other scripts), with the quotation marks
# and brackets that close behind it, if blank space and something that can begin a sentence follow. After Latin full
# stops that are part of an initial or a common abbreviation it does not end. Scripts that write no blanks end a
# sentence at their terminator alone. Wrong cuts do little harm here: they only move where a pair of segments may be
# split.


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
_BLANK_LINES = re.compile(r"\n\s*\n")
_LAST_WORD = re.compile(r"([^\s(\[\"'\u201c\u2018]+)\.$")


def split_sentences(document: str) -> list[str]:
    """The sentences of a document in their order, without blanks at their ends; none is empty."""
    return split_at(_END, document, _is_abbreviation)


def split_at(end: re.Pattern[str], document: str, is_abbreviation: Callable[[str], bool]) -> list[str]:
    """What stands between paragraphs and matches of `end`, unless an abbreviation stands before its full stop."""
    sentences: list[str] = []
    for line in _paragraphs(document):
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


def _paragraphs(document: str) -> list[str]:
    paragraphs = _BLANK_LINES.split(document)
    return document.split("\n") if len(paragraphs) == 1 else [" ".join(each.split()) for each in paragraphs]


def _is_abbreviation(word: str) -> bool:
    # A single capital is an initial, except the pronoun.
    return word.lower() in _ABBREVIATIONS or (len(word) == 1 and word.isupper() and word != "I")


# ---- Bengali text: one spelling for what looks the same, and its sentences.
#
# Normalisation (sahajBERT, DeDLOC section 4.3, https://arxiv.org/abs/2106.10207): canonical composition (the letters
# that Unicode leaves decomposed stay so), one danda for the signs that are written in its place, a visarga for a colon
# after a letter, single blanks. The joiners ZWJ and ZWNJ are letters here, since they decide which conjunct is read;
# other control and zero-width characters are dropped. With `paper=True` it is as in the paper, which turned the
# joiners into blanks and so cut words.


DANDA: Final = "\u0964"
_DANDAS = re.compile("[\u09e4\u09f7|]")
_DOUBLE_DANDAS = re.compile("\u09e5")
_LETTERS: Final = "\u0985-\u09b9\u09ce\u09dc-\u09df\u09f0\u09f1"
_MARKS: Final = "\u09bc\u09be-\u09cc\u09d7"
_COLON = re.compile(f"(?<=[{_LETTERS}{_MARKS}]):")
_BLANKS = re.compile(r"[^\S\n]+")
_JOINERS = re.compile("[\u200b-\u200d]")
_DROPPED = re.compile(
    "[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\ufeff]"
)

TOKENIZER_RULES: Final = (
    (_DROPPED.pattern, ""),
    (_DANDAS.pattern, DANDA),
    (_DOUBLE_DANDAS.pattern, "\u0965"),
    (_BLANKS.pattern, " "),
    (_COLON.pattern, "\u0983"),
)
"""What `normalize_bengali` does to the midst of a line, as regular expressions."""

PAPER_RULES: Final = ((_JOINERS.pattern, " "), *TOKENIZER_RULES, ("\u0965", DANDA))
"""The same of `paper=True`."""

_BENGALI_ABBREVIATIONS: Final = frozenset(
    ("ড", "ডা", "মো", "মোঃ", "মোছা", "অধ্যা", "লি", "কি.মি", "মি", "সে.মি", "প্রফে", "ইঞ্জি", "খ্রি", "পৃ")
)
_BENGALI_CLOSING: Final = "\"'\u2019\u201d\u00bb)\\]}"
_BENGALI_END = re.compile(
    # A danda ends a sentence also where the next one follows without a blank; a full stop only before a blank.
    rf"(?:[{DANDA}\u0965]+[{_BENGALI_CLOSING}]*|[!?\u2026]+[{_BENGALI_CLOSING}]*(?=\s|$)|\.[{_BENGALI_CLOSING}]*(?=\s))\s*"
)


def normalize_bengali(text: str, *, paper: bool = False) -> str:
    """The text in one spelling; line breaks stay."""
    if paper:
        text = _JOINERS.sub(" ", text)
    text = unicodedata.normalize("NFKC" if paper else "NFC", _DROPPED.sub("", text))
    text = _DOUBLE_DANDAS.sub("\u0965", _DANDAS.sub(DANDA, text))
    if paper:
        text = text.replace("\u0965", DANDA).lower()
    text = _BLANKS.sub(" ", _COLON.sub("\u0983", text))
    return "\n".join(line.strip() for line in text.split("\n"))


def split_bengali(document: str) -> list[str]:
    """The sentences of a document in their order, without blanks at their ends; none is empty."""
    return split_at(_BENGALI_END, document, _BENGALI_ABBREVIATIONS.__contains__)


def script_share(text: str, script: str) -> float:
    """The share of the letters of a text that belong to a script, such as "Bengali" or "Latin"; 0 without letters.

    The script of a letter is the first word of its Unicode name.
    """
    wanted, letters, found = script.upper(), 0, 0
    for character in text:
        if character.isalpha():
            letters += 1
            found += unicodedata.name(character, "").partition(" ")[0] == wanted
    return found / letters if letters else 0.0


def as_it_is(text: str) -> str:
    """The text."""
    return text


Split = Callable[[str], list[str]]
"""The sentences of a document in their order."""


@dataclass(frozen=True)
class Writing:
    """How a language is written. `rules` are replacements (a regular expression, and what takes the place of a match)
    that a tokenizer makes before all others, so that it reads a text of anybody as training read it.
    """

    split: Split = split_sentences
    normalize: Callable[[str], str] = as_it_is
    rules: tuple[tuple[str, str], ...] = ()


USUAL: Final = Writing()
WRITINGS: Final = {
    "": USUAL,
    "bn": Writing(split_bengali, normalize_bengali, TOKENIZER_RULES),
    "bn-paper": Writing(split_bengali, partial(normalize_bengali, paper=True), PAPER_RULES),
}
"""By the code of a language. With "bn-paper" joiners become blanks, as in the tokenizer of sahajBERT."""
