"""The member's side of an assignment: send local chunks to the aggregator, read the reduced ones back."""

from __future__ import annotations

import asyncio

import torch

from minga.averaging._codecs import CONTRIBUTION_LIMIT, is_finite
from minga.averaging._messages import Assignment, Fetch, PartHello
from minga.averaging._round import Round
from minga.core._errors import ProtocolError, RejectedError, RemoteError
from minga.network._messages import MessageStream

PART, FETCH = "round.part", "round.fetch"


async def exchange(round: Round, assignment: Assignment) -> None:
    """Move one assignment in both directions; a failure buries the aggregator."""
    aggregator = assignment.aggregator
    try:
        async with round.node.open(round.members[aggregator], PART) as stream:
            with round.expecting(aggregator, stream):
                await _converse(round, assignment, stream)
    except RemoteError as error:
        if any(not round.have[i] for i in assignment.chunks):
            round.bury(aggregator, error.message)


async def _converse(round: Round, assignment: Assignment, stream: MessageStream) -> None:
    await stream.send(PartHello(round.plan.round_id, assignment.key, round.weight if round.local is not None else 0))
    sending = asyncio.get_running_loop().create_task(_send_local(round, assignment, stream))
    try:
        await _receive_reduced(round, assignment, stream)  # then nobody waits for what is not sent by now
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def fetch(round: Round, holder: int, chunks: tuple[int, ...]) -> None:
    """Fetch reduced chunks from a member that has or will have them, as float32; a failure buries the holder."""
    wanted = tuple(i for i in chunks if not round.have[i] and i not in round.fetching)
    if not wanted:
        return
    round.fetching.update(wanted)
    try:
        async with round.node.open(round.members[holder], FETCH) as stream:
            with round.expecting(holder, stream):
                await _receive_fetched(round, wanted, stream)
    except RemoteError as error:
        if any(not round.have[i] for i in wanted):
            round.bury(holder, error.message)
    finally:
        round.fetching.difference_update(wanted)
        round.changed.fire()


async def _receive_fetched(round: Round, wanted: tuple[int, ...], stream: MessageStream) -> None:
    await stream.send(Fetch(round.plan.round_id, wanted))
    for index in wanted:
        chunk = round.chunks[index]
        values = torch.empty(chunk.stop - chunk.start, dtype=torch.float32)
        view = as_bytes(values)
        await stream.receive_bulk_into(view)
        round.bytes_received += view.nbytes
        _require_finite(values, stream)
        if not round.have[index]:
            round.slice(round.result, chunk).copy_(values)
            round.got(index)


async def serve_fetch(round: Round, stream: MessageStream, request: Fetch) -> None:
    """Answer a `Fetch`: each chunk as soon as it is here."""
    if any(i >= len(round.chunks) for i in request.chunks) or len(set(request.chunks)) != len(request.chunks):
        raise ProtocolError("it asks for chunks that the plan does not have, or twice", peer=stream.peer)
    for index in request.chunks:
        while not round.have[index]:
            if round.aborted:
                raise RejectedError(round.aborted, code="aborted")
            await round.changed.wait()
        view = as_bytes(round.slice(round.result, round.chunks[index]))
        await stream.send_bulk(view)
        round.bytes_sent += view.nbytes


def as_bytes(values: torch.Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor as a writable view of bytes, without a copy."""
    return memoryview(values.numpy()).cast("B")  # type: ignore[arg-type]  # numpy arrays are buffers at run time


async def _send_local(round: Round, assignment: Assignment, stream: MessageStream) -> None:
    if round.local is None:
        return
    for index in assignment.chunks:
        chunk = round.chunks[index]
        source = round.slice(round.local, chunk)
        if chunk.codec.name == "float32":
            body: bytearray | memoryview = as_bytes(source)
        else:
            body = bytearray(chunk.encoded_bytes)
            chunk.codec.encode(source, memoryview(body), limit=CONTRIBUTION_LIMIT)
        await stream.send_bulk(body)
        round.bytes_sent += chunk.encoded_bytes


async def _receive_reduced(round: Round, assignment: Assignment, stream: MessageStream) -> None:
    for index in assignment.chunks:
        chunk = round.chunks[index]
        target = round.slice(round.result, chunk)
        if chunk.codec.name == "float32":
            await stream.receive_bulk_into(as_bytes(target))
            _require_finite(target, stream)
        else:
            body = bytearray(chunk.encoded_bytes)
            await stream.receive_bulk_into(memoryview(body))
            try:
                chunk.codec.decode(body, target)
            except ValueError as error:
                raise ProtocolError(f"a reduced chunk is refused: {error}", peer=stream.peer, phase="reduce") from error
        round.bytes_received += chunk.encoded_bytes
        round.got(index)


def _require_finite(values: torch.Tensor, stream: MessageStream) -> None:
    if not is_finite(values):
        raise ProtocolError("a reduced chunk holds NaN or infinity", peer=stream.peer, phase="reduce")
