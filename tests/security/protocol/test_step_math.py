"""The numbers by which members, each alone, decide what is looked at again and who has to go."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from minga.network.interface import PeerId
from minga.security.protocol.members import Reason
from minga.security.protocol.rules import SecureSettings
from minga.security.protocol.step_math import StepMath
from minga.security.robust.centered_clip import CenteredClip
from minga.security.verification.claims import claims
from minga.security.verification.count_sketch import Directions

pytestmark = pytest.mark.promise("when-members-are-hostile")

COUNT, NUMEL = 15, 3000
COIN = bytes(32)
MEMBERS = tuple(PeerId(f"{rank:064x}") for rank in range(COUNT))
SETTINGS = SecureSettings()

Part = tuple[Sequence[torch.Tensor], torch.Tensor, float]
"""The rows that its aggregator got, what it made of them, and the radius that it names."""


def normal(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, NUMEL, generator=torch.Generator().manual_seed(seed))


def clipped(rows: Sequence[torch.Tensor], radius: float | None = None) -> Part:
    """What an aggregator does with the right radius, or with one of its own liking."""
    factor = SETTINGS.clip_factor if radius is None else radius / CenteredClip().aggregate(rows).clip_radius
    made = CenteredClip(radius_factor=factor).aggregate(rows)
    return rows, made.value, made.clip_radius


def record_of(*parts: Part) -> Any:
    """Of an attempt in which all claim the truth."""
    numbers = range(len(parts))
    directions = [Directions(COIN, SETTINGS.directions, NUMEL * part) for part in numbers]
    said = [
        claims([row.numpy() for row in rows], value.numpy(), radius, directions[part])
        for part, (rows, value, radius) in enumerate(parts)
    ]
    division = SimpleNamespace(
        parts=tuple(numbers),
        starts=tuple(NUMEL * part for part in numbers),
        stops=tuple(NUMEL * (part + 1) for part in numbers),
    )
    return SimpleNamespace(
        terms=SimpleNamespace(members=MEMBERS, contributors=tuple(range(COUNT)), division=division),
        row=lambda owner, part: parts[part][0][owner],
        values={part: parts[part][1] for part in numbers},
        results={MEMBERS[part]: SimpleNamespace(clip=parts[part][2]) for part in numbers},
        claims={
            member: SimpleNamespace(claims=tuple(said[part][rank] for part in numbers))
            for rank, member in enumerate(MEMBERS)
        },
        randomness=COIN,
    )


def test_members_whose_libraries_sum_in_other_orders_never_part_over_a_radius(monkeypatch: pytest.MonkeyPatch) -> None:
    """An aggregator names one just at the limit of some of them."""
    rows = list(normal(COUNT, 1) + normal(1, 2))
    right = clipped(rows)[2]
    record = record_of(clipped(rows, 2.0 * right * (1.0 + 6e-8)))
    gone = [StepMath(SETTINGS).recheck(record, 0)]
    usual = CenteredClip._in_single

    def elsewhere(self: CenteredClip, *given: Any) -> Any:
        found = usual(self, *given)
        if found is not None:
            object.__setattr__(found[0], "clip_radius", found[0].clip_radius * (1.0 + 1.2e-7))
        return found

    monkeypatch.setattr(CenteredClip, "_in_single", elsewhere)
    assert clipped(rows)[2] > right
    assert [StepMath(SETTINGS).recheck(record, 0)] == gone
    assert StepMath(SETTINGS).recheck(record_of(clipped(rows, 2.1 * right)), 0) == {MEMBERS[0]: Reason.WRONG_AGGREGATE}


@pytest.mark.parametrize("far", [30.0, 1e5, 1e7])
def test_who_aggregates_as_it_should_stays_where_nearly_half_of_the_parts_lie_far_away(far: float) -> None:
    """Also if these are equal but for the last bits, when what is left of their distances is rounding."""
    near, toward = normal(COUNT // 2 + 1, 3), normal(1, 4)
    rows = [*near, *(near.mean(0) + far * toward + 1e-3 * normal(COUNT // 2, 5))]
    assert StepMath(SETTINGS).recheck(record_of(clipped(rows)), 0) == {}


@pytest.mark.parametrize("factor", [8.0, 100.0])
def test_a_radius_that_draws_the_aggregate_to_far_parts_raises_a_doubt(factor: float) -> None:
    """All distances grow with it, so that they confirm it; the other parts and past steps do not."""
    step_math = StepMath(SETTINGS)
    for _ in range(8):
        step_math.remember(record_of(*(clipped(list(normal(COUNT, seed))) for seed in range(3))))
    far = [[*normal(COUNT - 4, seed), *(normal(4, seed) + 1000.0)] for seed in range(3)]
    honest = [clipped(rows) for rows in far]
    assert step_math.doubtful(record_of(*honest)) == []
    hostile = record_of(clipped(far[0], factor * honest[0][2]), *honest[1:])
    assert step_math.doubtful(hostile) == [0]
    assert step_math.recheck(hostile, 0) == {MEMBERS[0]: Reason.WRONG_AGGREGATE}


def test_parts_that_are_cut_anew_raise_no_doubt_over_a_layer_of_long_gradients() -> None:
    """It made one part long, of whose length its new part had next to nothing."""
    step_math = StepMath(SETTINGS)
    rows = [list(normal(COUNT, seed)) for seed in range(3)]
    rows[1] = [torch.cat([row[:10] * 1000.0, row[10:]]) for row in rows[1]]
    for _ in range(8):
        step_math.remember(record_of(*map(clipped, rows)))
    elsewhere = record_of(*map(clipped, [rows[0], rows[2], rows[1]]))
    elsewhere.terms.division.stops = tuple(stop + 1 for stop in elsewhere.terms.division.stops)
    assert step_math.doubtful(elsewhere) == []


def test_parts_that_differ_by_next_to_nothing_are_aggregated_as_they_should_be() -> None:
    step_math, rows = StepMath(SETTINGS), [torch.full((NUMEL,), 1e-35 * 2.0**rank) for rank in range(COUNT)]
    assert step_math.recheck(record_of((rows, *step_math.aggregate(rows))), 0) == {}
