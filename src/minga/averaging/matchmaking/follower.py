"""The member's side of group formation: stay with a leader until its plan comes, or it says who leads instead."""

from __future__ import annotations

import asyncio
import contextlib
from typing import NamedTuple

from minga.averaging.clocking.sample_quota import UPDATE_PERIOD_S
from minga.averaging.group import Contributor
from minga.averaging.matchmaking.attempt import JOIN, PROBE, GroupAttempt, OutOfSyncError
from minga.averaging.messages import (
    FromLeader,
    Limit,
    PeerScore,
    Plan,
    Prepare,
    Redirect,
    Report,
    SignedPlan,
    Update,
)
from minga.averaging.planning.best_contributor import ToldScores
from minga.averaging.planning.signed_plan import accept_plan
from minga.core.aio import end, racing
from minga.core.errors import RejectedError, RemoteError, SilentError
from minga.core.refusal_code import RefusalCode
from minga.network.interface import Address, PeerId
from minga.network.rpc.keepalive import LEAST_TICKS, PULSE_S
from minga.network.rpc.stream import MessageStream

LEAST_PAUSE_S = LEAST_TICKS * PULSE_S
WATCH_PERIOD_S = 1.0
LATE_S = 30.0
"""Seconds after which a plan that is due is overdue, and twice the time of the step so far, or of a usual one if that
is longer: a leader may hold a full step for newcomers as long as the step took, before and after it waited for the
permission to close, and longer where that counts here too. A peer that came late stops after one micro-batch, and the
others may need minutes for theirs."""
ASK_S = 1.5
"""Seconds in which who lives answers a newcomer's question; the dead take several, and steps pass meanwhile."""
LEFT_BEHIND_S = 5.0
"""Who sees twice, so many seconds apart, that the swarm is past the step has been forgotten by its leader."""


class FollowedPlan(NamedTuple):
    """The plan of a leader, the note that came with it, and the scores that this peer told of itself of late."""

    plan: Plan
    note: bytes
    said: frozenset[PeerScore | None]


async def ask_around(attempt: GroupAttempt) -> Address | None:
    """Whom the peers of a newcomer's step follow; None if within `ASK_S` nobody knows, or they follow it.

    All are asked at once, and none is waited for long: some may just have died, and that takes seconds to find out.
    """
    peers, join = attempt.guides(), attempt.join(seats=-1)

    async def ask(peer: PeerId) -> Address | None:
        with contextlib.suppress(RemoteError):
            found = await attempt.node.call(peer, PROBE, join, Redirect)
            return found.leader if found.leader.peer_id != attempt.me else None
        return None

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ASK_S), racing(map(ask, peers)) as answers:
            for answer in answers:
                if (leader := await answer) is not None:
                    return leader
    return None


async def follow(attempt: GroupAttempt, leader: Address) -> FollowedPlan | Address:
    """Join `leader`, stop the trainer where it says, and return its plan.

    Returns an address instead if it says that another peer leads. A leader that gives signs of life but no plan
    although there should be one counts as silent, see `LATE_S`. Raises `OutOfSyncError` if the leader is at a later
    step or in another state, or if for a while the swarm is, and other `RemoteError`s if the leader cannot be reached,
    falls silent, or breaks the protocol.
    """
    node, peer = attempt.node, leader.peer_id
    join, numel = attempt.join(peer), attempt.settings.vectors(attempt.step).numel
    if not node.is_connected(peer) and leader.dialable:
        await node.dial(leader)
    async with node.open(peer, JOIN) as stream:
        await stream.send(join)
        loop, told = asyncio.get_running_loop(), ToldScores()
        told.tell(join.report.score, loop.time())
        updates = loop.create_task(_send_updates(stream, attempt.contributor, told))
        listening = loop.create_task(_listen(stream, attempt, told))
        watching = loop.create_task(_watch(stream, attempt))
        try:
            await asyncio.wait({listening, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not listening.done():
                await watching
            answer = await listening
            if isinstance(answer, Redirect):
                return answer.leader
            plan = accept_plan(answer, leader=peer, step=join.step, numel=numel, me=node.peer_id)
            return FollowedPlan(plan, answer.note, told.fresh(loop.time(), stream.round_trip_s))
        except RejectedError as error:
            if error.code in (RefusalCode.BEHIND, RefusalCode.DIVERGED):
                raise OutOfSyncError(error.message, code=error.code, peer=peer, round=join.step) from error
            raise
        finally:
            await end(updates, listening, watching)


async def _listen(stream: MessageStream, attempt: GroupAttempt, told: ToldScores) -> Redirect | SignedPlan:
    contributor = attempt.contributor
    while True:
        message: FromLeader = await stream.receive_one_of(FromLeader)
        if isinstance(message, Limit):
            contributor.limit(message.samples)
        elif isinstance(message, Prepare):
            report = contributor.report()
            told.tell(report.score, asyncio.get_running_loop().time())
            await stream.send(Update(report, attempt.promise(stream.peer, message.ballot)))
        else:
            return message


async def _watch(stream: MessageStream, attempt: GroupAttempt) -> None:
    contributor = attempt.contributor
    worked_s = due_s = 0.0
    was_behind = False
    # What is usual, and what newcomers cost, is asked only when it matters: that looks through all the swarm.
    while due_s < LATE_S + 2.0 * worked_s or due_s < LATE_S + attempt.longest_hold_s() + 2.0 * max(
        worked_s, attempt.usual_s(contributor.report())
    ):
        await asyncio.sleep(WATCH_PERIOD_S)
        if attempt.is_due(contributor.report()):
            due_s += WATCH_PERIOD_S
        else:
            worked_s, due_s = worked_s + due_s + WATCH_PERIOD_S, 0.0
        if (worked_s + due_s) % LEFT_BEHIND_S == 0.0:  # not each time: it looks through all the swarm
            was_behind, had_been = attempt.is_behind(), was_behind
            if was_behind and had_been:
                raise OutOfSyncError("the swarm went on without us", code=RefusalCode.BEHIND, peer=stream.peer)
    raise SilentError("it leads, but does not close its group", peer=stream.peer)


async def _send_updates(stream: MessageStream, contributor: Contributor, told: ToldScores) -> None:
    """Tell the leader of each change: at once if this peer parked or paused, else every `UPDATE_PERIOD_S`, or as often
    as it would send signs of life, which is more rarely in a large group.
    """
    loop, sent, due_s = asyncio.get_running_loop(), Report(), -1.0
    while True:
        report = contributor.report()
        urgent = due_s < 0 or (report.parked, not report.micro_batch) != (sent.parked, not sent.micro_batch)
        if urgent or (report.samples != sent.samples and loop.time() >= due_s - 1e-3):
            told.tell(report.score, loop.time())
            await stream.send(Update(report))
            sent, due_s = report, loop.time() + max(UPDATE_PERIOD_S, stream.pause_s - LEAST_PAUSE_S)
        else:
            await contributor.changed.wait(None if report.samples == sent.samples else due_s - loop.time())
