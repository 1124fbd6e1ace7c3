"""What the tests of virtual swarms share."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import torch

from minga.core.spec.run_spec import RunSpec
from minga.network.virtual.internet import HostSettings
from minga.optim import SGD
from minga.simulation import run_virtual
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.training.replica.flat_vector import ParameterVector
from minga.training.replica.replica import Replica


def virtually(test: Callable[..., Coroutine[Any, Any, Any]], limit_s: float = 2000.0) -> Callable[..., Any]:
    """Run an asynchronous function in virtual time."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> Any:
        return run_virtual(test(*args, **kwargs), limit_s=limit_s)

    return run


def make_spec(batch: int, *, codec: str = "float32", digest_every: int = 1, **sections: Any) -> RunSpec:
    training = {"target_batch_size": batch, **sections.pop("training", {})}
    mapping = {"name": "test", "training": training, "averaging": {"codec": codec}, **sections}
    mapping["state"] = {"digest_every": digest_every, **sections.get("state", {})}
    mapping["network"] = {"relay": "none", **sections.get("network", {})}
    return RunSpec.from_mapping(mapping).published({})


def vector_replica(numel: int, parts: int = 1, rows: int = 1) -> Callable[[RunSpec], Replica]:
    """`parts` parameters of `rows` rows and `numel` elements in all, under plain gradient descent."""

    def make(spec: RunSpec) -> Replica:
        torch.manual_seed(1)
        layers = [torch.nn.Linear(numel // parts // rows, rows, bias=False) for _ in range(parts)]
        model = layers[0] if parts == 1 else torch.nn.ModuleList(layers)
        return Replica(spec, SGD(model.parameters(), lr=0.1), model=model)

    return make


def pull(peer: SimulatedPeer, samples: int) -> float:
    """The gradient of the distance to one random number; returns half its square. Cheap for long vectors."""
    generator = torch.Generator().manual_seed(peer.samples_done * 1009 + int(peer.network.peer_id[:8], 16))
    loss, vector = 0.0, peer.replica.vector
    assert isinstance(vector, ParameterVector)
    for weight in vector.parameters():
        weight.grad = weight.detach() - torch.randn(1, generator=generator)
        loss += 0.5 * float(weight.grad.square().sum())
    return loss


def later(seconds: float, action: Callable[[], object]) -> None:
    """Do something that belongs to no simulated peer after some virtual seconds."""
    asyncio.get_running_loop().call_later(seconds, action, context=contextvars.Context())


def rounds(swarm: Swarm, kind: str = "round.begun") -> dict[int, dict[str, dict[str, int]]]:
    """step -> round -> peer -> samples, of all rounds that anybody began (or, by `kind`, finished)."""
    found: dict[int, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    for logged in swarm.log.of(kind):
        fields = logged.event.fields
        found[int(str(fields["step"]))][str(fields["round"])][logged.peer] = int(str(fields.get("samples", 0)))
    return found


def assert_one_group_per_step(swarm: Swarm) -> None:
    """Nobody finished two rounds of one step, and of two finished rounds of a step one was nobody's majority."""
    for step, groups in rounds(swarm, "round.reduced").items():
        everybody = [peer for members in groups.values() for peer in members]
        assert len(everybody) == len(set(everybody)), f"step {step} was taken twice by a peer: {groups}"
        assert len(groups) == 1, f"step {step} was taken by several groups: {groups}"


async def same_step(swarm: Swarm, peers: Iterable[str] | None = None, limit_s: float = 60.0) -> None:
    """Wait for a moment at which the named peers (all living ones by default) have the same step."""
    names = [peer.name for peer in swarm.alive()] if peers is None else list(peers)
    async with asyncio.timeout(limit_s):
        while len({swarm.peers[name].replica.step for name in names}) > 1:
            await asyncio.sleep(0.01)


async def assert_equal_states(swarm: Swarm, peers: Iterable[str] | None = None) -> None:
    names = [peer.name for peer in swarm.alive()] if peers is None else list(peers)
    await same_step(swarm, names)
    digests = swarm.digests(names)
    assert len(set(digests.values())) == 1, digests


def offences(swarm: Swarm) -> list[tuple[str, str, str]]:
    """(who noticed, who did it, what) of every breach of the protocol."""
    return [
        (logged.peer, swarm.name_of(str(logged.event.fields["peer"])), str(logged.event.fields["what"]))
        for logged in swarm.log.of("peer.offence")
    ]


def longest_gap_s(swarm: Swarm, since: float = 0.0) -> float:
    """The longest time, in virtual seconds, in which nobody applied a step."""
    times = [logged.event.time for logged in swarm.log.of("step.applied") if logged.event.time >= since]
    return max((b - a for a, b in itertools.pairwise(times)), default=0.0)


async def kill_in_a_round(swarm: Swarm, peer: SimulatedPeer) -> None:
    """Kill a peer as soon as the next round begins."""
    begun = len(swarm.log.of("round.begun"))
    while len(swarm.log.of("round.begun")) == begun:
        await asyncio.sleep(0.01)
    swarm.internet.kill(peer.network)


def grow(swarm: Swarm, count: int, rng: random.Random, *, clients: int = 0, **host: Any) -> None:
    """Add `count` trainers of slightly different speed, the last `clients` of which cannot be dialled."""
    for index in range(count):
        settings = HostSettings(latency_s=rng.uniform(0.005, 0.04), dialable=index < count - clients)
        if host:
            settings = HostSettings(**{"latency_s": settings.latency_s, "dialable": settings.dialable, **host})
        swarm.add(settings, TrainerSettings(4, rng.uniform(0.1, 0.15), jitter=0.1))
