"""Trainings under attack in virtual time, by the secure protocol, and in a plain loop without bans.

What is trained is a perceptron with one hidden layer on scikit-learn's digits (8x8 pixels). Everybody has all samples;
who takes which in a step follows from its public seed. Simulated members in equal states share what was computed of
these, since validators, judges and omniscient attackers ask for the same gradients; each has its own parameters, so
that it would be seen if they came to differ.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import numpy as np
import torch
from blake3 import blake3
from torch.nn import functional

from benchmarks._other_aggregates import Aggregation
from minga.averaging.codecs.layout import VectorLayout
from minga.core.events.bus import Event
from minga.network.interface import PeerId
from minga.security.parts.equal_parts import EqualParts
from minga.security.parts.part_store import PartStore
from minga.security.protocol.attempt_record import AttemptRecord, Terms
from minga.security.protocol.behaviour import KEPT_STEPS, Behaviour, Seeds
from minga.security.protocol.rules import Rules, SecureSettings
from minga.security.randomness.coin import derive
from minga.security.randomness.public_batch import batch_indices, data_seed
from minga.security.step.member import ExcludedError
from minga.simulation import run_virtual
from minga.simulation.attacks.interface import Attack
from tests.worlds.secure_swarm import DonatedBackend, SecureSwarm

PIXELS, HIDDEN, CLASSES = 64, 32, 10
BATCH = 32
RATE, MOMENTUM = 0.1, 0.9
HELD_OUT = 360
KEPT_RESULTS = 1 << 11
FINAL_STEPS = 10


@dataclass(frozen=True)
class Samples:
    """Pixels from 0 to 1, float32 [n, 64], and labels, int64 [n]."""

    pixels: torch.Tensor
    labels: torch.Tensor


class Digits:
    """The samples, the initial parameters (both by `seed`), and what was computed of them already."""

    def __init__(self, seed: int) -> None:
        from sklearn.datasets import load_digits

        data, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(seed).permutation(len(data))
        samples = Samples(torch.from_numpy(data[order] / 16.0).float(), torch.from_numpy(labels[order]).long())
        self._held_out = Samples(samples.pixels[:HELD_OUT], samples.labels[:HELD_OUT])
        self._training = Samples(samples.pixels[HELD_OUT:], samples.labels[HELD_OUT:])
        generator = torch.Generator().manual_seed(seed)
        shapes = [(HIDDEN, PIXELS), (HIDDEN,), (CLASSES, HIDDEN), (CLASSES,)]
        pieces = [
            torch.randn(shape, generator=generator) / shape[-1] ** 0.5 if len(shape) == 2 else torch.zeros(shape)
            for shape in shapes
        ]
        self.initial = torch.cat([piece.flatten() for piece in pieces])
        """float32 [numel]."""
        self._shapes = shapes
        self._stops = np.cumsum([0, *(piece.numel() for piece in pieces)])
        self._gradients: OrderedDict[tuple[bytes, bytes, bool], torch.Tensor] = OrderedDict()
        self._accuracies: dict[bytes, float] = {}

    def gradient(self, parameters: torch.Tensor, seed: bytes, *, flipped: bool = False) -> torch.Tensor:
        """Of the mean loss over the batch of a seed; `flipped` with labels 9 - y."""
        key = (_digest(parameters), seed, flipped)
        if key not in self._gradients:
            self._gradients[key] = self._computed(parameters, seed, flipped)
            if len(self._gradients) > KEPT_RESULTS:
                self._gradients.popitem(last=False)
        return self._gradients[key]

    def accuracy(self, parameters: torch.Tensor) -> float:
        """The share of the held-out samples that are recognised."""
        key = _digest(parameters)
        if key not in self._accuracies:
            with torch.no_grad():
                guesses = self._logits(parameters, self._held_out.pixels).argmax(1)
            self._accuracies[key] = float((guesses == self._held_out.labels).float().mean())
        return self._accuracies[key]

    def _computed(self, parameters: torch.Tensor, seed: bytes, flipped: bool) -> torch.Tensor:
        chosen = torch.from_numpy(batch_indices(seed, BATCH, len(self._training.labels)))
        labels = self._training.labels[chosen]
        leaf = parameters.clone().requires_grad_()
        logits = self._logits(leaf, self._training.pixels[chosen])
        loss = functional.cross_entropy(logits, CLASSES - 1 - labels if flipped else labels)
        return torch.autograd.grad(loss, leaf)[0]

    def _logits(self, parameters: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
        slices = (parameters[start:stop] for start, stop in pairwise(self._stops))
        first, first_bias, second, second_bias = (
            piece.view(shape) for piece, shape in zip(slices, self._shapes, strict=True)
        )
        return functional.linear(functional.linear(pixels, first, first_bias).relu(), second, second_bias)


class DigitsWork(DonatedBackend):
    """One member's training: SGD with momentum; a gradient takes it `compute_s` seconds.

    Remembers its accuracy after each step.
    """

    def __init__(self, digits: Digits, compute_s: float = 0.0) -> None:
        self._digits, self._compute_s = digits, compute_s
        self._parameters = {0: digits.initial}
        self._momenta = {0: torch.zeros_like(digits.initial)}
        self._step = 0
        self.layout = VectorLayout((len(digits.initial),), "float32")
        self.accuracies = [digits.accuracy(digits.initial)]

    @property
    def metric(self) -> float:
        """The mean accuracy of the last steps: single ones go up and down by some samples."""
        last = self.accuracies[-FINAL_STEPS:]
        return sum(last) / len(last)

    async def gradient(self, step: int, seed: bytes) -> torch.Tensor:
        """Of the batch of a seed."""
        if self._compute_s:
            await asyncio.sleep(self._compute_s)
        return self._digits.gradient(self._parameters[step], seed)

    async def flipped_gradient(self, step: int, seed: bytes) -> torch.Tensor:
        """Of the same batch with other labels."""
        return self._digits.gradient(self._parameters[step], seed, flipped=True)

    async def apply(self, step: int, mean: torch.Tensor) -> None:
        """Take a step."""
        self._momenta[step + 1] = MOMENTUM * self._momenta[step] + mean
        self._parameters[step + 1] = self._parameters[step] - RATE * self._momenta[step + 1]
        self._step = step + 1
        self._parameters.pop(step - KEPT_STEPS, None)
        self._momenta.pop(step - KEPT_STEPS, None)
        self.accuracies.append(self._digits.accuracy(self._parameters[step + 1]))

    async def digest(self) -> bytes:
        """Of parameters and momentum."""
        return blake3(_digest(self._parameters[self._step]) + _digest(self._momenta[self._step])).digest()

    def dump(self, step: int) -> bytes | None:
        """Parameters and momentum, if they are kept."""
        if step not in self._parameters:
            return None
        return torch.cat([self._parameters[step], self._momenta[step]]).numpy().tobytes()

    def load(self, step: int, data: bytes) -> None:
        """Undo `dump`; the accuracies begin anew. Raises `ValueError` for another length."""
        if len(data) != 8 * self.layout.total:
            raise ValueError("a state of another length")
        both = torch.frombuffer(bytearray(data), dtype=torch.float32)
        self._parameters, self._momenta = {step: both[: self.layout.total]}, {step: both[self.layout.total :]}
        self._step, self.accuracies = step, [self._digits.accuracy(self._parameters[step])]


def _digest(vector: torch.Tensor) -> bytes:
    return blake3(vector.numpy().tobytes()).digest()


# ---- trainings under attack


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
