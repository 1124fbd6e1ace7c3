"""A swarm in the virtual world: real sessions, real averaging, real optimizers, simulated time.

Each peer trains a small model whose "computation" is a pause of virtual time. Everything else is the code that runs
in production.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from minga.core._errors import ClosedError, ConfigurationError, LocalError, RunFinishedError
from minga.core._events import Event
from minga.core._run_spec import RunSpec
from minga.identity._keys import Identity
from minga.network._interface import Address
from minga.network._virtual import HostSettings, VirtualInternet, VirtualNetwork
from minga.training._port import TrainerPort, Work
from minga.training._replica import Replica
from minga.training._session import Session, SessionSettings

POLL_S = 0.05


@dataclass(frozen=True)
class TrainerSettings:
    """How a simulated trainer computes: `micro_batch` samples in `micro_batch_s` seconds each."""

    micro_batch: int = 4
    micro_batch_s: float = 0.1


class LoggedEvent(NamedTuple):
    """An event and the name of the peer that emitted it."""

    peer: str
    event: Event


@dataclass
class SwarmLog:
    """Events of all peers in the order in which they happened."""

    events: list[LoggedEvent] = field(default_factory=list)

    def of(self, kind: str) -> list[LoggedEvent]:
        """All events of one kind."""
        return [logged for logged in self.events if logged.event.kind == kind]

    def lines(self) -> list[str]:
        """One line of text for each event: equal runs have equal lines."""
        return [f"{logged.peer} {logged.event.json()}" for logged in self.events]


class SimulatedPeer:
    """One peer of a swarm: a host, a session, and a coroutine that trains."""

    def __init__(
        self, name: str, network: VirtualNetwork, session: Session, replica: Replica, settings: TrainerSettings | None
    ) -> None:
        self.name, self.network, self.session, self.replica = name, network, session, replica
        self.settings = settings
        self.samples_done = 0
        self.error: LocalError | None = None

    async def live(self, spec: RunSpec, gradient: Callable[[SimulatedPeer, int], None]) -> None:
        """Join the run and train until the end of the run, of the host or of the program."""
        await self.session.start()
        port = TrainerPort(
            asyncio.get_running_loop(), self.replica.vector.new, delayed=spec.training.strategy == "delayed"
        )
        member = self.session.attach(spec, self.replica, port, contributes=self.settings is not None)
        try:
            await self._serve(port, until=member.ready.is_set)
            while True:
                if self.settings is None:
                    port.pause()
                    await self._serve(port, until=lambda: False)
                else:
                    await asyncio.sleep(self.settings.micro_batch_s)
                    gradient(self, self.settings.micro_batch)
                    if port.add(
                        lambda vector: self.replica.accumulate(vector, self.settings.micro_batch),  # type: ignore[union-attr]
                        self.settings.micro_batch,
                    ):
                        self.samples_done += self.settings.micro_batch
                    self.replica.optimizer.zero_grad()
                    await self._serve(port, until=lambda: True)
        except (RunFinishedError, ClosedError):
            return
        except LocalError as error:
            self.error = error

    async def _serve(self, port: TrainerPort, until: Callable[[], bool]) -> None:
        while True:
            work = port.poll()
            if isinstance(work, Work):
                port.finish(work)
            elif work is None and until():
                return
            else:
                await port.woken.wait(POLL_S)


class Swarm:
    """Peers of one run on one virtual internet, from one seed. Make it on a running (virtual) loop.

    `gradient(peer, samples)` sets the gradients of a micro-batch on the peer's model; the default minimises the
    distance of a small linear model to fixed targets, drawn by peer and count.
    """

    def __init__(
        self,
        spec: RunSpec,
        *,
        seed: int = 0,
        make_replica: Callable[[RunSpec], Replica] | None = None,
        gradient: Callable[[SimulatedPeer, int], None] | None = None,
    ) -> None:
        self.spec, self.log, self.internet = spec, SwarmLog(), VirtualInternet(seed)
        self.peers: dict[str, SimulatedPeer] = {}
        self._make_replica = make_replica or small_replica
        self._gradient = gradient or pull_to_target
        self._tasks: list[asyncio.Task[None]] = []

    def add(
        self,
        host: HostSettings | None = None,
        trainer: TrainerSettings | None = None,
        *,
        auxiliary: bool = False,
        name: str | None = None,
        max_upload: float | None = None,
    ) -> SimulatedPeer:
        """Add a peer that joins now, through whoever is there already."""
        if auxiliary and trainer is not None:
            raise ConfigurationError("an auxiliary peer does not train")
        network = self.internet.host(host, name=name)
        role = "auxiliary" if auxiliary else "trainer" if network.settings.dialable else "client"
        entries: list[Address] = [
            peer.network.address for peer in self.peers.values() if peer.network.settings.dialable
        ][:4]
        session = Session(
            network,
            Identity.from_seed(network.private_key),
            self.spec.run_id,
            SessionSettings(role=role, max_upload=max_upload),  # type: ignore[arg-type]
            entries,
        )
        peer = SimulatedPeer(
            network.name,
            network,
            session,
            self._make_replica(self.spec),
            None if auxiliary else trainer or TrainerSettings(),
        )
        session.events.subscribe(lambda event: self.log.events.append(LoggedEvent(peer.name, event)))
        self.peers[peer.name] = peer
        self._tasks.append(network.process.run(peer.live(self.spec, self._gradient)))
        return peer

    async def run_until_step(self, step: int, *, limit_s: float = 3600.0, peers: list[str] | None = None) -> None:
        """Wait until the named peers (all by default) are at `step`; raises `TimeoutError` after `limit_s`."""
        async with asyncio.timeout(limit_s):
            while any(self.peers[name].replica.step < step for name in peers or list(self.peers)):
                await asyncio.sleep(0.05)

    def digests(self) -> dict[str, str]:
        """The state digest of every peer."""
        return {name: peer.replica.digest() for name, peer in self.peers.items()}

    async def close(self) -> None:
        """End all peers."""
        for peer in self.peers.values():
            await peer.session.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def small_replica(spec: RunSpec) -> Replica:
    """A linear model of 8 inputs and 3 outputs with the spec's seed, under plain gradient descent."""
    torch.manual_seed(spec.training.seed)
    model = torch.nn.Linear(8, 3)
    return Replica(spec, torch.optim.SGD(model.parameters(), lr=0.1), model=model)


def pull_to_target(peer: SimulatedPeer, samples: int) -> None:
    """The gradient of the distance to a random target that is the same for equal peer and count."""
    generator = torch.Generator().manual_seed(peer.samples_done * 1_000_003 + int(peer.network.peer_id[:8], 16))
    for parameter in peer.replica.vector.parameters():
        target = torch.randn(parameter.shape, generator=generator) / samples**0.5
        parameter.grad = parameter.detach() - target
