"""Bytes of one direction of a connection as sealed records: encrypted, authenticated, in order, and large.

Theory of operation. TLS has records of 16 KiB and copies each of its bytes five times on the way through the buffers of
a TLS object. That and the turns of Python for each record took two thirds of the time of an all-reduce. So TLS is used
for what it is good at: two peers prove who they are and agree on secrets (`greeting.py`). What follows is sealed by
AES-256-GCM straight from the sender's memory and opened straight into the reader's.

    record   length of the content (4 bytes, big-endian) · the encrypted content · tag (16 bytes)

A record without content says that what was sent before it is complete. A cut says no such thing.

Each direction of each connection has a random key of its own. The nonce is the number of the record under this key, so
a record that is changed, left out, repeated or in another place does not open; the length is authenticated with it.
After `RECORDS_PER_KEY` records both sides go on with a key that is derived from the last one, as in a key update of
TLS 1.3. So no key seals more than 64 GiB, a fifth of what RFC 8446 (section 5.5) allows.

Nothing of a record counts as read before its tag is verified. What stood in the reader's memory meanwhile is wiped if
that fails, and nothing that comes behind is opened: else an attacker on the way could leave out what was due there.
"""

from __future__ import annotations

import struct
import threading
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16

MOST_CONTENT_BYTES: Final = 128 << 10
"""A reader has nothing of a record before all of it is there: over a slow link larger ones would keep it waiting."""

RECORDS_PER_KEY: Final = 1 << 19

MOVED_BYTES: Final = 16 << 10
"""The beginning of a record is moved to the beginning of the memory if it has no more than that, or no room there."""

_LENGTH: Final = struct.Struct(">I")
OVERHEAD_BYTES: Final = _LENGTH.size + TAG_BYTES
MOST_RECORD_BYTES: Final = MOST_CONTENT_BYTES + OVERHEAD_BYTES

_NEXT_KEY: Final = b"minga sealed records: next key"


class ForgedRecordError(OSError):
    """What came is no record that the other side sealed at this place."""


class KeySchedule:
    """The keys of one direction, one after the other, and the number of the next record."""

    def __init__(self, key: bytes) -> None:
        self._key, self._cipher, self._number = key, AESGCM(key), 0

    def next(self) -> tuple[AESGCM, bytes]:
        """The cipher and the nonce of the next record."""
        number = self._number
        if number == RECORDS_PER_KEY:
            self._key = HKDFExpand(hashes.SHA256(), KEY_BYTES, _NEXT_KEY).derive(self._key)
            self._cipher, number = AESGCM(self._key), 0
        self._number = number + 1
        return self._cipher, number.to_bytes(NONCE_BYTES, "big")


