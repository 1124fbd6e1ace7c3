"""Whose work is worth moving."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from minga.averaging.allreduce.messages import Assignment
from minga.averaging.allreduce.round import StragglerDetector
from tests.worlds.swarm_tools import virtually


@pytest.mark.parametrize(("elapsed_s", "slow"), [(3.5, (1,)), (1.0, ())])
def test_a_part_is_moved_only_if_the_repair_pays(elapsed_s: float, slow: tuple[int, ...]) -> None:
    """One of two aggregators is done and the other is half through: as much time again, or a repair."""
    assignments = {(0, root): Assignment((0, root), root, (root,) if root == 0 else (1, 2), ()) for root in (0, 1)}
    have = [True, True, False]

    @virtually
    async def main() -> None:
        round: Any = SimpleNamespace(
            members=range(4),
            assignments=assignments,
            chunks=[SimpleNamespace(upload_bytes=1000)] * 3,
            have=have,
            expected_s=1.0,
            started_s=asyncio.get_running_loop().time(),
            is_broken=lambda assignment: False,
            silent=set,
            term=0,
        )
        detector = StragglerDetector(round)
        have[1] = False
        await asyncio.sleep(0.5)
        assert detector.news() == ()  # too early for a verdict, but the first one is seen to be done
        have[1] = True
        await asyncio.sleep(elapsed_s)
        assert detector.news() == slow

    main()
