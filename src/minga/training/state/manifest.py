"""Manifests: a training state described by hashes.

Theory of operation. The bytes of a state (see `snapshot.py`) are cut into chunks of `CHUNK_BYTES`; the manifest lists
the tensors, the scalars and the BLAKE3 of every chunk. The BLAKE3 of the manifest's own canonical encoding is the
*state digest*: 32 bytes that stand for all of the state. A peer that knows the digest can take the manifest from any
peer, and a peer that has the manifest can take each chunk from any peer, without trusting them. Two peers find out what
differs between them by comparing manifests.

Bytes without content (see `minga.network.meta_bytes`) are hashed by what stands for it: the state's scalars and the
place of the chunk.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Annotated

import msgspec
from blake3 import blake3

from minga.core.decoding import DECODING_ERRORS, decode_msgpack
from minga.core.printable import is_printable
from minga.network.meta_bytes import is_meta
from minga.training.state.scalars import Json, canonical_json, parse_canonical_json
from minga.training.state.snapshot import DTYPES, StateSnapshot, TensorEntry, layout_bytes

CHUNK_BYTES = 1 << 20
HASH_BYTES = 32
FORMAT = 1

MAX_TENSORS = 100_000
MAX_DIMENSIONS = 16
MAX_NAME_CHARACTERS = 500
MAX_STATE_BYTES = 2 << 40
MAX_STEP = 1 << 53
MAX_MANIFEST_BYTES = 128 << 20
"""Hashes of 2 TiB (64 MiB), 100,000 tensors with long names, and scalars."""

_PARALLEL_BYTES = 32 << 20
"""States of at least this size are hashed by several threads."""

Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
"""A state digest: 64 lower-case hexadecimal digits."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """The parts of a state: its step, tensors, canonical JSON of its scalars, and the hashes of its chunks."""

    format: int
    step: int
    total_bytes: int
    tensors: tuple[TensorEntry, ...]
    scalars_json: bytes
    chunk_hashes: bytes

    @cached_property
    def encoded(self) -> bytes:
        """The canonical encoding, msgpack."""
        return msgspec.msgpack.encode(self)

    @cached_property
    def digest(self) -> str:
        """The state digest: BLAKE3 of `encoded`, 64 hexadecimal digits."""
        return blake3(self.encoded).hexdigest()

    @property
    def label(self) -> str:
        """What error messages call the state."""
        return f"the state after step {self.step}"

    @property
    def scalars(self) -> dict[str, Json]:
        """The scalars, decoded at each call."""
        return parse_canonical_json(self.scalars_json)

    @property
    def chunk_count(self) -> int:
        """Number of chunks; the last one may be short."""
        return -(-self.total_bytes // CHUNK_BYTES)

    def chunk_hash(self, index: int) -> bytes:
        """BLAKE3 of one chunk, 32 bytes."""
        return self.chunk_hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES]

    def chunk_size(self, index: int) -> int:
        """Bytes of one chunk."""
        return min(CHUNK_BYTES, self.total_bytes - index * CHUNK_BYTES)

    def verify_chunk(self, index: int, data: memoryview) -> bool:
        """Whether `data` is chunk `index`."""
        if data.nbytes != self.chunk_size(index):
            return False
        found = _meta_hash(self.scalars_json, index) if is_meta(data) else blake3(data).digest()
        return found == self.chunk_hash(index)

    def diff(self, own: Manifest | None) -> list[int]:
        """Indices of the chunks that a holder of the state `own` lacks, in order."""
        there = set() if own is None else set(own.hash_index())
        return [index for index in range(self.chunk_count) if self.chunk_hash(index) not in there]

    def hash_index(self) -> dict[bytes, int]:
        """Where each chunk hash occurs (the last place, if it does more than once)."""
        return {self.chunk_hash(index): index for index in range(self.chunk_count)}

    def check(self) -> None:
        """Raise `ValueError` naming the first bound or rule that this manifest breaks."""
        if self.format != FORMAT:
            raise ValueError(f"state format {self.format} is not known here; this version knows {FORMAT}")
        if not 0 <= self.step <= MAX_STEP:
            raise ValueError(f"step {self.step} is out of range")
        if len(self.tensors) > MAX_TENSORS:
            raise ValueError(f"{len(self.tensors)} tensors exceed {MAX_TENSORS}")
        for entry in self.tensors:
            _check_entry(entry)
        if len({entry.name for entry in self.tensors}) != len(self.tensors):
            raise ValueError("two tensors have the same name")
        if not self.total_bytes == layout_bytes(self.tensors) <= MAX_STATE_BYTES:
            raise ValueError(f"{self.total_bytes} bytes in all do not fit the tensors or exceed {MAX_STATE_BYTES}")
        if len(self.chunk_hashes) != self.chunk_count * HASH_BYTES:
            raise ValueError(f"{len(self.chunk_hashes)} bytes of hashes do not fit {self.chunk_count} chunks")
        parse_canonical_json(self.scalars_json)

    @classmethod
    def decode(cls, data: bytes | bytearray) -> Manifest:
        """Decode and check a canonical encoding. Raises `ValueError` for anything else."""
        if len(data) > MAX_MANIFEST_BYTES:
            raise ValueError(f"a manifest of {len(data)} bytes exceeds {MAX_MANIFEST_BYTES}")
        try:
            manifest = decode_msgpack(data, cls)
        except DECODING_ERRORS as error:
            raise ValueError(f"malformed manifest: {error}") from error
        manifest.check()
        if manifest.encoded != data:
            raise ValueError("the manifest is not in canonical form")
        return manifest


def build_manifest(snapshot: StateSnapshot) -> Manifest:
    """Hash a snapshot: about 0.3 s per GB of state and core. Raises `ValueError` if the state breaks a bound."""
    if not is_meta(snapshot.bytes_view):
        return manifest_of(snapshot.step, snapshot.tensors, snapshot.scalars, snapshot.pieces())
    total_bytes, scalars_json = layout_bytes(snapshot.tensors), canonical_json(snapshot.scalars)
    hashes = b"".join(_meta_hash(scalars_json, index) for index in range(-(-total_bytes // CHUNK_BYTES)))
    return _checked(Manifest(FORMAT, snapshot.step, total_bytes, snapshot.tensors, scalars_json, hashes))


def manifest_of(
    step: int, tensors: tuple[TensorEntry, ...], scalars: dict[str, Json], pieces: Iterable[memoryview]
) -> Manifest:
    """The manifest of a state whose bytes come in `pieces` of any size, in order and with the gaps filled."""
    total_bytes = layout_bytes(tensors)
    hashes = hash_chunks(pieces, parallel=total_bytes >= _PARALLEL_BYTES)
    return _checked(Manifest(FORMAT, step, total_bytes, tensors, canonical_json(scalars), hashes))


def _checked(manifest: Manifest) -> Manifest:
    manifest.check()
    return manifest


def _meta_hash(scalars_json: bytes, index: int) -> bytes:
    """The 32 bytes that replace the BLAKE3 of a chunk without content."""
    digest: bytes = blake3(b"minga hollow chunk %d of " % index + scalars_json).digest()
    return digest


def hash_chunks(pieces: Iterable[memoryview], *, parallel: bool = False) -> bytes:
    """BLAKE3 of each `CHUNK_BYTES` of the concatenated pieces, 32 bytes each, concatenated."""
    threads = blake3.AUTO if parallel else 1
    hashes: list[bytes] = []
    hasher, filled = blake3(max_threads=threads), 0
    for piece in pieces:
        for start, end in _cuts(piece.nbytes, CHUNK_BYTES - filled):
            hasher.update(piece[start:end])
            filled += end - start
            if filled == CHUNK_BYTES:
                hashes.append(hasher.digest())
                hasher, filled = blake3(max_threads=threads), 0
    if filled:
        hashes.append(hasher.digest())
    return b"".join(hashes)


def _cuts(length: int, first: int) -> Iterable[tuple[int, int]]:
    """Ranges that cut `length` bytes after `first` bytes and then after every chunk."""
    start, end = 0, min(first, length)
    while start < length:
        yield start, end
        start, end = end, min(end + CHUNK_BYTES, length)


def _check_entry(entry: TensorEntry) -> None:
    if not 1 <= len(entry.name) <= MAX_NAME_CHARACTERS or not is_printable(entry.name):
        raise ValueError(f"{entry.name[:60]!r} is not acceptable as the name of a tensor")
    if entry.dtype not in DTYPES:
        raise ValueError(f"tensor {entry.name} has unknown dtype {entry.dtype[:20]!r}")
    if len(entry.shape) > MAX_DIMENSIONS or any(not 0 <= size <= MAX_STATE_BYTES for size in entry.shape):
        raise ValueError(f"tensor {entry.name} has an impossible shape")
