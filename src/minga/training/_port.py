"""Where the thread that trains and the event loop meet.

Theory of operation. The training thread owns model and optimizer; the loop owns the network. Between them stands one
small state machine under one lock:

            add (micro-batch)                 park                 boundary              seal
    OPEN ────────────────────▶ OPEN      OPEN ────▶ PARKING ────────────────▶ PARKED ────────────▶ SEALED
      ▲                                                  resume │                 │                  │
      └─────────────────────────────────────────────────────────┴─────────────────┴── work applied ──┘

A trainer that fills the step all by itself parks at once. The loop may seal at any time: what was accumulated up to
the last boundary goes into the round, and the micro-batch under way then, whose gradient belongs to parameters that are
about to change, is dropped when it ends. With the *synchronous* strategy the thread waits while PARKED or SEALED. With
the *delayed* one parking sets the buffer aside and the thread goes on into a second buffer; the result is applied at
the first boundary after it came, so gradients are at most one step old.

At its boundaries, and while it waits, the thread does the work that the loop asks for (`Work`): apply a reduced vector,
capture the state, restore one. The same machine serves a coroutine in simulations: nothing here blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from minga.averaging._messages import Report
from minga.core._errors import ClosedError, MingaError
from minga.core._signal import Signal
from minga.training._speed import Speed

TELL_PERIOD_S = 0.05
"""Shortest time, in seconds, between two reports of progress to the loop while the step is open."""


class Phase(enum.Enum):
    """See the module's theory of operation."""

    OPEN = "open"
    PARKING = "parking"
    PARKED = "parked"
    SEALED = "sealed"


class Wait(enum.Enum):
    """What `poll` answers when the thread can do nothing but wait."""

    WAIT = "wait"


WAIT: Final = Wait.WAIT


@dataclass(frozen=True)
class Work:
    """Something that only the training thread may do; `done` is resolved, on the loop, with its return value."""

    name: str
    run: Callable[[], Any]
    done: asyncio.Future[Any]


