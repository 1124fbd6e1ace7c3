"""Runs whose model is cut: four real processes train on while one is killed, behind NAT where possible; and what is
refused.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sklearn.datasets  # type: ignore[import-untyped]  # noqa: F401  # forked processes have it then

from minga.cli.commands import JoinCommand
from minga.cli.taking_part.join import _check_options
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.recipes.registry import published
from minga.recipes.split import taking_part  # noqa: F401  # forked processes have it then
from tests.netlab import Host, Lab, why_unavailable
from tests.worlds import forked
from tests.worlds.cli_run import GUARDED_MINGA, LOCAL, Running, last_json, run

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
TABLE = SPEC.replace('data = "digits"\nclients = 3', 'data = "table"\nfeatures = 3\nclasses = 2')
KEYLESS = (*LOCAL, "--ephemeral", "--threads", "1")
CLIENT = ("--role", "client")
BATCHES = 25


def spec_file(folder: Path, text: str = SPEC) -> str:
    path = folder / "run.toml"
    path.write_text(text)
    return str(path)


@dataclass(frozen=True)
class Place:
    """Where a command runs: its host's address, its namespace if it has one, and what else it is told."""

    address: str = "127.0.0.1"
    namespace: str | None = None
    more: tuple[str, ...] = ()

    def start(self, *words: str) -> Running:
        return Running(*words, "--bind", self.address, *self.more, namespace=self.namespace)

    def look(self, *words: str) -> dict[str, Any]:
        where = ("--namespace", self.namespace) if self.namespace else ()
        return last_json(forked.run(GUARDED_MINGA, *where, *words, "--bind", self.address, "--json").stdout)


def placed(lab: Lab, host: str, *more: str) -> Place:
    return Place(lab.address(host), lab.namespace(host), more)


def train_while_one_is_killed(folder: Path, server_at: Place, clients_at: Sequence[Place]) -> None:
    """The server and three clients, of which the last is killed with SIGKILL."""
    keyless = ("--ephemeral", "--threads", "1")
    words = ("host", spec_file(folder), *keyless, "--directory", str(folder / "s"))
    with ExitStack() as running:
        server = running.enter_context(server_at.start(*words))
        link = server.wait_for("link")["link"]

        def client(number: int, *more: str) -> Running:
            where = ("--part", str(number), "--directory", str(folder / f"c{number}"))
            return running.enter_context(clients_at[number - 1].start("join", link, *keyless, *where, *more))

        others, doomed = [client(number, "--leave-after-steps", str(BATCHES)) for number in (1, 2)], client(3)
        assert doomed.wait_for("costs")["download_bytes"] == 0
        peer = doomed.wait_for("split.joined")["peer"]
        for _ in range(3):
            server.wait_for("split.applied", peer=peer)
        doomed.process.kill()
        began, told = time.monotonic(), [other.summary() for other in others]
        seconds = time.monotonic() - began
        status = server_at.look("status", link)
        done = server.finish(0)
    print(f"{done['batches']} batches of {done['clients']} clients; the others ended {seconds:.1f} s after the kill;")
    print([(each["batches"], each["bytes_sent"], each["bytes_received"], each["heldout_accuracy"]) for each in told])
    assert [each["batches"] for each in told] == [BATCHES, BATCHES]
    assert done["clients"] == 3
    assert done["batches"] >= 2 * BATCHES + 3
    assert all(each["heldout_accuracy"] > 0.5 for each in told), "a guess has 0.1"
    assert all(each["bytes_sent"] > BATCHES * 64 * 32 * 4 for each in told), "the activations of all batches"
    assert (status["split"]["steps"], len(status["split"]["servers"])) == (done["batches"], 1)
    for number in (1, 2):
        parts = sorted(path.name for path in (folder / f"c{number}").rglob("*.safetensors"))
        assert parts == ["parts.safetensors"]
    assert Path(done["file"]).name == "top.safetensors"


@pytest.mark.timeout(180)
def test_four_processes_train_on_when_one_is_killed(tmp_path: Path) -> None:
    """Where this machine can make networks, behind routers that let nobody in: one client is behind a symmetric router,
    and the one that is killed behind a usual one; home lines all of them.
    """
    if why_unavailable() is not None:
        train_while_one_is_killed(tmp_path, Place(), [Place(), Place(more=CLIENT), Place()])
        return
    home = {"up": 20e6, "down": 100e6}
    hosts = [Host("hall"), Host("office", **home), Host("clinic", nat="odd", **home), Host("flat", nat="usual", **home)]
    with Lab(hosts, kinds={"odd": "symmetric"}) as lab:
        clients = [placed(lab, "office"), placed(lab, "clinic", *CLIENT), placed(lab, "flat")]
        train_while_one_is_killed(tmp_path, placed(lab, "hall"), clients)


@pytest.mark.timeout(180)
def test_a_server_that_was_killed_goes_on_by_the_same_link(tmp_path: Path) -> None:
    key = (*LOCAL, "--threads", "1", "--identity", str(tmp_path / "key.json"))
    with Running("host", spec_file(tmp_path), *key, "--directory", str(tmp_path / "s")) as server:
        began = server.wait_for("link")
        where = ("--directory", str(tmp_path / "c"))
        with Running("join", began["link"], "--part", "1", *KEYLESS, *where) as client:
            for _ in range(5):
                server.wait_for("split.applied")
            server.process.kill()
            server.process.wait()
            with Running("host", began["directory"], *key) as again:
                assert again.wait_for("link")["run_id"] == began["run_id"]
                again.wait_for("split.applied")
                assert last_json(run("join", began["link"], "--pause", *where, "--json").stdout)["peers"] == 1
                client.wait_for("paused")
                assert last_json(run("join", began["link"], "--unpause", *where, "--json").stdout)["changed"]
                client.wait_for("split.joined")
                told = client.finish(12)
                again.finish(0)
    assert told["batches"] >= 12


@pytest.mark.parametrize(
    ("words", "change", "said"),
    [
        ((), ('variant = "u-shaped"', 'variant = "none"'), 'split.variant = "none"'),
        ((), ('variant = "u-shaped"', 'variant = "vertical"'), "write a program"),
        (("--micro-batch", "4", "--offload"), ("", ""), "--micro-batch, --offload: not in a run whose model is cut"),
        (("--role", "monitor"), ("", ""), "--role monitor: who hosts"),
    ],
)
def test_what_a_host_is_refused_says_what_to_do(
    tmp_path: Path, words: tuple[str, ...], change: tuple[str, str], said: str
) -> None:
    done = run("host", spec_file(tmp_path, SPEC.replace(*change)), *KEYLESS, *words, "--directory", str(tmp_path))
    assert done.returncode == 2
    assert said in " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize(
    ("spec", "given", "said"),
    [
        (SPEC, {"device": "cuda", "evaluate": True}, "--device, --evaluate: not in a run whose model is cut"),
        (SPEC, {"role": "auxiliary"}, "--role auxiliary: choose trainer, client or monitor"),
        (SPEC, {"data": ("own.csv",), "part": 7}, "--part: not with --data"),
        (SPEC, {"part": 4}, "--part 4: this run has the parts 1 to 3"),
        (TABLE, {}, "with --data FILE.csv"),
        ('name = "x"\n', {"part": 1}, "--part: only in a run whose model is cut"),
    ],
)
def test_options_of_another_kind_of_run_are_refused(spec: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        _check_options(JoinCommand(**given), published(RunSpec.from_toml(spec)))
