"""Members that only take secure steps, in virtual time: no session, board, port or model around the protocol.

Founders know one another from the start; other peers join later or come back; some of them are hostile. Whole peers
take the same steps in `minga.simulation.swarm.swarm`. Here a state is small enough for one message.
"""

from __future__ import annotations

import abc
import asyncio
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from minga.core.errors import ConfigurationError, RejectedError, RemoteError, StateMismatchError
from minga.core.events.bus import Event, EventBus
from minga.core.refusal_code import RefusalCode
from minga.identity.keys.keys import Identity
from minga.network.interface import Address, PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream
from minga.network.virtual.internet import HostSettings, VirtualInternet, VirtualNetwork
from minga.security.accountability.evidence import Evidence
from minga.security.accountability.log import LogEnd, follow_log
from minga.security.messaging.voting import OutvotedError
from minga.security.protocol.behaviour import Behaviour, MakeBehaviour, TrainingBackend
from minga.security.protocol.protocol_state import ProtocolState
from minga.security.protocol.rules import SecureSettings
from minga.security.protocol.statements import Step
from minga.security.step.member import BannedError, ExcludedError, Joiner, MemberSetup, SecureMember
from minga.simulation.attacks.joining_attacks import PoisonedDonor

RUN_ID = "5ec0" * 16
LATENCY_S = 0.02
SETTLES_S = 30.0
MAX_ENTRANCES = 8
"""So often a peer that cannot follow begins anew."""
DONATE = "lab.donate"
MAX_STATE_BYTES = 1 << 19


class StateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ask for the state before a step."""

    step: Step


class Donation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A state."""

    data: Annotated[bytes, msgspec.Meta(max_length=MAX_STATE_BYTES)]


class DonatedBackend(abc.ABC):
    """The part of `TrainingBackend` that deals with newcomers."""

    _node: Node

    def attach(self, node: Node, gives: Callable[[bytes], bytes]) -> None:
        """Hand on states by a node, after `gives` has had its way with them."""
        self._node = node

        async def serve(_: PeerId, stream: MessageStream) -> None:
            wanted = await stream.receive(StateRequest)
            data = self.dump(wanted.step)
            if data is None:
                raise RejectedError("that state is not kept here", code=RefusalCode.ABSENT)
            await stream.send(Donation(gives(data)))

        node.serve(DONATE, serve)

    async def adopt(self, step: int, digest: bytes, donors: Sequence[PeerId]) -> None:
        """Take the state from the first donor who gives the right one."""
        for peer in donors:
            try:
                donation = await self._node.call(peer, DONATE, StateRequest(step), Donation)
                self.load(step, donation.data)
            except (RemoteError, ValueError):
                continue
            if await self.digest() == digest:
                return
        raise StateMismatchError("nobody gives this peer the state that most members have", round=step)

    @abc.abstractmethod
    async def digest(self) -> bytes:
        """See `TrainingBackend`."""

    @abc.abstractmethod
    def dump(self, step: int) -> bytes | None:
        """The state before a step, if it is kept."""

    @abc.abstractmethod
    def load(self, step: int, data: bytes) -> None:
        """Undo `dump`. Raises `ValueError` for what is no state."""


def verify_log(run_id: str, founders: Iterable[PeerId], entries: Iterable[Evidence]) -> LogEnd:
    """Verify all evidence of a run that began with `founders`, and return to where it leads."""
    return follow_log(founders, ((entry, entry.verify(run_id)) for entry in entries))


@dataclass
class SecurePeer:
    """One simulated host in a secure run; `log` are the events of its node."""

    name: str
    network: VirtualNetwork
    node: Node
    work: TrainingBackend
    behaviour: Behaviour
    log: list[Event] = field(default_factory=list)
    entered: SecureMember | None = None
    """None until a newcomer has found out where the members are."""

    @property
    def peer_id(self) -> PeerId:
        """Its id."""
        return self.network.peer_id

    @property
    def member(self) -> SecureMember:
        """Its part in the protocol. Raises `ConfigurationError` if it has none yet."""
        if self.entered is None:
            raise ConfigurationError(f"{self.name} has not entered yet")
        return self.entered


