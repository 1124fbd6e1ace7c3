"""The list of the runs of a machine, and the names by which commands find them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

import minga
from minga.cli.terminal import output as output_module
from minga.cli.terminal.options import folder_or_link, own_run
from minga.cli.terminal.output import Output
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.identity.keys.key_file import FileLock
from minga.identity.keys.keys import Identity
from minga.identity.links.signed_spec import SignedRunSpec
from minga.keeping.known_runs import FOLDER_DIGITS, RunFolder, known_run, runs_folder
from minga.keeping.rejoin import SPEC_FILE, HostLock
from minga.training.join import PeerOptions
from tests.worlds.cli_run import last_json, run


def terminal(*, json_output: bool) -> Output:
    """The output of a command whose user sits at a terminal."""
    output = Output(json_output=json_output)
    output.interactive = True
    return output


def kept(name: str) -> Path:
    """The folder of a run of this name in the user's data folder."""
    spec = RunSpec.from_mapping({"name": name, "model": {"recipe": "custom"}}).published({})
    signed = SignedRunSpec.sign(spec, Identity.from_seed(name.encode().ljust(32)[:32]))
    folder = runs_folder(None) / signed.run_id[:FOLDER_DIGITS]
    folder.mkdir(parents=True)
    (folder / SPEC_FILE).write_bytes(signed.encode())
    return folder


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Those of two runs in this user's data folder, whose name is long."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / ("long" * 30)))
    return [kept("one"), kept("two")]


def test_folders_and_figures_are_shown_whole_also_in_a_narrow_terminal(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folders[0] / "checkpoints" / "step-000123456-0123456789ab").mkdir(parents=True)
    monkeypatch.setattr(output_module, "PLAIN_WIDTH", 30)
    lines = run("runs").stdout.splitlines()
    assert [folders[0].name, "123456"] in [line.split()[:1] + line.split()[-1:] for line in lines]
    assert all(str(folder) in lines for folder in folders)