class TrainerPort:
    """The meeting point of one trainer and its loop. `new_vector` makes an empty accumulator.

    With a `target_batch_size` B the trainer parks by itself once it has B samples, and its vector holds gradients times
    samples / B instead of times samples, which keeps the gradient of a whole batch as it is, to the last bit.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        new_vector: Callable[[], torch.Tensor],
        *,
        delayed: bool = False,
        target_batch_size: int | None = None,
    ) -> None:
        self.changed = Signal()
        self.woken = Signal()  # for trainers that are coroutines on the same loop
        self.condition = threading.Condition()
        self.closed: BaseException | None = None
        self.at_boundary: Callable[[], None] | None = None
        """Called by the training thread in each `poll` that has no work for it, when the model is at rest."""
        self._loop, self._delayed, self._target = loop, delayed, target_batch_size
        self.unit = target_batch_size or 1
        """Samples that have weight 1 in the vector."""
        self._vector = new_vector()
        self._aside: torch.Tensor | None = new_vector() if delayed else None
        self._samples = self._aside_samples = 0
        self._phase = Phase.OPEN
        self._work: deque[Work] = deque()
        self._boundary_s: float | None = None  # loop time at which the micro-batch under way began
        self._waiting = self._paused = False
        self._last_samples = 0
        self._told_s, self._telling = -TELL_PERIOD_S, False
        self._speed = Speed()
        self._batch_time = Speed()

    # ---- the training thread

    def add(self, accumulate: Callable[[torch.Tensor], bool], samples: int) -> bool:
        """A micro-batch of `samples` ended: let `accumulate` add it to the vector.

        Returns False if it was dropped, because the step was closed without it or because it was not finite.
        """
        with self.condition:
            now = self._loop.time()
            if self._boundary_s is not None and samples:
                self._speed.add((now - self._boundary_s) / samples)
                self._batch_time.add(now - self._boundary_s)
            self._last_samples, self._boundary_s, self._paused = samples, now, False
            taken = self._phase is not Phase.SEALED or self._delayed
            if taken:
                taken = self._accumulate(accumulate)
            if taken:
                self._samples += samples
            full = self._phase is Phase.OPEN and self._target is not None and self._samples >= self._target
            parks = self._phase is Phase.PARKING or full
            if parks:
                self._park()
            urgent = parks or (self._phase is not Phase.OPEN and not self._delayed)
        if urgent:
            self._tell_loop()
        else:
            self._tell_loop_sparingly(now)
        return taken

    def poll(self) -> Work | Wait | None:
        """What the thread has to do now: some work, wait, or (None) go on computing.

        Raises what closed the port. Between `poll` and the end of the work nothing else may touch the model.
        """
        with self.condition:
            if self.closed is not None:
                raise self.closed
            if self._work:
                return self._work.popleft()
        if self.at_boundary is not None:
            self.at_boundary()
        with self.condition:
            if self._phase is Phase.PARKING:
                self._park()
                self._tell_loop()
            self._waiting = not self._delayed and self._phase is not Phase.OPEN
            if self._waiting:
                return WAIT
            self._boundary_s = None if self._paused else self._loop.time()
            return None

    def wait(self, seconds: float | None = None) -> None:
        """Block the thread until `poll` may answer something else, or for at most `seconds`."""
        with self.condition:
            if not self._work and self.closed is None and (self._delayed or self._phase is not Phase.OPEN):
                self.condition.wait(seconds)

    def finish(self, work: Work) -> None:
        """Do a piece of work and report its result to the loop."""
        try:
            result = work.run()
        except BaseException as error:  # an interrupt too: the model may be half-way between two steps
            why = f"the model could not {work.name} on the thread that trains: {type(error).__name__}: {error}"
            failure = error if isinstance(error, MingaError) else ClosedError(why)
            with self.condition:
                self.closed = self.closed or failure
            self._on_loop(_settle, work.done, None, failure)
            raise
        self._on_loop(_settle, work.done, result, None)

    def pause(self) -> None:
        """The thread leaves off computing (evaluation, the end of the program): expect no micro-batch until `add`."""
        with self.condition:
            self._paused, self._boundary_s = True, None
        self._tell_loop()

    # ---- the loop: what averaging needs (`Contributor`)

    def report(self) -> Report:
        """Samples, speed and the micro-batch under way."""
        with self.condition:
            parked = self._phase in (Phase.PARKED, Phase.SEALED)
            samples = self._aside_samples if self._delayed and parked else self._samples
            rate = 1.0 / self._speed.value if self._speed.value else 0.0
            if parked or self._waiting or self._boundary_s is None:
                return Report(samples, rate, parked=parked)
            busy_s = max(0.0, self._loop.time() - self._boundary_s)
            return Report(samples, rate, self._last_samples, busy_s, self._batch_time.value)

    def park(self) -> None:
        """Stop at the next boundary; at once if the thread does not compute."""
        with self.condition:
            if self._phase is Phase.OPEN:
                self._phase = Phase.PARKING
                if self._boundary_s is None or self._waiting:
                    self._park()
        self.changed.fire()

    def resume(self) -> None:
        """Go on accumulating towards the same step."""
        with self.condition:
            if self._phase in (Phase.PARKED, Phase.SEALED) and self._aside is not None:
                self._vector.add_(self._aside)
                self._samples += self._aside_samples
                self._aside.zero_()
                self._aside_samples = 0
            self._phase = Phase.OPEN
        self._wake()

    def seal(self) -> tuple[torch.Tensor | None, int]:
        """The mean gradient so far and its samples; see `Contributor.seal`."""
        with self.condition:
            if self._phase not in (Phase.PARKED, Phase.SEALED):
                self._park()
            self._phase = Phase.SEALED
            vector, samples = (
                (self._vector, self._samples) if self._aside is None else (self._aside, self._aside_samples)
            )
        if not samples:
            return None, 0
        vector.div_(samples / self.unit)
        return vector, samples

    def unseal(self) -> None:
        """The round came to nothing: what was sealed counts again, for the next group."""
        with self.condition:
            vector, samples = (
                (self._vector, self._samples) if self._aside is None else (self._aside, self._aside_samples)
            )
            vector.mul_(samples / self.unit)
        self.resume()

    def reopen(self, *, drop_all: bool = False) -> None:
        """A new step begins: forget what went into the last one (with `drop_all` also what was accumulated since)."""
        with self.condition:
            if self._aside is None or drop_all:
                self._vector.zero_()
                self._samples = 0
            if self._aside is not None:
                self._aside.zero_()
                self._aside_samples = 0
            self._phase = Phase.OPEN
        self._wake()

    # ---- the loop: work for the thread

    def request(self, name: str, run: Callable[[], Any]) -> asyncio.Future[Any]:
        """Have the training thread run something at its next boundary; the future tells the result."""
        work = Work(name, run, self._loop.create_future())
        with self.condition:
            if self.closed is not None:
                work.done.set_exception(self.closed)
                return work.done
            self._work.append(work)
        self._wake()
        return work.done

    def close(self, error: BaseException) -> None:
        """Let the training thread go: its next `poll` raises `error`."""
        with self.condition:
            self.closed = self.closed or error
            for work in self._work:
                work.done.cancel()
            self._work.clear()
        self._wake()

    # ---- inner workings

    def _park(self) -> None:
        """Under the lock: what was accumulated is complete for this step."""
        if self._aside is not None:
            self._vector, self._aside = self._aside, self._vector
            self._samples, self._aside_samples = 0, self._samples
        self._phase = Phase.PARKED

    def _accumulate(self, accumulate: Callable[[torch.Tensor], bool]) -> bool:
        """Under the lock. What was interrupted half-way would be a wrong gradient: the step begins anew here."""
        try:
            return accumulate(self._vector)
        except BaseException:
            self._vector.zero_()
            self._samples = 0
            raise

    def _wake(self) -> None:
        with self.condition:
            self.condition.notify_all()
        self._on_loop(self.woken.fire)  # work for the training thread ends here, too
        self._on_loop(self.changed.fire)

    def _tell_loop_sparingly(self, now_s: float) -> None:
        """Tell at once, but not more often than every `TELL_PERIOD_S`: what comes in between is told at its end."""
        if self._telling:
            return
        if now_s - self._told_s >= TELL_PERIOD_S:
            self._told_s = now_s
            self._tell_loop()
        else:
            self._telling = True
            self._on_loop(self._loop.call_later, TELL_PERIOD_S, self._tell_late)

    def _tell_late(self) -> None:
        self._told_s, self._telling = self._loop.time(), False
        self.changed.fire()

    def _tell_loop(self) -> None:
        self._on_loop(self.changed.fire)

    def _on_loop(self, function: Callable[..., object], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile, and nobody waits for this any more
            self._loop.call_soon_threadsafe(function, *arguments)


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if not future.done():
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
