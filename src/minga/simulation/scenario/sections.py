"""The sections of a scenario, and how their fields are declared: what is trained, who takes part, what goes wrong."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Field, PlainSerializer, PlainValidator, field_validator, model_validator

from minga.core.errors import ConfigurationError
from minga.core.spec.fields import Real, Section, choice, described, real, whole
from minga.core.spec.plugins import NAME_PATTERN
from minga.core.units import parse_duration, parse_rate, parse_size
from minga.network.virtual.internet import MAX_LATENCY_S
from minga.network.virtual.paths import Nat, relay_url
from minga.planner.model_facts import KNOWN, RESNET_50_PARAMETERS
from minga.simulation.attacks.interface import is_attack, lie
from minga.simulation.faults.script import LASTING, parse_faults

# ---- Quantities: a value, or a distribution from which each peer draws its own.
#
#     50Mbit                            always the same
#     uniform 10Mbit 50Mbit             anything between the two, all equally likely
#     log-uniform 10Mbit 1Gbit          the same for the logarithm: as many below 100 Mbit as above
#     lognormal median=20Mbit sigma=0.5 half of all draws below the median; sigma is that of the logarithm
#     exponential 4h                    times between events that forget their past; 4 h is the mean
#     choice 50Mbit 50Mbit 1Gbit        one of these, each as likely as it is often named
#
# After lognormal and exponential, `min=…` and `max=…` cut draws off. What is drawn is rounded to six digits, so that
# the last bits of a machine's logarithm do not make two runs of one seed differ.


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


# ---- Fields that a run spec does not have, and how they are declared: quantities, and names of peers.


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


# ---- The sections.


MAX_PEERS: Final = 10_000

SIZES: Final = {
    "albert-base": 11_685_000,
    "albert-large": 17_850_000,
    "resnet-50": RESNET_50_PARAMETERS,
    **{name: KNOWN[name].parameters for name in ("bert-base", "bert-large", "gpt2")},
}
"""Parameters of models that a ghost may be named after."""

Name = Annotated[str, Field(pattern=NAME)]


def _plausible(latency: Duration) -> Duration:
    """A latency that the virtual network permits; what an open-ended distribution draws beyond is cut off there."""
    most = latency.most if latency.most < math.inf else latency.values[0]
    if most > MAX_LATENCY_S:
        raise ValueError(f"a latency is at most {MAX_LATENCY_S:g} s")
    return latency


def _one_rate(rate: Rate | None) -> Rate | None:
    """The same, where a distribution would mean nothing. Raises `ValueError`."""
    if rate is not None and rate.shape != "constant":
        raise ValueError("it must be one rate, not a distribution")
    return rate


class ModelTable(Section):
    """What is trained: a small classifier that learns, or a ghost, which only has a size."""

    kind: Literal["classifier", "ghost"] = choice(
        "classifier", "a real, tiny model with a loss, or one without numbers", "classifier", "ghost"
    )
    name: Literal["albert-base", "albert-large", "resnet-50", "bert-base", "bert-large", "gpt2"] | None = choice(
        None, "(ghost) the model whose size it has", *SIZES
    )
    parameters: int | None = whole(None, 1, 10**11, "(ghost) its size, instead of a name")

    @model_validator(mode="after")
    def _check_size(self) -> ModelTable:
        if self.kind == "classifier" and (self.name is not None or self.parameters is not None):
            raise ValueError('name and parameters are for kind = "ghost"; the classifier has its own size')
        if self.kind == "ghost" and (self.name is None) == (self.parameters is None):
            raise ValueError('a ghost has either a name, such as "albert-large", or a number of parameters')
        return self


class StopTable(Section):
    """When the simulation ends: as soon as one of these is reached."""

    steps: int | None = whole(None, 1, 1_000_000, "global steps")
    time: Span = quantity("24h", "duration", "virtual time")
    loss: Real | None = real(None, 0.0, 1e6, "(classifier) held-out loss", above_low=True)

    @field_validator("time")
    @classmethod
    def _check_time(cls, time: Span) -> Span:
        return one_duration(time)


class PeerTable(Section):
    """Peers of a kind; each draws its own numbers."""

    name: str = described(..., "what they are called: home-1, home-2, …", NAME_WORDS, pattern=NAME)
    count: int = whole(1, 1, MAX_PEERS, "how many there are")
    role: Literal["trainer", "auxiliary", "server"] = choice(
        "trainer",
        "an auxiliary has no gradients, it only aggregates; (split) a server has the end of the model, and trainers "
        "are its clients",
        "trainer",
        "auxiliary",
        "server",
    )
    samples_per_second: Speed | None = quantity(None, "number", "(trainer) speed of computing")
    micro_batch: int = whole(4, 1, 65_536, "(trainer) samples between two looks at the network")
    jitter: Real = real(0.05, 0.0, 0.9, "(trainer) by which share the times of its micro-batches differ")
    processor: Factor = quantity("1", "number", "how many times longer its optimizer step takes than a desktop's")
    up: Rate | None = quantity(None, "rate", "rate of sending; without limit if left out")
    down: Rate | None = quantity(None, "rate", "rate of receiving; without limit if left out")
    latency: Duration = quantity("10ms", "duration", "one-way, to the middle of the network or of its region")
    packet_loss: Real = real(0.0, 0.0, 0.5, "share of packets that are lost on its line")
    region: Name | None = described(None, "where they are, for [[paths]]", NAME_WORDS)
    dialable: Real = real(1.0, 0.0, 1.0, "share of them that take connections; the rest only dials out, as clients do")
    nat: Literal["none", "one-to-one", "full-cone", "port-restricted", "symmetric"] = choice(
        "none", "what their routers let in; each has one of its own", *Nat
    )
    relay: Name | None = described(None, "which of [[relays]] they use; the first if left out", NAME_WORDS)
    memory: Size | None = quantity(None, "size", "what a peer has for the run; who has too little stays away")
    arrival: Duration = quantity("0s", "duration", "when a peer comes first")
    session: Span | None = quantity(None, "duration", "how long a peer stays; to the end if left out")
    away: Span | None = quantity(None, "duration", "how long it is away between two sessions; for good if left out")
    every: Span | None = quantity(None, "duration", "its sessions begin so far apart, such as a day, instead of away")
    crash: Real = real(0.0, 0.0, 1.0, "share of sessions that end without a goodbye")

    @field_validator("latency")
    @classmethod
    def _check_latency(cls, latency: Duration) -> Duration:
        return _plausible(latency)

    @model_validator(mode="after")
    def _check_role(self) -> PeerTable:
        if self.role == "trainer" and self.samples_per_second is None:
            raise ValueError("a trainer needs samples_per_second, such as samples_per_second = 10")
        if self.role == "auxiliary" and self.samples_per_second is not None:
            raise ValueError("an auxiliary computes no gradients; leave samples_per_second out")
        if self.role == "server" and (self.samples_per_second is not None or self.session is not None):
            raise ValueError("a server computes at once and stays to the end; leave samples_per_second and session out")
        if self.role == "auxiliary" and self.dialable == 0:
            raise ValueError("an auxiliary that nobody can dial is of no use; dialable must be above 0")
        if self.session is None and self.every is not None:
            raise ValueError('every is about the next session; give session, such as session = "4h"')
        if self.session is None and (self.away is not None or self.crash > 0):
            raise ValueError('away and crash are about the end of a session; give session, such as session = "4h"')
        if self.away is not None and self.every is not None:
            raise ValueError("away and every both say when a peer comes back; leave one of them out")
        return self


class RelayTable(Section):
    """A relay: it carries what two peers say to each other whose NATs give them no direct path."""

    name: str = described(..., "what it is called", NAME_WORDS, pattern=NAME)
    rate: Rate | None = quantity(None, "rate", "what it carries in all; without limit if left out")
    latency: Duration = quantity("10ms", "duration", "one-way, to the middle of the network or of its region")
    region: Name | None = described(None, "where it is, for [[paths]]", NAME_WORDS)

    @field_validator("rate")
    @classmethod
    def _check_rate(cls, rate: Rate | None) -> Rate | None:
        return _one_rate(rate)

    @field_validator("latency")
    @classmethod
    def _check_latency(cls, latency: Duration) -> Duration:
        return _plausible(one_duration(latency))

    @property
    def url(self) -> str:
        """Under which peers know it."""
        return relay_url(self.name)


class RegionPath(Section):
    """What lies between two regions, or inside one."""

    between: Annotated[tuple[Name, ...], Field(strict=False, min_length=1, max_length=2)] = described(
        ..., "the two regions, or the one", "a list of one or two regions of [[peers]]"
    )
    latency: Duration = quantity(..., "duration", "one-way, added to that of both ends' lines")
    rate: Rate | None = quantity(None, "rate", "limit of each path, in each direction; none if left out")

    @field_validator("rate")
    @classmethod
    def _check_rate(cls, rate: Rate | None) -> Rate | None:
        return _one_rate(rate)

    @field_validator("latency")
    @classmethod
    def _check_latency(cls, latency: Duration) -> Duration:
        return _plausible(one_duration(latency))


class RandomFault(Section):
    """Something that goes wrong again and again, at random times, to peers chosen at random."""

    action: Literal["kill", "stall", "drop_link", "slow_link"] = choice(
        ..., "what happens", "kill", "stall", "drop_link", "slow_link"
    )
    per_hour: Real = real(..., 0.0, 100_000.0, "how often, in the whole swarm, on average", above_low=True)
    peers: Name | None = described(None, "the class that it happens to; any if left out", NAME_WORDS)
    lasts: Span | None = quantity(None, "duration", "(all but kill) for how long")
    to: Rate | None = quantity(None, "rate", "(slow_link) the rate that is left in both directions")

    @model_validator(mode="after")
    def _check_action(self) -> RandomFault:
        if self.action in LASTING and self.lasts is None:
            raise ValueError(f'{self.action} needs lasts, such as lasts = "uniform 5s 30s"')
        if self.action not in LASTING and self.lasts is not None:
            raise ValueError(f"{self.action} is for good; leave lasts out (how peers come back is away in [[peers]])")
        if (self.action == "slow_link") != (self.to is not None):
            raise ValueError('to = "1Mbit" or such belongs to slow_link, which needs it, and to nothing else')
        return self


class FaultsTable(Section):
    """What goes wrong, by a script and at random."""

    script: str = described("", "faults at given times or events", "lines of the language of fault scripts")
    random: Annotated[tuple[RandomFault, ...], Field(strict=False, max_length=100)] = described(
        (), "random faults", "tables, each under its own [[faults.random]]"
    )

    @field_validator("script")
    @classmethod
    def _check_script(cls, script: str) -> str:
        try:
            for fault in parse_faults(script):
                if fault.behaviour is not None:
                    lie(fault.behaviour)
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
        return script


class Attackers(Section):
    """Peers of a class that lie or attack, all in the same way, as long as they are there."""

    peers: Name = described(..., "the class to which they belong", NAME_WORDS)
    count: int = whole(1, 1, MAX_PEERS, "how many of them do it")
    behaviour: str = described(
        ...,
        "false-rates: claims ten times the rates of its line; false-state: serves newcomers a state with flipped bits; "
        "all others that come with minga are for byzantine runs, see minga.simulation.attacks.interface",
        "the name of a behaviour that is installed",
        pattern=NAME_PATTERN,
    )
    from_step: int = whole(0, 0, 1_000_000, "(byzantine) how many steps they take honestly at first")

    @property
    def is_attack(self) -> bool:
        """Whether it is for runs whose members check each other."""
        return is_attack(self.behaviour)

    @model_validator(mode="after")
    def _check_behaviour(self) -> Attackers:
        try:
            if not self.is_attack:
                lie(self.behaviour)
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
        if self.behaviour == "poisoned-donor":
            raise ValueError('behaviour: peers of a scenario who serve a wrong state are "false-state"')
        if not self.is_attack and self.from_step:
            raise ValueError(f"from_step: {self.behaviour} begins at once; for later there is lie in a fault script")
        return self


# ---- Orders: what the organisers do, and when.


Change = bool | int | float | str


class OrderTable(Section):
    """An act of the organisers: an order that they sign, a backup, or its restoring."""

    at: Duration = quantity(..., "duration", "virtual time")
    order: Literal["amend", "pause", "resume", "stop", "ban", "backup", "restore"] = choice(
        ...,
        "what they do; backup and restore: of the state, the orders and the key of one peer, on another machine",
        "amend",
        "pause",
        "resume",
        "stop",
        "ban",
        "backup",
        "restore",
    )
    changes: Mapping[str, Change] = described({}, "(amend) new values", "a table of settings, such as those of amend")
    steps_ahead: int = whole(3, 1, 1000, "(amend, pause, stop) so many steps after the newest one")
    peer: str | None = described(None, "(ban, backup, restore) which peer", "the name of a peer, such as home-1")
    lasts: Span | None = quantity(None, "duration", "(ban) for how long its address is barred, too")

    @field_validator("at")
    @classmethod
    def _check_at(cls, at: Duration) -> Duration:
        return one_duration(at)

    @model_validator(mode="after")
    def _check_order(self) -> OrderTable:
        if (self.order == "amend") != bool(self.changes):
            raise ValueError('amend, and only it, needs changes, such as { "optimizer.learning_rate" = 0.001 }')
        if (self.order in ("ban", "backup", "restore")) != (self.peer is not None):
            raise ValueError("peer belongs to ban, backup and restore, which need it, and to nothing else")
        if self.lasts is not None and self.order != "ban":
            raise ValueError("lasts belongs to ban")
        return self
