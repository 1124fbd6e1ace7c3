"""A check, for tests, that what belongs to an event loop is used on the thread of that loop only.

Most of a peer lives on one event loop, without locks; beside it run the training thread and worker threads. Nothing
shows at once when one of these reads the board while the loop changes it. So each class that belongs to a loop says so:

    @loop_bound
    class Board: …

and where `guard_threads` was called, every method of such a class raises `WrongThreadError` on another thread than the
object's own. An object belongs to the thread where it was made if a loop ran there, else to the first that calls one of
its methods. Methods that are made for other threads, too, are marked `any_thread`.

The decorator only remembers the class: without a call of `guard_threads` no method is any slower. A simulation has one
thread for everything, so only tests with real peers can find a fault with this, and simulations run `unguarded`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
import types
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any, Final, TypeVar

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

_HOME: Final = "_home_thread"
_ANY_THREAD: Final = "_any_thread"


class WrongThreadError(RuntimeError):
    """An object of the event loop was used on another thread: a fault of minga's own."""


class _Guard:
    """The classes that belong to a loop, and whether their methods are checked."""

    def __init__(self) -> None:
        self.classes: list[type] = []
        self.is_on = False
        self.refused: list[str] = []
        self.replaced: list[tuple[type, str, Any, Any]] = []
        """Class, name, the member without the check, and with it."""


_guard = _Guard()


def loop_bound(cls: C) -> C:
    """Class decorator: the objects belong to one event loop."""
    _guard.classes.append(cls)
    if _guard.is_on:
        _check(cls)
    return cls


def any_thread(method: F) -> F:
    """Method decorator, below `property` if it is one: in a loop-bound class, this may be called on any thread."""
    vars(method)[_ANY_THREAD] = True
    return method


def guard_threads() -> list[str]:
    """Check from now on, in the whole process, that loop-bound objects are used on their own threads; for tests.

    Returns the list to which every refused call is added, because its exception may have been logged only.
    """
    if not _guard.is_on:
        _guard.is_on = True
        for cls in _guard.classes:
            _check(cls)
    return _guard.refused


@contextlib.contextmanager
def unguarded() -> Iterator[None]:
    """Leave the checks out meanwhile, where one thread does everything; what a test has put in their place stays."""
    for cls, name, plain, checked in _guard.replaced:
        if vars(cls)[name] is checked:
            setattr(cls, name, plain)
    try:
        yield
    finally:
        for cls, name, plain, checked in _guard.replaced:
            if vars(cls)[name] is plain:
                setattr(cls, name, checked)


def _check(cls: type) -> None:
    for name, member in list(vars(cls).items()):
        checked = member
        if isinstance(member, property):
            functions = _checked(member.fget), _checked(member.fset), _checked(member.fdel)
            checked = property(*functions, member.__doc__)
        elif isinstance(member, types.FunctionType) and name == "__init__":
            checked = _remembering(member)
        elif isinstance(member, types.FunctionType) and not name.startswith("__"):
            checked = _checked(member)
        if checked is not member:
            setattr(cls, name, checked)
            _guard.replaced.append((cls, name, member, checked))


def _remembering(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def wrapper(self: Any, *arguments: Any, **named: Any) -> None:
        with contextlib.suppress(RuntimeError):  # no loop runs here: the first call decides
            asyncio.get_running_loop()
            setattr(self, _HOME, get_ident())
        init(self, *arguments, **named)

    return wrapper


def _checked(method: Callable[..., Any] | None) -> Any:
    if method is None or hasattr(method, _ANY_THREAD) or inspect.isasyncgenfunction(method):
        return method

    @functools.wraps(method)
    def wrapper(self: Any, *arguments: Any, **named: Any) -> Any:
        if self.__dict__.get(_HOME) != get_ident():  # in short: this is called hundreds of thousands of times a second
            _require_home(self, method)
        return method(self, *arguments, **named)

    @functools.wraps(method)
    async def coroutine(self: Any, *arguments: Any, **named: Any) -> Any:
        _require_home(self, method)  # where it runs counts, not where it was called
        return await method(self, *arguments, **named)

    return coroutine if inspect.iscoroutinefunction(method) else wrapper


def _require_home(thing: Any, method: Callable[..., Any]) -> None:
    here = get_ident()
    home = thing.__dict__.setdefault(_HOME, here)
    if home != here:
        why = f"{method.__qualname__} was called on {threading.current_thread().name}, not on the thread of its loop"
        _guard.refused.append(why)
        raise WrongThreadError(why)
