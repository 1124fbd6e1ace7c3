"""Whose work is worth moving: a repair of a plan with sites goes without them, and takes longer the more there are."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from minga.averaging.allreduce.messages import Assignment
from minga.averaging.allreduce.stragglers import StragglerDetector
from tests.worlds.swarm_tools import virtually

SITES = ((0, 1), (2, 3))


@pytest.mark.parametrize(
    ("members", "sites", "slow"),
    [(4, (), (1,)), (4, SITES, (1,)), (150, (), (1,)), (150, SITES, ())],
)
def test_a_part_of_many_sites_is_moved_only_if_the_repair_pays(
    members: int, sites: tuple[tuple[int, int], ...], slow: tuple[int, ...]
) -> None:
    """After 4 s one of two aggregators is done and the other is half through: 4 s more, or a repair."""
    assignments = {(0, root): Assignment((0, root), root, (root,) if root == 0 else (1, 2), ()) for root in (0, 1)}
    have = [True, True, False]

    @virtually
    async def main() -> None:
        round: Any = SimpleNamespace(
            plan=SimpleNamespace(sites=sites),
            members=range(members),
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
        await asyncio.sleep(3.5)
        assert detector.news() == slow

    main()
