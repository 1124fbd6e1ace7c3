"""Which pictures are held out: a property of their content alone, the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence

from blake3 import blake3

from minga.core.errors import ConfigurationError


def content_rank(content: bytes) -> float:
    """A number in [0, 1) that depends on the content alone; what has a small one is held out."""
    return int.from_bytes(blake3(content).digest(length=8), "big") / 2**64


def held_out(contents: Sequence[bytes], fraction: float) -> list[bool]:
    """For each content whether it is held out: about that share, at least one; equal contents alike.

    Raises `ConfigurationError` if nothing is left to train on.
    """
    if fraction <= 0 or not contents:
        return [False] * len(contents)
    ranks = [content_rank(each) for each in contents]
    limit = sorted(ranks)[max(1, round(fraction * len(ranks))) - 1]
    chosen = [rank <= limit for rank in ranks]
    if all(chosen):
        raise ConfigurationError(
            f"data.heldout_fraction = {fraction}: of {len(contents)} pictures none is left to train on"
        )
    return chosen
