"""How fields of a scenario are declared that a run spec does not have: quantities, and names of peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator

from minga.core.errors import ConfigurationError
from minga.core.spec.fields import described
from minga.simulation.scenario.quantities import EXAMPLES, Kind, Quantity, parse_quantity

NAME = r"^[A-Za-z][A-Za-z0-9_-]{0,39}$"
NAME_WORDS = "a name of 1 to 40 letters, digits, _ and -, beginning with a letter"


def _reader(kind: Kind, *, positive: bool) -> Callable[[Any], Quantity]:
    def read(value: Any) -> Quantity:
        if isinstance(value, Quantity):
            return value
        if not isinstance(value, str | int | float):
            raise ValueError(f"it must be {allowed_quantity(kind)}")
        try:
            quantity = parse_quantity(value, kind)
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
        # An exponential duration is never quite 0; a rate could come so near that nothing would ever arrive.
        never_zero = quantity.shape == "lognormal" or (quantity.shape == "exponential" and kind == "duration")
        if positive and quantity.least <= 0 and not never_zero:
            raise ValueError("it must be more than 0 in every draw; a distribution takes min=… for that")
        return quantity

    return read


_text = PlainSerializer(lambda quantity: quantity.text, return_type=str)

Rate = Annotated[Quantity, PlainValidator(_reader("rate", positive=True)), _text]
Duration = Annotated[Quantity, PlainValidator(_reader("duration", positive=False)), _text]
Span = Annotated[Quantity, PlainValidator(_reader("duration", positive=True)), _text]
Size = Annotated[Quantity, PlainValidator(_reader("size", positive=True)), _text]
Speed = Annotated[Quantity, PlainValidator(_reader("number", positive=True)), _text]
Factor = Annotated[Quantity, PlainValidator(_reader("number", positive=False)), _text]


def allowed_quantity(kind: Kind) -> str:
    """What may be written for a quantity, to complete "must be …"."""
    constant, drawn = EXAMPLES[kind]
    return f'a value such as "{constant}", or a distribution such as "{drawn}"'


def one_duration(value: Duration) -> Duration:
    """The same, where a distribution would mean nothing. Raises `ValueError`."""
    if value.shape != "constant":
        raise ValueError("it must be one duration, not a distribution")
    return value


def quantity(default: Any, kind: Kind, meaning: str) -> Any:
    """A quantity; the annotation enforces it."""
    return described(default, meaning, allowed_quantity(kind))
