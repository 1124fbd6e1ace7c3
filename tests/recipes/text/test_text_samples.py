"""Rows of tokens, of which none is lost; pairs of segments, each peer's own and without end; both by number too."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from minga.core.errors import ConfigurationError, StorageError
from minga.recipes.data.order import epoch_seed
from minga.recipes.interface import StreamPosition
from minga.recipes.text.samples import (
    EncodedDocument,
    Instance,
    NumberedRows,
    StoredCorpus,
    StoredTokens,
    StreamedCorpus,
    Tokens,
    encode_documents,
    endless_rows,
    instances,
    make_instances,
    pack_rows,
    pack_tokens,
    truncated_lengths,
)
from minga.recipes.text.tokenizer import read_tokenizer, train_tokenizer
from tests.worlds.recipe_text import ALICE, BOB, GENESIS, long_text

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=40)


def documents(lengths: list[int]) -> list[Tokens]:
    """Documents of these lengths; the tokens count up, so that each can be recognised."""
    ends = np.cumsum(lengths)
    return [np.arange(end - length, end, dtype=np.int32) for length, end in zip(lengths, ends, strict=True)]


def stored(some: list[Tokens], folder: Path) -> StoredTokens:
    path = folder / "tokens.safetensors"
    path.write_bytes(pack_tokens(some))
    return StoredTokens(path, 1 + max(int(each.max()) for each in some))


@given(lengths=LENGTHS, length=st.integers(2, 50))
def test_a_stream_gives_back_every_token_but_those_after_the_last_row(lengths: list[int], length: int) -> None:
    rows = list(pack_rows(documents(lengths), length, "stream"))
    total = sum(lengths) // length * length
    assert [token for row in rows for token in row.tolist()] == list(range(total))


@given(lengths=LENGTHS, length=st.integers(2, 50))
def test_best_fit_rows_begin_with_documents_and_hold_no_token_twice(lengths: list[int], length: int) -> None:
    some = documents(lengths)
    beginnings = {int(each[0]) for each in some}
    rows = list(pack_rows(some, length, "best-fit"))
    seen = [token for row in rows for token in row.tolist()]
    assert all(len(row) == length and int(row[0]) in beginnings for row in rows)
    assert len(set(seen)) == len(seen)


def test_best_fit_takes_the_largest_that_fits_and_crops_the_last() -> None:
    rows = [row.tolist() for row in pack_rows(documents([3, 9, 4, 5]), 8, "best-fit")]
    assert rows[0] == [*range(16, 21), *range(3)]  # five, then three
    assert rows[1][:4] == [*range(12, 16)]  # four, then of nine what fits
    assert rows[1][4:] == [*range(3, 7)]


@given(lengths=LENGTHS, length=st.integers(2, 50))
def test_rows_of_documents_hold_one_each(lengths: list[int], length: int) -> None:
    some = documents(lengths)
    for row in pack_rows(some, length, "document"):
        assert 2 <= len(row) <= length
        assert any(set(row.tolist()) <= set(each.tolist()) for each in some)


@pytest.mark.parametrize("packing", ["stream", "best-fit", "document"])
def test_numbers_name_the_rows_in_their_order(packing: str, tmp_path: Path) -> None:
    some = documents([30, 7, 50, 12])
    rows = NumberedRows(stored(some, tmp_path), 9, packing)  # type: ignore[arg-type]
    expected = list(pack_rows(some, 9, packing))  # type: ignore[arg-type]
    assert [rows[number].tolist() for number in range(len(rows))] == [each.tolist() for each in expected]
    with pytest.raises(ConfigurationError, match="too little text"):
        NumberedRows(stored(documents([1]), tmp_path), 9, packing)  # type: ignore[arg-type]


def test_each_pass_has_every_row_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    tokens = stored(documents([40] * 20), tmp_path)

    def rows(peer: str, count: int) -> list[list[int]]:
        def open_epoch(seed: int) -> object:
            return tokens.documents(np.random.default_rng(seed).permutation(len(tokens)))

        endless = endless_rows(open_epoch, 5, StreamPosition(peer), 10, "stream")  # type: ignore[arg-type]
        return [row.tolist() for row in islice(endless, count)]

    own = rows(ALICE, 160)
    assert own == rows(ALICE, 160)
    assert own[:80] != rows(BOB, 80)
    first, second = own[:80], own[80:]
    assert first != second
    assert sorted(first) == sorted(second) == [list(range(start, start + 10)) for start in range(0, 800, 10)]


def test_files_of_tokens_that_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens.safetensors"
    good = {"tokens": np.arange(4, dtype=np.int32), "starts": np.array([0, 4])}
    for changes, words in (
        ({"tokens": np.arange(4)}, "types or shapes"),
        ({"starts": np.array([0, 3])}, "do not follow"),
        ({"starts": np.array([0, 5, 4])}, "do not follow"),
        ({"starts": np.array([0])}, "do not follow"),
        ({"tokens": np.array([0, 1, 2, 9], dtype=np.int32)}, "outside of the vocabulary"),
        ({"tokens": np.array([0, 1, 2, -1], dtype=np.int32)}, "outside of the vocabulary"),
    ):
        save_file({**good, **changes}, path)
        with pytest.raises(ConfigurationError, match=words):
            StoredTokens(path, 5)
    path.write_bytes(b"no tokens")
    with pytest.raises(ConfigurationError, match="not a file of tokens"):
        StoredTokens(path, 5)
    with pytest.raises(StorageError):
        StoredTokens(tmp_path / "nowhere", 5)


def test_too_many_tokens_for_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minga.recipes.text.samples.MAX_FILE_BYTES", 100)
    with pytest.raises(ConfigurationError, match="too much to travel"):
        pack_tokens(documents([30]))


def key(one: Instance) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(one.first.tolist()), tuple(one.second.tolist())


@pytest.fixture(scope="module")
def corpus() -> StoredCorpus:
    documents = long_text().split("\n\n")
    return StoredCorpus(documents, read_tokenizer(train_tokenizer(documents, 600), 600))


def document(*lengths: int) -> EncodedDocument:
    """Sentences of these lengths; the tokens count up, so that every sentence can be recognised."""
    return EncodedDocument(np.arange(100, 100 + sum(lengths), dtype=np.int32), np.cumsum([0, *lengths]))


@given(first=st.integers(1, 80), second=st.integers(1, 80), room=st.integers(2, 90))
def test_truncation_drops_one_token_after_the_other_from_the_longer(first, second, room):
    a, b = first, second
    while a + b > room:
        if a > b:
            a -= 1
        else:
            b -= 1
    assert truncated_lengths(first, second, room) == (a, b)


@given(
    lengths=st.lists(st.integers(1, 30), max_size=30),
    max_length=st.integers(16, 64),
    seed=st.integers(0, 1000),
    vary=st.booleans(),
)
def test_instances_are_pairs_of_neighbouring_sentences(lengths, max_length, seed, vary):
    source = document(*lengths)
    room, random = max_length - 3, np.random.default_rng(seed)
    starts = {int(source.ids[b]) for b in source.bounds[:-1]} if lengths else set()
    seen: list[int] = []
    for first, second, swapped in make_instances([source], max_length, random, vary_start=vary):
        before, after = (second, first) if swapped else (first, second)
        assert 1 <= len(before) <= room
        assert len(after) >= 1
        assert len(first) + len(second) <= room
        assert {int(before[0]), int(after[0])} <= starts  # each segment begins with a sentence
        assert after[0] > before[-1]  # in order, before they were swapped
        assert np.array_equal(before, np.arange(before[0], before[-1] + 1))
        seen += [*before, *after]
    assert len(seen) == len(set(seen))  # no text twice


def test_chunks_fill_the_sequence_or_end_with_the_document():
    found = list(make_instances([document(5, 5, 5, 5, 5)], 16, np.random.default_rng(0), vary_start=False))
    lengths = sorted(len(one.first) + len(one.second) for one in found)
    assert lengths == [10, 13]
    assert not list(make_instances([document(40), document(), document(2, 40, 40)], 16, np.random.default_rng(0)))[1:]


def test_swaps_and_splits_are_uniform():
    random = np.random.default_rng(0)
    found = [next(make_instances([document(2, 2, 2, 2)], 16, random)) for _ in range(2000)]
    assert 900 < sum(one.swapped for one in found) < 1100
    splits = [len(one.second if one.swapped else one.first) for one in found]
    assert {length: splits.count(length) for length in sorted(set(splits))}.keys() == {2, 4, 6}
    assert all(580 < splits.count(length) < 760 for length in (2, 4, 6))


def test_encoded_documents_are_their_sentences():
    tokenizer = read_tokenizer(train_tokenizer([GENESIS.read_text("utf-8")], 300), 300)
    one, none = encode_documents(tokenizer, ["God saw. He said so!", " "])
    assert len(one.bounds) == 3
    assert tokenizer.decode(one.ids[one.bounds[1] :].tolist()) == "he said so!"
    assert (len(none.ids), none.bounds.tolist()) == (0, [0])


def test_streams_are_reproducible_and_differ_between_peers_workers_and_sessions(corpus):
    def start(position: StreamPosition, seed: int = 0) -> list:
        return [key(one) for one in islice(instances(corpus, seed, position, 48), 50)]

    alice = start(StreamPosition(ALICE))
    assert alice == start(StreamPosition(ALICE))
    others = [
        start(StreamPosition(BOB)),
        start(StreamPosition(ALICE, worker=1)),
        start(StreamPosition(ALICE, start_step=7)),
        start(StreamPosition(ALICE), seed=1),
    ]
    for number, one in enumerate(others):
        assert all(len(set(one) & set(other)) < 10 for other in [alice, *others[:number]])


def one_epoch(corpus: StoredCorpus, number: int, max_length: int) -> list:
    """The instances of epoch `number` of Alice's stream, which has its random numbers from the epoch's seed."""
    sizes = []
    for epoch in range(number + 1):
        seed = epoch_seed(0, StreamPosition(ALICE), epoch)
        documents = [d for some in corpus.epoch(seed) for d in some]
        assert len(documents) == 42
        sizes.append(len(list(make_instances(documents, max_length, np.random.default_rng(seed)))))
    stream = islice(instances(corpus, 0, StreamPosition(ALICE), max_length), sum(sizes))
    return list(stream)[sum(sizes[:-1]) :]


def test_each_epoch_has_all_documents_in_an_order_of_its_own(corpus):
    one, other = ([each.ids.tolist() for some in corpus.epoch(seed) for each in some] for seed in (0, 1))
    assert one != other
    assert sorted(one) == sorted(other)


def test_no_instance_comes_twice_in_an_epoch_and_most_text_is_used(corpus):
    epoch = one_epoch(corpus, 0, 128)
    assert len({key(one) for one in epoch}) == len(epoch)
    total = sum(len(d.ids) for some in corpus.epoch(0) for d in some)
    assert 0.8 * total < sum(len(one.first) + len(one.second) for one in epoch) < total


def test_the_next_epoch_has_another_order_and_other_cuts(corpus):
    first, second = ([key(one) for one in one_epoch(corpus, number, 64)] for number in (0, 1))
    assert len(first) > 500
    assert len(set(first) & set(second)) < 0.4 * len(first)
    assert first != second


def test_a_streamed_corpus_asks_for_each_epoch_anew():
    seeds = []

    def open_epoch(seed: int) -> list[str]:
        seeds.append(seed)
        return ["Once there was. Then there came. At last it went."]

    tokenizer = read_tokenizer(train_tokenizer([GENESIS.read_text("utf-8")], 300), 300)
    stream = instances(StreamedCorpus(open_epoch, tokenizer), 0, StreamPosition(ALICE), 64)
    assert len(list(islice(stream, 3))) == 3
    assert len(set(seeds)) == 3


def test_text_without_any_pair_is_refused():
    tokenizer = read_tokenizer(train_tokenizer([GENESIS.read_text("utf-8")], 300), 300)
    with pytest.raises(ConfigurationError, match="two sentences"):
        next(instances(StoredCorpus(["One sentence only."], tokenizer), 0, StreamPosition(ALICE), 64))
