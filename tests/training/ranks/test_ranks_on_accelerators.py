"""Sums of gradients whose shares lie on the devices of the ranks: pretended ones (`tests/worlds/pretend_device.py`)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.worlds.rank_processes import errors_of, results_of_ranks, start_ranks, write_spec
from tests.worlds.seeds import soaked

pytestmark = pytest.mark.skipif(
    not (dist.is_gloo_available() and sys.platform == "linux"), reason="needs gloo, on the interface of Linux"
)

RANK = """
import contextlib, logging, math, threading
from collections import Counter

from torch import nn
from torch.utils._pytree import tree_leaves

from tests.worlds.pretend_device import PretendTensor, pretend, pretended_device
from benchmarks import _transfers
from benchmarks._transfers import TransferCount
from minga.averaging.codecs.residual import ContributionFate
from minga.core.spec.run_spec import RunSpec
from minga.optim import LAMB, SGD
from minga.training.ranks import process_group
from minga.training.ranks.process_group import ProcessGroup
from minga.training.ranks.rank_sums import RankShares
from minga.training.ranks.sharded_replicas import make_replica
from minga.training.replica.accelerator import verdict_of
from minga.training.strategy.local import Local
from minga.training.strategy.synchronous import Delayed, Synchronous

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


class Distributed(nn.parallel.DistributedDataParallel):
    '''Gradients are combined by `Trainer`: PyTorch's own reducer knows no pretended devices.'''

    def __init__(self, module):
        nn.Module.__init__(self)
        self.module, self.process_group, self.parameters_to_ignore = module, None, set()


def away(tensor):
    return tensor.to(f"cuda:{rank}") if "cuda" in words else PretendTensor(tensor)


def away_model(model):
    return model.to(f"cuda:{rank}") if "cuda" in words else pretend(model)


class Trainer:
    '''One rank's model, in RAM or on its device, with the replica of it.'''

    def __init__(self, is_away, is_distributed=False):
        torch.manual_seed(0)
        self.net, self.is_away, self.is_distributed = Net(), is_away, is_distributed
        model = away_model(self.net) if is_away else self.net
        # With one of them steps are as large as gradients, which the other does not show.
        inner = (SGD if words[0].startswith("local") else LAMB)(model.parameters(), lr=0.1)
        most = None if words[0].startswith("local") else 0.5
        self.ranks = ProcessGroup()
        if is_distributed:  # as far as the replica sees it
            model = Distributed(model)
        self.replica = make_replica(self.ranks, SPEC, inner, is_sharded=False, model=model, max_grad_norm=most)
        assert (self.replica._shares is not None) is is_away

    def backward(self, number, breaks=False):
        assert all(parameter.grad is None for parameter in self.net.parameters()), "the program is to add to them"
        made = torch.Generator().manual_seed(1000 * rank + number)
        tokens, labels = torch.randint(50, (8,), generator=made), torch.arange(8) % 5
        weight = torch.tensor(math.inf if breaks else 1.0)
        if self.is_away:
            tokens, labels, weight = map(away, (tokens, labels, weight))
        loss = nn.functional.cross_entropy(self.net(tokens, rarely=number % 3 == 0), labels) * weight
        loss.backward()
        for parameter in self.net.parameters() if self.is_distributed else ():
            if parameter.grad is not None:
                mean = parameter.grad.cpu() / size
                dist.all_reduce(mean)
                parameter.grad.copy_(mean)

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


class Count(TransferCount):
    # what travels from device to device, too

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d" and any(
            isinstance(each, torch.Tensor) and not each.is_cpu for each in tree_leaves(args)
        ):
            self.found.setdefault(self.phase, Counter())["collectives"] += 1
        return super().__torch_dispatch__(func, types, args, kwargs)


count, carried, carry = Count(), TransferCount(), RankShares._carry
carried.phase = "seal"


def counted(self):
    with carried:
        carry(self)


if len(words) == 1:  # a kind that is counted
    RankShares._carry = counted


def before_last(trainer):
    '''Before the last micro-batch of a round.'''


def life(trainer, kind, settings, aborts):
    '''Three rounds, in the second of which all comes that may come; the digest at the end. What is contributed is asked
    for while the other ranks are elsewhere.
    '''
    strategy = kind(threading.Condition(), unit=12, settings=kind.Settings(**settings))
    if rank == 0:
        strategy.begin(trainer.replica)
    trainer.part()
    late = kind is not Synchronous
    for step in range(1, 4):
        if step == 2:  # before that the optimizer looks how the device rounds
            count.found.clear()
            carried.found.clear()
        for i in range(3):
            if (step, i) == (2, 2) and trainer.is_away:
                before_last(trainer)
            trainer.take(strategy, 10 * step + i, breaks=(step, i) == (2, 1))
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
            if step == 2 and aborts:
                strategy.take_back()
                if strategy.has_leftover:
                    strategy.merge()
        if step == 2 and aborts:
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
    return trainer.replica.digest()
