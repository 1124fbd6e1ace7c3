"""Chunks that a member fetches from another one instead of from their root: their values, and what they cost."""

from __future__ import annotations

import pytest
import torch

from minga.averaging.allreduce import sender, service
from minga.averaging.allreduce.messages import FetchChunks
from minga.averaging.allreduce.round import Round, RoundOutcome
from minga.averaging.codecs.dense import CastCodec
from minga.averaging.codecs.layout import VectorLayout
from minga.network.rpc.stream import MessageStream
from tests.averaging.allreduce.test_two_level import connect_all
from tests.worlds.reduce_world import World
from tests.worlds.swarm_tools import later, virtually

COUNT, NUMEL = 4, 60_000
ENCODED = {"float16": 2.0, "int8": 1.1, "sign": 1.1}
"""Bytes for each element at most."""
AS_FLOAT32 = ["int8(rounding=stochastic)"]


async def fetched(choice: str) -> tuple[list[torch.Tensor], float]:
    """What all have after a round in which the link between two of them broke, and the bytes for each element that one
    fetched from the coordinator.
    """
    layout, bytes_each = VectorLayout((NUMEL,), choice), list[float]()
    world = World(COUNT, up_bytes_per_s=1e5, down_bytes_per_s=1e5)
    await connect_all(world)
    generator = torch.Generator().manual_seed(3)
    vectors = [torch.randn(NUMEL, generator=generator) for _ in range(COUNT)]
    for vector in vectors:
        vector[::100] = 0.0
    later(0.05, lambda: world.internet.cut(world.parties[2].network, world.parties[3].network))

    async def serve(round: Round, stream: MessageStream, request: FetchChunks) -> None:
        send, sizes = stream.send_bulk, list[int]()

        async def count(body: memoryview) -> None:
            sizes.append(body.nbytes)
            await send(body)

        patch.setattr(stream, "send_bulk", count)
        await sender.serve_fetch(round, stream, request)
        bytes_each.append(sum(sizes) / sum(round.chunks[index].numel for index in request.chunks))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "serve_fetch", serve)
        results, outcomes = await world.reduce(world.plan(layout), layout, vectors, [1] * COUNT)
    await world.close()
    assert all(isinstance(outcome, RoundOutcome) for outcome in outcomes), outcomes
    assert all(party.offences() == [] for party in world.parties)
    assert bytes_each
    return list(results), max(bytes_each)


@pytest.mark.parametrize("choice", [*ENCODED, *AS_FLOAT32])
def test_a_fetched_chunk_is_the_same_bit_for_bit_and_comes_encoded(choice: str) -> None:
    @virtually
    async def main() -> None:
        results, bytes_each = await fetched(choice)
        assert all(torch.equal(result, results[0]) for result in results)
        assert bytes_each <= ENCODED.get(choice, 4.0)
        assert bytes_each == 4.0 or choice in ENCODED

    main()


def test_what_a_codec_does_not_give_again_bit_for_bit_comes_as_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sign of a zero suffices: members compare digests of what they make of it."""
    original = CastCodec._decode

    def decode(codec: CastCodec, raw: torch.Tensor, target: torch.Tensor) -> None:
        original(codec, raw, target)
        if codec.name == "float16":
            target.copy_(torch.where(target == 0.0, -target, target))

    @virtually
    async def main() -> None:
        results, bytes_each = await fetched("float16")
        assert all(torch.equal(result.view(torch.int32), results[0].view(torch.int32)) for result in results)
        assert bytes_each == 4.0

    monkeypatch.setattr(CastCodec, "_decode", decode)
    main()
