"""Who a peer is: one Ed25519 key, kept in one file.

A peer's id is its public key in hexadecimal. Signatures cover the BLAKE3 digest (key derivation mode) of

    length of context (1 byte) | context | message

behind a fixed label, so that a signature given for one purpose, or by another program with the same key, is never
valid for another purpose. Signing a digest also keeps the cache of verified signatures small.
"""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import final

from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from minga.core.errors import IdentityError, reason_of
from minga.identity.keys import key_file
from minga.identity.keys.key_file import FileLock

SEED_BYTES = 32
SIGNATURE_BYTES = 64
MAX_IDENTITIES_PER_FILE = 64
"""How many peers with sibling key files may run at once on one machine."""

Rank = Callable[[str | None], tuple[bool, ...]]
"""Which keys are taken first, by their ids: those of lower rank. None is a key that is yet to be made."""

_DIGEST_CONTEXT = "minga v1 signed message"
_SIGNED_LABEL = b"minga-signature-1:"
_VERIFIED_CACHE_SIZE = 1 << 10  # about 300 bytes each
_PEER_ID = re.compile(r"[0-9a-f]{64}", re.ASCII)

_FIELD = 2**255 - 19
_HEIGHT_OF_ORDER_8 = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
_SMALL_ORDER = frozenset((0, 1, _FIELD - 1, _HEIGHT_OF_ORDER_8, _FIELD - _HEIGHT_OF_ORDER_8))
"""The y of the eight points of the curve that give zero when they are added up eight times."""


def is_peer_id(text: object) -> bool:
    """Whether `text` has the form of a peer id: 64 lower-case hexadecimal digits."""
    return isinstance(text, str) and _PEER_ID.fullmatch(text) is not None


def verify(peer_id: str, signature: bytes, message: bytes, *, context: bytes = b"") -> bool:
    """Whether `peer_id` signed `message` for the purpose `context`; malformed ids and signatures are just False, and so
    is whatever goes with one of the few ids for which anybody can make a signature, of many messages at once.

    A pure function: equal arguments are computed once and then remembered, see `remember_signatures`.
    """
    if not is_peer_id(peer_id) or len(signature) != SIGNATURE_BYTES or len(context) > 255:
        return False
    return _verified(peer_id, bytes(signature), _digest(message, context))


def remember_signatures(count: int) -> None:
    """Let this process remember what it found out about the last `count` signatures, if it remembers fewer now.

    A peer sees most signatures once. Where many peers live in one process, each of them sees the same ones.
    """
    global _verified
    remembered = _verified.cache_info().maxsize or 0
    if remembered < count:  # what was found out so far is forgotten: not again and again where the count grows slowly
        _verified = functools.lru_cache(max(count, 2 * remembered))(_verify_digest)


