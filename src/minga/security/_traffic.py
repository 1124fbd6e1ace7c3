"""What the checks of a step cost in bytes: they grow with the square of the members, and not with the model."""

from __future__ import annotations

from typing import Final

HASH_BYTES: Final = 32
_FLOAT_BYTES: Final = 8
_COIN_BYTES: Final = 128
"""Commitment, secret, salt, and what names the toss."""
_ENVELOPE_BYTES: Final = 96
_ENVELOPES: Final = 4
"""Signed messages: gradient and result hashes; the coin's commitment; its reveal; projections and norms."""


def control_bytes(members: int, *, directions: int = 1, merkle: bool = False) -> int:
    """Return the control bytes that each member receives in a step, before gossip sends anything twice.

    Formula of BTARD section 7: from each of the n members n hashes of gradient parts (with `merkle` their Merkle root
    alone), for each of n parts `directions` projections and a norm in float64, the coin, and the signed envelopes.
    Raises `ValueError` for negative numbers.
    """
    if members < 0 or directions < 0:
        raise ValueError(f"{members} members and {directions} directions must not be negative")
    hashes = HASH_BYTES * (1 if merkle else members)
    claims = _FLOAT_BYTES * (directions + 1) * members
    return members * (hashes + claims + _COIN_BYTES + _ENVELOPES * _ENVELOPE_BYTES)
