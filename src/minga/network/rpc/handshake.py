"""The first words on a connection and on a stream.

A fresh connection carries one exchange of `Hello`s, the dialler's first: wire versions (a range; ranges without a
common one part), run id, role, date, process and credential. So strangers, other runs, incompatible versions, clocks
that are too far off and copies of a key in use are refused with a reason in words. Where it is that one side does not
know all orders of the organisers, one more stream is served, for these and nothing else. The stream on which the hellos
were said goes on as the connection's first carrier (`minga.network.rpc.node`). Every later stream, on a carrier too,
begins with a `Call` that names a method.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

import msgspec

from minga.core.decoding import DECODING_ERRORS, decode_msgpack
from minga.core.errors import RejectedError, RemoteError
from minga.core.refusal_code import RefusalCode
from minga.identity.keys.keys import SIGNATURE_BYTES, Identity, verify
from minga.network.authorizer import MAX_CREDENTIAL_BYTES
from minga.network.interface import PeerId
from minga.network.rpc.stream import MAX_PROOF_BYTES, MessageStream

WIRE_VERSIONS = (3, 3)
"""Oldest and newest wire version that this code speaks."""

MULTIPLEX = "rpc.multiplex"
"""The method of a stream that is to carry others; see `minga.network.rpc.node`."""

ALIVE, RIVAL = "node.alive", "node.rival"
"""The methods that ask a process whether it lives, and tell one that an older one with its key does."""

NONCE_BYTES: Final = 8
_ALIVE_CONTEXT = b"process-alive"

Role = Literal["trainer", "client", "auxiliary", "monitor"]
Word = Annotated[str, msgspec.Meta(pattern=r"\A[a-z_-]{1,32}\Z")]
"""One of several words on the wire. A later version may say one that is not known here: it counts as none of ours."""

Version = Annotated[int, msgspec.Meta(ge=0, le=1 << 16)]
UnixTime = Annotated[float, msgspec.Meta(ge=0.0, le=1e11)]
Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]


class Incarnation(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One process of a peer: since when it runs, in Unix seconds, and random bytes that tell it from any other process
    with the same key. The smaller one is older. A process that does not know the run's time goes by its machine's
    clock.
    """

    since: UnixTime
    nonce: Nonce


class Hello(msgspec.Struct, frozen=True, omit_defaults=True):
    """First message of each side of a connection. `wall_time` is in Unix seconds by the sender's clock, `run_time` by
    the run's, if the sender knows that (`minga.network.rpc.run_clock`). `credential` is the one that the run's
    authorizer asks for, see `minga.network.authorizer`.
    """

    versions: tuple[Version, Version]
    run_id: Annotated[str, msgspec.Meta(max_length=64)]
    role: Word
    wall_time: UnixTime
    credential: Annotated[bytes, msgspec.Meta(max_length=MAX_CREDENTIAL_BYTES)] = b""
    run_time: UnixTime | None = None
    incarnation: Incarnation | None = None


class Call(msgspec.Struct, frozen=True):
    """First message of every later stream."""

    method: Annotated[str, msgspec.Meta(max_length=64)]


class Challenge(msgspec.Struct, frozen=True):
    """Does the process that this goes to live? The one with the nonce `rival` says that it has the same key."""

    rival: Nonce


class ProofOfLife(msgspec.Struct, frozen=True, array_like=True):
    """The answer of the process `incarnation`; its key signs that, for the rival, to which it is the proof. Without a
    key `signature` is empty, and shows nothing.
    """

    incarnation: Incarnation
    signature: Annotated[bytes, msgspec.Meta(max_length=SIGNATURE_BYTES)] = b""

    @classmethod
    def signed(
        cls, identity: Identity | None, run_id: str, incarnation: Incarnation, challenge: Challenge
    ) -> ProofOfLife:
        """The answer to a challenge."""
        if identity is None:
            return cls(incarnation)
        return cls(incarnation, identity.sign(_alive(run_id, incarnation, challenge.rival), context=_ALIVE_CONTEXT))

    @classmethod
    def proven(cls, proof: bytes, peer: PeerId, run_id: str, rival: bytes) -> Incarnation | None:
        """Which process with the key of `peer` lived after the one with the nonce `rival` had begun, by this encoded
        answer; None if it proves nothing.
        """
        try:
            alive = decode_msgpack(proof, cls)
        except DECODING_ERRORS:
            return None
        statement = _alive(run_id, alive.incarnation, rival)
        is_genuine = verify(peer, alive.signature, statement, context=_ALIVE_CONTEXT)
        return alive.incarnation if is_genuine and alive.incarnation.nonce != rival else None


class Rival(msgspec.Struct, frozen=True):
    """Another process with the receiver's key is in its place; `proof` is an encoded `ProofOfLife`."""

    proof: Annotated[bytes, msgspec.Meta(max_length=MAX_PROOF_BYTES)]


def _alive(run_id: str, incarnation: Incarnation, rival: bytes) -> bytes:
    return msgspec.msgpack.encode((run_id, incarnation, rival))


def key_in_use(since: float, proof: bytes = b"", peer: PeerId | None = None) -> RejectedError:
    """What a process is told whose key another one uses `since` then (Unix seconds)."""
    begun = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return RejectedError(
        f"this key is in use by another process since {begun}: on another machine, or from a copy of the key file. "
        "End that one; a peer that only joins can have a key of its own: --identity FILE, with a FILE that does not "
        "exist yet",
        code=RefusalCode.KEY,
        proof=proof,
        peer=peer,
    )


def check_hello(hello: Hello, run_id: str, peer: PeerId) -> None:
    """Raise `RejectedError` if `peer` speaks no version that is known here, or is in another run than `run_id`."""
    if min(hello.versions[1], WIRE_VERSIONS[1]) < max(hello.versions[0], WIRE_VERSIONS[0]):
        raise RejectedError(
            f"wire versions {hello.versions[0]}-{hello.versions[1]} there and "
            f"{WIRE_VERSIONS[0]}-{WIRE_VERSIONS[1]} here have none in common; update minga on the older side",
            code=RefusalCode.VERSION,
            peer=peer,
        )
    if hello.run_id != run_id:
        raise RejectedError("that peer is in another run", code=RefusalCode.RUN, peer=peer)


Check = Callable[[Hello], Awaitable[None]]
"""Rejects the other side's hello by raising."""


async def introduce(stream: MessageStream, own: Hello, check: Check) -> Hello:
    """The dialler's part: the other side's hello, unless `check` raises."""
    try:
        await stream.send(own)
        theirs = await stream.receive(Hello)
        await check(theirs)
        return theirs
    finally:
        stream.release()


async def welcome(stream: MessageStream, own: Callable[[], Hello], check: Check) -> Hello:
    """The other side's part: receive the dialler's hello. If `check` raises `RejectedError` the dialler gets the
    reason.
    """
    try:
        try:
            theirs = await stream.receive(Hello)
            await check(theirs)
        except RejectedError as error:
            with contextlib.suppress(RemoteError):  # it may hang up at once; the reason stays the one that counts
                await stream.refuse(error.code, error.message, error.proof)
                await stream.receive_end()
            raise
        await stream.send(own())
        return theirs
    finally:
        stream.release()