@pytest.mark.parametrize(
    "name", ["the third attempt of the whole community with new data", "猫" * 40], ids=["long", "wide"]
)
def test_one_long_name_costs_the_other_runs_no_column(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    kept("cats")
    kept(name)
    monkeypatch.setattr(output_module, "PLAIN_WIDTH", 60)
    lines = run("runs").stdout.splitlines()
    assert lines[0].split() == ["run", "name", "step", "age", "size"]
    assert any("cats" in line and line.endswith(" B") for line in lines)


def test_a_run_is_found_by_how_its_id_begins(folders: list[Path], tmp_path: Path) -> None:
    first = folders[0]
    assert own_run(first.name[:8]) == str(first)
    assert own_run(first.name, first.parent) == str(first)
    assert folder_or_link(first.name) == first
    assert own_run(str(first)) == str(first)
    assert own_run("owner/name") == "owner/name"
    with pytest.raises(ConfigurationError, match=r"no run in .* with an id that begins like this"):
        own_run(first.name, tmp_path)


def test_a_run_is_deleted_only_after_a_yes(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    name = folders[0].name
    refused = run("runs", "remove", name)
    assert refused.returncode == 2, "without a terminal"
    assert f"add --yes to delete {folders[0]} (one, no checkpoint yet, " in refused.stderr
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("minga.cli.terminal.context.Output", terminal)
    questions = list[str]()
    for answer, is_there in ((False, True), (True, False)):
        monkeypatch.setattr(typer, "confirm", lambda said, answer=answer, **_: questions.append(said) or answer)
        done = run("runs", "remove", name)
        assert (done.returncode, folders[0].exists()) == (0, is_there)
        assert ("Nothing was deleted" in done.stdout) is is_there
    assert len(questions) == 2
    assert str(folders[0]) in questions[0]
    assert run("runs", "remove", folders[1].name, "--yes").returncode == 0
    assert len(questions) == 2
    assert not folders[1].exists()


def test_what_peers_left_without_a_run_spec_is_listed_and_deleted(folders: list[Path]) -> None:
    base = folders[0].parent
    lone = base / "0123456789abcdef"
    left = [lone, base / "temporary-x1y2", base / "temporary-z3", base / "temporary-living"]
    for folder in (*left, base / "photos"):
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "checkpoints" / "state").write_bytes(bytes(5000))
    killed = base / "fedcba9876543210"  # before it had anything to keep
    killed.mkdir()
    (killed / "joined-4000000").touch()
    shown = run("runs").stdout
    assert str(lone) in shown
    assert killed.name not in shown
    assert "3 temporary folders (15 kB) of peers " in shown
    assert "temporary-" not in shown.replace("--temporary", "")
    assert "photos" not in shown
    told = last_json(run("runs", "--json").stdout)
    assert {each["directory"]: each["size_bytes"] for each in told["without_spec"]} == dict.fromkeys(
        map(str, left), 5000
    )
    assert len(told["runs"]) == 2
    refused = run("runs", "remove", lone.name[:12])
    assert f"add --yes to delete {lone} (without a run spec, changed " in refused.stderr
    assert run("runs", "remove", lone.name[:12], "--yes").returncode == 0
    assert not lone.exists()
    with HostLock.take(left[-1]):
        refused = run("runs", "remove", "--temporary")
        assert "add --yes to delete 2 temporary folders (10 kB)" in refused.stderr
        assert "Deleted: 2 temporary folders" in run("runs", "remove", "--temporary", "--yes").stdout
    assert sorted(base.glob("*/")) == sorted([*folders, base / "photos", killed, left[-1]])


def test_a_run_that_is_hosted_is_not_deleted_and_it_is_said_what_to_end(folders: list[Path]) -> None:
    with HostLock.take(folders[0]):
        refused = run("runs", "remove", folders[0].name, "--yes")
    assert refused.returncode == 2
    assert f"takes part in a run from {folders[0]}: end that process before you remove it" in refused.stderr
    assert "minga join" not in refused.stderr
    assert folders[0].exists()


def test_a_run_that_a_join_of_this_machine_is_in_is_not_deleted(folders: list[Path]) -> None:
    (joined := folders[0] / "joined-1").touch()
    lock = FileLock.try_acquire(joined)
    assert lock is not None
    with pytest.raises(ConfigurationError, match="end that process before you remove it"):
        known_run(folders[0]).remove()
    lock.release()
    known_run(folders[0]).remove()
    assert not folders[0].exists()


def test_a_run_that_a_program_of_this_machine_is_in_is_not_deleted(tmp_path: Path) -> None:
    options = PeerOptions("auxiliary", tmp_path / "host.json", directory=tmp_path / "host", host="127.0.0.1")
    own = replace(options, identity=tmp_path / "guest.json", directory=tmp_path / "guest")
    with minga.host(RunSpec(name="here"), options) as host:
        with minga.join(host.link, own) as guest:
            folder = guest.directory
            refused = run("runs", "remove", folder.name, "--directory", str(folder.parent), "--yes")
            assert "end that process before you remove it" in refused.stderr
        assert folder.is_dir()
        assert not RunFolder(folder, 0.0).is_used


@pytest.mark.parametrize(
    "command",
    [
        ("runs", "backup", "ID", "--out", "OUT"),
        ("export", "ID", "--out", "OUT"),
        ("host", "ID", "--role", "trainer"),
        ("runs", "receipts", "ID"),
        ("runs", "receipts", "ID", "--out", "OUT"),
        ("status", "ID"),
        ("evaluate", "ID"),
        ("runs", "verify", "ID"),
    ],
)
def test_commands_take_the_id_of_a_run(folders: list[Path], tmp_path: Path, command: tuple[str, ...]) -> None:
    words = {"ID": folders[1].name[:12], "OUT": str(tmp_path / "out")}
    by_id = run(*(words.get(word, word) for word in command))
    words["ID"] = str(folders[1])
    by_folder = run(*(words.get(word, word) for word in command))
    assert by_id.stderr == by_folder.stderr
    assert by_id.returncode != 0, "none of them has a checkpoint, a history or a key here"
    assert "an id that begins like this" not in by_id.stderr
