"""The coin that nobody can load: a random string made by all members together, and what is drawn from it.

Each member first publishes a commitment to a secret, and only when all commitments are there the secret itself (Blum's
coin for many, BTARD section 4.2). The random string is a hash of all secrets: one honest member is enough to make it
unpredictable before the first secret is out. What an attacker can still do is to dislike the string, which it knows
first if it reveals last, and keep its secret; it is suspended then and the others toss again (the next `attempt`), so
that each new toss costs a seat, for twice as long each time. So does whatever else undoes a toss that is known.

A commitment hashes the run, the step, the attempt and its author along with the secret. So nobody can publish the
commitment of another member, or one of another toss, and open it with the secret that is revealed for that: the same
secret opens another commitment for each author. The salt hides secrets that carry less than 256 bits of chance.

All that is drawn afterwards comes from keyed hashes of the string with its own purpose in each (`derive`), so that
knowing one stream tells nothing of another. Every field that is hashed carries its type and length: no two lists of
fields are hashed alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from blake3 import blake3

from minga.network.interface import PeerId

RANDOMNESS_BYTES: Final = 32
_LARGEST_INTEGER: Final = 2**64 - 1
_COMMITMENT_CONTEXT: Final = "minga 2026 commitment of the multi-party coin"
_OUTCOME_CONTEXT: Final = "minga 2026 outcome of the multi-party coin"

Field = bytes | str | int


class Reveal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """What opens a commitment: 32 bytes each of secret and salt, fresh from `secrets.token_bytes` for each toss.

    Raises `ValueError` for other lengths, also where one is decoded from the wire.
    """

    secret: bytes
    salt: bytes

    def __post_init__(self) -> None:
        if len(self.secret) != RANDOMNESS_BYTES or len(self.salt) != RANDOMNESS_BYTES:
            raise ValueError(
                f"a reveal has {RANDOMNESS_BYTES} bytes of secret and of salt, "
                f"not {len(self.secret)} and {len(self.salt)}"
            )


@dataclass(frozen=True, slots=True)
class Coin:
    """One toss: the `attempt`-th of `step` in run `run_id`, both counted from 0."""

    run_id: str
    step: int
    attempt: int

    def commitment(self, author: PeerId, reveal: Reveal) -> bytes:
        """Return the 32 bytes that `author` publishes before anybody reveals."""
        hasher = blake3(derive_key_context=_COMMITMENT_CONTEXT)
        hasher.update(_encode(self.run_id, self.step, self.attempt, author, reveal.secret, reveal.salt))
        return bytes(hasher.digest())

    def opens(self, commitment: bytes, author: PeerId, reveal: Reveal) -> bool:
        """Whether `reveal` is what `author` committed itself to in this toss."""
        return commitment == self.commitment(author, reveal)

    def outcome(self, reveals: Mapping[PeerId, Reveal]) -> bytes:
        """Return the shared 32 random bytes: a hash of all secrets in the order of their authors' ids.

        The caller has checked that each reveal opens its author's commitment. Raises `ValueError` without reveals.
        """
        if not reveals:
            raise ValueError("a coin without reveals has no outcome")
        fields = [field for author in sorted(reveals) for field in (author, reveals[author].secret)]
        hasher = blake3(derive_key_context=_OUTCOME_CONTEXT)
        hasher.update(_encode(self.run_id, self.step, self.attempt, *fields))
        return bytes(hasher.digest())


def derive(randomness: bytes, purpose: str, *more: Field) -> bytes:
    """Return 32 bytes that depend on `randomness` (32 bytes) and, in an unpredictable way, on each other argument.

    Integers are from 0 to 2**64 - 1. Raises `ValueError` for others, and for a `randomness` of another length.
    """
    return bytes(blake3(_encode(purpose, *more), key=_checked(randomness)).digest())


def expand(key: bytes, start: int, length: int) -> bytes:
    """Return bytes `start` to `start + length` of the endless stream of `key` (32 bytes, from `derive`).

    BLAKE3's extendable output: any place of it is computed directly, and it is the same on every machine for ever,
    which the streams of numerical libraries do not promise.
    """
    return bytes(blake3(key=_checked(key)).digest(length=length, seek=start))


def _checked(key: bytes) -> bytes:
    if len(key) != RANDOMNESS_BYTES:
        raise ValueError(f"randomness has {RANDOMNESS_BYTES} bytes, not {len(key)}")
    return key


def _encode(*fields: Field) -> bytes:
    return b"".join(_encode_field(field) for field in fields)


def _encode_field(field: Field) -> bytes:
    if isinstance(field, int):
        if not 0 <= field <= _LARGEST_INTEGER:
            raise ValueError(f"{field} is not an integer from 0 to 2**64 - 1")
        return b"i" + field.to_bytes(8, "little")
    tag, content = (b"b", field) if isinstance(field, bytes) else (b"s", field.encode())
    return tag + len(content).to_bytes(8, "little") + content


# ---- Uniform integers from a stream of random bytes, the same on every machine.


LARGEST_BOUND: Final = 2**62
_WORD_BYTES: Final = 8

T = TypeVar("T")


class UniformIntegers:
    """The integers that the stream of `key` (32 bytes) gives, one after another.

    The stream is read as little-endian 64-bit words. A word w below the largest multiple of the bound gives
    w mod bound; the few others, which would favour small numbers, are left out. How many integers are asked for at
    once does not change which come.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._words_used = 0

    def below(self, bound: int, count: int) -> npt.NDArray[np.int64]:
        """Return the next `count` integers from 0 to below `bound`, with repetition, as int64 [count].

        Raises `ValueError` for a bound outside 1 to 2**62 or a negative count.
        """
        if not 1 <= bound <= LARGEST_BOUND:
            raise ValueError(f"the bound of random integers must be from 1 to 2**62, not {bound}")
        if count < 0:
            raise ValueError(f"the count of random integers must not be negative: {count}")
        largest_fair = np.uint64(2**64 - 2**64 % bound - 1)
        found: list[npt.NDArray[np.int64]] = []
        missing = count
        while missing:
            words = self._next_words(missing)
            fair = words[words <= largest_fair]
            found.append((fair % np.uint64(bound)).astype(np.int64))
            missing -= len(fair)
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def sample(self, population: Sequence[T], count: int) -> list[T]:
        """Return `count` different items of `population` in random order (the first places of a Fisher-Yates shuffle).

        Raises `ValueError` if there are fewer.
        """
        if not 0 <= count <= len(population):
            raise ValueError(f"cannot draw {count} of {len(population)}")
        items = list(population)
        for place in range(count):
            other = place + int(self.below(len(items) - place, 1)[0])
            items[place], items[other] = items[other], items[place]
        return items[:count]

    def _next_words(self, count: int) -> npt.NDArray[np.uint64]:
        data = expand(self._key, self._words_used * _WORD_BYTES, count * _WORD_BYTES)
        self._words_used += count
        return np.frombuffer(data, "<u8").astype(np.uint64)
