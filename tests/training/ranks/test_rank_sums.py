"""Sums of gradients whose shares lie on the devices of the ranks: pretended ones (`benchmarks/_pretend_device.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.worlds import forked

pytestmark = pytest.mark.skipif(
    not (dist.is_gloo_available() and sys.platform == "linux"), reason="needs gloo, on the interface of Linux"
)

RANK = """
import contextlib, json, logging, math, os, pathlib, sys, threading
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks._pretend_device import PretendTensor, pretend, pretended_device
from benchmarks._transfers import TransferCount
from minga.averaging.codecs.residual import ContributionFate
from minga.core.errors import ClosedError
from minga.core.spec.run_spec import RunSpec
from minga.optim import LAMB
from minga.training.ranks import process_group, rank_sums
from minga.training.ranks.process_group import ProcessGroup
from minga.training.ranks.rank_sums import RankShares, RankSum
from minga.training.ranks.replica_choice import make_replica
from minga.training.replica.accelerator import verdict_of
from minga.training.replica.replica import Replica
from minga.training.strategy.local import Local
from minga.training.strategy.synchronous import Delayed, Synchronous

torch.set_num_threads(1)
folder, kind = pathlib.Path(sys.argv[1]), sys.argv[2]
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method="file://" + str(folder / "store"), rank=rank, world_size=size)
SPEC = RunSpec.from_mapping({"name": "ranks", "training": {"buffers": "average"}})
KINDS = {"synchronous": (Synchronous, {}), "delayed": (Delayed, {}), "local": (Local, {}),
         "local-batch": (Local, {"local_batch": 16})}


class Net(nn.Module):
    '''Tensors of several sizes and dtypes, one of which rarely has a gradient, and buffers.'''

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 12)
        self.first, self.norm, self.head = nn.Linear(12, 300), nn.BatchNorm1d(300), nn.Linear(300, 5)
        self.rare = nn.Linear(300, 5).to(torch.bfloat16)

    def forward(self, tokens, rarely):
        hidden = self.norm(self.first(self.table(tokens)))
        found = self.head(hidden)
        return found + self.rare(hidden.to(torch.bfloat16)).float() if rarely else found


class Trainer:
    '''One rank's model, in RAM or on its device, with the replica of it.'''

    def __init__(self, is_away, of_torch=False):
        torch.manual_seed(0)
        self.net, self.is_away = Net(), is_away
        model = pretend(self.net) if is_away else self.net
        inner = LAMB(model.parameters(), lr=0.1)
        self.ranks = ProcessGroup()
        self.replica = make_replica(self.ranks, SPEC, inner, is_sharded=False, model=model, max_grad_norm=0.5)
        assert (self.replica._shares is not None) is is_away

    def backward(self, number, breaks=False):
        made = torch.Generator().manual_seed(1000 * rank + number)
        tokens, labels = torch.randint(50, (8,), generator=made), torch.arange(8) % 5
        weight = torch.tensor(math.inf if breaks else 1.0)
        if self.is_away:
            tokens, labels, weight = PretendTensor(tokens), PretendTensor(labels), PretendTensor(weight)
        loss = nn.functional.cross_entropy(self.net(tokens, rarely=number % 3 == 0), labels) * weight
        loss.backward()

    def take(self, strategy, number, breaks=False):
        '''One micro-batch of 4 samples in each rank.'''
        self.backward(number, breaks)
        with count.during("micro-batch"):
            assert self.replica.collect(4) == 4 * size
            taken = strategy.micro_batch(4 * size) if rank == 0 else None
            self.replica.zero_grad()
            self.part()
        if rank == 0 and verdict_of(taken):
            strategy.count(4 * size)

    def part(self):
        if rank == 0:
            self.replica.release(finished=False)
        else:
            self.replica.obey()


count = TransferCount()


def life(trainer, kind, settings, aborts):
    '''Five rounds with all that may come; the digest at the end. What is contributed is asked for while the other
    ranks are elsewhere.
    '''
    strategy = kind(threading.Condition(), unit=12, settings=kind.Settings(**settings))
    if rank == 0:
        strategy.begin(trainer.replica)
    trainer.part()
    late = kind is not Synchronous
    for step in range(1, 6):
        for i in range(3):
            trainer.take(strategy, 10 * step + i, breaks=step in (2, 3) and i == 1)
        sent = None
        if rank == 0:
            strategy.close()
            with count.during("seal"):
                sent, samples = strategy.contribution()
            before = sent.clone()
        dist.barrier()
        if late:
            trainer.take(strategy, 10 * step + 5)
        if rank == 0:
            again, _ = strategy.contribution()  # for a repair
            assert torch.equal(again, before), "what is sent again is not what was sent"
            if step == 3 and aborts:
                strategy.take_back()
                if strategy.has_leftover:
                    strategy.merge()
        if step == 3 and aborts:
            trainer.take(strategy, 10 * step + 6)
            if rank == 0:
                strategy.close()
                sent, more = strategy.contribution()
                assert more == samples + 4 * size * (1 + late) or kind is Local
        if rank == 0:
            with count.during("update"):
                strategy.absorb(step, sent.clone(), ContributionFate.COUNTED)
        else:
            count.phase = "update"
        trainer.part()
        count.phase = ""
        trainer.replica.zero_grad()
    return trainer.replica.digest()
"""

EQUAL = (
    RANK
    + """
words = kind.split("/")
Kind, settings = KINDS[words[0]]
aborts, lacks, messages = "aborts" in words, "lacks" in words, "messages" in words
if messages:
    process_group.SHARED_MEMORY = "/nowhere"  # as on several machines
with pretended_device() as device:
    away = Trainer(is_away=True)
    digests = [life(away, Kind, settings, aborts)]
    away.replica._shares.end()
    twin = Trainer(is_away=False)
    digests.append(life(twin, Kind, settings, aborts))
    values = [torch.cat([p.detach().float().cpu().reshape(-1) for p in one.net.parameters()]) for one in (away, twin)]
torch.testing.assert_close(*values, rtol=1e-3, atol=2e-3)
print(json.dumps({"digests": digests, "values": [each.double().square().sum().item() for each in values]}))
dist.destroy_process_group()
"""
)


def run(script: str, folder: Path, kind: str, size: int = 2) -> list[dict[str, Any]]:
    processes = []
    for rank in range(size):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "GLOO_SOCKET_IFNAME": "lo"}
        pipe = subprocess.PIPE
        processes.append(forked.start("-c", script, str(folder), kind, env=environment, stdout=pipe, stderr=pipe))
    return forked.results_of(processes, 60.0)


@pytest.mark.parametrize("kind", ["synchronous", "delayed/messages", "local", "local-batch", "delayed/aborts"])
def test_shares_on_devices_end_where_sums_at_rank_0_do(kind: str, tmp_path: Path) -> None:
    found = run(EQUAL, tmp_path, kind)
    assert found[0]["values"] == found[1]["values"]
    for each in found if "aborts" not in kind else ():  # a sum that goes on after it was brought has another order
        assert each["digests"][0] == each["digests"][1]
