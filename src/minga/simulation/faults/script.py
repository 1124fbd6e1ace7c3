"""The small language of scripted faults.

A script has one fault a line; `#` begins a comment:

    kill aggregator when round.begun step=3           a role is resolved when its fault is due
    kill emitter when leader emits round.begun        `emitter` is the peer whose event it was
    stall peer-2 at 10s for 4s                        ends by itself
    resume peer-2 at 20s
    drop_link peer-1 peer-3 at 8s for 5s
    restore_link peer-1 peer-3 at 30s
    slow_link peer-1 to 100kbit at 5s for 1min        up and down
    stop_relay main at 30s for 20s                    a relay of the scenario
    start_relay main at 60s
    open_nat peer-1 at 30s                            its router lets everybody in, as with a forwarded port
    lie peer-2 false-state at 3s                      see `minga.simulation.attacks.interface`

`at` counts from the moment when the script starts; a fault without `at` or `when` happens at once. `when` waits for the
first event of that kind (see `docs/events.md`), of anybody or of the named peer or role, whose fields have the given
values. Every fault happens once; all but a stall outlast a restart of the peer. Of two that overlap on one peer or
link, the first to end ends both. Times and rates are those of `minga.core.units`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from minga.core.errors import ConfigurationError
from minga.core.events.bus import Event
from minga.core.events.catalogue import CATALOGUE, fields_of
from minga.core.spec.problems import probably_meant
from minga.core.units import parse_duration, parse_rate

Action = Literal[
    "kill", "stall", "resume", "drop_link", "restore_link", "slow_link", "stop_relay", "start_relay", "open_nat", "lie"
]
ACTIONS: tuple[Action, ...] = get_args(Action)
LASTING: tuple[Action, ...] = ("stall", "drop_link", "slow_link", "stop_relay", "lie")
"""What can end by itself (`for`)."""
OPPOSITES: dict[Action, Action] = {"stall": "resume", "drop_link": "restore_link", "stop_relay": "start_relay"}
"""What ends a fault; the others end by the same action without its rate or lie."""

EMITTER = "emitter"
RELAY_ACTIONS: tuple[Action, ...] = ("stop_relay", "start_relay")
"""What happens to a relay, and not to a peer."""

ROLES = ("leader", "aggregator", "sender", EMITTER)
"""Roles of peers in a simulated swarm; see `Swarm.script`."""

MAX_SCRIPT_BYTES = 1 << 16

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_KIND = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_KEYWORDS = ("at", "when", "for", "to", "emits")


@dataclass(frozen=True)
class AtTime:
    """The fault happens `seconds` after the script started."""

    seconds: float

    def __str__(self) -> str:
        return f"at {self.seconds!r}s"


@dataclass(frozen=True)
class AtEvent:
    """The fault happens at the first event of `kind`, by `emitter` (a peer or role; None: anybody), with `fields`."""

    kind: str
    emitter: str | None = None
    fields: tuple[tuple[str, str], ...] = ()

    def matches(self, event: Event) -> bool:
        """Whether kind and fields fit; numbers are compared as numbers."""
        return event.kind == self.kind and all(
            name in event.fields and _same(event.fields[name], wanted) for name, wanted in self.fields
        )

    def __str__(self) -> str:
        who = f"{self.emitter} emits " if self.emitter else ""
        return f"when {who}{self.kind}" + "".join(f" {name}={value}" for name, value in self.fields)


@dataclass(frozen=True)
class Fault:
    """One fault: what is done to which peers or roles, when, and for how long (None: for good).

    `bytes_per_s` belongs to `slow_link`, `behaviour` to `lie`; `line` is where it stands in its script.
    """

    action: Action
    peers: tuple[str, ...]
    trigger: AtTime | AtEvent = AtTime(0.0)
    for_s: float | None = None
    bytes_per_s: float | None = None
    behaviour: str | None = None
    line: int = 0

    def __str__(self) -> str:
        words = [self.action, *self.peers]
        words += [self.behaviour] if self.behaviour else []
        words += [f"to {self.bytes_per_s * 8!r}bit"] if self.bytes_per_s is not None else []
        words += [str(self.trigger)] + ([f"for {self.for_s!r}s"] if self.for_s is not None else [])
        return " ".join(words)


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Read a script. Raises `ConfigurationError` naming the line and the word that cannot be understood."""
    if len(text) > MAX_SCRIPT_BYTES:
        raise ConfigurationError(f"a fault script of {len(text)} characters exceeds {MAX_SCRIPT_BYTES}")
    lines = enumerate((line.partition("#")[0].split() for line in text.splitlines()), 1)
    return tuple(_Line(number, words).fault() for number, words in lines if words)


