"""The checkpoints of a run on this machine's disk.

Theory of operation. A checkpoint is written into a folder with a temporary name, flushed, and then renamed in one step
to `step-<number>-<digest>`; so a folder of that name is complete, whatever happened. Its name contains the digest, so
it is never overwritten by something else, and several peers may share one directory. Where the same state gets another
lineage, small files in the folder are replaced (`change_lineage`). A lock, which the operating system drops when its
process dies, lies beside each unfinished folder: a process that finds an unfinished folder without a live lock removes
it.

On reading, everything is verified against hashes. A damaged checkpoint is set aside under a name that begins with
`damaged-`, and one of another run, which somebody must have copied there, as `foreign-`; then the next older one is
used. What this peer gave up for the history of others is `given-up-`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec
from blake3 import blake3
from msgspec.structs import replace

from minga.core.decoding import DECODING_ERRORS, decode_json, take_as
from minga.core.errors import ConfigurationError, StorageError, reason_of
from minga.core.files import flush_folder, flush_tree, replacing, unfinished_of
from minga.core.units import format_size
from minga.identity.keys.key_file import FileLock
from minga.keeping.complete_checkpoints import MANIFEST_NAME, complete_checkpoints, folder_name, unchanging
from minga.training.lineage import Lineage
from minga.training.state.manifest import (
    FORMAT,
    MAX_MANIFEST_BYTES,
    MAX_STATE_BYTES,
    Manifest,
    build_manifest,
    manifest_of,
)
from minga.training.state.scalars import Json, canonical_json
from minga.training.state.snapshot import (
    DTYPES,
    PIECE_BYTES,
    StateMemory,
    StateSnapshot,
    TensorEntry,
    layout_bytes,
    padded,
)
from minga.training.state.state_dict import MODEL, OPTIMIZER, SKETCH, STRATEGY

# ---- Writing a safetensors file piece by piece, which takes no memory beside the state that is written.
#
# The format: 8 bytes with the length of the header, little-endian; the header, JSON with dtype, shape and place of
# each tensor, and spaces up to a multiple of 8 bytes; then the tensors, one behind the other. Widest dtypes come
# first, so that each tensor lies at a multiple of its element size.


NAMES = {
    "bfloat16": "BF16",
    "bool": "BOOL",
    "complex64": "C64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "int8": "I8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "uint8": "U8",
}
"""The format's names of the dtypes of a state."""

Pieces = Callable[[], Iterable[memoryview]]
"""The bytes of one tensor, in order, when they are asked for."""


