"""Curves and lists of bounded length, and how viewers keep up with them."""

from __future__ import annotations

import math
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from minga.dashboard.model.series import SHOWN, TAIL, Journal, Series, SpeedByPeer, fastest


def columns(series: Series) -> dict[str, list[float | None]]:
    return dict(series.document()["columns"])


@given(st.integers(4, 20), st.integers(1, 700))
def test_a_long_curve_covers_the_whole_run_by_means_of_its_points(most: int, count: int) -> None:
    series = Series({"t": "last", "loss": "mean"}, most_points=most)
    for moment in range(count):
        series.add(t=moment, loss=float(moment))
    found = columns(series)
    times, losses = found["t"], found["loss"]
    assert len(times) <= most
    assert times[-1] == count - 1
    begin = 0
    for time, loss in zip(times, losses, strict=True):
        assert time is not None
        assert loss is not None
        assert math.isclose(loss, (begin + time) / 2, rel_tol=1e-5), (
            "each point is the mean of those since the one before"
        )
        begin = int(time) + 1


def test_values_that_are_no_numbers_leave_a_hole() -> None:
    series = Series({"t": "last", "loss": "mean"})
    series.add(t=1.0, loss=math.nan)
    series.add(t=2.0)
    series.add(t=3.0, loss=math.inf)
    assert columns(series)["loss"] == [None, None, None]


class Viewer:
    """What the page does with the messages, see store.js."""

    def __init__(self, series: Series) -> None:
        self.series, self.fetched = series, 0
        self.fetch()

    def fetch(self) -> None:
        self.known: Any = self.series.document()
        self.fetched += 1

    def take(self) -> None:
        tail = self.series.document(tail=True)
        length = len(self.known["columns"]["t"])
        if self.known["epoch"] != tail["epoch"] or tail["from"] > length:
            self.fetch()
            return
        for name, values in tail["columns"].items():
            self.known["columns"][name][tail["from"] :] = values


@given(st.lists(st.integers(0, 12), max_size=60))
def test_a_viewer_that_takes_the_ends_has_the_whole_curve(added: list[int]) -> None:
    series = Series({"t": "last", "loss": "mean"}, most_points=16)
    series.add(t=0.0, loss=0.0)
    viewer, moment = Viewer(series), 0
    for count in added:
        for _ in range(count):
            moment += 1
            series.add(t=moment, loss=moment * 0.5)
        viewer.take()
        assert viewer.known["columns"] == columns(series)


def test_a_journal_keeps_the_newest_and_counts_all() -> None:
    journal = Journal(20)
    for number in range(50):
        journal.add({"number": number})
    assert [entry["number"] for entry in journal] == list(range(30, 50))
    tail = journal.document(tail=True)
    assert (tail["total"], len(tail["entries"])) == (50, TAIL)


def test_speeds_by_peer_are_those_of_the_fastest_and_a_rest() -> None:
    rates = SpeedByPeer(most_points=10)
    for moment in range(100):
        best, others = fastest({f"{number:064x}": 1.0 + number for number in range(50)})
        assert len(best) == SHOWN
        rates.add(moment, best, others)
    document = rates.document()
    assert len(document["t"]) <= 10
    assert document["t"][0] == 0
    total = sum(one["rates"][-1] for one in document["peers"]) + document["others"][-1]
    assert total == sum(1.0 + number for number in range(50))


def test_peers_that_are_among_the_fastest_by_turns_are_others() -> None:
    rates, rng = SpeedByPeer(), random.Random(1)
    for moment in range(300):
        speeds = {f"{number:064x}": 40.0 + rng.gauss(0.0, 2.0) for number in range(50)}
        speeds |= {"steady": 90.0} | ({"late": 80.0} if moment >= 150 else {})
        rates.add(moment, *fastest(speeds))
    document = rates.document()
    assert [one["peer"] for one in document["peers"]] == ["steady", "late"]
    assert document["peers"][1]["rates"] == [0.0] * 150 + [80.0] * 150
    assert min(document["others"]) > 45 * 40.0


def test_those_who_came_one_after_the_other_are_all_shown() -> None:
    rates = SpeedByPeer()
    for moment in range(500):
        rates.add(moment, *fastest({f"{moment // 100:064x}": 100.0}))
    document = rates.document()
    assert len(document["peers"]) == 5
    assert set(document["others"]) == {0.0}


def test_who_claims_any_speed_for_a_moment_displaces_nobody() -> None:
    rates = SpeedByPeer()
    for moment in range(100):
        speeds = {f"{number:064x}": 10.0 for number in range(SHOWN)}
        if moment >= 80:
            speeds[f"liar {moment // 2}"] = 1e6
        rates.add(moment, *fastest(speeds))
    assert [one["peer"] for one in rates.document()["peers"]] == [f"{number:064x}" for number in range(SHOWN)]


def test_speeds_from_a_file_that_make_no_sense_are_left_out() -> None:
    rates = SpeedByPeer()
    rates.add(1.0, {"a": "fast", "b": math.nan, "c": -5.0, "d": 2.0}, math.inf)
    document = rates.document()
    assert [one["peer"] for one in document["peers"]] == ["d"]
    assert document["others"] == [0.0]
