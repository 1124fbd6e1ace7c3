"""The book of one peer on disk: a file to which entries are added, and of which a kill leaves all but the last.

Each entry is its length (4 bytes, big-endian) and a msgpack: a count with the peer's own doubts, an attestation, or the
access token that a member showed. An entry that was cut off is dropped when the file is loaded. A file that has grown
large loses its older half then.
"""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from typing import Annotated

import msgspec

from minga.averaging.messages import Epoch, Step
from minga.core.aio import DiskWrites
from minga.core.decoding import DECODING_ERRORS, decode_msgpack
from minga.core.errors import ConfigurationError
from minga.core.files import write_atomically
from minga.identity.access.token import MAX_TOKEN_BYTES
from minga.network.interface import PeerId
from minga.training.receipts.attestation import MAX_ENTRIES, Attestation, Count, Doubts, JudgedCount, Key, SignedCount
from minga.training.receipts.book import ReceiptBook

MAX_FILE_BYTES = 256 << 20
MAX_ENTRY_BYTES = 1 << 20
_LENGTH = struct.Struct(">I")

logger = logging.getLogger("minga.training")


class KeptCount(msgspec.Struct, frozen=True, array_like=True, tag="count"):
    """A count that the peer took part in, and its judgement."""

    count: Count
    doubts: Doubts
    is_witness: bool


class KeptAttestation(msgspec.Struct, frozen=True, array_like=True, tag="attestation"):
    """An attestation of any member; for its entries see `SignedCount`."""

    attester: Key
    epoch: Epoch
    entries: Annotated[
        tuple[tuple[Step, Annotated[bytes, msgspec.Meta(max_length=32)], Doubts, bool], ...],
        msgspec.Meta(max_length=MAX_ENTRIES),
    ]
    signature: Annotated[bytes, msgspec.Meta(max_length=64)]

    @classmethod
    def of(cls, attestation: Attestation) -> KeptAttestation:
        """As it is kept."""
        return cls(bytes.fromhex(attestation.attester), attestation.epoch, attestation.entries, attestation.signature)

    def restored(self) -> Attestation:
        """As it was; its signature is not verified again."""
        entries = tuple(SignedCount(*entry) for entry in self.entries)
        return Attestation(PeerId(self.attester.hex()), self.epoch, entries, self.signature)


class KeptToken(msgspec.Struct, frozen=True, array_like=True, tag="token"):
    """The access token that a member showed in a run for members."""

    peer: Key
    token: Annotated[bytes, msgspec.Meta(max_length=MAX_TOKEN_BYTES)]


Kept = KeptCount | KeptAttestation | KeptToken


class BookFile:
    """The file of `peer` in the folder of a run, to which `disk` adds entries.

    Not to be made on an event loop: a month of receipts takes seconds to read.
    """

    def __init__(self, directory: Path, peer: PeerId, disk: DiskWrites) -> None:
        self.path, self._disk = book_path(directory, peer), disk
        self._is_broken = False
        self.book = self._load()
        """What an earlier process of this peer kept; empty if there is none."""

    def _load(self) -> ReceiptBook:
        book = ReceiptBook()
        try:
            data = self.path.read_bytes() if self.path.exists() else b""
            whole = data[: _restore(data, book)]
            if len(whole) > MAX_FILE_BYTES:
                whole, book = _newer_half(whole), ReceiptBook()
                _restore(whole, book)
            if len(whole) < len(data):
                write_atomically(self.path, whole)
        except OSError as error:
            self._give_up(error)
        return book

    def add_count(self, judged: JudgedCount) -> None:
        """Keep a count."""
        self._disk.do(self._append, KeptCount(judged.count, judged.doubts, judged.is_witness))

    def add(self, attestation: Attestation) -> None:
        """Keep an attestation."""
        self._disk.do(self._append, KeptAttestation.of(attestation))

    def add_token(self, peer: PeerId, token: bytes) -> None:
        """Keep the token of a member."""
        self._disk.do(self._append, KeptToken(bytes.fromhex(peer), token))

    def _append(self, entry: Kept) -> None:
        if self._is_broken:
            return
        encoded = msgspec.msgpack.encode(entry)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(_LENGTH.pack(len(encoded)) + encoded)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """A disk that refuses is no reason to end; an entry that was cut off must stay the last."""
        self._is_broken = True
        logger.warning("receipts are not kept on disk from now on: %s: %s", self.path, error)


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
        _restore(path.read_bytes(), book)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    return book


def _restore(data: bytes, book: ReceiptBook) -> int:
    """Enter all that is whole; returns its length."""
    start = 0
    while start + _LENGTH.size <= len(data):
        (size,) = _LENGTH.unpack_from(data, start)
        stop = start + _LENGTH.size + size
        if size > MAX_ENTRY_BYTES or stop > len(data):
            break
        try:
            _enter(decode_msgpack(data[start + _LENGTH.size : stop], Kept), book)
        except DECODING_ERRORS:
            break
        start = stop
    return start


def _enter(entry: Kept, book: ReceiptBook) -> None:
    if isinstance(entry, KeptCount):
        if entry.count.is_sound:
            book.add_count(JudgedCount(entry.count, entry.doubts, entry.is_witness))
    elif isinstance(entry, KeptAttestation):
        book.add(entry.restored())
    else:
        book.tokens[PeerId(entry.peer.hex())] = entry.token


def _newer_half(data: bytes) -> bytes:
    """The entries of the second half, and all tokens."""
    start, tokens, newer = 0, bytearray(), bytearray()
    while start < len(data):
        (size,) = _LENGTH.unpack_from(data, start)
        stop = start + _LENGTH.size + size
        if start >= len(data) // 2:
            newer += data[start:stop]
        elif isinstance(decode_msgpack(data[start + _LENGTH.size : stop], Kept), KeptToken):
            tokens += data[start:stop]
        start = stop
    return bytes(tokens + newer)
