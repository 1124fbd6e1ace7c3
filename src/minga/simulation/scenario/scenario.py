"""Scenarios: who trains what together, over which lines, and what goes wrong; a TOML file, or one that is shipped.

Sections that a run spec has, too (optimizer, training, averaging, state), mean and default to the same here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError, field_validator

from minga.averaging.strategy_choice import facts_of
from minga.core.errors import ConfigurationError
from minga.core.spec.fields import Printable, Section, choice, described, whole
from minga.core.spec.problems import explain, probably_meant
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import (
    DEFAULT_SKETCH,
    AveragingSection,
    NetworkSection,
    OptimizerSection,
    SecuritySection,
    StateSection,
    TrainingSection,
)
from minga.core.toml_file import read_toml
from minga.core.units import format_size
from minga.simulation.faults.script import ROLES, AtEvent, parse_faults
from minga.simulation.scenario.orders import OrderTable
from minga.simulation.scenario.sections import (
    MAX_PEERS,
    SIZES,
    Attackers,
    FaultsTable,
    ModelTable,
    PeerTable,
    RegionPath,
    StopTable,
)
from minga.training.access.standing_orders import PAUSED, check_changes
from minga.training.plugins_of_run import with_origins

MAX_FILE_BYTES: Final = 1 << 20
MAX_CLASSES: Final = 100
MAX_PATHS: Final = 1000
MAX_ORDERS: Final = 200
CLASSIFIER_PARAMETERS: Final = 7_050

NO_NUMBERS: Final = 'a ghost model has no numbers to falsify; use model.kind = "classifier"'

MOMENTS: Final = {"lamb": 2, "adamw": 2, "sgd": 1, "lars": 1, "larc": 1}
"""Vectors that an optimizer keeps."""


class Scenario(Section):
    """A scenario: read with `load`, or from a mapping."""

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
    averaging: AveragingSection = AveragingSection()
    state: StateSection = StateSection()
    network: NetworkSection = NetworkSection(relay="none")
    security: SecuritySection = SecuritySection()
    stop: StopTable = StopTable()
    peers: Annotated[tuple[PeerTable, ...], Field(strict=False, max_length=MAX_CLASSES)] = described(
        ..., "classes of peers", f"1 to {MAX_CLASSES} tables, each under its own [[peers]]"
    )
    paths: Annotated[tuple[RegionPath, ...], Field(strict=False, max_length=MAX_PATHS)] = described(
        (), "latencies between regions", f"at most {MAX_PATHS} tables, each under its own [[paths]]"
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
        """Relays are not simulated: what is left out means none here."""
        return network if "relay" in network.model_fields_set else network.model_copy(update={"relay": "none"})

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], source: str = "scenario") -> Scenario:
        """A scenario from nested mappings. Raises `ConfigurationError` with a line for each problem."""
        try:
            scenario = cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigurationError(explain(error, cls, source)) from error
        if problems := [f"{source}: {problem}" for problem in _contradictions(scenario)]:
            raise ConfigurationError("\n".join(problems))
        return scenario

    @cached_property
    def parameters(self) -> int:
        """Numbers in the model."""
        return self.model.parameters or SIZES.get(self.model.name or "", CLASSIFIER_PARAMETERS)

    @property
    def memory_bytes(self) -> int:
        """What a peer needs at least: parameters, gradients, two or three vectors of averaging, moments; float32."""
        vectors = 3 + facts_of(self.training.strategy).vectors + MOMENTS[self.optimizer.name]
        return 4 * self.parameters * vectors

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
                "averaging": self.averaging.model_dump(mode="json"),
                "state": self.state.model_dump(mode="json"),
                "network": self.network.model_dump(mode="json"),
                "security": self.security.model_dump(mode="json"),
                "checkpoints": {"every_steps": 0},
            },
            self.name,
        ).published({})


def shipped() -> dict[str, str]:
    """The scenarios that come with minga: the first line of each one's comment, by name."""
    found: dict[str, str] = {}
    for file in resources.files("minga.simulation").joinpath("scenarios").iterdir():
        if file.name.endswith(".toml"):
            first = file.read_text("utf-8").split("\n", 1)[0]
            found[file.name.removesuffix(".toml")] = first.lstrip("# ")
    return dict(sorted(found.items()))