"""

EQUAL = (
    RANK
    + """
Kind, settings = KINDS[words[0]]
aborts, is_distributed = "aborts" in words, "ddp" in words
ways = [word for word in words if word == "messages" or word.startswith("no-room")] or [""]
said, told, digests, usual = [], [], [], process_group.SHARED_MEMORY
logging.getLogger("minga.training").addFilter(lambda record: said.append(record.getMessage()) or True)


def lack(*_):
    raise torch.OutOfMemoryError


empty = torch.empty


def lack_there(*shape, device, **settings):
    if torch.device(device).type == "cpu":
        return empty(*shape, device=device, **settings)
    torch.empty = empty
    raise torch.OutOfMemoryError


def before_last(trainer):
    if rank == size - 1 and way == "no-room-for-part":
        torch.empty = lack_there
    if rank == size - 1 and way == "no-room-to-combine":
        trainer.replica._shares._joined = lack
    if rank == size - 1 and way == "no-room-for-share":
        trainer.replica._shares.accumulate_there = lack


_transfers.LARGE = 1000
with pretended_device():
    with count if len(words) == 1 else contextlib.nullcontext():
        for way in ways:
            process_group.SHARED_MEMORY = "/nowhere" if way == "messages" else usual  # as on several machines
            said.clear()
            first = Trainer(is_away=True, is_distributed=is_distributed)
            first.replica.look_at_loop = lambda: None  # in the first steps it looks at the gradients
            digests.append(life(first, Kind, settings, aborts))
            first.replica._shares.end()
            told.append(len([each for each in said if "in RAM instead" in each]))
    found = {phase: dict(numbers) for phase, numbers in count.found.items()}
    found["seal"] = found.get("seal", {}) | dict(carried.found.get("seal", {}))
    twin = Trainer(is_away=False, is_distributed=is_distributed)
    digests.append(life(twin, Kind, settings, aborts))
    values = [torch.cat([p.detach().float().cpu().reshape(-1) for p in one.net.parameters()]) for one in (first, twin)]
torch.testing.assert_close(*values, rtol=1e-3, atol=2e-3)
values = [each.double().square().sum().item() for each in values]
say(digests=digests, told=told, values=values, numel=twin.replica.vector.parameters_numel, found=found)
dist.destroy_process_group()
"""
)

SHARDS = (
    RANK
    + """
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from minga.training.ranks import sharded_replicas
from minga.training.ranks.shard_map import rows_of

SHAPES = [(500, 4), (3, 100), (1, 7)]  # the last rank has nothing of one
sharded_replicas._resharding = lambda model: []  # FSDP knows no pretended devices, but its tensors do


def shard(whole):
    first, last = rows_of(rank, size, len(whole))
    local = PretendTensor(whole[first:last].clone())
    return DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride())


def gradients(number):
    made = torch.Generator().manual_seed(number)
    return [torch.randn(shape, generator=made) for shape in SHAPES]


_transfers.LARGE = 100
with pretended_device(), count:
    mesh = DeviceMesh("lazy", list(range(size)), _init_backend=False)
    model = nn.ParameterList([nn.Parameter(shard(torch.zeros(shape))) for shape in SHAPES])
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    replica = make_replica(ProcessGroup(), SPEC, inner, is_sharded=True, model=model)
    replica.look_at_loop = lambda: None  # in the first steps it looks at the gradients
    total = replica.new_sum() if rank == 0 else replica.obey()
    if rank == 0:
        replica.release(finished=False)
    count.found.clear()
    expected = [torch.zeros(shape) for shape in SHAPES]
    for number in range(4):
        breaks = number == 2
        for parameter, gradient, mean in zip(model, gradients(number), expected):
            parameter.grad = shard(gradient)
            if breaks and rank == size - 1:
                local = parameter.grad.to_local()
                local.fill_(math.nan)
            if not breaks:
                mean.add_(gradient, alpha=0.5)
        with count.during("micro-batch"):
            assert replica.collect(4) == 4 * size
            if rank == 0:
                assert verdict_of(total.add(0.5)) is not breaks
                replica.release(finished=False)
            else:
                replica.obey()
    if rank == 0:
        with count.during("seal"):
            vector = total.vector()
        placed = torch.cat([each.reshape(-1) for each in expected])
        assert torch.equal(vector[: placed.numel()], placed)
        assert vector[placed.numel() :].all()
    dist.barrier()
    count.phase = "update"
    replica.vector.load_gradients(vector if rank == 0 else replica.vector.new())
    for parameter, mean in zip(model, expected):
        assert torch.equal(parameter.grad.to_local().cpu(), mean[slice(*rows_of(rank, size, len(mean)))])
    count.phase = ""
    replica._shares.end()
