"""Groups of peers described in a TOML file, for plans of swarms that do not exist yet.

target_batch_size = 4096          samples of a step, all peers together
strategy = "delayed"              or "synchronous", the default
parameters = 17_850_000           of the model; or vector_bytes = …, as they travel
codec = "float16"                 as in a run spec

[[peers]]                         a class of equal peers
name = "home"
count = 8
upload = "20Mbit"
download = "100Mbit"              the same as upload if left out
samples_per_second = 10
role = "trainer"                  or "client" or "auxiliary"
site = "north"                    where they are, if [[paths]] should name that

[[paths]]                         a limit of each path between peers of two classes or sites (or one: in it)
between = ["north", "south"]
rate = "10Mbit"                   or "none"
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError

from minga.averaging.codecs.registry import canonical_codec, codec_choices
from minga.averaging.planning.contributor_choice import StepWork
from minga.averaging.solver.division import PeerRates, SwarmRates
from minga.averaging.strategy_choice import STRATEGIES, StrategyChoice
from minga.core.errors import ConfigurationError
from minga.core.files import read_toml
from minga.core.spec.fields import Printable, Real, Section, choice, described, real, whole
from minga.core.spec.problems import explain
from minga.core.units import parse_rate

MAX_FILE_BYTES: Final = 1 << 20
MAX_PEERS: Final = 1000
MAX_CLASSES: Final = 1000
NO_PATH: Final = "none"

_RATE_WORDS = 'a rate such as "20Mbit" or "1.5 Gbit/s"'


def _check_rate(text: str) -> str:
    if text != NO_PATH:
        try:
            parse_rate(text)
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
    return text


def _check_no_word(text: str) -> str:
    if text == NO_PATH:
        raise ValueError(f"it must be {_RATE_WORDS}")
    return _check_rate(text)


def _check_codec(name: str) -> str:
    try:
        return canonical_codec(name)
    except ConfigurationError as error:
        raise ValueError(str(error)) from error


def _check_strategy(name: str) -> str:
    if name not in STRATEGIES.names():
        raise ValueError(f"must be one of {', '.join(STRATEGIES.names())}")
    return name


Rate = Annotated[str, AfterValidator(_check_no_word)]
Name = Annotated[Printable, Field(min_length=1, max_length=64)]


class _PeerClass(Section):
    """One [[peers]] table."""

    name: Name = described(..., "what these peers are called", "a text of 1 to 64 printable characters")
    count: int = whole(1, 1, MAX_PEERS, "how many there are")
    role: Literal["trainer", "client", "auxiliary"] = choice(
        "trainer", "a client cannot be reached, an auxiliary has no gradients", "trainer", "client", "auxiliary"
    )
    upload: Rate = described(..., "rate of sending", _RATE_WORDS)
    download: Rate | None = described(None, "rate of receiving; as upload if left out", _RATE_WORDS)
    samples_per_second: Real = real(0.0, 0.0, 1e9, "speed of computing")
    site: Name | None = described(None, "where they are", "a text of 1 to 64 printable characters")
    receives: bool = described(True, "whether it needs the result", "true or false")


class _Path(Section):
    """One [[paths]] table."""

    between: Annotated[tuple[Name, ...], Field(strict=False, min_length=1, max_length=2)] = described(
        ..., "the classes or sites of both ends", "a list of one or two names or sites of [[peers]]"
    )
    rate: Annotated[str, AfterValidator(_check_rate)] = described(
        ..., "limit in each direction", f'{_RATE_WORDS}, or "{NO_PATH}"'
    )


class _Head(Section):
    """What is above the tables."""

    target_batch_size: int = whole(..., 1, 10**9, "samples of a step, all peers together")
    strategy: Annotated[str, AfterValidator(_check_strategy)] = choice(
        "synchronous", "whether rounds overlap with computing", *STRATEGIES.names()
    )
    parameters: int | None = whole(None, 1, 10**13, "numbers in the vector")
    vector_bytes: int | None = whole(None, 1, 10**14, "size of the vector as it travels, instead of parameters")
    codec: Annotated[str, AfterValidator(_check_codec)] = choice("adaptive", "how parameters travel", *codec_choices())


@dataclass(frozen=True)
class SwarmFile:
    """A file as the planner wants it; `names` are those of the peers, in their order."""

    names: tuple[str, ...]
    rates: SwarmRates
    work: StepWork


def read_swarm_file(path: Path) -> SwarmFile:
    """The peers in a TOML file. Raises `ConfigurationError` naming file, key and what is allowed."""
    return parse_swarm(read_toml(path, MAX_FILE_BYTES), str(path))


def parse_swarm(values: Mapping[str, Any], source: str) -> SwarmFile:
    """The same from the file's values; `source` names the file in errors."""
    head = _checked(_Head, {key: value for key, value in values.items() if key not in ("peers", "paths")}, source)
    classes = _tables(_PeerClass, values, "peers", source)
    if not classes:
        raise ConfigurationError(f"{source}: peers: missing; there must be at least one [[peers]] table")
    total = sum(each.count for each in classes)
    if total > MAX_PEERS:
        raise ConfigurationError(f"{source}: peers: {total} peers in all; there may be at most {MAX_PEERS}")
    peers, members = _members(classes, source)
    pairs = _pairs(_tables(_Path, values, "paths", source), members, source)
    names = [
        each.name if each.count == 1 else f"{each.name} {number}"
        for each in classes
        for number in range(1, each.count + 1)
    ]
    overlapped = StrategyChoice(head.strategy).facts.max_in_flight > 0
    work = StepWork(_vector_bytes(head, source), head.target_batch_size, overlapped=overlapped)
    return SwarmFile(tuple(names), SwarmRates(tuple(peers), pairs), work)


