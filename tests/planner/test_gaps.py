"""The table of gaps: what it says, what is between its rows, and what a gap costs."""

from __future__ import annotations

import math

import msgspec
import pytest

from minga.planner.ways import OWN, Gap, _between, _GapRow, _GapTable, gap_of


def test_ways_of_minga_s_own_have_gaps_and_others_none() -> None:
    reference = gap_of("synchronous", "float16")
    assert reference == Gap(0.0, 0.0, "reference")
    assert reference.extra_samples == 1.0
    assert all(way.gap() is not None for way in OWN)
    assert gap_of("another", "float16") is None
    assert gap_of("synchronous", "another") is None
    assert gap_of("another", "another") is None


def test_a_gap_costs_as_many_samples_as_the_benchmark_took_with_that_optimizer() -> None:
    """Ratios of samples to the target in `gpt`, by which the gaps of its runs are told."""
    assert Gap(18.928, 18.928, "measured").extra_samples == pytest.approx(2.04, rel=0.05)
    for percent, ratio in ((5.733, 1.146), (20.563, 1.60), (23.354, 1.72)):
        assert Gap(percent, percent, "measured", optimizer="muon").extra_samples == pytest.approx(ratio, rel=0.03)
    local, delayed = gap_of("local", "int4", batches=10, optimizer="muon"), gap_of("delayed", "int8", optimizer="muon")
    assert local is not None
    assert delayed is not None
    assert (local.optimizer, delayed.optimizer) == ("muon", "")  # of which nobody measured anything with Muon


def test_gaps_of_strategy_and_codec_add_up_and_are_as_sure_as_the_less_sure_one() -> None:
    alone, codec = gap_of("leader", "float16", batches=64), gap_of("synchronous", "int4")
    assert alone is not None
    assert codec is not None
    assert gap_of("leader", "int4", batches=64) == alone + codec
    both = Gap(0.0, 1.0, "measured", 3) + Gap(1.0, 1.0, "literature", arrives=False)
    assert both == Gap(1.0, 2.0, "literature", 3, arrives=False)
    assert Gap(0.0, 1.0, "measured", 3) + Gap(0.0, 0.0, "measured", 1) == Gap(0.0, 1.0, "measured", 1)


def test_rows_of_an_optimizer_take_the_place_of_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of local steps all of them, also those of other tasks; of synchronous ones those with the same codec."""
    local = _GapRow("local", "int4", (19.0, 19.0), "measured", batches=30, task="gpt")
    int4, int8 = (_GapRow("synchronous", codec, (0.5, 0.5), "measured", task="gpt") for codec in ("int4", "int8"))
    muon = [msgspec.structs.replace(row, percent=(2.0, 2.0), optimizer="muon", task="mini") for row in (local, int4)]
    table = _GapTable("a table", 0.2, (local, int4, int8, *muon))
    monkeypatch.setattr("minga.planner.ways._table", lambda: table)

    def gaps(optimizer: str) -> list[float | None]:
        found = [gap_of("local", "int4", batches=30, optimizer=optimizer)]
        found += [gap_of("synchronous", codec, optimizer=optimizer) for codec in ("int4", "int8")]
        return [gap and gap.most for gap in found]

    assert gaps("") == gaps("lamb") == [19.0, 0.5, 0.5]
    assert gaps("muon") == [2.0, 2.0, 0.5]


@pytest.mark.parametrize("codec", ["topk", "topk(k=41)", "topk(k=64, values=2bit)"])
@pytest.mark.parametrize(("strategy", "batches"), [("synchronous", 1), ("delayed", 1), ("local", 20)])
def test_a_codec_that_never_arrived_does_so_with_no_other_settings(codec: str, strategy: str, batches: int) -> None:
    """Whether its means are said to travel as they usually do or not."""
    measured = gap_of("synchronous", "topk(k=41)", "gtopk")
    for download in (None, "gtopk"):
        found = gap_of(strategy, codec, download, batches=batches)
        assert found is not None
        assert measured is not None
        assert not found.arrives
        assert found.most >= measured.most
        assert strategy != "synchronous" or found == measured
    for unknown in ("gaussiank", "topk(k=2048)"):
        assert gap_of(strategy, unknown, batches=batches) is None, "nobody knows"


def test_between_two_numbers_of_local_steps_the_logarithm_counts() -> None:
    row = _GapRow("local", "float16", (1.0, 2.0), "measured", batches=20, seeds=3)
    rows = [row, msgspec.structs.replace(row, percent=(3.0, 6.0), batches=100)]
    share = math.log(45 / 20) / math.log(5)
    between = _between(rows, 45)
    assert between is not None
    assert between.most == pytest.approx(2.0 + share * 4.0)
    assert _between(rows, 1000) == rows[1].gap
    assert _between(rows, 2) == row.gap
