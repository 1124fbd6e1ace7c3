"""What is held out of training: a property of the content alone, the same on every machine, equal contents alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from blake3 import blake3

from minga.core.errors import ConfigurationError

T = TypeVar("T")


def content_rank(content: bytes | str) -> float:
    """A number in [0, 1) that depends on the content alone. Of a stream, whose end nobody knows, what has one below the
    held-out fraction is held out. Halves of surrogate pairs do not count.
    """
    body = content.encode("utf-8", "ignore") if isinstance(content, str) else content
    return int.from_bytes(blake3(body).digest(length=8), "big") / 2**64


def held_out(contents: Sequence[bytes | str], fraction: float) -> list[bool]:
    """For each of all contents that there are, whether it is held out: about that share, at least one.

    Raises `ConfigurationError` if nothing is left to train on.
    """
    if fraction <= 0 or not contents:
        return [False] * len(contents)
    ranks = [content_rank(each) for each in contents]
    limit = sorted(ranks)[max(1, round(fraction * len(ranks))) - 1]
    chosen = [rank <= limit for rank in ranks]
    if all(chosen):
        raise ConfigurationError(
            f"data.heldout_fraction = {fraction}: of {len(contents)} documents or pictures none is left to train on; "
            "add some, or set it to 0"
        )
    return chosen


def parted(items: Sequence[T], contents: Sequence[bytes | str], fraction: float) -> tuple[list[T], list[T]]:
    """The items to train on, in the order given, and those that are held out because of their contents, in the order of
    their ranks: figures are made with the first ones, which so are a part of all.

    Raises `ConfigurationError` if nothing is left to train on.
    """
    is_out = held_out(contents, fraction)
    training = [item for item, out in zip(items, is_out, strict=True) if not out]
    chosen = sorted((number for number, out in enumerate(is_out) if out), key=lambda each: content_rank(contents[each]))
    return training, [items[number] for number in chosen]
