"""The book on disk: killed, damaged, full."""

from __future__ import annotations

import errno
from pathlib import Path

import msgspec
import pytest

from minga.core.aio import DiskWrites
from minga.core.errors import ConfigurationError
from minga.receipts import book_file
from minga.receipts.attestation import Claim, JudgedCount
from minga.receipts.book import BookEntry
from minga.receipts.book_file import BookFile, read_book
from tests.worlds.receipt_world import IDS, KEYS, make_count, sign

CLAIM = Claim(4, 4, 100, 50)


def fill(folder: Path, counts: int = 3) -> BookFile:
    file = BookFile(folder, IDS[0], DiskWrites())
    for step in range(10, 10 + 5 * counts, 5):
        count = make_count(step, [CLAIM] * 2)
        file.add_count(JudgedCount(count, b"\x02", is_witness=True))
        for key in KEYS[:2]:
            file.add(sign(key, count))
    file.add_token(IDS[1], b"token")
    return file


def test_what_was_kept_comes_back_and_goes_on(tmp_path: Path) -> None:
    file = fill(tmp_path)
    book = BookFile(tmp_path, IDS[0], DiskWrites()).book
    assert [count.step for count in book.counts] == [10, 15, 20]
    assert book.totals()[IDS[0]].samples == 300
    assert book.tokens == {IDS[1]: b"token"}
    assert book.unsigned(IDS[0]) == []
    assert [judged.doubts for judged in book.unsigned(IDS[5])] == [b"\x02"] * 3
    file.add_count(JudgedCount(make_count(25, [CLAIM]), b"", is_witness=False))
    assert len(read_book(file.path)) == 4


def test_doubts_of_a_member_that_signs_a_count_again_are_kept(tmp_path: Path) -> None:
    """Who comes back must not count a claim that most doubted."""
    count = make_count(10, [CLAIM] * 2)
    receipts = [sign(KEYS[0], count), sign(KEYS[1], count), sign(KEYS[1], count, doubts=[0])]
    file = BookFile(tmp_path, IDS[0], DiskWrites())
    file.book.add_count(judged := JudgedCount(count, b"", is_witness=True))
    file.add_count(judged)
    for attestation in receipts:
        if file.book.add(attestation):
            file.add(attestation)
    assert file.book.totals()[IDS[0]].counted == read_book(file.path).totals()[IDS[0]].counted == 0


def test_an_entry_that_was_cut_off_is_dropped_wherever_the_kill_came(tmp_path: Path) -> None:
    file = fill(tmp_path, 1)
    whole = file.path.read_bytes()
    sizes = set()
    for size in range(0, len(whole), 7):
        file.path.write_bytes(whole[:size])
        book = BookFile(tmp_path, IDS[0], DiskWrites()).book
        sizes.add(len(book))
        file = BookFile(tmp_path, IDS[0], DiskWrites())
        file.add_count(JudgedCount(make_count(99, [CLAIM]), b"", is_witness=False))
        assert len(read_book(file.path)) == len(book) + 1, "and what comes after it is read"
    assert sizes == {0, 1}


def test_an_entry_that_was_cut_off_is_dropped_where_the_disk_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = fill(tmp_path)
    file.path.write_bytes(file.path.read_bytes()[:-1])

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr("minga.receipts.book_file.write_atomically", refuse)
    found = BookFile(tmp_path, IDS[0], DiskWrites())
    before = len(found.book)
    found.add_count(JudgedCount(make_count(99, [CLAIM]), b"", is_witness=False))
    found._disk.close()
    assert len(read_book(file.path)) == before + 1


@pytest.mark.parametrize("garbage", [b"\xff" * 100, b"\0\0\0\x05hello", b"\0\0\0\0" * 10])
def test_garbage_ends_the_book_and_nothing_else(tmp_path: Path, garbage: bytes) -> None:
    file = fill(tmp_path)
    file.path.write_bytes(file.path.read_bytes() + garbage)
    assert len(BookFile(tmp_path, IDS[0], DiskWrites()).book) == 3


@pytest.mark.parametrize("place", range(5))
def test_a_damaged_entry_costs_no_other_and_is_told(
    tmp_path: Path, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    file = fill(tmp_path)
    data = bytearray(file.path.read_bytes())
    judged = JudgedCount(make_count(15, [CLAIM] * 2), b"\x02", is_witness=True)
    second = data.index(msgspec.msgpack.encode(BookEntry(count=judged))) - 4
    data[second + place] ^= 0x15  # of its length, or its first byte
    file.path.write_bytes(data)
    book = BookFile(tmp_path, IDS[0], DiskWrites()).book
    assert [count.step for count in book.counts] == [10, 20]
    assert book.tokens == {IDS[1]: b"token"}
    assert caplog.text.count("are damaged and left out") == 1
    assert file.path.read_bytes() == data


def test_a_disk_that_refuses_ends_no_peer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    file = BookFile(tmp_path / "file", IDS[0], DiskWrites())  # a folder that cannot be made
    assert len(file.book) == 0
    file.add_count(JudgedCount(make_count(10, [CLAIM]), b"", is_witness=False))
    file.add_count(JudgedCount(make_count(15, [CLAIM]), b"", is_witness=False))
    assert caplog.text.count("receipts are not kept on disk") == 1
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_book(file.path)


def test_a_disk_that_is_full_for_a_moment_costs_the_receipts_of_that_moment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    resource = pytest.importorskip("resource")
    file, before = fill(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.path.stat().st_size + 9, before[1]))  # room for half an entry
    try:
        for step in (25, 30):
            file.add_count(JudgedCount(make_count(step, [CLAIM]), b"", is_witness=False))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caplog.text.count("receipts are not kept on disk") == 1
    file.add_count(JudgedCount(make_count(35, [CLAIM]), b"", is_witness=False))
    assert [count.step for count in read_book(file.path).counts] == [10, 15, 20, 35]


def test_a_large_file_keeps_its_newer_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = fill(tmp_path, 20)
    monkeypatch.setattr(book_file, "MAX_FILE_BYTES", 4000)
    before = file.path.stat().st_size
    book = BookFile(tmp_path, IDS[0], DiskWrites()).book
    assert file.path.stat().st_size < before
    assert max(count.step for count in book.counts) == 105
    assert 0 < len(book) < 20
    assert book.tokens == {IDS[1]: b"token"}
    assert book.totals()[IDS[0]].samples > 0
