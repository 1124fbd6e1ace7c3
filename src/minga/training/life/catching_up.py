"""When a member fetches the swarm's state: where its own is too old, or has been another than that of most for a while.

A newcomer, a peer that missed a step and one that diverged do the same: they tell the step that they fetch, so that the
next step waits for them, and begin anew when the swarm has gone on before the state was here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NoReturn

from minga.averaging.matchmaking.attempt import OutOfSyncError
from minga.core.aio import end, racing
from minga.core.errors import NoStateError, RemoteError
from minga.core.events.bus import EventBus
from minga.core.events.training import MemberDiverged, StateAwaited, SyncFailed, SyncOvertaken
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.training.agreement.comparison import StateComparison
from minga.training.bridge.gradient_port import GradientPort
from minga.training.life.board_view import BoardView
from minga.training.life.founding import Bootstrap, Founding
from minga.training.replica.interface import ReplicaInterface
from minga.training.state.snapshot import StateSnapshot
from minga.training.strategy.interface import Recovery
from minga.training.transfer.download import BrokenOffError, Wanted

# ---- Fetching the swarm's state where this member's own differs or is old.


Download = Callable[[Wanted, StateSnapshot], Coroutine[Any, Any, StateSnapshot]]


@loop_bound
class Synchroniser:
    """Replaces the state behind `port`.

    `download(wanted, have)` fetches such a state from other peers, transferring only the chunks that differ from
    `have`; it raises a `RemoteError` if no peer can serve it.
    """

    def __init__(self, replica: ReplicaInterface, port: GradientPort, download: Download) -> None:
        self._replica, self._port, self._download = replica, port, download

    async def capture(self) -> StateSnapshot:
        """A copy of the present state, made by the training thread."""
        snapshot: StateSnapshot = await self._port.request("capture", self._replica.capture)
        return snapshot

    async def fetch(
        self, wanted: Wanted, overtaken: Callable[[], Coroutine[Any, Any, NoReturn]], *, in_doubt: bool = False
    ) -> StateSnapshot:
        """Take over the swarm's state that is `wanted`; returns it.

        What becomes of this peer's own work is for its strategy to say. But where this is `in_doubt`, since others may
        have counted what this peer gave to a round that came to nothing here, or where its rounds are none of those
        that led to the state, the peer begins anew with a later state: nothing is to count twice, and nothing that
        belongs to another state. Raises, with nothing changed, `RemoteError` if no peer can serve the state, or the
        error of `overtaken` during the download.
        """
        own = await self.capture()
        async with racing((self._download(wanted, own), overtaken())) as ends:
            snapshot: StateSnapshot = await next(ends)

        recovery = Recovery.FETCH
        in_doubt = in_doubt or not own.lineage.may_lead_to(snapshot.lineage)
        if _is_same(snapshot, own):
            recovery = Recovery.REBASE  # nothing was missed
        elif snapshot.step > own.step and not in_doubt:
            recovery = await self._port.request("choose", lambda: self._port.missed(snapshot.step - own.step))

        def restore() -> None:
            if in_doubt and recovery is Recovery.FETCH:
                self._replica.left_out.forget()
            self._port.restore(snapshot, recovery, 0)  # the leader says whether there is time for a micro-batch

        await self._port.request("restore", restore)
        return snapshot


def _is_same(one: StateSnapshot, other: StateSnapshot) -> bool:
    """Whether two snapshots hold the same state; those without numbers have it in their scalars."""
    if (one.step, one.tensors, one.scalars) != (other.step, other.tensors, other.scalars):
        return False
    return one.has_bytes_of(other)


# ---- When this member fetches the state.


SYNC_RETRY_S = 1.0
SYNC_PAUSE_S = 0.1
OVERTAKEN_PERIOD_S = 0.5
SHORTEST_FETCH_S = 1.0
"""A download that is over sooner is not given up, even if the swarm has taken a step meanwhile."""

MOST_FETCHES_GIVEN_UP = 8
"""Then downloads go on to their end: steps are too short for this peer's line, and each costs others a copy."""
DIVERGED_S = 5.0

