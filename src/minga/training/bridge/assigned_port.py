"""The meeting point of the training thread and the event loop in a secure run.

Unlike in ordinary runs (`gradient_port.py`) the program does not choose its data and its pace. The loop asks for the
mean gradient of a public batch, at present parameters or, to check what somebody did, at those of some steps ago; the
thread computes that micro-batch by micro-batch, and else waits:

    loop: compute(task) ──▶ queue ──▶ thread: next_batch() ─▶ backward() ─▶ add() … ──▶ loop: the mean gradient

Between two micro-batches the model is at its present step, and the thread does other work for the loop (`ThreadTask`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from minga.averaging.codecs.dense import CONTRIBUTION_LIMIT, is_finite
from minga.averaging.messages import Report
from minga.core.errors import ConfigurationError
from minga.security.randomness.public_batch import PublicBatch
from minga.training.bridge.micro_batch_times import MovingAverage
from minga.training.bridge.thread_bridge import WAIT, ThreadTask, TrainingThread, Wait
from minga.training.replica.accelerator import verdict_of
from minga.training.replica.gradient_sum import GradientSum


@dataclass(frozen=True)
class GradientTask:
    """The gradient of the public batch of `seed`. `before` and `after` are called on the training thread around each
    micro-batch; in between the model may be at another step than its present one.
    """

    seed: bytes
    before: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None


class _Computation:
    """A task under way: its sum, and how many micro-batches are in it."""

    def __init__(self, task: GradientTask, done: asyncio.Future[torch.Tensor], total: GradientSum) -> None:
        self.task, self.done, self.sum, self.count = task, done, total, 0


class AssignedPort(TrainingThread):
    """What the training thread and the loop know of each other. Each task has `micro_batches` of `size` samples."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, new_sum: Callable[[], GradientSum], *, micro_batches: int, size: int
    ) -> None:
        super().__init__(loop)
        self.unit = micro_batches * size
        """Samples of a task, which have weight 1 in its sum."""
        self._new_sum, self._micro_batches, self._size = new_sum, micro_batches, size
        self._tasks: deque[tuple[GradientTask, asyncio.Future[torch.Tensor]]] = deque()
        self._current: _Computation | None = None
        self._is_given = False
        """Whether the program has a micro-batch in hand."""
        self._is_wanted = False
        self._began_s = 0.0
        self._speed = MovingAverage()

    # ---- the training thread

    def poll(self) -> ThreadTask | Wait | None:
        """What the thread has to do now: some work, wait for a micro-batch that it wants, or (None) go on. Raises what
        closed the port.
        """
        with self.condition:
            if work := self._next_work():
                self._stand(True)
                return work
        if self.at_boundary is not None:
            self.at_boundary()
        with self.condition:
            stands = self._is_wanted and self._current is None and not self._tasks
            self._stand(stands)
            return WAIT if stands else None

    def want_batch(self) -> None:
        """The program has nothing to do but the next micro-batch."""
        self._is_wanted = True

    def next_batch(self) -> PublicBatch:
        """The micro-batch that was wanted; `poll` has said that there is one. Chance begins anew with it."""
        self._is_wanted = False
        with self._working("begin a micro-batch"):
            if self._current is None:
                with self.condition:
                    self._check_open()
                    self._current = _Computation(*self._tasks[0], self._new_sum())
                    self._tasks.popleft()
            self._current.task.before()
            batch = PublicBatch.of(self._current.task.seed, self._current.count, self._size)
            torch.manual_seed(batch.number)
            self._is_given, self._began_s = True, self._loop.time()
        return batch

    def add(self, samples: int, loss: float | torch.Tensor | None = None) -> bool:
        """The micro-batch in hand ended, whose mean gradients are to be added. False if they were not finite.

        Raises `ConfigurationError` for another micro-batch than the one that was given out.
        """
        current = self._current
        if current is None or not self._is_given:
            raise ConfigurationError("in a secure run gradients are those of the micro-batches of optimizer.batches()")
        if samples != self._size:
            raise ConfigurationError(
                f"the micro-batch has {self._size} samples, and step(samples={samples}) was called"
            )
        with self._working("end a micro-batch"):
            is_taken = verdict_of(current.sum.add(samples / self.unit))
            self.on_micro_batch(samples, None if loss is None else float(loss), is_taken)
            self._is_given = False
            current.task.after()
            current.count += 1
            with self.condition:
                self._speed.add((self._loop.time() - self._began_s) / samples)
            if current.count == self._micro_batches:
                self._complete(current)
        return is_taken

    def take_back(self) -> bool:
        """The program will not compute the micro-batch in hand, if there is one: it failed there, or stopped.

        The model goes back to its present step; the same micro-batch is given out again next time.
        """
        current = self._current
        if current is None or not self._is_given:
            return False
        with self._working("take back a micro-batch"):
            self._is_given = False
            current.task.after()
        return True

    def check_whole(self) -> None:
        """See `TrainingThread`; raises `ConfigurationError` also with a micro-batch in hand, which may be of the
        parameters of an earlier step.
        """
        super().check_whole()
        if self._is_given:
            raise ConfigurationError(
                "the parameters may be those of an earlier step while a micro-batch of batches() is in hand: read the "
                "state after its step()"
            )

    def wait(self, seconds: float | None = None) -> None:
        """Block the thread until `poll` may answer something else, or for at most `seconds`."""
        with self.condition:
            if not self._work and not self._tasks and self.closed is None:
                self.condition.wait(seconds)

    def may_leave(self, waited_s: float) -> bool:  # noqa: ARG002
        """Whether nothing is lost if the program leaves: no gradient is half done."""
        return self._current is None

    # ---- the loop

    async def compute(self, task: GradientTask) -> torch.Tensor:
        """The mean gradient of a public batch (float32, flat). Raises what closed the port."""
        done: asyncio.Future[torch.Tensor] = self._loop.create_future()
        with self.condition:
            if self.closed is not None:
                raise self.closed
            self._tasks.append((task, done))
        self._wake()
        return await done

    def report(self) -> Report:
        """Samples so far of the task under way, and the speed."""
        with self.condition:
            rate = 1.0 / self._speed.value if self._speed.value else 0.0
        current = self._current
        return Report(0 if current is None else current.count * self._size, rate, parked=current is None)

    # ---- inner workings

    @contextmanager
    def _working(self, name: str) -> Iterator[None]:
        """What fails inside, or is interrupted, closes the port: the model may be at an earlier step, and the sum may
        hold half a micro-batch, which whoever computes it again takes for an attack.
        """
        self._unfinished = name
        try:
            yield
            self._unfinished = ""
        except BaseException as error:
            self._break(name, error)
            raise

    def _waiting(self) -> list[asyncio.Future[Any]]:
        waiting = [*super()._waiting(), *(done for _, done in self._tasks)]
        waiting += [] if self._current is None else [self._current.done]
        self._tasks.clear()
        return waiting

    def _complete(self, current: _Computation) -> None:
        """What is not finite counts as nothing: whoever computes it again comes to the same."""
        vector = current.sum.vector()
        if not is_finite(vector, CONTRIBUTION_LIMIT):
            vector.zero_()
        self._notifier.call(_settle, current.done, vector)
        self._current = None
        self._notifier.tell()


def _settle(done: asyncio.Future[torch.Tensor], vector: torch.Tensor) -> None:
    if not done.done():
        done.set_result(vector)
