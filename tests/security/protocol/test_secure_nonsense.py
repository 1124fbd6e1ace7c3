"""Secure steps with members that say well-formed nonsense: only those go."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
import torch

from minga.averaging.codecs.interface import CONTRIBUTION_LIMIT
from minga.identity.keys.keys import Identity
from minga.network.interface import PeerId
from minga.security.messaging.spread import PartCollector
from minga.security.messaging.voting import OutvotedError
from minga.security.parts import equal_parts
from minga.security.protocol.attempt_record import AttemptRecord
from minga.security.protocol.behaviour import Seeds, TrainingBackend
from minga.security.protocol.statements import MAX_MEMBERS, Body, Claims, Phase, Result, Slot, state
from minga.security.step.member import ExcludedError
from minga.security.verification.claims import PartClaim
from minga.simulation.attacks.gradient_attacks import Attack
from minga.simulation.attacks.protocol_attacks import SilentResult
from tests.worlds.secure_swarm import RUN_ID, SecureSwarm
from tests.worlds.secure_world import Quadratic
from tests.worlds.swarm_tools import virtually

pytestmark = pytest.mark.promise("when-members-are-hostile")


class Huge(Attack):
    """Hands out an aggregate whose distances cannot be told."""

    def value(self, value: torch.Tensor, clip: float, record: AttemptRecord) -> tuple[torch.Tensor, float]:
        return (torch.full_like(value, 3e38) if self.is_on else value), clip


class NoRadius(Attack):
    """Names a radius of clipping that is none."""

    def result(self, result: Result) -> Result | None:
        return msgspec.structs.replace(result, clip=0.0) if self.is_on else result


class TooFar(Attack):
    """Sends a gradient so long that no claim can say how far it is from an aggregate, and claims what it likes."""

    changes = "gradient"

    async def gradient(self, work: TrainingBackend, step: int, seeds: Seeds) -> torch.Tensor:
        own = await super().gradient(work, step, seeds)
        return torch.full_like(own, 3e38) if self.is_on else own

    def claims(self, claims: Claims, record: AttemptRecord) -> Claims | None:
        lie = PartClaim((0.0,) * record.terms.rules.directions, 1.0)
        return msgspec.structs.replace(claims, claims=(lie,) * len(claims.claims)) if self.is_on else claims


@pytest.mark.parametrize(
    ("attack", "bans"),
    [
        (Huge, {"p3": "UNDELIVERED"}),
        (NoRadius, {"p3": "SILENT"}),
        (TooFar, {"p3": "FALSE_CLAIMS"}),
    ],
)
@virtually
async def test_nonsense_costs_only_its_author(attack: type[Attack], bans: dict[str, str]) -> None:
    swarm = SecureSwarm(6, lambda: Quadratic(100), {"p3": lambda allies: attack(1, allies)})
    ends = await swarm.run(3)
    assert isinstance(ends["p3"], ExcludedError)
    for peer in swarm.honest:
        assert ends[peer.name] is None
        assert swarm.bans(peer) == bans
        assert len(peer.member.membership.members) == 5


@virtually
async def test_a_validator_that_lacks_what_nobody_owes_is_not_heard() -> None:
    class Lacking(Attack):
        """Says, as a validator, that it could not get the aggregate of a rank that no member has."""

        def claims(self, claims: Claims, record: AttemptRecord) -> Claims | None:
            return claims if claims.claims else msgspec.structs.replace(claims, missing=(MAX_MEMBERS - 1,))

    swarm = SecureSwarm(6, lambda: Quadratic(100), {"p3": Lacking.begin(0)})
    ends = await swarm.run(12)
    assert isinstance(ends["p3"], ExcludedError)
    assert all(ends[peer.name] is None and swarm.bans(peer) == {"p3": "SILENT"} for peer in swarm.honest)


@virtually
async def test_what_a_member_said_ahead_means_nothing_once_it_is_gone() -> None:
    class Ahead(SilentResult):
        """Says before it goes, by its silence, what is due in the attempt after that."""

        def result(self, result: Result) -> Result | None:
            member = swarm.peers["p3"].member
            if member.step >= self.from_step:
                member._gossip.say(Slot(member.step, 1, Phase.RESULT), result, swarm.founders)
            return super().result(result)

    swarm = SecureSwarm(6, lambda: Quadratic(100), {"p3": lambda allies: Ahead(1, allies)})
    ends = await swarm.run(3)
    assert isinstance(ends["p3"], ExcludedError)
    assert all(ends[peer.name] is None and swarm.bans(peer) == {"p3": "SILENT"} for peer in swarm.honest)


@virtually
async def test_who_gets_nonsense_where_most_heard_sense_is_outvoted() -> None:
    class TwoFaced(Attack):
        """Makes claims to all but one, which can ask nobody else, and gives that one nonsense when it is asked."""

        def tells(self, slot: Slot, body: Body, everybody: Sequence[PeerId]) -> Sequence[tuple[Body, Sequence[PeerId]]]:
            if not self.is_on or not isinstance(body, Claims):
                return [(body, everybody)]
            gossip, own = swarm.peers["p0"].member._gossip, swarm.peers["p3"].network
            nonsense = state(
                Identity.from_seed(own.private_key), RUN_ID, slot, msgspec.structs.replace(body, claims=())
            )

            async def pull(asked: Slot, *_: object) -> None:
                if asked == slot:
                    gossip.receive(nonsense, own.peer_id)

            gossip.pull = pull  # type: ignore[assignment, method-assign]
            return [(body, [peer for peer in everybody if peer != swarm.peers["p0"].peer_id])]

    swarm = SecureSwarm(6, lambda: Quadratic(100), {"p3": lambda allies: TwoFaced(1, allies)})
    ends = await swarm.run(3)
    assert isinstance(ends.pop("p0"), OutvotedError)
    assert set(ends.values()) == {None}


class Undecodable(Attack):
    """Sends one gradient that is finite up to a number of its last part."""

    changes = "gradient"

    async def gradient(self, work: TrainingBackend, step: int, seeds: Seeds) -> torch.Tensor:
        own = await super().gradient(work, step, seeds)
        return torch.cat([own[:-1], torch.tensor([float("nan")])]) if self.is_on else own


def test_parts_with_numbers_that_are_none_cost_only_their_author(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equal_parts, "require_magnitude", lambda _, __: None)  # honest members refuse to send them
    looked_through = list[int]()
    rows = PartCollector.rows

    def counted(self: PartCollector, owners: Sequence[int], *, looks_through: bool = True) -> dict[int, torch.Tensor]:
        found = rows(self, owners, looks_through=looks_through)
        looked_through.extend([len(found)] * looks_through)
        return found

    monkeypatch.setattr(PartCollector, "rows", counted)

    @virtually
    async def run() -> None:
        swarm = SecureSwarm(6, lambda: Quadratic(100), {"p3": lambda allies: Undecodable(1, allies)})
        ends = await swarm.run(3)
        assert ends.pop("p3") is not None  # it cannot even make claims about it
        assert set(ends.values()) == {None}
        for peer in swarm.honest:
            assert swarm.bans(peer) == {"p3": "UNDELIVERED"}

    run()
    assert looked_through == [4]  # by the aggregator of the last part, of what the others contribute


def test_a_step_in_which_no_gradient_is_finite_does_not_stop_those_after_it() -> None:
    class Undefined(Quadratic):
        """The loss of everybody is not finite in the first steps: their gradients count as nothing."""

        async def gradient(self, step: int, seed: bytes) -> torch.Tensor:
            return (await super().gradient(step, seed)) * (step > 1)

    @virtually
    async def run() -> None:
        swarm = SecureSwarm(4, lambda: Undefined(100))
        ends = await swarm.run(6)
        assert set(ends.values()) == {None}
        for peer in swarm.honest:
            assert isinstance(peer.work, Quadratic)
            assert peer.work.loss < 0.4
            assert not swarm.bans(peer)

    run()


def test_a_step_in_which_all_gradients_are_as_large_as_can_be_does_not_stop_those_after_it() -> None:
    class Diverging(Quadratic):
        """All numbers of one step are close to the largest that averaging accepts."""

        async def gradient(self, step: int, seed: bytes) -> torch.Tensor:
            return (await super().gradient(step, seed)).clamp(-1, 1) * (CONTRIBUTION_LIMIT / 2 if step == 1 else 1.0)

    @virtually
    async def run() -> None:
        swarm = SecureSwarm(4, lambda: Diverging(20_000, noise=1.0, rate=0.0))
        ends = await swarm.run(4)
        assert set(ends.values()) == {None}
        assert not any(swarm.bans(peer) for peer in swarm.honest)

    run()
