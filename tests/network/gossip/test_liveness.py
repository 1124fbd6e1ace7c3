from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minga.network.gossip.failure_detector import ALIVE_BELOW_PHI, AwakeClock, FailureDetector
from minga.network.interface import PeerId

P = PeerId("aa" * 32)
BEAT_S = 0.5


def feed(detector: FailureDetector, times: list[float]) -> int:
    """Beats at the given times; returns how often the peer was wrongly held for dead just before a beat."""
    accusations = 0
    for number, time in enumerate(times):
        if number and not detector.is_alive(P, time):
            accusations += 1
        detector.heard(P, time)
    return accusations


def steady(count: int, interval_s: float = BEAT_S, start: float = 0.0) -> list[float]:
    return [start + interval_s * i for i in range(count)]


def detection_s(detector: FailureDetector, last: float) -> float:
    time = last
    while detector.is_alive(P, time):
        time += 0.01
    return time - last


@pytest.mark.parametrize("beat_s", [0.5, 1.0])
def test_a_killed_peer_is_detected_within_three_and_a_half_seconds(beat_s: float) -> None:
    detector = FailureDetector(beat_s)
    feed(detector, steady(40, beat_s))
    assert detection_s(detector, 39 * beat_s) < (2.4 if beat_s < 1 else 3.4)


def test_a_peer_that_dies_after_its_first_word_is_detected() -> None:
    detector = FailureDetector(BEAT_S)
    detector.heard(P, 0.0)
    assert 1.0 < detection_s(detector, 0.0) < 3.5


@pytest.mark.parametrize("seed", range(3))
def test_jittery_beats_make_no_accusation(seed: int) -> None:
    generator = random.Random(seed)
    times = [t + generator.uniform(0.0, 0.8) * BEAT_S for t in steady(1500)]
    assert feed(FailureDetector(BEAT_S), times) == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_fifth_of_the_beats_lost_makes_no_accusation_once_learned(seed: int) -> None:
    generator = random.Random(seed)
    times = [t + generator.uniform(0.0, 0.1) for t in steady(1500) if generator.random() > 0.2]
    detector = FailureDetector(BEAT_S)
    feed(detector, times[:60])
    assert feed(detector, times[60:]) == 0


def test_ten_times_slower_beats_are_learned_from_few() -> None:
    detector = FailureDetector(BEAT_S)
    feed(detector, steady(50))
    slow = steady(60, 10 * BEAT_S, start=50 * BEAT_S)
    assert feed(detector, slow[:5]) <= 3
    assert feed(detector, slow[5:]) == 0


def test_a_growing_swarm_that_beats_more_slowly_by_agreement_makes_no_accusation() -> None:
    detector, time = FailureDetector(BEAT_S), 0.0
    for number in range(200):
        detector.beat_s = BEAT_S + 0.01 * number
        time += detector.beat_s
        assert number == 0 or detector.is_alive(P, time)
        detector.heard(P, time)
    assert detector.patience_s(P) < detector.beat_s + 5.0


def test_more_patience_is_due_at_once_when_the_swarm_turns_out_to_be_larger() -> None:
    detector = FailureDetector(BEAT_S)
    detector.heard(P, 0.0)  # a newcomer hears of a large swarm before it can know its size
    detector.beat_s = 4.0
    assert detector.is_alive(P, 8.0)
    detector.beat_s = 0.5
    assert detector.is_alive(P, 8.0)
    detector.heard(P, 8.0)
    assert not detector.is_alive(P, 60.0)


def test_one_stall_does_not_blunt_the_detector_for_long() -> None:
    detector = FailureDetector(BEAT_S)
    feed(detector, steady(40))
    feed(detector, steady(70, start=120.0))
    assert detection_s(detector, 120.0 + 69 * BEAT_S) < 2.4


def test_a_burst_of_quick_records_does_not_make_the_next_pause_deadly() -> None:
    detector = FailureDetector(BEAT_S)
    feed(detector, steady(400, 0.02))
    assert detection_s(detector, 399 * 0.02) > 3 * BEAT_S


def test_a_lost_connection_shortens_patience_until_the_next_beat() -> None:
    detector = FailureDetector(BEAT_S)
    feed(detector, steady(40))
    last = 39 * BEAT_S
    calm = detection_s(detector, last)
    detector.connection_lost(P)
    assert BEAT_S < detection_s(detector, last) < 0.6 * calm
    detector.heard(P, last + BEAT_S)
    assert detection_s(detector, last + BEAT_S) > 0.9 * calm
    detector.connection_lost(PeerId("bb" * 32))  # of whom nothing was ever heard


def test_old_news_is_no_sign_of_life() -> None:
    detector = FailureDetector(BEAT_S)
    detector.heard(P, 100.0, age_s=60.0)
    assert not detector.is_alive(P, 100.0)
    detector.heard(P, 101.0, age_s=math.inf)
    assert not detector.is_alive(P, 101.0)
    detector.heard(P, 102.0, age_s=-5.0)
    assert detector.is_alive(P, 102.0)
    assert detector.silence_s(P, 103.0) == pytest.approx(1.0)


def test_a_neighbour_cannot_make_a_living_peer_look_dead_nor_a_dead_one_alive() -> None:
    detector = FailureDetector(BEAT_S)
    detector.heard(P, 100.0, age_s=60.0)  # a liar was first
    detector.heard_again(P, 100.1, age_s=0.1)
    assert detector.is_alive(P, 100.2)
    for time in range(101, 200):  # later a liar repeats the last version as if it were fresh
        detector.heard_again(P, float(time), age_s=0.0)
    assert detector.silence_s(P, 200.0) == pytest.approx(100.0)


def test_unknown_and_forgotten_peers_are_dead() -> None:
    detector = FailureDetector()
    assert detector.silence_s(P, 0.0) == math.inf
    assert not detector.is_alive(P, 0.0)
    detector.heard(P, 0.0)
    detector.forget(P)
    detector.heard_again(P, 0.0, 0.0)
    assert not detector.is_alive(P, 0.0)
    assert detector.patience_s(P) == 0.0


@given(st.lists(st.floats(0.001, 100.0), min_size=1, max_size=60))
def test_phi_reaches_the_threshold_at_the_deadline(intervals: list[float]) -> None:
    detector, time = FailureDetector(BEAT_S), 0.0
    for interval in intervals:
        time += interval
        detector.heard(P, time)
    patience = detector.patience_s(P)
    beats = detector._beats[P]
    phi = math.log10(1.0 + math.exp(math.pi * (patience - beats.mean) / (math.sqrt(3.0) * beats.deviation)))
    assert phi == pytest.approx(ALIVE_BELOW_PHI, rel=1e-6)
    assert detector.is_alive(P, time + 0.99 * patience)
    assert not detector.is_alive(P, time + 1.01 * patience)


def test_time_slept_through_does_not_count() -> None:
    now = [100.0]
    clock = AwakeClock(lambda: now[0], period_s=0.25)
    assert clock() == 0.0
    for _ in range(40):
        now[0] += 0.25
        assert clock.tick() == 0.0
    assert clock() == pytest.approx(10.0)
    now[0] += 60.0  # stopped
    assert clock() == pytest.approx(10.5)
    assert clock.tick() == pytest.approx(59.5)
    now[0] += 0.1
    assert clock() == pytest.approx(10.6)
