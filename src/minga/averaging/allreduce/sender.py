"""The sender's side of an assignment: send chunks to the root or the own relay, read the reduced ones back."""

from __future__ import annotations

import asyncio
from typing import Final

import torch

from minga.averaging.allreduce.messages import (
    FETCH,
    PART,
    Assignment,
    ChunkWeight,
    CountedMembers,
    FetchChunks,
    PartHello,
)
from minga.averaging.allreduce.reducer import Reduced, Reducer, receive_counted, send_reduced
from minga.averaging.allreduce.round import IDLE_S, Round
from minga.averaging.codecs.dense import Codec, codec, is_finite
from minga.averaging.codecs.layout import receive_encoded
from minga.averaging.codecs.residual import Encoder
from minga.averaging.codecs.tensor_bytes import as_bytes
from minga.core.aio import end, racing
from minga.core.errors import ProtocolError, RejectedError, RemoteError, UnreachableError
from minga.core.refusal_code import RefusalCode
from minga.network.rpc.stream import MessageStream

MOST_SHARED_BYTES = 1 << 14
"""Parts of at most so many bytes each way go with the small messages of the connection: they cost no stream."""

IDLE_LOOK_S = 1.0
LAST_WORDS_S = 1.0
"""Seconds that a send may still take to return when the result of what it sent has already come."""


_PLAIN: Final = codec("float32")


async def exchange(round: Round, assignment: Assignment, relay: Reducer | None = None) -> None:
    """Move one assignment in both directions; a failure buries the member on the other side, unless that only took
    this one for lost: then its result is fetched.

    With a `relay`, this member sends for its site and passes on what comes back.
    """
    parent = round.routes.parent(assignment, round.me)
    if parent is None:
        return
    chunks = [round.chunks[index] for index in assignment.chunks]
    sizes = sum(chunk.upload_bytes for chunk in chunks), sum(chunk.download_bytes for chunk in chunks)
    if relay is None and round.own is not None:  # before the stream is open, so that small parts know of large ones
        round.turns.begin(assignment.key, len(assignment.chunks), sizes[0])
    # one that a relay or a repair waits with has a stream of its own
    is_small = not assignment.relays and not assignment.key[0] and max(sizes) <= MOST_SHARED_BYTES
    try:
        async with round.node.open(round.members[parent], PART, bulk=not is_small) as stream:
            with round.expecting(parent, stream):
                await _converse(round, assignment, stream, relay)
    except RemoteError as error:
        lacking = tuple(index for index in assignment.chunks if not round.have[index])
        if not assignment.relays and _lives(round, parent, error):
            fetch(round, parent, lacking)
        elif lacking:
            round.mark_dead(parent, error.message)
    finally:
        round.turns.end(assignment.key)


def _lives(round: Round, parent: int, error: RemoteError) -> bool:
    """Whether a member that ended a stream only goes on without this one, which it did not hear for a while."""
    if isinstance(error, RejectedError):
        return error.code == RefusalCode.LATE
    return isinstance(error, UnreachableError) and round.node.is_connected(round.members[parent])


async def _converse(round: Round, assignment: Assignment, stream: MessageStream, relay: Reducer | None) -> None:
    weight = None if relay is not None else round.weight if round.own is not None else 0
    stream.announce(PartHello(round.plan.round_id, assignment.key, weight))
    sending = _send_site(round, assignment, stream, relay) if relay else _send_local(round, assignment, stream)
    task = asyncio.get_running_loop().create_task(sending)
    task.add_done_callback(lambda _: _abort_if_local(round, task))
    try:
        await _receive_reduced(round, assignment, stream, relay)
        if not task.done():
            await asyncio.wait([task], timeout=LAST_WORDS_S)
        if task.done():  # else this member was given up, and nobody waits for what is not sent by now
            await stream.finish()
            await stream.receive_end()
    finally:
        await end(task)