TOLD_S = 2.0
"""A peer without a state says so after these seconds: most get one sooner."""
LONGEST_WAIT_S = 1800.0
"""Seconds for which a peer waits that has no state of the run while no peer gives it one."""

WARNED_AT = 2
"""The divergence at which the program is warned: one may come of a lost link."""

logger = logging.getLogger("minga.training")


@loop_bound
class StateWait:
    """The wait of a peer for a state of the run: it says for what it waits, and gives up in the end if it has none.

    Nothing that it computes meanwhile counts.
    """

    def __init__(self, node: Node, founding: Founding) -> None:
        self.organiser = founding.run.organiser
        self._node, self._founding = node, founding
        self._begun_s: float | None = None
        self._hopeless_s: float | None = None  # since when no peer is in sight that could help
        self._is_told = False

    async def for_founding(self, state: str) -> Bootstrap:
        """Until the run is founded; `state` as in `Founding.find`."""
        finding = asyncio.get_running_loop().create_task(self._founding.find(state))
        try:
            while not (await asyncio.wait({finding}, timeout=SYNC_RETRY_S))[0]:
                is_near, name = self._node.is_connected(self.organiser), self.organiser[:10]
                gives = "gives it" if self._founding.rules.by_organiser else "says whose it is"
                away = "" if is_near else ", which is not connected now"
                why = f"the run has no first state yet; its organiser {name} {gives}{away}"
                if self._founding.genesis is not None:
                    why = f"its organiser {name} has to say whether the run may begin with this peer's state{away}"
                elif self._founding.told_step:
                    why = (
                        f"the run is at step {self._founding.told_step}, but no peer that is here has the record of "
                        "how it was founded. That lies in the folder and the checkpoints of each peer that trained: "
                        f"one of them, such as the organiser {name}, has to bring it back, or host a new run"
                    )
                if is_other := self._founding.told_first not in ("", state):
                    why = (
                        "the recipe gives this machine another first state than the organiser's; do versions of its "
                        "libraries differ?"
                    )
                self._note(why, is_near and not is_other)
            return await finding
        finally:
            self.end()
            await end(finding)

    async def for_state(self, why: str = "") -> None:
        """For a moment longer; `why` the state did not come, where a peer that has it is in sight.

        Raises `NoStateError` after `LONGEST_WAIT_S` in all.
        """
        if not self._is_told:
            await self._founding.look_again()
        self._note(f"{why or self._nobody()}{self._place(', and it was')}")
        await asyncio.sleep(SYNC_RETRY_S)

    def tell(self, why: str) -> None:
        """Say once for what a peer waits that has a state of the run, if an older one, and may wait for ever."""
        self._note(why, is_hopeful=True)

    def hope(self) -> None:
        """A peer gave a part of the state, or would have if the swarm had not gone on: it is worth waiting for."""
        self._hopeless_s = None

    def end(self) -> None:
        """What was waited for is here."""
        self._begun_s = self._hopeless_s = None
        self._is_told = False

    @property
    def _lone_founder(self) -> PeerId | None:
        """The peer that may be the only one which has a state of the run: it founded the run, and no other was seen to
        have taken a step.
        """
        genesis = self._founding.genesis
        founders = () if genesis is None or self._founding.told_step else genesis.founders
        return PeerId(founders[0]) if founders else None

    def _nobody(self) -> str:
        """Why no state is to be had."""
        founder = self._lone_founder
        if founder is None:
            return "no peer that has the state of this run is here"
        if founder == self._node.peer_id:
            return (
                "this peer founded the run with a state that it does not have any more, and no other peer has it here"
            )
        left = "" if self._node.is_connected(founder) else ", and has left"
        return f"no peer that has the state of this run is here: {founder[:10]} founded it{left}"

    def _place(self, words: str) -> str:
        step = self._founding.told_step
        return f"{words} at step {step}" if step else ""

    def _note(self, why: str, is_hopeful: bool = False) -> None:
        """Say once for what this peer waits, and end it where nothing comes."""
        now = asyncio.get_running_loop().time()
        self._begun_s = now if self._begun_s is None else self._begun_s
        self._hopeless_s = None if is_hopeful else now if self._hopeless_s is None else self._hopeless_s
        if not self._is_told and now - self._begun_s >= TOLD_S:
            self._is_told = True
            self._node.events.emit(StateAwaited(why=why))
            logger.warning("waiting: %s. Nothing that this peer computes counts meanwhile", why)
        if self._hopeless_s is not None and now - self._hopeless_s > LONGEST_WAIT_S:
            founder = self._lone_founder
            raise NoStateError(
                f"no peer gave the state of this run{self._place(', which was')} in {LONGEST_WAIT_S / 60:.0f} minutes. "
                "Join again when its organiser, or another peer that trained, is back"
                if founder is None
                else f"no peer gave the first state of this run in {LONGEST_WAIT_S / 60:.0f} minutes. Peer "
                f"{founder[:10]} founded it: if that does not come back with its folder, host a new run"
            )


