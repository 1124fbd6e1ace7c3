"""One peer of two processes under `torch.distributed` and one of a single process train together, as real processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import minga
from minga.training.ranks.process_group import ProcessGroup
from tests.worlds import forked

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="this build of torch has no gloo")

SCRIPT = """
import json, os, pathlib, sys, torch, minga
from tests.worlds.side_by_side import SideBySide

torch.set_num_threads(1)
torch.manual_seed(int(os.environ.get("RANK", 9)))  # every process begins with other parameters
folder, role, kind = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
rank = int(os.environ["RANK"]) if role == "host" else 0
options = minga.PeerOptions(ephemeral=True, directory=folder / role, host="127.0.0.1")
if role == "host":
    torch.distributed.init_process_group("gloo", init_method="file://" + str(folder / "store"), rank=rank, world_size=2)
peer = None
if rank == 0 and role == "host":
    spec = minga.RunSpec.from_toml((folder / "run.toml").read_text())
    peer = minga.host(spec, options)
    (folder / "link.part").write_text(str(peer.link))
    (folder / "link.part").replace(folder / "link")
elif role == "join":
    peer = minga.join((folder / "link").read_text(), options)
heard = []
if peer is not None:
    peer.subscribe(lambda event: heard.append(event.fields["members"]) if event.kind == "step.applied" else None)

