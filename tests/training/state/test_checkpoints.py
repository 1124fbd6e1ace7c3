"""Checkpoints: round trips, what a killed writer, a full disk or bit rot leave behind, several writers."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from minga.averaging.codecs.tensor_bytes import as_bytes
from minga.core.errors import ConfigurationError, StorageError
from minga.identity.keys.key_file import FileLock
from minga.keeping.complete_checkpoints import LOCK_NAME, complete_checkpoints
from minga.training.lineage import Lineage
from minga.training.state import checkpoints
from minga.training.state.checkpoints import NAMES, Checkpoint, CheckpointStore, write_tensors
from minga.training.state.manifest import build_manifest
from minga.training.state.snapshot import DTYPES, StateSnapshot, TensorEntry, layout_bytes
from tests.worlds import forked


def make_snapshot(step: int, seed: int = 0) -> StateSnapshot:
    entries = (
        TensorEntry("model/weight", "float32", (300, 1000)),
        TensorEntry("model/bias", "bfloat16", (7,)),
        TensorEntry("optimizer/weight/step", "float32", ()),
        TensorEntry("optimizer/weight/seen", "bool", (3,)),
    )
    buffer = torch.zeros(layout_bytes(entries), dtype=torch.uint8)
    snapshot = StateSnapshot(step, entries, {"groups": [{"lr": 0.1, "betas": [0.9, 0.999]}], "x": None}, buffer)
    generator = torch.Generator().manual_seed(seed + step)
    for _, tensor in snapshot.named_tensors():
        tensor.copy_(torch.randint(0, 2, tensor.shape, generator=generator))
    return snapshot


def digest(snapshot: StateSnapshot) -> str:
    return build_manifest(snapshot).digest


def newest(store: CheckpointStore) -> Checkpoint:
    """The newest checkpoint, which has to be there."""
    found = store.load()
    assert found is not None
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != LOCK_NAME)


def test_a_checkpoint_that_another_peer_of_the_machine_removed_is_no_trouble(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    gone = tmp_path / f"step-000000001-{'a' * 12}"
    monkeypatch.setattr(checkpoints, "complete_checkpoints", lambda _: [(1, gone), *complete_checkpoints(tmp_path)])
    store.save(make_snapshot(2))
    assert not caplog.records


def test_a_state_that_was_given_up_for_another_of_its_step_goes(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=3)
    earlier, own = store.save(make_snapshot(1)), store.save(make_snapshot(2))
    others = store.save(make_snapshot(2, seed=7))
    assert (earlier.exists(), own.exists(), others.exists()) == (True, False, True)
    assert newest(store).path == others


@pytest.mark.parametrize("mine", [1, 7])
def test_a_state_that_was_given_up_goes_also_where_another_peer_of_the_folder_wrote_the_one_of_all(
    tmp_path: Path, mine: int
) -> None:
    store, others = CheckpointStore(tmp_path, keep=3), CheckpointStore(tmp_path, keep=3)
    own, theirs = store.save(make_snapshot(2, seed=mine)), others.save(make_snapshot(2, seed=8 - mine))
    assert store.save(make_snapshot(2, seed=8 - mine)) == theirs
    assert (own.exists(), theirs.exists()) == (False, True)
    assert newest(store).path == theirs
    store.save(make_snapshot(2, seed=9))
    assert theirs.exists(), "the other peer may have it still"


def test_a_state_that_another_peer_wrote_at_the_same_moment_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minga.keeping.complete_checkpoints.MOST_WAIT_S", 0.0)  # as where there are no locks
    store, others = CheckpointStore(tmp_path), CheckpointStore(tmp_path)
    write = checkpoints.write_checkpoint

    def write_while_another_is_faster(*given: Any) -> None:
        write(*given)
        monkeypatch.setattr(checkpoints, "write_checkpoint", write)
        others.save(make_snapshot(2))

    monkeypatch.setattr(checkpoints, "write_checkpoint", write_while_another_is_faster)
    theirs = store.save(make_snapshot(2))
    store.save(make_snapshot(2, seed=7))
    assert theirs.exists()


def test_round_trip_with_further_files(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "deep" / "folder")
    assert store.load() is None
    path = store.save(make_snapshot(12), files={"run.toml": b"spec"})
    assert names(path) == ["manifest.json", "model.safetensors", "optimizer.safetensors", "run.toml"]
    loaded = newest(CheckpointStore(store.directory))
    assert loaded.path == path
    assert loaded.files == {"run.toml": b"spec"}
    assert build_manifest(loaded.snapshot) == build_manifest(make_snapshot(12))
    assert names(store.directory) == [path.name]


def pieces(tensor: torch.Tensor) -> Iterator[memoryview]:
    whole = as_bytes(tensor.reshape(-1).view(torch.uint8))
    for start in range(0, len(whole), 5):
        yield whole[start : start + 5]


def test_the_library_reads_what_was_written_in_pieces(tmp_path: Path) -> None:
    assert NAMES.keys() == DTYPES.keys()
    generator = torch.Generator().manual_seed(1)
    raw = torch.randint(0, 2, (3, 16), dtype=torch.uint8, generator=generator)
    tensors = {f'a "{name}" é': raw.view(-1).view(dtype).view(3, -1).clone() for name, dtype in DTYPES.items()}
    tensors["a scalar"], tensors["nothing"] = torch.tensor(3.0), torch.zeros(0, 4)
    tensors["a lonely byte"] = torch.ones(1, dtype=torch.uint8)
    names = {dtype: name for name, dtype in DTYPES.items()}
    entries = [
        (TensorEntry(name, names[tensor.dtype], tuple(tensor.shape)), partial(pieces, tensor))
        for name, tensor in tensors.items()
    ]
    path = tmp_path / "some.safetensors"
    with path.open("wb") as file:
        write_tensors(file, entries, {"format": "pt"})
    with safe_open(path, framework="pt") as opened:
        assert opened.metadata() == {"format": "pt"}
    read = load_file(path)
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(read[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    places = {name: begin + each["data_offsets"][0] for name, each in json.loads(data[8:begin]).items() if name in read}
    assert begin % 8 == 0
    assert all(places[name] % tensor.itemsize == 0 for name, tensor in tensors.items()), "a map of the file can be used"
    with path.open("wb") as file:
        write_tensors(file, entries[::-1], {"format": "pt"})
    assert path.read_bytes() == data, "whatever order tensors come in"


def test_a_file_without_tensors_can_be_read(tmp_path: Path) -> None:
    with (tmp_path / "none.safetensors").open("wb") as file:
        write_tensors(file, [])
    assert load_file(tmp_path / "none.safetensors") == {}


def test_a_basis_and_the_tensors_of_a_strategy_have_files_of_their_own(tmp_path: Path) -> None:
    names_of = ("model/weight", "sketch/basis", "strategy/momentum")
    entries = tuple(TensorEntry(name, "float32", (4,)) for name in names_of)
    snapshot = StateSnapshot(3, entries, {}, torch.arange(48, dtype=torch.uint8))
    path = CheckpointStore(tmp_path).save(snapshot)
    assert names(path)[3:] == ["sketch.safetensors", "strategy.safetensors"]
    loaded = newest(CheckpointStore(tmp_path))
    assert digest(loaded.snapshot) == digest(snapshot)


def test_other_tools_can_read_it(tmp_path: Path) -> None:
    path = CheckpointStore(tmp_path).save(make_snapshot(1))
    tensors = load_file(path / "model.safetensors")
    assert {name: tensor.dtype for name, tensor in tensors.items()} == {
        "weight": torch.float32,
        "bias": torch.bfloat16,
    }
    written = json.loads((path / "manifest.json").read_bytes())
    assert (written["step"], written["digest"]) == (1, digest(make_snapshot(1)))


def test_every_dtype_survives(tmp_path: Path) -> None:
    entries = tuple(TensorEntry(f"model/{name}", name, (2, 3)) for name in DTYPES)
    buffer = torch.zeros(layout_bytes(entries), dtype=torch.uint8)
    snapshot = StateSnapshot(0, entries, {}, buffer)
    for _, tensor in snapshot.named_tensors():
        tensor.view(torch.uint8).fill_(1)
    store = CheckpointStore(tmp_path)
    store.save(snapshot)
    loaded = newest(store)
    assert digest(loaded.snapshot) == digest(snapshot)


def test_only_the_last_ones_are_kept_and_the_one_just_saved(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for step in (10, 20, 30):
        store.save(make_snapshot(step))
    assert store.steps() == [20, 30]
    store.save(make_snapshot(5))
    assert store.steps() == [5, 20, 30]
    store.save(make_snapshot(40))
    assert store.steps() == [30, 40]


def test_saving_the_same_state_again_changes_nothing_but_repairs_damage(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    path = store.save(make_snapshot(1))
    before = (path / "manifest.json").stat().st_mtime_ns
    assert store.save(make_snapshot(1)) == path
    assert (path / "manifest.json").stat().st_mtime_ns == before
    (path / "model.safetensors").unlink()
    assert store.save(make_snapshot(1)) == path
    assert newest(store).path == path


class Killed(BaseException):
    """Nothing that this process was to do afterwards is done."""


@pytest.mark.parametrize("writes", range(4))
@pytest.mark.parametrize("ending", [OSError(errno.ENOSPC, "No space left on device"), Killed()])
def test_a_state_that_gets_another_lineage_is_there_wherever_its_writer_dies(
    ending: BaseException, writes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all files of before or all of those that it was given."""
    store, state = CheckpointStore(tmp_path), make_snapshot(1).of(Lineage.founded("ab" * 16))
    old = {"run.toml": b"one", "genesis.bin": b"founded"}
    path, regrouped, new = store.save(state, files=old), state.of(state.lineage.in_epoch(1)), old | {"run.toml": b"2"}
    left, move, is_killed, is_there = iter(range(writes)), Path.replace, isinstance(ending, Killed), writes >= 2
    whole = sorted([*old, "manifest.json", "model.safetensors", "optimizer.safetensors"])

    def ended(self: Path, target: Path) -> Path:
        if next(left, None) is None:
            raise ending
        return move(self, target)

    raised = pytest.raises(Killed if is_killed else StorageError, match=None if is_killed else "untouched")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", ended)
        patch.setattr(Path, "rename", ended)
        if is_killed:
            patch.setattr(Path, "unlink", lambda *_, **__: None)
        with contextlib.nullcontext() if writes == 3 or (is_there and not is_killed) else raised:
            store.save(regrouped, files=new)
    assert names(tmp_path) == [path.name]
    assert is_killed or writes == 2 or names(path) == whole
    loaded = newest(CheckpointStore(tmp_path))
    assert loaded.snapshot.lineage == (regrouped if is_there else state).lineage
    assert loaded.files == (new if is_there else old)
    third = regrouped.of(state.lineage.in_epoch(2))
    assert store.save(third, files=new) == path
    assert names(path) == whole
    loaded = newest(CheckpointStore(tmp_path))
    assert (loaded.snapshot.lineage, loaded.files) == (third.lineage, new)


