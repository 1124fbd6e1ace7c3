"""The rounds of `benchmarks.links` in the virtual world: the same peers on simulated lines, as ghosts.

Nothing is computed but what production code does: the peers probe their lines, form groups, plan and average, with
vectors of the same size and no numbers in them. The lines have the rates of the setup, and its limits of single paths.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import torch

from benchmarks._entering import RUN_ID
from benchmarks._links_averager import Averager, Company, crowded
from benchmarks._links_rounds import REST_S, are_stable
from benchmarks._links_setups import Setup
from minga.averaging.messages import Plan
from minga.identity.keys.keys import Identity
from minga.network.interface import Address
from minga.network.virtual.internet import HostSettings, VirtualInternet, VirtualNetwork
from minga.simulation import run_virtual
from minga.simulation.swarm.size_only_model import SizeOnlyLayout
from minga.training.session import Session, SessionSettings

LATENCY_S: Final = 0.0005
"""One way from a host to the middle of the network: namespaces on one machine are a few tenths of that apart."""

TURN_S: Final = 0.05
"""Fine turns, so that what peers measure of their lines is what real lines show them."""

LIMIT_S: Final = 3600.0


def simulate(setup: Setup, kinds: Mapping[str, int], seed: int, most_warmup: int) -> dict[str, float]:
    """Median seconds of so many rounds with each kind of plan (`Averager.kind`), after rounds until the plans are
    stable. Raises `RuntimeError` if something goes wrong in one of them.
    """
    with crowded():
        return run_virtual(_VirtualSwarm(setup).run(kinds, seed, most_warmup), limit_s=LIMIT_S)


class _VirtualSwarm:
    """The peers of one setup, in one process."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._peers: dict[str, tuple[VirtualNetwork, Averager]] = {}

    async def run(self, kinds: Mapping[str, int], seed: int, most_warmup: int) -> dict[str, float]:
        await self._start(seed)
        foreseen: list[float] = []
        while len(foreseen) < most_warmup and not are_stable(foreseen):
            await asyncio.sleep(REST_S)
            plan, _ = await self._round("adaptive")
            foreseen.append(plan.predicted_s or 0.0)
        seconds = {kind: [(await self._round(kind))[1] for _ in range(count)] for kind, count in kinds.items()}
        for network, peer in self._peers.values():
            await network.process.run(peer.session.close())
        return {kind: statistics.median(each) for kind, each in seconds.items()}

    async def _start(self, seed: int) -> None:
        setup, internet = self._setup, VirtualInternet(seed, turn_s=TURN_S)
        networks = {}
        for host in setup.hosts:
            up, down = (None if rate is None else rate / 8 for rate in (host.up, host.down))
            networks[host.name] = internet.host(HostSettings(up, down, latency_s=LATENCY_S), name=host.name)
        for (source, target), rate in setup.paths.items():
            internet.set_path_rate(source, target, rate / 8)
        entries: list[Address] = []
        for name, network in networks.items():
            averager = await network.process.run(self._peer(network, entries, name not in setup.auxiliaries))
            self._peers[name] = network, averager
            entries = entries or [network.address]
        await self._all(Averager.meet_all)
        await self._all(Averager.probe_line)

    async def _peer(self, network: VirtualNetwork, entries: list[Address], computes: bool) -> Averager:
        identity = Identity.from_seed(network.private_key)
        role = "trainer" if computes else "auxiliary"
        session = Session(network, identity, RUN_ID, SessionSettings(role=role), entries)  # type: ignore[arg-type]
        await session.start()
        vector = torch.empty(self._setup.numel, device="meta")
        company = Company(len(self._setup.hosts), self._setup.trainers, computes)
        return Averager(session, identity, vector, SizeOnlyLayout((vector.numel(),), "float32"), company)

    async def _round(self, kind: str) -> tuple[Plan, float]:
        """One round of everybody: its plan, and the seconds from when all hold it until all have the result."""
        server = self._peers[self._setup.server][1].session.peer_id
        for _, peer in self._peers.values():
            peer.kind, peer.server = kind, server
        await self._all(Averager.settle)
        plans = dict(zip(self._peers, await self._all(Averager.form), strict=True))
        begun_s = asyncio.get_running_loop().time()
        averaging = [net.process.run(peer.reduce(plans[name])) for name, (net, peer) in self._peers.items()]
        if failures := [failure for failures in await asyncio.gather(*averaging) for failure in failures]:
            raise RuntimeError(f"a simulated round went wrong: {failures[:5]}")
        return next(iter(plans.values())), asyncio.get_running_loop().time() - begun_s

    async def _all(self, method: Callable[[Averager], Coroutine[Any, Any, Any]]) -> list[Any]:
        return await asyncio.gather(*(network.process.run(method(peer)) for network, peer in self._peers.values()))
