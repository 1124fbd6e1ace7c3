"""Whatever somebody shows to some members only: the honest ones come to the same decision."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import torch
from secure_world import Quadratic, hide_parts
from swarm_tools import virtually

from minga.security._conduct import Conduct
from minga.security._delivery import Deliveries
from minga.security._evidence_log import verify_log
from minga.simulation._attacks import WrongAggregate
from minga.simulation._secure_swarm import RUN_ID, SecureSwarm

STEPS = 5


async def agree(swarm: SecureSwarm, bans: dict[str, str]) -> None:
    """Take some steps; all honest members have to get through them alike, and every ban has to be shown."""
    ends = await swarm.run(STEPS)
    for peer in swarm.honest:
        assert ends[peer.name] is None
        assert isinstance(peer.work, Quadratic)
        assert isinstance(swarm.honest[0].work, Quadratic)
        assert torch.equal(peer.work.parameters[STEPS], swarm.honest[0].work.parameters[STEPS])
        assert swarm.bans(peer) == bans
        assert verify_log(RUN_ID, swarm.names, peer.member.evidence.entries) == peer.member.ledger.members


def missing_once(
    fetch: Callable[[int, int, int, int], Awaitable[None]], part: int, owner: int
) -> Callable[[int, int, int, int], Awaitable[None]]:
    """Fetch parts, but not one of them at the first time."""
    missed = []

    async def changed(step: int, attempt: int, wanted: int, of: int) -> None:
        if (wanted, of) == (part, owner) and not missed:
            missed.append(step)
            return
        await fetch(step, attempt, wanted, of)

    return changed


@virtually
async def test_a_part_that_one_member_cannot_get_at_first_costs_its_owner_nothing() -> None:
    swarm = SecureSwarm(7, lambda: Quadratic(70), {"p3": lambda allies: WrongAggregate(2, allies)})
    ranks = {name: sorted(swarm.names).index(peer.peer_id) for name, peer in swarm.peers.items()}
    unlucky: Deliveries = swarm.peers["p0"].member._deliveries
    unlucky.fetch_part = missing_once(unlucky.fetch_part, ranks["p3"], ranks["p1"])  # type: ignore[method-assign]
    await agree(swarm, {"p3": "WRONG_AGGREGATE"})


@virtually
async def test_who_shows_its_part_to_a_lying_aggregator_only_goes_with_it() -> None:
    swarm = SecureSwarm(
        7, lambda: Quadratic(70), {"p2": lambda _: Conduct(), "p3": lambda allies: WrongAggregate(2, allies)}
    )
    for name in ("p2", "p3"):
        hide_parts(swarm.peers[name])
    await agree(swarm, {"p2": "UNDELIVERED", "p3": "UNDELIVERED"})
