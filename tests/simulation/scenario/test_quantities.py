"""Quantities of scenarios: what can be written, what is drawn, what is refused."""

from __future__ import annotations

import random
import re
import statistics

import pytest

from minga.core.errors import ConfigurationError
from minga.core.units import parse_duration, parse_size
from minga.simulation.scenario.sections import Kind, parse_quantity


def draws(text: str, kind: Kind, count: int = 4001) -> list[float]:
    rng = random.Random(7)
    quantity = parse_quantity(text, kind)
    return [quantity.draw(rng) for _ in range(count)]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("30s", 30.0), ("1.5min", 90.0), ("4h", 14_400.0), ("9 d", 777_600.0), ("0s", 0.0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(("text", "size"), [("500MB", 5e8), ("16GiB", 16 * 2.0**30), ("1 kB", 1000.0), ("7B", 7.0)])
def test_sizes(text: str, size: float) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "3", "4 hours", "-1s", "s", "1e3s", "99999999999d", "1h30", "9" * 200 + "s"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ConfigurationError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", "3", "3Mb", "0B", "-1MB", "9999999EB"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ConfigurationError, match="size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [("50Mbit", "rate", 6.25e6), ("4h", "duration", 14_400.0), ("16GB", "size", 16e9), (3, "number", 3.0)],
)  # fmt: skip
def test_constants_are_always_the_same(text: str | float, kind: Kind, value: float) -> None:
    quantity = parse_quantity(text, kind)
    assert {quantity.draw(random.Random(seed)) for seed in range(3)} == {value}
    assert quantity.least == quantity.most == value


@pytest.mark.parametrize("text", ["1234567.8B", "choice 1234567.8B 1234567.8B", "uniform 1234567.8B 1234567.9B"])
def test_no_draw_leaves_what_was_written(text: str) -> None:
    assert all(1234567.8 <= size <= 1234567.9 for size in draws(text, "size", 20))


def test_uniform() -> None:
    drawn = draws("uniform 10Mbit 50Mbit", "rate")
    assert 1.25e6 <= min(drawn) < 1.3e6
    assert 6.2e6 < max(drawn) <= 6.25e6
    assert statistics.mean(drawn) == pytest.approx(3.75e6, rel=0.03)


def test_log_uniform_has_as_many_in_each_decade() -> None:
    drawn = draws("log-uniform 1Mbit 100Mbit", "rate")
    assert sum(rate < 1.25e6 for rate in drawn) == pytest.approx(len(drawn) / 2, rel=0.05)


def test_lognormal_is_cut_off() -> None:
    drawn = draws("lognormal median=10 sigma=0.5 min=4 max=30", "number")
    assert statistics.median(drawn) == pytest.approx(10.0, rel=0.05)
    assert min(drawn) == 4.0
    assert max(drawn) == 30.0


def test_exponential_has_its_mean() -> None:
    assert statistics.mean(draws("exponential 4h", "duration")) == pytest.approx(14_400.0, rel=0.05)
    assert max(draws("exponential 4h max=5h", "duration")) == 18_000.0


def test_choice_by_how_often_it_is_named() -> None:
    drawn = draws("choice 8GB 8GB 16GB", "size")
    assert set(drawn) == {8e9, 16e9}
    assert drawn.count(8e9) == pytest.approx(len(drawn) * 2 / 3, rel=0.05)


def test_equal_seeds_draw_equal_values_of_few_digits() -> None:
    text = "lognormal median=20Mbit sigma=0.7"
    assert draws(text, "rate") == draws(text, "rate")
    assert all(value == float(f"{value:.6g}") for value in draws(text, "rate"))


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("50 M", "rate", "such as 10Mbit"),
        ("fast", "rate", "such as 10Mbit"),
        (50, "rate", "a bare number has no unit"),
        (True, "number", "write a value such as 10, or"),
        ("", "duration", "a value such as 30min"),
        ("uniform 5Mbit", "rate", "two values, the lower one first"),
        ("uniform 5s 3s", "duration", "two values, the lower one first"),
        ("uniform 1 2 min=1", "number", "uniform has no min"),
        ("log-uniform 0 2", "number", "more than 0"),
        ("lognormal 3", "number", "takes median=… and sigma=…"),
        ("lognormal median=3", "number", "takes median=… and sigma=…"),
        ("lognormal median=3 sigma=9", "number", "sigma from 0 to 5"),
        ("lognormal median=3 sigma=1 min=5 max=2", "number", "min must not exceed max"),
        ("exponential", "duration", "takes its mean"),
        ("exponential 0s", "duration", "takes its mean"),
        ("exponential 3s sigma=2", "duration", "takes its mean"),
        ("choice", "size", "values to choose among"),
        ("exponential 3s mean=2s", "duration", "there are median=, sigma=, min= and max=, once each"),
        ("nan", "number", "no number from 0 to 1000000000"),
        ("-3", "number", "no number from 0 to 1000000000"),
        ("1e300", "number", "no number from 0 to 1000000000"),
        ("uniform " + "1 " * 400, "number", "a value such as 10"),
    ],
)
def test_what_is_refused_and_what_is_said(text: str | float, kind: Kind, said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        parse_quantity(text, kind)
