"""The member's side of group formation: stay with a leader until its plan comes, or it says who leads instead."""

from __future__ import annotations

import asyncio

from minga.averaging._contributor import Contributor
from minga.averaging._gathering import DIVERGED, OutOfSyncError
from minga.averaging._messages import FromLeader, Join, Park, Plan, Redirect, Report, Resume, Update
from minga.averaging._plans import accept_plan
from minga.core._errors import RejectedError
from minga.network._interface import Address
from minga.network._messages import MessageStream
from minga.network._node import Node

JOIN = "group.join"
UPDATE_PERIOD_S = 0.25


async def follow(node: Node, contributor: Contributor, leader: Address, join: Join, numel: int) -> Plan | Address:
    """Join `leader`, park and resume the trainer as it says, and return its plan over `numel` elements.

    Returns an address instead if it says that somebody else leads. Raises `OutOfSyncError` if the leader is at a later
    step or in another state, and other `RemoteError`s if it cannot be reached, falls silent, or breaks the protocol.
    """
    peer = leader.peer_id
    if not node.is_connected(peer) and leader.dialable:
        await node.dial(leader)
    async with node.open(peer, JOIN) as stream:
        await stream.send(join)
        updates = asyncio.get_running_loop().create_task(_send_updates(stream, contributor))
        try:
            while True:
                message = await stream.receive_one_of(FromLeader)
                if isinstance(message, Park):
                    contributor.park()
                elif isinstance(message, Resume):
                    contributor.resume()
                elif isinstance(message, Redirect):
                    return message.leader
                else:
                    return accept_plan(message, leader=peer, step=join.step, numel=numel, me=node.peer_id)
        except RejectedError as error:
            if error.code in ("behind", DIVERGED):
                raise OutOfSyncError(error.message, code=error.code, peer=peer, round=join.step) from error
            raise
        finally:
            updates.cancel()


async def _send_updates(stream: MessageStream, contributor: Contributor) -> None:
    """Tell the leader of each change, at once if this peer parked or paused, else every `UPDATE_PERIOD_S`."""
    loop, sent, due_s = asyncio.get_running_loop(), Report(), -1.0
    while True:
        report = contributor.report()
        urgent = due_s < 0 or (report.parked, not report.micro_batch) != (sent.parked, not sent.micro_batch)
        if urgent or (report.samples != sent.samples and loop.time() >= due_s - 1e-3):
            await stream.send(Update(report))
            sent, due_s = report, loop.time() + UPDATE_PERIOD_S
        else:
            await contributor.changed.wait(None if report.samples == sent.samples else due_s - loop.time())
