"""Who attacks in a scenario whose members check each other, and how: gives each peer its behaviour."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from minga.averaging.codecs.layout import VectorLayout
from minga.network.interface import PeerId
from minga.security.protocol.behaviour import Behaviour, TrainingBackend
from minga.simulation.attacks.gradient_attacks import LabelFlip
from minga.simulation.attacks.registry import attack
from minga.simulation.models import ClassifierReplica
from minga.simulation.scenario.scenario import Scenario
from minga.simulation.scenario.sections import Attackers
from minga.simulation.swarm.classification import Classification
from minga.simulation.swarm.simulated_peer import SimulatedPeer


class AttackLab:
    """The attackers of a scenario; those of one table act together, and all know one another."""

    def __init__(self, scenario: Scenario) -> None:
        tables = [table for table in scenario.attackers if table.is_attack]
        self._make_conduct = {
            name: make
            for table in tables
            for make in [attack(table.behaviour).begin(table.from_step)]
            for name in _names(scenario, table)
        }
        self.groups = [(table, list(_names(scenario, table))) for table in tables]
        """Each table with the names of its peers."""
        self._allies: set[PeerId] = set()

    def conduct_of(self, peer: SimulatedPeer) -> Behaviour:
        """How a peer conducts itself that joins now."""
        if peer.name not in self._make_conduct:
            return Behaviour()
        self._allies.add(peer.network.peer_id)
        behaviour, replica = self._make_conduct[peer.name](self._allies), peer.replica
        if isinstance(behaviour, LabelFlip) and isinstance(replica, ClassifierReplica):
            task = replica.task
            behaviour.labelled = lambda work: _ClassifierWork(work, task)
        return behaviour


class _ClassifierWork:
    """The work of a member that trains the classifier, see `LabelledBackend`."""

    def __init__(self, work: TrainingBackend, task: Classification) -> None:
        self.layout: VectorLayout = work.layout
        self._work, self._task = work, task
        self.gradient, self.apply = work.gradient, work.apply
        self.digest, self.adopt = work.digest, work.adopt

    async def flipped_gradient(self, step: int, seed: bytes) -> torch.Tensor:
        """With labels 9 - y. A member asks for one gradient at a time."""
        self._task.flips_labels = True
        try:
            return await self._work.gradient(step, seed)
        finally:
            self._task.flips_labels = False


def _names(scenario: Scenario, table: Attackers) -> Iterator[str]:
    """The peers of which this is the first table."""
    kind = next(each for each in scenario.peers if each.name == table.peers)
    for number in range(1, table.count + 1):
        if scenario.attackers_of(kind, number) is table:
            yield f"{kind.name}-{number}"
