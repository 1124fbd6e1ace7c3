"""The files of one checkpoint: how a snapshot becomes a folder and the reverse.

    manifest.json             step, lineage, digest, tensors, scalars, chunk hashes, and the hashes of further files
    model.safetensors         parameters and buffers under their own names: any tool can read them
    optimizer.safetensors     what the optimizer keeps, as <parameter>/<key>
    sketch.safetensors        the basis of the run's sketch, if it has one
    strategy.safetensors      what the run's strategy keeps beside them, if it keeps anything
    …                         further files given by the caller, such as the run spec

Everything is verified on reading: the state against the chunk hashes, those against the digest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import torch
from blake3 import blake3
from msgspec.structs import replace
from safetensors import SafetensorError, safe_open

from minga.core.decoding import DECODING_ERRORS, decode_json
from minga.training.lineage import Lineage
from minga.training.state.complete_checkpoints import MANIFEST_NAME
from minga.training.state.manifest import FORMAT, MAX_MANIFEST_BYTES, Manifest, build_manifest
from minga.training.state.scalars import Json, canonical_json
from minga.training.state.snapshot import DTYPE_NAMES, DTYPES, StateSnapshot, TensorEntry, layout_bytes
from minga.training.state.state_dict import MODEL, OPTIMIZER, SKETCH, STRATEGY
from minga.training.state.state_memory import PIECE_BYTES, StateMemory
from minga.training.state.tensor_file import write_tensors

_TENSOR_FILES = {
    MODEL: "model.safetensors",
    OPTIMIZER: "optimizer.safetensors",
    SKETCH: "sketch.safetensors",
    STRATEGY: "strategy.safetensors",
}
_WRITTEN_IF_NEEDED = (SKETCH, STRATEGY)
RESERVED_NAMES = frozenset({MANIFEST_NAME, *_TENSOR_FILES.values()})


class CheckpointFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A further file of a checkpoint: its BLAKE3 in hexadecimal."""

    blake3: str


class _Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    dtype: str
    shape: tuple[int, ...]


class _ManifestFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`manifest.json`: a manifest that people can read."""

    format: int
    step: int
    lineage: Lineage
    digest: str
    total_bytes: int
    scalars: dict[str, object]
    tensors: tuple[_Tensor, ...]
    chunk_blake3: tuple[str, ...]
    files: dict[str, CheckpointFile]


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint in memory: state, manifest, further files by name, and the folder that it came from."""

    snapshot: StateSnapshot
    manifest: Manifest
    files: dict[str, bytes]
    path: Path


