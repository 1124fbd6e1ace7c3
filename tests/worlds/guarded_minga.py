"""The command `minga` as a process of its own in which threads are guarded, its child processes included.

With `--dial-timeout SECONDS` before all else it gives up peers that are gone sooner than others do, and with
`--namespace PATH` it runs on a host of `tests.netlab`. The processes of further devices are run by `--python PATH`.
"""

from __future__ import annotations

import gc
import sys
import time

from minga.cli import main
from minga.cli.terminal.output import Ticker
from minga.core.thread_guard import guard_threads  # `minga.testing` imports much that most commands do without
from minga.network.iroh import network
from minga.notebook import command

PAUSE_S = 0.2
"""Between micro-batches: tests wait for other things meanwhile, and what a peer computes is lost to those beside it."""


def _pace(ticker: Ticker) -> None:
    time.sleep(PAUSE_S)
    if ticker.error is not None:
        raise ticker.error


if __name__ == "__main__":
    if sys.argv[1:2] == ["--dial-timeout"]:
        network.DIAL_TIMEOUT_S = float(sys.argv[2])
        del sys.argv[1:3]
    if sys.argv[1:2] == ["--python"]:
        sys.executable = sys.argv[2]
        del sys.argv[1:3]
    if sys.argv[1:2] == ["--namespace"]:
        from tests.netlab import enter

        enter(sys.argv[2])
        del sys.argv[1:3]
    guard_threads()
    gc.unfreeze = lambda: None  # what the tests imported stays frozen: each collection would look at it
    Ticker.check = _pace  # type: ignore[method-assign]
    command.program = (__file__,)
    main()