def sealed_bytes(size: int) -> int:
    """How many bytes the records of `size` bytes have."""
    return size + OVERHEAD_BYTES * -(-size // MOST_CONTENT_BYTES)


class RecordSealer:
    """Makes the records of one direction."""

    def __init__(self, key: bytes) -> None:
        self._keys = KeySchedule(key)

    def seal(self, content: memoryview, target: memoryview) -> int:
        """Write the records of `content` (none for no bytes) to the beginning of `target`, which has room for
        `sealed_bytes`; returns that number.
        """
        at = 0
        for start in range(0, content.nbytes, MOST_CONTENT_BYTES):
            part = content[start : start + MOST_CONTENT_BYTES]
            length = _LENGTH.pack(part.nbytes)
            body = at + _LENGTH.size
            end = body + part.nbytes + TAG_BYTES
            target[at:body] = length
            cipher, nonce = self._keys.next()
            cipher.encrypt_into(nonce, part, length, target[body:end])
            at = end
        return at

    def seal_end(self, target: memoryview) -> None:
        """Write the record that says that nothing more comes, of `OVERHEAD_BYTES`."""
        target[: _LENGTH.size] = length = _LENGTH.pack(0)
        cipher, nonce = self._keys.next()
        cipher.encrypt_into(nonce, b"", length, target[_LENGTH.size : OVERHEAD_BYTES])


class SealingRoom(threading.local):
    """Memory of each thread for `size` bytes that are being sealed: it is free again as soon as the system has taken
    all, mostly at once.
    """

    def __init__(self, size: int) -> None:
        self._size, self._room = size, memoryview(b"")

    @property
    def room(self) -> memoryview:
        """The memory; what stood there before is gone."""
        if not self._room.nbytes:
            self._room = memoryview(bytearray(self._size))
        return self._room

    def leave(self) -> None:
        """What stands there is still to be sent: seal elsewhere from now on."""
        self._room = memoryview(b"")


class RecordOpener:
    """Takes the bytes of one direction as they come, and opens the records in them.

    It has memory for `capacity` bytes: `resize` changes that, and a record that needs more gets it, within
    `MOST_RECORD_BYTES`.
    """

    def __init__(self, key: bytes, capacity: int) -> None:
        self._keys = KeySchedule(key)
        self._buffer = memoryview(bytearray(capacity))
        self._start = self._end = 0  # where in the buffer the bytes are that were not opened
        self._opened = memoryview(b"")  # what was opened and not taken
        self._forged = ""
        self.is_at_end = False
        """Whether the other side said that all is there, and all was taken; then nothing is until `begin`."""

    @property
    def capacity(self) -> int:
        """For how many bytes there is memory."""
        return self._buffer.nbytes

    @property
    def sealed(self) -> int:
        """How many bytes came that were not opened."""
        return self._end - self._start

    @property
    def is_full(self) -> bool:
        """Whether there is no room before some are taken."""
        return self._end - self._start == self._buffer.nbytes

    @property
    def pending(self) -> int:
        """How many bytes came that were not taken."""
        return self._opened.nbytes + self._end - self._start

    def resize(self, capacity: int) -> None:
        """Have memory for `capacity` bytes, or as much more as what came needs."""
        self._replace(memoryview(bytearray(max(capacity, self.sealed))))

    def room(self) -> memoryview:
        """Where the next bytes are to go; empty if it `is_full`."""
        rest = self._end - self._start
        if not rest:
            self._start = self._end = 0
        elif self._start and (
            rest <= MOVED_BYTES
            or self._buffer.nbytes - self._start < MOST_RECORD_BYTES
            or self._end == self._buffer.nbytes
        ):
            self._replace(self._buffer)
        return self._buffer[self._end :]

    def came(self, size: int) -> None:
        """Note that `size` bytes came into the `room`."""
        self._end += size

    def begin(self) -> None:
        """What comes next is something new."""
        self.is_at_end = False

    def take(self, target: memoryview) -> int:
        """Move what is there into `target`, up to an end; returns how much. Raises `ForgedRecordError`, from then on
        each time.
        """
        if self._forged:
            raise ForgedRecordError(self._forged)
        got, room = self._take_opened(target) if self._opened.nbytes else 0, target.nbytes
        while got < room and not self.is_at_end and (size := self._complete()) is not None:
            if not size:
                self._open(size, target[got:got])
                self.is_at_end = True
            elif size <= room - got:
                self._open(size, target[got : got + size])
                got += size
            else:
                opened = memoryview(bytearray(size))
                self._open(size, opened)
                self._opened = opened
                got += self._take_opened(target[got:])
        return got

    def _take_opened(self, target: memoryview) -> int:
        size = min(target.nbytes, self._opened.nbytes)
        target[:size] = self._opened[:size]
        self._opened = self._opened[size:]
        return size

    def _complete(self) -> int | None:
        """The size of the content of the next record, None as long as not all of it is there."""
        sealed = self._end - self._start
        if sealed < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(self._buffer, self._start)
        if size > MOST_CONTENT_BYTES:
            raise self._refusal(f"a record of {size} bytes")
        if sealed >= size + OVERHEAD_BYTES:
            return int(size)
        if self.capacity < size + OVERHEAD_BYTES:
            self.resize(size + OVERHEAD_BYTES)
        return None

    def _open(self, size: int, target: memoryview) -> None:
        body = self._start + _LENGTH.size
        end = body + size + TAG_BYTES
        cipher, nonce = self._keys.next()
        try:
            cipher.decrypt_into(nonce, self._buffer[body:end], self._buffer[self._start : body], target)
        except InvalidTag as error:
            target[:] = bytes(size)
            raise self._refusal("a record was not sealed by the other side") from error
        self._start = end

    def _refusal(self, what: str) -> ForgedRecordError:
        self._forged = what
        return ForgedRecordError(what)

    def _replace(self, buffer: memoryview) -> None:
        """Go on with this memory, what was not opened being at its beginning."""
        rest = self.sealed
        buffer[:rest] = self._buffer[self._start : self._end]
        self._buffer, self._start, self._end = buffer, 0, rest
