"""The command `minga` as a process of its own in which threads are guarded, its child processes included.

With `--namespace PATH` before all else it runs on a host of `tests.netlab`.
"""

from __future__ import annotations

import sys

from minga.cli import main
from minga.cli.demo import child
from minga.core.thread_guard import guard_threads  # `minga.testing` imports much that most commands do without

if __name__ == "__main__":
    if sys.argv[1:2] == ["--namespace"]:
        from tests.netlab import enter

        enter(sys.argv[2])
        del sys.argv[1:3]
    guard_threads()
    child.program = (__file__,)
    main()
