"""The numbers by which members, each alone, decide who has to go."""

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

COUNT, NUMEL = 15, 5000
COIN = bytes(32)


def decided(rows: Sequence[torch.Tensor], value: torch.Tensor, radius: float) -> dict[PeerId, Reason]:
    """Who goes by the public check of a part of which all claim the truth, and whose aggregator names that radius."""
    step_math, members = StepMath(SecureSettings()), tuple(PeerId(f"{rank:064x}") for rank in range(COUNT))
    said = claims([row.numpy() for row in rows], value.numpy(), radius, Directions(COIN, step_math.directions))
    terms = SimpleNamespace(
        members=members, contributors=tuple(range(COUNT)), division=SimpleNamespace(starts=(0,) * COUNT)
    )
    record: Any = SimpleNamespace(
        terms=terms,
        row=lambda owner, _: rows[owner],
        values={0: value},
        results={members[0]: SimpleNamespace(clip=radius)},
        claims={member: SimpleNamespace(claims=(claim,)) for member, claim in zip(members, said, strict=True)},
        randomness=COIN,
    )
    return step_math.recheck(record, 0)


def test_members_whose_libraries_sum_in_other_orders_never_part_over_a_radius() -> None:
    """An aggregator names one just at the limit. What suits one processor is here another order of the elements."""
    rows = torch.randn(COUNT + 1, NUMEL, generator=torch.Generator().manual_seed(1))
    rows = rows[1:] + rows[0]
    orders = [torch.randperm(NUMEL, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    usual = CenteredClip(radius_factor=SecureSettings().clip_factor)
    others = [usual.aggregate(list(rows[:, order])).clip_radius for order in orders]
    assert len(set(others)) > 1
    value = CenteredClip(2 * others[0]).aggregate(rows).value
    (own,) = {usual.reference(list(rows[:, order]), value[order]).clip_radius for order in orders}
    assert own == pytest.approx(others[0], rel=1e-4)
    for radius in (min(others) + max(others), 2 * own * (1 - 1e-15), 2 * own, 2 * own * (1 + 1e-15)):
        gone = [decided(list(rows[:, order]), value[order], radius) for order in orders]
        assert gone == [gone[0]] * len(orders)
    assert gone[0] == {PeerId(f"{0:064x}"): Reason.WRONG_AGGREGATE}
