"""Where the thread that trains and the event loop meet.

Theory of operation. The training thread owns model and optimizer; the loop owns the network. Between them stands one
small state machine under a lock:

            add (micro-batch)            at a boundary with as many samples as the limit           seal
    OPEN ────────────────────▶ OPEN ──────────────────────────────────────────────────▶ PARKED ────────▶ SEALED
      ▲                                            higher limit                            │               │
      └────────────────────────────────────────────────────────────────────────────────────┴── applied ────┘

How many samples the trainer stops at (its *limit*) is said by the leader of the step, or before that by the plan of the
last one. The loop may seal at any time: what was accumulated up to the last boundary goes into the round. The
micro-batch under way then has a gradient of parameters that are about to change: it is dropped when it ends, unless the
strategy keeps late ones. While PARKED or SEALED the thread waits, unless the strategy has rounds *in flight* beside
computing. Then parking sets the sum aside, and the thread goes on into another one. The result is applied at the first
boundary after it came, so gradients are at most one step old. Where rounds take longer than computing does, the thread
waits when it has the samples of the next step; the plan of the round says how many these are, and before it came they
are taken to be about as many as lie aside.

At its boundaries, and while it waits, the thread does the work that the loop asks for (`ThreadTask`): apply a reduced
vector, capture the state, restore one. The same machine serves a coroutine in simulations: nothing here blocks.

The lock (`condition`) guards the machine only, so that the loop never waits for arithmetic on a long vector. That has a
lock of its own (see `Strategy`), which the loop takes for short vectors only: `seal` and `unseal` do theirs on a worker
thread.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import torch

from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.messages import Report
from minga.averaging.strategy_choice import StrategyChoice, StrategyFacts, round_batch_range
from minga.core.aio import offload
from minga.core.errors import ConfigurationError, NonFiniteError
from minga.core.spec.run_spec import RunSpec
from minga.training.bridge.micro_batch_times import MicroBatchTimes
from minga.training.bridge.thread_bridge import WAIT, ThreadTask, TrainingThread, Wait
from minga.training.replica.accelerator import LateVerdict, verdict_of
from minga.training.replica.interface import ReplicaInterface
from minga.training.state.snapshot import StateSnapshot
from minga.training.strategy.interface import Recovery, Strategy

logger = logging.getLogger("minga.training")

T = TypeVar("T")

SYNCHRONOUS: Final = StrategyChoice("synchronous")

NOT_AWAITED_AFTER: Final = 2
"""Micro-batches in a row that were not finite, after which nobody is to wait for a better one. One alone is usual where
a loss is scaled."""
WARNED_AFTER: Final = 10
"""The same, after which the program is warned."""

LONG_WAIT_S, LONG_WAIT_STEPS, LONGEST_WAIT_S = 10.0, 2.0, 300.0
"""A thread that waits for these seconds and as long as so many steps took, or for the last number of seconds, waits for
no step that gets on."""


class PortPhase(enum.Enum):
    """See the module's theory of operation."""

    OPEN = "open"
    PARKED = "parked"
    SEALED = "sealed"


