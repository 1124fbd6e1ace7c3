"""A server and clients of a cut model, on a virtual internet and without any network."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from minga.access.admission import Admission
from minga.core.events.bus import Event
from minga.core.spec.run_spec import RunSpec
from minga.identity.keys.keys import Identity
from minga.network.interface import PeerId
from minga.network.rpc.run_clock import RunClock
from minga.network.virtual.internet import HostSettings, VirtualInternet, VirtualNetwork
from minga.split.computing.applying import BatchOutcome, BatchWork, OneTop
from minga.split.computing.halves import Answer, BatchFate, ClientHalf, Question, converse
from minga.split.computing.parts import LossFunction, ModelPart, cross_entropy
from minga.split.exchange import Exchange
from minga.split.server.batch_server import BatchServer
from minga.split.server.service import SplitService
from minga.split.sharing.variants import server_of
from minga.split.wire.messages import BatchRequest, BeginRequest
from minga.training.session import Session, SessionSettings

FEATURES, WIDTH, CLASSES = 6, 8, 3
SERVER_KEY = b"\x01" * 32
sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def layers(seed: int = 3) -> list[nn.Module]:
    """A small classifier, layer by layer; alike for equal seeds."""
    torch.manual_seed(seed)
    return [
        nn.Linear(FEATURES, WIDTH),
        nn.Tanh(),
        nn.Linear(WIDTH, WIDTH),
        nn.LayerNorm(WIDTH),
        nn.GELU(),
        nn.Linear(WIDTH, CLASSES),
    ]


def batch(number: int, samples: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of random inputs and labels; the same for equal numbers."""
    chance = torch.Generator().manual_seed(number)
    inputs = torch.randn(samples, FEATURES, generator=chance)
    return inputs, torch.randint(0, CLASSES, (samples,), generator=chance)


def split_spec(variant: str = "vanilla", **split: Any) -> RunSpec:
    """A run spec whose only server is the one with `SERVER_KEY`."""
    server = Identity.from_seed(SERVER_KEY).peer_id
    mapping = {"name": "split", "model": {"recipe": "custom"}, "network": {"relay": "none"}}
    return RunSpec.from_mapping({**mapping, "split": {"variant": variant, "server": server, **split}})


def train_whole(modules: Sequence[nn.Module], batches: Sequence[int], optimizer: Any = sgd) -> list[float]:
    """Train an unsplit model on these batches; the losses."""
    model = nn.Sequential(*modules)
    stepper = optimizer(list(model.parameters()))
    losses = []
    for number in batches:
        inputs, labels = batch(number)
        loss = cross_entropy(model(inputs), labels)
        stepper.zero_grad()
        loss.backward()
        stepper.step()
        losses.append(float(loss.detach()))
    return losses


def values(*modules: nn.Module) -> torch.Tensor:
    """All parameters, one after the other."""
    found = [each.detach().flatten() for module in modules for each in module.parameters()]
    return torch.cat(found) if found else torch.zeros(0)


class RecordingTop(OneTop):
    """Keeps what it was given, and which of it it applied."""

    def __init__(self, part: ModelPart, loss: LossFunction | None) -> None:
        super().__init__(part, loss)
        self.given: list[BatchWork] = []
        self.applied: list[BatchWork] = []

    def apply(self, work: BatchWork) -> Sequence[BatchOutcome]:
        self.given.append(work)
        outcomes = super().apply(work)
        self.applied += [each.work for each in outcomes if each.applied]
        return outcomes


def make_core(spec: RunSpec, top: nn.Module, optimizer: Any = sgd, **settings: Any) -> BatchServer:
    """The heart of a server, of which `applying` keeps what it was given."""
    part = ModelPart([top], optimizer, spec.optimizer)
    loss = cross_entropy if spec.split.variant == "vanilla" else None
    chance = random.Random(1)
    return BatchServer(RecordingTop(part, loss), spec.split, entropy=chance.randbytes, **settings)


def make_half(
    spec: RunSpec, bottom: nn.Module, head: nn.Module | None = None, optimizer: Any = sgd, name: str = "a"
) -> ClientHalf:
    """The parts of a client."""
    part = ModelPart([bottom] if head is None else [bottom, head], optimizer, spec.optimizer)
    return ClientHalf(bottom, head, part, cross_entropy, spec.split, name)


