"""Quantities in scenarios: a value, or a distribution from which each peer draws its own.

    50Mbit                            always the same
    uniform 10Mbit 50Mbit             anything between the two, all equally likely
    log-uniform 10Mbit 1Gbit          the same for the logarithm: as many below 100 Mbit as above
    lognormal median=20Mbit sigma=0.5 half of all draws below the median; sigma is that of the logarithm
    exponential 4h                    times between events that forget their past; 4 h is the mean
    choice 50Mbit 50Mbit 1Gbit        one of these, each as likely as it is often named

After lognormal and exponential, `min=…` and `max=…` cut draws off. What is drawn is rounded to six digits, so that the
last bits of a machine's logarithm do not make two runs of one seed differ.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from minga.core.errors import ConfigurationError
from minga.core.units import parse_duration, parse_rate, parse_size

Kind = Literal["rate", "duration", "size", "number"]
Shape = Literal["constant", "uniform", "log-uniform", "lognormal", "exponential", "choice"]

MAX_TEXT: Final = 500
MAX_SIGMA: Final = 5.0
MAX_NUMBER: Final = 1e9
DIGITS: Final = 6

EXAMPLES: Final[Mapping[Kind, tuple[str, str]]] = {
    "rate": ("50Mbit", "uniform 10Mbit 50Mbit"),
    "duration": ("30min", "exponential 4h"),
    "size": ("16GB", "choice 8GB 16GB"),
    "number": ("10", "lognormal median=10 sigma=0.5"),
}


@dataclass(frozen=True)
class Quantity:
    """A value or a distribution; `values` are what its shape takes, in the base unit (bytes per second, seconds, …)."""

    text: str
    shape: Shape
    values: tuple[float, ...]
    low: float = 0.0
    high: float = math.inf

    def draw(self, rng: random.Random) -> float:
        """One value; what was written out is taken as it is."""
        drawn = self._draw(rng)
        if self.shape not in ("constant", "choice"):
            drawn = float(f"{drawn:.{DIGITS}g}")
        return min(max(drawn, self.least), self.most)

    @property
    def least(self) -> float:
        """No draw is below this."""
        if self.shape in ("lognormal", "exponential"):
            return self.low
        return max(self.low, min(self.values))

    @property
    def most(self) -> float:
        """No draw is above this."""
        if self.shape in ("lognormal", "exponential"):
            return self.high
        return min(self.high, max(self.values))

    def _draw(self, rng: random.Random) -> float:
        match self.shape:
            case "uniform":
                return rng.uniform(*self.values)
            case "log-uniform":
                return math.exp(rng.uniform(math.log(self.values[0]), math.log(self.values[1])))
            case "lognormal":
                return self.values[0] * math.exp(rng.gauss(0.0, self.values[1]))
            case "exponential":
                return -self.values[0] * math.log(1.0 - rng.random())
            case "choice":
                return self.values[int(rng.random() * len(self.values))]
        return self.values[0]


def parse_quantity(value: str | float, kind: Kind) -> Quantity:
    """Read a quantity. Raises `ConfigurationError` that says what is allowed."""
    if isinstance(value, bool) or not isinstance(value, str):
        if isinstance(value, bool):
            raise ConfigurationError(f"write {_hint(kind)}")
        if kind != "number":
            raise ConfigurationError(f"a bare number has no unit; write {_hint(kind)}")
        value = repr(value)
    words = value.split() if len(value) <= MAX_TEXT else []
    if not words:
        raise ConfigurationError(f"write {_hint(kind)}")
    if words[0] not in _SHAPES:
        return Quantity(value, "constant", (_one(value, kind),))
    plain = [word for word in words[1:] if "=" not in word]
    named = _named([word for word in words[1:] if "=" in word], kind)
    return _bounded(_SHAPES[words[0]](value, [_one(word, kind) for word in plain], named), named)


def _uniform(text: str, values: list[float], named: dict[str, float]) -> Quantity:
    shape: Shape = "uniform" if text.split()[0] == "uniform" else "log-uniform"
    if named:
        raise ConfigurationError(f"{shape} has no {next(iter(named))}; write its two ends, such as {shape} LOW HIGH")
    if len(values) != 2 or values[0] > values[1]:
        raise ConfigurationError(f"{shape} takes two values, the lower one first: {shape} LOW HIGH")
    if shape == "log-uniform" and values[0] <= 0:
        raise ConfigurationError("the ends of log-uniform must be more than 0")
    return Quantity(text, shape, tuple(values))


def _lognormal(text: str, values: list[float], named: dict[str, float]) -> Quantity:
    if values or not {"median", "sigma"} <= set(named):
        raise ConfigurationError("lognormal takes median=… and sigma=…, and perhaps min=… and max=…")
    if not (named["median"] > 0 and 0 <= named["sigma"] <= MAX_SIGMA):
        raise ConfigurationError(f"the median must be more than 0, sigma from 0 to {MAX_SIGMA:g}")
    return Quantity(text, "lognormal", (named["median"], named["sigma"]))


def _exponential(text: str, values: list[float], named: dict[str, float]) -> Quantity:
    if set(named) - {"min", "max"} or len(values) != 1 or values[0] <= 0:
        raise ConfigurationError("exponential takes its mean, more than 0, and perhaps min=… and max=…")
    return Quantity(text, "exponential", tuple(values))


def _choice(text: str, values: list[float], named: dict[str, float]) -> Quantity:
    if named or not values:
        raise ConfigurationError("choice takes the values to choose among, such as choice A B C")
    return Quantity(text, "choice", tuple(values))


_SHAPES: Final[Mapping[str, Callable[[str, list[float], dict[str, float]], Quantity]]] = {
    "uniform": _uniform,
    "log-uniform": _uniform,
    "lognormal": _lognormal,
    "exponential": _exponential,
    "choice": _choice,
}


def _bounded(quantity: Quantity, named: Mapping[str, float]) -> Quantity:
    low, high = named.get("min", 0.0), named.get("max", math.inf)
    if low > high:
        raise ConfigurationError("min must not exceed max")
    return Quantity(quantity.text, quantity.shape, quantity.values, low, high)


def _named(words: list[str], kind: Kind) -> dict[str, float]:
    named: dict[str, float] = {}
    for word in words:
        name, _, text = word.partition("=")
        if name not in ("median", "sigma", "min", "max") or name in named:
            raise ConfigurationError(
                f"`{word[:40]}` is not understood: there are median=, sigma=, min= and max=, once each"
            )
        named[name] = _one(text, "number" if name == "sigma" else kind)
    return named


def _one(text: str, kind: Kind) -> float:
    match kind:
        case "rate":
            return parse_rate(text)
        case "duration":
            return parse_duration(text)
        case "size":
            return parse_size(text)
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.0 <= number <= MAX_NUMBER:
        raise ConfigurationError(f"`{text[:40]}` is no number from 0 to {MAX_NUMBER:.0f}; write {_hint(kind)}")
    return number


def _hint(kind: Kind) -> str:
    constant, drawn = EXAMPLES[kind]
    return f"a value such as {constant}, or a distribution such as {drawn} ({', '.join(_SHAPES)})"
