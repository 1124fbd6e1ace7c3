"""What the peers of a scenario train: a small classifier that learns, or a ghost."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from minga.averaging.strategy_choice import StrategyChoice
from minga.core.spec.run_spec import RunSpec
from minga.planner.device_memory import state_bytes
from minga.security.randomness.public_batch import PublicBatch
from minga.simulation.scenario.scenario import Scenario
from minga.simulation.swarm.classification import SAMPLES, Classification
from minga.simulation.swarm.simulated_peer import SimulatedPeer
from minga.simulation.swarm.size_only_model import SizeOnlyModel, SizeOnlyReplica, no_gradient
from minga.training.replica.interface import ReplicaInterface
from minga.training.replica.replica import Replica


class ClassifierReplica(Replica):
    """The classification task of `minga.simulation.swarm.classification` with the optimizer of the scenario."""

    def __init__(self, spec: RunSpec) -> None:
        self.task = Classification(spec)
        super().__init__(
            spec,
            self.task.optimizer,
            model=self.task.model,
            scheduler=self.task.scheduler,
            max_grad_norm=spec.optimizer.max_grad_norm,
        )


def replica_maker(scenario: Scenario) -> Callable[[RunSpec], ReplicaInterface]:
    """What makes each peer's copy of the model."""
    if scenario.model.kind == "classifier":
        return ClassifierReplica
    parameters, strategy = scenario.parameters, StrategyChoice.of(scenario)  # with which it begins
    kept = state_bytes((parameters,), scenario.optimizer, strategy) - 4 * parameters
    ghost = SizeOnlyModel((parameters,), moments=kept // (4 * parameters), coded_bytes=kept % (4 * parameters))
    return lambda spec: SizeOnlyReplica(spec, ghost)


def gradient_of(scenario: Scenario) -> Callable[[SimulatedPeer, int], float | None]:
    """What computes the gradients of a micro-batch."""
    return partial(classify, scenario.seed) if scenario.model.kind == "classifier" else no_gradient


def classify(seed: int, peer: SimulatedPeer, samples: int) -> float | None:
    """Set the gradients of a micro-batch: every peer draws its own samples, and others after it was restarted. Returns
    its mean loss.
    """
    replica = peer.replica
    if not isinstance(replica, ClassifierReplica):
        return None
    chosen = random.Random(f"minga samples {seed} {peer.name} {replica.step} {peer.samples_done}")
    return replica.task.backward([chosen.randrange(SAMPLES) for _ in range(samples)])


def classify_publicly(peer: SimulatedPeer, batch: PublicBatch) -> None:
    """Set the gradients of a public micro-batch."""
    if isinstance(peer.replica, ClassifierReplica):
        peer.replica.task.backward(batch.indices(SAMPLES).tolist())


def held_out_loss(peer: SimulatedPeer) -> float | None:
    """The mean loss of samples that nobody trains on; None for a model without numbers."""
    return peer.replica.task.held_out_loss() if isinstance(peer.replica, ClassifierReplica) else None
