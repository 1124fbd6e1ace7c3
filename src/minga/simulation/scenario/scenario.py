"""Scenarios: who trains what together, over which lines, and what goes wrong; a TOML file, or one that is shipped.

Sections that a run spec has, too (optimizer, training, averaging, state), mean and default to the same here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from minga.core.errors import ConfigurationError
from minga.core.spec.problems import explain, probably_meant
from minga.core.spec.sections import DEFAULT_SKETCH
from minga.core.toml_file import read_toml
from minga.core.units import format_size
from minga.simulation.scenario.references import wrong_names
from minga.simulation.scenario.sections import MAX_PEERS, PeerTable
from minga.simulation.scenario.tables import ScenarioTables
from minga.training.plugins_of_run import with_origins

MAX_FILE_BYTES: Final = 1 << 20

SIMULATED_VARIANTS: Final = ("vanilla", "u-shaped")
OPEN_NATS: Final = ("none", "one-to-one")
"""Behind these a peer is dialled from the start: others know its address."""


class Scenario(ScenarioTables):
    """A scenario: made from a mapping, such as that of `read_scenario`."""

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
    if scenario.split.servers:
        yield 'split.servers: a scenario has peers of role = "server" for that; leave it out'
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
