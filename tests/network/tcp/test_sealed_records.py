"""Sealed records alone: what goes in comes out, in any portions, and nothing else does."""

from __future__ import annotations

import random

import pytest

from minga.network.tcp import sealed_records
from minga.network.tcp.sealed_records import (
    KEY_BYTES,
    MOST_CONTENT_BYTES,
    OVERHEAD_BYTES,
    ForgedRecordError,
    RecordOpener,
    RecordSealer,
    sealed_bytes,
)

KEY = bytes(range(KEY_BYTES))


def sealed(sealer: RecordSealer, content: bytes) -> bytes:
    target = bytearray(sealed_bytes(len(content)))
    assert sealer.seal(memoryview(content), memoryview(target)) == len(target)
    return bytes(target)


def opened(opener: RecordOpener, records: bytes, portion: int, reads: int) -> bytes:
    """What is read, at most `reads` bytes at a time, if the records come in portions."""
    came = bytearray()
    for start in range(0, len(records), portion):
        rest = memoryview(records)[start : start + portion]
        while rest.nbytes:
            room = opener.room()
            size = min(room.nbytes, rest.nbytes)
            room[:size] = rest[:size]
            opener.came(size)
            rest = rest[size:]
            target = memoryview(bytearray(reads))
            while got := opener.take(target):
                came += target[:got]
    return bytes(came)


@pytest.mark.parametrize(
    ("capacity", "portion", "reads"), [(64, 7, 5), (4096, 100_000, 3000), (400_000, 70_000, 1 << 20)]
)
def test_contents_come_out_in_any_portions(capacity: int, portion: int, reads: int) -> None:
    draws, sealer, opener = random.Random(1), RecordSealer(KEY), RecordOpener(KEY, capacity)
    sizes = [1, 4, 0, 59, 1000, 5] if portion < 100 else [1, MOST_CONTENT_BYTES, 3, 2 * MOST_CONTENT_BYTES + 1, 70_000]
    contents = [draws.randbytes(size) for size in sizes]
    records = b"".join(sealed(sealer, content) for content in contents)
    assert opened(opener, records, portion, reads) == b"".join(contents)
    assert opener.pending == 0
    assert opener.capacity <= max(capacity, MOST_CONTENT_BYTES + OVERHEAD_BYTES)


def test_what_is_not_taken_stays_and_fills_the_buffer() -> None:
    opener = RecordOpener(KEY, 200)
    records = sealed(RecordSealer(KEY), b"a" * 300)
    room = opener.room()
    room[:] = records[:200]
    opener.came(200)
    assert opener.is_full
    assert opener.room().nbytes == 0
    assert opener.take(memoryview(bytearray(10))) == 0
    assert not opener.is_full, "there is memory for the record that has begun"
    assert opened(opener, records[200:], 50, 10) == b"a" * 300
    opener.resize(64)
    assert opener.capacity == 64


@pytest.mark.parametrize("place", [0, 3, 4, 20, -1])
def test_a_changed_byte_is_noticed_wherever_it_is(place: int) -> None:
    records = bytearray(sealed(RecordSealer(KEY), b"x" * 50) + bytes(100))
    records[place if place >= 0 else 50 + OVERHEAD_BYTES + place] ^= 1
    with pytest.raises(ForgedRecordError):
        opened(RecordOpener(KEY, 4096), bytes(records), len(records), 100)


def test_records_count_only_once_in_their_order_and_under_their_key() -> None:
    sealer = RecordSealer(KEY)
    first, second = sealed(sealer, b"first"), sealed(sealer, b"second")
    for records in (second, first + first, second + first):
        with pytest.raises(ForgedRecordError):
            opened(RecordOpener(KEY, 4096), records, 1000, 100)
    with pytest.raises(ForgedRecordError):
        opened(RecordOpener(bytes(KEY_BYTES), 4096), first, 1000, 100)


@pytest.mark.parametrize("size", [0, MOST_CONTENT_BYTES + 1, 0xFFFFFFFF])
def test_no_memory_is_given_to_a_record_of_a_wrong_size(size: int) -> None:
    opener = RecordOpener(KEY, 64)
    with pytest.raises(ForgedRecordError, match=f"a record of {size} bytes"):
        opened(opener, size.to_bytes(4, "big") + bytes(60), 64, 10)
    assert opener.capacity == 64


def test_both_sides_go_on_with_the_next_key_at_the_same_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_records, "RECORDS_PER_KEY", 3)
    sealer, opener = RecordSealer(KEY), RecordOpener(KEY, 4096)
    records = [sealed(sealer, b"the same") for _ in range(8)]
    assert len(set(records)) == 8, "no nonce is used twice with a key"
    assert opened(opener, b"".join(records), 10_000, 1000) == b"the same" * 8
