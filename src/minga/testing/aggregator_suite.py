"""What every aggregator must do, as checks to be run against an instance.

    @pytest.mark.parametrize("check", AGGREGATOR_CHECKS)
    def test_my_aggregator(check):
        check(MyAggregator())

Each check raises `Violation` with the case that failed. All data come from fixed seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import torch

from minga.security.robust.interface import Aggregator
from minga.security.robust.rows import NonFiniteRowsError
from minga.testing.arguments import require_instance
from minga.testing.violation import Violation, require

COUNT: Final = 13
HOSTILE: Final = 4
_SIZES: Final = (1, 2, 3, 127, 4096, 131_075)
_CLOSE: Final = 1e-5
_SOLVED: Final = 2.0**-12
"""Radii that may be left of the equation for each row."""


def _normal(count: int, numel: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(count, numel, generator=torch.Generator().manual_seed(seed))


def _value(aggregator: Aggregator, rows: torch.Tensor) -> torch.Tensor:
    return aggregator.aggregate(rows.unbind()).value


def _near(found: torch.Tensor, wanted: torch.Tensor, scale: float) -> bool:
    """Whether every element is within a hundred thousandth of `scale`."""
    return bool(((found.double() - wanted.double()).abs() <= _CLOSE * scale).all())


def residual(rows: torch.Tensor, value: torch.Tensor, clip_radius: float) -> torch.Tensor:
    """The left side of the equation at `value` with `clip_radius` > 0, as float64 [numel]."""
    differences = rows.double() - value
    factors: torch.Tensor = clip_radius / differences.norm(dim=1).clamp(min=clip_radius)
    return factors @ differences


def hostile_rows(honest: torch.Tensor, hostile: int) -> Iterator[tuple[str, torch.Tensor]]:
    """What colluding peers that know all honest rows might send, as named tensors [hostile, numel]."""
    mean, numel = honest.mean(0), honest.shape[1]
    apart = _normal(hostile, numel, seed=77)
    for exponent in (0, 3, 8, 20, 37):
        yield f"one direction times 1e{exponent}", (apart[:1] * 10.0**exponent).clamp(-3e38, 3e38).expand(hostile, -1)
        yield f"directions times 1e{exponent}", (apart * 10.0**exponent).clamp(-3e38, 3e38)
    yield "signs flipped times 1000", -1000 * honest[:hostile]
    yield "minus a part of the mean", (-0.6 * mean).expand(hostile, -1)
    yield "a little is enough", (mean - 1.5 * honest.std(0)).expand(hostile, -1)
    yield "zeros", torch.zeros(hostile, numel)
    spread = torch.zeros(hostile, numel)
    spread[torch.arange(hostile), torch.arange(hostile) % numel] = 1e30
    yield "one huge element each", spread


def check_shape(aggregator: Aggregator) -> None:
    """The value is finite float32 of the rows' length, in memory of its own, for every size."""
    for size in (0, *_SIZES):
        rows = _normal(COUNT, size)
        value = _value(aggregator, rows)
        require(value.shape == (size,), aggregator, f"rows of {size} elements gave {tuple(value.shape)}")
        require(value.dtype == torch.float32, aggregator, f"the value is {value.dtype}")
        require(bool(value.isfinite().all()), aggregator, f"rows of {size} elements gave values that are not finite")
        value.fill_(7.0)
        require(torch.equal(rows, _normal(COUNT, size)), aggregator, "the value shares memory with a row")


def check_single_row(aggregator: Aggregator) -> None:
    """A single row is given as it is."""
    rows = _normal(1, 50)
    require(torch.equal(_value(aggregator, rows), rows[0]), aggregator, "a single row is not given as it is")


def check_identical_rows(aggregator: Aggregator) -> None:
    """Rows that are all the same give that row, whatever their length."""
    for scale in (0.0, 1e-42, 1e-30, 1.0, 1e12, 1e38):
        row = (_normal(1, 1000) * scale).clamp(-3e38, 3e38)
        value = _value(aggregator, row.expand(COUNT, -1))
        close = (value.double() - row[0].double()).abs() <= 1e-6 * row[0].double().abs() + COUNT * 2.0**-149
        require(bool(close.all()), aggregator, f"{COUNT} times the same row times {scale} gave another one")


def check_permutation(aggregator: Aggregator) -> None:
    """The order of rows does not matter, not to a bit."""
    for size in _SIZES:
        rows = _normal(COUNT, size)
        value = _value(aggregator, rows)
        for seed in range(3):
            found = _value(aggregator, rows[torch.randperm(COUNT, generator=torch.Generator().manual_seed(seed))])
            require(torch.equal(found, value), aggregator, f"{size} elements: the order of rows changed the value")


def check_translation(aggregator: Aggregator) -> None:
    """Rows moved by a vector give the value moved by it, up to the rounding of the rows."""
    rows = _normal(COUNT, 1000)
    value = _value(aggregator, rows)
    for length in (1.0, 100.0, 1e4):
        shift = length * _normal(1, 1000, seed=5)[0]
        moved = rows + shift
        wanted = _value(aggregator, moved - shift).double() + shift
        require(_near(_value(aggregator, moved), wanted, 1.0 + length), aggregator, f"rows moved by {length}")
        require(_near(wanted, value + shift, 1.0 + length), aggregator, f"rows rounded at {length}")


def check_scale(aggregator: Aggregator) -> None:
    """Rows times a factor give the value times it, over the range of float32."""
    rows = _normal(COUNT, 1000)
    value = _value(aggregator, rows)
    for exponent in (-80, -60, -30, -10, 10, 30, 60, 100, 120):
        factor = 2.0**exponent
        require(_near(_value(aggregator, rows * factor) / factor, value, 1.0), aggregator, f"rows times 2**{exponent}")
    require(_near(-_value(aggregator, -rows), value, 1.0), aggregator, "rows with other signs")


