"""The path of a gradient on an accelerator: one that copies as late as it may (`tests/worlds/pretend_device.py`)."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import minga
from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.strategy_choice import StrategyChoice
from minga.core.spec.run_spec import RunSpec
from minga.optim import LAMB
from minga.training.bridge.gradient_port import GradientPort
from minga.training.bridge.thread_bridge import WAIT, ThreadTask
from minga.training.replica import accelerator, flat_vector
from minga.training.replica.accelerator import LateVerdict, verdict_of
from minga.training.replica.gradient_sum import DeviceSum
from minga.training.replica.host_memory import HostMemory
from minga.training.replica.replica import Replica
from minga.training.strategy.centred import Elastic
from minga.training.strategy.interface import Strategy
from minga.training.strategy.local import Local
from minga.training.strategy.synchronous import Delayed, Synchronous
from tests.worlds.pretend_device import PretendModule, PretendStream, PretendTensor, pretend, pretended_device
from tests.worlds.script_peers import Machine, run_scripts, spec_of
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import virtually

SPEC = RunSpec.from_mapping({"name": "device", "training": {"buffers": "average"}})


@pytest.fixture(autouse=True)
def device() -> Iterator[PretendModule]:
    with pretended_device() as module:
        yield module


class Net(nn.Module):
    """Tensors of several sizes and dtypes, some of which rarely have a gradient, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 12)
        self.first, self.norm, self.head = nn.Linear(12, 300), nn.BatchNorm1d(300), nn.Linear(300, 5)
        self.rare = nn.Linear(300, 5).to(torch.bfloat16)

    def forward(self, tokens: torch.Tensor, *, rarely: bool) -> torch.Tensor:
        hidden = self.norm(self.first(self.table(tokens)))
        found: torch.Tensor = self.head(hidden)
        return found + self.rare(hidden.to(torch.bfloat16)).float() if rarely else found


class Trainer:
    """A model, in RAM or on the device, with the replica of it."""

    def __init__(self, *, is_away: bool, max_grad_norm: float = 0.5) -> None:
        torch.manual_seed(0)
        self.net, self.is_away = Net(), is_away
        model = pretend(self.net) if is_away else self.net
        self.replica = Replica(SPEC, LAMB(model.parameters(), lr=0.1), model=model, max_grad_norm=max_grad_norm)

    def backward(self, number: int, *, breaks: bool = False) -> torch.Tensor:
        """Set the gradients of a micro-batch; its loss."""
        made = torch.Generator().manual_seed(number)
        tokens, labels = torch.randint(50, (8,), generator=made), torch.arange(8) % 5
        weight = torch.tensor(math.inf if breaks else 1.0)
        if self.is_away:
            tokens, labels, weight = PretendTensor(tokens), PretendTensor(labels), PretendTensor(weight)
        loss = nn.functional.cross_entropy(self.net(tokens, rarely=number % 3 == 0), labels) * weight
        loss.backward()  # type: ignore[no-untyped-call]
        if breaks:
            self.net.norm.running_mean.fill_(math.nan)  # type: ignore[union-attr]
        return loss.detach()


def take(trainer: Trainer, strategy: Strategy, number: int, *, breaks: bool = False) -> bool | LateVerdict:
    """One micro-batch of 4 samples, which counts at once if it is known whether it does."""
    trainer.backward(number, breaks=breaks)
    trainer.replica.collect(4)
    taken = strategy.micro_batch(4)
    if taken is True:
        strategy.count(4)
    trainer.replica.zero_grad()
    return taken


def count(strategy: Strategy, *taken: bool | LateVerdict) -> list[bool]:
    """Which of the micro-batches count, of which those do now that had to be waited for."""
    found = []
    for each in taken:
        found.append(each if isinstance(each, bool) else each.wait())
        if found[-1] and not isinstance(each, bool):
            strategy.count(4)
    return found


