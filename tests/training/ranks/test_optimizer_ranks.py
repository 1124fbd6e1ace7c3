"""One peer of two processes under `torch.distributed` and one of a single process train together, as real processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.worlds import forked
from tests.worlds.rank_processes import errors_of, results_of_ranks, start_rank, start_ranks, write_spec

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="this build of torch has no gloo")

SCRIPT = """
from tests.worlds.side_by_side import SideBySide

(kind,) = words
torch.manual_seed(rank if size > 1 else 9)  # every process begins with other parameters
peer, heard = enter(), []
if peer is not None:
    peer.subscribe(lambda event: heard.append(event.fields["members"]) if event.kind == "step.applied" else None)

model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
inner = torch.optim.AdamW(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.ExponentialLR(inner, 0.9)
opt = minga.Optimizer(inner, peer, scheduler=scheduler, model=model, max_grad_norm=1.0)
beside = None if peer is None else SideBySide(folder, str(size), ["2", "1"], peer)

def goes_on():  # follow() is for all ranks alike, so they hear it from the first
    said = torch.tensor(int(beside is not None and beside.may_go_on()))
    if size > 1:
        dist.broadcast(said, 0)
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
if rank == 1:
    opt.step(samples=4)  # it does nothing once the run is over, and so waits for no other rank
say(digest=opt._replica.digest(), step=opt.global_step, members=max(heard, default=0), lr=opt.param_groups[0]["lr"],
    values=[each.double().sum().item() for each in model.parameters()], micro_batches=micro_batches)
if peer is not None:
    peer.close()
if size > 1:
    dist.destroy_process_group()
"""

LOCAL = {"fragments": 2, "overlap": True, "local_batch": 8}


@pytest.mark.parametrize("strategy", ["synchronous", "local"])
def test_two_ranks_and_a_single_process_hold_the_same_model(strategy: str, tmp_path: Path) -> None:
    """With local steps the optimizer's numbers are each peer's own; rank 1, which has no strategy, counts them in."""
    write_spec(tmp_path, LOCAL if strategy == "local" else None, strategy=strategy, stop_after_steps=4)
    processes = [*start_ranks(SCRIPT, tmp_path, "pair"), start_rank(SCRIPT, tmp_path, "pair")]
    results = forked.results_of(processes, 45.0)
    assert [result["step"] for result in results] == [4, 4, 4]
    shared = results if strategy == "synchronous" else [results[0], results[2]]
    assert len({result["digest"] for result in shared}) == 1
    assert results[0]["values"] == results[1]["values"] == results[2]["values"]
    assert len({result["lr"] for result in results}) == 1
    assert results[0]["micro_batches"] == results[1]["micro_batches"]
    assert results[0]["members"] == results[2]["members"] == 2


PARTS = """
from torch.nn.parallel import DistributedDataParallel

(kind,), peer = words, enter()


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
if kind == "left out":
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
if kind == "left out" and rank == 0:
    opt.follow(0.0)
try:
    with trained.no_sync() if kind == "no_sync" else torch.enable_grad():
        loss(trained(batches[rank])).backward()
    opt.step(samples=16)
except minga.ConfigurationError as error:
    said = str(error)
say(apart=max((each - value).abs().max().item() for each, value in zip(parameters, after)), said=said)
if peer is not None:
    peer.close()
dist.destroy_process_group()
"""


def test_what_distributed_data_parallel_leaves_out_is_combined_all_the_same(tmp_path: Path) -> None:
    """As a parameter of the model that it is to ignore, or one of the loss itself: the gradient of rank 0 alone was
    taken for the mean. Beforehand the first process says without the other that it does something else, as the adapters
    do for an evaluation there: the ranks waited for ever.
    """
    write_spec(tmp_path, stop_after_steps=1)
    results = results_of_ranks(PARTS, tmp_path, "left out")
    assert [result["said"] for result in results] == ["", ""]
    assert all(result["apart"] < 1e-6 for result in results)


def test_gradients_that_distributed_data_parallel_has_not_combined_are_no_mean(tmp_path: Path) -> None:
    write_spec(tmp_path, stop_after_steps=1)
    results = results_of_ranks(PARTS, tmp_path, "no_sync")
    assert all("after a backward() outside of model.no_sync()" in result["said"] for result in results)


SLOW = """
import datetime
from minga.training.ranks import process_group

process_group.CONNECTING = datetime.timedelta(seconds=2)  # a busy machine may need one
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


def test_ranks_wait_for_a_slow_one_but_not_long_for_one_that_ended_before_it_connected(tmp_path: Path) -> None:
    processes = start_ranks(SLOW, tmp_path)
    (said, errors), _ = (process.communicate(timeout=45) for process in processes)
    assert "another process of this peer has ended" in said, errors


TOLD_TO_END = """
from minga.training.ranks import process_group

left, sleep = folder / "left", time.sleep
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


def test_a_rank_that_is_told_to_end_while_it_waits_for_a_slow_one_says_so(tmp_path: Path) -> None:
    """Nobody tries to connect with it then, of which neither signals nor anything else could tell for half a minute."""
    said = [process.communicate(timeout=45)[0] for process in start_ranks(TOLD_TO_END, tmp_path, size=3)]
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
import ctypes, gc, json, os, sys, threading, time, torch
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

gc.freeze()  # else each of them would look through all that the tests have imported when it ends
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


ALONE = """
model = torch.nn.Linear(2, 2)
minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), None, model=model)
"""


def test_every_rank_with_a_peer_of_its_own_is_refused(tmp_path: Path) -> None:
    for errors in errors_of(start_ranks(ALONE, tmp_path)):
        assert "ConfigurationError" in errors
        assert "rank 0 joins the run, the others pass peer=None" in errors


def test_a_dead_rank_ends_the_others(tmp_path: Path) -> None:
    write_spec(tmp_path, stop_after_steps=100_000)
    leader, follower = start_ranks(SCRIPT, tmp_path, "dead")
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
