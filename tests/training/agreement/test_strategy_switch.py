"""Another strategy from a step on, in virtual time: all peers change at one boundary, and none has what it dropped."""

from __future__ import annotations

import asyncio
import functools
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import minga
from minga.averaging.codecs.registry import CODECS
from minga.averaging.strategy_choice import STRATEGIES
from minga.core.spec.run_spec import RunSpec
from minga.optim import AdamW
from minga.simulation.swarm.simulated_peer import SimulatedPeer
from minga.simulation.swarm.swarm import Swarm
from minga.training.replica.replica import Replica
from tests.access.test_amendments import ORGANISER, amendment, forgetful, tell
from tests.worlds import loudest_codec
from tests.worlds.extension_world import EXTRAS
from tests.worlds.own_state_run import train
from tests.worlds.seeds import seeds, soaked
from tests.worlds.swarm_tools import (
    assert_equal_states,
    assert_one_group_per_step,
    grow,
    make_spec,
    offences,
    rounds,
    same_step,
)
from tests.worlds.swarm_tools import virtually as virtually_for

virtually = functools.partial(virtually_for, limit_s=900.0)


def changes(*steps: tuple[int, str], **others: Any) -> dict[str, Any]:
    return {"strategy_changes": [{"from_step": step, "strategy": name} for step, name in steps], **others}


def changed(swarm: Swarm) -> dict[str, list[tuple[int, str]]]:
    """By peer: from which step on it went on by which strategy."""
    found: dict[str, list[tuple[int, str]]] = {}
    for logged in swarm.log.of("strategy.changed"):
        fields = logged.event.fields
        found.setdefault(logged.peer, []).append((int(str(fields["step"])), str(fields["strategy"])))
    return found


def strategies(swarm: Swarm) -> set[str]:
    return {peer.port.strategy for peer in swarm.alive() if peer.port is not None}


async def kill_in_round(swarm: Swarm, peer: SimulatedPeer, step: int) -> None:
    """Kill a peer as soon as a round of this step has begun."""
    while step not in rounds(swarm):
        await asyncio.sleep(0.01)
    swarm.internet.kill(peer.network)


@virtually
async def there_and_back_under_churn(seed: int) -> None:
    spec = make_spec(48, training=changes((4, "delayed"), (8, "synchronous")))
    swarm = Swarm(spec, seed=seed)
    grow(swarm, 5, random.Random(seed))
    first, *peers = swarm.peers.values()
    for step, victim in ((3, peers[0]), (7, peers[1])):
        await kill_in_round(swarm, victim, step)  # the round that leads to the change
        swarm.add()
        await swarm.run_until_step(step + 2)
        await assert_equal_states(swarm)
    await swarm.run_until_step(11)
    await assert_equal_states(swarm)
    assert_one_group_per_step(swarm)
    assert strategies(swarm) == {"synchronous"}
    assert changed(swarm)[first.name] == [(4, "delayed"), (8, "synchronous")]
    assert {step for steps in changed(swarm).values() for step, name in steps if name == "delayed"} <= {4, 5, 6, 7}
    dropped = [e.event.fields for e in swarm.log.of("strategy.changed") if e.event.fields["strategy"] == "synchronous"]
    assert sum(int(str(fields["dropped_samples"])) for fields in dropped) > 0, "what was collected beside the round"
    assert offences(swarm) == []
    await swarm.close()


@pytest.mark.parametrize("seed", seeds(1, of=4))
def test_all_change_at_one_step_there_and_back_while_one_dies_and_another_joins(seed: int) -> None:
    there_and_back_under_churn(seed)