def read_scenario(source: str) -> dict[str, Any]:
    """The values of a file, or of the shipped scenario of that name. Raises `ConfigurationError`."""
    if source in shipped():
        with resources.as_file(resources.files("minga.simulation").joinpath("scenarios", f"{source}.toml")) as path:
            values = read_toml(path, MAX_FILE_BYTES)
        return {"name": source, **values}
    path = Path(source)
    if not os.path.exists(source) and path.suffix != ".toml":  # `Path` objects to names that no file can have
        raise ConfigurationError(
            f"{source[:60]}: neither a file nor a scenario that comes with minga; there are: {', '.join(shipped())}"
            f"{probably_meant(source, shipped())}"
        )
    return {"name": path.stem[:64], **read_toml(path, MAX_FILE_BYTES)}


def _contradictions(scenario: Scenario) -> Iterator[str]:
    """What is wrong although every value by itself is allowed."""
    if missing := list(_not_usable(scenario)):
        yield from missing  # nothing more can be said of a scenario whose strategy is not here
        return
    yield from _wrong_settings(scenario)
    yield from _wrong_security(scenario)
    yield from _wrong_peers(scenario.peers, scenario)
    if scenario.peers:
        yield from _wrong_names(scenario)


def _not_usable(scenario: Scenario) -> Iterator[str]:
    """Which codec, strategy or aggregator is not installed, or cannot be used in such a run."""
    try:
        spec = scenario.run_spec()
    except ConfigurationError:
        return  # told by `_wrong_security`
    try:
        with_origins(spec)
    except ConfigurationError as error:
        yield from str(error).splitlines()


def _wrong_settings(scenario: Scenario) -> Iterator[str]:
    is_ghost = scenario.model.kind == "ghost"
    for key, where in (("seed", "seed, above all sections"), ("stop_after_steps", "steps in [stop]")):
        if key in scenario.training.model_fields_set:
            yield f"training.{key}: in a scenario it is {where}; leave it out here"
    if scenario.network.relay != "none":
        yield "network.relay: relays are not simulated; leave it out"
    if scenario.network.announce or scenario.network.landing_url is not None:
        yield "network.announce, network.landing_url: nothing is published; leave them out"
    if is_ghost and scenario.stop.loss is not None:
        yield 'stop.loss: a ghost model has no numbers and so no loss; use steps or time, or model.kind = "classifier"'
    if is_ghost and scenario.averaging.sketch != DEFAULT_SKETCH:
        yield 'averaging.sketch: a ghost model has no numbers to map; use model.kind = "classifier"'
    if is_ghost and scenario.averaging.average_parameters_every:
        yield (
            "averaging.average_parameters_every: it evens out parameters that drift apart, and a ghost model has no "
            'numbers that could; set it to 0, or use model.kind = "classifier"'
        )


def _wrong_security(scenario: Scenario) -> Iterator[str]:
    """What a run cannot be whose members check each other."""
    if scenario.security.admission == "members":
        yield 'security.admission = "members": scenarios have no organisers who admit anybody; use "open"'
    if scenario.security.verification != "byzantine":
        return
    if scenario.model.kind == "ghost":
        yield (
            "model.kind: members of a byzantine run check each other's numbers, and a ghost model has none; use "
            'model.kind = "classifier"'
        )
    try:
        scenario.run_spec()
    except ConfigurationError as error:
        yield from (line.removeprefix(f"{scenario.name}: ") for line in str(error).splitlines())
    if scenario.peers and scenario.security.founders > scenario.peer_count:
        yield f"security.founders: {scenario.security.founders}, and there are only {scenario.peer_count} peers in all"
    for number, each in enumerate(scenario.peers, 1):
        if each.role == "auxiliary" or each.dialable < 1:
            key = 'role = "auxiliary"' if each.role == "auxiliary" else f"dialable = {each.dialable:g}"
            yield (
                f"[[peers]] number {number}: {key}: in a byzantine run everybody computes and can be dialled by "
                "everybody; leave it out"
            )


def _wrong_peers(peers: Sequence[PeerTable], scenario: Scenario) -> Iterator[str]:
    if scenario.peer_count > MAX_PEERS:
        yield f"peers: {scenario.peer_count} peers in all; there may be at most {MAX_PEERS}"
    if not peers:
        yield "peers: missing; there must be at least one [[peers]] table"
        return
    if all(each.role == "auxiliary" for each in peers):
        yield 'peers: nobody trains; at least one class must have role = "trainer"'
    if all(each.dialable == 0 for each in peers):
        yield "peers: all are behind NAT, so nobody can be dialled; at least one class must have dialable above 0"
    for number, each in enumerate(peers, 1):
        if each.name in [other.name for other in peers[: number - 1]]:
            yield f"[[peers]] number {number}: name = {each.name!r}: used twice"
        if each.memory is not None and each.memory.most < scenario.memory_bytes:
            yield (
                f"[[peers]] number {number}: memory = {each.memory.text!r}: this model and optimizer need at least "
                f"{format_size(scenario.memory_bytes)}, so none of these peers could take part"
            )
        if each.arrival.least >= scenario.stop.time.values[0]:
            yield f"[[peers]] number {number}: arrival = {each.arrival.text!r}: after stop.time, so they never come"