model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
inner = torch.optim.AdamW(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.ExponentialLR(inner, 0.9)
opt = minga.Optimizer(inner, peer, scheduler=scheduler, model=model, max_grad_norm=1.0)
beside = None if peer is None else SideBySide(folder, role, ["host", "join"], peer)

def goes_on():  # follow() is for all ranks alike, so they hear it from the first
    said = torch.tensor(int(beside is not None and beside.may_go_on()))
    if role == "host":
        torch.distributed.broadcast(said, 0)
    return bool(said)

if kind == "dead" and rank == 1:
    (folder / "joined").touch()
generator = torch.Generator().manual_seed(rank)
micro_batches = 0
while not opt.finished:
    samples = 4 + (rank if kind == "pair" else 0)
    batch = torch.randn(samples, 6, generator=generator)
    if kind == "pair" and rank == 1 and micro_batches == 1:
        batch *= torch.nan
    model(batch).square().mean().backward()
    opt.step(samples=samples)
    opt.zero_grad()
    micro_batches += 1
    if beside is not None:
        beside.give()
    while kind == "pair" and not opt.finished and not goes_on():
        opt.follow(0.02)
print(json.dumps({
    "role": role, "rank": rank, "digest": opt._replica.digest(), "step": opt.global_step,
    "values": [each.double().sum().item() for each in model.parameters()],
    "members": max(heard, default=0), "lr": opt.param_groups[0]["lr"], "micro_batches": micro_batches,
}), flush=True)
if peer is not None:
    peer.close()
if role == "host":
    torch.distributed.destroy_process_group()
"""


def start(folder: Path, role: str, kind: str, rank: int = 0, script: str = SCRIPT) -> subprocess.Popen[str]:
    """One process."""
    environment = {**os.environ, "RANK": str(rank), "OMP_NUM_THREADS": "1"}
    if sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    words = ("-c", script, str(folder), role, kind)
    pipe = subprocess.PIPE
    return forked.start(*words, env=environment, stdout=pipe, stderr=pipe)


def finish(processes: list[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    return forked.results_of(processes, 45.0)


def write_spec(folder: Path, local: Mapping[str, Any] | None = None, **training: Any) -> None:
    spec = minga.RunSpec.from_mapping(
        {
            "name": "ranks",
            "model": {"recipe": "custom"},
            "training": {"target_batch_size": 32, "stop_after_steps": 12, **training},
            "strategy": {} if local is None else {"local": dict(local)},
            "averaging": {"codec": "float32"},
            "checkpoints": {"every_steps": 0},
        }
    )
    (folder / "run.toml").write_text(spec.to_toml())


LOCAL = {"fragments": 2, "overlap": True, "local_batch": 8}


@pytest.mark.parametrize("strategy", ["synchronous", "local"])
def test_two_ranks_and_a_single_process_hold_the_same_model(strategy: str, tmp_path: Path) -> None:
    """With local steps the optimizer's numbers are each peer's own; rank 1, which has no strategy, counts them in."""
    write_spec(tmp_path, LOCAL if strategy == "local" else None, strategy=strategy, stop_after_steps=6)
    processes = [start(tmp_path, "host", "pair", rank) for rank in (0, 1)]
    while not (tmp_path / "link").exists():
        assert all(process.poll() is None for process in processes), processes[0].communicate()[1]
        time.sleep(0.05)
    processes.append(start(tmp_path, "join", "pair"))
    results = finish(processes)
    assert [result["step"] for result in results] == [6, 6, 6]
    shared = results if strategy == "synchronous" else [results[0], results[2]]
    assert len({result["digest"] for result in shared}) == 1
    assert results[0]["values"] == results[1]["values"] == results[2]["values"]
    assert len({result["lr"] for result in results}) == 1
    assert results[0]["micro_batches"] == results[1]["micro_batches"]
    assert results[0]["members"] == results[2]["members"] == 2


PARTS = """
import json, os, pathlib, sys, torch, minga
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
folder, kind, rank = pathlib.Path(sys.argv[1]), sys.argv[3], int(os.environ["RANK"])
torch.distributed.init_process_group("gloo", init_method="file://" + str(folder / "store"), rank=rank, world_size=2)
peer = None
if rank == 0:
    spec = minga.RunSpec.from_toml((folder / "run.toml").read_text())
    peer = minga.host(spec, minga.PeerOptions(ephemeral=True, directory=folder / "peer", host="127.0.0.1"))


class Loss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return (x + self.shift).square().mean()


torch.manual_seed(0)
model, loss, batches = torch.nn.Linear(6, 3), Loss(), torch.randn(2, 16, 6)
parameters = [*model.parameters(), *([] if kind == "no_sync" else loss.parameters())]
begun, plain = [each.detach().clone() for each in parameters], torch.optim.SGD(parameters, lr=0.1)
if kind == "ignored":
    model._ddp_params_and_buffers_to_ignore = ["bias"]
trained = DistributedDataParallel(model)
loss(model(batches.flatten(0, 1))).backward()
plain.step()
plain.zero_grad()
after = [each.detach().clone() for each in parameters]
with torch.no_grad():
    for each, value in zip(parameters, begun):
        each.copy_(value)
opt, said = minga.Optimizer(torch.optim.SGD(parameters, lr=0.1), peer, model=trained), ""
if kind == "pause" and rank == 0:
    opt.follow(0.0)
try:
    with trained.no_sync() if kind == "no_sync" else torch.enable_grad():
        loss(trained(batches[rank])).backward()
    opt.step(samples=16)
except minga.ConfigurationError as error:
    said = str(error)
apart = max((each - value).abs().max().item() for each, value in zip(parameters, after))
print(json.dumps({"apart": apart, "said": said}), flush=True)
if peer is not None:
    peer.close()
torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize("kind", ["criterion", "ignored"])
def test_what_distributed_data_parallel_leaves_out_is_combined_all_the_same(kind: str, tmp_path: Path) -> None:
    """As parameters of the loss itself: the gradient of rank 0 alone was taken for the mean."""
    write_spec(tmp_path, stop_after_steps=1)
    results = finish([start(tmp_path, "host", kind, rank, PARTS) for rank in (0, 1)])
    assert [result["said"] for result in results] == ["", ""]
    assert all(result["apart"] < 1e-6 for result in results)


def test_a_rank_may_say_without_the_others_that_it_does_something_else(tmp_path: Path) -> None:
    """As an evaluation in the first process alone, of which the adapters tell the run: the ranks waited for ever."""
    write_spec(tmp_path, stop_after_steps=1)
    results = finish([start(tmp_path, "host", "pause", rank, PARTS) for rank in (0, 1)])
    assert all(result["apart"] < 1e-6 for result in results)


def test_gradients_that_distributed_data_parallel_has_not_combined_are_no_mean(tmp_path: Path) -> None:
    write_spec(tmp_path, stop_after_steps=1)
    results = finish([start(tmp_path, "host", "no_sync", rank, PARTS) for rank in (0, 1)])
    assert all("after a backward() outside of model.no_sync()" in result["said"] for result in results)


def test_without_a_group_there_are_no_ranks() -> None:
    assert not dist.is_initialized()
    assert ProcessGroup.of_this_process(has_peer=True) is None


def test_ranks_wait_for_a_slow_one_but_not_long_for_one_that_ended_before_it_connected(tmp_path: Path) -> None:
    script = f"""
import datetime, os, sys, time, torch, minga
import torch.distributed as dist
from minga.training.ranks import process_group

rank = int(sys.argv[1])
process_group.CONNECTING = datetime.timedelta(seconds=2)  # a busy machine may need one
dist.init_process_group("gloo", init_method="file://{(tmp_path / "store").as_posix()}", rank=rank, world_size=2)
pause = lambda: time.sleep(3.0 * rank)
pause()
ranks, sent = process_group.ProcessGroup(), torch.full((3,), float(rank))
pause()
assert ranks.total(1) == (2,)
pause()
ranks.send(sent) if rank else ranks.receive([(1, sent)])
assert sent.tolist() == [1.0, 1.0, 1.0]
if rank:
    dist.new_group = lambda **_: os._exit(0)
try:
    process_group.ProcessGroup()
except minga.ClosedError as error:
    print(error, flush=True)
os._exit(0)
"""
    environment = {**os.environ, **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {})}
    pipe = subprocess.PIPE
    processes = [forked.start("-c", script, str(rank), env=environment, stdout=pipe, stderr=pipe) for rank in (0, 1)]
    said, errors = processes[0].communicate(timeout=45)
    processes[1].communicate()
    assert "another process of this peer has ended" in said, errors


