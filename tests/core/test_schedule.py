"""Caps that depend on the time of day."""

from __future__ import annotations

import contextlib
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minga.core.errors import ConfigurationError
from minga.core.rate_cap import SLOWEST_CAP_BYTES_PER_S, DailyWindow, RateCap


def test_a_rate_alone_holds_always() -> None:
    cap = RateCap.parse("10Mbit", "--max-upload")
    assert cap == RateCap(1.25e6) == RateCap.parse(1.25e6) == RateCap.parse(cap)
    assert {cap.at(minute) for minute in range(1440)} == {1.25e6}
    assert cap.now(0.0) == 1.25e6


def test_more_at_night() -> None:
    cap = RateCap.parse("8Mbit, 40 Mbit/s 23:00-07:00")
    assert [cap.at(60 * hour) for hour in (0, 6.99, 7, 12, 22.99, 23)] == [5e6, 5e6, 1e6, 1e6, 1e6, 5e6]


def test_several_windows_in_any_order() -> None:
    cap = RateCap.parse("8Mbit 8:00-12:00, unlimited ,16Mbit 12:00 - 24:00")
    assert [cap.at(60 * hour) for hour in (0, 7.99, 8, 11.99, 12, 23.99)] == [math.inf, math.inf, 1e6, 1e6, 2e6, 2e6]
    assert cap.windows == (DailyWindow(480, 720, 1e6), DailyWindow(720, 1440, 2e6))


def test_times_are_those_of_this_place() -> None:
    cap = RateCap.parse("8Mbit, 16Mbit 03:00-04:00")
    inside = time.mktime((2026, 3, 3, 3, 30, 0, 0, 0, -1))
    assert [cap.now(inside + hours * 3600.0) for hours in (-1, 0, 1)] == [1e6, 2e6, 1e6]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a rate"),
        ("fast", "not a rate"),
        ("10", "not a rate"),
        ("10M", "not a rate"),
        ("0 bit/s", "more than 0"),
        ("-5Mbit", "not a rate"),
        ("90kbit", "less than 100 kbit/s"),
        ("10Mbit, 1kbit 23:00-07:00", "to pause, leave the run"),
        ("10Mbit 23:00-07:00", "no entry without times"),
        ("10Mbit, 20Mbit", "more than one entry without times"),
        ("10Mbit, 20Mbit 25:00-07:00", "no such time"),
        ("10Mbit, 20Mbit 24:01-07:00", "no such time"),
        ("10Mbit, 20Mbit 23:60-07:00", "no such time"),
        ("10Mbit, 20Mbit 07:00-07:00", "begins when it ends"),
        ("10Mbit, 20Mbit 24:00-00:00", "begins when it ends"),
        ("10Mbit, 20Mbit 23:00", "not a rate"),
        ("10Mbit, 20Mbit 23:00-07:00, 30Mbit 06:59-08:00", "two entries hold at 06:59"),
        ("10Mbit, 20Mbit 08:00-09:00, 30Mbit 08:00-09:00", "two entries hold at 08:00"),
        ("10Mbit,", "not a rate"),
        ("1Mbit," * 300, "characters"),
        (
            "1Mbit" + "".join(f", 2Mbit {h:02}:{m:02}-{h:02}:{m + 1:02}" for h in range(13) for m in (1, 3)),
            "24 at most",
        ),
    ],
)
def test_bad_caps_are_named(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=f"--max-upload.*{words}"):
        RateCap.parse(text, "--max-upload")


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, True, None, [1]])
def test_bad_numbers_are_named(value: object) -> None:
    with pytest.raises(ConfigurationError, match="max_upload"):
        RateCap.parse(value, "max_upload")  # type: ignore[arg-type]


@given(st.text(alphabet="0123456789:-, MGkbit unlmed", max_size=60))
def test_anything_is_a_cap_or_a_configuration_error(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        cap = RateCap.parse(text)
        assert all(cap.at(minute) >= SLOWEST_CAP_BYTES_PER_S for minute in range(0, 1440, 7))
