"""A file that only a passphrase opens, written and read from front to back.

    magic | log2 of scrypt's n (1 byte) | salt (16 bytes) | frames

Each frame is 1 MiB of content under ChaCha20-Poly1305, the last one shorter or empty. The nonce of a frame is its
number and whether it is the last (the STREAM construction of Hoang, Reyhanitabar, Rogaway and Vizár 2015), so frames
cannot be exchanged, left out or cut off unnoticed. The key is scrypt's of passphrase and salt, one for each file.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import BinaryIO, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from minga.core.errors import ConfigurationError

MAGIC: Final = b"minga backup 1\n"
LOG2_N: Final = 17
MIN_LOG2_N, MAX_LOG2_N = 14, 20
SALT_BYTES, TAG_BYTES, FRAME_BYTES = 16, 16, 1 << 20
MIN_PASSPHRASE_CHARACTERS: Final = 8


class SealedWriter:
    """Writes to `file`, which stays open; `close` writes the last frame."""

    def __init__(self, file: BinaryIO, passphrase: str) -> None:
        if len(passphrase) < MIN_PASSPHRASE_CHARACTERS:
            raise ConfigurationError(f"a passphrase has at least {MIN_PASSPHRASE_CHARACTERS} characters")
        self._file, self._waiting, self._number = file, bytearray(), 0
        self._header = MAGIC + bytes([LOG2_N]) + secrets.token_bytes(SALT_BYTES)
        self._cipher = _cipher(passphrase, self._header)
        file.write(self._header)

    def write(self, data: bytes) -> int:
        """Add some content."""
        self._waiting += data
        while len(self._waiting) > FRAME_BYTES:  # at least a byte stays, or nothing was written: the last frame
            self._seal(bytes(self._waiting[:FRAME_BYTES]), is_last=False)
            del self._waiting[:FRAME_BYTES]
        return len(data)

    def close(self) -> None:
        """Write what is left."""
        self._seal(bytes(self._waiting), is_last=True)
        self._waiting.clear()

    def _seal(self, content: bytes, *, is_last: bool) -> None:
        self._file.write(self._cipher.encrypt(_nonce(self._number, is_last=is_last), content, self._header))
        self._number += 1


class SealedReader:
    """Reads what a `SealedWriter` wrote. Raises `ConfigurationError` for another file, passphrase or content."""

    def __init__(self, file: BinaryIO, passphrase: str) -> None:
        self._header = file.read(len(MAGIC) + 1 + SALT_BYTES)
        if not self._header.startswith(MAGIC) or len(self._header) != len(MAGIC) + 1 + SALT_BYTES:
            raise ConfigurationError("this file is no backup of minga")
        self._file, self._number, self._content = file, 0, bytearray()
        self._cipher = _cipher(passphrase, self._header)
        self._next = file.read(FRAME_BYTES + TAG_BYTES)
        if not self._next:
            raise ConfigurationError("the backup cannot be read: the file is damaged")

    def read(self, size: int) -> bytes:
        """The next `size` bytes, fewer at the end."""
        while len(self._content) < size and self._next:
            self._content += self._open_frame()
        taken = bytes(self._content[:size])
        del self._content[:size]
        return taken

    def _open_frame(self) -> bytes:
        frame, self._next = self._next, self._file.read(FRAME_BYTES + TAG_BYTES)
        try:
            content = self._cipher.decrypt(_nonce(self._number, is_last=not self._next), frame, self._header)
        except InvalidTag as error:
            why = "the passphrase is wrong, or the file is damaged" if self._number == 0 else "the file is damaged"
            raise ConfigurationError(f"the backup cannot be read: {why}") from error
        self._number += 1
        return content


def _cipher(passphrase: str, header: bytes) -> ChaCha20Poly1305:
    log2_n, salt = header[len(MAGIC)], header[len(MAGIC) + 1 :]
    if not MIN_LOG2_N <= log2_n <= MAX_LOG2_N:
        raise ConfigurationError("the backup cannot be read: the file is damaged")
    n, r = 1 << log2_n, 8
    key = hashlib.scrypt(passphrase.encode(), salt=salt, n=n, r=r, p=1, maxmem=129 * n * r, dklen=32)
    return ChaCha20Poly1305(key)


def _nonce(number: int, *, is_last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([is_last])
