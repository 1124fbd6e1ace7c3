"""Peers whose model is sharded by `fully_shard`, as real processes, together with peers of a single process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp  # so that forked processes have it already
import torch.distributed.tensor

import minga
import minga.optim
from minga.training.replica.replica import Replica
from minga.training.state.checkpoints import CheckpointStore
from minga.training.state.snapshot import StateSnapshot
from tests.worlds import forked
from tests.worlds.rank_processes import errors_of, results_of_ranks, start_rank, start_ranks, write_spec
from tests.worlds.seeds import soaked

pytestmark = pytest.mark.skipif(
    not (dist.is_gloo_available() and sys.platform == "linux"), reason="needs gloo, on the interface of Linux"
)

MODEL = """
import torch, minga.optim

def build():
    torch.manual_seed(5)
    # With three ranks: 3, 2 and 0 rows or so; and a tensor of which the last rank has nothing.
    first, norm = torch.nn.Linear(6, 5, bias=False), torch.nn.BatchNorm1d(5)
    second, last = torch.nn.Linear(5, 2), torch.nn.Linear(2, 4)
    return torch.nn.Sequential(first, norm, torch.nn.Tanh(), second, last)

def optimizer_of(kind, model):
    if kind == "lamb":
        return minga.optim.LAMB(model.parameters(), lr=0.05)
    if kind == "torch":
        return torch.optim.AdamW(model.parameters(), lr=0.05)
    return minga.optim.AdamW(model.parameters(), lr=0.05)

def batch(rank, number):
    generator = torch.Generator().manual_seed(100 * rank + number)
    return torch.randn(4, 6, generator=generator)
"""

PEER = (
    MODEL
    + """
import shutil
import minga.training.ranks.shard_map as shard_stream
from tests.worlds.side_by_side import SideBySide

shard_stream.ShardStream.__init__.__defaults__ = (64,)  # a model of 100 numbers is many ranges
kind, sharded, peer, heard = words[0], size > 1, enter(), []
if peer is not None:
    if sharded and (folder / "before").exists():
        shutil.copytree(folder / "before", peer.directory / "checkpoints", dirs_exist_ok=True)
    peer.subscribe(lambda event: heard.append(event.fields["members"]) if event.kind == "step.applied" else None)

model = build()
if sharded:
    from torch.distributed.fsdp import fully_shard
    if kind != "torch":
        fully_shard(model[0])
    fully_shard(model)
inner = optimizer_of(kind, model)
scheduler = torch.optim.lr_scheduler.ExponentialLR(inner, 0.9)
optimizer = minga.Optimizer(inner, peer, scheduler=scheduler, model=model, max_grad_norm=0.5)
begun = optimizer.global_step
beside = None if peer is None else SideBySide(folder, "sharded" if sharded else "plain", ["sharded", "plain"], peer)
number = 0
while not optimizer.finished:
    inputs = batch(9 if not sharded else rank, number)
    if kind == "torch" and number == 1 and rank == 1:
        inputs *= torch.nan
    model(inputs).square().mean().backward()
    optimizer.step(samples=4)
    optimizer.zero_grad()
    if beside is not None:
        beside.give()
    goes_on = torch.zeros(1)
    while kind != "torch" and not optimizer.finished and not goes_on:  # all ranks hear that from the first
        optimizer.follow(0.02)
        goes_on += beside is not None and beside.may_go_on()
        if sharded:
            dist.broadcast(goes_on, 0)
    model.eval()
    with torch.no_grad():
        model(inputs)  # FSDP leaves parameters whole after this
    model.train()
    number += 1
digest = optimizer.digest()
optimizer.save_checkpoint()
say(digest=digest, begun=begun, step=optimizer.global_step, members=max(heard, default=0), number=number,
    dropped=optimizer.dropped_micro_batches)
if peer is not None:
    peer.close()
if sharded:
    dist.destroy_process_group()
"""
)


def build(kind: str) -> tuple[Any, torch.optim.Optimizer]:
    names: dict[str, Any] = {}
    exec(MODEL, names)
    model = names["build"]()
    return model, names["optimizer_of"](kind, model)


def replica_of(spec: minga.RunSpec, kind: str) -> Replica:
    model, optimizer = build(kind)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    return Replica(spec, optimizer, model=model, scheduler=scheduler, max_grad_norm=0.5)


def newest_state(directory: Path) -> StateSnapshot:
    (checkpoints,) = directory.glob("*/checkpoints")
    checkpoint = CheckpointStore(checkpoints).load()
    assert checkpoint is not None
    return checkpoint.snapshot


@pytest.mark.parametrize(("size", "kind", "strategy"), [soaked(2, "adamw", "synchronous"), (3, "lamb", "delayed")])
def test_a_sharded_peer_and_a_plain_one_share_a_run_and_its_checkpoints(
    tmp_path: Path, size: int, kind: str, strategy: str
) -> None:
    spec = write_spec(tmp_path, strategy=strategy, stop_after_steps=5)
    before = replica_of(spec, kind)
    generator = torch.Generator().manual_seed(1)
    for step in (1, 2):
        before.apply(torch.randn(before.vector.numel, generator=generator), step)
    CheckpointStore(tmp_path / "before").save(before.capture())

    processes = [*start_ranks(PEER, tmp_path, kind, size=size), start_rank(PEER, tmp_path, kind)]
    results = forked.results_of(processes, 100.0)
    assert [result["begun"] for result in results[:-1]] == [2] * size
    assert {result["step"] for result in results} == {5}
    assert len({result["digest"] for result in results}) == 1
    assert results[0]["members"] == results[-1]["members"] == 2
    assert len({result["number"] for result in results[:-1]}) == 1

    for folder in (f"peer-of-{size}", "peer-of-1"):
        after = replica_of(spec, kind)
        after.restore(newest_state(tmp_path / folder))
        assert (after.step, after.digest()) == (5, results[0]["digest"])


def test_three_ranks_of_a_sharded_model_train_as_one_process_does(tmp_path: Path) -> None:
    """With an optimizer of torch; a micro-batch that is not finite counts for nothing."""
    spec = write_spec(tmp_path, target_batch_size=24, stop_after_steps=2, buffers="local")
    results = results_of_ranks(PEER, tmp_path, "torch", size=3)
    assert {result["number"] for result in results} == {5}  # two for each step, and the one that was dropped
    assert results[0]["dropped"] == 1
    assert len({result["digest"] for result in results}) == 1

    names: dict[str, Any] = {}
    exec(MODEL, names)
    model, optimizer = build("torch")
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for numbers in ((0, 2), (3, 4)):
        for number in numbers:
            for rank in range(3):
                (model(names["batch"](rank, number)).square().mean() / 6).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    found = replica_of(spec, "torch")
    found.restore(newest_state(tmp_path / "peer-of-3"))
    named = {name.removeprefix("model/"): value for name, value in found.tensors().items()}
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(named[name], parameter.detach(), rtol=1e-5, atol=1e-5)


def test_what_rank_0_cannot_do_ends_the_other_ranks_with_the_reason(tmp_path: Path) -> None:
    spec, other = write_spec(tmp_path, stop_after_steps=5), torch.nn.Linear(2, 2)
    state = Replica(spec, torch.optim.AdamW(other.parameters()), model=other).capture()
    CheckpointStore(tmp_path / "before").save(state)
    leader, follower = errors_of(start_ranks(PEER, tmp_path, "adamw"))
    assert "UnfitError: the run's model has no `0.weight`" in leader
    assert "rank 0 of this peer ended: the run's model has no `0.weight`" in follower