def test_what_a_writer_left_takes_its_place_when_the_same_state_is_saved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads by name had the old file for good; and where the disk refused one, all others stayed old as well."""
    store, state, move, refused = CheckpointStore(tmp_path), make_snapshot(1), Path.replace, list[Path]()
    path = store.save(state, files={"a": b"old", "b": b"old"})

    def in_use(self: Path, target: Path) -> Path:
        if target.name in ("a", "b") and not refused:
            refused.append(target)
            raise PermissionError(errno.EACCES, "in use")
        return move(self, target)

    monkeypatch.setattr(Path, "replace", in_use)
    new = {"a": b"new", "b": b"new"}
    store.save(state, files=new)
    (path / "manifest.json.1-2.part").touch()  # of one that was killed
    assert sorted((path / name).read_bytes() for name in new) == [b"new", b"old"]
    again = CheckpointStore(tmp_path)
    again.load()
    assert again.save(state, files=new) == path
    assert {name: (path / name).read_bytes() for name in new} == new
    assert names(path) == ["a", "b", "manifest.json", "model.safetensors", "optimizer.safetensors"]


def test_the_files_of_a_state_that_is_saved_again_are_those_of_the_peer_that_wrote_it(tmp_path: Path) -> None:
    """Statistics that were estimated anew after the last step were in no checkpoint."""
    store, others, state = CheckpointStore(tmp_path), CheckpointStore(tmp_path), make_snapshot(1)
    found = []
    for each, content in ((store, b"one"), (store, b"anew"), (others, b"another's")):
        each.save(state, files={"buffers": content})
        loaded = CheckpointStore(tmp_path).load()
        found.append(loaded and loaded.files["buffers"])
    assert found == [b"one", b"anew", b"anew"]


@pytest.mark.parametrize(
    ("place", "call", "writes"),
    [*((Path, "write_bytes", writes) for writes in range(2)), *((os, "fsync", writes) for writes in range(3))],
)
def test_a_full_disk_takes_no_file_from_a_state_that_is_saved_again(
    place: object, call: str, writes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Quotas and some network file systems say only with `fsync` that they are full."""
    store, state, old = CheckpointStore(tmp_path), make_snapshot(1), {"run.toml": b"one", "buffers": b"old"}
    store.save(state, files=old)
    left, write = iter(range(writes)), getattr(place, call)

    def full(*given: Any) -> Any:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*given)

    with monkeypatch.context() as patch:
        patch.setattr(place, call, full)
        with pytest.raises(StorageError, match="untouched"):
            store.save(state, files=old | {"buffers": b"anew"})
    assert newest(CheckpointStore(tmp_path)).files == old