@virtually
async def test_an_amendment_that_comes_while_a_round_runs_changes_all_at_the_end_of_one() -> None:
    swarm = Swarm(make_spec(48), organiser=ORGANISER, seed=2)
    grow(swarm, 4, random.Random(3))
    peers = list(swarm.peers.values())
    await swarm.run_until_step(1)
    asked = forgetful(peers[3])
    while 2 not in rounds(swarm):
        await asyncio.sleep(0.01)
    tell(peers[0], amendment(swarm.spec, 1, 0, training__strategy='"delayed"'))
    await swarm.run_until_step(6)
    newcomer = swarm.add()
    await swarm.run_until_step(8)
    steps = {tuple(steps) for name, steps in changed(swarm).items() if name != newcomer.name}
    assert len(steps) == 1, "all at one step"
    assert asked, "the order did not reach it otherwise"
    assert strategies(swarm) == {"delayed"}
    await assert_equal_states(swarm)
    tell(peers[1], amendment(swarm.spec, 2, 12, training__strategy='"synchronous"'))
    await swarm.run_until_step(14)
    assert {steps[-1] for steps in changed(swarm).values()} == {(12, "synchronous")}, "at the very step that it names"
    await assert_equal_states(swarm)
    assert_one_group_per_step(swarm)
    assert offences(swarm) == []
    await swarm.close()


@virtually
async def test_a_step_has_the_batch_of_its_phase_and_an_amendment_overrules_the_changes_that_were_planned() -> None:
    training = changes((6, "synchronous"))
    training["strategy_changes"].insert(0, {"from_step": 3, "strategy": "delayed", "target_batch_size": 96})
    swarm = Swarm(make_spec(48, training=training), organiser=ORGANISER)
    grow(swarm, 3, random.Random(3))
    await swarm.run_until_step(1)
    tell(next(iter(swarm.peers.values())), amendment(swarm.spec, 1, 5, training__strategy='"delayed"'))
    await swarm.run_until_step(8)
    assert set(map(tuple, changed(swarm).values())) == {((3, "delayed"),)}
    await assert_equal_states(swarm)
    samples = {step: sum(next(iter(groups.values())).values()) for step, groups in rounds(swarm).items()}
    assert all(48 <= samples[step] < 96 for step in range(1, 3))
    assert all(96 <= samples[step] < 120 for step in range(3, 8))
    await swarm.close()


@virtually
async def post_local(settings: dict[str, Any], averaging: dict[str, Any]) -> None:
    later = [
        {"from_step": 3, "strategy": "local", "target_batch_size": 96},
        {"from_step": 10, "strategy": "synchronous", "target_batch_size": 48},
    ]
    tables = {"strategy": {"local": settings}, "averaging": averaging}
    swarm = Swarm(
        make_spec(48, training={"strategy_changes": later}, **tables), make_replica=adam_replica, checkpoint_every=2
    )
    grow(swarm, 4, random.Random(5))
    victim, away, *_ = swarm.peers.values()
    await swarm.run_until_step(2)
    swarm.internet.kill(away.network)  # with a checkpoint of before the change, which it misses
    await kill_in_round(swarm, victim, 3)
    newcomer = swarm.add()
    await swarm.run_until_step(5)
    await assert_equal_states(swarm)
    away = swarm.restart(away.name)
    assert away.replica.strategy == "synchronous"
    await swarm.run_until_step(7)
    await assert_equal_states(swarm)
    assert strategies(swarm) == {"local"}
    victim = swarm.restart(victim.name, checkpoint=newcomer.checkpoint)
    assert victim.replica.strategy == "local"
    await swarm.run_until_step(12)
    await assert_equal_states(swarm)
    assert_one_group_per_step(swarm)
    assert strategies(swarm) == {"synchronous"}
    assert newcomer.replica.step >= 12
    await swarm.close()


@pytest.mark.parametrize(
    ("settings", "averaging"),
    [
        soaked({}, {"codec": "float32"}),
        ({"overlap": True}, {"codec": "topk(k=64)", "download_codec": "float16"}),
        soaked({"fragments": 2, "overlap": True, "merge": "mix"}, {"codec": "float32"}),
    ],
    ids=["diloco", "overlapped topk", "streaming"],
)
def test_local_steps_come_late_and_end_early(settings: dict[str, Any], averaging: dict[str, Any]) -> None:
    """Post-local SGD and back: with peers that die, join, and come back from checkpoints of either strategy."""
    post_local(settings, averaging)


