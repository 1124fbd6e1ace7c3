"""One peer of `benchmarks.links`, and its process: it finds out about its line, joins groups and averages.

It runs on any network, so the same peers average over real links and over simulated ones, with numbers or, as a
ghost, without.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import traceback
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from types import ModuleType
from typing import Any, Final

import blake3
import msgspec
import torch

from benchmarks._allreduce_peer import FixedContributor, vector_of
from benchmarks._entering import enter, tell_address
from benchmarks._worker import Channel
from minga.averaging import links as link_reporter
from minga.averaging.allreduce import round as waiting
from minga.averaging.allreduce.service import AllReduce, RoundAbortedError
from minga.averaging.apportionment import apportion
from minga.averaging.clocking.sample_quota import Registration
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.residual import RoundVectors
from minga.averaging.group import GroupSettings
from minga.averaging.links import LinkReporter
from minga.averaging.matchmaking.former import GroupFormation
from minga.averaging.messages import Part, PeerScore, Plan, Report
from minga.core.errors import RemoteError
from minga.core.events.bus import Event
from minga.identity.keys.keys import Identity
from minga.network.gossip import gossip
from minga.network.interface import PeerId
from minga.network.iroh.network import NetworkSettings
from minga.network.probing import Prober
from minga.network.rpc import keepalive, stream
from minga.network.rpc.handshake import Role
from minga.network.tcp import bulk_lane
from minga.training.life.board_view import BoardView
from minga.training.record_kinds import Progress
from minga.training.session import Session, SessionSettings
from tests import netlab

SAMPLES: Final = 1000
SAMPLES_PER_SECOND: Final = 1.0
"""So slow that no plan asks anybody to rest: everybody contributes in all rounds."""

CROWDED: Final[dict[ModuleType, dict[str, float]]] = {
    gossip: {"BEATS_PER_SECOND": 1.0, "EXCHANGE_S": 5.0},
    link_reporter: {"FIRST_PERIOD_S": 10.0, "PERIOD_S": 10.0},
    keepalive: {"PULSE_S": 1.0, "SILENCE_S": 8.0},
    stream: {"PULSE_S": 1.0},
    waiting: {"APPEAR_S": 10.0},
    bulk_lane: {"PATIENCE_S": 5.0},
}
"""Up to 25 peers share one machine here, which costs it more than what they move: so they give signs of life less
often than usual, and bear with each other for longer. What their links carry they tell more often: rounds follow each
other within seconds.
"""

PROBES_S: Final = 150.0
"""How long to wait for the own probe: one peer after the other has its turn."""


@contextlib.contextmanager
def crowded() -> Iterator[None]:
    """Let the values of `CROWDED` hold for a while."""
    before = {module: {name: vars(module)[name] for name in values} for module, values in CROWDED.items()}
    for module, values in CROWDED.items():
        vars(module).update(values)
    try:
        yield
    finally:
        for module, values in before.items():
            vars(module).update(values)


@dataclass(frozen=True)
class Company:
    """How many peers average, how many of them have gradients, and whether this one has."""

    count: int
    trainers: int
    computes: bool


class ReadyContributor(FixedContributor):
    """A trainer whose samples are there from the start, or an auxiliary, which has none."""

    def __init__(self, vector: torch.Tensor, *, computes: bool) -> None:
        super().__init__(vector)
        self._computes = computes

    def report(self) -> Report:
        """See `Contributor`."""
        return Report(SAMPLES, SAMPLES_PER_SECOND) if self._computes else Report()

    async def seal(self) -> tuple[torch.Tensor | None, int]:
        """See `Contributor`."""
        return (self._vector, SAMPLES) if self._computes else (None, 0)


class Averager:
    """Board, probes, group formation and all-reduce of one peer, as a session's member has them.

    `session` has been started. While this peer leads its plans can be dictated: see `kind`.
    """

    def __init__(
        self, session: Session, identity: Identity, vector: torch.Tensor, layout: VectorLayout, company: Company
    ) -> None:
        self.session, self.step, self.count = session, 0, company.count
        self.kind, self.server = "adaptive", ""
        """"equal" parts, all of it at one "server", or what the planner says."""
        self.layout, self.result = layout, torch.zeros_like(vector)
        self.contributor = ReadyContributor(vector, computes=company.computes)
        self.swarm_view = BoardView(session.board, session.node)
        group = GroupSettings(
            company.trainers * SAMPLES,
            RoundVectors(lambda _: layout, torch.zeros).described,
            aggregates=True,
            computes=company.computes,
        )
        self.formation = GroupFormation(session.node, identity, group, self.swarm_view, self.contributor)
        self.all_reduce = AllReduce(session.node)
        maker = self.formation._plan_maker
        self._plan, maker.plan = maker.plan, self._make_plan  # type: ignore[assignment,method-assign]
        self._check, maker.check = maker.check, self._check_plan  # type: ignore[method-assign]
        self._probed = asyncio.Event()
        session.node.events.subscribe(self._on_event)
        session.node.spawn(Prober(session.node, self.swarm_view.reachable).run())
        session.node.spawn(LinkReporter(session.node, session.board).run())

    async def meet_all(self) -> None:
        """Connect with everybody: the first round would be slow if this machine had to do all handshakes in it."""
        while len(met := set(self.session.node.connected())) < self.count - 1:
            for address in self.session.board.addresses():
                if address.peer_id not in met:
                    with contextlib.suppress(RemoteError):
                        await self.session.node.dial(address)
            await asyncio.sleep(0.1)

    async def probe_line(self) -> None:
        """Wait until this peer's own probe is done, as it is in a run whose first round takes minutes to come."""
        self.publish()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PROBES_S):
                await self._probed.wait()

    def publish(self) -> None:
        """Tell the others at which step this peer is."""
        self.session.board.put(Progress(self.step, SAMPLES, SAMPLES_PER_SECOND, "training"))

    async def settle(self) -> None:
        """Wait until all others are known to be at the same step."""
        self.publish()
        while len(self.swarm_view.at(self.step)) < self.count - 1:
            await asyncio.sleep(0.02)

    async def form(self) -> Plan:
        """Form the group of the next round."""
        return await self.formation.form(self.step)

    async def reduce(self, plan: Plan) -> list[str]:
        """Average by this plan, into `result`; returns what went wrong."""
        local, weight = await self.contributor.seal()
        self.step += 1
        try:
            outcome = await self.all_reduce.reduce(plan, self.layout, local, weight, self.result)
        except RoundAbortedError as error:
            return [str(error)]
        return [f"{peer[:10]}: {why}" for peer, why in outcome.lost.items()]

    def known(self) -> dict[str, Any]:
        """What this peer has found out about its own line, in bits per second."""
        rates = self.swarm_view.rates()
        return {way: rate and round(8 * rate) for way, rate in (("up", rates.upload), ("down", rates.download))}

    def _on_event(self, event: Event) -> None:
        if event.kind == "links.probed":
            self._probed.set()

    async def _make_plan(self, step: int, seats: Mapping[PeerId, Registration]) -> Plan:
        plan = await self._plan(step, seats)
        if self.kind == "adaptive":
            return plan
        ids = [member.peer_id for member in plan.members]
        roots = [ids.index(PeerId(self.server))] if self.kind == "server" else range(len(ids))
        stops = accumulate(apportion(self.result.numel(), [1.0] * len(roots)))
        parts = tuple(Part(stop, root) for stop, root in zip(stops, roots, strict=True))
        # It is expected to take long, so that no work is taken away from those who are too slow for their part.
        return msgspec.structs.replace(plan, parts=parts, sites=(), resting=(), predicted_s=1e4)

    def _check_plan(self, plan: Plan, said: Collection[PeerScore | None] = ()) -> None:
        if self.kind == "adaptive":
            self._check(plan, said)


