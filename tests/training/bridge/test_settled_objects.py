"""What is there when a peer begins to train is not looked through for garbage until the last peer is closed.

The claims are tried in a process of their own, which runs this file: to thaw what is frozen in that of the tests would
have each later collection there look at a million objects.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable

from minga.training.bridge.loop_thread import settle_objects


class Cycle:
    """An object that only the collector can free."""

    def __init__(self) -> None:
        self.me = self


def settled_cycles_are_freed_once_the_last_peer_is_closed() -> None:
    held = [Cycle()]
    watched = weakref.ref(held[0])
    ends = [settle_objects(), settle_objects()]
    assert gc.get_freeze_count() > 1000
    held.clear()
    gc.collect()
    assert watched() is not None
    ends[0]()
    ends[0]()
    assert gc.get_freeze_count() > 1000
    ends[1]()
    gc.collect()
    assert (watched(), gc.get_freeze_count()) == (None, 0)


def garbage_is_collected_before_and_what_comes_later_as_ever() -> None:
    early, late = Cycle(), Cycle()
    was_early, was_late = weakref.ref(early), weakref.ref(late)
    del early
    end = settle_objects()
    assert was_early() is None
    newer = Cycle()
    was_newer = weakref.ref(newer)
    del newer, late
    gc.collect()
    assert was_newer() is None
    assert was_late() is not None
    end()


def a_program_that_has_frozen_objects_itself_is_left_alone() -> None:
    gc.freeze()
    before = gc.get_freeze_count()
    fresh = [Cycle() for _ in range(100)]
    settle_objects()()
    assert gc.get_freeze_count() <= before
    assert gc.get_freeze_count() > 1000
    assert len(fresh) == 100


def what_a_program_freezes_after_a_peer_began_stays_frozen() -> None:
    end = settle_objects()
    fresh = [Cycle() for _ in range(1000)]
    gc.freeze()
    end()
    assert gc.get_freeze_count() > 1000
    assert len(fresh) == 1000


def garbage_that_closes_another_peer_when_it_is_collected_does_not_block() -> None:
    class ClosesPeer(Cycle):
        def __init__(self) -> None:
            super().__init__()
            self.end = settle_objects()

        def __del__(self) -> None:
            self.end()
            closed.append(1)

    closed: list[int] = []
    ClosesPeer()
    gc.unfreeze()
    end = settle_objects()
    assert closed == [1]
    end()


CLAIMS: tuple[Callable[[], None], ...] = (
    settled_cycles_are_freed_once_the_last_peer_is_closed,
    garbage_is_collected_before_and_what_comes_later_as_ever,
    a_program_that_has_frozen_objects_itself_is_left_alone,
    what_a_program_freezes_after_a_peer_began_stays_frozen,
    garbage_that_closes_another_peer_when_it_is_collected_does_not_block,
)


def test_settled_objects() -> None:
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=60.0)
    assert (done.returncode, done.stdout.split()) == (0, [claim.__name__ for claim in CLAIMS]), done.stderr


if __name__ == "__main__":
    for claim in CLAIMS:
        gc.unfreeze()
        claim()
        print(claim.__name__, flush=True)
