"""What a suite raises where an implementation breaks a promise."""

from __future__ import annotations


class Violation(AssertionError):
    """An implementation broke a promise of its interface."""


def require(holds: bool, tested: object, what: str) -> None:
    """Raise `Violation` unless the promise `what` holds of what is tested, an instance or a class."""
    if not holds:
        name = tested.__name__ if isinstance(tested, type) else getattr(tested, "name", tested)
        raise Violation(f"{name}: {what}")
