"""Who takes part in a scenario: each peer with what it drew from the seed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from minga.network.virtual.host import MAX_LATENCY_S
from minga.network.virtual.internet import HostSettings, Nat
from minga.simulation.scenario.scenario import Scenario
from minga.simulation.scenario.sections import PeerTable
from minga.simulation.swarm.simulated_peer import TrainerSettings

APPLY_S_PER_PARAMETER: Final = 1e-8
"""What an optimizer step takes on one core of a desktop: 0.18 s for ALBERT-large with LAMB (an estimate)."""


@dataclass(frozen=True)
class PresencePeriod:
    """One session: it begins `after_s` seconds after the one before ended (or after the start), and lasts `for_s`
    seconds (None: to the end); `crashes` if it ends without a goodbye.
    """

    after_s: float
    for_s: float | None
    crashes: bool


@dataclass(frozen=True)
class ScheduledPeer:
    """One peer of a scenario. `lies` names how, if it does so in a way that is possible in any run; `fits` is False
    where the model is too large for it.
    """

    name: str
    peer_class: PeerTable
    host: HostSettings
    trainer: TrainerSettings | None
    apply_s: float
    arrival_s: float
    lies: str | None
    fits: bool
    seed: str

    def stays(self) -> Iterator[PresencePeriod]:
        """Its sessions, one after the other, as long as it comes back."""
        rng, kind = random.Random(f"{self.seed} stays"), self.peer_class
        after_s = self.arrival_s
        while True:
            for_s = None if kind.session is None else kind.session.draw(rng)
            yield PresencePeriod(after_s, for_s, for_s is not None and rng.random() < kind.crash)
            if for_s is None:
                return
            if kind.every is not None:
                after_s = max(0.0, kind.every.draw(rng) - for_s)
            elif kind.away is not None:
                after_s = kind.away.draw(rng)
            else:
                return


def population(scenario: Scenario) -> list[ScheduledPeer]:
    """All peers, in the order in which they come first.

    A peer to which no newcomer gets through comes no earlier than the first that lets newcomers in.
    """
    residents = [_resident(scenario, kind, number) for kind in scenario.peers for number in range(1, kind.count + 1)]
    open_ones = [each for each in residents if each.host.takes_newcomers and each.fits]
    first_s = min((each.arrival_s for each in open_ones), default=0.0)
    waiting = (
        each if each.host.takes_newcomers else replace(each, arrival_s=max(each.arrival_s, first_s))
        for each in residents
    )
    return sorted(waiting, key=lambda each: (each.arrival_s, not each.host.takes_newcomers))


def _resident(scenario: Scenario, kind: PeerTable, number: int) -> ScheduledPeer:
    name = f"{kind.name}-{number}"
    seed = f"minga scenario {scenario.seed} {name}"
    rng = random.Random(seed)
    # Always the same draws in the same order, so that a change of one setting leaves all others as they were.
    relay = scenario.relay_of(kind)
    speed = 0.0 if kind.samples_per_second is None else kind.samples_per_second.draw(rng)
    host = HostSettings(
        up_bytes_per_s=None if kind.up is None else kind.up.draw(rng),
        down_bytes_per_s=None if kind.down is None else kind.down.draw(rng),
        latency_s=min(kind.latency.draw(rng), MAX_LATENCY_S),
        loss=kind.packet_loss,
        dialable=_is_dialable(kind, number),
        region=kind.region or "",
        nat=Nat(kind.nat),
        relay=None if relay is None else relay.url,
    )
    memory = None if kind.memory is None else kind.memory.draw(rng)
    trainer = TrainerSettings(kind.micro_batch, kind.micro_batch / speed, kind.jitter) if speed else None
    attackers = scenario.attackers_of(kind, number)
    return ScheduledPeer(
        name=name,
        peer_class=kind,
        host=host,
        trainer=trainer,
        apply_s=kind.processor.draw(rng) * scenario.parameters * APPLY_S_PER_PARAMETER,
        arrival_s=kind.arrival.draw(rng),
        lies=None if attackers is None or attackers.is_attack else attackers.behaviour,
        fits=memory is None or memory >= scenario.memory_bytes,
        seed=seed,
    )


def _is_dialable(kind: PeerTable, number: int) -> bool:
    """Spread evenly over the class, so that the share is as exact as can be; the first one is among them."""
    return math.ceil(number * kind.dialable - 1e-9) > math.ceil((number - 1) * kind.dialable - 1e-9)
