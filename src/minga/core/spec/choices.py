"""One text that names an implementation and its settings: "NAME" or "NAME(key=value, key=value)".

    "int4(block=32)" ─ parse_choice ─▶ Choice ─ resolved ─▶ what makes it, its settings ─ spelled ─▶ "int4(block=32)"

A value is a whole number, another number, true or false, a word, or again a choice. What an implementation can be told
is its `Settings`, a `Section` whose fields all have defaults. Each choice has one canonical spelling: the settings in
the order of their definition, those at their default left out. So what a run writes into its spec, and what peers
compare, is equal for equal choices.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Generic, TypeVar

from pydantic import AfterValidator, ValidationError

from minga.core.errors import ConfigurationError
from minga.core.spec.fields import Section
from minga.core.spec.plugins import Registry
from minga.core.spec.problems import explain

MAX_CHOICE_CHARACTERS: Final = 120
_CHOICE: Final = re.compile(r"([a-z][a-z0-9_.-]{0,63})(?:\((.*)\))?", re.ASCII)
_BLANKS: Final = re.compile(r" *([(),=]) *")
_SETTING: Final = re.compile(r"([a-z][a-z0-9_]{0,31})=(.+)", re.ASCII)
_FORM: Final = (
    'NAME or NAME(key=value, key=value), such as "int8" or "int4(block=32)", '
    f"of at most {MAX_CHOICE_CHARACTERS} characters"
)
_WORD: Final = re.compile(r"[A-Za-z0-9_.+-]{1,64}", re.ASCII)
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_REAL: Final = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,24})?(e[+-]?[0-9]{1,3})?", re.ASCII)

Value = bool | int | float | str
T = TypeVar("T")


@dataclass(frozen=True)
class Choice:
    """A name, and what is said of its settings, unchecked but for the form; choices inside are texts again."""

    name: str
    given: dict[str, Value] = field(default_factory=dict)

    def __str__(self) -> str:
        inside = ", ".join(f"{key}={_text_of(value)}" for key, value in self.given.items())
        return f"{self.name}({inside})" if inside else self.name


@dataclass(frozen=True)
class Resolved(Generic[T]):
    """A choice that can be made here: what makes it, its checked settings, and the canonical spelling."""

    name: str
    maker: T
    settings: Section
    spelling: str

    @property
    def has_settings(self) -> bool:
        """Whether `maker` takes settings at all."""
        return bool(type(self.settings).model_fields)


def parse_choice(text: object, what: str = "choice") -> Choice:
    """What a text says; `what` names it in the `ConfigurationError` for a text that says nothing of the kind."""
    if isinstance(text, str) and len(text) <= MAX_CHOICE_CHARACTERS:
        matched = _CHOICE.fullmatch(_BLANKS.sub(r"\1", text.strip(" ")))
        if matched is not None:
            return Choice(matched[1], dict(_settings_in(matched[2] or "", what)))
    shown = repr(text) if len(repr(text)) <= MAX_CHOICE_CHARACTERS else f"{repr(text)[:MAX_CHOICE_CHARACTERS]}…"
    raise ConfigurationError(f"{what}: {shown} is not {_FORM}")


def spelled(name: str, settings: Section) -> str:
    """The canonical spelling."""
    fields = type(settings).model_fields
    changed = {key: getattr(settings, key) for key in fields if getattr(settings, key) != fields[key].default}
    return str(Choice(name, changed))


def settings_of(choice: Choice, kind: type[Section], what: str) -> Section:
    """The settings of a choice as its `kind` has them. Raises `ConfigurationError`, with a line for each problem."""
    if choice.given and not kind.model_fields:
        raise ConfigurationError(f"{what}: {choice.name!r} has no settings")
    try:
        return kind.model_validate(choice.given)
    except ValidationError as error:
        raise ConfigurationError(explain(error, kind, f"{what} {choice.name!r}")) from error


def resolved(registry: Registry[T], text: object) -> Resolved[T]:
    """What a text chooses of the implementations of one seam.

    Raises `ConfigurationError` if no installed package brings it, or if it cannot have these settings.
    """
    choice = parse_choice(text, registry.what)
    maker = registry.get(choice.name)
    settings = settings_of(choice, getattr(maker, "Settings", Section), registry.what)
    return Resolved(choice.name, maker, settings, spelled(choice.name, settings))


def canonical(registry: Registry[Any], text: object) -> str:
    """The canonical spelling. Nothing is imported for a name without settings. Raises as `resolved` does."""
    choice = parse_choice(text, registry.what)
    if choice.given:
        return resolved(registry, text).spelling
    registry.origin(choice.name)
    return choice.name


def _settings_in(text: str, what: str) -> list[tuple[str, Value]]:
    """What stands between the outer parentheses."""
    found: dict[str, Value] = {}
    for part in _split(text) if text else ():
        matched = _SETTING.fullmatch(part)
        if matched is None or matched[1] in found:
            wrong = "is set twice" if matched else "is no key=value"
            raise ConfigurationError(f"{what}: {(matched[1] if matched else part)!r} {wrong}")
        found[matched[1]] = _value_of(matched[2], what)
    return list(found.items())


def _split(text: str) -> list[str]:
    """The parts between commas that are in no parentheses."""
    depth, start, parts = 0, 0, []
    for at, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


def _value_of(text: str, what: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    if _WHOLE.fullmatch(text):
        return int(text)
    if _REAL.fullmatch(text):
        return float(text) + 0.0
    return text if _WORD.fullmatch(text) else str(parse_choice(text, what))


def _text_of(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _normal(text: str) -> str:
    try:
        return str(parse_choice(text))
    except ConfigurationError as error:
        raise ValueError(str(error).removeprefix("choice: ")) from error


ChoiceText = Annotated[str, AfterValidator(_normal)]
"""A choice in a run spec, with one spelling of its blanks; the code that uses it checks name and settings."""