def _abort_if_local(round: Round, sending: asyncio.Task[None]) -> None:
    """What went wrong on this side, such as numbers that cannot be encoded, is no fault of the other's: end the round.

    The loss of the stream is noticed by who reads from it.
    """
    error = None if sending.cancelled() else sending.exception()
    if error is not None and not isinstance(error, RemoteError):
        round.abort(f"this member's part cannot be sent: {error}")


def fetch(
    round: Round, holder: int, chunks: tuple[int, ...], patience_s: float = IDLE_S, *, buries: bool = True
) -> asyncio.Task[None] | None:
    """Begin to fetch reduced chunks from a member that has or will have them, those that are not being fetched yet.

    A failure buries the holder. If nothing comes for `patience_s` seconds the request ends, and if it `buries` the
    holder is buried for that, too. Returns None if there is nothing to do, or the holder is gone.
    """
    wanted = tuple(i for i in chunks if not round.have[i] and i not in round.fetching)
    if not wanted or holder in round.dead:
        return None
    request = object()

    def release(_: object) -> None:
        for index in wanted:
            if round.fetching.get(index) is request:
                del round.fetching[index]
        round.changed.fire()

    task = round.spawn(_fetch(round, holder, wanted, patience_s, buries=buries), frozenset({holder}))
    if task is not None:
        round.fetching.update(dict.fromkeys(wanted, request))
        task.add_done_callback(release)
    return task


async def _fetch(round: Round, holder: int, wanted: tuple[int, ...], patience_s: float, *, buries: bool) -> None:
    try:
        async with round.node.open(round.members[holder], FETCH, bulk=True) as stream:
            with round.expecting(holder, stream):
                async with racing([_receive_fetched(round, wanted, stream), _idle(stream, patience_s)]) as ends:
                    await next(ends)
        lacks = any(not round.have[i] for i in wanted)
        why = f"it is alive, but nothing came from it for {patience_s:.0f} s" if lacks and buries else ""
    except RemoteError as error:
        why = error.message if any(not round.have[i] for i in wanted) else ""
    if why:
        round.mark_dead(holder, why)


async def _idle(stream: MessageStream, patience_s: float) -> None:
    while stream.idle_s <= patience_s:
        await asyncio.sleep(IDLE_LOOK_S)


async def _receive_fetched(round: Round, wanted: tuple[int, ...], stream: MessageStream) -> None:
    await stream.send(FetchChunks(round.plan.round_id, wanted))
    for index in wanted:
        values = torch.empty_like(round.reduced[index])
        counted = await receive_counted(round, stream)
        await _receive_values(round, index, values, stream)
        if not round.have[index]:
            round.reduced[index].copy_(values)
            if counted:
                round.note_fate(index, counted)
            round.got(index)
    await stream.finish()
    await stream.receive_end()


async def serve_fetch(round: Round, stream: MessageStream, request: FetchChunks) -> None:
    """Answer a `FetchChunks`: each chunk as soon as it is here, and before it whose it is, if that matters; nobody is
    named where this member was not told.
    """
    if any(i >= len(round.chunks) for i in request.chunks) or len(set(request.chunks)) != len(request.chunks):
        raise ProtocolError("it asks for chunks that the plan does not have, or twice", peer=stream.peer)
    for index in request.chunks:
        while not round.have[index]:
            if round.aborted:
                raise RejectedError(round.aborted, code=RefusalCode.ABORTED)
            await round.came.wait()
        encoded = _encoded(round, index)
        body = as_bytes(round.reduced[index]) if encoded is None else encoded
        if round.tells_counted:
            await stream.send(CountedMembers(round.told.get(index, b"")))
        await stream.send_bulk(body)
        round.bytes_sent += body.nbytes


