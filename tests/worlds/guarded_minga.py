"""The command `minga` as a process of its own in which threads are guarded, its child processes included.

Its trainers rest after each micro-batch, as if their machine were slower: a test that waits for something else leaves
the processor to other tests.
"""

from __future__ import annotations

import functools
import sys
import time

from minga.cli import main
from minga.cli.demo import child
from minga.core.thread_guard import guard_threads  # `minga.testing` imports much that most commands do without

REST_S = 0.015


def rest_after_micro_batches() -> None:
    """Let each call of `Optimizer.step` take `REST_S` seconds more."""
    from minga.training.optimizer import Optimizer

    step = Optimizer.step

    @functools.wraps(step)
    def rested(self: Optimizer, *arguments: object, **named: object) -> object:
        time.sleep(REST_S)
        return step(self, *arguments, **named)  # type: ignore[arg-type]

    Optimizer.step = rested  # type: ignore[assignment,method-assign]


if __name__ == "__main__":
    guard_threads()
    if sys.argv[1:2] in (["host"], ["join"]):
        rest_after_micro_batches()
    child.program = (__file__,)
    main()