brought = (count if rank == 0 else carried).found["seal"]
say(brought=brought, micro_batch=count.found["micro-batch"], update=count.found["update"])
dist.destroy_process_group()
"""
)

DEAD = (
    RANK
    + """
with pretended_device():
    trainer = Trainer(is_away=True)
    strategy = Synchronous(threading.Condition(), unit=12)
    if rank == 0:
        strategy.begin(trainer.replica)
    else:
        RankShares._bring = lambda *_: os._exit(3)
    trainer.part()
    trainer.take(strategy, 1)
    if rank == 1:
        threading.Event().wait(30.0)
    strategy.contribution()
"""
)

FULL = (
    RANK
    + """
sum_up = dist.all_reduce


def lack(tensor, group=None):
    if not tensor.is_cpu:
        raise dist.DistBackendError("NCCL error: Cuda failure 2 'out of memory'")
    sum_up(tensor, group=group)


dist.all_reduce = lack
with pretended_device():
    Trainer(is_away=True)
"""
)

ELSEWHERE = (
    RANK
    + """
ranks = ProcessGroup()
dist.Backend.default_device_backend_map["meta"] = "gloo"  # as for mps
unknown = ranks.open_devices(torch.device("meta", rank))
torch.set_default_device("meta")
say(opened=[unknown, ranks.open_devices(None)], rows=ranks.rows((1.0 + rank,)))
"""
)

MISSED = (
    RANK
    + """
from minga.training.replica.gradient_sum import DeviceSum

with pretended_device():
    trainer = Trainer(is_away=True)
    strategy = Synchronous(threading.Condition(), unit=12)
    if rank == 0:
        strategy.begin(trainer.replica)
    trainer.part()
    if rank == 0:  # its loop closes the step before its own thread comes to where it misses the other rank
        trainer.backward(1)
        trainer.replica.collect(4)
        verdict_of(strategy.micro_batch(4 * size))
        strategy.count(4 * size)
        strategy.contribution()

    def fail(self, weight):
        raise RuntimeError("an operation of the device failed")

    DeviceSum.add = fail
    try:
        trainer.take(strategy, 1)
    except RuntimeError:
        threading.Event().wait(5.0)  # a program that is slow to end
        os._exit(3)
"""
)

PEER = """
from tests.worlds.pretend_device import PretendTensor, pretend, pretended_device
from minga.optim import LAMB
from minga.training.replica.gradient_sum import DeviceSum

(kind,) = words
with pretended_device():
    peer = enter()
    torch.manual_seed(rank)
    model = pretend(torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3)))
    optimizer = minga.Optimizer(LAMB(model.parameters(), lr=0.05), peer, model=model, max_grad_norm=1.0)
    if rank == 1 and kind == "fails":
        def fail(self):
            raise RuntimeError("the bus is broken")
        DeviceSum.vector = fail
    generator, number = torch.Generator().manual_seed(rank), 0
    while not optimizer.finished and not (kind == "leaves" and number == 5):
        batch = torch.randn(4, 6, generator=generator)
        if kind == "breaks" and rank == 1 and number == 1:
            batch *= torch.nan
        model(PretendTensor(batch)).square().mean().backward()
        optimizer.step(samples=4)
        number += 1
    values = sum(each.detach().double().cpu().sum().item() for each in model.parameters())
    say(number=number, values=values, dropped=optimizer.dropped_micro_batches)
    if peer is not None:
        peer.close()
    dist.destroy_process_group()
