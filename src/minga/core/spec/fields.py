"""How the fields of a run spec are declared: default, bounds, what they mean and what is allowed, in one place.

The words are part of the declaration because three things are made from them: error messages, the commented example,
and the documentation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from minga.core.printable import is_printable

MAX_STEPS = 10**9
"""Largest number of steps that any setting may name."""


class Section(BaseModel):
    """A part of a run spec: immutable, copied by `model_copy(update=…)`, nothing unknown, no silent conversion, no NaN
    or infinity.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Raise `TypeError` for a `choice` that its annotation does not enforce."""
        for name, field in cls.model_fields.items():
            extra: Any = field.json_schema_extra or {}
            options = extra.get("options") if isinstance(extra, dict) else None
            if options is not None and set(options) != _words(field.annotation) - {type(None)}:
                raise TypeError(f"{cls.__name__}.{name}: a choice of {options} needs the annotation Literal{options}")


AnySection = TypeVar("AnySection", bound=Section)


def _words(annotation: Any) -> set[Any]:
    """What the literals of a type allow; the type of anything else that it allows."""
    if get_origin(annotation) is Literal:
        return set(get_args(annotation))
    return set().union(*map(_words, get_args(annotation))) or {annotation}


def _without_negative_zero(number: float) -> float:
    # -0.0 equals 0.0 but prints differently, and the printed form is hashed.
    return number + 0.0


Real = Annotated[float, AfterValidator(_without_negative_zero)]
"""A finite float with a single spelling."""


def whole(default: Any, low: int, high: int, meaning: str, *, special: str = "", private: bool = False) -> Any:
    """A whole number in [low, high]; `special`, such as "; 0 is none", says in words what else is allowed or what the
    bounds mean. A `private` one is not published.
    """
    extra: dict[str, Any] = {"allowed": f"a whole number from {low:,} to {high:,}{special}", "private": private}
    return Field(default, ge=low, le=high, description=meaning, json_schema_extra=extra)


def real(
    default: Any,
    low: float,
    high: float,
    meaning: str,
    *,
    above_low: bool = False,
    below_high: bool = False,
    special: str = "",
) -> Any:
    """A number in [low, high], or without one or both of the ends; `special` as in `whole`."""
    ends = [
        f"above {_plain(low)}" if above_low else f"of at least {_plain(low)}",
        f"below {_plain(high)}" if below_high else f"at most {_plain(high)}",
    ]
    bounds: dict[str, Any] = {"gt" if above_low else "ge": low, "lt" if below_high else "le": high}
    extra: dict[str, Any] = {"allowed": f"a number {' and '.join(ends)}{special}"}
    return Field(default, description=meaning, json_schema_extra=extra, **bounds)


def _plain(number: float) -> str:
    return f"{int(number):,}" if number == int(number) else repr(number)


def choice(default: Any, meaning: str, *options: str) -> Any:
    """One of several words: `options`, which the annotation enforces, a `Literal` of the same words."""
    field = described(default, meaning, any_of(options))
    field.json_schema_extra["options"] = list(options)
    return field


def any_of(options: Iterable[str]) -> str:
    """What is allowed where each of these words is."""
    return "one of " + ", ".join(f'"{option}"' for option in options)


def described(default: Any, meaning: str, allowed: str, *, private: bool = False, **bounds: Any) -> Any:
    """Any other field; `allowed` completes the sentence "must be …". A `private` one is not published."""
    extra: dict[str, Any] = {"allowed": allowed, "private": private}
    return Field(default, description=meaning, json_schema_extra=extra, **bounds)


def is_private(field: FieldInfo) -> bool:
    """Whether a setting concerns the organiser's machine alone and goes back to its default before others get it."""
    extra = field.json_schema_extra
    return isinstance(extra, dict) and extra.get("private") is True


def without_private(section: AnySection) -> AnySection:
    """The section with private settings back at their defaults, in the tables inside as well; unchecked, as before."""
    changes: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if is_private(field):
            changes[name] = field.get_default(call_default_factory=True)
        elif isinstance(value, Section):
            changes[name] = without_private(value)
        elif isinstance(value, tuple) and any(isinstance(each, Section) for each in value):
            changes[name] = tuple(without_private(each) if isinstance(each, Section) else each for each in value)
    return section.model_copy(update=changes)


def allowed_values(field: FieldInfo) -> str | None:
    """What may be written into a field, in words."""
    extra = field.json_schema_extra
    allowed = extra.get("allowed") if isinstance(extra, dict) else None
    return allowed if isinstance(allowed, str) else None


def _check_printable(text: str) -> str:
    if not is_printable(text) or text != text.strip():
        raise ValueError("it must be printable, on one line, without blanks at its ends")
    return text


Printable = Annotated[str, AfterValidator(_check_printable)]
"""A text that is safe to show and to log."""
