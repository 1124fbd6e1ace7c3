"""Swarms whose devices round differently: nobody fetches state because of that, and parameters stay together."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from minga.optim import AdamW
from minga.simulation.swarm.swarm import Swarm
from tests.worlds.rounding import farthest, learn, loss_of, parameters, rounding_replicas
from tests.worlds.swarm_tools import grow, make_spec, same_step, virtually

pytestmark = pytest.mark.promise("other-optimizers-on-mixed-devices")


async def trained(kinds: int, steps: int, **settings: Any) -> Swarm:
    """A swarm of three peers that has taken so many steps."""
    spec = make_spec(16, digest_every=5)
    swarm = Swarm(spec, seed=4, make_replica=rounding_replicas(kinds, **settings), gradient=learn)
    grow(swarm, 3, random.Random(4))
    await swarm.run_until_step(steps)
    await same_step(swarm)
    return swarm


def count(swarm: Swarm, kind: str) -> int:
    """Events of one kind after the beginning."""
    return sum(int(str(logged.event.fields.get("step", 0))) > 1 for logged in swarm.log.of(kind))


@virtually
async def test_nobody_fetches_state_because_of_rounding_and_who_differs_by_more_does() -> None:
    mixed = await trained(3, 22)
    drift, loss = farthest(mixed), loss_of(mixed.alive()[0])
    assert 0 < drift < 1e-5
    for kind in ("member.diverged", "member.out_of_sync", "sync.finished", "parameters.not_averaged"):
        assert count(mixed, kind) == 0
    told = mixed.log.of("parameters.drift")
    assert [event.fields["every"] for name, event in told if name == "peer-0"] == [5, 10, 20]
    assert {name for name, _ in told} == set(mixed.peers)
    odd = mixed.peers["peer-2"]
    with torch.no_grad():
        parameters(odd)[1][0, 0] += 0.5
    await mixed.run_until_step(32)
    await same_step(mixed)
    assert {name for name, _ in mixed.log.of("member.diverged")} == {"peer-2"}
    assert farthest(mixed) < 1e-5
    assert not mixed.log.of("member.failed")
    await mixed.close()
    alike = await trained(1, 22)
    assert loss == pytest.approx(loss_of(alike.alive()[0]), rel=0.01)
    assert not alike.log.of("parameters.drift")
    await alike.close()


@virtually
async def test_optimizers_of_minga_have_equal_digests_and_average_nothing() -> None:
    swarm = await trained(3, 10, make=AdamW)
    assert len(set(swarm.digests().values())) == 1
    assert not swarm.log.of("parameters.drift")
    await swarm.close()


@virtually
async def test_a_member_that_gives_other_parameters_cannot_change_those_of_the_others() -> None:
    """Gradients can be clipped, parameters cannot: what rounding does not explain is refused."""
    swarm = await trained(3, 9)
    liar, honest = swarm.peers["peer-2"], [swarm.peers["peer-0"], swarm.peers["peer-1"]]
    read = liar.replica.read_values
    liar.replica.read_values = lambda: read() + 1000.0  # type: ignore[method-assign]
    await swarm.run_until_step(16)
    refused = {name for name, _ in swarm.log.of("parameters.not_averaged")}
    assert refused >= {peer.name for peer in honest}
    assert all(float(parameters(peer)[1].detach().abs().max()) < 10.0 for peer in honest)
    await swarm.close()
