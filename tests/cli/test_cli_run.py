"""The command line with a real run over the loopback interface."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, cast

import msgspec
import pytest
import torch
from safetensors.torch import save_file

from minga import cli
from minga.cli.taking_part.session import farewell_of_host, farewell_of_volunteer
from minga.cli.terminal import exit_codes
from minga.identity.links.links import EntryPoint, Link
from minga.keeping.known_runs import run_folders
from minga.keeping.rejoin import KnownAddresses
from minga.network.iroh import network
from minga.training.join import PeerOptions
from minga.training.peer import Peer
from minga.training.state.checkpoints import CheckpointStore
from tests.worlds import forked
from tests.worlds.cli_run import ALONE, LOCAL, SPEC, Running, last_json, run
from tests.worlds.forked_command import forked_commands

WORK = (*LOCAL, "--device", "cpu", "--threads", "1")


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "run.toml"
    path.write_text(SPEC)
    return str(path)


def test_host_join_status(spec: str, tmp_path: Path) -> None:
    with Running("host", spec, *ALONE, "--directory", str(tmp_path / "host")) as host:
        link = host.wait_for("link")
        assert any(event["event"] == "evaluation" for event in host.events), "the first figures come before the link"
        fine = run("doctor", link["link"], "--json")
        assert (fine.returncode, last_json(fine.stdout)["checks"]) == (0, 13), fine.stdout
        way = Link.parse(link["link"])
        other = last_json(run("doctor", str(Link("ab" * 32, way.organiser, way.entries)), "--json").stdout)
        assert (other["failed"], "another run" in other["detail"]) == ("entry by organiser", True)
        joining = ("join", link["link"], *ALONE, "--directory", str(tmp_path / "join"), "--evaluate")
        with Running(*joining) as trainer:
            assert trainer.wait_for("ready")["micro_batch"] == 16
            assert trainer.wait_for("evaluation")["heldout_mlm_loss"] > 0.0, "it has figures of its own while it trains"
            step = trainer.wait_for("step.applied")["step"]
            status = run("status", link["link"], *LOCAL, "--directory", str(tmp_path / "status"), "--json")
            assert status.returncode == 0, status.stderr
            seen = last_json(status.stdout)
            assert (seen["name"], seen["run_id"]) == ("tiny", link["run_id"])
            assert seen["step"] >= step
            assert seen["averages"] is True
            assert 0.0 < seen["loss"] < 10.0
            assert {peer["role"] for peer in seen["peers"]} >= {"auxiliary", "trainer", "monitor"}
            assert not list((tmp_path / "status").glob("*/*")), "who only looks on keeps nothing"
            last = trainer.latest_step() + 5
            host.end_at(last)
            mine, theirs = trainer.finish(last), host.summary()
        assert mine["step"] == theirs["step"] == last
        assert mine["digest"] == theirs["digest"]
        assert mine["samples"] > 0
        assert mine["last"] == pytest.approx(theirs["last"]), "the same state on the same text"
        assert mine["last"]["step"] == last
        assert trainer.process.returncode == host.process.returncode == 0


class Left(NamedTuple):
    """What a run left behind: the host's key and runs, the run's id and folder, and the last step."""

    key: Path
    runs: Path
    run_id: str
    folder: Path
    step: int


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    place = tmp_path_factory.mktemp("left")
    key, runs = place / "key.json", place / "runs"
    (place / "run.toml").write_text(SPEC)
    own = ("--identity", str(key), "--directory", str(runs), "--role", "trainer")
    with Running("host", str(place / "run.toml"), *WORK, *own) as host:
        link = host.wait_for("link")
        return Left(key, runs, link["run_id"], Path(link["directory"]), host.finish(3)["step"])


def test_export_and_plot_what_a_run_left_behind(left: Left, tmp_path: Path) -> None:
    folder, step = str(left.folder), left.step
    assert step >= 3
    exported = run("export", folder, "--out", str(tmp_path / "model"), "--json")
    assert exported.returncode == 0, exported.stderr
    assert last_json(exported.stdout)["step"] == step
    assert (tmp_path / "model" / "model.safetensors").exists()
    checkpoint = CheckpointStore(Path(folder) / "checkpoints").load()
    said = json.loads((tmp_path / "model" / "minga.json").read_text("utf-8"))
    assert checkpoint is not None
    state = checkpoint.snapshot
    assert (said["step"], said["founding"], said["rounds"]) == (step, state.lineage.founding, state.lineage.rounds)
    assert f"(founding `{said['founding']}`, rounds `{said['rounds']}`)" in (
        tmp_path / "model" / "README.md"
    ).read_text("utf-8")
    assert said["founding"] != said["rounds"]
    parent = run("export", str(left.runs), "--out", str(tmp_path / "other"))
    assert f"the folders of 1 run; name one of them, such as {folder}" in parent.stderr
    plot = tmp_path / "loss.png"
    drawn = run("status", folder, "--plot", str(plot), "--json")
    assert drawn.returncode == 0, drawn.stderr
    assert last_json(drawn.stdout)["joined"] == 1
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_second_start_is_a_new_run_and_resume_goes_on_with_the_first(left: Left, spec: str, tmp_path: Path) -> None:
    work = (*WORK, "--identity", str(left.key), "--role", "trainer")
    runs, step = ("--directory", str(tmp_path / "runs")), left.step
    first = shutil.copytree(left.runs, tmp_path / "runs") / left.folder.name
    with Running("host", spec, *work, *runs) as second:
        assert second.wait_for("link")["run_id"] != left.run_id
        assert second.wait_for("step.applied")["step"] == 1
    listed = last_json(run("runs", *runs, "--json").stdout)["runs"]
    assert {each["run_id"]: each["step"] for each in listed}[left.run_id] == step
    assert len(listed) == 2
    foreign = run("host", str(first), *LOCAL, "--identity", str(tmp_path / "foreign.json"))
    assert foreign.returncode != 0
    assert "Looking for peers of the run, for up to a minute" in foreign.stdout, "said before it is waited for"
    with Running("host", str(first), *work) as third:
        assert third.wait_for("resumed")["step"] == step
        assert third.wait_for("link")["run_id"] == left.run_id
        assert third.wait_for("step.applied")["step"] == step + 1
        refused = run("runs", "remove", left.run_id[:16], "--yes", *runs)
        assert "a process on this machine takes part in a run from" in refused.stderr


@pytest.mark.parametrize("wrong", ["--from", "--micro-batch", "--port"])
def test_a_run_that_could_not_begin_leaves_nothing_to_go_on_with(
    wrong: str, spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "check_bindable", lambda _: None)  # as if the port were taken only after the look
    foreign, runs = tmp_path / "model.safetensors", tmp_path / "runs"
    save_file({"of.another.model": torch.zeros(2)}, foreign)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        value = {"--from": str(foreign), "--micro-batch": "100000", "--port": str(taken.getsockname()[1])}[wrong]
        key = ("--identity", str(tmp_path / "key.json"), "--directory", str(runs))
        failed = run("host", spec, *LOCAL, *key, "--device", "cpu", "--threads", "1", wrong, value)
    assert failed.returncode != 0
    assert value in failed.stderr or "of.another.model" in failed.stderr
    assert run_folders(runs) == []


@pytest.mark.parametrize("command", ["host", "join"])
def test_a_port_that_is_taken_is_told_before_all_else(command: str, spec: str, tmp_path: Path) -> None:
    gone = str(Link("ab" * 32, "cd" * 32, (EntryPoint("cd" * 32, ("127.0.0.1:9",), None),)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
        failed = run(command, spec if command == "host" else gone, *ALONE, "--directory", str(tmp_path), "--port", port)
    assert (failed.returncode, failed.stdout) == (2, "")
    assert f"with port {port} on 127.0.0.1" in failed.stderr
    assert "choose another --port" in failed.stderr


def _places_known(directory: Path) -> int:
    """How many others a peer that keeps its runs there knows to find again."""
    notes = [msgspec.msgpack.decode(path.read_bytes(), type=KnownAddresses) for path in directory.rglob("places-*")]
    return sum(len(places.others) for places in notes)


@pytest.mark.timeout(180)
def test_a_run_outlives_all_its_peers(tmp_path: Path) -> None:
    # Whoever comes back first goes on, and the old link leads the others to it, though the organiser stays away.
    path = tmp_path / "run.toml"
    path.write_text(SPEC + "[checkpoints]\nevery_steps = 2\n")
    first, second = (
        ("--identity", str(tmp_path / f"{name}.json"), "--directory", str(tmp_path / name)) for name in ("a", "b")
    )
    with Running("host", str(path), *ALONE, "--directory", str(tmp_path / "host")) as host:
        link = host.wait_for("link")["link"]
        with Running("join", link, *WORK, *first) as a, Running("join", link, *WORK, *second) as b:
            for trainer in (a, b):
                trainer.wait_for("checkpoint.saved")
                assert trainer.wait_for("step.applied")["members"] >= 1
            deadline = time.monotonic() + 45.0
            while not all(_places_known(tmp_path / name) == 2 for name in ("a", "b")):
                assert time.monotonic() < deadline, "it does not note where the others are"
                time.sleep(0.1)
            for running in (host, a, b):
                running.process.kill()
                running.process.wait()
    with Running("join", link, *WORK, *first, dial_timeout_s=6.0) as a:
        assert a.wait_for("alone")["link"] != link
        step = a.wait_for("ready")["step"]
        assert step >= 2
        with Running("join", link, *WORK, *second) as b:
            assert b.wait_for("ready")["step"] >= 2
            a.wait_for("round.begun", members=2)
            seen = run("status", link, *LOCAL, "--directory", str(tmp_path / "a"), "--json")
            assert last_json(seen.stdout)["averages"], "a folder of this machine leads there; the link's host is gone"
            last = max(step, a.latest_step()) + 5
            a.end_at(last)
            assert b.finish(last)["digest"] == a.summary()["digest"]


def _wait_until_it_imports(pid: int) -> None:
    """Wait until the command is loading its libraries; before that the interpreter starts, which is not ours."""
    maps = Path(f"/proc/{pid}/maps")
    deadline = time.monotonic() + 30.0
    while maps.exists() and "libtorch" not in maps.read_text("utf-8") and time.monotonic() < deadline:
        time.sleep(0.02)
    if not maps.exists():
        time.sleep(0.5)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for single processes")
def test_an_interrupt_at_the_start_ends_with_130(spec: str, tmp_path: Path) -> None:
    with Running("host", spec, *ALONE, "--directory", str(tmp_path), python=sys.executable) as host:
        _wait_until_it_imports(host.process.pid)
        host.process.send_signal(signal.SIGINT)
        assert host.process.wait(10.0) == 130


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for single processes")
def test_an_interrupted_host_whose_folder_is_gone_with_it_ends_in_order(spec: str) -> None:
    with Running("host", spec, *ALONE, "--role", "trainer") as host:
        host.wait_for("step.applied", step=2)
        host.process.send_signal(signal.SIGINT)
        summary = host.summary()
        assert (summary["exit_code"], "checkpoint" in summary) == (130, False)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for single processes")
def test_a_host_that_keeps_nothing_says_so_and_what_its_settings_cost(spec: str, tmp_path: Path) -> None:
    sparse = tmp_path / "sparse.toml"
    text = Path(spec).read_text("utf-8").replace("[state]\n", '[state]\nfounder = "first"\n')
    sparse.write_text(f'{text}[averaging]\ncodec = "topk"\ndownload_codec = "gtopk"\n', "utf-8")
    with Running("host", str(sparse), *ALONE, "--directory", str(tmp_path), "--role", "monitor") as host:
        assert host.wait_for("keeps.nothing")["role"] == "monitor"
        assert host.wait_for("run.caution")["code"] == "W1"


def test_a_host_that_only_watches_has_the_run_begin_with_the_state_of_its_recipe(spec: str, tmp_path: Path) -> None:
    """Any volunteer can make that state, so it does not matter if the first of them is gone before it gave it on."""
    with Running("host", spec, *ALONE, "--directory", str(tmp_path / "host"), "--role", "monitor") as host:
        link = host.wait_for("link")["link"]
        with Running("join", link, *ALONE, "--directory", str(tmp_path / "one"), "--role", "auxiliary") as one:
            founded = one.wait_for("state.founded")["digest"]
            one.process.kill()
        with Running("join", link, *ALONE, "--directory", str(tmp_path / "other")) as other:
            assert other.wait_for("state.founded")["digest"] == founded
            other.wait_for("step.applied", step=2)
    (genesis,) = (tmp_path / "host").rglob("genesis-*")
    assert genesis.is_file()


@pytest.mark.skipif(sys.platform != "linux", reason="children are looked up in /proc")
def test_an_interrupt_ends_the_processes_of_all_devices(spec: str, tmp_path: Path) -> None:
    with (
        forked_commands(tmp_path) as commands,
        Running("host", spec, *ALONE, "--directory", str(tmp_path / "host")) as host,
    ):
        link = host.wait_for("link")["link"]
        joining = ("join", link, *ALONE, "--directory", str(tmp_path / "join"), "--devices", "2")
        with Running(*joining, python_of_ranks=commands / Path(sys.executable).name) as trainer:
            assert trainer.wait_for("ready")["devices"] == 2
            trainer.wait_for("step.applied", step=1)
            pid = trainer.process.pid
            (child,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            trainer.process.send_signal(signal.SIGINT)
            assert trainer.process.wait(45.0) == 130  # on a busy machine the second is over before it says so
            deadline = time.monotonic() + 20.0
            while _is_alive(child) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert not _is_alive(child)


def test_an_interrupted_command_says_what_it_had_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = {"samples": 320, "checkpoint": 6}
    monkeypatch.setattr(exit_codes, "done_so_far", [lambda: {"step": 7}, lambda: done])
    monkeypatch.setattr(exit_codes, "interrupts_told", [])
    assert exit_codes.report_interrupt(json_output=True) == exit_codes.INTERRUPTED
    told = capsys.readouterr()
    assert told.err == (
        "minga: interrupted at step 7, with 320 samples of this machine; the newest checkpoint is of step 6\n"
    )
    assert last_json(told.out)["samples"] == 320


def test_a_command_that_usually_ends_by_an_interrupt_says_goodbye(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = {"step": 26, "steps_contributed": 20, "samples": 7072, "checkpoint": 26}
    monkeypatch.setattr(exit_codes, "done_so_far", [lambda: done])
    monkeypatch.setattr(exit_codes, "interrupts_told", [])
    monkeypatch.setattr(exit_codes, "farewells", [farewell_of_volunteer])
    assert exit_codes.report_interrupt(json_output=False) == exit_codes.INTERRUPTED
    told = capsys.readouterr()
    assert told.err == ""
    assert told.out == (
        "Stopped at step 26. This machine took part in 20 steps with 7,072 samples. Thank you! To come back, type the "
        "same command again.\n"
    )
    assert "Thank you! The newest checkpoint here is of step 20. To come" in farewell_of_volunteer(
        {**done, "checkpoint": 20}
    )


def test_a_host_that_leaves_says_how_to_go_on_with_its_run_unless_nobody_can(tmp_path: Path) -> None:
    folder, done = tmp_path / "a run", {"step": 26, "checkpoint": 20}
    training = SimpleNamespace(stop_after_steps=27)
    peer = cast(Peer, SimpleNamespace(directory=folder, spec=SimpleNamespace(training=training)))
    assert farewell_of_host(peer, PeerOptions(ephemeral=True), {"step": 26}, is_temporary=True) == (
        "This host has left at step 26. The run's folder was a temporary one, and is deleted."
    )
    said = farewell_of_host(peer, PeerOptions(identity="key.json"), done, is_temporary=False)
    assert said == (
        f"This host has left at step 26; the newest checkpoint is of step 20. The run lies in {folder}. To go on with "
        f"it:\nminga host '{folder}' --identity key.json"
    )
    assert farewell_of_host(peer, PeerOptions(ephemeral=True), {}, is_temporary=False) == (
        f"This host has left. The run lies in {folder}."
    )
    training.stop_after_steps = 26
    assert farewell_of_host(peer, PeerOptions(), {"step": 26, "checkpoint": 26}, is_temporary=False) == (
        "This host has left at step 26; the newest checkpoint is of step 26. The run is complete, and lies in "
        f"{folder}."
    )


def test_a_child_with_a_parent_watch_ends_with_its_parent(spec: str, tmp_path: Path) -> None:
    # The parent starts a peer, tells its id, and is then killed without any chance to tidy up.
    parent_code = (
        "import os, sys; from minga.cli import main\n"
        "read, write = os.pipe()\n"
        "if not (child := os.fork()):\n"
        "    os.dup2(write, 1)\n"
        "    sys.exit(main(sys.argv[1:]))\n"
        "with open(read) as said: any('\"link\"' in line for line in said)\n"
        "print(child, flush=True)\n"
        "sys.stdin.read()\n"
    )
    arguments = ("host", spec, *ALONE, "--leash", "--json", "--directory", str(tmp_path))
    pipe = subprocess.PIPE
    with forked.start("-c", parent_code, *arguments, stdin=pipe, stdout=pipe) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 20.0
    while _is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_alive(child)


def _is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except OSError:
        return False
    state = Path(f"/proc/{process_id}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_doctor_names_the_hop_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "DIAL_TIMEOUT_S", 2.0)  # nobody is there
    gone = str(Link("ab" * 32, "cd" * 32, (EntryPoint("cd" * 32, ("127.0.0.1:9",), None),)))
    result = run("doctor", gone, "--json")
    assert result.returncode == 1
    summary = last_json(result.stdout)
    assert summary["failed"] == "entry by organiser"
    assert "127.0.0.1:9" in summary["detail"]
    assert "fresh link" in summary["advice"]
    result = run("doctor", "minga1nonsense")
    assert result.returncode == 1
    assert "The hop that fails: link" in result.stdout
    key = tmp_path / "key.json"
    key.write_text("nonsense")
    key.chmod(0o600)
    assert last_json(run("doctor", "--identity", str(key), "--json").stdout)["failed"] == "key file"


def test_an_error_that_an_interrupt_turned_into_is_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: list[str]) -> int:
        raise ImportError("initialisation of a module failed")

    monkeypatch.setattr(cli, "_invoke", fail)
    with pytest.raises(ImportError):
        cli._run([])
    monkeypatch.setattr(exit_codes, "interrupts", [int(signal.SIGINT)])
    monkeypatch.setattr(exit_codes, "farewells", [])
    assert cli._run([]) == exit_codes.INTERRUPTED
    assert "interrupted" in capsys.readouterr().err
