"""The command `minga` as a process of its own in which threads are guarded, its child processes included."""

from __future__ import annotations

from minga.cli import main
from minga.cli.demo import child
from minga.core.thread_guard import guard_threads  # `minga.testing` imports much that most commands do without

if __name__ == "__main__":
    guard_threads()
    child.program = (__file__,)
    main()