def life(trainer: Trainer, kind: type[Strategy], settings: dict[str, Any], *, aborts: bool) -> str:
    """Three rounds, in the second of which all comes that may come: a broken micro-batch, a contribution that is asked
    for again for a repair, micro-batches meanwhile, and if it `aborts` a round that comes to nothing; the digest at
    the end.
    """
    strategy = kind(threading.Condition(), unit=12, settings=kind.Settings(**settings))
    strategy.begin(trainer.replica)
    for step in range(1, 4):
        broken = step == 2
        taken = [take(trainer, strategy, 10 * step + i, breaks=broken and i == 1) for i in range(3)]
        assert count(strategy, *taken) == [True, not broken, True]
        strategy.close()
        sent, samples = strategy.contribution()
        assert sent is not None
        before = sent.clone()
        late = [take(trainer, strategy, 10 * step + 5)] if strategy.facts.keeps_late_micro_batches else []
        count(strategy, *late)
        again, _ = strategy.contribution()  # for a repair
        assert again is not None
        assert torch.equal(again, before), "what is sent again is not what was sent"
        if step == 2 and aborts:
            strategy.take_back()
            if strategy.has_leftover:
                strategy.merge()
            count(strategy, take(trainer, strategy, 10 * step + 6))
            strategy.close()
            sent, more = strategy.contribution()
            assert sent is not None
            assert more == samples + 4 * (1 + len(late)) or kind is Local
        strategy.absorb(step, sent.clone(), ContributionFate.COUNTED)
        trainer.replica.zero_grad()
    return trainer.replica.digest()


KINDS = [(Synchronous, {}), (Delayed, {}), (Local, {}), (Local, {"local_batch": 8}), (Local, {"overlap": True})]


@pytest.mark.parametrize(
    ("kind", "settings", "aborts"),
    [
        *(soaked(*each, False) if each == (Local, {}) else (*each, False) for each in KINDS),
        *((*each, True) if each == (Delayed, {}) else soaked(*each, True) for each in KINDS),
    ],
)
def test_sums_on_the_device_end_where_sums_in_ram_do(
    kind: type[Strategy], settings: dict[str, Any], *, aborts: bool
) -> None:
    away, twin = Trainer(is_away=True), Trainer(is_away=False)
    assert away.replica.accelerator is not None
    digests = [life(each, kind, settings, aborts=aborts) for each in (away, twin)]
    if aborts:  # a sum that goes on after it crossed is added up in another order
        values = [
            torch.cat([p.detach().float().cpu().reshape(-1) for p in each.net.parameters()]) for each in (away, twin)
        ]
        torch.testing.assert_close(*values, rtol=1e-3, atol=2e-3)
    else:
        assert digests[0] == digests[1]


@pytest.mark.parametrize("lacks", ["at the start", "after a crossing", "while adding"])
def test_without_room_on_the_device_sums_are_made_in_ram_and_that_is_said_once(
    lacks: str, device: PretendModule, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def lack(*_: object) -> None:
        raise torch.OutOfMemoryError

    if lacks == "at the start":
        for name, number in (("mem_get_info", (900, 1000)), ("memory_reserved", 100), ("max_memory_allocated", 950)):
            monkeypatch.setattr(device, name, lambda _, number=number: number, raising=False)
    trainer, twin = Trainer(is_away=True), Trainer(is_away=False)
    sums = [each.replica.new_sum() for each in (trainer, twin)]
    assert isinstance(sums[0], DeviceSum)
    for number in range(1, 6):
        if number == 3 and lacks == "after a crossing":
            sums[0].vector()
            device.room_bytes = 64
        if number == 3 and lacks == "while adding":
            monkeypatch.setattr(torch, "_foreach_norm", lack)
        for each, total in zip((trainer, twin), sums, strict=True):
            each.backward(number)
            assert each.replica.collect(4) == 4
            taken = total.add(0.25)
            assert isinstance(taken, LateVerdict) is (each is trainer and number < 3 and lacks != "at the start")
            assert verdict_of(taken)
            each.replica.zero_grad()
    assert torch.equal(sums[0].vector(), sums[1].vector())
    assert trainer.replica.accelerator is None
    assert len([each for each in caplog.records if "added up in RAM" in each.message]) == 1


def test_which_gradients_there_were_crosses_once_for_micro_batches_that_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flat_vector, "KEPT_PATTERNS", 2)
    vector = Trainer(is_away=True).replica.vector
    *others, last = vector.parameters()

    def crossed(*, has_last: bool, has_first: bool = True) -> torch.Tensor:
        for parameter, is_there in zip((*others, last), (has_first, *[True] * len(others[1:]), has_last), strict=True):
            parameter.grad = torch.ones_like(parameter) if is_there else None
        vector.present_there(last.device)
        return list(vector._presence_there.values())[-1]

    kept = [crossed(has_last=True), crossed(has_last=False)]
    crossed(has_last=True)
    crossed(has_last=False)
    assert [each is other for each, other in zip(vector._presence_there.values(), kept, strict=True)] == [True, True]
    crossed(has_last=True, has_first=False)
    assert len(vector._presence_there) == 1