@loop_bound
class CatchingUp:
    """Knows whether this peer has to fetch a state, and fetches it; `is_last` says whether a step is the run's last."""

    def __init__(
        self,
        synchroniser: Synchroniser,
        swarm_view: BoardView,
        states: StateComparison,
        events: EventBus,
        is_last: Callable[[int], bool],
        wait: StateWait,
    ) -> None:
        self.needs_state = True
        """Whether this peer takes part in no step before it has looked for a newer state."""
        self.discards_state = False
        """Whether what this peer has is of no use, however new, or no state of the run at all: it waits until it sees a
        state to fetch.
        """
        self._at_least = 0
        self._fetches_given_up = 0
        self._diverged_since_s: float | None = None
        self._divergences = 0
        self._is_told_alone = False
        self._synchroniser, self._swarm_view, self._states = synchroniser, swarm_view, states
        self._events, self._is_last, self._wait = events, is_last, wait

    def require(self, at_least: int = 0) -> None:
        """This peer's state will not do: it needs one of step `at_least` or a later one."""
        self.needs_state, self._at_least = True, at_least

    def is_due(self, step: int) -> bool:
        """Whether the state of `step`, which this peer has, is too old or diverged."""
        is_given_up = self._is_last(step) and self._swarm_view.is_behind(step)  # no other step would show that
        return self.needs_state or is_given_up or self._is_diverged(step)

    def to_fetch(self, step: int) -> Wanted | None:
        """The state that this peer needs, which has that of `step`; None if what it has will do.

        It goes back to a lower standing only if its state has been another than that of most for a while, or to a step
        of its own history that was refused as over. A refusal from another history tells nothing of this one: that peer
        gives way once it sees enough of the others.
        """
        newest, own = self._swarm_view.newest(), self._swarm_view.standing(step)
        if newest is None:
            return None
        since_s, now = self._diverged_since_s, asyncio.get_running_loop().time()
        gives_way = since_s is not None and now - since_s > DIVERGED_S
        is_other = (newest.step - newest.shared, newest.alone) != (own.step - own.shared, own.alone)
        is_told = self._at_least > step and not is_other
        if not self.discards_state and newest < own and not gives_way and not is_told:
            return None
        least = newest.step if is_other else max(newest.step, self._at_least)
        founding = self._swarm_view.lineage.founding
        return Wanted(least, founding=founding, least=newest._replace(final=False), organiser=self._wait.organiser)

    async def go_without(self) -> None:
        """There is nothing to fetch: alone, or first of all, or refused by who has less, just go on soon."""
        if self.discards_state:
            await self._wait.for_state()
            return
        await asyncio.sleep(SYNC_PAUSE_S)
        self._wait.end()
        self.needs_state = False

    async def fetch(self, wanted: Wanted, *, in_doubt: bool) -> StateSnapshot:
        """Take over such a state; returns it. Raises as `Synchroniser.fetch`, and `OutOfSyncError` when the state is of
        no use any more.
        """
        return await self._synchroniser.fetch(wanted, partial(self._watch_whether_over, wanted), in_doubt=in_doubt)

    async def note_failure(self, newest: int, error: RemoteError) -> None:
        """The state of step `newest` did not come: tell why, and wait before the next attempt if that is useful."""
        if isinstance(error, OutOfSyncError | BrokenOffError):
            self._wait.hope()
        if isinstance(error, OutOfSyncError):
            self._fetches_given_up += 1
            self._events.emit(SyncOvertaken(step=newest, why=error.message))
            return
        self._at_least = 0
        self._events.emit(SyncFailed(step=newest, why=error.message))
        if self.discards_state:
            await self._wait.for_state(error.message)
        else:
            self._wait.tell(f"the state of step {newest}, which others have, did not come: {error.message}")
            await asyncio.sleep(SYNC_RETRY_S)

    def finish(self, step: int) -> None:
        """The state of `step` is here.

        If a step ended meanwhile it still has to be seen fetching: the next one is held for it only then.
        """
        self._states.clear()
        self._at_least, self._diverged_since_s, self._fetches_given_up = 0, None, 0
        self.discards_state = False
        self._wait.end()
        self.needs_state = self._swarm_view.is_behind(step)

    def warn_of_end(self, step: int) -> None:
        """The run is over at `step`: tell the program if its end is not that of the others."""
        if self._is_diverged(step):
            logger.warning(
                "the run ended at step %d, and the model here is another than that of the other peers: use theirs, "
                "and see what this program does with parameters, optimizer or learning rate that theirs do not",
                step,
            )
        else:
            self.warn_if_alone(step)

    def warn_if_alone(self, step: int) -> None:
        """Tell the program once that it has come to `step` alone after the run was over: nobody else will have that."""
        if not self._is_told_alone and self._swarm_view.gave_way_too_late(step):
            self._is_told_alone = True
            logger.warning(
                "the others completed the run and left before this peer was ready to fetch their state: the model "
                "here, with which it goes on alone at step %d, is another than theirs; use theirs. Shorter "
                "micro-batches would have kept up",
                step,
            )

    # ---- inner workings

    async def _watch_whether_over(self, wanted: Wanted) -> NoReturn:
        """Raise `OutOfSyncError` when the state that was wanted is of no use any more.

        A step is held for those that fetch its state. So the next one's is fetched from its very beginning.
        """
        await asyncio.sleep(SHORTEST_FETCH_S)
        while self._fetches_given_up >= MOST_FETCHES_GIVEN_UP or not self._has_gone_on(wanted):
            await asyncio.sleep(OVERTAKEN_PERIOD_S)
        raise OutOfSyncError(
            "the swarm went on before the state was here", code=RefusalCode.BEHIND, round=wanted.minimum_step
        )

    def _has_gone_on(self, wanted: Wanted) -> bool:
        newest = self._swarm_view.newest()
        return newest is not None and newest.step > wanted.minimum_step

    def _is_diverged(self, step: int) -> bool:
        settled = self._swarm_view.settled() if self._is_last(step) else {}
        finished = [peer for peer, progress in settled.items() if progress.status == "finished"]
        if not self._states.is_diverged(self._swarm_view.alike(), finished):
            self._diverged_since_s = None
            return False
        if self._diverged_since_s is None:
            self._diverged_since_s = asyncio.get_running_loop().time()
            self._events.emit(MemberDiverged(step=step))
            self._divergences += 1
            if self._divergences == WARNED_AT:
                logger.warning(
                    "at step %d this peer's state is another than that of the others, not for the first time: it takes "
                    "theirs again; does its program change parameters, optimizer or learning rate as no other does?",
                    step,
                )
        return True
