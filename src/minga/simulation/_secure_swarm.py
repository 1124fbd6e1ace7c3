"""A secure run in virtual time: members that know one another from the start, some of them hostile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from minga.core._events import Event, EventBus
from minga.identity._keys import Identity
from minga.network._interface import PeerId
from minga.network._node import Node
from minga.network._virtual import HostSettings, VirtualInternet, VirtualNetwork
from minga.security._conduct import Conduct, Work
from minga.security._ledger import Ledger
from minga.security._secure_member import SecureMember
from minga.security._settings import SecureSettings

RUN_ID = "5ec0" * 16
LATENCY_S = 0.02

MakeConduct = Callable[[frozenset[PeerId]], Conduct]
"""From the ids of all who are hostile."""


@dataclass(frozen=True)
class SecurePeer:
    """One simulated host with a secure member; `log` are the events of its node."""

    name: str
    network: VirtualNetwork
    node: Node
    work: Work
    member: SecureMember
    log: list[Event]

    @property
    def peer_id(self) -> PeerId:
        """Its id."""
        return self.network.peer_id


class SecureSwarm:
    """`count` members p0, p1, …, of which those named in `hostile` conduct themselves in another way."""

    def __init__(
        self,
        count: int,
        make_work: Callable[[], Work],
        hostile: Mapping[str, MakeConduct] | None = None,
        *,
        settings: SecureSettings | None = None,
        seed: int = 0,
        node_type: type[Node] = Node,
    ) -> None:
        self.internet = VirtualInternet(seed)
        hosts = [self.internet.host(HostSettings(latency_s=LATENCY_S), name=f"p{index}") for index in range(count)]
        self.names = {host.peer_id: host.name for host in hosts}
        """Names by id."""
        addresses = {host.peer_id: host.address for host in hosts}
        makers = dict(hostile or {})
        allies = frozenset(host.peer_id for host in hosts if host.name in makers)
        self.peers: dict[str, SecurePeer] = {}
        for host in hosts:
            events = EventBus(asyncio.get_running_loop().time)
            log: list[Event] = []
            events.subscribe(log.append)
            node = node_type(host, run_id=RUN_ID, role="trainer", lookup=addresses.get, events=events)
            work, identity = make_work(), Identity.from_seed(host.private_key)
            conduct = makers[host.name](allies) if host.name in makers else None
            entropy = random.Random(f"secrets {seed} {host.name}").randbytes
            member = SecureMember(node, identity, Ledger(addresses), work, settings, conduct, entropy=entropy)
            host.process.context.run(node.start)
            self.peers[host.name] = SecurePeer(host.name, host, node, work, member, log)
        self.honest = [peer for name, peer in self.peers.items() if name not in makers]

    async def run(self, steps: int) -> dict[str, BaseException | None]:
        """Let all take so many steps in all, as far as they get; with what each ended, by name."""

        async def live(peer: SecurePeer) -> None:
            while peer.member.step < steps:
                await peer.member.take_step()

        tasks = {peer.name: peer.network.process.run(live(peer)) for peer in self.peers.values()}
        ends = await asyncio.gather(*tasks.values(), return_exceptions=True)
        return dict(zip(tasks, ends, strict=True))

    def bans(self, witness: SecurePeer) -> dict[str, str]:
        """Who was banned and why, as `witness` knows it, by name."""
        return {self.names[peer]: ban.reason.name for peer, ban in witness.member.ledger.bans.items()}
