"""Tokenizers of strangers, used with bounded memory and with errors in words.

A `tokenizer.json` may put long texts in the place of short ones, hold expressions that never come to an end, or lack
the token for what it does not know; the library then fills the memory, panics, or raises a bare `Exception`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any, Final

from tokenizers import Encoding, Tokenizer

from minga.core.errors import ConfigurationError

MOST_GROWTH: Final = 256
"""Characters that one character of a text may become; the tables of NFKC have 33 bytes for one."""

_PANIC: Final = "PanicException"
_TRIE_SIZE_BYTES: Final = 4


def parsed(data: bytes) -> Tokenizer:
    """The tokenizer in the content of a `tokenizer.json`, without padding and truncation.

    Raises `ConfigurationError` if it cannot be read, or lets texts grow too much.
    """
    try:
        text = data.decode("utf-8")
        described = json.loads(text)
        for part in ("normalizer", "pre_tokenizer", "decoder"):
            if isinstance(described, dict) and (growth := _growth(described.get(part))) > MOST_GROWTH:
                raise ValueError(f"its {part} lets a text grow {growth} times; at most {MOST_GROWTH} times are taken")
        tokenizer = Tokenizer.from_str(text)
        tokenizer.no_padding()
        tokenizer.no_truncation()
    except BaseException as error:  # the library raises bare `Exception` for what it cannot read, and panics
        raise _in_words(error, "not readable") from error
    return tokenizer


def encoded_texts(tokenizer: Tokenizer, texts: Sequence[str], *, with_places: bool = False) -> list[Encoding]:
    """Each text as tokens, without special ones; `with_places` also says where in the text each token is.

    Raises `ConfigurationError` if the tokenizer fails at one of them.
    """
    encode = tokenizer.encode_batch if with_places else tokenizer.encode_batch_fast
    try:
        return list(encode(list(texts), add_special_tokens=False))
    except BaseException as error:  # see above
        raise _in_words(error, "it fails at a text") from error


def _in_words(error: BaseException, what: str) -> BaseException:
    """The error to raise: a panic derives from no class of errors, as an interrupt does, which passes as it is."""
    if isinstance(error, Exception) or type(error).__name__ == _PANIC:
        return ConfigurationError(f"tokenizer.json: {what}: {str(error)[:200]}")
    return error


def _growth(part: Any) -> int:
    """At most so many characters one character becomes in all steps of a part of the tokenizer."""
    if isinstance(part, list):
        grown = 1
        for each in part:
            grown *= _growth(each)
            if grown > MOST_GROWTH:
                break
        return grown
    if not isinstance(part, dict):
        return 1
    grown = _growth([value for value in part.values() if isinstance(value, list | dict)])
    if part.get("type") == "Replace":
        content, pattern = str(part.get("content", "")), part.get("pattern")
        matches_nothing = isinstance(pattern, dict) and "Regex" in pattern and bool(content)
        grown *= max(1, len(content) + matches_nothing)  # an expression may also match between two characters
    elif part.get("type") == "Prepend":
        grown *= 1 + len(str(part.get("prepend", "")))
    elif part.get("type") == "Precompiled":
        grown *= _longest(str(part.get("precompiled_charsmap") or ""))
    return grown


def _longest(table: str) -> int:
    """Bytes of the longest text in a table of replacements, each of which ends with a zero."""
    try:
        content = base64.b64decode(table, validate=True)
    except binascii.Error as error:
        raise ValueError("its table of replacements is damaged") from error
    trie = int.from_bytes(content[:_TRIE_SIZE_BYTES], "little")
    return max(1, *map(len, content[_TRIE_SIZE_BYTES + trie :].split(b"\0")))
