"""What a planned run fixes: its peers, its model, and how they train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minga.averaging.solver.division import PeerRates, SwarmRates
from minga.averaging.strategy_choice import StrategyChoice
from minga.core.spec.run_spec import RunSpec
from minga.simulation.forecast.model_facts import STATE_BYTES, ModelFacts, OptimizerName
from minga.simulation.forecast.peer_text import PeerClass


@dataclass(frozen=True)
class Volunteers:
    """A class of peers with what is known of its device: speed (0 for auxiliaries), micro-batch, seconds of an update.

    `speed_origin` is "given", "measured" or "estimate" (or "none", for auxiliaries).
    """

    peers: PeerClass
    name: str
    samples_per_s: float
    micro_batch: int
    update_s: float
    speed_origin: str
    memory_bytes: int | None = None
    has_to_be_told: bool = False
    """Whether the micro-batch is smaller than usual for want of memory, and `minga join` does not find that out."""

    @property
    def computes(self) -> bool:
        """Whether they have gradients."""
        return self.samples_per_s > 0.0


@dataclass(frozen=True)
class PlannedRun:
    """What a run fixes: who takes part in what, and how."""

    volunteers: tuple[Volunteers, ...]
    model: ModelFacts
    optimizer: OptimizerName
    target_batch_size: int
    strategy: StrategyChoice
    codec: str
    download_codec: str | None = None
    coded_moment_bytes: int | None = None
    """What the optimizer keeps, if not in 32 bits."""

    @property
    def moment_bytes(self) -> int:
        """What the optimizer keeps for all parameters."""
        usual = self.model.parameters * STATE_BYTES[self.optimizer]
        return usual if self.coded_moment_bytes is None else self.coded_moment_bytes

    @property
    def state_bytes(self) -> int:
        """What a newcomer fetches: parameters and optimizer state."""
        return 4 * self.model.parameters + self.moment_bytes

    @property
    def round_batch_size(self) -> int:
        """Samples with which a round closes: with fragments, the part of one in the target batch."""
        return max(1, self.target_batch_size // self.strategy.facts.fragments)


def spec_of(planned: PlannedRun) -> RunSpec:
    """A run spec with what is fixed, for the rules of what may be combined; SGD is plain if a strategy needs that."""
    optimizer: dict[str, Any] = {"name": planned.optimizer}
    if planned.strategy.facts.owns_optimizer and planned.optimizer == "sgd":
        optimizer |= {"momentum": 0.0, "max_grad_norm": "off"}
    sections: dict[str, Any] = {
        "training": {"strategy": planned.strategy.name, "target_batch_size": planned.target_batch_size},
        "strategy": {planned.strategy.name: dict(planned.strategy.table)} if planned.strategy.table else {},
        "averaging": {"codec": planned.codec, "download_codec": planned.download_codec},
        "optimizer": optimizer,
    }
    return RunSpec.from_mapping({"name": "planned", **sections})


def swarm_rates(volunteers: Sequence[Volunteers]) -> SwarmRates:
    """The peers one by one, as the planner takes them, in the order of their classes."""
    peers: list[PeerRates] = []
    for each in volunteers:
        one = PeerRates(
            upload=each.peers.upload,
            download=each.peers.download,
            samples_per_second=each.samples_per_s,
            sends=each.computes,
            aggregates=each.peers.role != "client",
        )
        peers += [one] * each.peers.count
    return SwarmRates(tuple(peers))
