"""Tokenizers that a run trains, and those of strangers: what would fill the memory or fail is refused in words."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models

from minga.core.errors import ConfigurationError
from minga.recipes.text import tokenizer as tokenizer_module
from minga.recipes.text.sources import sentence_documents
from minga.recipes.text.tokenizer import (
    MASKED_TOKENS,
    beginning_of,
    encoded_texts,
    find_special_tokens,
    frame_texts,
    parsed,
    read_tokenizer,
    train_tokenizer,
)
from minga.recipes.text.writing import WRITINGS
from tests.worlds.recipe_text import GENESIS
from tests.worlds.seeds import soaked


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_tokenizer(kind):
    text = GENESIS.read_text("utf-8").split("\n\n")
    tokenizer = read_tokenizer(train_tokenizer(text, 700, kind), 700)
    assert 600 < tokenizer.get_vocab_size() <= 700
    assert [tokenizer.token_to_id(token) for token in MASKED_TOKENS] == [0, 1, 2, 3, 4]
    pair = tokenizer.encode("GOD said,", "ｌｅｔ there")  # noqa: RUF001
    assert (pair.ids[0], pair.ids[-1], pair.ids.count(3)) == (2, 3, 2)
    assert tokenizer.decode(pair.ids).replace(" ,", ",") == "god said, let there"
    assert 1 in tokenizer.encode("\U0001f9ff").ids
    assert 4 in tokenizer.encode("god [MASK] light").ids


def test_words_that_a_vocabulary_cannot_tell_apart_are_told_of(caplog):
    names = ["red cross", "red moon", "blue house", "green triangle", "yellow diamond", "white square", "pink heart"]
    for size, is_told in ((64, True), (128, False)):
        caplog.clear()
        tokenizer = read_tokenizer(train_tokenizer(names * 20, size), size)
        assert any("<unk>" in tokenizer.encode(name).tokens for name in names) == is_told
        assert ("no room" in caplog.text) == is_told


def test_of_too_much_text_a_tokenizer_reads_some_of_everywhere(monkeypatch):
    """As if the files of one language came before those of the other."""
    words = ("wednesday", "\u09ac\u09c1\u09a7\u09ac\u09be\u09b0")
    documents = [f"{word} {number}" for word in words for number in range(1000)]
    monkeypatch.setattr(tokenizer_module, "MAX_TRAINING_CHARACTERS", 10_000)
    tokenizer = read_tokenizer(train_tokenizer(documents, 400), 400)
    for word in words:
        assert tokenizer.encode(word, add_special_tokens=False).tokens == [word]


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
@pytest.mark.parametrize("language", [soaked("bn"), "bn-paper"])
def test_a_tokenizer_reads_a_text_of_anybody_as_training_read_it(kind, language):
    writing = WRITINGS[language]
    content = train_tokenizer(map(writing.normalize, sentence_documents("bn")), 400, kind, writing=writing)
    tokenizer = read_tokenizer(content, 400)
    ksha, dhaka = "\u0995\u09cd\u200d\u09b7", "\u09a2\u09be\u0995\u09be"
    for text in (
        f"{ksha} {dhaka}| {dhaka}\u200b{dhaka}",
        f"{dhaka}\u09f7 {dhaka}\u09e5{dhaka}\u0965",
        f"{dhaka}: {dhaka}\u00ad\ufeff  \u00a0{dhaka}\u0007",
        f"\u09a1\u09bc {dhaka}\u09c7\u09be",
    ):
        raw, normal = encoded_texts(tokenizer, [text, writing.normalize(text)])
        assert raw.ids == normal.ids


def test_vocabulary_too_small_for_the_characters():
    letters = "".join(chr(0x4E00 + i) for i in range(500))
    with pytest.raises(ConfigurationError, match="vocabulary_size"):
        train_tokenizer([" ".join(letters)] * 3, 10)


def test_tokenizers_that_are_refused():
    good = train_tokenizer([GENESIS.read_text("utf-8")], 300)
    for bad in (b"", b"{}", b"\xff", good[:-5]):
        with pytest.raises(ConfigurationError, match="not readable"):
            read_tokenizer(bad, 300)
    with pytest.raises(ConfigurationError, match="allows 299"):
        read_tokenizer(good, 299)
    assert isinstance(read_tokenizer(good, 300), Tokenizer)
    without = find_special_tokens(read_tokenizer(good.replace(b"[CLS]", b"[CLZ]"), 300))
    with pytest.raises(ConfigurationError, match=r"no token for cls, that is, none of \[CLS\], <s>"):
        without["cls"]


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


def test_what_frames_texts_is_found_also_where_no_word_is_known() -> None:
    given = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1}))
    assert beginning_of(given) == {}
    frame_texts(given, ["<s>"], ["</s>"])
    assert beginning_of(given) == {"<s>": 0}
    assert given.encode("").tokens == ["<s>", "</s>"]


def test_a_special_token_comes_before_an_ordinary_one_of_a_more_usual_name():
    inner = Tokenizer(models.BPE({"a": 0, "<s>": 1, "[UNK]": 2}, []))
    inner.add_special_tokens(["<|padding|>", "<eos>", "[CLS]", "<mask>"])
    inner.add_tokens([AddedToken(name, special=False, normalized=False) for name in ("</s>", "<pad>", "[MASK]")])
    found = find_special_tokens(inner)
    assert dict(found.names) == {
        "pad": "<|padding|>",
        "unknown": "[UNK]",  # which is all that it has
        "cls": "[CLS]",
        "sep": "</s>",
        "mask": "<mask>",
        "end": "<eos>",
    }
    assert all(found[role] == inner.token_to_id(name) for role, name in found.names.items())
    assert inner.token_to_id("[MASK]") in found.ordinary
    assert inner.token_to_id("<eos>") not in found.ordinary