class SecureSwarm:
    """`count` founders p0, p1, …, of which those named in `hostile` conduct themselves in another way.

    With `returns`, whoever is excluded without blame enters again, also if it finds after its last step that most are
    elsewhere. Who is `absent` is no founder, but may `join`.
    """

    def __init__(
        self,
        count: int,
        make_work: Callable[[], TrainingBackend],
        hostile: Mapping[str, MakeBehaviour] | None = None,
        *,
        settings: SecureSettings | None = None,
        seed: int = 0,
        node_type: type[Node] = Node,
        returns: bool = False,
        absent: Collection[str] = (),
    ) -> None:
        self.internet = VirtualInternet(seed)
        self._make_work, self._seed, self._returns = make_work, seed, returns
        self._settings = settings or SecureSettings()
        self._node_type = node_type
        self._addresses: dict[PeerId, Address] = {}
        self._steps = 0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.names: dict[PeerId, str] = {}
        """Names by id."""
        self.peers: dict[str, SecurePeer] = {}
        hosts = [self._host(f"p{index}") for index in range(count) if f"p{index}" not in absent]
        self.founders = tuple(sorted(host.peer_id for host in hosts))
        makers = dict(hostile or {})
        self.allies = frozenset(host.peer_id for host in hosts if host.name in makers)
        first = ProtocolState.first(RUN_ID, self.founders)
        for host in hosts:
            behaviour = makers[host.name](self.allies) if host.name in makers else Behaviour()
            peer = self._start(host, behaviour)
            peer.entered = SecureMember(self._setup(peer, f"secrets {seed} {host.name}"), first)
        self.honest = [peer for name, peer in self.peers.items() if name not in makers]
        """Founders that are not hostile."""

    # ---- peers that come later

    def join(self, name: str, behaviour: Behaviour | None = None) -> SecurePeer:
        """Let a newcomer begin, who knows the founders."""
        peer = self._start(self._host(name), behaviour or Behaviour())
        self._tasks[name] = peer.network.process.run(self._live(peer))
        return peer

    def restart(self, name: str) -> SecurePeer:
        """Start a peer anew that was killed, with its key and nothing else."""
        former = self.peers[name]
        host = self.internet.host(former.network.settings, name=name, private_key=former.network.private_key)
        peer = self._start(host, former.behaviour)
        self._addresses[host.peer_id] = host.address
        self._tasks[name] = host.process.run(self._live(peer))
        return peer

    async def run(self, steps: int) -> dict[str, BaseException | None]:
        """Let all take so many steps in all, as far as they get; with what each ended, by name."""
        self._steps = steps
        for peer in self.peers.values():
            if peer.name not in self._tasks:
                self._tasks[peer.name] = peer.network.process.run(self._live(peer))
        while running := [task for task in self._tasks.values() if not task.done()]:
            await asyncio.wait(running)
        return {
            name: task.exception() if not task.cancelled() else asyncio.CancelledError()
            for name, task in self._tasks.items()
        }

    def bans(self, witness: SecurePeer) -> dict[str, str]:
        """Who was banned and why, as `witness` knows it, by name."""
        return {self.names[peer]: ban.reason.name for peer, ban in witness.member.membership.bans.items()}

    # ---- inner workings

    def _host(self, name: str) -> VirtualNetwork:
        host = self.internet.host(HostSettings(latency_s=LATENCY_S), name=name)
        self.names[host.peer_id], self._addresses[host.peer_id] = name, host.address
        return host

    def _start(self, host: VirtualNetwork, behaviour: Behaviour) -> SecurePeer:
        events = EventBus(asyncio.get_running_loop().time)
        node = self._node_type(host, run_id=RUN_ID, role="trainer", lookup=self._addresses.get, events=events)
        peer = self.peers[host.name] = SecurePeer(host.name, host, node, self._make_work(), behaviour)
        events.subscribe(peer.log.append)
        if isinstance(peer.work, DonatedBackend):
            peer.work.attach(node, behaviour.gives if isinstance(behaviour, PoisonedDonor) else bytes)
        host.process.context.run(node.start)
        return peer

    async def _live(self, peer: SecurePeer) -> None:
        entrances, came_later = 0, peer.entered is None
        while True:
            if peer.entered is None:
                entrances += 1
                peer.entered = await self._enter(peer)
            try:
                while peer.member.step < self._steps:
                    await peer.member.take_step()
                if self._returns:
                    await peer.member.settle(SETTLES_S)
                return
            except BannedError:
                raise
            except (OutvotedError, ExcludedError):
                if not (self._returns or came_later) or entrances >= MAX_ENTRANCES:
                    raise
                peer.entered = None

    async def _enter(self, peer: SecurePeer) -> SecureMember:
        secrets = f"secrets {self._seed} {peer.name} {asyncio.get_running_loop().time()}"
        return await Joiner(self._setup(peer, secrets), self.founders).enter()

    def _setup(self, peer: SecurePeer, secrets: str) -> MemberSetup:
        """What a peer takes part with, whose secrets come from this seed."""
        identity, entropy = Identity.from_seed(peer.network.private_key), random.Random(secrets).randbytes
        return MemberSetup(peer.node, identity, peer.work, self._settings, peer.behaviour, entropy=entropy)
