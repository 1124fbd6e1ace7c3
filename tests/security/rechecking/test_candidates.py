"""Newcomers of secure runs: how they become members, and what they cost the others."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Mapping, Sequence

import msgspec
import pytest
import torch

from minga.averaging.allreduce.messages import Done
from minga.identity.keys.keys import Identity
from minga.network.interface import PeerId
from minga.network.rpc.node import Handler
from minga.network.rpc.stream import MessageStream
from minga.network.virtual.internet import HostSettings, VirtualNetwork
from minga.security.accountability.evidence import Entered, Evidence, EvidenceError, Transcript
from minga.security.messaging.past_steps import LOOK, TAKE, WATCH, AwaitStep, Seen
from minga.security.messaging.spread import PROVE
from minga.security.protocol.behaviour import Behaviour, MakeBehaviour
from minga.security.protocol.members import FIRST_SUSPENSION_STEPS
from minga.security.protocol.rules import SecureSettings
from minga.security.protocol.statements import Candidacy, EquivocationProof, Phase, Slot, state
from minga.simulation.attacks.gradient_attacks import WrongAggregate
from minga.simulation.attacks.joining_attacks import (
    LyingGuide,
    Machine,
    PoisonedDonor,
    Sybil,
)
from minga.simulation.attacks.protocol_attacks import WithheldReveal
from tests.worlds.secure_swarm import LATENCY_S, RUN_ID, SecurePeer, SecureSwarm, verify_log
from tests.worlds.secure_world import Quadratic
from tests.worlds.seeds import seeds, soaked
from tests.worlds.swarm_tools import later, virtually

COMPUTE_S = 0.5
SETTINGS = SecureSettings(probation_steps=4)
LONG = SecureSettings(probation_steps=100, peers_per_validator=4)


class SilentCandidate(Behaviour):
    """Applies, and says nothing any more as soon as it is a candidate."""

    def candidacy(
        self, slot: Slot, candidacy: Candidacy, members: Sequence[PeerId]
    ) -> Sequence[tuple[Candidacy, Sequence[PeerId]]]:
        """Applications only."""
        return super().candidacy(slot, candidacy, members) if candidacy.gradient is None else []


class EquivocatingCandidate(Behaviour):
    """Commits to one thing before most members, and to another before the others."""

    def candidacy(
        self, slot: Slot, candidacy: Candidacy, members: Sequence[PeerId]
    ) -> Sequence[tuple[Candidacy, Sequence[PeerId]]]:
        """Two different words."""
        if candidacy.gradient is None:
            return super().candidacy(slot, candidacy, members)
        other = msgspec.structs.replace(candidacy, gradient=bytes(32))
        most = len(members) // 2 + 1
        return [(candidacy, members[:most]), (other, members[most:])]


def make_swarm(
    count: int = 4,
    *,
    hostile: Mapping[str, MakeBehaviour] | None = None,
    settings: SecureSettings = SETTINGS,
    seed: int = 0,
    returns: bool = False,
) -> SecureSwarm:
    def work() -> Quadratic:
        return Quadratic(50, compute_s=COMPUTE_S)

    return SecureSwarm(count, work, hostile, settings=settings, seed=seed, returns=returns)


def parameters(peer: SecurePeer, step: int) -> torch.Tensor:
    assert isinstance(peer.work, Quadratic)
    return peer.work.parameters[step]


def steps_of(peer: SecurePeer, event: str) -> dict[str, int]:
    """Who was concerned by an event, and when, as a peer tells it."""
    return {str(e.fields["peer"]): int(str(e.fields["step"])) for e in peer.log if e.kind == event}


def attempts(peer: SecurePeer) -> int:
    """How many attempts failed."""
    return sum(int(str(event.fields["attempt"])) for event in peer.log if event.kind == "secure.step")


def assert_alike(swarm: SecureSwarm, steps: int, names: list[str]) -> None:
    """They ended in the same state with the same lists, which the evidence of each member shows."""
    first = swarm.peers[names[0]]
    for name in names:
        member = swarm.peers[name].member
        if member.is_member:
            assert verify_log(RUN_ID, swarm.founders, member.evidence.entries).members == member.membership.members
        assert swarm.peers[name].member._progress.standing.digest == first.member._progress.standing.digest
        assert torch.equal(parameters(swarm.peers[name], steps), parameters(first, steps))


def assert_admission_cannot_be_doctored(peer: SecurePeer) -> None:
    entry = peer.member.evidence.entries[-1]
    proof, identity = entry.proof, Identity.from_seed(peer.network.private_key)
    assert isinstance(proof, Transcript)
    assert entry.verify(RUN_ID).admitted == proof.admitted
    (candidate,) = proof.standing.candidates
    eager = msgspec.structs.replace(candidate, clean_steps=candidate.clean_steps + 1)
    replace = msgspec.structs.replace
    for doctored in (
        replace(proof, standing=replace(proof.standing, candidates=(eager,))),
        replace(proof, rules=replace(proof.rules, probation_steps=1)),
        replace(proof, said=(proof.said[0][:2],)),
        replace(proof, standing=replace(proof.standing, candidates=())),
        replace(proof, admitted=(*proof.admitted, "0" * 64)),
        replace(proof, admitted=()),
    ):
        with pytest.raises(EvidenceError):
            Evidence.of(doctored, identity, RUN_ID).verify(RUN_ID)


@virtually
async def test_more_applicants_than_places_get_in_one_after_the_other() -> None:
    swarm = make_swarm(4)
    later(1.0, lambda: [swarm.join(f"new{index}") for index in range(3)])
    ends = await swarm.run(16)
    assert set(ends.values()) == {None}
    assert len(swarm.peers["p0"].member.membership.members) == 7
    assert_alike(swarm, 16, [*swarm.peers])
    assert not attempts(swarm.peers["p0"])
    welcomed = sorted(steps_of(swarm.peers["p0"], "secure.candidate").values())
    assert welcomed[0] < welcomed[2]


@virtually
async def test_a_candidate_that_falls_silent_costs_nobody_an_attempt() -> None:
    swarm = make_swarm()
    later(1.0, lambda: swarm.join("silent", SilentCandidate()))
    later(1.0, lambda: swarm.join("dead"))
    later(6.0, lambda: swarm.internet.kill("dead"))
    ends = await swarm.run(13)
    assert all(ends[peer.name] is None for peer in swarm.honest)
    first = swarm.peers["p0"]
    dropped = steps_of(first, "secure.dropped")
    assert {swarm.names[peer] for peer in dropped} == {"silent", "dead"}
    assert len(first.member.membership.members) == 4
    assert not attempts(first)
    assert not swarm.bans(first)
    times = [event.time for event in first.log if event.kind == "secure.step"]
    assert max(b - a for a, b in itertools.pairwise(times)) < 2 * COMPUTE_S


@virtually
async def test_a_candidate_that_says_two_things_is_banned() -> None:
    swarm = make_swarm()
    later(1.0, lambda: swarm.join("liar", EquivocatingCandidate()))
    await swarm.run(10)
    assert swarm.bans(swarm.peers["p0"]) == {"liar": "EQUIVOCATED"}
    assert not attempts(swarm.peers["p0"])
    assert_alike(swarm, 10, [peer.name for peer in swarm.honest])


@virtually
async def test_many_identities_with_one_machine_get_one_seat_at_most() -> None:
    settings = SecureSettings(peers_per_validator=4, probation_steps=12)
    swarm, machine = make_swarm(5, settings=settings), Machine()
    later(1.0, lambda: [swarm.join(f"sybil{index}", Sybil(machine)) for index in range(4)])
    steps = settings.probation + 10
    await swarm.run(steps)
    first = swarm.peers["p0"]
    assert len(first.member.membership.members) <= 6
    assert set(swarm.bans(first).values()) == {"WRONG_GRADIENT"}
    assert len(swarm.bans(first)) >= 3
    assert_alike(swarm, steps, [peer.name for peer in swarm.honest])


@virtually
async def test_members_who_lie_to_newcomers_lead_nobody_astray() -> None:
    hostile: dict[str, MakeBehaviour] = {
        "p1": lambda allies: LyingGuide(0, allies),
        "p3": lambda allies: PoisonedDonor(0, allies),
    }
    swarm = make_swarm(hostile=hostile)
    later(1.0, lambda: swarm.join("new"))
    ends = await swarm.run(14)
    assert set(ends.values()) == {None}
    new, old = swarm.peers["new"], swarm.peers["p0"]
    assert new.member.is_member
    admitted = steps_of(old, "secure.admitted")[new.peer_id]
    assert admitted - steps_of(old, "secure.candidate")[new.peer_id] >= SETTINGS.probation
    assert_alike(swarm, 14, [*swarm.peers])
    assert not swarm.bans(old)
    assert_admission_cannot_be_doctored(old)
    entered = new.member.evidence.entries[0].proof
    assert isinstance(entered, Entered)
    for doctored in (entered.places[: len(entered.places) // 2], (entered.places[0],) * len(entered.places)):
        with pytest.raises(EvidenceError):
            Evidence.of(
                msgspec.structs.replace(entered, places=doctored),
                Identity.from_seed(new.network.private_key),
                RUN_ID,
            ).verify(RUN_ID)


# With seed 2 it was away; with the others it had committed itself when it died, and was suspended.
@pytest.mark.parametrize("seed", [0, soaked(1), soaked(2)])
def test_a_member_that_was_killed_comes_back(seed: int) -> None:
    steps = 18 if seed == 2 else 2 + FIRST_SUSPENSION_STEPS + 14

    @virtually
    async def run() -> None:
        killed_s = random.Random(f"comes back {seed}").uniform(1.0, 1.5)
        swarm = make_swarm(seed=seed)
        later(killed_s, lambda: swarm.internet.kill("p2"))
        later(killed_s + 1.0, lambda: swarm.restart("p2"))
        ends = await swarm.run(steps)
        assert set(ends.values()) == {None}
        assert swarm.peers["p2"].member.is_member
        assert_alike(swarm, steps, [*swarm.peers])
        membership = swarm.peers["p0"].member.membership
        assert swarm.bans(swarm.peers["p0"]) == ({} if seed == 2 else {"p2": "SILENT"})
        assert membership.lapses(swarm.peers["p2"].peer_id) == (0 if seed == 2 else 1)

    run()


@virtually
async def test_a_member_that_stood_still_comes_back_after_a_shorter_probation() -> None:
    settings = SecureSettings(probation_steps=12)
    swarm = make_swarm(settings=settings, returns=True)
    later(1.1, lambda: swarm.internet.stall("p2"))
    later(10.0, lambda: swarm.internet.resume("p2"))
    ends = await swarm.run(28)
    assert not swarm.bans(swarm.peers["p0"])
    assert set(ends.values()) == {None}
    assert_alike(swarm, 28, [*swarm.peers])
    first, back = swarm.peers["p0"], swarm.peers["p2"].peer_id
    probation = steps_of(first, "secure.admitted")[back] - steps_of(first, "secure.candidate")[back]
    assert probation < settings.probation


class SkewedSwarm(SecureSwarm):
    """The clocks of its peers are slow, right and fast in turn."""

    def _host(self, name: str) -> VirtualNetwork:
        skew_s = (-60.0, 0.0, 60.0)[len(self.names) % 3]
        host = self.internet.host(HostSettings(latency_s=LATENCY_S, clock_skew_s=skew_s), name=name)
        self.names[host.peer_id], self._addresses[host.peer_id] = name, host.address
        return host


@virtually
async def test_a_newcomer_enters_while_steps_are_repeated_and_members_go() -> None:
    """Whatever clocks say: a secure run goes by what was said and not by when."""
    hostile: dict[str, MakeBehaviour] = {
        "p1": lambda allies: WrongAggregate(2, allies),
        "p3": lambda allies: WithheldReveal(5, allies),
    }
    swarm = SkewedSwarm(6, lambda: Quadratic(50, compute_s=COMPUTE_S), hostile, settings=SETTINGS)
    later(1.0, lambda: swarm.join("new"))
    ends = await swarm.run(15)
    names = [*(peer.name for peer in swarm.honest), "new"]
    assert {ends[name] for name in names} == {None}
    assert {swarm.peers[name].network.settings.clock_skew_s for name in names} == {-60.0, 0.0, 60.0}
    assert swarm.peers["new"].member.is_member
    assert swarm.bans(swarm.peers["new"]) == {"p1": "WRONG_AGGREGATE", "p3": "SILENT"}
    assert attempts(swarm.peers["p0"]) >= 2
    assert_alike(swarm, 15, names)


@pytest.mark.parametrize("seed", seeds(1, of=6))
@virtually
async def test_a_newcomer_enters_while_members_die(seed: int) -> None:
    generator = random.Random(f"joins while others die {seed}")
    swarm = make_swarm(5, seed=seed)
    later(generator.uniform(0.5, 3.0), lambda: swarm.join("new"))
    dead = generator.sample([f"p{index}" for index in range(5)], 2)
    for name in dead:
        later(generator.uniform(0.5, 6.0), lambda name=name: swarm.internet.kill(name))
    ends = await swarm.run(18)
    names = [name for name in swarm.peers if name not in dead]
    assert {ends[name] for name in names} == {None}
    assert swarm.bans(swarm.peers["new"]).keys() <= set(dead)
    assert_alike(swarm, 18, names)


async def hang(peer: PeerId, stream: MessageStream) -> None:
    """Serve a call without ever answering."""
    await asyncio.Event().wait()


@virtually
async def test_members_that_do_not_answer_newcomers_do_not_keep_them_out() -> None:
    """Once those that came in the same step had logs that showed nothing: most of the list before had signed it."""
    asked = set[str]()

    def hang_in(method: str) -> Handler:
        async def serve(peer: PeerId, stream: MessageStream) -> None:
            asked.add(method)
            await hang(peer, stream)

        return serve

    swarm = make_swarm(5)
    for name, method in (("p1", WATCH), ("p2", WATCH), ("p3", LOOK), ("p4", TAKE)):
        swarm.peers[name].node.serve(method, hang_in(method))
    later(1.0, lambda: [swarm.join("new"), swarm.join("other")])
    ends = await swarm.run(14)
    assert set(ends.values()) == {None}
    assert {*steps_of(swarm.peers["p0"], "secure.admitted")} == {swarm.peers[name].peer_id for name in ("new", "other")}
    assert len({*steps_of(swarm.peers["p0"], "secure.admitted").values()}) == 1
    for name in ("new", "other"):
        entries = swarm.peers[name].member.evidence.entries
        assert len(verify_log(RUN_ID, swarm.founders, entries).members) == 7
    assert asked == {WATCH, LOOK, TAKE}


@virtually
async def test_a_stranger_cannot_fill_memory_or_take_all_places_of_watchers() -> None:
    swarm = make_swarm()
    stranger = swarm.join("stranger", SilentCandidate())
    known = swarm.peers["p0"]
    watching = set[asyncio.Task[Seen]]()

    async def flood() -> None:
        await asyncio.sleep(1.0)
        for index in range(100):
            identity, slot = Identity.from_seed(index.to_bytes(32, "big")), Slot(10**6, 0, Phase.CANDIDACY)
            one, other = (state(identity, RUN_ID, slot, Candidacy(bytes([which]) * 32)) for which in range(2))
            await stranger.node.call(known.peer_id, PROVE, EquivocationProof(one, other), Done, timeout_s=5.0)
        while True:
            for peer in swarm.founders:
                call = stranger.node.call(peer, WATCH, AwaitStep(10**9), Seen, timeout_s=60.0)
                watching.update(asyncio.ensure_future(call) for _ in range(250))
            await asyncio.gather(*watching, return_exceptions=True)
            watching.clear()

    flooding = stranger.network.process.run(flood())
    later(3.0, lambda: swarm.join("new"))
    ends = await swarm.run(16)
    flooding.cancel()
    await asyncio.gather(flooding, *watching, return_exceptions=True)
    assert ends["new"] is None
    assert swarm.peers["new"].member.is_member
    assert not known.member._gossip.proofs
