"""Samples of candidates' gradients: who computes on other hardware, behind a slow line, gets in by them, and who holds
them back or makes them up does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import numpy as np
import pytest
import torch

from minga.core.errors import RejectedError, UnreachableError
from minga.network.interface import PeerId
from minga.network.rpc.stream import MessageStream
from minga.security.messaging.gradient_samples import (
    MAX_PIECES,
    MAX_SERVED_EACH,
    PIECE_NUMEL,
    SAMPLED,
    SUBMISSION,
    GradientSamples,
    PiecePaths,
    Request,
)
from minga.security.parts.transfer_limits import LOOK_S, transfer_limit_s
from minga.security.protocol.behaviour import Behaviour, Seeds, TrainingBackend
from minga.security.protocol.rules import SecureSettings
from minga.security.verification.gradient_match import sampled_error
from minga.simulation.attacks.joining_attacks import Machine, Sybil
from tests.worlds.secure_swarm import SecurePeer, SecureSwarm
from tests.worlds.secure_world import Quadratic
from tests.worlds.swarm_tools import later, virtually

NUMEL = 60_000
GRADIENT_BYTES = 4 * NUMEL


class OtherHardware(Behaviour):
    """Rounds differently."""

    async def gradient(self, work: TrainingBackend, step: int, seeds: Seeds) -> torch.Tensor:
        return await super().gradient(work, step, seeds) * (1.0 + 1e-6)


def busy_machine() -> Machine:
    """One that computes for nobody."""
    machine = Machine()
    machine.step = 1 << 40
    return machine


def join(swarm: SecureSwarm, name: str, behaviour: Behaviour, up_bytes_per_s: float | None = None) -> SecurePeer:
    peer = swarm.join(name, behaviour)
    swarm.internet.set_rate(peer.network, up_bytes_per_s, None)
    return peer


async def hang(_: PeerId, __: MessageStream) -> None:
    """Serve a call without ever answering."""
    await asyncio.Event().wait()


def times_of(swarm: SecureSwarm, peer: SecurePeer, event: str) -> dict[str, float]:
    """Whom an event concerned, and when, as a peer tells it."""
    return {swarm.names[PeerId(str(e.fields["peer"]))]: e.time for e in peer.log if e.kind == event}


def steps_s(peer: SecurePeer, until_s: float = float("inf")) -> list[float]:
    times = [e.time for e in peer.log if e.kind == "secure.step" and e.time <= until_s]
    return [b - a for a, b in itertools.pairwise(times)]


def longest_step_s(peer: SecurePeer, until_s: float = float("inf")) -> float:
    return max(steps_s(peer, until_s))


def shortest_step_s(peer: SecurePeer) -> float:
    return min(steps_s(peer))


@virtually
async def test_other_hardware_behind_a_slow_line_gets_in_and_who_trickles_does_not() -> None:
    settings = SecureSettings(probation_steps=12, peers_per_validator=2)
    compute_s, gradient_s = 1.0, 4.0
    swarm = SecureSwarm(6, lambda: Quadratic(NUMEL, compute_s=compute_s), settings=settings)
    later(1.0, lambda: join(swarm, "slow", OtherHardware(), GRADIENT_BYTES / gradient_s))
    later(1.0, lambda: join(swarm, "trickling", Sybil(busy_machine()), GRADIENT_BYTES / 40))
    later(1.0, lambda: join(swarm, "beside", Behaviour()))
    ends = await swarm.run(17)  # as a member, too, the slow one would send gradients: that is another matter
    first = swarm.peers["p0"]
    assert all(ends[name] is None for name in swarm.peers)
    admitted = times_of(swarm, first, "secure.admitted")
    assert admitted.keys() == {"slow", "beside"}
    assert times_of(swarm, first, "secure.dropped").keys() == {"trickling"}
    assert not swarm.bans(first)
    assert gradient_s > 3 * shortest_step_s(first)
    assert longest_step_s(first, admitted["slow"]) < 2 * LOOK_S + compute_s


@virtually
async def test_a_step_takes_no_longer_where_its_candidates_trickle_or_hang() -> None:
    settings = SecureSettings(probation_steps=30, peers_per_validator=2)
    compute_s = 2 * LOOK_S
    swarm = SecureSwarm(4, lambda: Quadratic(NUMEL, compute_s=compute_s), settings=settings)

    def join_hanging() -> None:
        node = join(swarm, "hanging", Sybil(busy_machine())).node
        serve = node.serve
        node.serve = lambda method, handler: serve(method, hang if method == SUBMISSION else handler)

    later(1.0, lambda: join(swarm, "trickling", Sybil(busy_machine()), GRADIENT_BYTES / 100))
    later(1.0, join_hanging)
    ends = await swarm.run(21)
    first = swarm.peers["p0"]
    assert all(ends[name] is None for name in swarm.peers)
    assert times_of(swarm, first, "secure.dropped").keys() == {"trickling", "hanging"}
    assert not times_of(swarm, first, "secure.admitted")
    assert not swarm.bans(first)
    judged_s = 2 * compute_s  # an accusation makes all members compute once more
    assert longest_step_s(first) < judged_s + 1.0


# ---- what goes over the wire


def a_submission(swarm: SecureSwarm) -> tuple[SecurePeer, GradientSamples, GradientSamples]:
    """One peer that keeps the gradient of step 1 as a candidate, and its samples and another member's."""
    one, other = swarm.peers["p0"], swarm.peers["p1"]
    return one, one.member._register.samples, other.member._register.samples


