"""Round-robin, the server's side: one client trains at a time, for so many batches; then comes the next.

    turn ─▶ queue ─▶ granted: the part that was handed over last ─▶ train, train, … ─▶ hand_over ─▶ next in the queue

Clients queue in the order in which they ask. The one whose turn it is loses it when it does not come in time, or begins
anew; what it trained stays in the top. The part that goes from client to client is kept as it came, unread: the next
client checks its digest. A server that takes over has none, and the first client goes on with what it has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Final

from minga.core.errors import RejectedError
from minga.core.refusal_code import RefusalCode
from minga.split.computing.applying import Applying, BatchOutcome, BatchWork
from minga.split.computing.loss import LossFunction
from minga.split.computing.one_top import OneTop
from minga.split.computing.parts import ModelPart, Tensors
from minga.split.wire.messages import Kind
from minga.training.state.manifest import Manifest
from minga.training.state.snapshot import StateSnapshot

MAX_QUEUE: Final = 256


class Turns(Applying):
    """One top, which the clients train in turns of `batches`."""

    kinds: Collection[Kind] = ("predict", "train", "turn", "hand_over")

    def __init__(self, part: ModelPart, loss: LossFunction, batches: int) -> None:
        self._top, self._batches = OneTop(part, loss), batches
        self._queue: deque[BatchWork] = deque()
        self._holder: str | None = None
        self._left = 0
        self._handed: tuple[Tensors, str] = ((), "")

    @property
    def steps(self) -> int:
        """Steps of the top."""
        return self._top.steps

    def apply(self, work: BatchWork) -> Sequence[BatchOutcome]:
        """A "turn" is answered when it is granted, all others at once."""
        if work.kind == "predict":
            return self._top.apply(work)
        if work.kind == "turn":
            return self._ask(work)
        if work.client != self._holder:
            return [BatchOutcome(work, refusal=_lost("it is the turn of another client"))]
        if work.kind == "hand_over":
            if work.tensors:
                self._handed = work.tensors, work.digest
            self._holder = None
            return [BatchOutcome(work), *self._grant_next()]
        if self._left < 1:
            return [BatchOutcome(work, refusal=_lost(f"a turn has {self._batches} batches"))]
        (outcome,) = self._top.apply(work)
        self._left -= outcome.applied
        return [outcome]

    def capture(self) -> StateSnapshot:
        """The top as it is."""
        return self._top.capture()

    def check(self, state: Manifest | StateSnapshot) -> None:
        """Whether it is of this top."""
        self._top.check(state)

    def restore(self, snapshot: StateSnapshot) -> None:
        """Go on from there; it is nobody's turn."""
        self._queue.clear()
        self._holder, self._handed = None, ((), "")
        self._top.restore(snapshot)

    def half_done(self) -> Collection[str]:
        """The client whose turn it is."""
        return [] if self._holder is None else [self._holder]

    def drop(self, client: str) -> Sequence[BatchOutcome]:
        """It loses its turn, or its place in the queue."""
        outcomes = self._leave_queue(client)
        if client == self._holder:
            self._holder = None
            return [*outcomes, *self._grant_next()]
        return outcomes

    def _ask(self, work: BatchWork) -> Sequence[BatchOutcome]:
        if len(self._queue) >= MAX_QUEUE:
            return [
                BatchOutcome(work, refusal=RejectedError("too many clients wait for their turn", code=RefusalCode.BUSY))
            ]
        outcomes = self._leave_queue(work.client)
        if work.client == self._holder:  # it does not know, and goes on with what it has
            return [*outcomes, BatchOutcome(work)]
        self._queue.append(work)
        return outcomes if self._holder is not None else [*outcomes, *self._grant_next()]

    def _leave_queue(self, client: str) -> list[BatchOutcome]:
        gone = [work for work in self._queue if work.client == client]
        self._queue = deque(work for work in self._queue if work.client != client)
        return [BatchOutcome(work, refusal=_lost("this client asked once more")) for work in gone]

    def _grant_next(self) -> Sequence[BatchOutcome]:
        if not self._queue:
            return []
        work = self._queue.popleft()
        self._holder, self._left = work.client, self._batches
        tensors, digest = self._handed
        return [BatchOutcome(work, tensors, digest=digest)]


def _lost(why: str) -> RejectedError:
    return RejectedError(why, code=RefusalCode.GIVEN_UP)
