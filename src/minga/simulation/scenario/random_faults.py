"""Faults at random times to random peers, by the rates of a scenario."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from minga.simulation.faults.script import Fault
from minga.simulation.scenario.sections import RandomFault


async def strike_at_random(
    kind: RandomFault, rng: random.Random, alive: Callable[[str | None], list[str]], strike: Callable[[Fault], None]
) -> None:
    """Let one kind of fault happen for ever, as a Poisson process; `alive(peers)` names the living of a class.

    A fault for which there are not enough living peers is left out.
    """
    while True:
        await asyncio.sleep(rng.expovariate(kind.per_hour / 3600.0))
        wanted = 2 if kind.action == "drop_link" else 1
        for_s = None if kind.lasts is None else kind.lasts.draw(rng)
        rate = None if kind.to is None else kind.to.draw(rng)
        victims = alive(kind.peers)
        if len(victims) >= wanted:
            strike(Fault(kind.action, tuple(rng.sample(victims, wanted)), for_s=for_s, bytes_per_s=rate))
