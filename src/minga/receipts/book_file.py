"""The book of one peer on disk: a file to which entries are added, and of which a kill leaves all but the last.

Each entry is its length (4 bytes, big-endian) and a msgpack (`BookEntry`). Attestations keep their digests, since the
counts that they are about may be gone first. An entry that was cut off is dropped when the file is loaded, and one that
is damaged is passed over. A file that has grown large loses its older half then.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from minga.core.aio import DiskWrites
from minga.core.decoding import DECODING_ERRORS, decode_msgpack
from minga.core.errors import ConfigurationError, reason_of
from minga.core.files import write_atomically
from minga.network.interface import PeerId
from minga.receipts.attestation import Attestation, JudgedCount
from minga.receipts.book import BookEntry, ReceiptBook

MAX_FILE_BYTES = 256 << 20
MAX_ENTRY_BYTES = 1 << 20
_LENGTH = struct.Struct(">I")

logger = logging.getLogger("minga.training")


class BookFile:
    """The file of `peer` in the folder of a run, to which `disk` adds entries.

    Not to be made on an event loop: a month of receipts takes seconds to read.
    """

    def __init__(self, directory: Path, peer: PeerId, disk: DiskWrites) -> None:
        self.path, self._disk = book_path(directory, peer), disk
        self._is_broken = self._is_refused = False
        self.book = self._load()
        """What an earlier process of this peer kept; empty if there is none."""

    def _load(self) -> ReceiptBook:
        book = ReceiptBook()
        try:
            data = self.path.read_bytes() if self.path.exists() else b""
            whole = data[: _restore(self.path, data, book)]
            if len(whole) < len(data):  # needs no room on the disk, which may be full
                os.truncate(self.path, len(whole))
            if len(whole) > MAX_FILE_BYTES:
                whole, book = _newer_half(whole), ReceiptBook()
                _restore(self.path, whole, book)
                with contextlib.suppress(OSError):  # a file that stays as long is read as well
                    write_atomically(self.path, whole)
        except OSError as error:
            self._is_broken = True  # what came after an entry that was cut off would not be read
            logger.warning("receipts are not kept on disk from now on: %s: %s", self.path, error)
        return book

    def add_count(self, judged: JudgedCount) -> None:
        """Keep a count."""
        self._disk.do(self._append, BookEntry(count=judged))

    def add(self, attestation: Attestation) -> None:
        """Keep an attestation."""
        self._disk.do(self._append, BookEntry(attestation=attestation))

    def add_token(self, peer: PeerId, token: bytes) -> None:
        """Keep the token of a member."""
        self._disk.do(self._append, BookEntry(token=(bytes.fromhex(peer), token)))

    def _append(self, entry: BookEntry) -> None:
        if self._is_broken:
            return
        encoded = msgspec.msgpack.encode(entry)
        data = _LENGTH.pack(len(encoded)) + encoded
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab", buffering=0) as file:
                begin = file.tell()
                if file.write(data) < len(data):
                    file.truncate(begin)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._is_refused = False
        except OSError as error:  # no reason to end, nor to keep nothing once there is room again
            if not self._is_refused:
                logger.warning("receipts are not kept on disk for now: %s: %s", self.path, error)
            self._is_refused = True


def book_path(directory: Path, peer: PeerId) -> Path:
    """Where the book of `peer` lies in the folder of a run."""
    return directory / f"receipts-{peer[:10]}.bin"


def owner_digits(path: Path) -> str:
    """The beginning of the id of the peer whose book this is."""
    return path.stem.removeprefix("receipts-")


def books_in(directory: Path) -> list[Path]:
    """The books of all peers that took part from this folder, the largest first."""
    return sorted(directory.glob("receipts-*.bin"), key=lambda path: path.stat().st_size, reverse=True)


def read_book(path: Path) -> ReceiptBook:
    """The book in a file, as far as it is whole. Raises `ConfigurationError` if there is none."""
    book = ReceiptBook()
    try:
        _restore(path, path.read_bytes(), book)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {reason_of(error)}") from error
    return book


def _restore(path: Path, data: bytes, book: ReceiptBook) -> int:
    """Enter all that is whole; returns where the last of it ends. What is damaged before that is told."""
    end = damaged = 0
    for start, stop, entry in _entries(data):
        book.enter(entry)
        damaged, end = damaged + start - end, stop
    if damaged:
        logger.warning("%s: %d bytes amid the receipts are damaged and left out", path, damaged)
    return end


def _entries(data: bytes) -> Iterator[tuple[int, int, BookEntry]]:
    """The whole entries: where each begins and ends, and what it says. What is damaged is passed over."""
    view, start = memoryview(data), 0
    while 0 <= start <= len(data) - _LENGTH.size:
        (size,) = _LENGTH.unpack_from(data, start)
        stop = start + _LENGTH.size + size
        is_there = size <= MAX_ENTRY_BYTES and stop <= len(data)
        entry = _decoded(view[start + _LENGTH.size : stop]) if is_there else None
        if entry is None:
            start = data.find(b"\0", start + 1)  # with which every length begins
        else:
            yield start, stop, entry
            start = stop


def _decoded(data: memoryview) -> BookEntry | None:
    try:
        return decode_msgpack(data, BookEntry)
    except DECODING_ERRORS:
        return None


def _newer_half(data: bytes) -> bytes:
    """The entries of the second half, and all tokens."""
    tokens, newer = bytearray(), bytearray()
    for start, stop, entry in _entries(data):
        if start >= len(data) // 2:
            newer += data[start:stop]
        elif entry.token is not None:
            tokens += data[start:stop]
    return bytes(tokens + newer)
