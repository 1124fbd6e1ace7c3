"""The sections of a scenario: what is trained, when it ends, who takes part, what goes wrong."""

from __future__ import annotations

import math
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator, model_validator

from minga.core.errors import ConfigurationError
from minga.core.spec.fields import Real, Section, choice, described, real, whole
from minga.core.spec.plugins import NAME_PATTERN
from minga.network.virtual.host import MAX_LATENCY_S
from minga.network.virtual.nat import Nat
from minga.network.virtual.relay import relay_url
from minga.simulation.attacks.registry import is_attack, lie
from minga.simulation.faults.script import LASTING, parse_faults
from minga.simulation.scenario.fields import (
    NAME,
    NAME_WORDS,
    Duration,
    Factor,
    Rate,
    Size,
    Span,
    Speed,
    one_duration,
    quantity,
)

MAX_PEERS: Final = 10_000

SIZES: Final = {
    "albert-base": 11_685_000,
    "albert-large": 17_850_000,
    "resnet-50": 25_557_032,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "gpt2": 124_439_808,
}
"""Parameters of models that a ghost may be named after."""

Name = Annotated[str, Field(pattern=NAME)]


def _plausible(latency: Duration) -> Duration:
    """A latency that the virtual network permits; what an open-ended distribution draws beyond is cut off there."""
    most = latency.most if latency.most < math.inf else latency.values[0]
    if most > MAX_LATENCY_S:
        raise ValueError(f"a latency is at most {MAX_LATENCY_S:g} s")
    return latency


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
        if rate is not None and rate.shape != "constant":
            raise ValueError("it must be one rate, not a distribution")
        return rate

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
        "all others that come with minga are for byzantine runs, see minga.simulation.attacks.registry",
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
