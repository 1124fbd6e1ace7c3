"""A rule about runs, and how what it finds is worded: each message ends with a choice that is allowed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from minga.training.combinations.facts import RunFacts

Changes = Mapping[str, Any]
"""Settings by their keys in the run spec, such as averaging.codec; None is to leave the setting out."""

Instead = Mapping[str, Any | Callable[[RunFacts], Any]]
"""The same, where some values depend on the run."""


@dataclass(frozen=True)
class Rule:
    """What some runs are not, or only at a price.

    code: R and a number for a refusal, W for a warning, G for a guarantee that is lost.
    title: what it is about, for the documentation.
    applies: whether a run is such a one.
    reason: why, for this run, in the words of the run spec.
    instead: the settings to change so that the rule does not apply any more, or what tells them of a run; none for
        what is allowed.
    """

    code: str
    title: str
    applies: Callable[[RunFacts], bool]
    reason: Callable[[RunFacts], str]
    instead: Instead = field(default_factory=dict)

    @property
    def refuses(self) -> bool:
        """Whether runs to which it applies cannot be."""
        return self.code.startswith("R")


@dataclass(frozen=True)
class Ruling:
    """A rule that applies to a run."""

    code: str
    reason: str
    instead: Changes


def find(rules: tuple[Rule, ...], run: RunFacts) -> tuple[Ruling, ...]:
    """Which of the rules apply, in their order."""
    return tuple(_ruling(rule, run) for rule in rules if rule.applies(run))


def _ruling(rule: Rule, run: RunFacts) -> Ruling:
    changes = {key: value(run) if callable(value) else value for key, value in rule.instead.items()}
    return Ruling(rule.code, rule.reason(run), changes)


def advice(changes: Changes) -> str:
    """The changes in words, such as: set averaging.codec = "float16" and leave averaging.download_codec out."""
    settings = [setting(key, value) for key, value in changes.items() if value is not None]
    without = [key for key, value in changes.items() if value is None]
    words = [f"set {_listed(settings)}"] if settings else []
    words += [f"leave {_listed(without)} out"] if without else []
    return (", and " if len(settings) > 1 else " and ").join(words)


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def setting(key: str, value: object) -> str:
    """A setting as the run spec spells it."""
    return f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}"