class GradientPort(TrainingThread):
    """The meeting point of one trainer and its loop: the phases of a step, in which `strategy` works on `replica`.

    With `target_batch_sizes` (the smallest and the largest B of the run) the trainer never goes on beyond the largest,
    and its vector holds gradients times samples / B instead of times samples, B being the smallest; where that is the
    only one, this keeps the gradient of a whole batch as it is, to the last bit. `choose` gives strategies by their
    names, for states that bring another one.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        replica: ReplicaInterface,
        *,
        strategy: StrategyChoice = SYNCHRONOUS,
        choose: Callable[[str], StrategyChoice] = StrategyChoice,
        target_batch_sizes: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(loop)
        self._thread = threading.current_thread()  # that trains, as far as one knows: it came by last
        self.on_broken_sum: Callable[[], None] = lambda: None
        """Called on any thread when a sum had to be dropped because it was not finite."""
        self.on_strategy: Callable[[int], None] = lambda _: None
        """Called on the training thread when another strategy goes on, with the samples that the last one had left."""
        self.unit = target_batch_sizes[0] if target_batch_sizes else 1
        """Samples that have weight 1 in the vector."""
        self._target = target_batch_sizes[1] if target_batch_sizes else None
        self._replica, self._choose = replica, choose
        self._begin(strategy)
        _take_over(self._strategy, replica.strategy_tensors())
        self._phase = PortPhase.OPEN
        self._limit: int | None = None
        self._next_limit: int | None = None
        self._boundary_s: float | None = None  # loop time at which the micro-batch under way began, if one is
        self._reopened_s: float | None = None  # loop time at which a step began, until the thread comes by again
        self._paused = self._resting = self._held = self._is_adding = False
        self._last_samples = 0
        self._broken_in_row = 0  # micro-batches that were not finite since the last one that was
        self._uncertain = deque[_MicroBatch]()  # of the open step; only an accelerator leaves some here
        self._times = MicroBatchTimes()
        self._begun_s = -math.inf  # loop time at which the present step began
        self._step_s = math.inf  # seconds that the last step took

    @classmethod
    def for_run(cls, loop: asyncio.AbstractEventLoop, replica: ReplicaInterface, spec: RunSpec) -> GradientPort:
        """The port of a trainer in the run of `spec`; it goes on with the strategy of the replica's state."""
        return cls(
            loop,
            replica,
            strategy=StrategyChoice.of(spec, replica.strategy),
            choose=partial(StrategyChoice.of, spec),
            target_batch_sizes=round_batch_range(spec.at(replica.step)),
        )

    @property
    def facts(self) -> StrategyFacts:
        """Those of the present strategy."""
        return self._strategy.facts

    @property
    def strategy(self) -> str:
        """The name of the present strategy, as the replica has it."""
        return self._replica.strategy

    def cap(self, samples: int) -> None:
        """The largest target batch size of the run is another now. On any thread."""
        with self.lock:
            self._target = samples if self._target is not None else None

    # ---- the training thread

    def add(self, samples: int, loss: float | torch.Tensor | None = None) -> bool:
        """A micro-batch of `samples` ended, whose mean gradients the replica has: let the strategy take them up.

        `loss` is its mean loss, if that is known. Returns False if the micro-batch was dropped, because the step was
        closed without it or because it was not finite. One that an accelerator still computes may be dropped later, see
        `on_micro_batch`; it counts for nothing before that is known.
        """
        with self._strategy.arithmetic:
            self._hear()
            with self.lock:
                is_timed, self._paused = self._boundary_s is not None, False
                self._boundary_s = self._boundary_s if is_timed else self._loop.time()
                in_time = self._phase is not PortPhase.SEALED or self.facts.keeps_late_micro_batches
            taken: bool | LateVerdict = False
            if in_time:
                self._merge()
                self._strategy.note_loss(loss)
                self._is_adding = True  # until one ends well, if this one is interrupted
                try:
                    taken = self._strategy.micro_batch(samples)
                except BaseException:
                    with self.lock:  # the step began anew
                        self._uncertain.clear()
                    raise
                self._is_adding = False
            ended = _MicroBatch(samples, loss, taken, self._loop.time(), is_timed=is_timed, in_time=in_time)
            with self.lock:
                self._last_samples = samples
                self._uncertain.append(ended)
                if ended.is_certain and len(self._uncertain) == 1:
                    self._learn(ended)
        if self._uncertain:
            self._await(0 if self._may_be_done() else 1)
        return bool(ended.taken)

    def poll(self) -> ThreadTask | Wait | None:
        """What the thread has to do now: some work, wait, or (None) go on computing.

        Raises what closed the port. Between `poll` and the end of the work nothing else may touch the model.
        """
        self._thread = threading.current_thread()
        while self._uncertain and self._needs_certainty():
            self._await(0)
        with self.lock:
            if not self._uncertain and (work := self._next_work()):
                self._boundary_s = self._reopened_s = None
                self._stand(True)
                return work
        if self.at_boundary is not None:
            self.at_boundary()
        if self._is_done():
            self._park_here()
        with self.lock:
            self._reopened_s = None
            if self._needs_another_time():
                self._times.begin_try()
                self._phase = PortPhase.OPEN
            if self._has_to_wait():
                self._boundary_s = None
                self._stand(True)
                return WAIT
            self._stand(False)
            if self._uncertain:  # the time of that one is not over yet
                return None
            begins = self._boundary_s is None and not self._paused
            self._boundary_s = None if self._paused else self._loop.time()
        if begins:
            self._notifier.tell()
        return None

    def wait(self, seconds: float | None = None) -> None:
        """Block the thread until `poll` may answer something else, or for at most `seconds`."""
        with self.condition:
            if not self._work and self.closed is None and self._has_to_wait():
                self.condition.wait(seconds)

    def may_leave(self, waited_s: float) -> bool:
        """Whether nothing is lost if the program leaves, which has waited for so long: it gave nothing to the step, no
        round needs it, or the step does not get on, as while the run is paused.
        """
        with self.lock:
            if self._phase is PortPhase.SEALED:
                return False
            return not self.report().samples or waited_s > min(
                LONG_WAIT_S + LONG_WAIT_STEPS * self._step_s, LONGEST_WAIT_S
            )

    @property
    def is_at_rest(self) -> bool:
        """Whether this thread may look at all that training changes: it is the one that trains, or that has ended, and
        nothing is half done, as after work that failed and in a signal handler amid work or a micro-batch. Where it
        is so once the port is closed, it stays so.
        """
        if self._unfinished or self._is_adding or self._strategy.arithmetic.locked():
            return False
        return self._thread is threading.current_thread() or not self._thread.is_alive()

    def pause(self) -> None:
        """The thread leaves off computing (evaluation, the end of the program): expect no micro-batch until `add`."""
        self._await(0)
        with self.lock:
            self._paused, self._boundary_s = True, None
        self._notifier.tell()

    # ---- the loop: what averaging needs (`Contributor`)

    def report(self) -> Report:
        """Samples, speed and the micro-batch under way."""
        self._hear()
        with self.lock:
            parked = self._phase in (PortPhase.PARKED, PortPhase.SEALED)
            samples = self._strategy.complete_samples if parked else self._strategy.samples
            rate = self._times.samples_per_s
            since_s = self._reopened_s if self._boundary_s is None else self._boundary_s
            is_idle = self._paused or self._stands or (since_s is None and not parked)
            said: dict[str, Any] = {"limit": self._limit, "score": self._strategy.score}
            said |= self._replica.loop._asdict()
            if self._broken_in_row >= NOT_AWAITED_AFTER:
                return Report(samples, **said)
            if is_idle:
                return Report(samples, rate, parked=parked, **said)
            busy_s = 0.0 if parked or since_s is None else max(0.0, self._loop.time() - since_s)
            last, each_s = self._last_samples, self._times.each_s
            return Report(samples, rate, last, busy_s, each_s, parked=parked, **said)

    def limit(self, samples: int | None) -> None:
        """Stop at the first boundary with at least so many samples, at once if the thread does not compute; and go on
        up to there, if it stopped before. None: no limit.
        """
        with self.lock:
            self._limit = samples
            if self._phase is PortPhase.PARKED and not self._has_enough(self._strategy.complete_samples):
                self._phase = PortPhase.OPEN
            elif self._is_done() and self._boundary_s is None:
                self._park()
        self._wake()

    def limit_next(self, samples: int | None) -> None:
        """How far to go in the step after this one until it is `reopen`ed; None if nobody said."""
        with self.lock:
            self._next_limit = samples
        self._wake()

    def rest(self, *, resting: bool) -> None:
        """Keep the thread from computing, from its next boundary on, or let it go on."""
        with self.lock:
            was_resting, self._resting = self._resting, resting
        if was_resting and not resting:
            self._wake()

    def hold(self, *, holding: bool) -> None:
        """Keep the thread from computing as `rest` does, for reasons of this peer's own, or let it go on."""
        with self.lock:
            was_held, self._held = self._held, holding
        if was_held and not holding:
            self._wake()

    @property
    def micro_batch_s(self) -> float:
        """Seconds that a micro-batch takes as a rule, 0 before the first."""
        with self.lock:
            return self._times.each_s

    async def seal(self) -> tuple[torch.Tensor | None, int]:
        """The mean gradient so far and its samples; see `Contributor.seal`."""
        return await self._soonest(self._seal)

    async def unseal(self) -> None:
        """The round came to nothing: what was sealed counts again, for the next group."""
        await self._soonest(self._unseal)

    def absorb(
        self, round: int, mean: torch.Tensor, fate: ContributionFate, contributors: int, earlier: int, batch: int
    ) -> None:
        """The round that leads to global step `round` counted: let the strategy change the replica by its mean, which
        is one of so many contributions, in a step with the target batch size `batch`.

        It has what was sealed so many attempts `earlier` than the last. For the training thread; `reopen` comes after.
        """
        with self._strategy.arithmetic:
            self._strategy.note_round(contributors, batch)
            if earlier:
                self._strategy.counted_earlier(earlier)
            self._strategy.absorb(round, mean, fate)

    def reopen(self, limit: int | None = None) -> None:
        """A new step begins, up to `limit` at first. For the training thread, after it has changed the model."""
        with self.lock:
            self._phase, self._limit, self._next_limit = PortPhase.OPEN, limit, None
            now = self._loop.time()
            self._reopened_s = now  # about to compute: to one that is idle nothing would be left
            self._begun_s, self._step_s = now, now - self._begun_s
        self._wake()

    def change(self, strategy: StrategyChoice) -> None:
        """Have another strategy go on from the state that peers share now, and drop what is not shared.

        For the training thread, between `absorb` and `reopen`.
        """
        with self._strategy.arithmetic:
            self._go_back()
            self._succeed(strategy)

    def restore(self, snapshot: StateSnapshot, recovery: Recovery, limit: int | None = None) -> None:
        """Have the replica become what `snapshot` holds, and begin a new step, up to `limit` at first. A snapshot of
        another strategy brings that along, and what this peer had of its own is dropped.

        For the training thread. Raises `ConfigurationError` if the snapshot is of another model or optimizer.
        """
        before = self.strategy
        with self._strategy.arithmetic:
            local = None
            if recovery is Recovery.REBASE:
                local = {name: tensor.clone() for name, tensor in self._strategy.local_tensors().items()}
            self._replica.restore(snapshot)
            if self.strategy != before:
                local = None
                self._succeed(self._choose(self.strategy))
                self._replica.check(snapshot)
            self._strategy.restored(_tensors_of(snapshot), snapshot.step, local)
        self.reopen(limit)

    def local_tensors(self) -> dict[str, torch.Tensor]:
        """Copies, in RAM, of what the strategy has for this peer alone. For the training thread."""
        with self._strategy.arithmetic:
            found = self._strategy.local_tensors().items()
            return {name: tensor.detach().to("cpu", copy=True) for name, tensor in found}

    def take_up(self, local: Mapping[str, torch.Tensor]) -> None:
        """Have the strategy go on from the `local_tensors` of an earlier process, with the state that is here.

        For the training thread. Raises `ValueError` if they are not those of this strategy and model.
        """
        strategy = self._strategy
        with strategy.arithmetic:
            for name, tensor in strategy.local_tensors().items():
                if name not in local or (local[name].shape, local[name].dtype) != (tensor.shape, tensor.dtype):
                    raise ValueError(f"it has no {name[:80]!r} that fits to the model")
            strategy.restored(strategy.shared_tensors(), strategy.replica.step, local)

    def begin_anew(self) -> None:
        """Have the strategy go on from the state that peers share now, as a newcomer does: what this peer has beside it
        is of no use. For the training thread.
        """
        with self._strategy.arithmetic:
            self._go_back()
            self._strategy.restored(self._strategy.shared_tensors(), self._replica.step, None)

    def conclude(self) -> None:
        """The run is over: the replica is left with what all share. For the training thread."""
        with self._strategy.arithmetic:
            self._strategy.conclude()

    def missed(self, rounds: int) -> Recovery:
        """What this peer does that missed so many rounds. For the training thread."""
        return self._strategy.missed(rounds)

    # ---- inner workings

    def _go_back(self) -> None:
        """The parameters and buffers here may be others than the shared ones."""
        if self.facts.shares_optimizer:
            self._replica.move_buffers(None)
        else:
            self._replica.restore(self._replica.capture())

    def _begin(self, choice: StrategyChoice) -> None:
        strategy: Strategy = choice.kind(self.condition, unit=self.unit, settings=choice.settings)
        self._replica.hand_over(choice.name, keeps_uncounted=strategy.facts.keeps_uncounted)
        strategy.begin(self._replica)
        with self.lock:
            self._strategy, self._parks = strategy, strategy.facts.max_in_flight == 0

    def _succeed(self, choice: StrategyChoice) -> None:
        samples = self._strategy.samples
        self._begin(choice)
        self.on_strategy(samples)

    def _await(self, most: int) -> None:
        """Wait until it is known whether the micro-batches count that ended, but for the last `most` of them."""
        while True:
            with self.lock:
                if len(self._uncertain) <= most:
                    return
                first = self._uncertain[0]
                first.is_late = first.is_late or not first.is_certain
            first.wait()
            with self.lock:
                if self._uncertain and self._uncertain[0] is first:  # no other thread has heard of it meanwhile
                    self._learn(first)

    def _hear(self) -> None:
        """Learn what is known by now of micro-batches that ended."""
        if self._uncertain:
            with self.lock:
                while self._uncertain and self._uncertain[0].is_certain:
                    self._learn(self._uncertain[0])
                for each in self._uncertain:
                    each.is_late = True

    def _learn(self, ended: _MicroBatch) -> None:
        """Under the condition: it is known whether the first of those that are uncertain counts.

        What the device had done already when this was looked at took it no longer than the thread.
        """
        self._uncertain.popleft()
        taken, now = ended.wait(), self._loop.time() if ended.is_late else ended.ended_s
        if ended.in_time:
            self._broken_in_row = 0 if taken else self._broken_in_row + 1
        if ended.is_timed and ended.samples and self._boundary_s is not None:
            self._times.add(ended.samples, now - self._boundary_s, now)
        self._boundary_s = now
        if taken:
            self._strategy.count(ended.samples)
        urgent = self._phase is not PortPhase.OPEN and self._parks
        if self._is_done():
            self._park()
            urgent = True
        self.on_micro_batch(ended.samples, ended.known_loss() if taken else None, taken)
        ended.taken = taken
        if ended.in_time and not taken and self._broken_in_row == WARNED_AFTER:
            logger.warning(
                "in the last %d micro-batches gradients, or movements of averaged buffers, were NaN, infinite or too "
                "large, and such ones do not count: nothing is learned from this peer",
                WARNED_AFTER,
            )
        if urgent:
            self._notifier.tell()
        else:
            self._notifier.tell_sparingly()

    def _may_be_done(self) -> bool:
        """Whether the thread should park at its next boundary, if all micro-batches count that ended."""
        with self.lock:
            ended = sum(each.samples for each in self._uncertain)
            return self._phase is PortPhase.OPEN and self._has_enough(self._strategy.samples + ended)

    def _needs_certainty(self) -> bool:
        """Whether what the thread does next depends on what the last micro-batches count: work for the loop, or to
        wait. It is not known how far it may go ahead before the plan of the round came.
        """
        with self.lock:
            is_ahead = not self._parks and self._phase is not PortPhase.OPEN and self._next_limit is None
            is_called = bool(self._work) or self.closed is not None
            return is_called or is_ahead or self._may_be_done() or self._has_to_wait()

    def _park(self) -> None:
        """Under the condition: what was accumulated is complete for this step.

        Where a higher limit left a sum aside, there is none to go on into before `_merge`, and of a micro-batch that is
        uncertain nobody would know to which sum it belongs: the thread parks later.
        """
        if not self._strategy.has_leftover and not self._uncertain:
            self._strategy.close()
            self._phase = PortPhase.PARKED

    @property
    def _stands(self) -> bool:
        """Whether the thread is to compute nothing, whatever the phase."""
        return self._resting or self._held

    def _has_to_wait(self) -> bool:
        if not self._parks:
            return self._stands or (self._phase is not PortPhase.OPEN and self._is_ahead())
        return self._stands or self._phase is not PortPhase.OPEN

    def _needs_another_time(self) -> bool:
        """Whether the thread, which is told to compute nothing, computes one micro-batch to see how long it takes."""
        return (
            self._limit == 0
            and self._phase is PortPhase.PARKED
            and not self._strategy.samples
            and not self._stands
            and not self._paused
            and self._times.needs_another(self._loop.time(), self._step_s)
        )

    def _is_ahead(self) -> bool:
        """Whether there is enough for the next step already, as far as one knows."""
        if self._next_limit is not None:
            uncertain = sum(each.samples for each in self._uncertain)
            further = self._strategy.samples + uncertain - self._strategy.complete_samples
            return further >= self._strategy.most_windows * self._next_limit
        return not self._strategy.complete_samples or self._strategy.is_ahead(self._last_samples)

    def _has_enough(self, samples: int) -> bool:
        limits = [limit for limit in (self._limit, self._target) if limit is not None]
        return bool(limits) and samples >= min(limits)

    def _is_done(self) -> bool:
        """Whether the thread should park at its next boundary."""
        return self._phase is PortPhase.OPEN and self._has_enough(self._strategy.samples)

    def _park_here(self) -> None:
        """On the training thread, between two micro-batches: park if the limit is still reached."""
        with self._strategy.arithmetic:
            self._merge()
            with self.lock:
                parks = self._is_done()
                if parks:
                    self._park()
        if parks:
            self._notifier.tell()

    def _merge(self) -> None:
        """Under the arithmetic lock: what was set aside for a group that was not closed counts towards its step."""
        with self.lock:
            left_over = self._strategy.has_leftover and self._phase is PortPhase.OPEN
        if left_over:
            self._strategy.merge()

    async def _soonest(self, work: Callable[[], T]) -> T:
        """Do it here if the vector is short and nobody works on it, else on another thread."""
        if self._strategy.arithmetic.locked():
            return await self._loop.run_in_executor(None, work)
        return await offload(4 * self._replica.vector.numel, work)

    def _seal(self) -> tuple[torch.Tensor | None, int]:
        with self._strategy.arithmetic:
            if self._phase is PortPhase.OPEN:
                self._await(0)
            self._merge()
            with self.lock:
                if self._phase is PortPhase.OPEN:
                    self._park()
                self._phase = PortPhase.SEALED
            try:
                return self._strategy.contribution()
            except NonFiniteError as error:
                logger.warning("left out of step: %s", error)
                self.on_broken_sum()
                return None, 0

    def _unseal(self) -> None:
        with self._strategy.arithmetic:
            self._strategy.take_back()
            with self.lock:
                self._phase = PortPhase.OPEN  # and parks at the next boundary, with what came since
                self._next_limit = None
        self._wake()


