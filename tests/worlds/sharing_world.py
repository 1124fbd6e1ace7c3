"""Variants of split learning with several clients, on a virtual internet; and SplitFed's averaged parts on its loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from minga.averaging.strategy_choice import StrategyChoice
from minga.core.spec.run_spec import RunSpec
from minga.identity.keys.keys import Identity
from minga.split.computing.applying import Applying, BatchOutcome, BatchWork
from minga.split.computing.halves import ClientHalf, converse
from minga.split.computing.parts import ModelPart, cross_entropy
from minga.split.server.batch_server import BatchServer
from minga.split.sharing.splitfed import TopCopies
from minga.split.sharing.variants import applying_for, half_for
from minga.training.bridge.gradient_port import GradientPort
from minga.training.bridge.thread_bridge import ThreadTask
from minga.training.replica.replica import Replica
from tests.worlds.split_world import SERVER_KEY, RecordingTop, SplitPeer, SplitWorld, batch, layers, values

LEARNING_RATE = 0.1
plain_sgd = partial(torch.optim.SGD, lr=LEARNING_RATE)


def shared_spec(variant: str, *, training: dict[str, Any] | None = None, **split: Any) -> RunSpec:
    """A run spec whose server is the one with `SERVER_KEY`."""
    server = Identity.from_seed(SERVER_KEY).peer_id
    mapping = {"name": "split", "model": {"recipe": "custom"}, "network": {"relay": "none"}}
    sections = {"training": training or {}, "averaging": {"codec": "float32"}, "state": {"digest_every": 1}}
    split = {"variant": variant, "server": server, **split}
    return RunSpec.from_mapping({**mapping, **sections, "split": split}).published({})


def two_parts(seed: int = 3) -> tuple[nn.Module, nn.Module]:
    """Bottom and top of one model."""
    modules = layers(seed)
    return nn.Sequential(*modules[:2]), nn.Sequential(*modules[2:])


class CountedCopies(TopCopies):
    """Says in which of its rounds it applied each batch."""

    def __init__(self, part: ModelPart) -> None:
        super().__init__(part, cross_entropy)
        self.ended = 0
        self.log: list[tuple[str, int]] = []

    def apply(self, work: BatchWork) -> Sequence[BatchOutcome]:
        outcomes = super().apply(work)
        self.log += [(work.client, self.ended) for each in outcomes if each.applied]
        return outcomes

    def settle(self) -> None:
        self.ended += 1
        super().settle()


def shared_core(spec: RunSpec, top: nn.Module, optimizer: Any = plain_sgd) -> BatchServer:
    """The heart of a server of the spec's variant."""
    part = ModelPart([top], optimizer, spec.optimizer)
    applying: Applying
    if spec.split.variant == "splitfed-1":
        applying = CountedCopies(part)
    elif spec.split.variant in ("vanilla", "splitfed-2"):
        applying = RecordingTop(part, cross_entropy)
    else:
        applying = applying_for(spec.split, part, cross_entropy)
    return BatchServer(applying, spec.split, entropy=random.Random(1).randbytes)


def shared_half(
    spec: RunSpec, bottom: nn.Module, name: str = "a", block: int | None = None, optimizer: Any = plain_sgd
) -> ClientHalf:
    """A client's side of the spec's variant, but for what is averaged."""
    return half_for(
        spec.split, bottom, None, ModelPart([bottom], optimizer, spec.optimizer), cross_entropy, name, block
    )


async def add_client(
    world: SplitWorld, bottom: nn.Module, *, block: int | None = None, optimizer: Any = plain_sgd, **settings: Any
) -> SplitPeer:
    """A client of the world's variant enters the run."""
    peer = await world.client(bottom, **settings)
    peer.half = shared_half(world.spec, bottom, peer.peer_id, block, optimizer)
    return peer


class LoopPart(ModelPart):
    """A part that is averaged by the members of a run, on the event loop: `AveragedPart` without a thread."""

    def __init__(self, spec: RunSpec, bottom: nn.Module) -> None:
        super().__init__([bottom], plain_sgd, spec.optimizer)
        assert self.optimizer is not None
        self.replica = Replica(spec, self.optimizer, model=bottom)
        self.port = GradientPort(
            asyncio.get_running_loop(), self.replica, strategy=StrategyChoice.of(spec, self.replica.strategy)
        )
        self.is_taken = False

    @property
    def round(self) -> int:
        return self.replica.step

    def step(self, samples: int = 1, loss: float | None = None) -> None:
        self.is_taken = self.port.add(samples, loss)
        self.replica.zero_grad()

    async def serve(self, until: Callable[[], bool]) -> None:
        """Do what the loop asks for, as the training thread does in production."""
        while True:
            work = self.port.poll()
            if isinstance(work, ThreadTask):
                self.port.finish(work)
            elif work is None and until():
                return
            else:
                await self.port.woken.wait(0.05)