@dataclass
class Desk:
    """A client that asks the heart of a server directly. `lose` says of each answer whether it is lost."""

    core: BatchServer
    client: str = "a"
    session: int = 0
    number: int = 1
    lose: Callable[[], bool] = lambda: False

    def begin(self) -> None:
        """Begin a session."""
        self.session, self.number = self.core.begin(self.client, BeginRequest())[0].session, 1

    def request(self, question: Question) -> BatchRequest:
        """What the question is as a message."""
        is_numbered = question.kind != "predict"
        return BatchRequest(
            question.kind,
            self.session if is_numbered else 0,
            self.number if is_numbered else 0,
            question.tensors.headers,
            question.labels.headers,
            question.wants_gradients,
        )

    async def ask(self, question: Question) -> Answer | BatchFate:
        """Ask until an answer comes through."""
        if not self.session:
            self.begin()
        while True:
            request = self.request(question)
            self.core.check(self.client, request)
            reply = self.core.admit(self.client, request)
            if reply is None:
                bodies = (*question.tensors.bodies, *question.labels.bodies)
                (finished,) = self.core.take(self.client, request, bodies)
                self.core.note(request, finished)
                if isinstance(finished.reply, Exception):
                    raise finished.reply
                reply = finished.reply
            if not self.lose():
                self.number += question.kind != "predict"
                return Answer("server", reply)


@dataclass(eq=False)
class SplitPeer:
    """One host of the virtual internet in a run."""

    network: VirtualNetwork
    session: Session
    events: list[Event] = field(default_factory=list)
    half: ClientHalf | None = None
    exchange: Exchange | None = None
    core: BatchServer | None = None
    service: SplitService | None = None
    losses: dict[int, float | None] = field(default_factory=dict)

    @property
    def peer_id(self) -> PeerId:
        return self.network.peer_id

    def said(self, kind: str) -> list[Event]:
        """Its events of one kind."""
        return [event for event in self.events if event.kind == kind]

    async def train(self, numbers: Sequence[int], samples: int = 8) -> None:
        """Train on these batches, one after the other; what came of each stands in `losses`."""
        assert self.half is not None
        assert self.exchange is not None
        for number in numbers:
            inputs, labels = batch(number, samples)
            self.losses[number] = await converse(self.half.train(inputs, labels), self.exchange.ask)


class SplitWorld:
    """A run on a virtual internet; the peer that comes first is the first that others meet."""

    def __init__(self, spec: RunSpec, seed: int = 0) -> None:
        self.spec, self.internet = spec, VirtualInternet(seed)
        self.peers: list[SplitPeer] = []

    async def join(self, key: bytes | None = None, up: float | None = None, **settings: Any) -> SplitPeer:
        """A peer enters the run; `up` are the bytes per second of its uplink."""
        name = None if key is None else key.hex()[:8]
        host = HostSettings(latency_s=0.01, up_bytes_per_s=up)
        network = self.internet.host(host, name=name, private_key=key)
        alive = [each.network for each in self.peers if not each.network.state.gone]
        options = SessionSettings(may_be_alone=True, **settings)
        identity = Identity.from_seed(network.private_key)

        async def start() -> SplitPeer:
            entries = [each.address for each in alive]
            admission = Admission(network.peer_id, RunClock.of(network, entries), None)
            admission.open_to_all()
            session = Session(network, identity, self.spec.run_id, options, entries, admission)
            peer = SplitPeer(network, session)
            session.events.subscribe(peer.events.append)
            await session.start()
            session.begin_founding(self.spec, Identity.from_seed(SERVER_KEY).peer_id)
            return peer

        peer = await network.process.run(start())
        self.peers.append(peer)
        return peer

    async def serve(self, top: nn.Module, *, room_bytes: int = 1 << 26, core: BatchServer | None = None) -> SplitPeer:
        """A server enters the run, or enters it again."""
        peer = await self.join(SERVER_KEY)
        peer.core = made = core or make_core(self.spec, top)

        async def begin() -> SplitService:
            return SplitService(peer.session.node, peer.session.board, made, room_bytes=room_bytes)

        peer.service = await peer.network.process.run(begin())
        return peer

    async def client(
        self, bottom: nn.Module, head: nn.Module | None = None, *, patience_s: float = 600.0, **settings: Any
    ) -> SplitPeer:
        """A client enters the run, or enters it again."""
        peer = await self.join(**settings)
        peer.half = make_half(self.spec, bottom, head, name=peer.peer_id)
        node, board, section = peer.session.node, peer.session.board, self.spec.split

        async def begin() -> Exchange:
            return Exchange(node, board, server_of(self.spec), section, patience_s=patience_s)

        peer.exchange = await peer.network.process.run(begin())
        return peer

    def train(self, peer: SplitPeer, numbers: Sequence[int], samples: int = 8) -> asyncio.Task[None]:
        """Let a client train on these batches, as its own process."""
        return peer.network.process.run(peer.train(numbers, samples))

    async def close(self) -> None:
        """Let everybody go."""
        for peer in self.peers:
            if not peer.network.state.gone:
                await peer.network.process.run(peer.session.close())
