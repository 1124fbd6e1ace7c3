"""Bengali text: one spelling for what looks the same, and its sentences.

Normalisation (sahajBERT, DeDLOC section 4.3, https://arxiv.org/abs/2106.10207): canonical composition (the letters that
Unicode leaves decomposed stay so), one danda for the signs that are written in its place, a visarga for a colon after a
letter, single blanks. The joiners ZWJ and ZWNJ are letters here, since they decide which conjunct is read; other
control and zero-width characters are dropped. With `paper=True` it is as in the paper, which turned the joiners into
blanks and so cut words.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from minga.recipes.writing.sentences import split_at

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
    ("[\u09e4\u09f7|]", DANDA),
    ("\u09e5", "\u0965"),
    (f"(?<=[{_LETTERS}{_MARKS}]):", "\u0983"),
)
"""The rules that concern what a tokenizer sees, as regular expressions."""

_ABBREVIATIONS: Final = frozenset(
    ("ড", "ডা", "মো", "মোঃ", "মোছা", "অধ্যা", "লি", "কি.মি", "মি", "সে.মি", "প্রফে", "ইঞ্জি", "খ্রি", "পৃ")
)
_CLOSING: Final = "\"'\u2019\u201d\u00bb)\\]}"
_END = re.compile(
    # A danda ends a sentence also where the next one follows without a blank; a full stop only before a blank.
    rf"(?:[{DANDA}\u0965]+[{_CLOSING}]*|[!?\u2026]+[{_CLOSING}]*(?=\s|$)|\.[{_CLOSING}]*(?=\s))\s*"
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
    return split_at(_END, document, _ABBREVIATIONS.__contains__)


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
