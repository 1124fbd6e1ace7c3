"""The organiser's machine burns: another one goes on with the run, out of the backup."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minga.keeping.archive import ARCHIVE, RECORD_FILE, read_record
from tests.worlds.cli_run import LOCAL, SPEC, Running, last_json, run

WORK = (*LOCAL, "--device", "cpu", "--threads", "1")


@pytest.mark.timeout(180)
def test_another_machine_goes_on_with_the_run_of_one_that_burnt(tmp_path: Path) -> None:
    path, words, copies = tmp_path / "run.toml", tmp_path / "words", tmp_path / "copies"
    path.write_text(SPEC + f"[checkpoints]\nevery_steps = 2\narchive_every = 4\nupload_to = '{copies}'\n")
    words.write_text("correct horse battery\n")
    old = ("--identity", str(tmp_path / "old.json"), "--directory", str(tmp_path / "old"))
    with Running("host", str(path), *WORK, *old) as host:
        link = host.wait_for("link")
        guest = ("--identity", str(tmp_path / "guest.json"), "--directory", str(tmp_path / "guest"))
        with Running("join", link["link"], *WORK, *guest) as volunteer:
            while host.wait_for("checkpoint.uploaded")["step"] == 0:
                pass  # the run's first state is kept, too
            backup = (
                "runs",
                "backup",
                link["directory"],
                "--out",
                str(tmp_path / "kept"),
                "--passphrase-file",
                str(words),
            )
            told = run(*backup, "--identity", str(tmp_path / "old.json"), "--json")
            made = last_json(told.stdout)
            assert made.get("step", 0) >= 4, told.stdout + told.stderr
            volunteer.wait_for("step.applied", step=made["step"] + 2)  # so that the backup is old
            host.process.kill()
            new = ("--identity", str(tmp_path / "new.json"), "--directory", str(tmp_path / "new"))
            restore = ("runs", "restore", str(tmp_path / "kept"), *new, "--passphrase-file", str(words), "--json")
            restored = last_json(run(*restore).stdout)
            assert (restored["run_id"], restored["step"]) == (link["run_id"], made["step"])
            with Running("host", restored["directory"], *WORK, "--identity", restored["identity"]) as again:
                assert again.wait_for("link")["run_id"] == link["run_id"]
                joined = again.told("sync.finished")["step"]  # before the link or after it
                assert joined >= made["step"], "the volunteer trained on, and the new host takes over its state"
                volunteer.wait_for("step.applied")
                assert again.wait_for("step.applied")["members"] >= 1
                again.wait_for("checkpoint.uploaded")
    kept = [read_record(path.parent) for path in sorted((Path(link["directory"]) / ARCHIVE).glob(f"*/{RECORD_FILE}"))]
    (copied,) = [each for each in copies.glob("step-*") if each.name.split("-")[1] == f"{kept[0].step:09d}"]
    assert read_record(copied) == kept[0]
    assert kept[0].run_id == link["run_id"]
    assert json.loads((Path(restored["directory"]) / "own-settings.json").read_text())["upload_to"] == str(copies)


def test_a_wrong_passphrase_and_a_foreign_key_are_said_so(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("correct horse battery")
    (tmp_path / "kept").write_bytes(b"something else")
    told = run("runs", "restore", str(tmp_path / "kept"), "--passphrase-file", str(tmp_path / "words"))
    assert (told.returncode != 0, "no backup of minga" in told.stderr) == (True, True)
    told = run(
        "runs", "backup", str(tmp_path), "--out", str(tmp_path / "out"), "--passphrase-file", str(tmp_path / "words")
    )
    assert told.returncode != 0
    assert "run-spec.signed" in told.stderr or "no run" in told.stderr