@pytest.mark.parametrize("writes", range(3))
def test_two_peers_and_a_reader_may_meet_while_a_state_gets_another_lineage(
    writes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, state = CheckpointStore(tmp_path), make_snapshot(1).of(Lineage.founded("ab" * 16))
    store.save(state, files={"run.toml": b"one"})
    left, move, regrouped = iter(range(writes)), Path.replace, state.of(state.lineage.in_epoch(1))
    theirs, loaded, others = state.of(state.lineage.in_epoch(2)), list[Checkpoint | None](), list[threading.Thread]()

    def met(self: Path, target: Path) -> Path:
        if next(left, None) is None:
            monkeypatch.setattr(Path, "replace", move)
            second, third = CheckpointStore(tmp_path), CheckpointStore(tmp_path)
            others.append(threading.Thread(target=second.save, args=(theirs,), kwargs={"files": {"run.toml": b"2"}}))
            others.append(threading.Thread(target=lambda: loaded.append(third.load())))
            for each in others:
                each.start()
                each.join(0.1)  # it waits, unless nothing that it reads has changed yet
        return move(self, target)

    monkeypatch.setattr(Path, "replace", met)
    path = store.save(regrouped, files={"run.toml": b"mine"})
    for each in others:
        each.join()
    found = [*loaded, CheckpointStore(tmp_path).load()]
    assert [each is not None for each in found] == [True, True]
    assert [each.files.keys() for each in found if each is not None] == [{"run.toml"}] * 2
    assert [each.files for each in found if each is not None][1] == {"run.toml": b"2"}
    assert names(tmp_path) == [path.name]


def test_who_reads_a_checkpoint_while_it_gets_another_lineage_reads_it_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was set aside as damaged, and was the only one."""
    store, state = CheckpointStore(tmp_path), make_snapshot(1).of(Lineage.founded("ab" * 16))
    store.save(state, files={"run.toml": b"one"})
    fill, regrouped = checkpoints._fill, state.of(state.lineage.in_epoch(1))

    def overtaken(folder: Path, snapshot: StateSnapshot) -> Iterator[memoryview]:
        yield from fill(folder, snapshot)
        monkeypatch.setattr(checkpoints, "_fill", fill)
        store.save(regrouped, files={"run.toml": b"another"})

    monkeypatch.setattr(checkpoints, "_fill", overtaken)
    loaded = newest(CheckpointStore(tmp_path))
    assert (loaded.snapshot.lineage, loaded.files) == (regrouped.lineage, {"run.toml": b"another"})


def test_what_else_lies_in_a_checkpoint_takes_no_second_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each load read the whole state twice, and waited for the lock in between."""
    store, read, reads = CheckpointStore(tmp_path), checkpoints.read_checkpoint, list[Path]()
    store.save(make_snapshot(1), files={"run.toml": b"one", "buffers": b"own"})
    path = store.save(make_snapshot(1), files={"run.toml": b"one"})
    (path / ".DS_Store").write_bytes(b"of a file manager")

    def noted(folder: Path) -> Checkpoint:
        reads.append(folder)
        return read(folder)

    monkeypatch.setattr(checkpoints, "read_checkpoint", noted)
    loaded = newest(store)
    assert loaded.files == {"run.toml": b"one"}
    assert reads == [path]


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _forget_lineage(path: Path) -> None:
    written = json.loads(path.read_bytes())
    del written["lineage"]
    path.write_text(json.dumps(written))


def _change_lineage(path: Path) -> None:
    written = json.loads(path.read_bytes())
    written["lineage"][1] += 1
    path.write_bytes(msgspec.json.format(msgspec.json.encode(written), indent=1))


def _forge_step(path: Path) -> None:
    written = json.loads(path.read_bytes())
    path.write_text(json.dumps({**written, "step": 99}))


DAMAGES: dict[str, Any] = {
    "flipped bit": lambda p: _flip(p / "model.safetensors"),
    "flipped bit in optimizer": lambda p: _flip(p / "optimizer.safetensors"),
    "missing tensors": lambda p: (p / "optimizer.safetensors").unlink(),
    "truncated tensors": lambda p: os.truncate(p / "model.safetensors", 100),
    "empty tensors": lambda p: os.truncate(p / "model.safetensors", 0),
    "swapped tensors": lambda p: (p / "optimizer.safetensors").replace(p / "model.safetensors"),
    "missing manifest": lambda p: (p / "manifest.json").unlink(),
    "empty manifest": lambda p: os.truncate(p / "manifest.json", 0),
    "truncated manifest": lambda p: os.truncate(p / "manifest.json", 300),
    "garbage manifest": lambda p: (p / "manifest.json").write_bytes(b"\xff\xfe" * 40),
    "deep manifest": lambda p: (p / "manifest.json").write_bytes(b'{"scalars":' + b"[" * 100_000),
    "forged step": lambda p: _forge_step(p / "manifest.json"),
    "no lineage": lambda p: _forget_lineage(p / "manifest.json"),
    "another lineage": lambda p: _change_lineage(p / "manifest.json"),
    "damaged file": lambda p: _flip(p / "run.toml"),
    "missing file": lambda p: (p / "run.toml").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_told_and_the_previous_one_used(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = CheckpointStore(tmp_path)
    good = store.save(make_snapshot(10), files={"run.toml": b"spec"})
    DAMAGES[damage](store.save(make_snapshot(20), files={"run.toml": b"spec"}))
    with caplog.at_level(logging.WARNING, "minga.training"):
        loaded = newest(store)
    assert (loaded.snapshot.step, loaded.path) == (10, good)
    assert "checkpoint of step 20 is damaged" in caplog.text
    assert "going on from step 10" in caplog.text
    assert store.steps() == [10]
    assert any(name.startswith("damaged-step-000000020") for name in names(tmp_path))
    store.save(make_snapshot(20))
    assert store.steps() == [10, 20]


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
@pytest.mark.parametrize("file", ["manifest.json", "model.safetensors"])
def test_a_checkpoint_that_cannot_be_read_at_this_moment_is_not_taken_for_damaged(file: str, tmp_path: Path) -> None:
    store, state = CheckpointStore(tmp_path / "store"), make_snapshot(1)
    path = store.save(state)
    (path / file).rename(tmp_path / file)
    (path / file).symlink_to(path / file)
    for save in (lambda: store.save(state.of(Lineage.founded("ab" * 16))), store.load):
        with pytest.raises(StorageError, match="symbolic links"):
            save()
    (tmp_path / file).rename(path / file)
    assert newest(store).path == path


def test_whether_a_state_is_there_already_is_found_out_without_memory_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    path, state = CheckpointStore(tmp_path).save(make_snapshot(1)), make_snapshot(1)
    monkeypatch.setattr("minga.training.state.snapshot.torch.zeros", refuse)
    assert CheckpointStore(tmp_path).save(state) == path


def test_a_damaged_one_that_cannot_be_set_aside_is_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rename = CheckpointStore(tmp_path).save(make_snapshot(1)), Path.rename

    def in_use(self: Path, target: Path) -> Path:
        if self == path:
            raise PermissionError(errno.EACCES, "it is used by another process")
        return rename(self, target)

    _flip(path / "model.safetensors")
    monkeypatch.setattr(Path, "rename", in_use)
    with pytest.raises(StorageError, match="used by another process"):
        CheckpointStore(tmp_path).save(make_snapshot(1))


def test_nothing_goes_on_beside_a_checkpoint_of_a_newer_minga_which_it_would_replace(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(make_snapshot(10))
    manifest = store.save(make_snapshot(20)) / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_bytes()) | {"format": 2, "novelty": 1}))
    for _ in range(2):
        with pytest.raises(StorageError, match=r"step-000000020-.* is of a newer minga \(format 2, .*: update minga"):
            CheckpointStore(tmp_path).load()
    assert store.steps() == [10, 20]


def test_names_of_further_files_stay_inside(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "store")
    for name in ("../evil", "a/b", "", ".", "..", "manifest.json", "Model.safetensors", "x" * 101, "a\0b"):
        with pytest.raises(ConfigurationError, match=r"file"):
            store.save(make_snapshot(1), files={name: b""})
    assert names(tmp_path) == ["store"]
    assert names(store.directory) == []
    path = store.save(make_snapshot(1))
    written = json.loads((path / "manifest.json").read_bytes())
    written["files"] = {"../../secret": {"blake3": "0" * 64}}
    (path / "manifest.json").write_text(json.dumps(written))
    with pytest.raises(StorageError, match="outside"):
        store.load()


def test_only_damaged_ones_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    _flip(store.save(make_snapshot(10)) / "model.safetensors")
    with pytest.raises(StorageError, match=r"do not match their hashes.*move the folder away"):
        store.load()
    with pytest.raises(StorageError, match=r"all were set aside, such as damaged-step-000000010.*move the folder away"):
        store.load()


def test_only_those_of_another_run_are_an_error_too_at_each_start(tmp_path: Path) -> None:
    store, snapshot = CheckpointStore(tmp_path), replace(make_snapshot(10), lineage=Lineage.founded("a" * 32))
    store.save(snapshot)
    with pytest.raises(StorageError, match=r"is of another run.*move the folder away"):
        store.load("b" * 32)
    with pytest.raises(StorageError, match=r"all were set aside, such as foreign-step-000000010"):
        store.load("b" * 32)


@pytest.mark.parametrize("keep", [0, -1])
def test_nothing_kept_makes_no_sense(keep: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="keep"):
        CheckpointStore(tmp_path, keep=keep)


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="file"):
        CheckpointStore(tmp_path / "file")


