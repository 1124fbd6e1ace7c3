"""A few nodes that know one another, for tests of averaging without board, gossip or trainers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import torch

from minga.averaging.allreduce.round import RoundOutcome
from minga.averaging.allreduce.service import AllReduce
from minga.averaging.apportionment import apportion
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.residual import Residual
from minga.averaging.group import RoundVector
from minga.averaging.messages import GroupMember, Part, Plan
from minga.averaging.planning.signed_plan import PlanNeeds, make_plan
from minga.averaging.solver.division import Division
from minga.core.events.bus import Event, EventBus
from minga.identity.keys.keys import Identity
from minga.network.interface import Address, PeerId
from minga.network.rpc.node import Node
from minga.network.virtual.internet import HostSettings, VirtualInternet, VirtualNetwork

ROUND = "0123456789abcdef" * 2


def one_vector(numel: int, encoded_bytes: int | None = None) -> Callable[[int], RoundVector]:
    """All rounds average the same vector, of float32 values if nothing else is said."""
    vector = RoundVector("0" * 32, numel, 4 * numel if encoded_bytes is None else encoded_bytes)
    return lambda step: vector


class Party:
    """One host with a node and the all-reduce service."""

    def __init__(self, network: VirtualNetwork, book: dict[PeerId, Address]) -> None:
        self.network, self.peer_id = network, network.peer_id
        self.identity = Identity.from_seed(network.private_key)
        self.events = EventBus(asyncio.get_running_loop().time)
        self.log: list[Event] = []
        self.events.subscribe(self.log.append)
        role = "trainer" if network.settings.dialable else "client"
        self.node = Node(network, run_id="run", role=role, lookup=book.get, events=self.events)  # type: ignore[arg-type]
        self.all_reduce = AllReduce(self.node)

    def offences(self) -> list[tuple[str, str]]:
        return [(str(e.fields["peer"]), str(e.fields["what"])) for e in self.log if e.kind == "peer.offence"]


class World:
    """Parties on one virtual internet; the last `clients` cannot be dialled and have dialled everybody."""

    def __init__(self, count: int, *, clients: int = 0, seed: int = 0, **host: float) -> None:
        self.internet = VirtualInternet(seed)
        self.book: dict[PeerId, Address] = {}
        self.parties: list[Party] = []
        for index in range(count):
            settings = HostSettings(dialable=index < count - clients, **host)  # type: ignore[arg-type]
            party = Party(self.internet.host(settings), self.book)
            self.book[party.peer_id] = party.network.address
            self.parties.append(party)

    async def start(self) -> None:
        for party in self.parties:
            party.network.process.context.run(party.node.start)
        for party in self.parties:
            if not party.network.address.dialable:
                for other in self.parties:
                    if other.network.address.dialable:
                        await party.network.process.run(party.node.connection(other.peer_id))

    def plan(self, layout: VectorLayout, *, chunk_bytes: int = 16384, step: int = 0, round_id: str = ROUND) -> Plan:
        members = tuple(GroupMember(p.network.address, p.network.address.dialable) for p in self.parties)
        parts, stop = [], 0
        for index, size in enumerate(apportion(layout.total, [1.0 if m.aggregates else 0.0 for m in members])):
            if size:
                stop += size
                parts.append(Part(stop, index))
        return Plan(round_id, step, members, tuple(parts), chunk_bytes)

    def divide(self, layout: VectorLayout, division: Division, *, chunk_bytes: int = 16384, step: int = 0) -> Plan:
        """The plan of a division of the parties."""
        members = tuple(GroupMember(p.network.address, p.network.address.dialable) for p in self.parties)
        needs = PlanNeeds(step, layout.total, layout.encoded_bytes(0, layout.total))
        plan = make_plan(f"a round {step}", needs, members, division)
        return msgspec.structs.replace(plan, chunk_bytes=chunk_bytes)

    async def reduce(
        self,
        plan: Plan,
        layout: VectorLayout,
        vectors: Sequence[torch.Tensor | None],
        weights: Sequence[int],
        *,
        who: Sequence[int] | None = None,
        residuals: Sequence[Residual] = (),
        results: list[torch.Tensor] | None = None,
        most_weight: int | None = None,
    ) -> tuple[list[torch.Tensor], list[RoundOutcome | BaseException]]:
        """Let the parties (or those of `who`) reduce, into the `results` of an earlier round if that is adopted;
        exceptions are returned in the place of outcomes.
        """
        chosen = [self.parties[i] for i in (range(len(self.parties)) if who is None else who)]
        picked = list(range(len(self.parties))) if who is None else list(who)
        results = results or [torch.full((layout.total,), torch.nan) for _ in chosen]
        tasks = [
            party.network.process.run(
                party.all_reduce.reduce(
                    plan,
                    layout,
                    vectors[i],
                    weights[i],
                    result,
                    residuals[i] if residuals else None,
                    most_weight=most_weight,
                )
            )
            for i, party, result in zip(picked, chosen, results, strict=True)
        ]
        return results, await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        for party in self.parties:
            await party.node.close()
