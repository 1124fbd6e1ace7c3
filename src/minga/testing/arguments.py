"""What a suite is given: a class where it needs an instance, or the reverse, is one line instead of a failed check."""

from __future__ import annotations


def require_instance(given: object, kind: type, call: str) -> None:
    """Raise `TypeError` unless `given` is an instance of `kind`; `call` is how one is passed, with {} for a class."""
    if isinstance(given, kind):
        return
    if isinstance(given, type):
        raise TypeError(f"pass an instance: {call.format(given.__name__)}")
    raise TypeError(f"pass an instance of {kind.__name__}, not {_shown(given)}: {call.format(f'My{kind.__name__}')}")


def require_class(given: object, kind: type, call: str) -> None:
    """Raise `TypeError` unless `given` is a class below `kind`; `call` is how one is passed, with {} for it."""
    if isinstance(given, type) and issubclass(given, kind):
        return
    if isinstance(given, kind):
        raise TypeError(f"pass the class, not an instance: {call.format(type(given).__name__)}")
    raise TypeError(f"pass a class of {kind.__name__}, not {_shown(given)}: {call.format(f'My{kind.__name__}')}")


def _shown(given: object) -> str:
    if isinstance(given, type):
        return given.__name__
    return repr(given)[:60] if isinstance(given, str | int | float | None) else f"a {type(given).__name__}"
