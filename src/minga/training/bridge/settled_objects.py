"""Objects that stay for as long as a peer trains are not looked through again and again for garbage.

A process with torch has 150,000 to 320,000 objects that Python's collector follows, nearly all of them parts of
modules. To look through them takes 70 to 150 ms, and the streams and tasks of a peer let that happen every hundred
steps: with a small model that was a tenth of the processor time of a peer. What is there when a peer begins to train is
therefore settled until the last peer of the process is closed. Reference counts free settled objects as ever; only
cycles of them wait for that moment.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

_lock = threading.RLock()  # collecting may run what closes another peer
_owners = 0
_settled_here = 0


def settle_objects() -> Callable[[], None]:
    """Have the collector pass over the objects that are there now, all garbage among them collected before.

    Returns the function that ends this, once all who called here have called theirs; it may be called twice. A program
    that has frozen objects by itself is left alone. Any thread may call it.
    """
    global _owners, _settled_here
    with _lock:
        _owners += 1
        if not gc.get_freeze_count():
            gc.collect()
            gc.freeze()
            _settled_here = gc.get_freeze_count()
    is_ended = False

    def end() -> None:
        nonlocal is_ended
        if not is_ended:
            is_ended = True
            _leave()

    return end


def _leave() -> None:
    global _owners, _settled_here
    with _lock:
        _owners -= 1
        if not _owners and _settled_here:
            if gc.get_freeze_count() <= _settled_here:  # else the program froze more, and it is not for us to say
                gc.unfreeze()
            _settled_here = 0
