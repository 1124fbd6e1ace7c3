"""CenteredClip: the conformance suite, known answers, its plain iteration, and what it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from minga.averaging.codecs.layout import VectorLayout
from minga.core.errors import ConfigurationError
from minga.security.protocol.rules import Rules, SecureSettings
from minga.security.robust.centered_clip import CenteredClip
from minga.security.robust.interface import Aggregate, Aggregator
from minga.security.robust.rows import Gram, Rows, lexicographic_order
from minga.testing.aggregator_suite import (
    AGGREGATOR_CHECKS,
    Violation,
    check_bounded_influence,
    check_equation,
    hostile_rows,
    residual,
)

ALL: list[Aggregator] = [CenteredClip(), CenteredClip(radius_factor=2.0)]
FOUR_POINTS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [100.0, 100.0]])
SCALARS = torch.tensor([[1.0], [2.0], [3.0], [4.0], [1000.0]])


def normal(count: int, numel: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, numel, generator=torch.Generator().manual_seed(seed))


def attacked(numel: int = 500, hostile: int = 7, length: float = 1000.0, seed: int = 0) -> torch.Tensor:
    """16 rows of length about 1, of which the last ones collude far away."""
    rows = normal(16, numel, seed) / numel**0.5
    rows[16 - hostile :] = length * normal(1, numel, seed + 1) / numel**0.5
    return rows


def clipped_at(radius: float, rows: torch.Tensor) -> Aggregate:
    """What the clipping radius gives that is named, which need not be one of the usual factors."""
    factor = radius / CenteredClip().aggregate(rows.unbind()).clip_radius
    return CenteredClip(radius_factor=factor).aggregate(rows.unbind())


def plain_centered_clip(rows: torch.Tensor, radius: float, iterations: int) -> torch.Tensor:
    """The published iteration, in float64, from the coordinate-wise median."""
    points = rows.double()
    value = points.median(0).values
    for _ in range(iterations):
        differences = points - value
        clipped = differences * (radius / differences.norm(dim=1).clamp(min=radius))[:, None]
        value = value + clipped.mean(0)
    return value


@pytest.mark.parametrize("aggregator", ALL, ids=["usual", "wide"])
@pytest.mark.parametrize("check", AGGREGATOR_CHECKS, ids=lambda check: check.__name__)
def test_conformance(check: Callable[[Aggregator], None], aggregator: Aggregator) -> None:
    check(aggregator)


def test_the_suite_finds_an_aggregator_that_any_row_moves() -> None:
    class Mean(CenteredClip):
        def _aggregate(self, rows: Rows) -> Aggregate:
            found = super()._aggregate(rows)
            return replace(found, value=torch.stack(rows.vectors).mean(0))

    with pytest.raises(Violation, match="times the honest spread"):
        check_bounded_influence(Mean())


def test_secure_runs_take_only_aggregators_that_are_here() -> None:
    for name in ("average", "mean", "krum"):
        with pytest.raises(ConfigurationError, match=f"'{name}' is none of centered_clip"):
            SecureSettings(aggregator=name)


def test_the_suite_finds_an_aggregator_whose_results_do_not_solve_the_equation() -> None:
    class Half(CenteredClip):
        def _aggregate(self, rows: Rows) -> Aggregate:
            found = super()._aggregate(rows)
            return replace(found, value=found.value * 0.5)

    class Wide(CenteredClip):
        def __init__(self, *, radius_factor: float = 1.0) -> None:
            super().__init__(radius_factor=3 * radius_factor)

    with pytest.raises(Violation, match="is left of the equation"):
        check_equation(Half())
    with pytest.raises(Violation, match="a radius of"):
        check_equation(Wide())


def test_rules_name_the_aggregator_and_the_package_that_brings_it() -> None:
    layout = VectorLayout((100,), "float32")
    usual = Rules.of(layout, SecureSettings())
    assert usual.digest.hex() == "a233e24c57a24a6a8c9a6b988dabdf6b6b88e024d6e5a0b4df82f0a489d30643"
    assert usual.settings.aggregator == "centered_clip"
    chosen = msgspec.structs.replace(usual, aggregator="unknown", package="some-package", version="1.0")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(chosen), type=Rules) == chosen
    assert chosen.digest != usual.digest
    with pytest.raises(ConfigurationError, match=r"'unknown' comes from some-package 1\.0, which is not installed"):
        _ = chosen.settings


# ---- CenteredClip


@pytest.mark.parametrize(
    ("rows", "radius", "wanted"),
    [
        (FOUR_POINTS, 0.5, 0.5),
        (FOUR_POINTS, 1.0, 0.56903559),
        (FOUR_POINTS, 10.0, 2.69035594),
        (SCALARS, 0.5, 3.0),
        (SCALARS, 1.0, 3.0),
        (SCALARS, 10.0, 5.0),
    ],
)
def test_known_answers(rows: torch.Tensor, radius: float, wanted: float) -> None:
    assert clipped_at(radius, rows).value.tolist() == pytest.approx([wanted] * rows.shape[1], rel=1e-6)


@pytest.mark.parametrize("radius_factor", [0.5, 1.0, 2.0, 10.0])
@pytest.mark.parametrize("hostile", [0, 7])
def test_is_the_fixed_point_of_the_plain_iteration(hostile: int, radius_factor: float) -> None:
    rows, aggregator = attacked(hostile=hostile), CenteredClip(radius_factor=radius_factor)
    found = aggregator.aggregate(rows.unbind())
    wanted = plain_centered_clip(rows, found.clip_radius, 3000)
    assert float((found.value - wanted).norm()) < 1e-5 * found.clip_radius
    assert aggregator._solve(Gram.single(Rows(rows.unbind()))).location.iterations < 100


@pytest.mark.parametrize("length", [1.0, 1e3, 1e8, 1e17, 1e30])
@pytest.mark.parametrize("offset", [0.0, 1.0, 1e3, 1e6])
def test_residual_is_within_its_bound_at_hostile_scales(length: float, offset: float) -> None:
    """Rounding the value to float32 is all that is left, also for rows nearly equal by their lengths."""
    honest = attacked(5000, length=length) + offset
    for rows in (honest, honest * 1e-20):
        found = CenteredClip().aggregate(rows.unbind())
        left = float(residual(rows, found.value, found.clip_radius).norm())
        largest = float(found.value.double().norm())
        assert left <= found.residual_norm
        assert left <= 16 * (2e-7 * largest + 1e-6 * found.clip_radius)
        assert found.residual_norm <= 16 * (2e-6 * largest + 4e-5 * found.clip_radius)


def test_rows_whose_products_round_all_the_same_way() -> None:
    rows = torch.rand(16, 1, generator=torch.Generator().manual_seed(3)).expand(-1, 100_000).contiguous()
    found = CenteredClip().aggregate(rows.unbind())
    assert float(residual(rows, found.value, found.clip_radius).norm()) <= found.residual_norm
    assert float(residual(rows, found.value, found.clip_radius).norm()) <= 16 * 4e-5 * found.clip_radius


def test_a_common_offset_a_billion_times_the_spread() -> None:
    """Differences of single elements are exact, though squared lengths in float64 no longer tell the rows apart."""
    rows = attacked(1000, length=100.0)
    with_offset = torch.cat([torch.full((16, 1), 2.0**60), rows], dim=1)
    found, wanted = CenteredClip().aggregate(with_offset.unbind()), CenteredClip().aggregate(rows.unbind())
    assert found.clip_radius == pytest.approx(wanted.clip_radius, rel=1e-4)
    assert float((found.value[1:] - wanted.value).norm()) < 1e-3 * wanted.clip_radius


def test_the_radius_follows_the_honest_rows() -> None:
    """Seven of sixteen that are hostile can neither shrink it much nor stretch it much."""
    honest = normal(9, 2000) / 2000**0.5
    alone = CenteredClip().aggregate(honest.unbind()).clip_radius
    assert alone == pytest.approx(1.0, abs=0.1)
    for name, hostile in hostile_rows(honest, 7):
        assert 0.6 * alone < CenteredClip().aggregate([*honest, *hostile]).clip_radius < 2.0 * alone, name


def test_limits_have_the_same_bits_on_every_machine() -> None:
    """Theirs are pinned, and rows of whole numbers hold the same everywhere; those of `aggregate` hang on a library."""
    numbers = torch.arange(15 * 70_001).reshape(15, -1)
    rows = ((numbers * numbers % 7919) - 3960).float() / 64
    radius, left = CenteredClip().limits(rows.unbind())
    assert (radius.hex(), left.hex()) == ("0x1.1cbbdf99c8eeap+13", "0x1.301329264432cp+1")
    found = CenteredClip().aggregate(rows.unbind())
    assert found.clip_radius == pytest.approx(radius, rel=1e-4)
    assert found.residual_norm == pytest.approx(left, rel=1e-4)


def test_the_radius_is_the_lower_median_at_every_number_of_rows() -> None:
    """Shares of 1/12, added up, were less than a half at the sixth row of twelve."""
    for count in range(2, 40, 2):
        rows = torch.cat([torch.zeros(count // 2), torch.arange(1.0, count // 2 + 1)])[:, None]
        assert CenteredClip().aggregate(rows.unbind()).clip_radius == 0.0


def test_most_rows_the_same() -> None:
    rows = normal(16, 300)
    rows[:9] = rows[0]
    for data in (rows, rows * 1e-25, rows + 1e4):
        found = CenteredClip().aggregate(data.unbind())
        assert torch.equal(found.value, data[0])
        assert found.clip_radius == 0.0
        assert found.residual_norm <= 1e-12 * float(data.double().norm())


@given(
    arrays.arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(1, 6)), elements=st.floats(-1e6, 1e6, width=32)),
    st.floats(1e-3, 1e3),
)
@example(
    np.array([[-111, 0, 0], [-177939, 0.5, 0], [0, 0, 0]], np.float32), 2.0**-9 / 111
)  # terms of a double sum cancel
@example(np.array([[4.304581e-22], [0], [-3e-22]], np.float32), 2.0**71)  # squares are subnormal numbers
def test_any_rows(values: np.ndarray, radius_factor: float) -> None:
    rows = torch.from_numpy(values)
    found = CenteredClip(radius_factor=radius_factor).aggregate(rows.unbind())
    left = float(residual(rows, found.value, found.clip_radius).norm()) if found.clip_radius else 0.0
    assert left <= found.residual_norm * (1 + 1e-6) + values.size * 2.0**-74  # the root of the least subnormal number
    low, high = rows.double().aminmax(dim=0)
    slack = 1e-6 * rows.double().abs().max() + len(rows) * 2.0**-149  # the spacing of subnormal numbers
    assert bool(((found.value >= low - slack) & (found.value <= high + slack)).all())


def test_far_rows_that_pull_against_each_other_do_not_end_the_iteration() -> None:
    """Their pulls cancel in single precision: the iteration took its start for the fixed point."""
    rows = torch.tensor([[-222317.0, 0.0], [0.03125, 0.0], [0.0, 0.0], [2837.0, 0.0]])
    found = clipped_at(108.0, rows)
    assert float(found.value[0]) == pytest.approx(0.015625, abs=2.0**-18)  # the spacing of its terms, which are 53 long
    assert float(residual(rows, found.value, 108.0).norm()) <= found.residual_norm


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_wrong_factors_are_refused(factor: float) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        CenteredClip(radius_factor=factor)


# ---- what it is compared with


# ---- rows


@given(st.lists(st.lists(st.integers(0, 2), min_size=6, max_size=6), min_size=1, max_size=7), st.randoms())
def test_order_depends_on_the_rows_alone(values: list[list[int]], random: object) -> None:
    """Also where they differ behind the 64 elements that are compared first."""
    vectors = [torch.tensor([*row[:2], *[0] * 60, *row[2:]], dtype=torch.float32) for row in values]
    shuffled = list(vectors)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    orders = [[given[index].tolist() for index in lexicographic_order(given)] for given in (vectors, shuffled)]
    assert orders[0] == orders[1] == sorted(orders[0])


def test_rows_are_read_in_blocks_and_stay_as_they_are() -> None:
    rows = normal(3, 1000)
    seen = torch.zeros(3, 1000)
    for part, block in Rows(rows.unbind()).blocks(elements=300):
        seen[:, part] = block
        block.zero_()
    assert torch.equal(seen, rows[list(Rows(rows.unbind()).indices)])
    assert torch.equal(rows, normal(3, 1000))
