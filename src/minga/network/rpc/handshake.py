"""The first words on a connection and on a stream.

A fresh connection carries one exchange of `Hello`s, the dialler's first, on a stream of its own: wire versions (a
range; ranges without a common one part), run id, role, date and credential. So strangers, other runs and incompatible
versions are refused with a reason in words. Every later stream begins with a `Call` that names a method.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Annotated, Literal

import msgspec

from minga.core.errors import RejectedError, RemoteError
from minga.core.refusal_code import RefusalCode
from minga.network.authorizer import MAX_CREDENTIAL_BYTES
from minga.network.interface import PeerId
from minga.network.rpc.framing import MessageStream

WIRE_VERSIONS = (2, 2)
"""Oldest and newest wire version that this code speaks."""

MULTIPLEX = "rpc.multiplex"
"""The method of a stream that is to carry others; see `minga.network.rpc.carriers`."""

Role = Literal["trainer", "client", "auxiliary", "monitor"]
Word = Annotated[str, msgspec.Meta(pattern=r"\A[a-z_-]{1,32}\Z")]
"""One of several words on the wire. A later version may say one that is not known here: it counts as none of ours."""

Version = Annotated[int, msgspec.Meta(ge=0, le=1 << 16)]


class Hello(msgspec.Struct, frozen=True, omit_defaults=True):
    """First message of each side of a connection. `wall_time` is in Unix seconds by the sender's clock, `credential`
    the one that the run's authorizer asks for, see `minga.network.authorizer`. `multiplexes` says that small messages
    may share a stream (`minga.network.rpc.carriers`).
    """

    versions: tuple[Version, Version]
    run_id: Annotated[str, msgspec.Meta(max_length=64)]
    role: Word
    wall_time: Annotated[float, msgspec.Meta(ge=0.0, le=1e11)]
    credential: Annotated[bytes, msgspec.Meta(max_length=MAX_CREDENTIAL_BYTES)] = b""
    multiplexes: bool = False


class Call(msgspec.Struct, frozen=True):
    """First message of every later stream."""

    method: Annotated[str, msgspec.Meta(max_length=64)]


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


async def introduce(stream: MessageStream, own: Hello, check: Callable[[Hello], None]) -> Hello:
    """The dialler's part: the other side's hello, which `check` may reject by raising."""
    try:
        await stream.send(own)
        theirs = await stream.receive(Hello)
        check(theirs)
        await stream.finish()
        return theirs
    finally:
        stream.release()


async def welcome(stream: MessageStream, own: Callable[[], Hello], check: Callable[[Hello], None]) -> Hello:
    """The other side's part: receive the dialler's hello. If `check` raises `RejectedError` the dialler gets the
    reason.
    """
    try:
        try:
            theirs = await stream.receive(Hello)
            check(theirs)
        except RejectedError as error:
            with contextlib.suppress(RemoteError):  # it may hang up at once; the reason stays the one that counts
                await stream.refuse(error.code, error.message)
                await stream.receive_end()
            raise
        await stream.send(own())
        await stream.finish()
        return theirs
    finally:
        stream.release()
