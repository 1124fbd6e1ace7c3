"""The example of a sharded peer runs, beside a peer of a single process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.worlds import forked
from tests.worlds.rank_store import rank_store
from tests.worlds.seeds import soaked

ROOT = Path(__file__).parents[3]
EXAMPLE = str(ROOT / "examples" / "fsdp_peer.py")
SUM = re.compile(r"after step (\d+) all peers hold the state ([0-9a-f]{16})")

pytestmark = pytest.mark.skipif(
    not (dist.is_gloo_available() and sys.platform == "linux"), reason="needs gloo, on the interface of Linux"
)


WAITING = """
import os, pathlib, runpy, sys
import torch
import torch.distributed as dist
import minga

folder, example = pathlib.Path(sys.argv[1]), sys.argv[2]
hosts = "--steps" in sys.argv

class Waiting(minga.Optimizer):
    def __init__(self, *words, **settings):
        super().__init__(*words, **settings)
        if not hosts:
            (folder / "joined").touch()
        joined = torch.zeros(1)
        while hosts and not joined:  # the first steps are for both peers; all ranks hear that from the first
            self.follow(0.05)
            if self.peer is not None and (folder / "joined").exists():
                joined.fill_(1.0)
            if dist.is_initialized():
                dist.broadcast(joined, 0)

minga.Optimizer = Waiting
sys.argv = sys.argv[2:]
runpy.run_path(example, run_name="__main__")
"""


def environment(folder: Path, **more: str) -> dict[str, str]:
    own = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "XDG_DATA_HOME": str(folder), "TMPDIR": str(folder)}
    return {**os.environ, **own, **more}


def start(folder: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    script = ("-c", WAITING, str(folder), EXAMPLE)
    return forked.start(*script, *words, env=environment(folder, **variables), stdout=pipe, stderr=pipe)


@contextmanager
def started_ranks(folder: Path, size: int, *words: str) -> Iterator[list[subprocess.Popen[str]]]:
    """As torchrun starts them; the process itself, if there is to be one."""
    with rank_store(size) as group, ExitStack() as running:
        ranks = [{}] if size == 1 else [{**group, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]
        processes = [running.enter_context(start(folder, *words, **variables)) for variables in ranks]
        try:
            yield processes
        finally:
            for process in processes:
                process.kill()


def link_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"\bminga1[a-z0-9]{60,}", line):
            return found.group()
    raise AssertionError(process.communicate()[1])


def end(processes: list[subprocess.Popen[str]]) -> list[str]:
    """What they said; all have to end well."""
    said = [process.communicate(timeout=100) for process in processes]
    for process, (_, errors) in zip(processes, said, strict=True):
        assert process.returncode == 0, errors
    return [output for output, _ in said]


@pytest.mark.parametrize(("hosts", "joins"), [(1, 2), soaked(2, 3)])
def test_a_peer_that_hosts_and_one_that_joins_end_with_the_same_state(tmp_path: Path, hosts: int, joins: int) -> None:
    """Either may be sharded: both begin with parameters of their own, and the one that joins fetches the other's."""
    with (
        started_ranks(tmp_path, hosts, "--steps", "2") as host,
        started_ranks(tmp_path, joins, link_of(host[0])) as newcomer,
    ):
        said = end([*host, *newcomer])
    sums = [found.groups() for text in said if (found := SUM.search(text))]
    assert len(sums) == 2
    assert sums[0] == sums[1]
    assert sums[0][0] == "2"


@pytest.mark.soak
def test_torchrun_starts_the_example(tmp_path: Path) -> None:
    torchrun = str(Path(sys.executable).parent / "torchrun")
    words = [torchrun, "--standalone", "--nproc-per-node", "2", EXAMPLE, "--steps", "12"]
    done = subprocess.run(words, env=environment(tmp_path), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert SUM.search(done.stdout)


def test_sigterm_ends_all_ranks(tmp_path: Path) -> None:
    """As torchrun does it when it is told to end."""
    with started_ranks(tmp_path, 2, "--steps", "1000000") as ranks:
        link_of(ranks[0])
        for process in ranks:
            process.send_signal(signal.SIGTERM)
        for process in ranks:
            process.communicate(timeout=60)
            assert process.returncode > 0
