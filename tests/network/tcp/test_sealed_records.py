"""Sealed records alone: what goes in comes out, in any portions, and nothing else does."""

from __future__ import annotations

import random

import pytest

from minga.network.tcp import sealed_records
from minga.network.tcp.sealed_channel import WIDE_BUFFER_BYTES
from minga.network.tcp.sealed_records import (
    KEY_BYTES,
    MOST_CONTENT_BYTES,
    MOST_RECORD_BYTES,
    MOVED_BYTES,
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


def put(opener: RecordOpener, records: memoryview) -> memoryview:
    """Let as much come as there is room for; the rest."""
    room = opener.room()
    size = min(room.nbytes, records.nbytes)
    room[:size] = records[:size]
    opener.came(size)
    return records[size:]


def opened(opener: RecordOpener, records: bytes, portion: int, reads: int) -> bytes:
    """What is read, at most `reads` bytes at a time, if the records come in portions."""
    came = bytearray()
    for start in range(0, len(records), portion):
        rest = memoryview(records)[start : start + portion]
        while rest.nbytes:
            rest = put(opener, rest)
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


def test_a_full_read_of_a_large_chunk_leaves_little_that_has_to_be_moved() -> None:
    sealer, opener = RecordSealer(KEY), RecordOpener(KEY, WIDE_BUFFER_BYTES)
    chunk = b"".join(sealed(sealer, bytes(size)) for size in (1024, 512 << 10, 512 << 10, (1 << 20) - 1019))
    records, rests = memoryview(chunk), []
    while records.nbytes:
        records = put(opener, records)
        opener.take(memoryview(bytearray(2 << 20)))
        rests.append(opener.sealed)
    assert len(rests) == 6
    assert max(rests) <= MOVED_BYTES
    assert rests[-1] == 0


def test_what_is_not_taken_stays_and_fills_the_buffer() -> None:
    opener = RecordOpener(KEY, 200)
    records = sealed(RecordSealer(KEY), b"a" * 300)
    assert put(opener, memoryview(records)).nbytes == len(records) - 200
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


def test_nothing_is_taken_beyond_an_end_until_something_new_begins() -> None:
    sealer, opener, room = RecordSealer(KEY), RecordOpener(KEY, 4096), memoryview(bytearray(4096))
    for content in (b"first", b"", b"next"):
        sealer.seal_end(room[sealer.seal(memoryview(content), room) :])
        size = sealed_bytes(len(content)) + OVERHEAD_BYTES
        opener.room()[:size] = room[:size]
        opener.came(size)
    target = memoryview(bytearray(100))
    for content in (b"first", b"", b"next"):
        assert target[: opener.take(target)] == content
        assert opener.is_at_end
        assert not opener.take(target)
        opener.begin()
    assert not opener.pending


@pytest.mark.parametrize("size", [MOST_CONTENT_BYTES + 1, 0xFFFFFFFF])
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


def test_what_does_not_open_is_wiped_and_nothing_behind_it_is_opened() -> None:
    """Who makes one record fail must not thereby leave it out: the number of the next would fit then."""
    sealer = RecordSealer(KEY)
    sealed(sealer, b"left out")
    records = sealed(sealer, b"due second")
    opener = RecordOpener(KEY, 4096)
    opener.room()[: len(records)] = records
    opener.came(len(records))
    target = bytearray(b"what stood here before")
    for _ in range(3):
        with pytest.raises(ForgedRecordError):
            opener.take(memoryview(target))
    assert bytes(target) == bytes(len(b"due second")) + b"stood here before"[-12:]


def test_a_record_that_cannot_be_written_leaves_its_number_unused() -> None:
    """No nonce is used twice, whatever goes wrong in between; the other side misses a record and says so."""
    sealer, short = RecordSealer(KEY), memoryview(bytearray(10))
    with pytest.raises((ValueError, BufferError)):
        sealer.seal(memoryview(b"does not fit"), short)
    second = sealed(sealer, b"does not fit")
    assert second != sealed(RecordSealer(KEY), b"does not fit")
    with pytest.raises(ForgedRecordError):
        opened(RecordOpener(KEY, 4096), second, 1000, 100)


def test_a_key_that_cannot_be_renewed_is_not_used_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_records, "RECORDS_PER_KEY", 1)
    sealer = RecordSealer(KEY)
    first = sealed(sealer, b"the same")
    with monkeypatch.context() as broken:
        broken.setattr(sealed_records, "AESGCM", lambda _: 1 / 0)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                sealed(sealer, b"the same")
    assert sealed(sealer, b"the same") != first


def test_there_is_room_until_the_memory_is_full_of_what_was_not_taken() -> None:
    """An event loop that gets no memory to read into, without having been asked to pause, gives up the connection."""
    opener, sealer = RecordOpener(KEY, 3 * MOST_RECORD_BYTES + 4096), RecordSealer(KEY)
    records = sealed(sealer, b"a") + b"".join(sealed(sealer, bytes(MOST_CONTENT_BYTES)) for _ in range(4))
    came = 0
    while not opener.is_full:
        room = opener.room()
        assert room.nbytes
        size = min(room.nbytes, 100_000)
        room[:size] = records[came : came + size]
        opener.came(size)
        came += size
        if came == size:
            assert opener.take(memoryview(bytearray(1))) == 1
    assert opener.pending == opener.capacity
