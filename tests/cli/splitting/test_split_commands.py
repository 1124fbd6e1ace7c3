"""`minga split …`: four real processes train on while one is killed, and what is refused."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import sklearn.datasets  # type: ignore[import-untyped]  # noqa: F401  # forked processes have it then

from minga.recipes.split import taking_part  # noqa: F401
from tests.worlds.cli_run import LOCAL, Running, last_json, run

SPEC = """
name = "clinics"
[model]
recipe = "split"
[recipe.split]
data = "digits"
clients = 3
bottom = [32]
top = [32]
[split]
variant = "u-shaped"
[optimizer]
name = "adamw"
learning_rate = 0.005
warmup_steps = 0
schedule = "constant"
[network]
relay = "none"
"""
KEYLESS = (*LOCAL, "--ephemeral", "--threads", "1")


def spec_file(folder: Path, text: str = SPEC) -> str:
    path = folder / "run.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.timeout(180)
def test_four_processes_train_on_when_one_is_killed(tmp_path: Path) -> None:
    """One client is never dialled, as behind NAT, and one is killed with SIGKILL."""
    with Running("split", "serve", spec_file(tmp_path), *KEYLESS, "--directory", str(tmp_path / "s")) as server:
        link = server.wait_for("link")["link"]

        def client(number: int, *more: str) -> Running:
            where = ("--directory", str(tmp_path / f"c{number}"))
            return Running("split", "join", link, "--part", str(number), *KEYLESS, *where, *more)

        with client(1, "--batches", "60") as first, client(2, "--batches", "60", "--role", "client") as hidden:
            with client(3) as doomed:
                peer = doomed.wait_for("split.joined")["peer"]
                for _ in range(3):
                    server.wait_for("split.applied", peer=peer)
                doomed.process.kill()
            began, told = time.monotonic(), [first.summary(), hidden.summary()]
            seconds = time.monotonic() - began
            looked = run("status", link, *LOCAL, "--json")
        status = last_json(looked.stdout)
        done = server.finish(0)
    print(f"{done['batches']} batches of {done['clients']} clients; the others ended {seconds:.1f} s after the kill;")
    print([(each["batches"], each["bytes_sent"], each["bytes_received"], each["heldout_accuracy"]) for each in told])
    assert [each["batches"] for each in told] == [60, 60]
    assert done["clients"] == 3
    assert done["batches"] >= 123
    assert all(each["heldout_accuracy"] > 0.5 for each in told), "a guess has 0.1"
    assert all(each["bytes_sent"] > 60 * 64 * 32 * 4 for each in told), "the activations of all batches"
    assert (status["split"]["steps"], len(status["split"]["servers"])) == (done["batches"], 1)
    for number in (1, 2):
        parts = sorted(path.name for path in (tmp_path / f"c{number}").rglob("*.safetensors"))
        assert parts == ["bottom.safetensors", "head.safetensors"]
    assert Path(done["file"]).name == "top.safetensors"


@pytest.mark.timeout(180)
def test_a_server_that_was_killed_goes_on_by_the_same_link(tmp_path: Path) -> None:
    key = (*LOCAL, "--threads", "1", "--identity", str(tmp_path / "key.json"))
    with Running("split", "serve", spec_file(tmp_path), *key, "--directory", str(tmp_path / "s")) as server:
        began = server.wait_for("link")
        where = ("--directory", str(tmp_path / "c"))
        with Running("split", "join", began["link"], "--part", "1", *KEYLESS, *where, "--batches", "60") as client:
            for _ in range(5):
                server.wait_for("split.applied")
            server.process.kill()
            server.process.wait()
            with Running("split", "serve", "--resume", began["directory"], *key) as again:
                assert again.wait_for("link")["run_id"] == began["run_id"]
                again.wait_for("split.applied")
                told = client.summary()
                again.finish(0)
    assert told["batches"] == 60
    both = run("split", "serve", spec_file(tmp_path), "--resume", began["directory"], *key)
    assert "either a run spec or --resume" in both.stderr


def test_a_report_of_leakage_is_written(tmp_path: Path) -> None:
    out = tmp_path / "leakage"
    words = ("--example", "wine", "--weight", "1", "--epochs", "2", "--out", str(out), "--threads", "1")
    told = last_json(run("split", "leakage", *words, "--json").stdout)
    assert sorted(path.name for path in out.iterdir()) == ["leakage.json", "leakage.md", "leakage.png"]
    assert json.loads((out / "leakage.json").read_text())["plain"] == told["plain"]
    assert told["no_peek"]["weight"] == 1.0


@pytest.mark.parametrize(
    ("command", "change", "said"),
    [
        (("split", "serve"), ('variant = "u-shaped"', 'variant = "none"'), 'split.variant = "none"'),
        (("split", "serve"), ('variant = "u-shaped"', 'variant = "vertical"'), "write a program"),
        (("host",), ("", ""), "the command is minga split serve RUN.TOML"),
    ],
)
def test_what_is_refused_says_what_to_do(
    tmp_path: Path, command: tuple[str, ...], change: tuple[str, str], said: str
) -> None:
    done = run(*command, spec_file(tmp_path, SPEC.replace(*change)), *KEYLESS, "--directory", str(tmp_path))
    assert done.returncode == 2
    assert said in " ".join((done.stdout + done.stderr).split())
