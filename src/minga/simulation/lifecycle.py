"""The peers of a scenario and their fates: they join, leave, crash and come back, faults strike them, and organisers
act.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping
from typing import Final

from minga.core.errors import ConfigurationError
from minga.simulation.faults.script import Fault
from minga.simulation.population import PresencePeriod, ScheduledPeer, population
from minga.simulation.recorder import Recorder
from minga.simulation.scenario.orders import OrderTable
from minga.simulation.scenario.random_faults import strike_at_random
from minga.simulation.scenario.scenario import Scenario
from minga.simulation.swarm.organiser import SwarmOrganiser
from minga.simulation.swarm.simulated_peer import SimulatedPeer
from minga.simulation.swarm.swarm import Swarm

RETRY_S: Final = 30.0
"""After so many virtual seconds a volunteer whose peer ended with an error tries again."""

ENTRY_POLL_S: Final = 1.0
LAST_STEP_S: Final = 120.0
"""Whose step takes longer than that when it is about to leave does not wait for its end."""
GOODBYE_S: Final = 5.0
"""A goodbye that takes longer, because a fault stopped the peer meanwhile, is none."""


class World:
    """What happens in a scenario beside the training."""

    def __init__(self, scenario: Scenario, swarm: Swarm, recorder: Recorder, organiser: SwarmOrganiser | None) -> None:
        self._scenario, self._swarm, self._recorder, self._organiser = scenario, swarm, recorder, organiser
        self._driver = swarm.script("", recorder.fault)
        """For faults that are in no script."""
        self._residents: Mapping[str, ScheduledPeer] = {each.name: each for each in population(scenario)}

    async def live(self) -> None:
        """Let everything happen; returns when nobody is left and nobody will come any more."""
        loop, faults = asyncio.get_running_loop(), self._scenario.faults
        lives = [loop.create_task(self._life(each)) for each in self._residents.values()]
        await asyncio.sleep(0)  # peers that are there from the start are there now
        self._swarm.script(faults.script, self._recorder.fault)
        striking = [
            loop.create_task(strike_at_random(kind, self._random(number), self._alive, self._driver.strike))
            for number, kind in enumerate(faults.random)
        ]
        if self._organiser is not None:
            striking += [loop.create_task(self._act(each, self._organiser)) for each in self._scenario.orders]
        try:
            await asyncio.gather(*lives)
        finally:
            for task in [*striking, *lives]:
                task.cancel()

    async def _act(self, table: OrderTable, organiser: SwarmOrganiser) -> None:
        """Do what the organisers do; what is not possible at that moment is told, and left out."""
        await asyncio.sleep(table.at.values[0])
        step: int | None = None
        try:
            if table.order == "restore" and table.peer is not None:
                self._recorder.arrived(organiser.restore(table.peer))
            elif table.order == "backup" and table.peer is not None:
                step = organiser.back_up(table.peer)
            elif table.order == "ban" and table.peer is not None:
                organiser.ban(table.peer, None if table.lasts is None else table.lasts.values[0])
            elif table.order == "amend":
                step = organiser.amend(table.changes, table.steps_ahead)
            elif table.order == "pause":
                step = organiser.pause(table.steps_ahead)
            elif table.order == "resume":
                organiser.resume()
            else:
                step = organiser.stop(table.steps_ahead)
        except ConfigurationError as error:
            self._recorder.note("order.failed", order=table.order, why=str(error))
            return
        self._recorder.note("order", order=table.order, step=step, of=table.peer, changes=dict(table.changes))

    def _random(self, number: int) -> random.Random:
        return random.Random(f"minga faults {self._scenario.seed} {number}")

    def _alive(self, peers: str | None) -> list[str]:
        """The living, of one class or of all."""
        names = (peer.name for peer in self._swarm.alive())
        return [name for name in names if peers is None or self._residents[name].peer_class.name == peers]

    async def _life(self, resident: ScheduledPeer) -> None:
        """All sessions of one peer."""
        if not resident.fits:
            self._recorder.note("peer.too_small", peer=resident.name)
            return
        for stay in resident.stays():
            if stay.after_s:
                await asyncio.sleep(stay.after_s)
            await self._stay(resident, stay)
            if resident.name in self._swarm.peers and self._swarm.peers[resident.name].is_banned:
                return  # its key is worth nothing any more

    async def _stay(self, resident: ScheduledPeer, stay: PresencePeriod) -> None:
        """One session. A peer that could not join, or failed, tries again as long as the session lasts."""
        loop = asyncio.get_running_loop()
        until_s = math.inf if stay.for_s is None else loop.time() + stay.for_s
        while loop.time() < until_s:
            if not self._can_join(resident):
                await asyncio.sleep(ENTRY_POLL_S)
                continue
            peer = self._join(resident)
            if not await _has_ended(peer, until_s - loop.time()):
                if not stay.crashes:
                    await peer.finish_step(LAST_STEP_S)
                await self._leave(peer, crashes=stay.crashes)
                return
            if peer.error is None:
                if not peer.is_gone:  # the run is over, and it serves the last state
                    await asyncio.Event().wait()
                self._recorder.left(peer, "killed")
                return
            if peer.is_banned:
                await self._leave(peer, crashes=False, how="banned")
                return
            self._recorder.note("peer.gave_up", peer=peer.name, why=str(peer.error))
            await self._leave(peer, crashes=False, how="error")
            await asyncio.sleep(min(RETRY_S, until_s - loop.time()))

    def _can_join(self, resident: ScheduledPeer) -> bool:
        """Whether there is a peer that it can dial, unless it may be the first one."""
        alive = self._swarm.alive()
        return resident.host.takes_newcomers or any(peer.network.settings.takes_newcomers for peer in alive)

    def _join(self, resident: ScheduledPeer) -> SimulatedPeer:
        """Start a peer."""
        if resident.name in self._swarm.peers:
            peer = self._swarm.restart(resident.name)
        else:
            peer = self._swarm.add(
                resident.host,
                resident.trainer,
                auxiliary=resident.trainer is None,
                name=resident.name,
                apply_s=resident.apply_s,
            )
        self._recorder.arrived(peer)
        if resident.lies is not None:
            self._driver.strike(Fault("lie", (peer.name,), behaviour=resident.lies))
        return peer

    async def _leave(self, peer: SimulatedPeer, *, crashes: bool, how: str = "goodbye") -> None:
        """End a session, with a goodbye if it can still say one."""
        if not crashes:
            try:
                async with asyncio.timeout(GOODBYE_S):
                    await peer.session.close("the session is over")
            except TimeoutError:
                crashes = True
        if crashes:
            self._swarm.internet.kill(peer.name)
        self._recorder.left(peer, "crash" if crashes else how)


async def _has_ended(peer: SimulatedPeer, limit_s: float) -> bool:
    """Whether a peer ends by itself, or by a fault, before the time is up."""
    try:
        async with asyncio.timeout(None if limit_s == math.inf else limit_s):
            await peer.ended.wait()
    except TimeoutError:
        return False
    return True
