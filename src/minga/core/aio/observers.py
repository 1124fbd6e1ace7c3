"""Observers: the one way in which parts of a peer act on each other's changes.

An observer is called directly, with typed arguments, and what it raises goes to the part that tells it, so that no
mistake in a rule stays hidden. Events (`minga.core.events.bus`) are for people and logs only: nothing acts on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

from minga.core.thread_guard import loop_bound

P = ParamSpec("P")


@loop_bound
class Observers(Generic[P]):
    """The functions to call when one thing happens; they are called in the order in which they were added."""

    def __init__(self) -> None:
        self._observers: list[Callable[P, None]] = []

    def add(self, observer: Callable[P, None]) -> Callable[[], None]:
        """Call `observer` each time from now on; returns the function that ends this."""
        self._observers.append(observer)
        return lambda: self._observers.remove(observer)

    def tell(self, *arguments: P.args, **named: P.kwargs) -> None:
        """Call all observers. An exception of one of them is raised here, and the rest are not called."""
        for observer in list(self._observers):
            observer(*arguments, **named)