@virtually
async def test_a_sample_is_a_small_share_and_belongs_to_one_root_only() -> None:
    numel = 1 << 22
    swarm = SecureSwarm(2, lambda: Quadratic(numel))
    candidate, theirs, ours = a_submission(swarm)
    gradient = torch.randn(numel, generator=torch.Generator().manual_seed(1))
    submission = await theirs.encode(gradient)
    theirs.keep(1, candidate.peer_id, submission)
    coins = [bytes([number]) * 32 for number in range(2)]
    places, others = (ours.drawn(coin, candidate.peer_id) for coin in coins)
    assert len(set(places)) == len(places) == SAMPLED
    assert set(places) != set(others)
    sample = await ours.fetch(1, candidate.peer_id, submission.root, places, [candidate.peer_id])
    assert sample is not None
    assert sample.pieces.keys() == set(places)
    assert 100 * sum(len(piece) for piece, _ in sample.pieces.values()) < 4 * numel
    assert torch.equal(ours.decode(sample), theirs.decode(submission.sample(places)))
    assert await ours.fetch(1, candidate.peer_id, bytes(32), others, [candidate.peer_id]) is None
    changed = await theirs.encode(gradient + 1e-3)
    theirs.keep(2, candidate.peer_id, changed)  # it hands out something else than it committed to
    assert await ours.fetch(2, candidate.peer_id, submission.root, places, [candidate.peer_id]) is None


@virtually
async def test_what_a_validator_fetched_others_can_have_from_it() -> None:
    swarm = SecureSwarm(3, lambda: Quadratic(NUMEL))
    candidate, theirs, ours = a_submission(swarm)
    submission = await theirs.encode(torch.ones(NUMEL))
    theirs.keep(1, candidate.peer_id, submission)
    places = ours.drawn(bytes(32), candidate.peer_id)
    await ours.fetch(1, candidate.peer_id, submission.root, places, [candidate.peer_id])
    theirs.forget_before(2)
    judge, validator = swarm.peers["p2"].member._register.samples, swarm.peers["p1"].peer_id
    sources = [candidate.peer_id, validator]
    assert await judge.fetch(1, candidate.peer_id, submission.root, places, sources) is not None
    unseen = [place for place in range(NUMEL // PIECE_NUMEL) if place not in places][:SAMPLED]
    assert await judge.fetch(1, candidate.peer_id, submission.root, unseen, sources) is None


@virtually
async def test_pieces_that_do_not_exist_are_not_handed_out() -> None:
    swarm = SecureSwarm(2, lambda: Quadratic(NUMEL))
    candidate, theirs, ours = a_submission(swarm)
    theirs.keep(1, candidate.peer_id, await theirs.encode(torch.ones(NUMEL)))
    node = swarm.peers["p1"].node
    for request in (Request(1, candidate.peer_id, (MAX_PIECES - 1,)), Request(2, candidate.peer_id, (0,))):
        with pytest.raises(RejectedError, match="not here"):
            await node.call(candidate.peer_id, SUBMISSION, request, PiecePaths)
    for places in ((0,) * (SAMPLED + 1), (MAX_PIECES,), (-1,)):
        with pytest.raises(UnreachableError, match="reset"):
            await node.call(candidate.peer_id, SUBMISSION, Request(1, candidate.peer_id, places), PiecePaths)
    assert await ours._ask(candidate.peer_id, Request(1, candidate.peer_id, (0, 0))) is None


@virtually
async def test_a_member_is_handed_a_few_samples_at_once_and_only_as_long_as_a_slow_line_takes() -> None:
    numel = 1 << 23
    swarm = SecureSwarm(2, lambda: Quadratic(numel))
    candidate, theirs, ours = a_submission(swarm)
    theirs.keep(1, candidate.peer_id, await theirs.encode(torch.ones(numel)))
    swarm.internet.set_rate(candidate.network, 5_000.0, None)
    wanted = Request(1, candidate.peer_id, ours.drawn(bytes(32), candidate.peer_id))
    node = swarm.peers["p1"].node
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(MAX_SERVED_EACH):
            stream = await stack.enter_async_context(node.open(candidate.peer_id, SUBMISSION, bulk=True))
            await stream.send(wanted)
        await asyncio.sleep(1.0)
        assert theirs._served.serving.total() == MAX_SERVED_EACH
        swarm.internet.set_rate(candidate.network, None, None)
        with pytest.raises(RejectedError, match="at once"):
            await node.call(candidate.peer_id, SUBMISSION, wanted, PiecePaths)
        await asyncio.sleep(transfer_limit_s(4 * numel) + 5.0)
        assert not theirs._served.serving


# ---- what a sample says of the whole


def test_a_sample_tells_the_error_of_the_whole_on_average() -> None:
    generator = np.random.default_rng(3)
    own = generator.standard_normal(200_000).astype(np.float32)
    sent = own + generator.standard_normal(len(own)).astype(np.float32) * 1e-3
    whole = float(np.linalg.norm(sent - own) / np.linalg.norm(own))
    errors = []
    for _ in range(50):
        at = generator.choice(len(own), 2_000, replace=False)
        errors.append(sampled_error(sent[at], own[at], float(np.linalg.norm(own)), len(own)))
    assert np.mean(errors) == pytest.approx(whole, rel=0.02)


def test_a_sample_from_where_the_gradient_is_nearly_nothing_convicts_nobody_of_rounding() -> None:
    own = np.full(1_000, 1e-9, np.float32)
    assert sampled_error(own * 3, own, 1.0, 100_000) < 1e-6
    assert sampled_error(np.ones(1_000, np.float32), own, 1.0, 100_000) > 1.0
    assert sampled_error(np.zeros(0, np.float32), np.zeros(0, np.float32), 0.0, 0) == 0.0
    assert sampled_error(np.ones(1, np.float32), np.zeros(1, np.float32), 0.0, 1) == float("inf")