class _Line:
    """One line of a script, read word by word."""

    def __init__(self, number: int, words: list[str]) -> None:
        self._number, self._words = number, words
        self._next = 0

    def fault(self) -> Fault:
        action = next((action for action in ACTIONS if action == self._words[0]), None)
        if action is None:
            raise self._error(self._words[0], f"unknown fault; known are {', '.join(ACTIONS)}")
        self._next = 1
        count = 2 if action in ("drop_link", "restore_link") else 1
        peers = tuple(self._name("the name of a peer or role") for _ in range(count))
        if len(set(peers)) != len(peers):
            raise self._error(peers[-1], "a link joins two different peers")
        behaviour = self._name("what the lie is") if action == "lie" else None
        rate = self._rate() if action == "slow_link" else None
        trigger = self._trigger()
        return Fault(action, peers, trigger, self._duration(action), rate, behaviour, self._number)

    def _rate(self) -> float:
        if not self._accept("to"):
            raise self._error(self._peek(), "`to` and a rate, such as `to 100kbit`, must follow")
        return self._quantity(parse_rate, "a rate such as 100kbit")

    def _trigger(self) -> AtTime | AtEvent:
        if self._accept("at"):
            return AtTime(self._quantity(parse_duration, "a time such as 10s"))
        if not self._accept("when"):
            return AtTime(0.0)
        kind, emitter = self._name("the kind of an event"), None
        if self._accept("emits"):
            kind, emitter = self._name("the kind of an event"), kind
        if kind not in CATALOGUE:
            raise self._error(kind, f"not the kind of an event{probably_meant(kind, CATALOGUE)}")
        known = [each.name for each in fields_of(CATALOGUE[kind])]
        fields: list[tuple[str, str]] = []
        while (word := self._peek()) is not None and word != "for":
            name, equals, value = word.partition("=")
            if not (equals and _KIND.fullmatch(name) and value):
                raise self._error(word, "a condition such as step=3, or `for` and a time, must follow")
            if name not in known:
                raise self._error(word, f"{kind} has no field {name}; it has {', '.join(known) or 'none'}")
            fields.append((name, value))
            self._next += 1
        return AtEvent(kind, emitter, tuple(fields))

    def _duration(self, action: Action) -> float | None:
        seconds = None
        if self._accept("for"):
            if action not in LASTING:
                raise self._error("for", f"{action} has no duration")
            seconds = self._quantity(parse_duration, "a time such as 4s")
            if not seconds:
                raise self._error(self._words[self._next - 1], "must be more than 0")
        if (word := self._peek()) is not None:
            raise self._error(
                word, "nothing more was expected" if seconds is not None else "`at`, `when` or `for` must follow"
            )
        return seconds

    def _peek(self) -> str | None:
        return self._words[self._next] if self._next < len(self._words) else None

    def _accept(self, keyword: str) -> bool:
        if self._peek() != keyword:
            return False
        self._next += 1
        return True

    def _name(self, what: str) -> str:
        word = self._peek()
        if word is None or word in _KEYWORDS or not _NAME.fullmatch(word):
            raise self._error(word, f"{what} must stand here")
        self._next += 1
        return word

    def _quantity(self, parse: Callable[[str], float], what: str) -> float:
        word = self._peek()
        if word is None:
            raise self._error(word, f"{what} must stand here")
        try:
            value = parse(word)
        except ConfigurationError as error:
            raise self._error(word, str(error)) from error
        self._next += 1
        return value

    def _error(self, word: str | None, message: str) -> ConfigurationError:
        where = f"at `{word[:60]}`" if word is not None else "at its end"
        return ConfigurationError(f"fault script, line {self._number}, {where}: {message}")


def _same(value: object, wanted: str) -> bool:
    if isinstance(value, bool) or value is None:
        return str(value).lower() == wanted.lower()
    if isinstance(value, int | float):
        try:
            return float(wanted) == value
        except ValueError:
            return False
    return str(value) == wanted