def write_checkpoint(folder: Path, snapshot: StateSnapshot, manifest: Manifest, files: Mapping[str, bytes]) -> None:
    """Write all files of a checkpoint into the empty `folder` and flush them to the disk.

    Raises `OSError` when the disk refuses, `ValueError` for the name of a further file that is taken.
    """
    if taken := RESERVED_NAMES & {name.lower() for name in files}:
        raise ValueError(f"{min(taken)} is a file of the checkpoint itself")
    for prefix, name in _TENSOR_FILES.items():
        places = [(entry, start) for entry, start in snapshot.placed() if _prefix_of(entry) == prefix]
        if places or prefix not in _WRITTEN_IF_NEEDED:
            tensors = [
                (replace(entry, name=entry.name.removeprefix(prefix)), partial(_bytes_of, snapshot, entry, start))
                for entry, start in places
            ]
            with (folder / name).open("wb") as file:
                write_tensors(file, tensors, {"format": "pt", "step": str(snapshot.step)})
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / MANIFEST_NAME).write_bytes(_encode(manifest, snapshot.lineage, files))
    for path in folder.iterdir():
        _flush(path)
    flush_folder(folder)


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read and verify a checkpoint. Raises `ValueError` naming what is damaged, `OSError` when the disk refuses."""
    written = _read_manifest(folder)
    entries = tuple(TensorEntry(each.name, each.dtype, each.shape) for each in written.tensors)
    scalars: dict[str, Json] = json.loads(msgspec.json.encode(written.scalars))
    hashes = b"".join(bytes.fromhex(each) for each in written.chunk_blake3)
    manifest = Manifest(written.format, written.step, written.total_bytes, entries, canonical_json(scalars), hashes)
    manifest.check()
    if manifest.digest != written.digest:
        raise ValueError(f"{MANIFEST_NAME} does not match its digest")
    memory = StateMemory.of(layout_bytes(entries), folder.parent)
    snapshot = StateSnapshot.within(manifest.step, entries, manifest.scalars, memory).of(written.lineage)
    _fill(folder, snapshot)
    if damaged := build_manifest(snapshot).diff(manifest):
        raise ValueError(f"{len(damaged)} of {manifest.chunk_count} chunks of the tensors do not match their hashes")
    files = {name: (folder / name).read_bytes() for name in written.files}
    for name, content in files.items():
        if blake3(content).hexdigest() != written.files[name].blake3:
            raise ValueError(f"{name} does not match its hash")
    return Checkpoint(snapshot, manifest, files, folder)


def _bytes_of(snapshot: StateSnapshot, entry: TensorEntry, start: int) -> Iterator[memoryview]:
    return snapshot.pieces(start, start + entry.size_bytes)


def _prefix_of(entry: TensorEntry) -> str:
    return next((each for each in _TENSOR_FILES if entry.name.startswith(each)), OPTIMIZER)


def _encode(manifest: Manifest, lineage: Lineage, files: Mapping[str, bytes]) -> bytes:
    written = _ManifestFile(
        FORMAT,
        manifest.step,
        lineage,
        manifest.digest,
        manifest.total_bytes,
        dict(manifest.scalars),
        tuple(_Tensor(entry.name, entry.dtype, entry.shape) for entry in manifest.tensors),
        tuple(manifest.chunk_hash(index).hex() for index in range(manifest.chunk_count)),
        {name: CheckpointFile(blake3(content).hexdigest()) for name, content in files.items()},
    )
    return msgspec.json.format(msgspec.json.encode(written), indent=1)


def _read_manifest(folder: Path) -> _ManifestFile:
    path = folder / MANIFEST_NAME
    if path.stat().st_size > 4 * MAX_MANIFEST_BYTES:
        raise ValueError(f"{MANIFEST_NAME} is impossibly large")
    try:
        written = decode_json(path.read_bytes(), _ManifestFile)
    except DECODING_ERRORS as error:
        raise ValueError(f"{MANIFEST_NAME} is malformed: {error}") from error
    if any(Path(name).name != name for name in written.files):
        raise ValueError(f"{MANIFEST_NAME} names files outside of the checkpoint")
    return written


def _fill(folder: Path, snapshot: StateSnapshot) -> None:
    """Read all tensors into the snapshot's buffer."""
    targets = {entry.name: (entry, start) for entry, start in snapshot.placed()}
    for prefix, name in _TENSOR_FILES.items():
        if prefix in _WRITTEN_IF_NEEDED and not any(each.startswith(prefix) for each in targets):
            continue
        try:
            for key, value in _tensors_of(folder / name):
                place = targets.pop(prefix + key, None)
                if place is None or (place[0].shape, DTYPES[place[0].dtype]) != (tuple(value.shape), value.dtype):
                    raise ValueError(f"{name} holds {key} as {DTYPE_NAMES.get(value.dtype)}, unlike the manifest")
                snapshot.tensor(*place).copy_(value)
                snapshot.release(place[1], place[1] + place[0].size_bytes)
        except SafetensorError as error:
            raise ValueError(f"{name} is damaged: {error}") from error
    if targets:
        raise ValueError(f"{min(targets)} is missing")


def _tensors_of(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors of a file by name, each valid until the next is taken.

    The library maps the file into memory, and what was read of it stays there while it is open; so it is opened anew.
    """
    with safe_open(path, framework="pt", device="cpu") as file:
        left = sorted(file.keys(), reverse=True)
    while left:
        read_bytes = 0
        with safe_open(path, framework="pt", device="cpu") as file:
            while left and read_bytes < PIECE_BYTES:
                value = file.get_tensor(left[-1])
                read_bytes += value.nbytes
                yield left.pop(), value
                del value


def _flush(path: Path) -> None:
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Make the names in a folder durable; Windows does that by itself and cannot open folders."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