def describe(plan: Plan) -> dict[str, Any]:
    """What a plan says: its members, the share of the vector that each is the root of, sites, and the time."""
    shares = dict.fromkeys((member.peer_id for member in plan.members), 0.0)
    start = 0
    for part in plan.parts:
        shares[plan.members[part.root].peer_id] += (part.stop - start) / plan.parts[-1].stop
        start = part.stop
    return {"shares": shares, "sites": len(plan.sites), "predicted_s": plan.predicted_s}


# ---- its process, which averages in its namespace when told to and says how it went


def peer(channel: Channel, settings: dict[str, Any]) -> None:
    """The process of one peer."""
    netlab.enter(settings["namespace"])  # before anything opens a socket or starts a thread that does
    torch.set_num_threads(1)
    with crowded():
        asyncio.run(_peer_or_end(channel, settings))


async def _peer_or_end(channel: Channel, settings: dict[str, Any]) -> None:
    try:
        await _peer(channel, settings)
    except Exception:  # a loop that ends waits for its threads, of which one waits for a command
        traceback.print_exc()
        os._exit(1)


async def _peer(channel: Channel, settings: dict[str, Any]) -> None:
    role: Role = "auxiliary" if settings["auxiliary"] else "trainer"
    network = NetworkSettings(host=settings["host"])
    session, identity = await enter(settings["entries"], network, SessionSettings(role=role))
    vector = torch.from_numpy(vector_of(settings["seed"], settings["index"], settings["numel"]))
    company = Company(settings["count"], settings["trainers"], computes=not settings["auxiliary"])
    me = Averager(session, identity, vector, VectorLayout((vector.numel(),), "float32"), company)
    tell_address(channel, session)
    await me.meet_all()
    await me.probe_line()
    channel.send(met=True)
    while (command := await channel.receive_on_loop())["do"] != "exit":
        if command["do"] == "settle":
            await me.settle()
            channel.send(settled=True, **me.known())
        elif command["do"] == "round":
            me.kind, me.server = command["kind"], command["server"]
            plan = await me.form()
            channel.send(planned_s=time.monotonic(), **describe(plan))
            await channel.receive_on_loop()
            failures = await me.reduce(plan)
            done_s = time.monotonic()
            digest = blake3.blake3(me.result.numpy().data.cast("B")).hexdigest()
            channel.send(done_s=done_s, failures=failures, digest=digest)
    await session.close()
