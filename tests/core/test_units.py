from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minga.core.errors import ConfigurationError
from minga.core.units import (
    counted,
    format_duration,
    format_number,
    format_size,
    parse_rate,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10Mbit", 1.25e6),
        ("1.5 Gbit/s", 1.875e8),
        ("200kB/s", 2e5),
        ("20Mbps", 2.5e6),
        ("20 MBps", 2e7),
        ("3 KiB/s", 3072.0),
        ("10 MBIT/S", 1.25e6),
        ("8 bits / sec", 1.0),
        (" .5 kB ", 500.0),
        (1000, 1000.0),
        (0.5, 0.5),
    ],
)
def test_rates(text: str | float, expected: float) -> None:
    assert parse_rate(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        " ",
        "fast",
        "-1",
        "-5MB",
        "1e3MB",
        "1..5MB",
        "10 parsecs",
        "10MB/h",
        "\u0661\u0660MB",
        "nan",
        "inf",
        "0x10",
        "1,5MB",
        "9" * 40,
        "1.5" + " " * 200 + "x",
        math.nan,
        math.inf,
        -1,
        True,
        None,
        [1],
    ],
)
def test_bad_values_are_named(bad: object) -> None:
    with pytest.raises(ConfigurationError, match="--option = "):
        parse_rate(bad, "--option")  # type: ignore[arg-type]


def test_ambiguous_units_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="not a rate"):
        parse_rate("100")
    with pytest.raises(ConfigurationError, match="not a rate"):
        parse_rate("10M")


def test_out_of_range() -> None:
    with pytest.raises(ConfigurationError, match="more than 0"):
        parse_rate("0 bit/s")


def test_formats() -> None:
    assert [format_number(value) for value in (0.01234, 4.561, 99.96, 16_384, math.inf)] == [
        "0.0123",
        "4.56",
        "100",
        "16,400",
        "inf",
    ]
    assert [format_size(n) for n in (0, 999, 1000, 1536, 999_600, 64e6, 50e9, 2e18)] == [
        "0 B",
        "999 B",
        "1 kB",
        "1.54 kB",
        "1 MB",
        "64 MB",
        "50 GB",
        "2000000 TB",
    ]
    assert [format_duration(s) for s in (0, 0.25, 4.2, 59.96, 90, 3600, 11_100, 172_800, math.inf, -2)] == [
        "0 ms",
        "250 ms",
        "4.2 s",
        "1 min",
        "1 min 30 s",
        "1 h",
        "3 h 5 min",
        "2 d",
        "forever",
        "-2 s",
    ]
    assert format_size(math.nan).startswith("?")


@given(st.text(max_size=30) | st.floats() | st.integers())
def test_anything_else_is_a_configuration_error(value: str | float) -> None:
    with contextlib.suppress(ConfigurationError):
        assert 0 < parse_rate(value) <= 1e15


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (counted(0, "step"), "0 steps"),
        (counted(1, "step"), "1 step"),
        (counted(2000, "step"), "2,000 steps"),
        (counted(1, "batch waits", "batches wait"), "1 batch waits"),
        (counted(2, "batch waits", "batches wait"), "2 batches wait"),
    ],
)
def test_one_of_something_is_not_several(said: str, text: str) -> None:
    assert said == text
