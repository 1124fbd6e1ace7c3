"""Commit: a member applies the result of a round only once a quorum of the electorate holds it.

Theory of operation. A member that has the whole vector does not apply it yet. It tells the coordinator, the first of
the living in the order of the plan, that it *holds* the result, and stays on that stream until the answer comes:

    member       ── Hold{term, members} ──▶ coordinator    these have the whole vector, as it is in this term
    coordinator  ── Committed{term} ──────▶ member         a quorum holds it: apply

That costs one round trip to the coordinator. A coordinator that falls silent is replaced by the next in order, as in a
repair. One that gives signs of life and no answer is not waited for alone: after `PATIENCE_S` each member tells the
next in order, too, then the one after that. Any member that hears of a quorum knows the same as a coordinator. A round
that is given up before the answer came leaves its members in doubt: others may have applied it.

Why no two results of one step are ever applied. This is Paxos (Lamport, "The Part-Time Parliament", 1998), with one
instance for each step, and these parts:

    acceptors   the members of the last committed round, without those that said goodbye: the *electorate*
    ballot      (number of the attempt, its leader, term of its last repair), compared in this order
    promise     to join a leader (`averaging/matchmaking/votes.py`); within a round, to answer a `Freeze` of a term
    accept      to hold a result, said by `Hold`
    value       the vector, and with it the members of the round that made it: the next step's electorate

1. Two quorums of one electorate share a member: each has more than half of its votes, or half with the tie-breaker.
   Goodbyes may be known to one leader and not to another, and still: let k of n members have left for good, a quorum
   A not knowing a of them and B not knowing b. Both lie within the n - k others, |A| >= (n - k + a)/2 and
   |B| >= (n - k + b)/2. If a + b > 0 they share a member; if not, both know the same and have the same tie-breaker.
   This takes it that the k left before either quorum was complete: see the end.
2. One ballot has one result. Within a term each chunk is made by one root, which sends everybody the same bytes. A term
   belongs to one coordinator: it needs the frozen quorum, and each member answers one `Freeze` a term.
3. A later ballot has the result of an earlier one that a quorum held. By 1 the quorum that promised the later ballot
   has a member of the one that held. It held first: after its promise it holds nothing lower. So the one who decides on
   the later ballot hears of what is held. A leader then lets the round adopt the latest that its voters held, which
   is that result, by induction over the ballots between. It leaves out what no quorum can have held, because the
   voters that lack it are a quorum (`may_be_committed` in `averaging/election.py`): by 1 that is another result. A
   coordinator of a repair finds every chunk with a member that is not given up, so no chunk is made anew; and what a
   member holds that earlier repairs went on without is not asked for, since each frozen member tells who these are.
4. A member applies a result only after a quorum held it. By 2 and 3 it is the only one of its step. So all who apply
   step s agree on the electorate of step s + 1, and any two histories that both advance from there would need two
   quorums that share a member which held both results: there is none.

A member has a vote in a step only if its process took part in a committed round before: a process that was started anew
may have forgotten a promise. Where so many were that the others are no quorum, the step waits until all members are in
one group again. All of these have the same rounds behind them, so none has applied the step, and what those that ended
had applied is lost with them; then the others decide alone, as if these had said goodbye. What is not covered, and
named in `docs/guarantees.md`: an electorate of two, of which either may decide alone, and a first group, which succeeds
none, such as one of peers that were all started anew (newcomers make none without those that had the state before them:
`come_back` in `averaging/matchmaking/votes.py`). Nor is this: members hold a result, it is committed, they say goodbye,
and the rest is cut into halves before all of it has heard of the commit. Then the halves judge by electorates of
different rounds, neither of which has the leavers in it. So do newcomers of that round behind a cut, if the members
that committed it with them end, are started anew on this side, and come together with the rest.

Where the first step comes from is not this protocol's affair, but one thing depends on it: electorates are compared
within one history only. So each state carries its lineage (`minga.training.lineage`): the founding that the organiser
signed, once, and a running digest of the ids of the committed rounds. A leader takes no peer into an attempt whose
digest is another, so all members of an attempt have the same rounds behind them, and with them, by 1 to 4, one
electorate. A peer without a founded state is no member of any attempt: it can make no first group of its own. What the
exceptions above leave (two of one electorate of two, a peer alone with its checkpoint) are histories of one founding.
They differ in their digests, cannot mix, and are ordered by `Standing`; the order is total, and both sides know it, so
of two that meet exactly one gives way.

A majority that is lost for good leaves no quorum, and nothing above lets the rest go on: it cannot tell a death from a
cut. So the organisers may, by a signed order that names the members that go on (`identity/access/orders.py`). It
begins another epoch, and each epoch is an instance of all of the above with its own first electorate, the members
named. They come to the newest state among them first; what one held, and none of them applied, counts no more. Two
histories may then exist for a time, if the lost majority lives behind a cut and goes on. They cannot mix: a leader
takes no peer of another epoch, peers count and fetch from peers of their own epoch only, and a peer changes its epoch
to a higher one, never back. And one remains: orders reach every peer that is connected to one that knows them, epochs
are ordered by number and hash, and a peer that the order does not name drops its state and fetches that of those it
names. So once all peers are connected all are in the highest epoch, within which 1 to 4 hold.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict

from minga.averaging.allreduce.messages import ALIVE, HOLD, Alive, Committed, Hold, RoundState
from minga.averaging.allreduce.round import Round
from minga.core.aio import end, racing
from minga.core.errors import ClosedError, ProtocolError, RejectedError, RemoteError
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.network.rpc.stream import MessageStream

LOOK_S, LOOK_SHARE = 1.0, 0.05
"""Seconds, or the share of the round if that is longer, after which a coordinator that still waits for a quorum asks
the members of which it does not know that they hold it."""
PATIENCE_S = 30.0
"""Seconds, or as long as the whole round was foreseen to take if that is longer, after which a member that still has no
answer tells one more member what it holds."""
CROSSING_S = 30.0
"""Seconds in which what a member sent before it had the answer may still arrive."""


async def answer(stream: MessageStream, term: int) -> None:
    """Say that the result of `term` is committed; what the member said meanwhile crosses with that and is dropped."""
    await stream.send(Committed(term))
    await stream.finish()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CROSSING_S):
            await stream.drain()


@loop_bound
class QuorumCommit:
    """One member's part in the commit of a round, and the coordinator's if it falls to this member."""

    def __init__(self, round: Round) -> None:
        self._round = round
        self._held: dict[int, set[int]] = defaultdict(set)  # term -> members that hold its result

    async def run(self) -> None:
        """Hold the result as soon as it is whole, until it is committed or the round is given up."""
        round = self._round
        while not (round.is_done or round.aborted):
            if not round.may_hold:
                await round.changed.wait()
                continue
            round.held_term = round.term
            self._note(round.term, {round.me})
            coordinator, term = round.alive()[0], round.term
            if round.committed_term is not None:
                self._judge(round.committed_term)
            elif coordinator == round.me:
                await self._gather_quorum()
            else:
                async with racing([self._tell(coordinator, term), self._tell_more(term)]) as ends:
                    await next(ends)

    async def serve(self, sender: int, stream: MessageStream, request: Hold) -> int:
        """Take down who holds the result; returns the term to `answer` when it is committed.

        Raises `RejectedError` if it never is.
        """
        round = self._round
        if sender in round.dead:
            raise RejectedError("it was given up in this round", code=RefusalCode.GIVEN_UP)
        self._hear(request, stream)
        async with racing([self._hear_more(stream), round.decided.wait()]) as ends:
            await next(ends)
        if round.committed_term is None:
            raise RejectedError(round.aborted or "aborted", code=RefusalCode.ABORTED)
        return round.committed_term

    # ---- the member

    async def _tell(self, coordinator: int, term: int) -> None:
        round = self._round
        try:
            await self._ask(coordinator, term)
        except RemoteError as error:
            if isinstance(error, RejectedError) and error.code == RefusalCode.GIVEN_UP:
                round.abort(error.message)
            elif not round.decided.is_set():
                round.mark_dead(coordinator, error.message)

    async def _tell_more(self, term: int) -> None:
        """Tell the members after the coordinator, one more after each pause; ends only if it is cancelled."""
        pause_s, others = max(PATIENCE_S, self._round.expected_s), self._round.alive()[1:]
        asking: set[asyncio.Task[None]] = set()
        try:
            for member in others:
                await asyncio.sleep(pause_s)
                if member != self._round.me:
                    asking.add(asyncio.get_running_loop().create_task(self._ask_quietly(member, term)))
            await asyncio.Event().wait()
        finally:
            await end(*asking)

    async def _ask_quietly(self, member: int, term: int) -> None:
        with contextlib.suppress(RemoteError, ClosedError):  # the coordinator counts, and whether it lives
            await self._ask(member, term)

    async def _ask(self, member: int, term: int) -> None:
        """Say who holds the result of `term` until the answer comes, or `member` need not hear of it any more."""
        round = self._round
        async with round.node.open(round.members[member], HOLD) as stream:
            listening = asyncio.get_running_loop().create_task(stream.receive(Committed))
            listening.add_done_callback(lambda _: round.changed.fire())
            told: set[int] = set()
            try:
                while self._is_due(member, term) and not listening.done():
                    if self._held[term] - told:
                        told = set(self._held[term])
                        await stream.send(Hold(round.plan.round_id, term, tuple(sorted(told))))
                    else:
                        await round.changed.wait()
                if listening.done():
                    self._judge(listening.result().term)
            finally:
                await end(listening)

    def _is_due(self, member: int, term: int) -> bool:
        """Whether this member, if it coordinates, still has to hear of this term."""
        round = self._round
        if round.decided.is_set():
            return False
        return round.may_hold and round.term == term and member not in round.dead

    def _judge(self, term: int) -> None:
        """The result of `term` counts, and with it that of all later terms: is it what this member holds?"""
        round = self._round
        round.commit(term)
        if not round.is_done:
            round.abort("the others completed this round without this member")

    # ---- the coordinator

    def _hear(self, request: Hold, stream: MessageStream) -> None:
        round = self._round
        if any(member >= len(round.members) for member in request.members):
            raise ProtocolError("it names a member that the round does not have", peer=stream.peer, phase="commit")
        if request.term > max(round.term, round.promised):  # each member that is not given up was frozen for a repair
            raise ProtocolError("it holds the result of a repair that never was", peer=stream.peer, phase="commit")
        self._note(request.term, set(request.members))

    async def _hear_more(self, stream: MessageStream) -> None:
        for _ in self._round.members:  # each message names more of them than the one before
            self._hear(await stream.receive(Hold), stream)
        raise ProtocolError("it says again what it said before", peer=stream.peer, phase="commit")

    def _note(self, term: int, members: set[int]) -> None:
        if members <= self._held[term]:
            return
        self._held[term] |= members
        if self._round.electorate.is_quorum(self._held[term]):
            self._round.commit(term)
        self._round.changed.fire()

    async def _gather_quorum(self) -> None:
        """Wait until a quorum holds the result, and find out now and then whether there still is one.

        Who takes over from the leader asks at once: the others may be past the round, and have nothing to tell.
        """
        round, term, loop = self._round, self._round.term, asyncio.get_running_loop()
        period_s = max(LOOK_S, LOOK_SHARE * round.expected_s)
        look_s = loop.time() + (period_s if round.me == 0 else 0.0)
        while self._is_due(round.me, term):
            await round.changed.wait(max(0.0, look_s - loop.time()))
            if self._is_due(round.me, term) and loop.time() >= look_s:
                silent = [member for member in round.alive() if member not in self._held[term]]
                await asyncio.gather(*(self._look_after(member) for member in silent))
                if not round.electorate.is_quorum(round.alive()):
                    round.abort("too few members of the group are left to commit its result")
                look_s = loop.time() + period_s

    async def _look_after(self, member: int) -> None:
        round = self._round
        try:
            state = await round.node.call(round.members[member], ALIVE, Alive(round.plan.round_id), RoundState)
        except RemoteError as error:
            if not round.decided.is_set():
                round.mark_dead(member, error.message)
        else:
            if state.committed is not None:  # another member coordinated
                self._judge(state.committed)
            elif state.held is not None:
                self._note(state.held, {member})
