"""What is held out of training: a property of the content alone, the same on every machine, equal contents alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from blake3 import blake3

from minga.core.errors import ConfigurationError

T = TypeVar("T")


def content_rank(content: bytes | str) -> float:
    """A number in [0, 1) that depends on the content alone. What has one below the held-out fraction is held out.
    Halves of surrogate pairs do not count.
    """
    body = content.encode("utf-8", "ignore") if isinstance(content, str) else content
    return int.from_bytes(blake3(body).digest(length=8), "big") / 2**64


def by_rank(contents: Iterable[str]) -> list[str]:
    """The contents in the order of their ranks, so that the first ones are a part of all, whatever their order was."""
    return sorted(contents, key=lambda each: (content_rank(each), each))


def held_out(contents: Sequence[bytes | str], fraction: float) -> list[bool]:
    """For each of all contents that there are, whether it is held out: what has a rank below the fraction, the lowest
    one in any case, and never the highest. So none that was trained on is held out where others are added, unless all
    had ranks below the fraction, or came from a stream, of which the lowest one is not held out.

    Raises `ConfigurationError` if nothing is left to train on.
    """
    if fraction <= 0 or not contents:
        return [False] * len(contents)
    ranks = [content_rank(each) for each in contents]
    lowest, limit = min(ranks), min(fraction, max(ranks))
    chosen = [rank == lowest or rank < limit for rank in ranks]
    if all(chosen):
        raise ConfigurationError(
            f"data.heldout_fraction = {fraction}: of {len(contents)} documents or pictures none is left to train on; "
            "add some, or set it to 0"
        )
    return chosen


def parted(items: Sequence[T], contents: Sequence[bytes | str], fraction: float) -> tuple[list[T], list[T]]:
    """The items to train on and those that are held out because of their contents, each in the order given.

    Raises `ConfigurationError` if nothing is left to train on.
    """
    training: list[T] = []
    heldout: list[T] = []
    for item, is_out in zip(items, held_out(contents, fraction), strict=True):
        (heldout if is_out else training).append(item)
    return training, heldout