def test_a_rank_that_is_told_to_end_while_it_waits_for_a_slow_one_says_so(tmp_path: Path) -> None:
    """Nobody tries to connect with it then, of which neither signals nor anything else could tell for half a minute."""
    script = f"""
import os, pathlib, sys, time, minga
import torch.distributed as dist
from minga.training.ranks import process_group

rank, left = int(sys.argv[1]), pathlib.Path({(tmp_path / "left").as_posix()!r})
dist.init_process_group("gloo", init_method="file://{(tmp_path / "store").as_posix()}", rank=rank, world_size=3)
sleep = time.sleep
if rank == 0:
    def tell_to_end(seconds):
        raise SystemExit(143)
    time.sleep = tell_to_end
else:
    dist.new_group = lambda **_: print("connects", flush=True)
while rank == 2 and not left.exists():
    sleep(0.02)
try:
    process_group.ProcessGroup()
except minga.ClosedError as error:
    print(error, flush=True)
except SystemExit:
    left.touch()
    sleep(1.0)
os._exit(0)
"""
    environment = {**os.environ, **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {})}
    pipe = subprocess.PIPE
    processes = [forked.start("-c", script, str(rank), env=environment, stdout=pipe, stderr=pipe) for rank in range(3)]
    said = [process.communicate(timeout=45)[0] for process in processes]
    assert said[1] == said[2] == "another process of this peer has ended: a rank left before all had come\n"


LEFT = """
vector = SimpleNamespace(numel=8, parameters_numel=8)
shares = CopyShares(ProcessGroup(), SimpleNamespace(vector=vector, accelerator=None), are_combined=False)
shares.open(0)
if leaving == rank == 0:
    shares._count()  # it wants a share that the other one never comes to
    threading.Thread(target=shares.bring, args=(0, torch.zeros(8)), daemon=True).start()
    time.sleep(0.5)
"""

