"""What a member tells of itself is told when it changes, and not again each time that somebody says so."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from minga.averaging.messages import Report
from minga.training.life.progress_publisher import LATER_S, ProgressPublisher
from minga.training.lineage import Lineage
from minga.training.record_kinds import Progress
from tests.worlds.swarm_tools import virtually


@virtually
async def test_who_waits_for_the_state_says_so_once_however_often_it_asks() -> None:
    told, step, lineage = list[Progress](), 4, Lineage()
    board = SimpleNamespace(put=told.append, alive_count=3)
    node = SimpleNamespace(events=SimpleNamespace(emit=lambda event: None))
    port = SimpleNamespace(report=lambda: Report(0, 1.0))
    publisher = ProgressPublisher(
        cast(Any, board),
        cast(Any, node),
        cast(Any, port),
        lambda: (step, 64),
        client=False,
        vector_bytes=lambda _: 8,
        lineage=lambda: lineage,
    )
    for _ in range(3):
        publisher.set_status("syncing")
    assert [(each.step, each.status) for each in told] == [(4, "syncing")]
    step = 5
    publisher.set_status("syncing")
    lineage = Lineage(epoch=1)
    publisher.set_status("syncing")
    publisher.set_status("training")
    assert [(each.step, each.lineage.epoch, each.status) for each in told[1:]] == [
        (5, 0, "syncing"),
        (5, 1, "syncing"),
        (5, 1, "training"),
    ]
    publisher.set_status("averaging")
    publisher.set_status("averaging")
    assert len(told) == 4
    await asyncio.sleep(LATER_S)
    assert [each.status for each in told[4:]] == ["averaging"]