"""


NO_ROOM = "delayed/messages/no-room-to-combine/no-room-for-part/no-room-for-share"
KINDS = ["synchronous/ddp", NO_ROOM, "local", soaked("local/ddp"), soaked("local-batch"), soaked("delayed/aborts")]


@pytest.mark.parametrize("kind", KINDS)
def test_shares_on_devices_end_where_sums_at_rank_0_do(kind: str, tmp_path: Path) -> None:
    found = results_of_ranks(EQUAL, tmp_path, *kind.split("/"))
    assert found[0]["values"] == found[1]["values"]
    for each in found if "aborts" not in kind else ():  # a sum that goes on after it was brought has another order
        assert len(set(each["digests"])) == 1
    if kind == NO_ROOM:  # which changes nothing but the place
        assert [each["told"] for each in found] == [[0, 1, 1, 0], [0, 1, 1, 1]]
    if kind == "local":  # steps of this peer alone cross nothing
        for each in found:
            assert each["found"]["micro-batch"]["collectives"] == 23  # two each, and one for each step that is taken
            assert not each["found"]["micro-batch"].keys() & {"to_host", "to_device"}


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
@pytest.mark.parametrize("kind", ["delayed/cuda", "local/cuda", "delayed/aborts/cuda"])
def test_cards_sum_their_gradients(kind: str, tmp_path: Path) -> None:
    """By NCCL; with one card that is a sum of one rank."""
    found = results_of_ranks(EQUAL, tmp_path, *kind.split("/"), size=min(2, torch.cuda.device_count()))
    assert found[0]["values"] == found[-1]["values"]


def test_a_share_crosses_once_a_round_and_nothing_for_a_micro_batch(tmp_path: Path) -> None:
    rounds, micro_batches, numel, rest = 2, 6, 8110, 609
    for rank, each in enumerate(results_of_ranks(EQUAL, tmp_path, "synchronous", size=3)):
        part = -(-numel // 3)
        share = min(part, numel - rank * part)
        assert each["numel"] == numel
        found = each["found"]
        assert found["micro-batch"] == {"collectives": 2 * micro_batches, "reads": micro_batches}
        assert found["seal"] == {"to_host": rounds * (share + (rest if rank == 0 else 0))}
        assert found["update"].get("to_host", 0) == 0
        assert (found["update"]["to_device"], found["update"]["collectives"]) == (rounds * part, rounds)


def test_a_micro_batch_that_is_broken_in_one_rank_counts_for_nothing_in_all(tmp_path: Path) -> None:
    write_spec(tmp_path, stop_after_steps=2)
    found = results_of_ranks(PEER, tmp_path, "breaks")
    assert [each["number"] for each in found] == [2 * 4 + 1] * 2
    assert found[0]["dropped"] == 1
    assert found[0]["values"] == found[1]["values"]


def test_a_share_that_cannot_be_brought_ends_all_ranks_with_words(tmp_path: Path) -> None:
    write_spec(tmp_path, stop_after_steps=6, strategy="delayed")
    leader, follower = errors_of(start_ranks(PEER, tmp_path, "fails"))
    assert "ClosedError: a process of this peer could not bring its share of the gradients" in leader
    assert "RuntimeError: the bus is broken" in follower
    assert "rank 0 of this peer ended: a process of this peer could not bring" in follower


def test_a_share_without_a_micro_batch_that_the_others_added_is_not_brought(tmp_path: Path) -> None:
    leader, follower = errors_of(start_ranks(MISSED, tmp_path, "synchronous"))
    assert "ClosedError: a process of this peer could not bring its share of the gradients" in leader
    assert "an operation of the device failed" in follower


def test_a_device_without_memory_to_take_part_says_so_before_the_first_micro_batch(tmp_path: Path) -> None:
    for said in errors_of(start_ranks(FULL, tmp_path, "synchronous")):
        assert "ClosedError: this process lacks memory to reach the others: NCCL error: Cuda failure 2" in said


def test_programs_whose_default_device_is_another_one_tell_each_other_numbers(tmp_path: Path) -> None:
    """Nor are devices summed on that their backend does not know."""
    found = results_of_ranks(ELSEWHERE, tmp_path, "synchronous")
    assert found == [{"opened": [False, False], "rows": [[1.0], [2.0]]}] * 2


def test_the_death_of_a_rank_whose_share_is_wanted_ends_the_others(tmp_path: Path) -> None:
    leader, _ = errors_of(start_ranks(DEAD, tmp_path, "synchronous"))
    assert "ClosedError: another process of this peer has ended" in leader


def test_a_program_may_leave_a_run_that_goes_on(tmp_path: Path) -> None:
    write_spec(tmp_path, stop_after_steps=6, strategy="delayed")
    assert [each["number"] for each in results_of_ranks(PEER, tmp_path, "leaves")] == [5, 5]


def test_shards_on_devices_stay_there_until_a_round_wants_them(tmp_path: Path) -> None:
    shares = [668 + 100 + 7, 668 + 100, 664 + 100]
    for rank, each in enumerate(results_of_ranks(SHARDS, tmp_path, "shards", size=3)):
        assert each["micro_batch"] == {"reads": 4, "collectives": 4}
        assert each["brought"] == {"to_host": shares[rank] + (3 if rank == 0 else 0)}
        assert each["update"]["to_device"] == shares[rank] - (7 if rank == 0 else 0)  # which is a small copy