BUSY = """
ranks = ProcessGroup()
if rank != leaving:
    time.sleep(0.5)
sys.setswitchinterval(1000.0)
dist.broadcast(torch.zeros(8), 1 - leaving, group=ranks._group, async_op=True)
if rank == leaving:
    ctypes.PyDLL(None).sleep(2)  # a thread of gloo waits for the interpreter, which this keeps, to let go of the tensor
"""

LEAVING = """
import ctypes, json, os, sys, threading, time, torch
import torch.distributed as dist
from types import SimpleNamespace
from minga.training.ranks.process_group import ProcessGroup
from minga.training.ranks.rank_sums import CopyShares

class Late:
    def __init__(self, tell):
        self.tell = tell

    def __del__(self, say=os.write, sleep=time.sleep):
        say(self.tell, b"going")
        sleep(3.0)

leave = []
for number, (script, leaving) in enumerate(json.loads(sys.argv[1])):
    told, tell = os.pipe()
    for rank in (0, 1):
        if process := os.fork():
            leave += [process] if rank == leaving else []
            continue
        dist.init_process_group("gloo", init_method=f"{sys.argv[2]}-{number}", rank=rank, world_size=2)
        exec(script)
        if rank != leaving:
            os.close(tell)
            os.read(told, 5)
            os._exit(0)
        late = Late(tell)  # goes when threads have no interpreter any more
        ctypes.pythonapi.Py_Exit(0)
    os.close(told)
    os.close(tell)
ended = dict(os.wait() for _ in range(2 * number + 2))
print([os.waitstatus_to_exitcode(ended[process]) for process in leave])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks interpreters")
def test_a_rank_that_leaves_before_the_others_is_not_aborted_by_their_end(tmp_path: Path) -> None:
    """A thread that waits for gloo would want an interpreter that is gone by then. So these end as interpreters do,
    with `Py_Exit`.
    """
    kinds = json.dumps([(LEFT, 0), (LEFT, 1), (BUSY, 1)])
    words = ["-c", LEAVING, kinds, f"file://{(tmp_path / 'store').as_posix()}"]
    environment = {**os.environ, **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {})}
    options: dict[str, Any] = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with forked.start(*words, start_new_session=True, **options) as process:
        try:
            said, errors = process.communicate(timeout=90)
        finally:
            with contextlib.suppress(ProcessLookupError):  # those that it forked are not left behind
                os.killpg(process.pid, signal.SIGKILL)
    assert said == "[0, 0, 0]\n", errors


def test_every_rank_with_a_peer_of_its_own_is_refused(tmp_path: Path) -> None:
    script = f"""
import sys, torch, minga
rank = int(sys.argv[1])
store = "file://{(tmp_path / "store").as_posix()}"
torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
model = torch.nn.Linear(2, 2)
try:
    minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), None, model=model)
except minga.ConfigurationError as error:
    print(error)
"""
    environment = {**os.environ, **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {})}
    processes = [forked.start("-c", script, str(rank), env=environment, stdout=subprocess.PIPE) for rank in (0, 1)]
    for process in processes:
        assert "rank 0 joins the run, the others pass peer=None" in process.communicate(timeout=45)[0]


def test_a_dead_rank_ends_the_others(tmp_path: Path) -> None:
    write_spec(tmp_path, stop_after_steps=100_000)
    leader, follower = (start(tmp_path, "host", "dead", rank) for rank in (0, 1))
    try:
        while not (tmp_path / "joined").exists():
            assert leader.poll() is None, leader.communicate()[1]
            time.sleep(0.05)
        leader.kill()
        leader.communicate()
        _, errors = follower.communicate(timeout=60)
        assert follower.returncode == 1
        assert "another process of this peer has ended" in errors
    finally:
        for process in (leader, follower):
            process.kill()
            process.communicate()