@dataclass(eq=False)
class _MicroBatch:
    """One that ended, and whether the strategy has `taken` it up, which an accelerator may say later.

    `ended_s` is when the thread was done with it, and `is_late` whether somebody looked later and the device was not.
    It ended `in_time` for its step. `is_timed` says whether it is known when it began.
    """

    samples: int
    loss: float | torch.Tensor | None
    taken: bool | LateVerdict
    ended_s: float
    is_timed: bool
    in_time: bool
    is_late: bool = False

    @property
    def is_certain(self) -> bool:
        """Whether `wait` returns at once."""
        return isinstance(self.taken, bool) or self.taken.is_known()

    def wait(self) -> bool:
        """Wait until it is known whether it counts; whether it does."""
        return verdict_of(self.taken)

    def known_loss(self) -> float | None:
        """Its loss, after `wait`."""
        if isinstance(self.taken, LateVerdict) and self.taken.loss is not None:
            return self.taken.loss
        return None if self.loss is None else float(self.loss)


def _take_over(strategy: Strategy, kept: Mapping[str, torch.Tensor]) -> None:
    """Have the strategy go on from its tensors in the checkpoint that the replica was restored to.

    Raises `ConfigurationError` if they are those of another strategy.
    """
    if not kept:
        return
    shared = dict(strategy.shared_tensors())
    for name in sorted(kept.keys() | {name for name in shared if name.startswith("strategy/")}):
        one, other = kept.get(name), shared.get(name)
        if one is None or other is None or (one.shape, one.dtype) != (other.shape, other.dtype):
            raise ConfigurationError(
                f"the checkpoint does not fit the strategy of this run: {name[:80]} is not in both"
            )
    strategy.restored({**shared, **kept}, strategy.replica.step, None)


def _tensors_of(snapshot: StateSnapshot) -> dict[str, torch.Tensor]:
    return {entry.name: tensor for entry, tensor in snapshot.named_tensors()}
