"""All-reduce as a service of one peer: runs its rounds and answers other members about them."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from dataclasses import replace

import torch

from minga.averaging.allreduce.commit import answer
from minga.averaging.allreduce.messages import (
    ALIVE,
    FETCH,
    FREEZE,
    HOLD,
    LOST,
    PART,
    REPAIR,
    Alive,
    Done,
    FetchChunks,
    Freeze,
    Hold,
    Lost,
    PartHello,
    Repair,
    RoundState,
)
from minga.averaging.allreduce.repair import Repairer
from minga.averaging.allreduce.round import Round, RoundOutcome
from minga.averaging.allreduce.sender import serve_fetch
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.residual import Residual
from minga.averaging.messages import Plan
from minga.core.aio import Signal
from minga.core.errors import ProtocolError, RejectedError, RemoteError
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream

EXPECT_S = 5.0
"""Seconds that a message about a round waits for the plan of that round, which comes over another stream."""

MAX_PAST = 64
"""Past rounds of which a member still says whether they were committed."""

MAX_EXPECTING = 16
"""Requests of one peer that may wait so at a time."""


class RoundAbortedError(RemoteError):
    """The round came to nothing here; the local vector is untouched and may go into the next one.

    `held_term` is the term of which this member said that it holds the result, which another member may have applied;
    None if it never did.
    """

    held_term: int | None = None


@loop_bound
class AllReduce:
    """Reduces one vector after the other with the groups that the plans name."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._rounds: dict[str, tuple[Round, Repairer]] = {}
        self._past: OrderedDict[str, int | None] = OrderedDict()  # rounds, and the terms of their committed results
        self._given: OrderedDict[str, tuple[int, bool]] = OrderedDict()
        """The step of each of the last rounds, and whether this member gave something to it."""
        self._changed = Signal()
        self._expecting: Counter[PeerId] = Counter()
        node.serve(PART, self._serve_part)
        node.serve(FETCH, self._serve_fetch)
        node.serve(LOST, self._serve_lost)
        node.serve(ALIVE, self._serve_alive)
        node.serve(FREEZE, self._serve_freeze)
        node.serve(REPAIR, self._serve_repair)
        node.serve(HOLD, self._serve_hold)

    async def reduce(
        self,
        plan: Plan,
        layout: VectorLayout,
        local: torch.Tensor | None,
        weight: int,
        result: torch.Tensor,
        residual: Residual | None = None,
        *,
        most_weight: int | None = None,
    ) -> RoundOutcome:
        """Run one round over a vector of the given layout.

        `local` (flat float32, CPU; None to only aggregate and receive) counts with `weight` samples and must not
        change until this returns. `result` (same shape) receives the weighted mean over all members, bitwise the same
        for all; it is served to others until a round uses the same tensor again, and must not be changed by the caller.
        No contribution of a member is taken that weighs more than `most_weight`, if that is said, and where the plan
        chose the best one none of another member. Where the layout needs one, the `residual` takes part in `local` and
        has taken up what the result lacks of it.
        Raises `RoundAbortedError` if too many members were lost.
        """
        self.retire(result)
        is_counted, earlier = self._note_given(plan, has_given=local is not None and weight > 0)
        round = Round(self._node, plan, layout, local, weight, result, residual, is_counted=is_counted)
        round.most_weight = most_weight
        repairer = Repairer(round)
        self._rounds[plan.round_id] = (round, repairer)
        self._changed.fire()
        try:
            repairer.start()
            await repairer.run()
        except BaseException:  # cancelled, or a bug: nothing may go on writing to the caller's tensors
            round.retire()
            round.take_back()
            raise
        if not round.is_done:
            round.retire()
            try:
                if residual is not None:
                    await asyncio.get_running_loop().run_in_executor(None, round.set_aside)
            finally:
                round.take_back()
            error = RoundAbortedError(round.aborted or "aborted", round=plan.step, phase="reduce")
            error.held_term = round.held_term
            raise error
        if residual is not None:
            await asyncio.get_running_loop().run_in_executor(None, round.keep_residual)
        return replace(round.outcome(), earlier=earlier)

    def _note_given(self, plan: Plan, *, has_given: bool) -> tuple[bool, int]:
        """Whether the result of this plan has a contribution of this member in it, if no chunk of it gets lost; and how
        many attempts at the step ago that was given.

        A plan that adopts the result of an earlier round has what was given to that round, and not what is given now.
        """
        self._given[plan.round_id] = plan.step, has_given and not plan.adopts
        while len(self._given) > MAX_PAST:
            self._given.popitem(last=False)
        attempts = [round_id for round_id, (step, _) in self._given.items() if step == plan.step]
        if plan.result_id not in attempts:
            return False, 0
        return self._given[plan.result_id][1], len(attempts) - 1 - attempts.index(plan.result_id)

    def give_up(self, plan: Plan, why: str) -> None:
        """End the round of this plan with `RoundAbortedError` if it is under way here."""
        if plan.round_id in self._rounds:
            self._rounds[plan.round_id][0].abort(why)

    def retire(self, result: torch.Tensor | None = None) -> None:
        """End the round that holds its result in this tensor for good; without one, end all."""
        for round_id, (round, _) in list(self._rounds.items()):
            if result is None or round.result is result:
                round.retire()
                del self._rounds[round_id]
                self._past[round_id] = round.committed_term
                while len(self._past) > MAX_PAST:
                    self._past.popitem(last=False)

    async def drain(self, limit_s: float) -> None:
        """Wait, for at most `limit_s` seconds, until nobody takes over results from here any more."""
        deadline = asyncio.get_running_loop().time() + limit_s
        while any(repairer.is_serving for _, repairer in self._rounds.values()):
            if asyncio.get_running_loop().time() >= deadline:
                return
            await asyncio.sleep(0.02)

    # ---- answering others

    async def _expect(self, peer: PeerId, round_id: str) -> tuple[Round, Repairer, int]:
        """The round with this id and the caller's index in it; waits a little for the plan to arrive."""
        if round_id not in self._rounds:
            if self._expecting[peer] >= MAX_EXPECTING:
                raise RejectedError("too many of its requests wait for a plan already", code=RefusalCode.ROUND)
            self._expecting[peer] += 1
            try:
                await self._wait_for(round_id)
            finally:
                self._expecting[peer] -= 1
                self._expecting += Counter()  # forgets those at zero
        round, repairer = self._rounds[round_id]
        if peer not in round.members:
            raise ProtocolError("it is no member of that round", peer=peer, round=round.plan.step)
        return round, repairer, round.members.index(peer)

    async def _wait_for(self, round_id: str) -> None:
        deadline = asyncio.get_running_loop().time() + EXPECT_S
        while round_id not in self._rounds:
            if round_id in self._past:
                raise RejectedError("that round is over here", code=RefusalCode.ROUND)
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                raise RejectedError("that round is unknown here", code=RefusalCode.ROUND)
            await self._changed.wait(left)

    async def _serve_part(self, peer: PeerId, stream: MessageStream) -> None:
        hello = await stream.receive(PartHello)
        round, repairer, sender = await self._expect(peer, hello.round_id)
        deadline = asyncio.get_running_loop().time() + EXPECT_S
        while (reducer := repairer.reducer(hello.assignment)) is None:  # the repair may still be on its way to us
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0 or round.aborted:
                raise RejectedError("that part is not reduced here", code=RefusalCode.PART)
            await round.changed.wait(left)
        await reducer.attend(sender, hello, stream)

    async def _serve_fetch(self, peer: PeerId, stream: MessageStream) -> None:
        request = await stream.receive(FetchChunks)
        round, _, _ = await self._expect(peer, request.round_id)
        await round.run(serve_fetch(round, stream, request))

    async def _serve_lost(self, peer: PeerId, stream: MessageStream) -> None:
        request = await stream.receive(Lost)
        round, repairer, sender = await self._expect(peer, request.round_id)
        _require_not_aborted(round)
        await repairer.hear(sender, request)
        _require_not_aborted(round)
        await stream.send(Done())

    async def _serve_alive(self, peer: PeerId, stream: MessageStream) -> None:
        request = await stream.receive(Alive)
        if (term := self._past.get(request.round_id)) is not None:
            await stream.send(RoundState(term, term))
            return
        round, _, _ = await self._expect(peer, request.round_id)
        _require_going_on(round)
        await stream.send(RoundState(round.held_term, round.committed_term))

    async def _serve_freeze(self, peer: PeerId, stream: MessageStream) -> None:
        request = await stream.receive(Freeze)
        round, repairer, sender = await self._expect(peer, request.round_id)
        _require_going_on(round)
        await stream.send(repairer.freeze(sender, request))

    async def _serve_repair(self, peer: PeerId, stream: MessageStream) -> None:
        request = await stream.receive(Repair)
        round, repairer, sender = await self._expect(peer, request.round_id)
        _require_not_aborted(round)  # given up, or its result left: what it would send is being changed already
        repairer.apply(sender, request)
        await stream.send(Done())

    async def _serve_hold(self, peer: PeerId, stream: MessageStream) -> None:
        request = await stream.receive(Hold)
        await answer(stream, await self._committed_term(peer, stream, request))

    async def _committed_term(self, peer: PeerId, stream: MessageStream, request: Hold) -> int:
        """Wait until the round is committed. What answers afterwards keeps nothing of the round alive."""
        if (term := self._past.get(request.round_id)) is not None:
            return term
        _, repairer, sender = await self._expect(peer, request.round_id)
        return await repairer.commit.serve(sender, stream, request)


def _require_not_aborted(round: Round) -> None:
    """Who gave a round up mends nothing in it any more, even if it knows that the result counts."""
    if round.aborted:
        raise RejectedError(round.aborted, code=RefusalCode.ABORTED)


def _require_going_on(round: Round) -> None:
    """Who gave a round up takes no part in it any more: it may have promised another attempt by now."""
    if round.committed_term is None:
        _require_not_aborted(round)
