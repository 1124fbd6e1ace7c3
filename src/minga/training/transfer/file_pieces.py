"""A file of a run as pieces of 1 MiB, each with a digest, so that several peers can send it at once.

Theory of operation. The run spec holds the BLAKE3 of a file, its size, and the BLAKE3 of the concatenated digests of
its pieces (`pieces`). So a list of digests can come from any peer and is checked by its hash, and each piece is checked
by its digest as it arrives. Run specs written before there were pieces lack that hash: then the list is a claim of the
peer that sent it, and the digest of the whole file convicts that peer if the claim was wrong. The list of a file that
is one piece is the digest of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from minga.core.files import Content
from minga.core.spec.sections import FileEntry
from minga.training.state.manifest import CHUNK_BYTES, HASH_BYTES, hash_chunks

READ_BYTES = 8 * CHUNK_BYTES


@dataclass(frozen=True)
class FilePieces:
    """A file by the digests of its pieces; `hashes` are 32 bytes for each of them."""

    name: str
    digest: str
    total_bytes: int
    hashes: bytes

    @property
    def label(self) -> str:
        """What error messages call the file."""
        return f"the file {self.name}"

    @property
    def chunk_count(self) -> int:
        """The number of pieces; the last one may be short."""
        return piece_count(self.total_bytes)

    def chunk_size(self, index: int) -> int:
        """Bytes of one piece."""
        return min(CHUNK_BYTES, self.total_bytes - index * CHUNK_BYTES)

    def verify_chunk(self, index: int, data: memoryview) -> bool:
        """Whether `data` is piece `index`."""
        known = self.hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES]
        return data.nbytes == self.chunk_size(index) and blake3(data).digest() == known

    def found_in(self, path: Path) -> set[int]:
        """The pieces that the file `path` has in their places. Raises `OSError`."""
        with path.open("rb") as file:
            return {
                index
                for index in range(self.chunk_count)
                if self.verify_chunk(index, memoryview(file.read(self.chunk_size(index))))
            }


def piece_count(size_bytes: int) -> int:
    """How many pieces a file of that size has."""
    return -(-size_bytes // CHUNK_BYTES)


def hash_pieces(content: Content) -> bytes:
    """The digests of the pieces of a file. Raises `OSError`."""
    return hash_chunks(_blocks(content))


def whole_digest(content: Content) -> str:
    """BLAKE3 of a file, 64 hexadecimal digits. Raises `OSError`."""
    hasher = blake3()
    for block in _blocks(content):
        hasher.update(block)
    return hasher.hexdigest()


def describe_file(content: Content) -> FileEntry:
    """What a run spec says of a file. Raises `OSError`."""
    size_bytes = content.stat().st_size if isinstance(content, Path) else len(content)
    pieces = blake3(hash_pieces(content)).hexdigest()
    return FileEntry(blake3=whole_digest(content), size_bytes=size_bytes, pieces=pieces)


def is_intact(path: Path, digest: str, size_bytes: int) -> bool:
    """Whether the file is there and has that digest and size. Raises `OSError` for a file that cannot be read."""
    try:
        return path.stat().st_size == size_bytes and whole_digest(path) == digest
    except FileNotFoundError:
        return False


def _blocks(content: Content) -> Iterator[memoryview]:
    if isinstance(content, bytes):
        yield memoryview(content)
        return
    with content.open("rb") as file:
        while block := file.read(READ_BYTES):
            yield memoryview(block)
