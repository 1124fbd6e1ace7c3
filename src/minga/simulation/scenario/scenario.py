"""Scenarios: who trains what together, over which lines, and what goes wrong; a TOML file, or one that is shipped.

Sections that a run spec has, too (optimizer, training, averaging, state), mean and default to the same here.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError, field_validator

from minga.access.standing_orders import PAUSED, check_changes
from minga.averaging.strategy_choice import largest_strategy
from minga.core.errors import ConfigurationError
from minga.core.files import parse_value, read_toml, split_setting
from minga.core.spec.fields import Printable, Section, choice, described, whole
from minga.core.spec.problems import explain, probably_meant
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import (
    DEFAULT_SKETCH,
    AveragingSection,
    NetworkSection,
    OptimizerSection,
    SecuritySection,
    SplitSection,
    StateSection,
    TrainingSection,
)
from minga.core.units import format_size
from minga.simulation.faults.script import RELAY_ACTIONS, ROLES, AtEvent, Fault, parse_faults
from minga.simulation.scenario.sections import (
    MAX_PEERS,
    SIZES,
    Attackers,
    FaultsTable,
    ModelTable,
    OrderTable,
    PeerTable,
    RandomFault,
    RegionPath,
    RelayTable,
    StopTable,
)
from minga.training.plugins_of_run import with_origins
from minga.training.replica.build_optimizer import moment_bytes

# ---- The tables of a scenario: its sections, its classes of peers, and what can be computed from them.


MAX_CLASSES: Final = 100
MAX_PATHS: Final = 1000
MAX_ORDERS: Final = 200
MAX_RELAYS: Final = 20
CLASSIFIER_PARAMETERS: Final = 7_050


class Scenario(Section):
    """What a scenario says, and what follows from it; made from a mapping, such as that of `read_scenario`."""

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
        vectors = 3 + largest_strategy(self).facts.vectors
        return 4 * vectors * self.parameters + moment_bytes((self.parameters,), self.optimizer)

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


# ---- Overrides: settings beside a scenario's file, such as `training.target_batch_size=512`, `peers.home.count=20`.


Change = tuple[str, str]
"""A key and the text of its value."""

MAX_RUNS: Final = 1000


def split_change(text: str, option: str) -> Change:
    """Key and value of `key=value`; `option` is what the message of a `ConfigurationError` calls it."""
    return split_setting(text, f"{option} ", "training.target_batch_size=512")


def changed(values: Mapping[str, Any], changes: Sequence[Change]) -> dict[str, Any]:
    """A copy of a scenario's values with some replaced.

    A key leads through tables by dots; a table of several, such as [[peers]], is told by its name or its number from 1.
    """
    result = copy.deepcopy(dict(values))
    for key, text in changes:
        *path, last = key.split(".")
        _table(result, path, key)[last] = parse_value(text)
    return result


def sweeps(texts: Sequence[str]) -> Iterator[list[Change]]:
    """All combinations of the values of `key=a,b,c`, as changes. Raises `ConfigurationError`, also for too many."""
    axes: list[list[Change]] = []
    for text in texts:
        key, values = split_change(text, "--sweep")
        axis = [(key, value.strip()) for value in values.split(",") if value.strip()]
        if not axis:
            raise ConfigurationError(f"--sweep {text[:60]!r}: no value is given; write KEY=A,B,C")
        if len(set(axis)) < len(axis) or any(key == other[0][0] for other in axes):
            raise ConfigurationError(f"--sweep {text[:60]!r}: write each key once, with different values: KEY=A,B,C")
        axes.append(axis)
    count = 1
    for axis in axes:
        count *= len(axis)
    if count > MAX_RUNS:
        raise ConfigurationError(f"--sweep: {count} runs; there may be at most {MAX_RUNS}")
    for combination in itertools.product(*axes):
        yield list(combination)


def _table(values: dict[str, Any], path: Sequence[str], key: str) -> dict[str, Any]:
    """The table to which a path leads; tables that are not there are made."""
    table: Any = values
    for name in path:
        if isinstance(table, list):
            found = [each for number, each in enumerate(table, 1) if name in (str(number), _name(each))]
            if len(found) != 1:
                names = [_name(each) or str(number) for number, each in enumerate(table, 1)]
                raise ConfigurationError(f"{key}: there is no {name!r} here; there are: {', '.join(names)}")
            table = found[0]
        elif isinstance(table, dict):
            table = table.setdefault(name, {})
        else:
            break
    if not isinstance(table, dict):
        raise ConfigurationError(f"{key}: {'.'.join(path)} is no table of settings")
    return table


def _name(each: Any) -> str:
    return str(each.get("name", "")) if isinstance(each, dict) else ""


# ---- References: names that must lead to something, such as regions, relays, classes, peers in scripts and orders.


NO_NUMBERS: Final = 'a ghost model has no numbers to falsify; use model.kind = "classifier"'


def wrong_names(scenario: Scenario) -> Iterator[str]:
    """A line for each name that leads nowhere, and for each that is there twice."""
    classes = [each.name for each in scenario.peers]
    of_peers = dict.fromkeys(each.region for each in scenario.peers if each.region is not None)
    regions = [*(of_peers | dict.fromkeys(each.region for each in scenario.relays if each.region is not None))]
    seen: set[frozenset[str]] = set()
    yield from _wrong_relays(scenario)
    for number, path in enumerate(scenario.paths, 1):
        for name in path.between:
            if name not in regions:
                yield f"[[paths]] number {number}: between: {_unknown(name, 'region', regions)}"
            elif path.rate is not None and name not in of_peers:
                why = f"only relays are in {name!r}, and what they carry is limited by their own rate; leave it out"
                yield f"[[paths]] number {number}: rate: {why}"
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


def _wrong_relays(scenario: Scenario) -> Iterator[str]:
    names = [each.name for each in scenario.relays]
    for number, relay in enumerate(scenario.relays, 1):
        if relay.name in names[: number - 1]:
            yield f"[[relays]] number {number}: name = {relay.name!r}: used twice"
    for number, kind in enumerate(scenario.peers, 1):
        if kind.relay is not None and kind.relay not in names:
            yield f"[[peers]] number {number}: relay: {_unknown(kind.relay, 'relay', names, '[[relays]]')}"


def _unknown_in_script(scenario: Scenario) -> Iterator[str]:
    """Names in the fault script that are neither a role nor a peer."""
    counts = {each.name: each.count for each in scenario.peers}
    for fault in parse_faults(scenario.faults.script):
        emitter = fault.trigger.emitter if isinstance(fault.trigger, AtEvent) else None
        if fault.action in RELAY_ACTIONS:
            names = [each.name for each in scenario.relays]
            if fault.peers[0] not in names:
                what = _unknown(fault.peers[0], "relay", names, "[[relays]]")
                yield f"faults.script: line {fault.line}: {what}"
            continue
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
        if table.at.least >= scenario.stop.time.values[0]:
            yield f"{where}: at = {table.at.text!r}: after stop.time, so it never happens"
        if table.peer is not None and not _is_peer(table.peer, counts):
            yield f"{where}: peer: {_unknown(table.peer, 'peer', [f'{kind}-1' for kind in counts])}"
        if table.order in ("amend", "pause", "resume", "stop"):
            try:
                check_changes(scenario.run_spec(), dict(table.changes) or {PAUSED: True}, 0)
            except ConfigurationError as error:
                yield from (f"{where}: {line}" for line in str(error).splitlines())


def _is_peer(name: str, counts: Mapping[str, int]) -> bool:
    """Whether a class has a peer of that name."""
    kind, _, number = name.rpartition("-")
    return number in map(str, range(1, counts.get(kind, 0) + 1))


def _wrong_attackers(scenario: Scenario, classes: Sequence[str]) -> Iterator[str]:
    counts = {each.name: each.count for each in scenario.peers}
    for number, attackers in enumerate(scenario.attackers, 1):
        where = f"[[attackers]] number {number}"
        if attackers.peers not in classes:
            yield f"{where}: peers: {_unknown(attackers.peers, 'class', classes)}"
        elif attackers.count > counts[attackers.peers]:
            yield f"{where}: count = {attackers.count}: there are {counts[attackers.peers]} peers of that class"
        if any(attackers.peers == before.peers for before in scenario.attackers[: number - 1]):
            yield f"{where}: peers = {attackers.peers!r}: there is one for this class already; use a second class"
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


def _unknown(name: str, what: str, known: Sequence[str], where: str = "[[peers]]") -> str:
    return f"{name!r} is no {what} of {where}; there are: {', '.join(known[:20]) or 'none'}"


# ---- The scenario: read from TOML or shipped, and checked as a whole.


MAX_FILE_BYTES: Final = 1 << 20

SIMULATED_VARIANTS: Final = ("vanilla", "u-shaped")
OPEN_NATS: Final = ("none", "one-to-one")
"""Behind these a peer is dialled from the start: others know its address."""


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
    yield from _wrong_split(scenario)
    yield from _wrong_peers(scenario.peers, scenario)
    if scenario.peers:
        yield from wrong_names(scenario)


def _not_usable(scenario: Scenario) -> Iterator[str]:
    """Which codec, strategy or aggregator is not installed, or cannot be used in such a run."""
    try:
        spec = scenario.run_spec()
    except ConfigurationError as error:
        if scenario.security.verification != "byzantine":  # else `_wrong_security` tells it
            yield from (line.removeprefix(f"{scenario.name}: ") for line in str(error).splitlines())
        return
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
        yield "network.relay: a scenario has tables under [[relays]] for that; leave it out"
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
        elif each.nat not in OPEN_NATS and not scenario.relays:
            yield f"[[peers]] number {number}: nat = {each.nat!r}: a byzantine run needs [[relays]] for that"


def _wrong_split(scenario: Scenario) -> Iterator[str]:
    """What a run cannot be whose model is cut, and servers where it is not."""
    servers = [each for each in scenario.peers if each.role == "server"]
    if not scenario.split.is_on:
        if servers:
            yield 'peers: role = "server" is for a model that is cut; write variant = "vanilla" under [split]'
        return
    if scenario.split.variant not in SIMULATED_VARIANTS:
        yield f"split.variant: {scenario.split.variant!r} is not simulated; {' and '.join(SIMULATED_VARIANTS)} are"
    if scenario.split.server:
        yield 'split.server: a scenario has peers of role = "server" for that; leave it out'
    if scenario.model.kind == "ghost":
        yield 'model.kind: a ghost has no parts; use model.kind = "classifier" for a model that is cut'
    if sum(each.count for each in servers) != 1 or not servers[0].dialable:
        yield 'peers: a model that is cut needs one peer of role = "server" that can be dialled'
    if scenario.orders or scenario.attackers or any(each.role == "auxiliary" for each in scenario.peers):
        yield 'orders, attackers, role = "auxiliary": not together with [split]'


def _wrong_peers(peers: Sequence[PeerTable], scenario: Scenario) -> Iterator[str]:
    if scenario.peer_count > MAX_PEERS:
        yield f"peers: {scenario.peer_count} peers in all; there may be at most {MAX_PEERS}"
    if not peers:
        yield "peers: missing; there must be at least one [[peers]] table"
        return
    if all(each.role != "trainer" for each in peers):
        yield 'peers: nobody trains; at least one class must have role = "trainer"'
    if all(each.dialable == 0 for each in peers):
        yield "peers: all only dial out, so nobody can be dialled; at least one class must have dialable above 0"
    elif not scenario.relays and all(each.dialable == 0 or each.nat not in OPEN_NATS for each in peers):
        yield "peers: no router lets anybody in; let one class have another nat, or add a relay under [[relays]]"
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


# ---- Random faults: at random times to random peers, by the rates of a scenario.


async def strike_at_random(
    kind: RandomFault,
    random_of: Callable[[str], random.Random],
    alive: Callable[[str | None], list[str]],
    strike: Callable[[Fault], None],
) -> None:
    """Let one kind of fault happen for ever, as a Poisson process; `alive(peers)` names the living of a class, and
    `random_of(setting)` has the random numbers for one setting.

    A fault for which there are not enough living peers is left out.
    """
    times, lasts, rates, names = (random_of(setting) for setting in ("per_hour", "lasts", "to", "peers"))
    while True:
        await asyncio.sleep(times.expovariate(kind.per_hour / 3600.0))
        wanted = 2 if kind.action == "drop_link" else 1
        for_s = None if kind.lasts is None else kind.lasts.draw(lasts)
        rate = None if kind.to is None else kind.to.draw(rates)
        victims = alive(kind.peers)
        if len(victims) >= wanted:
            strike(Fault(kind.action, tuple(names.sample(victims, wanted)), for_s=for_s, bytes_per_s=rate))
