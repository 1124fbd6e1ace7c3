"""One encoded chunk over a stream: the frame says how long it is, the codec how long it may be."""

from __future__ import annotations

from minga.averaging.codecs.interface import Codec
from minga.network.rpc.framing import MessageStream


async def receive_encoded(stream: MessageStream, codec: Codec, room: memoryview) -> memoryview:
    """Wait for the next bulk frame; returns the part of `room` (of `max_encoded_bytes`) that it filled.

    A frame that is longer, or of another length than a codec of fixed size has, is a `ProtocolError` of the sender,
    raised before anything of it is read.
    """
    if codec.has_fixed_size:
        await stream.receive_bulk_into(room)
        return room
    return room[: await stream.receive_bulk_up_to(room)]
