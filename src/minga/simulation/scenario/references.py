"""Names in a scenario that must lead to something: regions, relays, classes, peers in scripts and orders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from minga.core.errors import ConfigurationError
from minga.simulation.faults.script import RELAY_ACTIONS, ROLES, AtEvent, parse_faults
from minga.simulation.scenario.tables import ScenarioTables
from minga.training.access.standing_orders import PAUSED, check_changes

NO_NUMBERS: Final = 'a ghost model has no numbers to falsify; use model.kind = "classifier"'


def wrong_names(scenario: ScenarioTables) -> Iterator[str]:
    """A line for each name that leads nowhere, and for each that is there twice."""
    classes = [each.name for each in scenario.peers]
    regions = list(dict.fromkeys(each.region for each in scenario.peers if each.region is not None))
    seen: set[frozenset[str]] = set()
    regions = list(dict.fromkeys([*regions, *(each.region for each in scenario.relays if each.region is not None)]))
    yield from _wrong_relays(scenario)
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


def _wrong_relays(scenario: ScenarioTables) -> Iterator[str]:
    names = [each.name for each in scenario.relays]
    for number, relay in enumerate(scenario.relays, 1):
        if relay.name in names[: number - 1]:
            yield f"[[relays]] number {number}: name = {relay.name!r}: used twice"
    for number, kind in enumerate(scenario.peers, 1):
        if kind.relay is not None and kind.relay not in names:
            yield f"[[peers]] number {number}: relay: {_unknown(kind.relay, 'relay', names, '[[relays]]')}"


def _unknown_in_script(scenario: ScenarioTables) -> Iterator[str]:
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


def _wrong_orders(scenario: ScenarioTables) -> Iterator[str]:
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


def _wrong_attackers(scenario: ScenarioTables, classes: Sequence[str]) -> Iterator[str]:
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


def _unknown(name: str, what: str, known: Sequence[str], where: str = "[[peers]]") -> str:
    return f"{name!r} is no {what} of {where}; there are: {', '.join(known[:20]) or 'none'}"