@pytest.mark.promise("disks-memory")
@pytest.mark.parametrize("where", ["write_tensors", "_encode", "flush_tree", "mkdir", "rename"])
def test_a_full_disk_leaves_nothing_half_written(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = CheckpointStore(tmp_path, keep=1)
    store.save(make_snapshot(1))
    before = names(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path if where in ("mkdir", "rename") else checkpoints, where, full)
        with pytest.raises(StorageError, match=r"No space left.*earlier checkpoints are untouched"):
            store.save(make_snapshot(2))
    assert names(tmp_path) == before
    assert newest(store).snapshot.step == 1


def _die_while_flushing(folder: str) -> None:
    def die(_: Path) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    checkpoints.flush_tree = die
    CheckpointStore(Path(folder)).save(make_snapshot(20))


@pytest.mark.promise("disks-memory")
@pytest.mark.skipif(sys.platform == "win32", reason="kills by a POSIX signal")
def test_a_writer_killed_midway_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    CheckpointStore(tmp_path).save(make_snapshot(10))
    code = f"import sys; from {__name__} import _die_while_flushing; _die_while_flushing(sys.argv[1])"
    assert forked.run("-c", code, str(tmp_path)).returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 3  # with an unfinished folder and its lock
    store = CheckpointStore(tmp_path)
    assert len(names(tmp_path)) == 1
    assert newest(store).snapshot.step == 10


def test_a_living_writer_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, others = CheckpointStore(tmp_path), []
    write = checkpoints.write_checkpoint

    def write_while_another_starts(*arguments: Any) -> None:
        others.append(CheckpointStore(tmp_path))
        write(*arguments)

    monkeypatch.setattr(checkpoints, "write_checkpoint", write_while_another_starts)
    path = store.save(make_snapshot(1))
    assert names(tmp_path) == [path.name]
    assert len(others) == 1


def test_leftovers_whose_lock_is_gone_or_free_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".partial-1").mkdir()
    (tmp_path / ".partial-2").mkdir()
    (tmp_path / ".partial-2.lock").touch()
    (tmp_path / ".partial-3.lock").touch()
    (tmp_path / ".partial-4").mkdir()
    (tmp_path / ".partial-4.lock").touch()
    (tmp_path / "mine").mkdir()
    lock = FileLock.try_acquire(tmp_path / ".partial-4.lock")
    assert lock is not None
    CheckpointStore(tmp_path)
    assert names(tmp_path) == [".partial-4", ".partial-4.lock", "mine"]
    lock.release()
    CheckpointStore(tmp_path)
    assert names(tmp_path) == ["mine"]


