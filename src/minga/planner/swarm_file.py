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
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, PlainValidator, ValidationError

from minga.averaging.codecs.registry import canonical_codec, codec_choices
from minga.averaging.planning.contributor_choice import StepWork
from minga.averaging.solver.division import PeerRates, SwarmRates
from minga.averaging.strategy_choice import STRATEGIES, StrategyChoice
from minga.core.errors import ConfigurationError
from minga.core.files import read_toml
from minga.core.spec.fields import Printable, Real, Section, any_of, choice, described, real, whole
from minga.core.spec.problems import explain
from minga.core.units import parse_rate
from minga.planner.peer_text import MAX_PEERS

MAX_FILE_BYTES: Final = 1 << 20
MAX_CLASSES: Final = 1000
NO_PATH: Final = "none"

_RATE_WORDS = 'a rate such as "20Mbit" or "1.5 Gbit/s"'


def _read_rate(value: object) -> float:
    if not isinstance(value, str):
        raise ValueError(f"must be {_RATE_WORDS}")
    try:
        return parse_rate(value)
    except ConfigurationError as error:
        raise ValueError(str(error)) from error


def _read_limit(value: object) -> float:
    return 0.0 if value == NO_PATH else _read_rate(value)


def _check_codec(name: str) -> str:
    try:
        return canonical_codec(name)
    except ConfigurationError as error:
        raise ValueError(str(error)) from error


def _check_strategy(name: str) -> str:
    if name not in STRATEGIES.names():
        raise ValueError(f"must be one of {', '.join(STRATEGIES.names())}")
    return name


Rate = Annotated[float, PlainValidator(_read_rate)]
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


class _Path(Section):
    """One [[paths]] table."""

    between: Annotated[tuple[Name, ...], Field(strict=False, min_length=1, max_length=2)] = described(
        ..., "the classes or sites of both ends", "a list of one or two names or sites of [[peers]]"
    )
    rate: Annotated[float, PlainValidator(_read_limit)] = described(
        ..., "limit in each direction", f'{_RATE_WORDS}, or "{NO_PATH}"'
    )


class _SwarmTables(Section):
    """A whole file."""

    target_batch_size: int = whole(..., 1, 10**9, "samples of a step, all peers together")
    strategy: Annotated[str, AfterValidator(_check_strategy)] = described(
        "synchronous", "whether rounds overlap with computing", any_of(STRATEGIES.names())
    )
    parameters: int | None = whole(None, 1, 10**13, "numbers in the vector")
    vector_bytes: int | None = whole(None, 1, 10**14, "size of the vector as it travels, instead of parameters")
    codec: Annotated[str, AfterValidator(_check_codec)] = described(
        "adaptive", "how parameters travel", any_of(codec_choices())
    )
    peers: Annotated[tuple[_PeerClass, ...], Field(strict=False, min_length=1, max_length=MAX_CLASSES)] = described(
        ..., "classes of equal peers", f"1 to {MAX_CLASSES} tables, each under its own [[peers]]"
    )
    paths: Annotated[tuple[_Path, ...], Field(strict=False, max_length=MAX_CLASSES)] = described(
        (), "limits of paths", f"at most {MAX_CLASSES} tables, each under its own [[paths]]"
    )


@dataclass(frozen=True)
class SwarmFile:
    """A file as the planner wants it; `names` are those of the peers, in their order."""

    names: tuple[str, ...]
    rates: SwarmRates
    work: StepWork


def read_swarm_file(path: Path) -> SwarmFile:
    """The peers in a TOML file. Raises `ConfigurationError` naming file, key and what is allowed."""
    values, source = read_toml(path, MAX_FILE_BYTES), str(path)
    try:
        tables = _SwarmTables.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError(explain(error, _SwarmTables, source)) from error
    total = sum(each.count for each in tables.peers)
    if total > MAX_PEERS:
        raise ConfigurationError(f"{source}: peers: {total} peers in all; there may be at most {MAX_PEERS}")
    peers, members = _members(tables.peers, source)
    pairs = _pairs(tables.paths, members, source)
    names = [
        each.name if each.count == 1 else f"{each.name} {number}"
        for each in tables.peers
        for number in range(1, each.count + 1)
    ]
    facts, sizes = StrategyChoice(tables.strategy).facts, _sizes(tables, source)
    overlapped, takes_best = facts.max_in_flight > 0, facts.contributors == "best"
    unequal = sizes if sizes[0] != sizes[1] else None
    work = StepWork(max(sizes), tables.target_batch_size, overlapped, unequal, takes_best)
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


def _sizes(tables: _SwarmTables, source: str) -> tuple[float, float]:
    """Bytes of a contribution and of a mean."""
    if (tables.parameters is None) == (tables.vector_bytes is None):
        raise ConfigurationError(f"{source}: give either parameters or vector_bytes")
    if tables.parameters is None:
        return float(tables.vector_bytes or 0), float(tables.vector_bytes or 0)
    from minga.averaging.codecs.layout import VectorLayout  # brings torch, which is slow to import

    layout = VectorLayout((tables.parameters,), tables.codec)
    return float(layout.upload_bytes(0, layout.total)), float(layout.download_bytes(0, layout.total))


def _rates(each: _PeerClass) -> PeerRates:
    return PeerRates(
        upload=each.upload,
        download=each.upload if each.download is None else each.download,
        samples_per_second=0.0 if each.role == "auxiliary" else each.samples_per_second,
        sends=each.role != "auxiliary",
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
        for one, other in itertools.product(members[path.between[0]], members[path.between[-1]]):
            if one != other:
                pairs[one, other] = pairs[other, one] = path.rate
    return pairs
