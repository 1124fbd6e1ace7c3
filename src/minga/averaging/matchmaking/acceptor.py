"""What this peer promised and held in the attempts at one step, so that it never lends its vote to two results.

Theory of operation. A step may take several attempts: a leader is lost, a round is given up. Attempts have numbers.
To join a leader is to promise it: from now on this peer holds no result of an attempt with a lower number, nor one of
the same number under another leader. So the first leader of a step is promised 1, and each leader joined after it one
more than the last. A leader whose members promised different numbers asks all of them for the highest (`Prepare`).
What this peer held when a round was given up it tells each leader that it joins: another member may have applied it.
`averaging/allreduce/commit.py` has the whole protocol, and why it is safe.
"""

from __future__ import annotations

from minga.averaging.messages import Accepted, Plan
from minga.core.errors import ProtocolError
from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId

MOST_RAISED = 1000
"""By how much a leader may raise a promise in all: a step has few attempts, and numbers must not run out."""
MOST_AHEAD = 1 << 20
"""By how much the number of a plan may exceed a promise: no honest leaders can get so far apart."""


@loop_bound
class Acceptor:
    """One peer's memory of the attempts at its present step. It has a vote once it took part in a committed round."""

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self.accepted: Accepted | None = None
        """The latest result that this peer held in an attempt that it gave up."""
        self.succession: tuple[PeerId, ...] = ()
        """The members of the round that made it, the leader first."""
        self.has_vote = False
        """Whether this process took part in a committed round before, so that it forgot no promise."""
        self._step = -1
        self._promised = self._joined = 0
        """The highest number promised at this step, and the one promised when the present leader was joined."""
        self._leader: PeerId | None = None
        self._is_used = False

    def begin_step(self, step: int) -> None:
        """An attempt at `step` begins. A peer that went back to an earlier step has forgotten what it promised there:
        it has no vote until its next committed round.
        """
        if step < self._step:
            self.has_vote = False
        if step != self._step:
            self.accepted, self.succession, self._promised, self._leader = None, (), 0, None
            self._joined = 0
        self._step = step

    def promise(self, leader: PeerId) -> int:
        """The number that this peer promises by joining `leader` now; 0 if it has no vote."""
        if not self.has_vote:
            return 0
        if leader != self._leader or self._is_used:
            self._promised, self._leader, self._is_used = self._promised + 1, leader, False
            self._joined = self._promised
        return self._promised

    @property
    def highest_led(self) -> int:
        """The highest number that counts in a group which this peer leads. It stays the same however often the members
        promise anew, and those that joined with about the same number as this peer may all promise it.
        """
        return self._joined + MOST_RAISED // 2

    def raise_to(self, leader: PeerId, ballot: int) -> int:
        """Promise `leader`, which was joined, a higher number; returns what is promised to it now."""
        if self.has_vote and leader == self._leader and not self._is_used:
            self._promised = max(self._promised, min(ballot, self._joined + MOST_RAISED))
            return self._promised
        return 0

    def enter(self, plan: Plan) -> None:
        """This peer takes part in the round of a plan.

        Raises `ProtocolError` if it has a vote and promised a higher number, if the number is so high that numbers
        would soon run out, or if the plan takes it for a holder of what it does not hold.
        """
        leader, me = plan.members[0].peer_id, plan.rank_of(self._me)
        is_holder, held = me in plan.holders, self.accepted.round_id if self.accepted is not None else ""
        if is_holder and held != plan.adopts:
            raise ProtocolError("the plan counts on a result that this peer does not hold", peer=leader, phase="group")
        if self.has_vote and plan.electorate and (leader != self._leader or plan.ballot < self._promised):
            raise ProtocolError("the plan has a lower number than its leader was promised", peer=leader, phase="group")
        if plan.ballot > self._promised + MOST_AHEAD:
            raise ProtocolError("the plan has a number that no attempt gets to", peer=leader, phase="group")
        if not is_holder:  # the round writes over what was held before; a quorum promised that this does not count
            self.accepted, self.succession = None, ()
        self._promised, self._leader, self._is_used = max(self._promised, plan.ballot), leader, True
        self.has_vote = self.has_vote or not plan.electorate  # the members of a first group decide, from now on

    def hold(self, accepted: Accepted, succession: tuple[PeerId, ...]) -> None:
        """The round was given up after this peer held its result."""
        self.accepted, self.succession = accepted, succession

    def regroup(self) -> None:
        """The organisers named this peer among those that go on: what was held for the lost majority counts no more."""
        self.accepted, self.succession, self.has_vote = None, (), True

    def commit(self) -> None:
        """This peer took part in a committed round."""
        self.has_vote = True
