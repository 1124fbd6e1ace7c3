"""A swarm in the virtual world: real sessions, real averaging, real optimizers, simulated time.

Each peer trains a small model whose "computation" is a pause of virtual time. Everything else is the code that runs
in production. What goes wrong is scripted (`Swarm.script`, see `minga.simulation.faults.script`) or done by hand on
`Swarm.internet`; a peer that was killed comes back with `Swarm.restart`, from the last checkpoint it made.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from minga.access.admission import Admission
from minga.averaging.planning.plan_maker import Divide
from minga.averaging.solver.planner import divide
from minga.core.aio import end
from minga.core.errors import ConfigurationError
from minga.core.events.averaging import RoundBegun
from minga.core.events.bus import Event
from minga.core.rate_cap import RateCap
from minga.core.spec.run_spec import RunSpec
from minga.identity.access.ledger import AccessLedger
from minga.identity.keys.keys import Identity
from minga.identity.links.links import LinkAccess
from minga.network.gossip.record_kinds import RecordKinds
from minga.network.interface import Address
from minga.network.rpc.run_clock import RunClock
from minga.network.virtual.internet import HostSettings, VirtualInternet, VirtualNetwork
from minga.network.virtual.paths import TURN_S, relay_url
from minga.optim.sgd import SGD
from minga.security.protocol.behaviour import Behaviour
from minga.security.randomness.public_batch import PublicBatch
from minga.simulation.faults.driver import FaultDriver, FaultRecord, LyingPeers, VirtualFaults
from minga.simulation.faults.script import parse_faults
from minga.simulation.swarm.simulated_peer import Life, SimulatedPeer, TrainerSettings, TrainingTask
from minga.training.record_kinds import RUN_KINDS
from minga.training.replica.interface import ReplicaInterface
from minga.training.replica.replica import Replica
from minga.training.session import Session, SessionSettings
from minga.training.state.snapshot import StateSnapshot

MAX_ENTRIES = 4


class LoggedEvent(NamedTuple):
    """An event and the name of the peer that emitted it."""

    peer: str
    event: Event


class SwarmListener(ABC):
    """Hears the events of all peers of a swarm in the order in which they happen."""

    @abstractmethod
    def add(self, logged: LoggedEvent) -> None:
        """Something happened."""


@dataclass
class SwarmLog(SwarmListener):
    """Keeps all of them."""

    events: list[LoggedEvent] = field(default_factory=list)

    def add(self, logged: LoggedEvent) -> None:
        """Something happened."""
        self.events.append(logged)

    def of(self, kind: str) -> list[LoggedEvent]:
        """All events of one kind."""
        return [logged for logged in self.events if logged.event.kind == kind]

    def lines(self) -> list[str]:
        """One line of text for each event: equal runs have equal lines."""
        return [f"{logged.peer} {logged.event.json()}" for logged in self.events]


class Swarm:
    """Peers of one run on one virtual internet, from one seed. Make it on a running (virtual) loop.

    `gradient(peer, samples)` sets the gradients of a micro-batch on the peer's model (and may return its mean loss, for
    strategies that compare peers by it), `public_gradient(peer, batch)` in
    a run whose members check each other; the defaults minimise the distance of a small linear model to random targets.
    There the first peer is the organiser. With `checkpoint_every`
    each peer keeps a copy of its state at multiples of that many steps. `divide` says who reduces what, `turn_s` how
    finely lines are simulated. The `organiser`, whose orders the peers follow, need not be among them; an open run does
    without. `life` is what each peer does in the place of training a model as a whole. Without a `listener` the swarm
    keeps a log.
    """

    def __init__(
        self,
        spec: RunSpec,
        *,
        seed: int = 0,
        make_replica: Callable[[RunSpec], ReplicaInterface] | None = None,
        gradient: Callable[[SimulatedPeer, int], float | None] | None = None,
        public_gradient: Callable[[SimulatedPeer, PublicBatch], None] | None = None,
        checkpoint_every: int | None = None,
        divide: Divide = divide,
        listener: SwarmListener | None = None,
        turn_s: float = TURN_S,
        organiser: Identity | None = None,
        life: Life | None = None,
    ) -> None:
        self.spec, self.internet = spec, VirtualInternet(seed, turn_s=turn_s)
        self._listener = listener or SwarmLog()
        self._newest_round: RoundBegun | None = None
        self.peers: dict[str, SimulatedPeer] = {}
        """By name; a peer that was restarted takes the place of its former self."""
        self._make_replica = make_replica or small_replica
        self._gradient, self._public_gradient = gradient or pull_to_target, public_gradient or pull_by_batch
        self.conduct_of: Callable[[SimulatedPeer], Behaviour] = lambda _: Behaviour()
        """How a peer that joins conducts itself in a run whose members check each other; honestly, unless changed."""
        self._checkpoint_every, self._divide = checkpoint_every, divide
        self._relays: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._drivers: list[FaultDriver] = []
        is_open = spec.security.admission == "open"
        self._organiser = organiser or (None if is_open else Identity.from_seed(bytes(32)))
        self._life = life
        self._liars = LyingPeers(lambda name: self.peers[name].session)

    def add(
        self,
        host: HostSettings | None = None,
        trainer: TrainerSettings | None = None,
        *,
        auxiliary: bool = False,
        name: str | None = None,
        max_upload: RateCap | None = None,
        entries: Sequence[Address] | None = None,
        apply_s: float = 0.0,
        load_s: float = 0.0,
        access: LinkAccess | None = None,
        kinds: RecordKinds = RUN_KINDS,
        key_of: str | None = None,
    ) -> SimulatedPeer:
        """Add a peer that joins now, through `entries`, by default some of the peers that are there already.

        To apply a step takes it `apply_s` seconds. Once it has joined, it loads data or a model for `load_s` seconds
        before its optimizer takes part. To a run for members `access` admits it. `kinds` are the records
        that it knows. It has a copy of the key of the peer `key_of`, if one is
        named.
        """
        if auxiliary and trainer is not None:
            raise ConfigurationError("an auxiliary peer does not train")
        key = None if key_of is None else self.peers[key_of].network.private_key
        network = self.internet.host(host, name=name, private_key=key)
        role = "auxiliary" if auxiliary else "trainer" if network.settings.dialable else "client"
        settings = SessionSettings(
            role=role,  # type: ignore[arg-type]
            max_upload=max_upload,
            divide=self._divide,
            kinds=kinds,
        )
        trainer = None if auxiliary else trainer or TrainerSettings()
        return self._start(network, settings, trainer, entries, None, apply_s, load_s, access)

    def restart(
        self, name: str, *, entries: Sequence[Address] | None = None, checkpoint: StateSnapshot | None = None
    ) -> SimulatedPeer:
        """Start a peer anew that was killed or closed, with its key, from `checkpoint`, or else from its last one if it
        made one.
        """
        former = self.peers[name]
        if not former.is_gone:
            raise ConfigurationError(f"{name} is still running")
        network = self.internet.host(former.network.settings, name=name, private_key=former.network.private_key)
        return self._start(
            network,
            former.session.settings,
            former.settings,
            entries,
            former.checkpoint if checkpoint is None else checkpoint,
            former.apply_s,
            former.load_s,
            former.access,
        )

    def add_relay(
        self, name: str, bytes_per_s: float | None = None, *, latency_s: float = 0.01, region: str = ""
    ) -> None:
        """Add a relay, which hosts name in their settings by `relay_url(name)`, and scripts by its name."""
        self.internet.add_relay(relay_url(name), bytes_per_s, latency_s=latency_s, region=region)
        self._relays.append(name)

    def script(self, faults: str, on_record: Callable[[FaultRecord], None] | None = None) -> FaultDriver:
        """Start a script of faults; its roles are `leader`, `aggregator` (not the leader) and `sender` (a client).

        `on_record` hears of every fault that happens.
        """
        driver = FaultDriver(
            parse_faults(faults), VirtualFaults(self.internet, self._liars.lie), self._resolve, on_record
        )
        for name, peer in self.peers.items():
            driver.attach(name, peer.session.events)
        for name in self._relays:
            driver.attach(name)
        self._drivers.append(driver)
        driver.start()
        return driver

    # ---- watching

    @property
    def log(self) -> SwarmLog:
        """All events so far. Raises `ConfigurationError` where another listener has them."""
        if not isinstance(self._listener, SwarmLog):
            raise ConfigurationError("this swarm keeps no log: its listener hears the events")
        return self._listener

    def alive(self) -> list[SimulatedPeer]:
        """Peers that were neither killed nor closed."""
        return [peer for peer in self.peers.values() if not peer.is_gone]

    def name_of(self, peer_id: str) -> str:
        """The name of the peer with this id."""
        return next(name for name, peer in self.peers.items() if peer.network.peer_id == peer_id)

    async def run_until_step(self, step: int, *, limit_s: float = 3600.0, peers: Iterable[str] | None = None) -> None:
        """Wait until the named peers (all living ones by default) are at `step`.

        Raises `TimeoutError` with the steps reached after `limit_s`, and the error of a peer that has ended.
        """
        names = None if peers is None else list(peers)
        try:
            async with asyncio.timeout(limit_s):
                while any(peer.replica.step < step for peer in self._chosen(names)):
                    await asyncio.sleep(0.05)
        except TimeoutError as error:
            reached = {peer.name: peer.replica.step for peer in self._chosen(names)}
            raise TimeoutError(f"not all at step {step} after {limit_s:g} s: {reached}") from error

    def digests(self, peers: Iterable[str] | None = None) -> dict[str, str]:
        """The state digests of the named peers (all living ones by default)."""
        return {peer.name: peer.replica.digest() for peer in self._chosen(peers)}

    async def close(self) -> None:
        """End all peers and faults."""
        for driver in self._drivers:
            driver.close()
        for peer in self.peers.values():
            await peer.session.close()
        await end(*self._tasks)

    # ---- inner workings

    def _chosen(self, names: Iterable[str] | None) -> list[SimulatedPeer]:
        chosen = self.alive() if names is None else [self.peers[name] for name in names]
        if failed := [peer.error for peer in chosen if peer.error is not None]:
            raise failed[0]
        return chosen

    def _start(
        self,
        network: VirtualNetwork,
        settings: SessionSettings,
        trainer: TrainerSettings | None,
        entries: Sequence[Address] | None,
        checkpoint: StateSnapshot | None,
        apply_s: float,
        load_s: float,
        access: LinkAccess | None,
    ) -> SimulatedPeer:
        if entries is None:
            known = [peer.network for peer in self.alive() if peer.network is not network]
            entries = [host.address for host in known if host.settings.takes_newcomers][:MAX_ENTRIES]
        token = None if access is None else access.token_for(network.peer_id)
        admission = Admission(network.peer_id, RunClock.of(network, entries), token)
        identity = Identity.from_seed(network.private_key)
        session = Session(network, identity, self.spec.run_id, settings, entries, admission)
        if self._organiser is None:
            admission.open_to_all()
        else:
            session.follow_orders(AccessLedger.of_spec(self.spec.run_id, self.spec, self._organiser.peer_id))
        replica = self._make_replica(self.spec)
        peer = SimulatedPeer(network.name, network, session, replica, trainer, apply_s, load_s)
        peer.access = access
        if (former := self.peers.get(peer.name)) is not None:
            peer.keep_of(former)
        session.behaviour = self.conduct_of(peer)
        if checkpoint is not None:
            peer.replica.restore(checkpoint)
            peer.checkpoint = checkpoint
        session.events.subscribe(lambda event: self._hear(LoggedEvent(peer.name, event)))
        self.peers[peer.name] = peer
        self._liars.renew(peer.name)
        for driver in self._drivers:
            driver.attach(peer.name, session.events)
        first = next(iter(self.peers.values())).network.peer_id
        task = TrainingTask(self.spec, self._gradient, self._public_gradient, self._checkpoint_every, first, self._life)
        self._tasks.append(network.process.run(peer.live(task)))
        return peer

    def _hear(self, logged: LoggedEvent) -> None:
        if isinstance(logged.event.data, RoundBegun):
            self._newest_round = logged.event.data
        self._listener.add(logged)

    def _resolve(self, role: str, emitter: str | None, event: Event | None) -> str | None:  # noqa: ARG002
        """Who has a role in the round of `event`, or else in the newest round that any peer began."""
        begun = event.data if event is not None and isinstance(event.data, RoundBegun) else self._newest_round
        leader = None if begun is None else begun.leader
        for name, peer in self.peers.items() if leader is not None else ():
            is_leader = peer.network.peer_id == leader
            found = "leader" if is_leader else "aggregator" if peer.network.settings.dialable else "sender"
            if found == role and not peer.is_gone:
                return name
        return None


def small_replica(spec: RunSpec) -> Replica:
    """A linear model of 8 inputs and 3 outputs with the spec's seed, under plain gradient descent."""
    torch.manual_seed(spec.training.seed)
    model = torch.nn.Linear(8, 3)
    return Replica(spec, SGD(model.parameters(), lr=0.1), model=model)


def pull_to_target(peer: SimulatedPeer, samples: int) -> float:
    """The gradient of the distance to a random target that is the same for equal peer and count; half its square."""
    return _pull(peer, samples, peer.samples_done * 1_000_003 + int(peer.network.peer_id[:8], 16))


def pull_by_batch(peer: SimulatedPeer, batch: PublicBatch) -> None:
    """The same with a target that follows from the batch."""
    _pull(peer, batch.size, batch.number >> 1)


def _pull(peer: SimulatedPeer, samples: int, seed: int) -> float:
    generator = torch.Generator().manual_seed(seed)
    if not isinstance(peer.replica, Replica):
        raise ConfigurationError("a ghost model has no parameters to pull: give the swarm a gradient of its own")
    loss = 0.0
    for parameter in peer.replica.vector.parameters():
        target = torch.randn(parameter.shape, generator=generator) / samples**0.5
        parameter.grad = parameter.detach() - target
        loss += 0.5 * float(parameter.grad.square().sum())
    return loss