def check_memory(aggregator: Aggregator) -> None:
    """Rows may be of any layout and want gradients; nothing is written to them."""
    rows = _normal(COUNT, 1003)
    wide = torch.full((2 * COUNT, 1010), math.nan)
    wide[::2, 4:1007] = rows
    value = _value(aggregator, rows)
    kinds = {
        "parts of a tensor": wide[::2, 4:1007],
        "columns": rows.T.contiguous().T,
        "tensors that want gradients": rows.clone().requires_grad_(),
    }
    for name, data in kinds.items():
        require(_near(_value(aggregator, data), value, 1.0), aggregator, f"rows as {name} give another value")
        require(torch.equal(data, _normal(COUNT, 1003)), aggregator, f"it changed rows that are {name}")
    require(torch.equal(rows, _normal(COUNT, 1003)), aggregator, "it changed its rows")


def check_bounded_influence(aggregator: Aggregator) -> None:
    """Whatever a minority sends, the value stays within a few times the distances between honest rows."""
    for size in (2, 1000):
        honest = _normal(COUNT - HOSTILE, size, seed=9) / math.sqrt(size)
        centre = honest.mean(0)
        spread = float((honest - centre).norm(dim=1).max())
        for name, hostile in hostile_rows(honest, HOSTILE):
            value = _value(aggregator, torch.cat([hostile, honest]))
            away = float((value.double() - centre).norm()) / spread
            require(away <= 3.0, aggregator, f"{name}, {size} elements: moved {away:.3g} times the honest spread")


def check_equation(aggregator: Aggregator) -> None:
    """Its value solves the equation to within what it says, with a radius that norms confirm."""
    for size in (50, 1000):
        honest = _normal(COUNT - HOSTILE, size, seed=9) / math.sqrt(size)
        for name, hostile in [("honest rows", honest[:HOSTILE] + honest[-1]), *hostile_rows(honest, HOSTILE)]:
            for factor in (0.5, 1.0, 1.5):
                made = type(aggregator)(radius_factor=factor)
                _check_equation(made, torch.cat([honest, hostile]), factor, f"{name}, {size} elements, factor {factor}")


def _check_equation(aggregator: Aggregator, rows: torch.Tensor, factor: float, what: str) -> None:
    found = aggregator.aggregate(rows.unbind())
    radius = found.clip_radius
    require(0 < radius < math.inf, aggregator, f"{what}: a radius of {radius}")
    left = float(residual(rows, found.value, radius).norm())
    require(left <= found.residual_norm * (1 + 1e-6), aggregator, f"{what}: {left:.3g} is left of the equation")
    require(left <= _SOLVED * COUNT * radius, aggregator, f"{what}: the equation is not solved, {left:.3g} is left")
    held_to, leaves = aggregator.limits(rows.unbind())
    require(0.9 <= radius / held_to <= 1.1, aggregator, f"{what}: a radius other than that which it is held to")
    require(found.residual_norm <= 1.1 * leaves, aggregator, f"{what}: more is left than it is held to")
    median = float((rows.double() - found.value).norm(dim=1).median())
    require(0.5 <= radius / (factor * median) <= 2.0, aggregator, f"{what}: a radius of {radius / median:.3g} medians")


def check_non_finite(aggregator: Aggregator) -> None:
    """Rows with NaN or infinity are refused by name, wherever it stands."""
    for size in (1, 1000, 131_075):
        for position in {0, size // 2, size - 1}:
            for wrong in (math.nan, math.inf, -math.inf):
                rows = _normal(COUNT, size)
                rows[2, position] = rows[9, position] = wrong
                try:
                    _value(aggregator, rows)
                except NonFiniteRowsError as error:
                    require(error.rows == (2, 9), aggregator, f"{wrong} in rows 2 and 9 was told of {error.rows}")
                else:
                    raise Violation(f"{aggregator.name}: {wrong} at {position} of {size} was accepted")


def check_wrong_input(aggregator: Aggregator) -> None:
    """Rows of another kind or of unequal length are refused."""
    rows = _normal(COUNT, 8)
    wrong: dict[str, Sequence[torch.Tensor]] = {
        "no rows": [],
        "float64": rows.double().unbind(),
        "float16": rows.half().unbind(),
        "numbers": rows[0].unbind(),
        "unequal lengths": [*rows[1:], rows[0, :7]],
        "meta": rows.to("meta").unbind(),
        "two-dimensional rows": [rows] * COUNT,
    }
    for name, data in wrong.items():
        try:
            aggregator.aggregate(data)
        except ValueError:
            continue
        except Exception as other:
            raise Violation(f"{aggregator.name}: {name} raised {type(other).__name__}") from other
        raise Violation(f"{aggregator.name}: {name} was accepted")


AGGREGATOR_CHECKS: Final[tuple[Callable[[Aggregator], None], ...]] = (
    check_shape,
    check_single_row,
    check_identical_rows,
    check_permutation,
    check_translation,
    check_scale,
    check_memory,
    check_bounded_influence,
    check_equation,
    check_non_finite,
    check_wrong_input,
)
"""All checks, each taking the aggregator and raising `Violation` if it fails."""


def check_aggregator(aggregator: Aggregator) -> None:
    """Run every check in turn. Raises the first failure, and `TypeError` for what is no aggregator."""
    require_instance(aggregator, Aggregator, "check_aggregator({}())")
    for check in AGGREGATOR_CHECKS:
        check(aggregator)
