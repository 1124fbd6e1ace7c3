"""Peers described in one line of text, for plans of runs that do not exist yet.

    20x(t4, up=50Mbit, down=200Mbit); 4x(a100, 1Gbit, latency=5ms); 2x(aux, 1Gbit)

Classes of equal peers are separated by semicolons: how many, an x, and in parentheses, separated by commas, what each
of them is. The count may be left out for a single peer. Each of these may come once:

    a device           see `minga.planner.devices`; not needed with samples_per_s, not possible with aux
    RATE               of the line in both directions, or up=RATE and down=RATE (down is as up if left out)
    latency=20ms       one way, to the middle of the internet: a round trip between two peers is twice the sum of theirs
    client or nat      it cannot be dialled, so it reduces nothing for others
    aux                it computes no gradients, and only reduces
    samples_per_s=10   speed of computing, instead of the device's
    micro_batch=16     samples for each backward pass, instead of what suits the device
    memory=16GiB       of the device, instead of the usual one
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from minga.core.errors import ConfigurationError
from minga.core.units import parse_duration, parse_rate, parse_size
from minga.planner.devices import DEVICES

MAX_PEERS: Final = 1000
MAX_CLASSES: Final = 100
MAX_CHARACTERS: Final = 20_000
MAX_MICRO_BATCH: Final = 1 << 20
MAX_LATENCY_S: Final = 10.0
MAX_MEMORY_BYTES: Final = 1 << 50
USUAL_LATENCY_S: Final = 0.02

Role = Literal["trainer", "client", "auxiliary"]

_CLASS = re.compile(r"\s*(?:(\d{1,9})\s*[xX*]\s*)?\(([^()]*)\)\s*")
_ROLES: Final[dict[str, Role]] = {
    "client": "client",
    "nat": "client",
    "aux": "auxiliary",
    "auxiliary": "auxiliary",
    "trainer": "trainer",
}
_ALLOWED: Final = (
    "a device, a rate such as 100Mbit, up=RATE, down=RATE, latency=20ms, client, nat, aux, samples_per_s=NUMBER, "
    "micro_batch=NUMBER, memory=16GiB"
)
_NAMES: Final = {"both": "rate", "latency_s": "latency", "memory_bytes": "memory"}
_FIELDS: Final = {"latency": "latency_s", "memory": "memory_bytes"}
_EXAMPLE: Final = "20x(t4, up=50Mbit, down=200Mbit); 4x(a100, 1Gbit)"


@dataclass(frozen=True)
class PeerClass:
    """Equal peers as they were described. Rates are in bytes per second; None where nothing was said.

    `text` is what was written, `place` the number of the character (from 1) at which that begins.
    """

    text: str
    place: int
    count: int
    upload: float
    download: float
    role: Role = "trainer"
    device: str | None = None
    latency_s: float = USUAL_LATENCY_S
    samples_per_s: float | None = None
    micro_batch: int | None = None
    memory_bytes: int | None = None


def parse_peers(text: str) -> tuple[PeerClass, ...]:
    """The classes of peers that `text` describes; devices are not looked up.

    Raises `ConfigurationError` that says at which character something is wrong, and what is allowed there.
    """
    if len(text) > MAX_CHARACTERS:
        raise ConfigurationError(f"--peers: more than {MAX_CHARACTERS} characters")
    classes = [_parse_class(place, piece) for place, piece in _pieces(text, 0, ";") if piece.strip()]
    if not classes:
        raise ConfigurationError(f"--peers: nobody is described; write for example {_EXAMPLE!r}")
    if len(classes) > MAX_CLASSES:
        raise ConfigurationError(f"--peers: {len(classes)} classes of peers; there may be at most {MAX_CLASSES}")
    total = sum(each.count for each in classes)
    if total > MAX_PEERS:
        raise ConfigurationError(f"--peers: {total} peers in all; there may be at most {MAX_PEERS}")
    return tuple(classes)


def _pieces(text: str, start: int, separator: str) -> Iterator[tuple[int, str]]:
    """The pieces between separators, each with its place in the whole text, which `text` begins at `start`."""
    for piece in text.split(separator):
        yield start, piece
        start += len(piece) + len(separator)


def _refuse(place: int, piece: str, why: str) -> ConfigurationError:
    skipped = len(piece) - len(piece.lstrip())
    shown = piece.strip()
    shown = repr(shown if len(shown) <= 60 else f"{shown[:57]}...")
    return ConfigurationError(f"--peers: at character {place + skipped + 1}, {shown}: {why}")


def _parse_class(place: int, piece: str) -> PeerClass:
    match = _CLASS.fullmatch(piece)
    if match is None:
        raise _refuse(place, piece, f"a class of peers looks like 4x(t4, 100Mbit), and a ; separates two: {_EXAMPLE!r}")
    count = int(match[1] or 1)
    if not 1 <= count <= MAX_PEERS:
        raise _refuse(place, piece, f"there may be 1 to {MAX_PEERS} peers")
    values: dict[str, Any] = {}
    for at, word in _pieces(match[2], place + match.start(2), ","):
        key, value = _parse_word(at, word)
        if key in values:
            raise _refuse(at, word, f"the {_NAMES.get(key, key)} was given before")
        values[key] = value
    return _checked(place, piece, count, values)


def _checked(place: int, piece: str, count: int, values: dict[str, Any]) -> PeerClass:
    both, up, down = (values.pop(key, None) for key in ("both", "up", "down"))
    if both is not None and (up is not None or down is not None):
        raise _refuse(place, piece, "give one rate for both directions, or up= and down=")
    upload = up if both is None else both
    if upload is None:
        raise _refuse(
            place, piece, "the upload rate is missing: add one rate for both directions, such as 100Mbit, or up="
        )
    download = upload if down is None else down
    if values.get("role") == "auxiliary":
        extra = [_NAMES.get(key, key) for key in ("device", "samples_per_s", "micro_batch") if key in values]
        if extra:
            raise _refuse(place, piece, f"an auxiliary computes no gradients, so it has no {extra[0]}")
    elif "device" not in values and "samples_per_s" not in values:
        raise _refuse(place, piece, "the device is missing: add one such as t4, or samples_per_s=, or aux")
    skipped = len(piece) - len(piece.lstrip())
    return PeerClass(piece.strip(), place + skipped + 1, count, upload, download, **values)


def _parse_word(place: int, word: str) -> tuple[str, Any]:
    """What one of the words between the commas sets, and to what."""
    bare = word.strip()
    if not bare:
        raise _refuse(place, word, f"nothing stands between two commas; there may be: {_ALLOWED}")
    key, is_set, value = (part.strip() for part in bare.partition("="))
    if is_set:
        reader = _READERS.get(key.lower())
        if reader is None:
            raise _refuse(place, word, f"{key!r} cannot be set; there may be: {_ALLOWED}")
        try:
            return _FIELDS.get(key.lower(), key.lower()), reader(value)
        except (ConfigurationError, ValueError) as error:
            raise _refuse(place, word, str(error)) from error
    if bare.lower() in _ROLES:
        return "role", _ROLES[bare.lower()]
    try:
        return "both", parse_rate(bare)
    except ConfigurationError as error:
        if re.fullmatch(r"[\d.]+\s*[kmgtKMGT]?[iI]?(?:b|B|bits?|bytes?)(?:/s|ps)?", bare):  # one that is out of range
            raise _refuse(place, word, str(error)) from error
    is_number = bare.isdigit() and bare not in DEVICES  # a rate whose unit was forgotten
    if is_number or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}", bare):
        raise _refuse(place, word, f"neither a device nor a rate with its unit; there may be: {_ALLOWED}")
    return "device", bare.lower()


def _rate(value: str) -> float:
    return parse_rate(value, "the rate")


def _latency(value: str) -> float:
    with contextlib.suppress(ConfigurationError):
        if (seconds := parse_duration(value)) <= MAX_LATENCY_S:
            return seconds
    raise ValueError(f"a latency is written like 20ms or 0.1s, at most {MAX_LATENCY_S:g} s")


def _speed(value: str) -> float:
    speed = float(value) if re.fullmatch(r"\d{1,10}(\.\d{1,9})?", value, re.ASCII) else 0.0
    if not 0.0 < speed <= 1e9:
        raise ValueError("samples_per_s is a number such as 12.5, above 0 and at most 1000000000")
    return speed


def _micro_batch(value: str) -> int:
    number = int(value) if re.fullmatch(r"\d{1,9}", value, re.ASCII) else 0
    if not 1 <= number <= MAX_MICRO_BATCH:
        raise ValueError(f"micro_batch is a whole number from 1 to {MAX_MICRO_BATCH}")
    return number


def _memory(value: str) -> int:
    with contextlib.suppress(ConfigurationError):
        if 1.0 <= (size := parse_size(value)) <= MAX_MEMORY_BYTES:
            return int(size)
    raise ValueError("a memory is written like 16GiB or 900MB, at most 1024TiB")


_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "up": _rate,
    "down": _rate,
    "latency": _latency,
    "samples_per_s": _speed,
    "micro_batch": _micro_batch,
    "memory": _memory,
}