def write_tensors(
    file: IO[bytes], tensors: Sequence[tuple[TensorEntry, Pieces]], metadata: Mapping[str, str] | None = None
) -> None:
    """Write all `tensors` and the `metadata`. Raises `OSError` when the disk refuses."""
    ordered = sorted(tensors, key=lambda each: (-DTYPES[each[0].dtype].itemsize, each[0].name))
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for entry, _ in ordered:
        start, end = end, end + entry.size_bytes
        header[entry.name] = {"dtype": NAMES[entry.dtype], "shape": list(entry.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for _, pieces in ordered:
        for piece in pieces():
            file.write(piece)


# ---- The files of one checkpoint: how a snapshot becomes a folder and the reverse.
#
#     manifest.json             step, lineage, digest, tensors, scalars, hashes of chunks and further files, and its own
#     model.safetensors         parameters and buffers under their own names: any tool can read them
#     optimizer.safetensors     what the optimizer keeps, as <parameter>/<key>
#     sketch.safetensors        the basis of the run's sketch, if it has one
#     strategy.safetensors      what the run's strategy keeps beside them, if it keeps anything
#     …                         further files given by the caller, such as run spec, genesis and a peer's own buffers
#
# Everything is verified on reading: the state against the chunk hashes, those and the lineage against the manifest's.


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


class _Format(msgspec.Struct, frozen=True):
    format: int


def check_format(header: bytes | str, known: int, path: Path) -> None:
    """Raise `StorageError` if a newer minga wrote what lies at `path`, so that this one neither uses nor removes it."""
    if (theirs := decode_json(header, _Format).format) > known:
        raise StorageError(
            f"{path} is of a newer minga (format {theirs}, and this one knows {known}): update minga, or move it away "
            "to go on without it"
        )


_PARTIAL = ".partial-"
"""What is written at this moment, or was left by a process that was killed."""
_NEW = "~new-"
"""A further file that is to replace another. No such file begins so itself, and no backup leaves it out."""


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
    own_blake3: str = ""
    """Of this file without these digits."""


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint in memory: state, further files by name, and the folder that it came from."""

    snapshot: StateSnapshot
    files: dict[str, bytes]
    path: Path


def write_checkpoint(folder: Path, snapshot: StateSnapshot, manifest: Manifest, files: Mapping[str, bytes]) -> None:
    """Write all files of a checkpoint into the empty `folder` and flush them to the disk.

    Raises `OSError` when the disk refuses, `ValueError` for the name of a further file that is taken.
    """
    described = _encode(manifest, snapshot.lineage, files)
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
    (folder / MANIFEST_NAME).write_bytes(described)
    flush_tree(folder)


def change_lineage(there: Checkpoint, lineage: Lineage, manifest: Manifest, files: Mapping[str, bytes]) -> None:
    """Give the intact checkpoint that is `there` this `lineage` and these further files, while nobody else does: all of
    it or nothing, wherever the disk refuses or this process dies. Raises as `write_checkpoint` does.
    """
    described = _encode(manifest, lineage, files)
    try:
        for name, content in files.items():
            if there.files.get(name) != content:
                _replace(_beside(there.path / name, _described(content)), content)
        _replace(there.path / MANIFEST_NAME, described)  # from here on they are the checkpoint's
    finally:
        _settle(there.path)


def _settle(folder: Path) -> None:
    """Have what lies beside the further files take their place, if the manifest lists it, and else remove it, as far as
    the disk lets one: who reads by the manifest finds them where they are.
    """
    with contextlib.suppress(OSError):
        listed = {_beside(folder / name, each): folder / name for name, each in _read_manifest(folder).files.items()}
        for path in [*folder.glob(f"{_NEW}*"), *unfinished_of(folder / MANIFEST_NAME)]:
            with contextlib.suppress(OSError):
                if path in listed:
                    path.replace(listed[path])
                else:
                    path.unlink()


def _beside(path: Path, described: CheckpointFile) -> Path:
    """Where a further file waits until a manifest lists it: its name is that of no other content."""
    return path.with_name(f"{_NEW}{described.blake3}-{path.name}")


def _replace(path: Path, content: bytes) -> None:
    with replacing(path) as partial:  # never anew in a folder that another process has removed
        partial.write_bytes(content)


def read_checkpoint(folder: Path, *, is_meta: bool = False) -> Checkpoint:
    """Read and verify a checkpoint; with `is_meta` its state is not kept in memory, and has a size only.

    Raises `ValueError` naming what is damaged, `FileNotFoundError` if a file is missing, another `OSError` if one
    cannot be read at this moment, and `StorageError` if a newer minga wrote it.
    """
    written = _read_manifest(folder)
    entries = tuple(TensorEntry(each.name, each.dtype, each.shape) for each in written.tensors)
    scalars: dict[str, Json] = json.loads(msgspec.json.encode(written.scalars))
    hashes = b"".join(bytes.fromhex(each) for each in written.chunk_blake3)
    manifest = Manifest(written.format, written.step, written.total_bytes, entries, canonical_json(scalars), hashes)
    manifest.check()
    if manifest.digest != written.digest:
        raise ValueError(f"{MANIFEST_NAME} does not match its digest")
    memory = StateMemory.of(layout_bytes(entries), folder.parent, is_meta=is_meta)
    snapshot = StateSnapshot.within(manifest.step, entries, manifest.scalars, memory).of(written.lineage)
    found = manifest_of(manifest.step, entries, manifest.scalars, _fill(folder, snapshot))
    if damaged := found.diff(manifest):
        raise ValueError(f"{len(damaged)} of {manifest.chunk_count} chunks of the tensors do not match their hashes")
    return Checkpoint(snapshot, {name: _read_file(folder / name, each) for name, each in written.files.items()}, folder)


def further_file(folder: Path, name: str) -> bytes | None:
    """What the checkpoint in `folder` has under this name, without a look at its state; None if it has no such file, or
    a damaged one. Raises `StorageError` if that cannot be read at this moment, or if a newer minga wrote it.
    """
    try:
        described = _read_manifest(folder).files.get(name)
        return None if described is None else _read_file(folder / name, described)
    except (ValueError, FileNotFoundError):
        return None
    except OSError as error:
        raise StorageError(f"{folder} cannot be read: {reason_of(error)}") from error


def _read_file(path: Path, described: CheckpointFile) -> bytes:
    try:
        content = _beside(path, described).read_bytes()  # who was to give it its name died
    except FileNotFoundError:
        content = path.read_bytes()
    if _described(content) != described:
        raise ValueError(f"{path.name} does not match its hash")
    return content


def _described(content: bytes) -> CheckpointFile:
    return CheckpointFile(blake3(content).hexdigest())


def _bytes_of(snapshot: StateSnapshot, entry: TensorEntry, start: int) -> Iterator[memoryview]:
    return snapshot.pieces(start, start + entry.size_bytes)


def _prefix_of(entry: TensorEntry) -> str:
    return next((each for each in _TENSOR_FILES if entry.name.startswith(each)), OPTIMIZER)


def _encode(manifest: Manifest, lineage: Lineage, files: Mapping[str, bytes]) -> bytes:
    if taken := RESERVED_NAMES & {name.lower() for name in files}:
        raise ValueError(f"{min(taken)} is a file of the checkpoint itself")
    written = _ManifestFile(
        FORMAT,
        manifest.step,
        lineage,
        manifest.digest,
        manifest.total_bytes,
        dict(manifest.scalars),
        tuple(_Tensor(entry.name, entry.dtype, entry.shape) for entry in manifest.tensors),
        tuple(manifest.chunk_hash(index).hex() for index in range(manifest.chunk_count)),
        {name: _described(content) for name, content in files.items()},
    )
    own_blake3 = blake3(_formatted(written)).hexdigest()
    return _formatted(replace(written, own_blake3=own_blake3))


def _formatted(written: _ManifestFile) -> bytes:
    return msgspec.json.format(msgspec.json.encode(written), indent=1)


def _read_manifest(folder: Path) -> _ManifestFile:
    path = folder / MANIFEST_NAME
    if path.stat().st_size > 4 * MAX_MANIFEST_BYTES:
        raise ValueError(f"{MANIFEST_NAME} is impossibly large")
    data = path.read_bytes()
    try:
        check_format(data, FORMAT, folder)
        written = decode_json(data, _ManifestFile)
    except DECODING_ERRORS as error:
        raise ValueError(f"{MANIFEST_NAME} is malformed: {error}") from error
    if any(Path(name).name != name for name in written.files):
        raise ValueError(f"{MANIFEST_NAME} names files outside of the checkpoint")
    if blake3(data.replace(written.own_blake3.encode(), b"")).hexdigest() != written.own_blake3:
        raise ValueError(f"{MANIFEST_NAME} does not match its own hash")
    return written


_Offset = Annotated[int, msgspec.Meta(ge=0, le=MAX_STATE_BYTES)]


class _Stored(msgspec.Struct, frozen=True):
    """A tensor in the header of a file; it lies from the one offset to the other behind that."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[_Offset, _Offset]


def _fill(folder: Path, snapshot: StateSnapshot) -> Iterator[memoryview]:
    """Read all tensors into the snapshot's buffer, if it has one; the bytes of that, piece by piece."""
    scratch = memoryview(bytearray(min(PIECE_BYTES, snapshot.buffer.numel()))) if snapshot.buffer.is_meta else None
    with contextlib.ExitStack() as opened:
        stored = dict[str, tuple[BufferedReader, int, _Stored]]()
        for prefix, name in _TENSOR_FILES.items():
            if prefix in _WRITTEN_IF_NEEDED and not any(each.name.startswith(prefix) for each in snapshot.tensors):
                continue
            file = opened.enter_context((folder / name).open("rb"))
            header = _read_header(file, name)
            stored |= {prefix + key: (file, file.tell(), each) for key, each in header.items()}
        if unlike := stored.keys() ^ {entry.name for entry in snapshot.tensors}:
            raise ValueError(f"the files hold other tensors than the manifest, such as {min(unlike)}")
        for entry, start in snapshot.placed():
            file, begin, each = stored[entry.name]
            first, last = each.data_offsets
            if (each.dtype, each.shape, last - first) != (NAMES[entry.dtype], entry.shape, entry.size_bytes):
                raise ValueError(f"{entry.name} is stored as {each.dtype} {each.shape}, unlike the manifest")
            file.seek(begin + first)
            for piece in snapshot.pieces(start, start + entry.size_bytes):
                target = piece if scratch is None else scratch[: piece.nbytes]
                if file.readinto(target) < piece.nbytes:
                    raise ValueError(f"{entry.name} is cut off")
                yield target
            yield memoryview(bytes(padded(entry.size_bytes) - entry.size_bytes))


def _read_header(file: BufferedReader, name: str) -> dict[str, _Stored]:
    """By a tensor's name how it is stored; the file is at the end of the header afterwards."""
    size = int.from_bytes(file.read(8), "little")
    if size > MAX_MANIFEST_BYTES:
        raise ValueError(f"the header of {name} is impossibly large")
    try:
        header = decode_json(file.read(size), dict[str, Any])
        header.pop("__metadata__", None)
        return take_as(header, dict[str, _Stored])
    except DECODING_ERRORS as error:
        raise ValueError(f"{name} is damaged: {error}") from error


# ---- All checkpoints of a run on this machine.


_DAMAGED, _FOREIGN, _GIVEN_UP = "damaged-", "foreign-", "given-up-"

logger = logging.getLogger("minga.training")


class CheckpointStore:
    """The last `keep` checkpoints in `directory`, which is made if it is missing. All methods block: use a thread.

    Left-overs of killed processes are removed at once. Raises `StorageError` if the directory cannot be used.
    """

    def __init__(self, directory: Path, *, keep: int = 3) -> None:
        if keep < 1:
            raise ConfigurationError(f"keep = {keep}: at least one checkpoint must be kept")
        self.directory, self.keep = directory, keep
        self._last_saved: Path | None = None  # that this store wrote
        self._own: set[Path] = set()  # what it wrote, and what lay there when it was read
        self._given_up: Path | None = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()
        except OSError as error:
            raise StorageError(f"checkpoints cannot be kept in {directory}: {reason_of(error)}") from error

    def steps(self) -> list[int]:
        """Steps of which a checkpoint is there, ascending."""
        return [step for step, _ in complete_checkpoints(self.directory)]

    def save(
        self, snapshot: StateSnapshot, manifest: Manifest | None = None, *, files: Mapping[str, bytes] | None = None
    ) -> Path:
        """Write a checkpoint, atomically, with further `files` by name; returns its folder.

        Raises `StorageError`, with nothing half-written left behind, if the disk refuses; and `ConfigurationError` for
        the name of a further file that cannot be used.
        """
        files = files or {}
        if bad := [name for name in files if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", name)]:
            raise ConfigurationError(f"{bad[0][:60]!r} cannot be the name of a file in a checkpoint")
        manifest = manifest or build_manifest(snapshot)
        with unchanging(self.directory):
            return self._save(snapshot, manifest, files)

    def _save(self, snapshot: StateSnapshot, manifest: Manifest, files: Mapping[str, bytes]) -> Path:
        final = self.directory / folder_name(manifest.step, manifest.digest)
        partial, lock, is_new = None, None, True
        try:
            there = _intact(final) if final.exists() else None
            is_same = there is not None and there.snapshot.lineage == snapshot.lineage
            if there is not None and is_same and (final not in self._own or there.files == files):
                is_new = False  # the same state, saved before or by another peer, whose files stay
                _settle(final)  # some tools read by name alone
            elif there is not None:
                change_lineage(there, snapshot.lineage, manifest, files)
            else:
                with contextlib.suppress(FileNotFoundError):  # it is not damaged, there is none
                    final.rename(_aside(final, _DAMAGED))
                partial, lock = _reserve(self.directory)
                partial.mkdir()
                write_checkpoint(partial, snapshot, manifest, files)
                try:
                    partial.rename(final)
                except OSError:
                    if _intact(final) is None:
                        raise
                    is_new = False  # where there are no locks, another peer was faster with the same state
                flush_folder(self.directory)
        except OSError as error:
            size = format_size(manifest.total_bytes)
            raise StorageError(
                f"no checkpoint of step {manifest.step} ({size}) could be written to {self.directory}: "
                f"{reason_of(error)}; earlier checkpoints are untouched; free some space or choose another "
                "folder"
            ) from error
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
        finally:
            if partial is not None:
                shutil.rmtree(partial, ignore_errors=True)
                _unlock_beside(partial, lock)
        if is_new:
            self._own.add(final)
        self._prune(final, is_new=is_new)
        return final

    def load(self, founding: str = "") -> Checkpoint | None:
        """The newest checkpoint that is intact; None if there is none at all.

        Damaged ones are set aside and logged, and where the `founding` of the run is known (the id of its genesis),
        those that descend from another one. Raises `StorageError` if there are only such, also at the next call: what
        they held is lost, and no peer is to begin anew without a person's knowledge; and if the newest is of a newer
        minga, which the next checkpoints here would replace.
        """
        problems: dict[Path, str] = {}
        waiting = complete_checkpoints(self.directory)
        self._own.update(path for _, path in waiting)
        while waiting:
            step, path = waiting.pop()
            try:
                checkpoint = self._read(path)
            except (ValueError, FileNotFoundError) as error:
                if not path.exists():  # another process removed it as too old, so there are newer ones
                    waiting = complete_checkpoints(self.directory)
                    continue
                problems[path] = f"the checkpoint of step {step} is damaged ({error})"
                self._set_aside(path, _DAMAGED)
                continue
            except OSError as error:
                problems[path] = f"the checkpoint of step {step} cannot be read ({reason_of(error)})"
                continue
            if founding and checkpoint.snapshot.lineage.founding not in ("", founding):
                problems[path] = f"the checkpoint of step {step} is of another run, by the founding that it names"
                self._set_aside(path, _FOREIGN)
                continue
            for problem in problems.values():
                logger.warning("%s; going on from step %d, kept in %s", problem, step, path)
            return checkpoint
        set_aside = sorted(path.name for prefix in (_DAMAGED, _FOREIGN) for path in self.directory.glob(f"{prefix}*"))
        if problems or set_aside:
            told = "; ".join(problems.values()) or f"all were set aside, such as {set_aside[-1]}"
            raise StorageError(
                f"no checkpoint in {self.directory} can be used: {told}; move the folder away to get the run's state "
                "from other peers, or, if this peer is to begin the run, to start from the beginning"
            )
        return None

    def _read(self, path: Path) -> Checkpoint:
        with contextlib.suppress(ValueError, FileNotFoundError):
            return read_checkpoint(path)
        with unchanging(self.directory):  # another process may just have given it other files, or another lineage
            return read_checkpoint(path)

    def give_up_after(self, step: int) -> None:
        """Set aside what this peer has of later steps, if it has any: it is of a history that was given up for one that
        is at `step`. It would count as the newest, and what follows now would be taken for old. The last of it is kept,
        and told.
        """
        there = complete_checkpoints(self.directory)
        self._own.intersection_update(path for _, path in there)
        later = [path for each, path in there if each > step and path in self._own]
        if not later:
            return
        before, self._given_up = self._given_up, self._set_aside(later.pop(), _GIVEN_UP)
        for path in later if before is None else [*later, before]:
            self._remove(path)
        logger.warning(
            "this machine went on from step %d of the others, and gave up what it had at a later one; the last "
            "checkpoint of that is kept in %s, and nothing uses it",
            step,
            self._given_up or self.directory,
        )

    def _prune(self, just_saved: Path, *, is_new: bool = True) -> None:
        """Remove all but the last `keep` checkpoints, never the one that was just saved; and what this store wrote of
        the same step before, which this peer gave up for the state of others. What is not `is_new` another peer may
        have written, whose it stays.
        """
        steps = {path: step for step, path in complete_checkpoints(self.directory)}
        before, self._last_saved = self._last_saved, just_saved if is_new or just_saved == self._last_saved else None
        doomed = [*steps][: -self.keep]
        if before in steps and before != just_saved and steps[before] == steps.get(just_saved):
            doomed.append(before)
        for path in dict.fromkeys(doomed):
            if path != just_saved:
                self._remove(path)

    def _remove(self, path: Path) -> None:
        """Remove a complete checkpoint so that it is never seen half-removed."""
        doomed = self.directory / f"{_PARTIAL}{secrets.token_hex(8)}"
        try:
            path.rename(doomed)
        except FileNotFoundError:
            return  # another peer of this machine keeps checkpoints here, too, and was faster
        except OSError as error:
            logger.warning("the old checkpoint %s could not be removed: %s", path, error)
            return
        shutil.rmtree(doomed, ignore_errors=True)

    def _set_aside(self, path: Path, why: str) -> Path | None:
        """Give the checkpoint a name by which nobody takes it for one; returns its new path, None if that failed."""
        with contextlib.suppress(OSError):
            return path.rename(_aside(path, why))
        return None

    def _remove_leftovers(self) -> None:
        for path in self.directory.glob(f"{_PARTIAL}*"):
            folder = path.with_suffix("")
            lock_path = _lock_path(folder)
            try:
                lock = FileLock.try_acquire(lock_path) if lock_path.exists() else None
            except OSError:
                continue  # no locks on this file system: whether its writer lives is unknown
            if lock is None and lock_path.exists():
                continue  # its writer lives
            shutil.rmtree(folder, ignore_errors=True)
            _unlock_beside(folder, lock)


def _intact(path: Path) -> Checkpoint | None:
    """What lies there, without its state; None if damaged or missing. Raises `OSError` if it cannot be read now."""
    try:
        return read_checkpoint(path, is_meta=True)
    except (ValueError, FileNotFoundError):
        return None


def _aside(path: Path, why: str) -> Path:
    return path.with_name(f"{why}{path.name}-{secrets.token_hex(4)}")


def _lock_path(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.lock")


def _reserve(directory: Path) -> tuple[Path, FileLock | None]:
    """The name of an unfinished folder, locked from before it exists; without a lock where the file system has none."""
    while True:
        partial = directory / f"{_PARTIAL}{secrets.token_hex(8)}"
        path = _lock_path(partial)
        path.touch(exist_ok=False)
        try:
            lock = FileLock.try_acquire(path)
        except FileNotFoundError:
            continue
        except OSError:
            return partial, None
        if lock is not None and path.exists():
            return partial, lock
        # Another process took the lock file for a leftover in this moment, and removes it: on to another name.
        _unlock_beside(partial, lock)


def _unlock_beside(partial: Path, lock: FileLock | None) -> None:
    """Remove the lock file, and only then let go of it: a writer that gets the lock in between would have one that
    nobody sees. Where an open file cannot be removed (Windows), it is removed afterwards.
    """
    path = _lock_path(partial)
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
    if lock is not None:
        lock.release()
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