@dataclass(eq=False)
class FedClient:
    """A client of SplitFed, and for each of its batches: number, round before it, whether it counted in the average."""

    peer: SplitPeer
    part: LoopPart
    samples: int
    log: list[tuple[int, int, bool]] = field(default_factory=list)
    is_done: bool = False

    async def train(self, first: int, rounds: int, pause_s: float) -> None:
        """Train until so many rounds are over, and follow the others then."""
        spec_half, exchange = self.peer.half, self.peer.exchange
        assert spec_half is not None
        assert exchange is not None
        number = first
        member = self.peer.session.member
        assert member is not None
        await self.part.serve(member.ready.is_set)
        while self.part.round < rounds:
            await asyncio.sleep(pause_s)
            await self.part.serve(lambda: True)
            begun = self.part.round
            self.log.append((number, begun, False))
            loss = await converse(spec_half.train(*batch(number, self.samples)), exchange.ask)
            self.log[-1] = (number, begun, loss is not None and self.part.is_taken)
            await self.part.serve(lambda: True)
            number += 1
        self.part.port.pause()
        self.is_done = True
        await self.part.serve(lambda: False)


async def add_fed_client(world: SplitWorld, samples: int) -> FedClient:
    """A client enters whose part is averaged with those of the others."""
    bottom, _ = two_parts()
    peer = await world.client(bottom)

    async def attach() -> LoopPart:
        part = LoopPart(world.spec, bottom)
        peer.session.attach(part.replica, part.port)
        peer.half = ClientHalf(bottom, None, part, cross_entropy, world.spec.split, peer.peer_id)
        return part

    return FedClient(peer, await peer.network.process.run(attach()), samples)


class FedJudge:
    """SplitFed as a plain loop over what was applied, in that order: bottoms by rounds, and tops.

    A batch of client j has the bottom of its round, θ_r; θ_{r+1} = θ_r - lr Σ n_b g_b / Σ n_b over the batches that
    counted. By v1 (`copies`) the top is Σ n_j / n times the copies of a round, by v2 there is one.
    """

    def __init__(self, clients: dict[str, FedClient], *, copies: bool) -> None:
        bottom, self.top = two_parts()
        self.bottoms = [bottom]
        self._clients, self._uses_copies = clients, copies
        self._next = dict.fromkeys(clients, 0)
        self._gradients: dict[int, list[tuple[int, list[torch.Tensor]]]] = {}
        self._copies: dict[str, tuple[nn.Module, int]] = {}
        self._round = 0

    def apply(self, client: str, server_round: int) -> None:
        """The server applied the next batch of a client, in a round of its own."""
        if server_round != self._round:
            self.end_round()
            self._round = server_round
        log, samples = self._clients[client].log, self._clients[client].samples
        number, begun, counts = log[self._next[client]]
        self._next[client] += 1
        bottom = self.bottom(begun)
        top, seen = self._copies.get(client, (_copy(self.top), 0)) if self._uses_copies else (self.top, 0)
        inputs, labels = batch(number, samples)
        loss = cross_entropy(top(bottom(inputs)), labels)
        mine, theirs = list(bottom.parameters()), list(top.parameters())
        found = torch.autograd.grad(loss, [*mine, *theirs])
        with torch.no_grad():
            for parameter, gradient in zip(theirs, found[len(mine) :], strict=True):
                parameter.sub_(LEARNING_RATE * gradient)
        if self._uses_copies:
            self._copies[client] = top, seen + samples
        if counts:
            self._gradients.setdefault(begun, []).append((samples, list(found[: len(mine)])))

    def bottom(self, round: int) -> nn.Module:
        """θ of a round."""
        while len(self.bottoms) <= round:
            made, given = _copy(self.bottoms[-1]), self._gradients[len(self.bottoms) - 1]
            total = sum(samples for samples, _ in given)
            with torch.no_grad():
                for index, parameter in enumerate(made.parameters()):
                    mean = sum((found[index] * (samples / total) for samples, found in given), torch.zeros(()))
                    parameter.sub_(LEARNING_RATE * mean)
            self.bottoms.append(made)
        return self.bottoms[round]

    def end_round(self) -> None:
        """Average the copies."""
        if not self._copies:
            return
        total = sum(samples for _, samples in self._copies.values())
        mean = sum((values(copy) * (samples / total) for copy, samples in self._copies.values()), torch.zeros(()))
        nn.utils.vector_to_parameters(mean, self.top.parameters())
        self._copies = {}


def _copy(module: nn.Module) -> nn.Module:
    _, made = two_parts()
    if len(list(module.parameters())) != len(list(made.parameters())):
        made, _ = two_parts()
    made.load_state_dict(module.state_dict())
    return made