def _wrong_names(scenario: Scenario) -> Iterator[str]:
    classes = [each.name for each in scenario.peers]
    regions = list(dict.fromkeys(each.region for each in scenario.peers if each.region is not None))
    seen: set[frozenset[str]] = set()
    for number, path in enumerate(scenario.paths, 1):
        for name in path.between:
            if name not in regions:
                yield f"[[paths]] number {number}: between: {_unknown(name, 'region', regions)}"
        if frozenset(path.between) in seen:
            yield f"[[paths]] number {number}: between = {list(path.between)}: there is one for these already"
        seen.add(frozenset(path.between))
    yield from _unknown_in_script(scenario)
    for number, fault in enumerate(scenario.faults.random, 1):
        if fault.peers is not None and fault.peers not in classes:
            yield f"[[faults.random]] number {number}: peers: {_unknown(fault.peers, 'class', classes)}"
        if fault.action == "drop_link" and scenario.peer_count < 2:
            yield f"[[faults.random]] number {number}: drop_link needs two peers"
    yield from _wrong_orders(scenario)
    yield from _wrong_attackers(scenario, classes)


def _unknown_in_script(scenario: Scenario) -> Iterator[str]:
    """Names in the fault script that are neither a role nor a peer."""
    counts = {each.name: each.count for each in scenario.peers}
    for fault in parse_faults(scenario.faults.script):
        emitter = fault.trigger.emitter if isinstance(fault.trigger, AtEvent) else None
        for name in [*fault.peers, *([] if emitter is None else [emitter])]:
            if name not in ROLES and not _is_peer(name, counts):
                yield (
                    f"faults.script: line {fault.line}: {name!r} is neither a role ({', '.join(ROLES)}) nor a peer, "
                    f"which are called {', '.join(f'{kind}-1' for kind in list(counts)[:5])} and so on"
                )
        if fault.behaviour == "false-state" and scenario.model.kind == "ghost":
            yield f"faults.script: line {fault.line}: {NO_NUMBERS}"


def _wrong_orders(scenario: Scenario) -> Iterator[str]:
    counts = {each.name: each.count for each in scenario.peers}
    for number, table in enumerate(scenario.orders, 1):
        where = f"[[orders]] number {number}"
        if table.peer is not None and not _is_peer(table.peer, counts):
            yield f"{where}: peer: {_unknown(table.peer, 'peer', [f'{kind}-1' for kind in counts])}"
        if table.order in ("amend", "pause", "resume", "stop"):
            try:
                check_changes(scenario.run_spec(), dict(table.changes) or {PAUSED: True})
            except ConfigurationError as error:
                yield from (f"{where}: {line}" for line in str(error).splitlines())


def _is_peer(name: str, counts: Mapping[str, int]) -> bool:
    """Whether a class has a peer of that name."""
    kind, _, number = name.rpartition("-")
    return number.isdecimal() and 1 <= int(number) <= counts.get(kind, 0)


def _wrong_attackers(scenario: Scenario, classes: Sequence[str]) -> Iterator[str]:
    counts = {each.name: each.count for each in scenario.peers}
    for number, attackers in enumerate(scenario.attackers, 1):
        where = f"[[attackers]] number {number}"
        if attackers.peers not in classes:
            yield f"{where}: peers: {_unknown(attackers.peers, 'class', classes)}"
        elif attackers.count > counts[attackers.peers]:
            yield f"{where}: count = {attackers.count}: there are {counts[attackers.peers]} peers of that class"
        if scenario.model.kind == "ghost" and attackers.behaviour == "false-state":
            yield f"{where}: behaviour = 'false-state': {NO_NUMBERS}"
        if attackers.is_attack and scenario.security.verification != "byzantine":
            yield f'{where}: behaviour = {attackers.behaviour!r}: only with security.verification = "byzantine"'
    hostile = sum(attackers.count for attackers in scenario.attackers if attackers.is_attack)
    if 2 * hostile >= scenario.peer_count and hostile:
        yield (
            f"attackers: {hostile} of {scenario.peer_count} peers attack; no defence holds unless fewer than half do, "
            "so let fewer attack"
        )


def _unknown(name: str, what: str, known: Sequence[str]) -> str:
    return f"{name!r} is no {what} of [[peers]]; there are: {', '.join(known[:20]) or 'none'}"
