"""Moments of 8 bits in a run: peers agree bit for bit, and so do newcomers and what a checkpoint leads to."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from minga.core.spec.run_spec import RunSpec
from minga.network.virtual.internet import HostSettings
from minga.optim import LAMB, MomentStorage
from minga.simulation.swarm.simulated_peer import TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.training.record_kinds import StateInfo
from minga.training.replica.replica import Replica
from minga.training.state.checkpoints import CheckpointStore
from minga.training.state.manifest import build_manifest
from minga.training.status.run_status import LossMeter, read_status
from tests.worlds.rounding import learn
from tests.worlds.swarm_tools import assert_equal_states, make_spec, same_step, virtually


def coded_replica(spec: RunSpec) -> Replica:
    """A small model whose matrix has codes of 8 bits, and whose bias has whole moments."""
    torch.manual_seed(1)
    model = torch.nn.Linear(60, 3)
    inner = LAMB(model.parameters(), lr=0.02, storage=MomentStorage(bits=8, block=16, least_numel=100))
    return Replica(spec, inner, model=model)


@virtually
async def test_newcomers_checkpoints_and_status_know_codes_bit_for_bit() -> None:
    swarm = Swarm(make_spec(16), seed=3, make_replica=coded_replica, gradient=learn)
    settings = HostSettings(latency_s=0.02), TrainerSettings(4, 0.2)
    for _ in range(3):
        swarm.add(*settings)
    await swarm.run_until_step(4)
    newcomer = swarm.add(*settings)
    await swarm.run_until_step(7)
    await assert_equal_states(swarm)

    replica = newcomer.replica
    assert isinstance(replica, Replica)
    codes = {name: tensor for name, tensor in replica.tensors().items() if name.endswith("_codes")}
    assert [tensor.dtype for tensor in codes.values()] == [torch.uint8, torch.uint8]
    assert all(bool(tensor.any()) for tensor in codes.values())

    await same_step(swarm)
    kept = replica.capture()
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(Path(folder), keep=1)
        store.save(kept, build_manifest(kept))
        found = store.load()
    assert found is not None
    again = coded_replica(swarm.spec)
    again.restore(found.snapshot)
    assert again.digest() == replica.digest()

    session = newcomer.session
    told = [item.payload for item in session.board.items(StateInfo)]
    assert len({state.digest for state in told if state.step == max(each.step for each in told)}) == 1
    assert read_status(session.board, session.node, swarm.spec, LossMeter()).digests_agree
    await swarm.close()
