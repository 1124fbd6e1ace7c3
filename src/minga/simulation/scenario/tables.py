"""The whole of a scenario's tables: its sections, its classes of peers, and what can be computed from them."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator

from minga.averaging.strategy_choice import largest_strategy
from minga.core.spec.fields import Printable, Section, choice, described, whole
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import (
    AveragingSection,
    NetworkSection,
    OptimizerSection,
    SecuritySection,
    StateSection,
    TrainingSection,
)
from minga.core.spec.split_section import SplitSection
from minga.simulation.scenario.orders import OrderTable
from minga.simulation.scenario.sections import (
    SIZES,
    Attackers,
    FaultsTable,
    ModelTable,
    PeerTable,
    RegionPath,
    RelayTable,
    StopTable,
)

MAX_CLASSES: Final = 100
MAX_PATHS: Final = 1000
MAX_ORDERS: Final = 200
MAX_RELAYS: Final = 20
CLASSIFIER_PARAMETERS: Final = 7_050

MOMENTS: Final = {"lamb": 2, "adamw": 2, "sgd": 1, "lars": 1, "larc": 1}
"""Vectors that an optimizer keeps."""


class ScenarioTables(Section):
    """What a scenario says, and what follows from it; `Scenario` is one whose parts fit together."""

    name: Annotated[Printable, Field(min_length=1, max_length=64)] = described(
        "scenario", "what it is called", "a text of 1 to 64 printable characters"
    )
    seed: int = whole(0, 0, 2**31 - 1, "everything that is random comes from it")
    parts: Literal["planned", "equal"] = choice(
        "planned", "who reduces how much: by the planner, or all alike, to compare with", "planned", "equal"
    )
    model: ModelTable = ModelTable()
    optimizer: OptimizerSection = OptimizerSection()
    training: TrainingSection = TrainingSection()
    strategy: dict[str, dict[str, Any]] = described(
        {}, "settings of the strategy", "one table [strategy.NAME] of the strategy that training.strategy names"
    )
    averaging: AveragingSection = AveragingSection()
    state: StateSection = StateSection()
    network: NetworkSection = NetworkSection(relay="none")
    security: SecuritySection = SecuritySection()
    split: SplitSection = SplitSection()
    stop: StopTable = StopTable()
    peers: Annotated[tuple[PeerTable, ...], Field(strict=False, max_length=MAX_CLASSES)] = described(
        ..., "classes of peers", f"1 to {MAX_CLASSES} tables, each under its own [[peers]]"
    )
    paths: Annotated[tuple[RegionPath, ...], Field(strict=False, max_length=MAX_PATHS)] = described(
        (), "latencies between regions", f"at most {MAX_PATHS} tables, each under its own [[paths]]"
    )
    relays: Annotated[tuple[RelayTable, ...], Field(strict=False, max_length=MAX_RELAYS)] = described(
        (), "relays", f"at most {MAX_RELAYS} tables, each under its own [[relays]]"
    )
    faults: FaultsTable = FaultsTable()
    orders: Annotated[tuple[OrderTable, ...], Field(strict=False, max_length=MAX_ORDERS)] = described(
        (), "what the organisers do", f"at most {MAX_ORDERS} tables, each under its own [[orders]]"
    )
    attackers: Annotated[tuple[Attackers, ...], Field(strict=False, max_length=MAX_CLASSES)] = described(
        (), "peers that lie", f"at most {MAX_CLASSES} tables, each under its own [[attackers]]"
    )

    @field_validator("network")
    @classmethod
    def _without_relay(cls, network: NetworkSection) -> NetworkSection:
        """The relays of a scenario stand in tables of their own: what is left out means none here."""
        return network if "relay" in network.model_fields_set else network.model_copy(update={"relay": "none"})

    @cached_property
    def parameters(self) -> int:
        """Numbers in the model."""
        return self.model.parameters or SIZES.get(self.model.name or "", CLASSIFIER_PARAMETERS)

    @property
    def memory_bytes(self) -> int:
        """What a peer needs at least: parameters, gradients, two or three vectors of averaging, moments; float32."""
        vectors = 3 + largest_strategy(self).facts.vectors + MOMENTS[self.optimizer.name]
        return 4 * self.parameters * vectors

    def relay_of(self, kind: PeerTable) -> RelayTable | None:
        """The relay that peers of a class use; None without relays."""
        named = (relay for relay in self.relays if kind.relay in (None, relay.name))
        return next(named, None)

    @property
    def peer_count(self) -> int:
        """How many different peers there are."""
        return sum(each.count for each in self.peers)

    def attackers_of(self, kind: PeerTable, number: int) -> Attackers | None:
        """What says that the peer of this number in its class lies or attacks, if anything does."""
        found = (table for table in self.attackers if table.peers == kind.name and number <= table.count)
        return next(found, None)

    def run_spec(self) -> RunSpec:
        """What all its peers agree on."""
        return RunSpec.from_mapping(
            {
                "name": self.name,
                "model": {"recipe": "custom"},
                "optimizer": self.optimizer.model_dump(mode="json"),
                "training": {**self.training.model_dump(mode="json"), "seed": self.seed},
                "strategy": self.strategy,
                "averaging": self.averaging.model_dump(mode="json"),
                "state": self.state.model_dump(mode="json"),
                "network": self.network.model_dump(mode="json"),
                "security": self.security.model_dump(mode="json"),
                "split": self.split.model_dump(mode="json"),
                "checkpoints": {"every_steps": 0},
            },
            self.name,
        ).published({})
