"""Rows of tokens: none is lost in a stream, best-fit rows begin with documents, and numbers name the same rows."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from minga.core.errors import ConfigurationError, StorageError
from minga.recipes.interface import StreamPosition
from minga.recipes.text.packing import NumberedRows, StoredTokens, Tokens, endless_rows, pack_rows, pack_tokens
from tests.worlds.recipe_text import ALICE, BOB

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
    monkeypatch.setattr("minga.recipes.text.packing.MAX_FILE_BYTES", 100)
    with pytest.raises(ConfigurationError, match="too much to travel"):
        pack_tokens(documents([30]))