def _encoded(round: Round, index: int) -> memoryview | None:
    """A reduced chunk as its codec has it, if that is shorter than float32 and decodes to the same values bit for bit.

    As a rule it does, for the values are what it decoded to before: not if it draws, or in a round that adopts the
    result of another one, which was cut into other chunks.
    """
    chunk, values = round.chunks[index], round.reduced[index]
    codec = chunk.codecs.download
    if codec.is_identity or codec.draws:
        return None
    room = round.buffer(chunk.download_bytes)
    body = room[: codec.encode(values, room)]
    if body.nbytes >= 4 * chunk.numel:
        return None
    again = torch.empty_like(values)
    codec.decode(body, again)
    is_same = values.is_meta or torch.equal(again.view(torch.int32), values.view(torch.int32))
    return body if is_same else None


async def _receive_values(round: Round, index: int, values: torch.Tensor, stream: MessageStream) -> None:
    """Fill `values` with a chunk as its holder sends it: as float32, or in fewer bytes as its codec has it."""
    room = round.buffer(4 * values.numel())
    body = room[: await stream.receive_bulk_up_to(room)]
    _decode(_PLAIN if len(body) == len(room) else round.chunks[index].codecs.download, body, values, stream)
    _require_finite(values, stream)
    round.bytes_received += len(body)


# ---- sending


async def _send_local(round: Round, assignment: Assignment, stream: MessageStream) -> None:
    if round.own is None:
        return
    chunks = [round.chunks[i] for i in assignment.chunks]
    sizes = (chunk.upload_bytes for chunk in chunks if not chunk.codecs.upload.is_identity)
    buffer = round.buffer(max(sizes, default=0))  # for one encoded chunk after the other
    for index in assignment.chunks:
        await round.turns.wait(assignment.key)
        await _send_own(round, round.own, index, buffer, stream)
        round.turns.sent(assignment.key)
    round.turns.end(assignment.key)


async def _send_own(round: Round, own: Encoder, index: int, buffer: memoryview, stream: MessageStream) -> None:
    body = own.encode(round.chunks[index], buffer)
    await stream.send_bulk(body)
    round.bytes_sent += body.nbytes


async def _send_site(round: Round, assignment: Assignment, stream: MessageStream, relay: Reducer) -> None:
    for index in assignment.chunks:
        weight, mean = await relay.contribution(index)
        is_last = index == assignment.chunks[-1]
        await stream.send(ChunkWeight(weight, relay.samples_behind() if is_last else ()))
        if weight:
            await send_reduced(round, mean, stream)


# ---- receiving


async def _receive_reduced(round: Round, assignment: Assignment, stream: MessageStream, relay: Reducer | None) -> None:
    chunks = [round.chunks[i] for i in assignment.chunks]
    sizes = (chunk.download_bytes for chunk in chunks if not chunk.codecs.download.is_identity)
    buffer = round.buffer(max(sizes, default=0))  # for one encoded chunk after the other
    for index, chunk in zip(assignment.chunks, chunks, strict=True):
        target, codec = round.reduced[index], chunk.codecs.download
        counted = await receive_counted(round, stream)
        if codec.is_identity:
            body = as_bytes(target)
            await stream.receive_bulk_into(body)
            _require_finite(target, stream)
        else:
            room = buffer[: chunk.download_bytes] if relay is None else round.buffer(chunk.download_bytes)
            body = await receive_encoded(stream, codec, room)
            _decode(codec, body, target, stream)
        round.bytes_received += body.nbytes
        if relay is not None:
            relay.pass_on(index, Reduced(body, counted))
        if round.tells_counted:
            round.note_fate(index, counted)
        round.got(index)
        round.turns.returned(assignment.key)


def _decode(codec: Codec, body: memoryview, target: torch.Tensor, stream: MessageStream) -> None:
    try:
        codec.decode(body, target)
    except ValueError as error:
        raise ProtocolError(f"a reduced chunk is refused: {error}", peer=stream.peer, phase="reduce") from error


def _require_finite(values: torch.Tensor, stream: MessageStream) -> None:
    if not is_finite(values):
        raise ProtocolError("a reduced chunk holds NaN or infinity", peer=stream.peer, phase="reduce")