def test_those_that_are_replaced_while_they_are_read_are_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minga.keeping.complete_checkpoints.MOST_WAIT_S", 0.0)  # as where there are no locks
    CheckpointStore(tmp_path).save(make_snapshot(1))
    read, others = checkpoints.read_checkpoint, iter((2, 3))

    def read_slowly(path: Path) -> Any:
        for step in others:  # a trainer that goes on meanwhile keeps only its newest
            CheckpointStore(tmp_path, keep=1).save(make_snapshot(step))
            break
        return read(path)

    monkeypatch.setattr(checkpoints, "read_checkpoint", read_slowly)
    loaded = newest(CheckpointStore(tmp_path))
    assert loaded.snapshot.step == 3
    assert names(tmp_path) == [loaded.path.name]


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be removed there")
def test_a_lock_file_that_is_removed_is_not_free_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a writer that was about to lock it has a lock that nobody sees, and others remove what it writes."""
    leftover, release, seen = tmp_path / ".partial-0123456789abcdef.lock", FileLock.release, []

    def released(lock: FileLock) -> None:
        seen.append(leftover.exists())
        release(lock)

    leftover.touch()
    monkeypatch.setattr(FileLock, "release", released)
    CheckpointStore(tmp_path, keep=1)
    assert seen == [False]


def test_many_writers_in_one_folder(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def write(seed: int) -> None:
        try:
            for step in range(1, 4):
                CheckpointStore(tmp_path, keep=3).save(make_snapshot(step, seed % 2))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    store = CheckpointStore(tmp_path)
    assert all(name.startswith("step-") for name in names(tmp_path))
    loaded = newest(store)
    assert loaded.snapshot.step == 3


def test_a_lock_that_is_taken_for_a_leftover_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    acquire, tries = FileLock.try_acquire, list[Path]()

    def lose_the_first(path: Path) -> object:
        if path.name == LOCK_NAME:
            return acquire(path)
        tries.append(path)
        return None if len(tries) == 1 else acquire(path)

    monkeypatch.setattr(FileLock, "try_acquire", lose_the_first)
    CheckpointStore(tmp_path).save(make_snapshot(1))
    assert len({path.name for path in tries}) == len(tries) == 2
