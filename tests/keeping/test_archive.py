"""Checkpoints that are kept for good: signed records, and copies that are made whatever fails at first."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

import minga
from minga.core.events.bus import EventData
from minga.identity.keys.keys import Identity
from minga.keeping.archive import (
    RECORD_FILE,
    Archive,
    Archiver,
    ArchiveRecord,
    Target,
    UploadError,
    read_record,
    target_of,
    write_record,
)
from minga.keeping.known_runs import OWN_SETTINGS_FILE, OwnSettings
from minga.training.lineage import Lineage
from minga.training.state.checkpoints import CheckpointStore, read_checkpoint
from minga.training.state.snapshot import StateSnapshot, TensorEntry
from minga.training.state.state_dict import MODEL

HF = "hf://someone/kept"
KEY = Identity.from_seed(bytes(32))


def snapshot_of(step: int) -> StateSnapshot:
    return StateSnapshot(step, (TensorEntry(MODEL + "weight", "uint8", (16,)),), {}, torch.full((16,), step).byte())


def record(step: int, **fields: Any) -> ArchiveRecord:
    values = {"run_id": "ab" * 32, "name": "kept", "step": step, "digest": "cd" * 32, "loss": 2.5, "time": 1.7e9}
    return ArchiveRecord(**{**values, "peer": KEY.peer_id, **fields})


def test_a_record_is_read_as_written_and_a_forged_one_is_refused(tmp_path: Path) -> None:
    write_record(tmp_path, record(7), KEY)
    assert read_record(tmp_path) == record(7)
    path = tmp_path / RECORD_FILE
    whole = json.loads(path.read_text())
    for change in ({"loss": 0.1}, {"peer": Identity.generate().peer_id}):
        path.write_text(json.dumps({**whole, "record": {**whole["record"], **change}}))
        with pytest.raises(minga.ConfigurationError, match="signature"):
            read_record(tmp_path)
    for garbage in ("", "{}", json.dumps({**whole, "record": {**whole["record"], "step": -1}}), "[" * 9999):
        path.write_text(garbage)
        with pytest.raises(minga.ConfigurationError, match="cannot be read"):
            read_record(tmp_path)


class Unreliable(Target):
    """Fails until it is told not to."""

    def __init__(self) -> None:
        self.works, self.copied, self.tried = False, list[str](), threading.Event()

    def upload(self, folder: Path) -> None:
        self.tried.set()
        if not self.works:
            raise UploadError("the line is down")
        self.copied.append(folder.name.split("-")[1].lstrip("0"))


def wait_until(is_so: Callable[[], bool]) -> None:
    """Fails after half a minute."""
    until = time.monotonic() + 30.0
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


class Kept:
    """An archiver, and what it tells."""

    def __init__(self, folder: Path, target: Target | None) -> None:
        self.folder, self.store = folder, CheckpointStore(folder / "checkpoints", keep=1)
        self.told: list[EventData] = []
        self.archiver = Archiver(folder, Archive(10, target), KEY, self.told.append)

    def add(self, step: int) -> Path:
        path = self.store.save(snapshot_of(step))
        self.archiver.add(path, record(step))
        return path

    def kinds(self) -> list[str]:
        return [data.kind for data in self.told]


def test_archived_checkpoints_outlive_the_newest_ones(tmp_path: Path) -> None:
    kept = Kept(tmp_path, None)
    first = kept.add(10)
    kept.add(20)
    kept.add(20)  # again, as after a restart
    assert not first.exists(), "only the newest is kept among the checkpoints"
    assert [read_record(path).step for path in sorted((tmp_path / "archive").glob("step-*"))] == [10, 20]
    assert CheckpointStore(tmp_path / "archive", keep=9).steps() == [10, 20]
    assert kept.kinds() == ["checkpoint.archived"] * 2
    kept.archiver.close()


def test_nothing_is_left_of_a_copy_that_a_disk_without_links_refused_or_a_kill_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, copy, is_full = Kept(tmp_path, None), shutil.copy2, True

    def link(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "no links")

    def copied(source: Path, target: Path) -> None:
        if is_full and any(target.parent.iterdir()):
            raise OSError(errno.ENOSPC, "No space left on device")
        copy(source, target)

    monkeypatch.setattr("minga.keeping.archive.os.link", link)
    monkeypatch.setattr("minga.keeping.archive.shutil.copy2", copied)
    with pytest.raises(OSError, match="No space") as raised:
        kept.add(10)
    assert raised.value.errno == errno.ENOSPC
    assert list((tmp_path / "archive").iterdir()) == []
    is_full = False
    cut_off = tmp_path / "archive" / ".partial-step-000000010-abc"
    cut_off.mkdir()
    Kept(tmp_path, None).add(20)
    assert [path.name[:14] for path in (tmp_path / "archive").iterdir()] == ["step-000000020"]


@pytest.mark.parametrize("links", range(4))
def test_a_checkpoint_that_gets_another_lineage_while_it_is_archived_is_archived_whole(
    links: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, link, left, state = Kept(tmp_path, None), os.link, iter(range(links)), snapshot_of(10)
    after, files, others = Lineage.founded("ab" * 16), {"amendments.json": b"2"}, list[threading.Thread]()
    path = kept.store.save(state, files={"amendments.json": b"1"})
    (path / "manifest.json.7-7.part").write_bytes(b"of a writer that was killed")

    def overtaken(source: Path, target: Path) -> None:
        if next(left, None) is None:
            monkeypatch.setattr("minga.keeping.archive.os.link", link)
            others.append(threading.Thread(target=kept.store.save, args=(state.of(after),), kwargs={"files": files}))
            others[0].start()
            others[0].join(0.1)
        link(source, target)

    monkeypatch.setattr("minga.keeping.archive.os.link", overtaken)
    kept.archiver.add(path, record(10))
    archived = read_checkpoint(tmp_path / "archive" / path.name)
    others[0].join()
    assert archived.files == {"amendments.json": b"1"}
    assert read_checkpoint(path).files == files
    assert not list(archived.path.glob("*.part"))


def test_an_archived_checkpoint_is_on_the_disk_when_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, fsync, flushed, named = Kept(tmp_path, None), os.fsync, set[int](), list[bool]()
    path = kept.store.save(snapshot_of(10))

    def note(descriptor: int) -> None:
        flushed.add(os.fstat(descriptor).st_ino)
        named.append((tmp_path / "archive" / path.name).exists())
        fsync(descriptor)

    monkeypatch.setattr("minga.core.files.os.fsync", note)
    kept.archiver.add(path, record(10))
    archived = tmp_path / "archive" / path.name
    assert {each.stat().st_ino for each in archived.iterdir()} < flushed
    assert named == [False] * (len(named) - 1) + [True], "the folder that names it is flushed last"


def test_a_copy_that_failed_is_made_after_the_next_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = Unreliable()
    kept = Kept(tmp_path, target)
    kept.add(10)
    assert target.tried.wait(30)
    kept.add(20)
    kept.archiver.close()
    assert "checkpoint.not_uploaded" in kept.kinds()
    assert "checkpoint.uploaded" not in kept.kinds()
    assert caplog.text.count("the line is down") == 1
    target.works = True
    again = Kept(tmp_path, target)
    wait_until(lambda: not again.archiver.waiting())
    again.archiver.close()
    assert target.copied == ["10", "20"]
    assert again.archiver.waiting() == []
    assert again.kinds() == ["checkpoint.uploaded"] * 2
    Kept(tmp_path, target).archiver.close()
    assert target.copied == ["10", "20"], "each is copied once"


class Slow(Target):
    """Copies while the test lets it."""

    def __init__(self) -> None:
        self.begun, self.goes_on, self.copied = threading.Event(), threading.Event(), list[str]()

    def upload(self, folder: Path) -> None:
        self.begun.set()
        assert self.goes_on.wait(30)
        self.copied.append(folder.name.split("-")[1].lstrip("0"))


def test_the_end_waits_for_the_copy_that_is_under_way_and_for_no_other(tmp_path: Path) -> None:
    earlier = Kept(tmp_path, None)
    for step in (10, 20, 30):
        earlier.add(step)
    target = Slow()
    kept = Kept(tmp_path, target)
    assert target.begun.wait(30)
    closing = threading.Thread(target=kept.archiver.close)
    closing.start()
    wait_until(lambda: kept.archiver._closed)
    target.goes_on.set()
    closing.join()
    assert target.copied == ["10"]
    assert [path.name.split("-")[1].lstrip("0") for path in kept.archiver.waiting()] == ["20", "30"]


class FakeBucket(MemoryFileSystem):
    """As much of a bucket as its protocol says: keys, and no folders."""

    protocol = "s3"
    written: list[str] = []  # noqa: RUF012

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        self.written.append(rpath)
        super().put_file(lpath, rpath)


def test_copies_go_to_folders_and_buckets_with_the_record_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = CheckpointStore(tmp_path / "checkpoints").save(snapshot_of(3))
    write_record(path, record(3), KEY)
    target_of(str(tmp_path / "elsewhere")).upload(path)
    assert read_record(tmp_path / "elsewhere" / path.name) == record(3)
    assert CheckpointStore(tmp_path / "elsewhere").steps() == [3]
    monkeypatch.setitem(_registry, "s3", FakeBucket)
    target_of("s3://bucket/folder").upload(path)
    assert FakeBucket.written[-1].endswith(f"folder/{path.name}/{RECORD_FILE}")
    assert len(FakeBucket.written) == len(list(path.iterdir()))


def test_a_copy_to_the_hub_is_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []

    class FakeHub:
        def create_repo(self, name: str, **options: Any) -> None:
            calls.append((name, options))

        def upload_folder(self, **options: Any) -> None:
            if not options["path_in_repo"].startswith("step-"):
                raise RuntimeError("401 Unauthorized\nlog in" if options["path_in_repo"] != "silent" else "")
            calls.append((options["repo_id"], options))

    monkeypatch.setattr(huggingface_hub, "HfApi", FakeHub)
    path = CheckpointStore(tmp_path).save(snapshot_of(3))
    target = target_of("hf://owner/model")
    target.upload(path)
    assert [name for name, _ in calls] == ["owner/model"] * 2
    assert calls[0][1]["private"], "what is published is the organiser's choice"
    assert calls[1][1]["path_in_repo"] == path.name
    with pytest.raises(UploadError, match="401 Unauthorized"):
        target.upload(tmp_path)
    with pytest.raises(UploadError, match="RuntimeError"):  # one without words
        target.upload(tmp_path / "silent")


@pytest.mark.parametrize("url", ["hf://owner", "hf://a/b/c", "nonsense://x"])
def test_unknown_places_are_refused_before_training_begins(url: str) -> None:
    with pytest.raises(minga.ConfigurationError, match="upload_to"):
        target_of(url)


def test_a_bucket_that_refuses_is_an_error_that_passes(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    path = CheckpointStore(tmp_path / "checkpoints").save(snapshot_of(3))
    with pytest.raises(UploadError):
        target_of(str(tmp_path / "file")).upload(path)


def test_settings_of_the_organisers_machine_are_kept_and_not_published(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = {
        "name": "kept",
        "network": {"announce": ("203.0.113.7",)},
        "checkpoints": {"archive_every": 10, "upload_to": "/elsewhere"},
    }
    spec = minga.RunSpec.from_mapping(values)
    own = OwnSettings.of(spec)
    assert b"elsewhere" not in spec.published().canonical_bytes()
    assert spec.published().canonical_bytes() == minga.RunSpec(name="kept").canonical_bytes()
    own.write(tmp_path)
    assert OwnSettings.read(tmp_path) == own == OwnSettings(("203.0.113.7",), 10, "/elsewhere")
    for to, kept in (("copies", str(Path.cwd() / "copies")), ("~/copies", str(Path.home() / "copies")), (HF, HF)):
        checkpoints = {"archive_every": 10, "upload_to": to}
        assert OwnSettings.of(minga.RunSpec(name="kept", checkpoints=checkpoints)).upload_to == kept
    assert own.updated(OwnSettings(archive_every=20)) == OwnSettings(("203.0.113.7",), 20, "/elsewhere")
    assert OwnSettings.read(tmp_path / "absent") == OwnSettings()
    (tmp_path / OWN_SETTINGS_FILE).write_text('{"archive_every": -1}')
    assert OwnSettings.read(tmp_path) == OwnSettings()
    assert "left out" in caplog.text
    with pytest.raises(minga.ConfigurationError, match="archive_every"):
        minga.RunSpec(name="x", checkpoints={"upload_to": "/elsewhere"})
    with pytest.raises(minga.ConfigurationError, match="archive_every"):
        OwnSettings().updated(OwnSettings(upload_to="/elsewhere"))
