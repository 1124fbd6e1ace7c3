"""A run in one encrypted file: what is in it, and that nothing else opens, changes or cuts it unnoticed."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import minga
from minga.identity.keys import key_file
from minga.identity.keys.keys import Identity
from minga.identity.links.signed_spec import SignedRunSpec
from minga.keeping.rejoin import SPEC_FILE
from minga.network.interface import PeerId
from minga.training import backup as backup_module
from minga.training.backup import (
    FRAME_BYTES,
    MAGIC,
    SALT_BYTES,
    SealedReader,
    SealedWriter,
    backup_files,
    restore_backup,
    safe_name,
    write_backup,
)
from minga.training.lineage import Lineage
from minga.training.state.checkpoints import CheckpointStore
from minga.training.state.own_state import OwnStateFile
from tests.keeping.test_archive import snapshot_of

WORDS = "correct horse battery"


@pytest.fixture(autouse=True)
def _a_key_is_derived_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("LOG2_N", "MIN_LOG2_N"):
        monkeypatch.setattr(backup_module, bound, 10)


def sealed(content: bytes, passphrase: str = WORDS) -> bytes:
    file = io.BytesIO()
    writer = SealedWriter(file, passphrase)
    for start in range(0, len(content), 70_000):
        writer.write(content[start : start + 70_000])
    writer.close()
    return file.getvalue()


def opened(data: bytes, passphrase: str = WORDS) -> bytes:
    reader, parts = SealedReader(io.BytesIO(data), passphrase), []
    while part := reader.read(50_000):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("size", [0, 1, FRAME_BYTES - 1, FRAME_BYTES, FRAME_BYTES + 1, 2 * FRAME_BYTES])
def test_content_of_any_length_comes_back(size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    assert opened(sealed(content[:size])) == content[:size]


HEADER = len(MAGIC) + 1 + SALT_BYTES
FRAME = FRAME_BYTES + 16
WHOLE = FRAME_BYTES * 2 + 10


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[: HEADER + 2 * FRAME],  # the last frame is gone
        lambda data: data[: HEADER + FRAME],
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: data[:HEADER] + data[HEADER + FRAME :],  # the first frame is gone
        lambda data: data[:HEADER] + data[HEADER + FRAME : HEADER + 2 * FRAME] + data[HEADER : HEADER + FRAME],
        lambda data: data[: HEADER + 5] + bytes([data[HEADER + 5] ^ 1]) + data[HEADER + 6 :],
        lambda data: data[: HEADER - 1] + bytes([data[HEADER - 1] ^ 1]) + data[HEADER:],  # the salt
        lambda data: MAGIC + bytes([63]) + data[len(MAGIC) + 1 :],  # a derivation that would take all memory
        lambda data: data[:HEADER],
        lambda data: data[: HEADER - 1],
        lambda data: b"PK" + data,
    ],
)
def test_what_was_changed_or_cut_is_refused(change: Any) -> None:
    with pytest.raises(minga.ConfigurationError):
        opened(change(sealed(bytes(WHOLE))))


def test_another_passphrase_opens_nothing_and_a_short_one_is_refused() -> None:
    with pytest.raises(minga.ConfigurationError, match="the passphrase is wrong"):
        opened(sealed(b"content"), WORDS + "x")
    with pytest.raises(minga.ConfigurationError, match="at least 8"):
        sealed(b"content", "short")


@pytest.mark.parametrize("name", ["", "/a", "../a", "a/../b", "a//b", "./a", "c:/a", "a\\b", "/".join("abcdefghi")])
def test_names_that_lead_out_of_the_folder_are_refused(name: str) -> None:
    with pytest.raises(minga.ConfigurationError):
        safe_name(name)


def a_run(folder: Path, identity: Identity) -> None:
    spec = minga.RunSpec(name="kept", model={"recipe": "custom"}).begin(identity.peer_id)
    (folder / "files" / "deep").mkdir(parents=True)
    (folder / SPEC_FILE).write_bytes(SignedRunSpec.sign(spec, identity).encode())
    (folder / "files" / "deep" / "tokenizer.json").write_bytes(b"tokenizer")
    (folder / "history.jsonl").write_bytes(b"{}\n")
    store = CheckpointStore(folder / "checkpoints")
    for step in (1, 2):
        store.save(snapshot_of(step), files={"run-spec.toml": b""})
    own = OwnStateFile(folder, PeerId(identity.peer_id), spec, "vector").path.name
    for name in ("downloads/a", "archive/step-1/b", "hosted.link", ".hidden", "x.part", own):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"left out")


def test_a_run_comes_back_with_its_key_and_newest_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    organiser = Identity.generate()
    a_run(tmp_path / "run", organiser)
    made = write_backup(tmp_path / "run", tmp_path / "kept.backup", organiser, WORDS)
    assert made.step == 2
    assert organiser.seed not in (tmp_path / "kept.backup").read_bytes()
    monkeypatch.setattr(key_file, "default_path", lambda: tmp_path / "home" / "identity.json")
    restored = restore_backup(tmp_path / "kept.backup", tmp_path / "runs", None, WORDS)
    folder = restored.run.directory
    assert (restored.run.step, restored.run.signed.organiser) == (2, organiser.peer_id)
    assert Identity.load_or_create(restored.key).seed == organiser.seed
    assert restored.key == tmp_path / "home" / "identity.json"
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert [name for name in files if not name.startswith("checkpoints/")] == [
        "files/deep/tokenizer.json",
        "history.jsonl",
        SPEC_FILE,
    ]
    checkpoint = CheckpointStore(folder / "checkpoints").load()
    assert checkpoint is not None
    assert checkpoint.snapshot.step == 2
    with pytest.raises(minga.ConfigurationError, match="there already"):
        restore_backup(tmp_path / "kept.backup", tmp_path / "runs", None, WORDS)
    with pytest.raises(minga.ConfigurationError, match="choose another name"):
        write_backup(tmp_path / "run", tmp_path / "kept.backup", organiser, WORDS)


def test_a_restored_run_is_as_old_as_it_was(tmp_path: Path) -> None:
    """Its host decides by this age whether the backup or what volunteers have is worth going on with."""
    organiser = Identity.generate()
    a_run(tmp_path / "run", organiser)
    weeks_ago = time.time() - 3 * 7 * 24 * 3600.0
    for path in (tmp_path / "run" / "checkpoints").rglob("*"):
        os.utime(path, (weeks_ago, weeks_ago))
    write_backup(tmp_path / "run", tmp_path / "kept.backup", organiser, WORDS)
    restored = restore_backup(tmp_path / "kept.backup", tmp_path / "runs", tmp_path / "key.json", WORDS)
    assert restored.run.age_s == pytest.approx(3 * 7 * 24 * 3600.0, abs=60.0)
    assert restored.run.progress == "step 2, 21 d old"


def test_files_on_another_disk_are_kept_and_what_cannot_come_back_is_told(tmp_path: Path) -> None:
    organiser, run, out = Identity.generate(), tmp_path / "run", tmp_path / "kept.backup"
    a_run(run, organiser)
    (run / "files").rename(tmp_path / "disk")
    (run / "files").symlink_to(tmp_path / "disk")
    write_backup(run, out, organiser, WORDS)
    restored = restore_backup(out, tmp_path / "runs", tmp_path / "key.json", WORDS)
    assert (restored.run.directory / "files" / "deep" / "tokenizer.json").read_bytes() == b"tokenizer"
    (run / "notes 10:30.txt").touch()
    with pytest.raises(minga.ConfigurationError, match=r"10:30\.txt' is no name"):
        write_backup(run, tmp_path / "other.backup", organiser, WORDS)
    (run / "notes 10:30.txt").unlink()
    (tmp_path / "disk").rename(tmp_path / "elsewhere")
    with pytest.raises(minga.ConfigurationError, match="leads to no file"):
        write_backup(run, tmp_path / "other.backup", organiser, WORDS)


def test_no_backup_goes_without_the_checkpoints_of_a_disk_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").symlink_to(tmp_path / "away")
    with pytest.raises(minga.ConfigurationError, match="checkpoints leads to no file"):
        backup_files(tmp_path)


def test_links_that_lead_back_are_no_further_files(tmp_path: Path) -> None:
    run, disk = tmp_path / "run", tmp_path / "disk" / "deep"
    for folder in (run, disk):
        folder.mkdir(parents=True)
        (folder / "kept").touch()
    for link, folder in ((run / "files", disk), (run / "self", run), (disk / "run", run), (disk / "up", disk.parent)):
        link.symlink_to(folder)
    assert backup_files(run) == (None, [run / "files" / "kept", run / "kept"])


def test_the_key_of_another_run_is_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    organiser, other = Identity.generate(), tmp_path / "other.json"
    a_run(tmp_path / "run", organiser)
    write_backup(tmp_path / "run", tmp_path / "kept.backup", organiser, WORDS)
    own = Identity.load_or_create(other)
    monkeypatch.setattr(key_file, "default_path", lambda: other)
    restored = restore_backup(tmp_path / "kept.backup", tmp_path / "runs", None, WORDS)
    assert restored.key.parent == restored.run.directory
    assert Identity.load_or_create(restored.key).seed == organiser.seed
    write_backup(restored.run.directory, tmp_path / "again.backup", organiser, WORDS)
    again = restore_backup(tmp_path / "again.backup", tmp_path / "third", None, WORDS)
    assert Identity.load_or_create(again.key).seed == organiser.seed, "a file that others may read is none"
    with pytest.raises(minga.ConfigurationError, match=r"^\S+ holds another key"):
        restore_backup(tmp_path / "kept.backup", tmp_path / "elsewhere", other, WORDS)
    with pytest.raises(minga.IdentityError, match="key file"):
        restore_backup(tmp_path / "kept.backup", tmp_path / "elsewhere", other / "key.json", WORDS)
    assert list((tmp_path / "elsewhere").iterdir()) == [], "without its key the run is not restored"
    assert Identity.load_or_create(other).seed == own.seed
    with pytest.raises(minga.ConfigurationError, match="organiser of this run"):
        write_backup(tmp_path / "run", tmp_path / "second.backup", own, WORDS)


def test_a_backup_whose_files_lead_elsewhere_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "evil.backup"
    with out.open("wb") as file:
        writer = SealedWriter(file, WORDS)
        with tarfile.open(fileobj=writer, mode="w|") as tar:  # type: ignore[call-overload]
            link = tarfile.TarInfo("link")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(link)
        writer.close()
    with pytest.raises(minga.ConfigurationError, match="no file"):
        restore_backup(out, tmp_path / "runs", None, WORDS)
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_full_disk_leaves_no_unfinished_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    organiser = Identity.generate()
    a_run(tmp_path / "run", organiser)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(backup_module, "_add", full)
    with pytest.raises(minga.StorageError, match="No space"):
        write_backup(tmp_path / "run", tmp_path / "kept.backup", organiser, WORDS)
    with pytest.raises(minga.StorageError, match="cannot be written"):
        write_backup(tmp_path / "run", tmp_path / "run" / SPEC_FILE / "kept.backup", organiser, WORDS)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_backup_begins_again_when_the_checkpoint_that_it_reads_is_pruned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    organiser, real, calls = Identity.generate(), backup_module.backup_files, list[Path]()
    a_run(tmp_path / "run", organiser)

    def pruned_at_first(folder: Path) -> Any:
        calls.append(folder)
        step, files = real(folder)
        return step, [*files, folder / "gone"] if len(calls) < 3 else files

    monkeypatch.setattr(backup_module, "backup_files", pruned_at_first)
    made = write_backup(tmp_path / "run", tmp_path / "kept.backup", organiser, WORDS)
    assert (len(calls), made.size_bytes > 0) == (3, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.backup", "run"]


@pytest.mark.parametrize("nth", range(4))
def test_a_backup_has_a_checkpoint_as_it_was_before_it_got_another_lineage_or_after(
    nth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    organiser, real, left, others = Identity.generate(), Path.open, iter(range(nth)), list[threading.Thread]()
    a_run(tmp_path / "run", organiser)
    assert (before := CheckpointStore(tmp_path / "run" / "checkpoints").load()) is not None
    state, files = snapshot_of(2).of(Lineage.founded("ab" * 16)), {"run-spec.toml": b"amended", "new.json": b"new"}

    def overtaken(path: Path, *words: Any, **more: Any) -> Any:
        is_read = bool(loaded) and path.parent.name.startswith("step-") and path.suffix != ".part"
        if is_read and next(left, None) is None and not others:
            store = CheckpointStore(path.parent.parent)
            others.append(threading.Thread(target=store.save, args=(state,), kwargs={"files": files}))
            others[0].start()
            others[0].join(0.5)
        return real(path, *words, **more)

    files_of, loaded = backup_module.backup_files, list[Path]()

    def begun(folder: Path) -> Any:
        found = files_of(folder)
        loaded.append(folder)
        return found

    monkeypatch.setattr(backup_module, "backup_files", begun)
    monkeypatch.setattr(Path, "open", overtaken)
    write_backup(tmp_path / "run", tmp_path / "kept.backup", organiser, WORDS)
    restored = restore_backup(tmp_path / "kept.backup", tmp_path / "runs", tmp_path / "key.json", WORDS)
    checkpoint = CheckpointStore(restored.run.directory / "checkpoints").load()
    assert checkpoint is not None
    others[0].join()
    assert (checkpoint.snapshot.step, checkpoint.files in (before.files, files)) == (2, True)


def test_a_checkpoint_that_is_pruned_meanwhile_is_said_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_folder: Path) -> Any:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(backup_module, "backup_files", gone)
    organiser = Identity.generate()
    a_run(tmp_path / "run", organiser)
    with pytest.raises(minga.StorageError, match="cannot be written"):
        write_backup(tmp_path / "run", tmp_path / "kept.backup", organiser, WORDS)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_fast_run_may_prune_the_checkpoint_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    organiser, real = Identity.generate(), backup_module._add
    a_run(tmp_path / "run", organiser)

    def prune_first(*given: Any) -> None:
        shutil.rmtree(tmp_path / "run" / "checkpoints", ignore_errors=True)
        real(*given)

    monkeypatch.setattr(backup_module, "_add", prune_first)
    made = write_backup(tmp_path / "run", tmp_path / "kept.backup", organiser, WORDS)
    restored = restore_backup(tmp_path / "kept.backup", tmp_path / "runs", tmp_path / "key.json", WORDS)
    assert made.step is not None
    assert restored.run.step == made.step
