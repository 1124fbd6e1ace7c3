"""Sizes, rates, durations and counts as people write and read them.

Decimal prefixes (k, M, G, T) are powers of 1000, binary ones (Ki, Mi, Gi, Ti) powers of 1024. The case of a prefix does
not matter; that of `b` and `B` does: `Mb` and `Mbit` are bits, `MB` are bytes. A unit that could mean two things is
refused instead of guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sized

from minga.core.errors import ConfigurationError

_PREFIXES = {
    "": 1,
    **{p: 1000**i for i, p in enumerate("kmgt", 1)},
    **{f"{p}i": 1024**i for i, p in enumerate("kmgt", 1)},
}
_NUMBER = r"(\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})"
_RATE = re.compile(rf"{_NUMBER}\s*([kmgtKMGT][iI]?)?(b|B|(?i:bits?|bytes?))\s*(?i:/\s*s(?:ec)?|ps)?", re.ASCII)
_SIZE = re.compile(rf"{_NUMBER}\s*([kmgtKMGT][iI]?)?(?:B|(?i:bytes?))", re.ASCII)
_DURATION = re.compile(rf"{_NUMBER}\s*(ms|s|min|h|d)", re.ASCII)
_DURATION_UNITS_S = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

MAX_RATE_BYTES_PER_S = 1e15
MAX_SIZE_BYTES = 1e18
MAX_DURATION_S = 1e9


def parse_rate(value: str | float, name: str = "rate") -> float:
    """Bytes per second of a rate such as `10Mbit`, `1.5 Gbit/s`, `20Mbps` or `200kB/s`; a bare number is bytes/s.

    A bare number in a *string* is refused, since it may mean bits or bytes. `name` is what the message of a
    `ConfigurationError` calls the value.
    """
    hint = "write bits or bytes per second, such as 10Mbit, 1.5 Gbit/s or 200kB/s"
    if not isinstance(value, str):
        number = _plain_number(value, name, hint)
    else:
        match = _RATE.fullmatch(_stripped(value))
        if match is None:
            raise ConfigurationError(f"{name} = {_quote(value)} is not a rate: {hint}")
        bits = match[3] == "b" or match[3].lower().startswith("bit")
        number = float(match[1]) * _PREFIXES[(match[2] or "").lower()] / (8.0 if bits else 1.0)
    if not 0.0 < number <= MAX_RATE_BYTES_PER_S:
        raise ConfigurationError(
            f"{name} = {_quote(value)} is out of range: it must be more than 0, at most 8000 Tbit/s"
        )
    return number


def parse_size(value: str, name: str = "size") -> float:
    """Bytes of a size such as `16GB` (10^9) or `16GiB` (2^30); `name` as in `parse_rate`."""
    hint = "write bytes, such as 500MB or 16GiB"
    match = _SIZE.fullmatch(_stripped(value))
    if match is None:
        raise ConfigurationError(f"{name} = {_quote(value)} is not a size: {hint}")
    number: float = float(match[1]) * _PREFIXES[(match[2] or "").lower()]
    if not 0.0 < number <= MAX_SIZE_BYTES:
        raise ConfigurationError(f"{name} = {_quote(value)} is out of range: it must be more than 0, at most 1 EB")
    return number


def parse_duration(value: str, name: str = "duration") -> float:
    """Seconds of a duration such as `250ms`, `30s`, `5min`, `4h` or `9d`; `name` as in `parse_rate`."""
    match = _DURATION.fullmatch(_stripped(value))
    if match is None:
        raise ConfigurationError(f"{name} = {_quote(value)} is not a duration: write ms, s, min, h or d, such as 5min")
    number = float(match[1]) * _DURATION_UNITS_S[match[2]]
    if number > MAX_DURATION_S:
        raise ConfigurationError(f"{name} = {_quote(value)} is out of range: it must be at most 1e9 s")
    return number


def format_size(size_bytes: float) -> str:
    """A size in bytes for people, three significant digits: `1.5 kB`, `64 MB`.

    Prefixes are decimal as those of rates are, and of the 50GB/month that people write: figures can be compared.
    """
    return _scaled(size_bytes, ("B", "kB", "MB", "GB", "TB"))


def format_rate(bytes_per_s: float) -> str:
    """A rate in bits per second for people, decimal prefixes, three significant digits: `19.8 Mbit/s`."""
    return _scaled(8.0 * bytes_per_s, ("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"))


def format_duration(duration_s: float) -> str:
    """A duration in seconds for people, in at most two units: `250 ms`, `4.2 s`, `1 min 30 s`, `3 h 5 min`, `2 d`."""
    if not math.isfinite(duration_s):
        return "forever" if duration_s > 0 else "unknown"
    if duration_s < 0:
        return f"-{format_duration(-duration_s)}"
    if duration_s < 0.9995:
        return f"{duration_s * 1000:.3g} ms"
    if duration_s < 59.95:
        return f"{duration_s:.3g} s"
    seconds = round(duration_s)
    for big_s, big, small_s, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= big_s:
            rest = (seconds % big_s) // small_s
            return f"{seconds // big_s} {big}" + (f" {rest} {small}" if rest else "")
    return f"{seconds} s"


def format_number(value: float) -> str:
    """A number for people, three significant digits and no exponent: `0.0123`, `4.56`, `16,400`."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100.0 or not math.isfinite(rounded) else f"{rounded:.3g}"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """So many of something: `1 step`, `2,000 steps`, or by its own plural `2 batches`."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def and_others(names: Sized) -> str:
    """What follows the first of some `names` in a sentence: ` (and 2 others)`, or nothing."""
    more = len(names) - 1
    return f" (and {counted(more, 'other')})" if more else ""


def _stripped(text: str) -> str:
    """The text without surrounding blanks; nothing, which no pattern accepts, if it is absurdly long."""
    text = text.strip()
    return text if len(text) <= 100 else ""


def _plain_number(value: float, name: str, hint: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigurationError(f"{name} = {_quote(value)} is not a finite number: {hint}")
    return value


def _scaled(value: float, units: tuple[str, ...]) -> str:
    if not math.isfinite(value):
        return f"? {units[0]}"
    exponent = 0
    # 999.5 would be printed as 1e+03
    while abs(value) >= 999.5 and exponent < len(units) - 1:
        value /= 1000.0
        exponent += 1
    digits = f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"
    return f"{digits} {units[exponent]}"


def _quote(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