def _members(classes: Sequence[_PeerClass], source: str) -> tuple[list[PeerRates], dict[str, list[int]]]:
    """The peers, and which of them each name of a class or a site means."""
    peers: list[PeerRates] = []
    by_class: dict[str, list[int]] = {}
    by_site: dict[str, list[int]] = {}
    for number, each in enumerate(classes, 1):
        if each.name in by_class:
            raise ConfigurationError(f"{source}: [[peers]] number {number}: name = {each.name!r}: used twice")
        by_class[each.name] = list(range(len(peers), len(peers) + each.count))
        if each.site is not None:
            by_site.setdefault(each.site, []).extend(by_class[each.name])
        peers += [_rates(each)] * each.count
    both = [site for site in by_site if site in by_class and by_site[site] != by_class[site]]
    if both:
        raise ConfigurationError(f"{source}: {both[0]!r} is the name of a site and of other peers: choose another")
    return peers, by_class | by_site


def _vector_bytes(head: _Head, source: str) -> float:
    if (head.parameters is None) == (head.vector_bytes is None):
        raise ConfigurationError(f"{source}: give either parameters or vector_bytes")
    if head.parameters is None:
        return float(head.vector_bytes or 0)
    from minga.averaging.codecs.layout import VectorLayout  # brings torch, which is slow to import

    layout = VectorLayout((head.parameters,), head.codec)
    return float(layout.encoded_bytes(0, head.parameters))


def _rates(each: _PeerClass) -> PeerRates:
    upload = parse_rate(each.upload)
    return PeerRates(
        upload=upload,
        download=upload if each.download is None else parse_rate(each.download),
        samples_per_second=0.0 if each.role == "auxiliary" else each.samples_per_second,
        sends=each.role != "auxiliary",
        receives=each.receives,
        aggregates=each.role != "client",
    )


def _pairs(paths: Sequence[_Path], members: Mapping[str, Sequence[int]], source: str) -> dict[tuple[int, int], float]:
    pairs: dict[tuple[int, int], float] = {}
    for number, path in enumerate(paths, 1):
        unknown = [name for name in path.between if name not in members]
        if unknown:
            raise ConfigurationError(
                f"{source}: [[paths]] number {number}: between: {unknown[0]!r} is no name or site of [[peers]]; "
                f"there are: {', '.join(list(members)[:20])}"
            )
        rate = 0.0 if path.rate == NO_PATH else parse_rate(path.rate)
        for one, other in itertools.product(members[path.between[0]], members[path.between[-1]]):
            if one != other:
                pairs[one, other] = pairs[other, one] = rate
    return pairs


Checked = TypeVar("Checked", bound=Section)


def _tables(kind: type[Checked], values: Mapping[str, Any], key: str, source: str) -> list[Checked]:
    tables = values.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigurationError(f"{source}: {key}: must be tables, each under its own [[{key}]]")
    if len(tables) > MAX_CLASSES:
        raise ConfigurationError(f"{source}: {key}: {len(tables)} tables; there may be at most {MAX_CLASSES}")
    return [_checked(kind, table, f"{source}: [[{key}]] number {number}") for number, table in enumerate(tables, 1)]


def _checked(kind: type[Checked], values: Mapping[str, Any], source: str) -> Checked:
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigurationError(explain(error, kind, source)) from error
