"""One peer of several devices: which ones, a process for each, and what happens when one of them dies."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import minga
from minga.core.spec.run_spec import RunSpec
from minga.recipes.running import local_ranks
from minga.recipes.running.devices import choose_devices, machine_name
from minga.recipes.running.local_ranks import open_run
from minga.recipes.running.run import Work
from tests.worlds import forked
from tests.worlds.extension_world import hosted
from tests.worlds.recipe_text import prepared_genesis, small_spec

CPU = torch.device("cpu")
OPEN = RunSpec.from_mapping({"name": "open"})
VERIFIED = RunSpec.from_mapping({"name": "checked", "security": {"verification": "byzantine"}})


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two made-up GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "RTX 3060")
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda size, device: ones(size))


@pytest.mark.parametrize(
    ("name", "count", "role", "found"),
    [
        ("auto", "all", "trainer", ["cuda:0", "cuda:1"]),
        ("cuda", "2", "client", ["cuda:0", "cuda:1"]),
        ("auto", "1", "trainer", ["cuda:0"]),
        ("auto", "all", "auxiliary", ["cuda"]),  # it computes no gradients
        ("cuda:1", "all", "trainer", ["cuda:1"]),
        ("cpu", "all", "trainer", ["cpu"]),
        ("cpu", "3", "trainer", ["cpu", "cpu", "cpu"]),
    ],
)
def test_a_peer_uses_all_gpus_unless_its_owner_names_one(
    two_gpus: None, name: str, count: str, role: str, found: list[str]
) -> None:
    assert [str(device) for device in choose_devices(name, count, OPEN, role)] == found


def test_devices_are_called_by_their_makers(two_gpus: None) -> None:
    assert machine_name(choose_devices("auto", "all", OPEN, "trainer")) == "2 x RTX 3060"
    assert machine_name(choose_devices("auto", "1", OPEN, "trainer")) == "RTX 3060"


@pytest.mark.parametrize("count", ["0", "-1", "65", "two", "\u00b2", ""])
def test_a_count_of_devices_that_is_none_is_refused(count: str) -> None:
    with pytest.raises(minga.ConfigurationError, match="choose a number from 1 to 64, or all"):
        choose_devices("cpu", count, OPEN, "trainer")


def test_more_devices_than_there_are_or_the_run_allows_are_refused(two_gpus: None) -> None:
    with pytest.raises(minga.ConfigurationError, match="--devices 3: PyTorch finds 2 on this machine"):
        choose_devices("auto", "3", OPEN, "trainer")
    with pytest.raises(minga.ConfigurationError, match="each process is a peer with a key of its own; start one"):
        choose_devices("auto", "2", VERIFIED, "trainer")
    assert choose_devices("auto", "all", VERIFIED, "trainer") == [torch.device("cuda")]


@pytest.fixture
def peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A peer alone in a run of three steps; its further ranks are processes without another import of torch."""
    if not dist.is_gloo_available():
        pytest.skip("this build of torch has no gloo")

    def start(words: list[str], **options: Any) -> Any:
        if sys.platform == "linux":
            started = forked._Forked(words[1:], server=forked._servers[0][0], **options)
        else:
            started = subprocess.Popen(words, **options)
        processes.append(started)
        return started

    subprocess, processes = local_ranks.subprocess, list[Any]()
    stand_in = SimpleNamespace(Popen=start, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(local_ranks, "subprocess", stand_in)
    spec = small_spec(training={"target_batch_size": 32, "stop_after_steps": 3}, network={"relay": "none"})
    options = minga.PeerOptions(ephemeral=True, directory=tmp_path, host="127.0.0.1")
    with minga.host(hosted(spec.model_dump(mode="json")), options, files=dict(prepared_genesis())) as peer:
        yield SimpleNamespace(peer=peer, processes=processes)
    assert all(process.poll() is not None for process in processes), "none is left behind"
    assert not dist.is_initialized()


def test_two_processes_are_one_peer_to_the_end_of_the_run(peer: Any) -> None:
    counted: list[int] = []
    with open_run(peer.peer, [CPU, CPU], Work(micro_batch=8)) as run:
        run.train(lambda _: False, lambda step, samples, loss: counted.append(samples))
        assert run.finished
    assert counted == [16] * 6, "three steps of 32 samples, with eight of each process at once"
    assert [process.returncode for process in peer.processes] == [0]


def test_this_peer_ends_with_words_when_one_of_its_processes_dies(peer: Any) -> None:
    def report(step: int, samples: int, loss: float) -> None:
        if step == 1:
            peer.processes[0].kill()

    with (
        pytest.raises(minga.LocalError, match=r"process of device 2 \(cpu\) ended: exit code -9\. The run goes on"),
        open_run(peer.peer, [CPU, CPU], Work(micro_batch=8)) as run,
    ):
        run.train(lambda _: False, report)
    assert 1 <= run.step < 3


def test_a_process_that_cannot_begin_says_why(peer: Any) -> None:
    with (
        pytest.raises(
            minga.LocalError,
            match=r"device 2 \(cuda:7\) ended: --device cuda:7: this (machine cannot use|PyTorch is built)",
        ),
        open_run(peer.peer, [CPU, torch.device("cuda:7")], Work(micro_batch=8)),
    ):
        raise AssertionError("it began")
