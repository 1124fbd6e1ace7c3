"""Trainings under attack: by the secure protocol among simulated peers, and in a plain loop without bans."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch

from benchmarks._attack_digits import Digits, DigitsWork
from benchmarks._other_aggregates import Aggregation
from minga.core.events.bus import Event
from minga.network.interface import PeerId
from minga.security.parts.equal_parts import EqualParts
from minga.security.parts.part_store import PartStore
from minga.security.protocol.attempt_record import AttemptRecord, Terms
from minga.security.protocol.behaviour import Behaviour, Seeds
from minga.security.protocol.rules import Rules, SecureSettings
from minga.security.randomness.coin import derive
from minga.security.randomness.public_batch import data_seed
from minga.security.step.member import ExcludedError
from minga.simulation import run_virtual
from minga.simulation.attacks.interface import Attack
from tests.worlds.secure_swarm import SecureSwarm

COMPUTE_S = 0.3
"""Seconds of a gradient where somebody comes later: without them a step would be as short as it takes to follow it."""


@dataclass(frozen=True)
class Extent:
    """How many `peers` take how many `steps`; of those, `hostile` attack from step `attack_from` on."""

    peers: int = 16
    hostile: int = 7
    validators: int = 1
    steps: int = 300
    attack_from: int = 100
    seed: int = 0


@dataclass(frozen=True)
class Told:
    """What became of a run: accuracy before and after each step, the final one, and who was banned when and why.

    `stayed` are the attackers who are members to the end, `all_equal` says that all honest ones took all steps and
    have the same parameters and the same list.
    """

    accuracies: list[float]
    metric: float
    bans: dict[str, tuple[int, str]]
    stayed: frozenset[str]
    all_equal: bool


def hostile_names(extent: Extent) -> tuple[str, ...]:
    """Who attacks, drawn by the seed."""
    names = [f"p{index}" for index in range(extent.peers)]
    return tuple(random.Random(extent.seed).sample(names, extent.hostile))


def newcomer_names(extent: Extent) -> tuple[str, ...]:
    """Which honest peer comes later where one does."""
    names = {f"p{index}" for index in range(extent.peers)}
    return (min(names.difference(hostile_names(extent))),)


def run_swarm(digits: Digits, setup: type[Attack] | None, extent: Extent) -> Told:
    """Train by secure steps in virtual time; without attackers if there is no `setup`."""
    return run_virtual(_run_swarm(digits, setup, extent))


async def _run_swarm(digits: Digits, setup: type[Attack] | None, extent: Extent) -> Told:
    make = setup.begin(extent.attack_from) if setup else None
    hostile = dict.fromkeys(hostile_names(extent), make) if make else {}
    settings = SecureSettings(peers_per_validator=-(-extent.peers // extent.validators))
    who_comes = setup.who_comes if setup else "nobody"
    late = hostile.keys() if who_comes == "attackers" else newcomer_names(extent) if who_comes == "newcomer" else ()
    compute_s = COMPUTE_S if late else 0.0
    swarm = SecureSwarm(
        extent.peers,
        lambda: DigitsWork(digits, compute_s),
        {name: hostile[name] for name in hostile if name not in late},
        settings=settings,
        seed=extent.seed,
        absent=late,
    )
    comers = {name: hostile[name](frozenset()) if name in hostile else Behaviour() for name in late}
    _when(swarm, extent.attack_from, lambda: [swarm.join(name, behaviour) for name, behaviour in comers.items()])
    ends = await swarm.run(extent.steps)
    for name, end in ends.items():
        if end is not None and not isinstance(end, ExcludedError):
            raise RuntimeError(f"{name} ended before its time") from end
    witness = next(peer for peer in swarm.honest if ends[peer.name] is None)
    states = {
        (await peer.work.digest(), peer.member._progress.standing.digest) if ends[peer.name] is None else None
        for peer in (*swarm.honest, *(swarm.peers[name] for name in comers if name not in hostile))
    }
    bans = {swarm.names[peer]: (ban.step, ban.reason.name) for peer, ban in witness.member.membership.bans.items()}
    stayed = frozenset(swarm.names[peer] for peer in witness.member.membership.members) & hostile.keys()
    work = cast(DigitsWork, witness.work)
    return Told(work.accuracies, work.metric, bans, stayed, len(states) == 1 and None not in states)


def _when(swarm: SecureSwarm, step: int, action: Callable[[], object]) -> None:
    """Do something, which belongs to no simulated peer, when the first honest founder has taken so many steps."""

    def hear(event: Event) -> None:
        if event.kind == "secure.step" and event.fields["step"] == step:
            asyncio.get_running_loop().call_soon(action, context=contextvars.Context())

    swarm.honest[0].node.events.subscribe(hear)


def run_plainly(digits: Digits, setup: type[Attack], extent: Extent, aggregation: Aggregation | None = None) -> Told:
    """Train in a loop in which all gradients of a step are aggregated at once, and nobody is banned.

    Without an `aggregation` each member takes the mean of its part, as in an ordinary all-reduce, and attackers may do
    there what they like; one that is given aggregates whole gradients, as a server that all trust.
    """
    return asyncio.run(_run_plainly(digits, setup, extent, aggregation))


async def _run_plainly(digits: Digits, setup: type[Attack], extent: Extent, aggregation: Aggregation | None) -> Told:
    work, names = DigitsWork(digits), hostile_names(extent)
    ids = {f"p{index}": PeerId(f"{index:064x}") for index in range(extent.peers)}
    allies, make = frozenset(ids[name] for name in names), setup.begin(extent.attack_from)
    behaviours = {peer: make(allies) if peer in allies else Behaviour() for peer in ids.values()}
    for step in range(extent.steps):
        coin = derive(bytes(32), "plain loop", extent.seed, step)
        seeds = {peer: data_seed(coin, peer) for peer in behaviours}
        rows = [await behaviour.gradient(work, step, Seeds(peer, seeds)) for peer, behaviour in behaviours.items()]
        stacked = torch.stack(rows)
        if not bool(stacked.isfinite().all()):  # the parameters are lost, and with them all that follows
            mean = torch.full_like(rows[0], torch.nan)
        elif aggregation is None:
            mean = _hand_out(stacked.mean(0), rows, behaviours, work, step)
        else:
            mean = aggregation(stacked, extent.hostile)
        await work.apply(step, mean)
    return Told(work.accuracies, work.metric, {}, frozenset(names), True)


def _hand_out(
    mean: torch.Tensor, rows: list[torch.Tensor], behaviours: dict[PeerId, Behaviour], work: DigitsWork, step: int
) -> torch.Tensor:
    """What becomes of the mean in the hands of those who aggregate its parts."""
    settings, division = SecureSettings(), EqualParts.equal(work.layout, len(behaviours))
    terms = Terms("plain loop", step, 0, tuple(behaviours), frozenset(), division, Rules.of(work.layout, settings))
    record, parts = AttemptRecord(terms, PartStore((), ())), []
    for part, behaviour in enumerate(behaviours.values()):
        piece = slice(division.starts[part], division.stops[part])
        distances = torch.stack([(row[piece] - mean[piece]).norm() for row in rows])
        radius = settings.clip_factor * float(distances.median())
        parts.append(behaviour.value(mean[piece], radius, record)[0])
    return torch.cat(parts)
