"""What receipts cost, in bytes: those of the messages of group formation with and without notes, in virtual time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import msgspec
import pytest

from minga.averaging.allreduce.round import RoundOutcome
from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.messages import GroupMember, Join, Part, Plan, Report, SignedPlan
from minga.identity.keys.keys import Identity
from minga.network.interface import Address, PeerId
from minga.receipts.receipts import Receipts
from minga.simulation import run_virtual
from tests.worlds.receipt_world import RUN

pytestmark = pytest.mark.promise("receipts")

MOST_PER_MINUTE = 200.0
JOIN = Join(
    step=0,
    layout="0" * 32,
    address=Address(PeerId("0" * 64), (), None),
    aggregates=True,
    computes=True,
    upload=1.0,
    download=1.0,
    report=Report(),
)


class Members:
    """The receipts of `count` members that take a step every `step_s` seconds, each led by another one."""

    def __init__(self, count: int, step_s: float) -> None:
        keys = [Identity.from_seed(number.to_bytes(32, "big")) for number in range(1, count + 1)]
        self.ids = [PeerId(key.peer_id) for key in keys]
        nodes = [SimpleNamespace(peer_id=peer, run_id=RUN, serve=lambda *_: None) for peer in self.ids]
        self.receipts = [Receipts(node, key) for node, key in zip(nodes, keys, strict=True)]  # type: ignore[arg-type]
        self.step_s, self.step, self.note_bytes = step_s, 0, 0

    async def take_step(self) -> None:
        count, step = len(self.ids), self.step
        order = self.ids[step % count :] + self.ids[: step % count]
        notes = {peer: one.for_leader(step) for peer, one in zip(self.ids, self.receipts, strict=True)}
        await asyncio.sleep(self.step_s)
        members = tuple(GroupMember(Address(peer, (), None), aggregates=True) for peer in order)
        parts = tuple(Part(1_000_000 * (index + 1), index) for index in range(count))
        plan = Plan(f"{step:032x}", step, members, parts, 1 << 16)
        note = self.receipts[step % count].with_plan(plan, notes)
        self.note_bytes += sum(_more(JOIN, each) for each in notes.values())
        self.note_bytes += (count - 1) * _more(SignedPlan(b"", bytes(64)), note)
        for peer, one in zip(self.ids, self.receipts, strict=True):
            one.take(plan, note)
            heard = {other: 40 + (step + order.index(other)) % 3 for other in order}
            given = heard.pop(peer)
            one.commit(RoundOutcome(plan, {}, 1.0, 0, 0, ContributionFate.COUNTED, heard=heard), given, 4096)
        self.step += 1


def _more(message: Join | SignedPlan, note: bytes) -> int:
    """The bytes by which a note makes a message longer."""
    return len(msgspec.msgpack.encode(msgspec.structs.replace(message, note=note))) - len(
        msgspec.msgpack.encode(message)
    )


@pytest.mark.parametrize(("count", "step_s", "minutes"), [(40, 600.0, 300), (3, 2.0, 24)])
def test_a_member_sends_at_most_200_bytes_a_minute(count: int, step_s: float, minutes: int) -> None:
    async def main() -> None:
        members = Members(count, step_s)
        while members.step * step_s < minutes * 60:
            await members.take_step()
        per_minute = members.note_bytes / count / minutes
        print(f"{count} members, steps of {step_s:g} s: {per_minute:.0f} bytes a member and minute")
        assert per_minute <= MOST_PER_MINUTE
        totals = members.receipts[0].totals()
        assert len(totals) == count
        assert all(total.samples > 0 for total in totals.values()), "and everybody's samples are attested"

    run_virtual(main(), limit_s=60.0 * minutes + 60.0)
