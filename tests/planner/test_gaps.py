"""The table of gaps: what it says, what is between its rows, and what a gap costs."""

from __future__ import annotations

import math

import pytest

from minga.planner.ways import OWN, Gap, compared_ways, gap_of


def test_ways_of_minga_s_own_have_gaps_and_others_none() -> None:
    reference = gap_of("synchronous", "float16")
    assert reference == Gap(0.0, 0.0, "reference")
    assert reference.extra_samples == 1.0
    assert all(way.gap is not None for way in OWN)
    assert gap_of("another", "float16") is None
    assert gap_of("synchronous", "another") is None
    assert gap_of("another", "another") is None


def test_gaps_of_strategy_and_codec_add_up_and_are_as_sure_as_the_less_sure_one() -> None:
    alone, codec = gap_of("delayed", "float16"), gap_of("synchronous", "int4")
    assert alone is not None
    assert codec is not None
    assert gap_of("delayed", "int4") == alone + codec
    assert (Gap(0.0, 1.0, "measured") + Gap(1.0, 1.0, "literature")).basis == "literature"


def test_between_two_numbers_of_local_steps_the_logarithm_counts() -> None:
    few, many = gap_of("local", "float16", batches=20), gap_of("local", "float16", batches=100)
    between = gap_of("local", "float16", batches=45)
    assert few is not None
    assert many is not None
    assert between is not None
    share = math.log(45 / 20) / math.log(5)
    assert between.most == pytest.approx(few.most + share * (many.most - few.most))
    assert gap_of("local", "float16", batches=1000) == many
    assert gap_of("local", "float16", batches=2) == few


def test_a_strategy_or_a_codec_that_is_asked_for_is_compared_alone() -> None:
    assert {way.strategy.name for way in compared_ways("delayed")} == {"delayed"}
    found = compared_ways(codec="float32")
    assert {way.codec for way in found} == {"float32"}
    assert len({(way.name, str(way.strategy.table)) for way in found}) == len(found)
    assert {way.codec for way in compared_ways("elastic")} == {"adaptive", "float16", "int8", "float32"}