@final
class Identity:
    """A peer's key pair."""

    __slots__ = ("_key", "_peer_id", "_seed")

    def __init__(self, seed: bytes) -> None:
        if not isinstance(seed, bytes) or len(seed) != SEED_BYTES:
            raise IdentityError(f"a key is made from exactly {SEED_BYTES} bytes")
        self._seed = seed
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self._peer_id = self._key.public_key().public_bytes_raw().hex()

    @classmethod
    def generate(cls) -> Identity:
        """A new key from the operating system's random numbers."""
        return cls(secrets.token_bytes(SEED_BYTES))

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """The key that belongs to 32 secret bytes. Raises `IdentityError` for any other length."""
        return cls(seed)

    @classmethod
    def load_or_create(cls, path: Path | None = None) -> Identity:
        """The key in the file at `path` (default: in the user's data folder), made and stored if there is none.

        Of several processes that create the same file at once, all get the key of the one that was first.
        Raises `IdentityError` if the file is damaged, open to other users (POSIX), or cannot be read or written.
        """
        path = key_file.default_path() if path is None else Path(path)
        stored = _read(path)
        if stored is None:
            fresh = cls.generate()
            key_file.create(path, fresh.seed, fresh.peer_id)
            stored = _read(path)
        if stored is None:
            raise IdentityError(f"the key file {path} vanished while it was being made; try again")
        return stored

    @classmethod
    def acquire(cls, path: Path | None = None, rank: Rank | None = None) -> HeldIdentity:
        """Like `load_or_create`, but for this process alone, so that two peers never run with the same key.

        While a living process holds the key, the numbered siblings of the file (`identity-2.json`, …) are tried,
        and made if need be, but for those that cannot be used. The end of a process frees its key. With a `rank`, that
        says which of them are tried first.
        """
        path, unusable = key_file.default_path() if path is None else Path(path), None
        for candidate in _in_order(path, rank):
            try:
                held = cls.hold(candidate)
            except IdentityError as error:
                if candidate == path:
                    raise
                unusable = error
            else:
                if held is not None:
                    return held
        raise unusable or IdentityError(
            f"{MAX_IDENTITIES_PER_FILE} running peers use the keys beside {path}; use --ephemeral for more"
        )

    @classmethod
    def hold(cls, path: Path) -> HeldIdentity | None:
        """Like `acquire`, but the key in this very file, or None while a living process holds it."""
        identity = cls.load_or_create(path)
        try:
            lock = FileLock.try_acquire(path)
        except OSError as error:
            raise IdentityError(
                f"the key file {path} cannot be locked ({reason_of(error)}); "
                "use --identity with a file on a local disk, or --ephemeral"
            ) from error
        return None if lock is None else HeldIdentity(identity, path, lock)

    @classmethod
    def expected(cls, path: Path | None = None, rank: Rank | None = None) -> Identity | None:
        """The key that `acquire` takes if no process holds it; None if that is yet to be made, or cannot be read."""
        path = key_file.default_path() if path is None else Path(path)
        found = _look(_in_order(path, rank)[0])
        return None if isinstance(found, IdentityError) else found

    @classmethod
    def stored(cls, path: Path | None = None, one_of: Container[str] | None = None) -> dict[Path, Identity]:
        """The keys in the file at `path` (default: in the user's data folder) and its numbered siblings, whether a
        process holds them or not: all, or those whose ids are in `one_of`. Files that cannot be read are left out.

        Raises `IdentityError` if there is no such key, but a file that cannot be read and could hold one.
        """
        path = key_file.default_path() if path is None else Path(path)
        looks = {candidate: _look(candidate) for candidate in _siblings(path)}
        found = {
            file: key
            for file, key in looks.items()
            if isinstance(key, Identity) and (one_of is None or key.peer_id in one_of)
        }
        for unread in looks.values():
            if not found and isinstance(unread, IdentityError):
                raise unread
        return found

    @property
    def peer_id(self) -> str:
        """The public key as 64 lower-case hexadecimal digits."""
        return self._peer_id

    @property
    def seed(self) -> bytes:
        """The 32 secret bytes; a program that has them can act as this peer."""
        return self._seed

    def sign(self, message: bytes, *, context: bytes = b"") -> bytes:
        """The 64-byte signature of `message` for the purpose `context` (at most 255 bytes, e.g. `b"run-spec"`)."""
        return self._key.sign(_SIGNED_LABEL + _digest(message, context))

    def __repr__(self) -> str:
        return f"Identity(peer_id={self._peer_id[:10]}…)"

    def __reduce__(self) -> str:
        raise TypeError("a key is not pickled; pass its seed on purpose")


@final
class HeldIdentity:
    """An identity that no other peer on this machine can use until `release` or the end of this process."""

    def __init__(self, identity: Identity, path: Path, lock: FileLock) -> None:
        self.identity, self.path = identity, path
        self._lock = lock

    @property
    def is_held(self) -> bool:
        """Whether the key is still reserved for this process."""
        return self._lock.is_held

    def release(self) -> None:
        """Let other processes use the key; may be called twice."""
        self._lock.release()

    def __enter__(self) -> HeldIdentity:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _siblings(path: Path) -> Iterator[Path]:
    yield path
    for number in range(2, MAX_IDENTITIES_PER_FILE + 1):
        yield path.with_name(f"{path.stem}-{number}{path.suffix}")


def _read(path: Path) -> Identity | None:
    stored = key_file.read(path)
    if stored is None:
        return None
    seed, peer_id = stored
    identity = Identity(seed)
    if identity.peer_id != peer_id:
        raise IdentityError(f"the key file {path} is damaged: its two keys do not belong together. {key_file.ADVICE}")
    return identity


def _look(path: Path) -> Identity | IdentityError | None:
    """The key in a file, or why it cannot be read; None if there is no such file."""
    try:
        return _read(path)
    except IdentityError as error:
        return error


def _in_order(path: Path, rank: Rank | None) -> list[Path]:
    """A key file and its siblings; one that cannot be read ranks like one that is missing."""
    if rank is None:
        return list(_siblings(path))
    looks = {candidate: _look(candidate) for candidate in _siblings(path)}
    ranks = {file: rank(key.peer_id if isinstance(key, Identity) else None) for file, key in looks.items()}
    return sorted(looks, key=ranks.__getitem__)


def _digest(message: bytes, context: bytes) -> bytes:
    if len(context) > 255:
        raise ValueError("a signature's context has at most 255 bytes")
    hasher = blake3(bytes([len(context)]), derive_key_context=_DIGEST_CONTEXT)
    hasher.update(context)
    hasher.update(message)
    return bytes(hasher.digest())


def _is_of_small_order(key: bytes) -> bool:
    """Whether a public key belongs to no secret. One bit of it is the sign of x; y may be written in two ways."""
    return (int.from_bytes(key, "little") & ((1 << 255) - 1)) % _FIELD in _SMALL_ORDER


def _verify_digest(peer_id: str, signature: bytes, digest: bytes) -> bool:
    key = bytes.fromhex(peer_id)
    if _is_of_small_order(key):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, _SIGNED_LABEL + digest)
    except (InvalidSignature, ValueError):
        return False
    return True


_verified = functools.lru_cache(_VERIFIED_CACHE_SIZE)(_verify_digest)