def test_streams_that_cannot_wait_for_each_other_are_not_used(
    device: PretendModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "Stream", object)  # those of `torch.mps` know no events
    trainer, twin = Trainer(is_away=True), Trainer(is_away=False)
    assert trainer.replica.accelerator is not None
    assert not trainer.replica.accelerator.has_streams
    assert life(trainer, Local, {}, aborts=False) == life(twin, Local, {}, aborts=False)


def test_where_the_system_allows_no_more_page_locked_memory_other_memory_does(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, twin = Trainer(is_away=True), Trainer(is_away=False)
    refused = []

    def refuse(make: Any, *what: Any, pin_memory: bool = False, **settings: Any) -> Any:
        if pin_memory:
            refused.append(what)
            raise RuntimeError("CUDA error: out of memory")
        return make(*what, **settings)

    for make in (torch.zeros, torch.empty_like):
        monkeypatch.setattr(torch, make.__name__, partial(refuse, make))
    in_ram = HostMemory(trainer.replica.optimizer).values
    assert len(refused) == len(in_ram)
    for parameter, same in zip(trainer.net.parameters(), twin.net.parameters(), strict=True):
        assert torch.equal(in_ram[parameter], same)
    refused.clear()
    trainer.replica.vector.accelerator = None  # as where parameters are on several
    assert torch.equal(trainer.replica.read_values(), twin.replica.read_values())
    assert len(refused) == 1


def test_a_vector_that_crosses_does_not_wait_for_later_micro_batches() -> None:
    trainer = Trainer(is_away=True)
    strategy = Delayed(threading.Condition(), unit=12)
    strategy.begin(trainer.replica)
    count(strategy, take(trainer, strategy, 1))
    strategy.close()
    later = take(trainer, strategy, 2)
    assert isinstance(later, LateVerdict)
    sent, _ = strategy.contribution()
    assert sent is not None
    assert bool(sent.any())
    assert not later.is_known(), "the crossing waited for the device, and not for its own event"
    assert later.wait()


@pytest.mark.parametrize("kind", [Local, Elastic])
def test_other_threads_read_what_a_program_with_a_stream_of_its_own_has_changed(
    kind: type[Strategy], device: PretendModule
) -> None:
    found = list[Any]()
    for is_away in (True, False):
        trainer = Trainer(is_away=is_away)
        trainer.replica._values._is_told = True  # to look at parameters waits for them
        strategy = kind(threading.Condition(), unit=12)
        strategy.begin(trainer.replica)
        with device.stream(PretendStream()):
            take(trainer, strategy, 1)
            thread = threading.Thread(target=lambda: found.append(strategy.contribution()[0]))  # noqa: B023
            thread.start()
            thread.join()
    assert torch.equal(*found)


def test_what_buffers_moved_is_read_behind_the_micro_batch_that_moved_them(
    device: PretendModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, own, followed = Trainer(is_away=True), PretendStream(), list[PretendStream]()
    with device.stream(own):
        trainer.backward(1)
        assert trainer.replica.vector.is_finite()
    monkeypatch.setattr(PretendStream, "wait_event", lambda _, event: followed.append(event._stream))
    assert any(bool(moved.any()) for moved in trainer.replica.moved)
    assert followed == [own]


def test_the_memory_of_a_mean_is_free_again_when_the_update_returns_though_nobody_waits_for_the_update() -> None:
    values = []
    for spoils in (False, True):
        torch.manual_seed(0)
        model = pretend(nn.Linear(6, 5))
        replica = Replica(SPEC, torch.optim.SGD(model.parameters(), lr=0.5, foreach=False), model=model)
        mean = replica.vector.new()
        mean.copy_(torch.arange(mean.numel()))
        replica.apply(mean, 1)
        done = torch.lazy.Event()  # type: ignore[attr-defined]
        done.record(torch.lazy.current_stream())  # type: ignore[attr-defined]
        assert not done.query(), "the update was waited for"
        if spoils:
            mean.zero_()
        values.append(replica.read_values())
    assert torch.equal(*values)


def test_the_state_crosses_in_pieces_of_which_the_next_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    away, twin = Trainer(is_away=True), Trainer(is_away=False)
    for each in (away, twin):
        life(each, Synchronous, {}, aborts=False)
    waits = list[int]()
    finish = PretendStream.finish

    def wait(stream: PretendStream, until: int) -> None:
        waits.append(stream.asked - until)
        finish(stream, until)

    monkeypatch.setattr(PretendStream, "finish", wait)
    values = away.replica.read_values()
    assert waits == [0]
    waits.clear()
    whole = away.replica.capture()
    assert waits == [0], "a state of less than a piece is waited for once"
    waits.clear()
    monkeypatch.setattr(accelerator, "PIECE_BYTES", piece := 5008)
    cut = away.replica.capture()
    assert len(waits) == -(-len(whole.bytes_view) // piece)
    assert all(waits[:-1]), "nothing was on its way behind a piece that was waited for"
    assert waits[-1] == 0
    assert cut.has_bytes_of(whole)
    assert whole.has_bytes_of(twin.replica.capture())
    assert torch.equal(values, twin.replica.read_values())


# ---- the port, which hears late of what a micro-batch counts


class Peer:
    """A port with a trainer on the device, and what the program hears of its micro-batches."""

    def __init__(self, strategy: str) -> None:
        self.trainer = Trainer(is_away=True)
        self.port = GradientPort(asyncio.get_running_loop(), self.trainer.replica, strategy=StrategyChoice(strategy))
        self.heard: list[tuple[int, float | None, bool]] = []
        self.port.on_micro_batch = lambda *heard: self.heard.append(heard)

    def compute(self, number: int, *, samples: int = 4, breaks: bool = False) -> None:
        loss = self.trainer.backward(number, breaks=breaks)
        self.trainer.replica.collect(samples, loss)
        self.port.add(samples, loss)
        self.trainer.replica.zero_grad()

    @property
    def samples(self) -> int:
        """As others see them, though nobody looks whether the device is done."""
        return self.port._strategy.samples


def test_a_loss_comes_with_the_verdict_only_if_it_is_where_the_sum_is() -> None:
    trainer = Trainer(is_away=True)
    own = trainer.backward(0)
    for loss in (own, torch.tensor(2.5, device="meta"), own.cpu()):  # meta: of no device that the sum can have
        trainer.replica.collect(4, loss)
        verdict = trainer.replica.new_sum().add(4.0)
        assert isinstance(verdict, LateVerdict)
        assert verdict.wait()
        assert verdict.loss == (float(own) if loss is own else None)


@pytest.mark.parametrize("strategy", ["synchronous", "delayed"])
def test_a_micro_batch_counts_when_it_is_known_to_be_finite_and_a_broken_one_never_does(strategy: str) -> None:
    @virtually
    async def main() -> None:
        peer = Peer(strategy)
        port = peer.port
        assert port.poll() is None
        seen = []
        for number, breaks in enumerate([False, True, True, False, True, False]):
            await asyncio.sleep(0.5)
            torch.lazy.idle()  # type: ignore[attr-defined]  # it is as quick as the thread
            peer.compute(number, samples=4 + number, breaks=breaks)
            seen.append(peer.samples)
            assert port.poll() is None
        assert seen == [0, 4, 4, 4, 11, 11], "a micro-batch counts one later, and none before it is known"
        assert [(samples, taken) for samples, _, taken in peer.heard] == [
            (4, True), (5, False), (6, False), (7, True), (8, False)
        ]  # fmt: skip
        assert all((loss is not None and math.isfinite(loss)) is taken for _, loss, taken in peer.heard)
        assert port.report().micro_batch_s == pytest.approx(0.5)
        mean, samples = await port.seal()  # what is uncertain is waited for
        assert (samples, len(peer.heard), peer.heard[-1][2]) == (20, 6, True)
        assert mean is not None
        twin = Trainer(is_away=False)
        total = twin.replica.new_sum()
        for number, breaks in enumerate([False, True, True, False, True, False]):
            twin.backward(number, breaks=breaks)
            total.add(4.0 + number)
            twin.replica.zero_grad()
        torch.testing.assert_close(mean, total.divided(20.0), rtol=1e-6, atol=1e-8)

    main()


@virtually
async def test_the_last_micro_batch_of_a_step_is_known_at_once_and_a_broken_one_does_not_fill_it() -> None:
    peer = Peer("synchronous")
    peer.port.limit(8)
    assert peer.port.poll() is None
    peer.compute(1)
    peer.compute(2, breaks=True)
    assert (peer.samples, peer.port.report().parked) == (4, False)
    assert peer.port.poll() is None
    peer.compute(3)
    assert (peer.samples, peer.port.report().parked) == (8, True)
    assert peer.port.poll() is WAIT
    assert (await peer.port.seal())[1] == 8


@virtually
async def test_what_is_uncertain_is_known_before_the_model_changes_or_the_thread_goes_away() -> None:
    peer = Peer("delayed")
    port = peer.port
    assert port.poll() is None
    peer.compute(1)
    assert peer.samples == 0
    done = port.request("look", lambda: peer.samples)
    work = port.poll()
    assert isinstance(work, ThreadTask)
    port.finish(work)
    assert await done == 4
    peer.compute(2)
    port.pause()
    assert port.report().samples == 8
    peer.compute(3)
    assert peer.samples == 8
    torch.lazy.idle()  # type: ignore[attr-defined]
    assert port.report().samples == 12, "nobody asked the device, though it was done"


@virtually
async def test_with_a_round_in_flight_each_micro_batch_counts_once_whether_the_round_counts_or_not() -> None:
    for counts in (True, False):
        peer = Peer("delayed")
        port = peer.port
        port.limit(8)
        assert port.poll() is None
        peer.compute(1)
        peer.compute(2)
        assert port.report().parked
        port.limit_next(100)
        assert port.poll() is None
        peer.compute(3, breaks=True)
        peer.compute(4)
        mean, samples = await port.seal()
        assert samples == 8
        assert mean is not None
        peer.compute(5)
        if counts:
            port.absorb(1, mean.clone(), ContributionFate.COUNTED, 1, 0, 1)
            port.reopen()
        else:
            await port.unseal()
        assert port.poll() is None
        _, samples = await port.seal()
        assert samples == (8 if counts else 16)
        assert [taken for _, _, taken in peer.heard] == [True, True, False, True, True]


# ---- two peers, one of them on the device


def test_a_peer_on_a_device_and_one_in_ram_end_with_equal_bits(tmp_path: Path) -> None:
    def train(machine: Machine, *, is_away: bool) -> tuple[str, int]:
        together = list[int]()
        machine.peer.subscribe(
            lambda event: together.append(int(str(event.fields["members"]))) if event.kind == "step.applied" else None
        )
        torch.manual_seed(0)
        model: nn.Module = nn.Sequential(nn.Linear(6, 300), nn.BatchNorm1d(300), nn.GELU(), nn.Linear(300, 5))
        model = pretend(model) if is_away else model
        optimizer = minga.Optimizer(LAMB(model.parameters(), lr=0.05), machine.peer, model=model, max_grad_norm=0.5)
        machine.meet(optimizer)
        for inputs in machine.batches(4):
            labels = torch.arange(4)
            if is_away:
                inputs, labels = PretendTensor(inputs), PretendTensor(labels)
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step(samples=4, loss=loss)
            if optimizer.finished:
                assert math.isfinite(optimizer.last_loss or math.nan)
                return optimizer.digest(), together.count(2)
        raise AssertionError

    spec = spec_of(16, 4, training={"buffers": "average", "strategy": "delayed"})
    (here, together), (away, _) = run_scripts(spec, [partial(train, is_away=each) for each in (False, True)], tmp_path)
    assert here == away
    assert together >= 2
