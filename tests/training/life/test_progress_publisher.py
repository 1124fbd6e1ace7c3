"""What a member tells of itself is told when it changes, and not again each time that somebody says so."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from minga.averaging.messages import Report
from minga.core.aio import Signal, end
from minga.network.gossip.gossip import usual_beat_s
from minga.training.life.progress_publisher import LATER_S, ProgressPublisher
from minga.training.lineage import Lineage
from minga.training.record_kinds import Progress
from tests.worlds.swarm_tools import virtually

PEERS = 100
BEAT_S = usual_beat_s(PEERS)


class Told(list[Progress]):
    """What a member with these properties, in a swarm of `PEERS` peers or of `few`, told the others."""

    def __init__(self, *, few: bool = False) -> None:
        super().__init__()
        self.step, self.samples, self.lineage, self.changed = 4, 0, Lineage(), Signal()
        board = SimpleNamespace(put=self.append, alive_count=3 if few else PEERS)
        node = SimpleNamespace(events=SimpleNamespace(emit=lambda event: None))
        port = SimpleNamespace(report=lambda: Report(self.samples, 1.0), changed=self.changed)
        self.publisher = ProgressPublisher(
            cast(Any, board),
            cast(Any, node),
            cast(Any, port),
            lambda: (self.step, 64),
            client=False,
            vector_bytes=lambda _: 8,
            lineage=lambda: self.lineage,
        )


@virtually
async def test_who_waits_for_the_state_says_so_once_however_often_it_asks() -> None:
    told = Told(few=True)
    for _ in range(3):
        told.publisher.set_status("syncing")
    assert [(each.step, each.status) for each in told] == [(4, "syncing")]
    told.step = 5
    told.publisher.set_status("syncing")
    told.lineage = Lineage(epoch=1)
    told.publisher.set_status("syncing")
    told.publisher.set_status("training")
    assert [(each.step, each.lineage.epoch, each.status) for each in told[1:]] == [
        (5, 0, "syncing"),
        (5, 1, "syncing"),
        (5, 1, "training"),
    ]
    told.publisher.set_status("averaging")
    told.publisher.set_status("averaging")
    assert len(told) == 4
    await asyncio.sleep(LATER_S)
    assert [each.status for each in told[4:]] == ["averaging"]


@virtually
async def test_what_changed_is_told_before_a_beat_is_due_and_what_did_not_is_left_to_beats() -> None:
    told = Told()
    told.publisher.set_status("training")
    running = asyncio.get_running_loop().create_task(told.publisher.run())
    for number in range(1, 4):
        told.samples += 8
        told.changed.fire()
        await asyncio.sleep(BEAT_S * 0.99 * number - asyncio.get_running_loop().time())
        assert [each.samples for each in told] == list(range(0, 8 * number + 1, 8))
    await asyncio.sleep(3 * BEAT_S)
    assert len(told) == 4
    told.samples += 8
    told.changed.fire()
    await asyncio.sleep(0)
    assert len(told) == 5
    await end(running)
