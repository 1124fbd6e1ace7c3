"""Tokenizers of strangers: whatever they hold, a peer gets an error in words, and soon."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from minga.core.errors import ConfigurationError
from minga.recipes.text.tokenizer import encoded_texts, parsed

WORDS = {"type": "WordLevel", "vocab": {"a": 0, "<unk>": 1}, "unk_token": "<unk>"}


def content(model: dict[str, Any] = WORDS, **parts: Any) -> bytes:
    return json.dumps({"version": "1.0", "added_tokens": [], **parts, "model": model}).encode()


def replace(pattern: dict[str, str], by: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": by}


def table(size: int, texts: bytes) -> dict[str, str]:
    """A table of replacements with a trie of `size` zeros."""
    body = size.to_bytes(4, "little") + bytes(size) + texts
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(body).decode()}


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": {"type": "Sequence", "normalizers": [replace({"String": "a"}, "a" * 10)] * 5}},
        {"normalizer": {"type": "Sequence", "normalizers": [replace({"Regex": ""}, "a")] * 20}},
        {"normalizer": {"type": "Prepend", "prepend": "a" * 1000}},
        {"normalizer": table(4, b"a" * 1000 + bytes(1))},
        {"decoder": {"type": "Sequence", "decoders": [replace({"String": "a"}, "a" * 400)]}},
    ],
)
def test_a_tokenizer_that_lets_texts_grow_without_bounds_is_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"lets a text grow \d+ times"):
        parsed(content(**parts))


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"[]", b"{}", content({"type": "Unigram", "vocab": [], "unk_id": 7}), b"[" * 100_000]
)
def test_what_is_no_tokenizer_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigurationError, match=r"tokenizer\.json: not readable"):
        parsed(data)


@pytest.mark.parametrize(
    "data",
    [
        content({"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "<unk>"}),
        content({"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": None}),
        content(normalizer=replace({"Regex": "(a+)+$"}, "")),  # the library panics after many tries
    ],
)
def test_a_tokenizer_that_fails_at_a_text_is_named(data: bytes) -> None:
    tokenizer = parsed(data)
    with pytest.raises(ConfigurationError, match=r"tokenizer\.json: it fails at a text"):
        encoded_texts(tokenizer, ["a" * 40 + "!"])


def test_a_damaged_table_of_replacements_is_an_error_in_words() -> None:
    with pytest.raises(ConfigurationError, match=r"tokenizer\.json"):
        encoded_texts(parsed(content(normalizer=table(3, b""))), ["a"])


def test_an_interrupt_is_no_fault_of_the_tokenizer() -> None:
    class Interrupted:
        def encode_batch_fast(self, *_: object, **__: object) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encoded_texts(Interrupted(), ["a"])  # type: ignore[arg-type]