def adam_replica(spec: RunSpec) -> Replica:
    torch.manual_seed(spec.training.seed)
    model = torch.nn.Linear(8, 3)
    return Replica(spec, AdamW(model.parameters(), lr=0.01), model=model)


@virtually
async def local_there_and_back(lossy: bool) -> None:
    spec = make_spec(
        48,
        training=changes((3, "local_sgd"), (6, "synchronous")),
        averaging={"codec": "loudest", "download_codec": "float32"} if lossy else {"codec": "float32"},
    )
    swarm = Swarm(spec, make_replica=adam_replica, seed=5)
    grow(swarm, 4, random.Random(5))
    victim, *_ = swarm.peers.values()
    await swarm.run_until_step(4)
    newcomer = swarm.add()
    await assert_equal_states(swarm)
    await kill_in_round(swarm, victim, 5)
    await swarm.run_until_step(6)
    moments = {step for peer in swarm.alive() for step in _counters(peer)}
    assert moments <= {0, 1, 2, 3}, "optimizers whose numbers were each peer's own begin anew"
    await swarm.run_until_step(9)
    await same_step(swarm)
    assert len({tuple(_counters(peer)) for peer in swarm.alive()}) == 1
    await assert_equal_states(swarm)
    assert newcomer.replica.step >= 9
    assert strategies(swarm) == {"synchronous"}
    if lossy:
        residuals = [int(str(e.event.fields["dropped_residuals"])) for e in swarm.log.of("strategy.changed")]
        assert max(residuals) > 0
    await swarm.close()


def _counters(peer: SimulatedPeer) -> list[int]:
    assert isinstance(peer.replica, Replica)
    return [int(kept["step"]) for kept in peer.replica.optimizer.state.values() if "step" in kept]


@pytest.mark.parametrize("lossy", [soaked(False), True])
def test_peers_step_alone_for_a_while_and_together_again(lossy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a strategy whose optimizers are each peer's own, and with a codec that leaves something out."""
    monkeypatch.syspath_prepend(str(EXTRAS))
    monkeypatch.setitem(STRATEGIES._builtin, "local_sgd", "minga_extras.local_sgd:LocalSGD")
    monkeypatch.setitem(CODECS._builtin, "loudest", loudest_codec.ENTRY)
    local_there_and_back(lossy)


def _begin(folder: Path) -> tuple[minga.Peer, minga.Optimizer, torch.nn.Module]:
    spec = minga.RunSpec.from_mapping(
        {
            "name": "later",
            "model": {"recipe": "custom"},
            "training": changes((3, "local"), (7, "synchronous"), target_batch_size=8, stop_after_steps=9),
            "averaging": {"codec": "float32"},
            "checkpoints": {"every_steps": 1},
        }
    )
    before = next(iter(folder.glob("*/run-spec.signed")), None)
    options = minga.PeerOptions(identity=folder / "key", directory=folder, host="127.0.0.1")
    peer = minga.host(spec, options, resume=None if before is None else before.parent)
    torch.manual_seed(3)
    model = torch.nn.Linear(6, 5)
    return peer, minga.Optimizer(AdamW(model.parameters(), lr=0.05), peer, model=model), model


def test_a_program_that_is_started_again_goes_on_with_the_strategy_of_its_checkpoint(tmp_path: Path) -> None:
    ends = {}
    for name, stops in {"undisturbed": [9], "again and again": [3, 5, 9]}.items():
        for stop in stops:
            (tmp_path / name).mkdir(exist_ok=True)
            peer, optimizer, model = _begin(tmp_path / name)
            with peer:
                train(optimizer, model, stop)
                assert optimizer._replica.strategy == ("local" if 3 <= stop < 7 else "synchronous")
                ends[name] = [parameter.detach().clone() for parameter in model.parameters()]
                optimizer.save_checkpoint()
    assert all(map(torch.equal, ends["undisturbed"], ends["again and again"]))
