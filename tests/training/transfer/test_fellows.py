"""Peers that download the same state at the same time, and give each other what they have of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
import torch

from minga.core.errors import RejectedError, RemoteError
from minga.network.rpc.stream import MessageStream
from minga.training.state.manifest import CHUNK_BYTES, build_manifest
from minga.training.transfer.chunk_fetch import ChunkFetch, ChunkSource
from minga.training.transfer.download import BrokenOffError, DownloadedState, download
from minga.training.transfer.incoming import IncomingState, read_bitmap
from minga.training.transfer.messages import CHUNKS, DownloadOpened, HeldChunks, OpenDownload, TakeChunks
from tests.training.transfer.test_state_sync import ANY, CHUNKS_IN_ALL, donors_of, make_snapshot, same
from tests.worlds.transfer_world import LINE, Peer, Swarm, virtually

MANY = 48
SLOW = replace(LINE, up_bytes_per_s=1e6)


async def share(newcomer: Peer, donors: list[Peer]) -> DownloadedState:
    """Download, and let others have what came."""
    return await download(newcomer.node, [donor.id for donor in donors], ANY, server=newcomer.server)


def sent_bytes(peer: Peer) -> int:
    """What this peer sent to all others."""
    return peer.node.traffic()[0]


@virtually
async def test_the_line_of_the_donor_carries_most_chunks_once_for_all_newcomers(swarm: Swarm) -> None:
    snapshot = make_snapshot(chunks=MANY)
    donor = swarm.peer(SLOW)
    donor.server.publish(snapshot)
    newcomers = [swarm.peer() for _ in range(6)]
    begun_s = asyncio.get_running_loop().time()
    results = await asyncio.gather(*(share(newcomer, [donor]) for newcomer in newcomers))
    took_s = asyncio.get_running_loop().time() - begun_s
    assert all(same(result, snapshot) for result in results)
    assert sent_bytes(donor) < 2.0 * MANY * CHUNK_BYTES, "not six times"
    assert took_s < 2.0 * MANY * CHUNK_BYTES / SLOW.up_bytes_per_s
    assert all(not peer.offenders() for peer in (donor, *newcomers))


@virtually
async def test_who_comes_later_and_who_is_slow_hold_up_nobody(swarm: Swarm) -> None:
    snapshot = make_snapshot(chunks=MANY)
    donor = swarm.peer(SLOW)
    donor.server.publish(snapshot)
    crawling = asyncio.create_task(share(swarm.peer(replace(LINE, up_bytes_per_s=2e4)), [donor]))
    await asyncio.sleep(10.0)
    begun_s = asyncio.get_running_loop().time()
    assert same(await share(swarm.peer(), [donor]), snapshot)
    assert asyncio.get_running_loop().time() - begun_s < 1.7 * MANY * CHUNK_BYTES / SLOW.up_bytes_per_s
    assert same(await crawling, snapshot)


@virtually
async def test_fellows_that_have_all_of_it_together_need_no_donor_any_more(swarm: Swarm) -> None:
    snapshot = make_snapshot(chunks=MANY)
    donor = swarm.peer(SLOW)
    donor.server.publish(snapshot)
    newcomers = [swarm.peer(replace(LINE, up_bytes_per_s=2e5)) for _ in range(3)]
    tasks = [asyncio.create_task(share(newcomer, [donor])) for newcomer in newcomers]
    incoming = [peer.server for peer in newcomers]

    def are_all_there() -> bool:
        held = [server._incoming._held for server in incoming if server._incoming is not None]
        return len(held) == len(newcomers) and all(map(any, zip(*held, strict=True)))

    while not are_all_there():
        await asyncio.sleep(0.1)
    assert not any(task.done() for task in tasks)
    swarm.internet.kill(donor.network)
    assert all(same(each, snapshot) for each in await asyncio.gather(*tasks))


@virtually
async def test_without_a_donor_a_download_with_holes_is_broken_off(swarm: Swarm) -> None:
    donor = swarm.peer(SLOW)
    donor.server.publish(make_snapshot(chunks=MANY))
    tasks = [asyncio.create_task(share(swarm.peer(), [donor])) for _ in range(2)]
    await asyncio.sleep(10.0)
    swarm.internet.kill(donor.network)
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, BrokenOffError)


# ---- fellows that lie or misbehave


Serve = Callable[[MessageStream], Coroutine[Any, Any, None]]


async def fetch_beside(swarm: Swarm, serve: Serve) -> tuple[Peer, Peer]:
    """Fetch from an honest donor, and what a fellow gives that serves by hand. Returns who fetched, and the fellow."""
    snapshot = make_snapshot(chunks=MANY)
    donor, fellow, newcomer = swarm.peer(SLOW), swarm.peer(), swarm.peer()
    donor.server.publish(snapshot)
    await asyncio.sleep(0.001)
    fellow.node.serve(CHUNKS, lambda _, stream: serve(stream))
    async with fellow.node.open(donor.id, CHUNKS) as stream:
        await stream.send(OpenDownload(build_manifest(snapshot).digest))
        await stream.receive(DownloadOpened)
        assert same(await share(newcomer, [donor]), snapshot)
    return newcomer, fellow


@virtually
async def test_a_fellow_that_gives_false_chunks_is_an_offender(swarm: Swarm) -> None:
    async def serve(stream: MessageStream) -> None:
        await stream.receive(OpenDownload)
        await stream.send(DownloadOpened(held=b"\x0f"))
        await stream.receive(TakeChunks)
        await stream.send_bulk(bytes(CHUNK_BYTES))

    newcomer, liar = await fetch_beside(swarm, serve)
    assert newcomer.offenders() == newcomer.named("state.donor_dropped") == [liar.id]


@virtually
async def test_a_fellow_that_says_that_it_has_all_and_sends_nothing_costs_little(swarm: Swarm) -> None:
    async def serve(stream: MessageStream) -> None:
        await stream.receive(OpenDownload)
        await stream.send(DownloadOpened())
        await asyncio.Event().wait()

    begun_s = asyncio.get_running_loop().time()
    newcomer, _ = await fetch_beside(swarm, serve)
    assert asyncio.get_running_loop().time() - begun_s < 1.3 * MANY * CHUNK_BYTES / SLOW.up_bytes_per_s
    assert newcomer.named("state.donor_dropped") == []


@virtually
async def test_a_fellow_that_does_not_speak_the_protocol_is_let_go(swarm: Swarm) -> None:
    async def serve(stream: MessageStream) -> None:
        await stream.receive(OpenDownload)
        await stream.send(DownloadOpened(held=b"\xff" * 9_000))  # more bits than there are chunks
        await stream.send(HeldChunks(b""))

    newcomer, _ = await fetch_beside(swarm, serve)
    assert newcomer.named("state.donor_dropped") == []


@virtually
async def test_a_fellow_is_asked_only_for_what_it_told(swarm: Swarm) -> None:
    snapshot = make_snapshot()
    manifest, fellow = build_manifest(snapshot), swarm.peer()
    incoming = IncomingState(manifest, snapshot, [1])

    async def take(request: TakeChunks) -> set[int]:
        stranger = swarm.peer()
        async with stranger.node.open(fellow.id, CHUNKS) as stream:
            await stream.send(OpenDownload(manifest.digest))
            opened = await stream.receive(DownloadOpened)
            assert opened.held is not None
            assert read_bitmap(opened.held, manifest.chunk_count) == {1}
            await stream.send(request)
            for _ in request.indices:
                await stream.receive_bulk_into(memoryview(bytearray(CHUNK_BYTES)))
            return read_bitmap((await stream.receive(HeldChunks)).bitmap, manifest.chunk_count)

    with fellow.server.sharing(incoming):
        assert await take(TakeChunks((1,), news=True)) == {1}
        for wrong in ((2,), (1, 2), (CHUNKS_IN_ALL,)):
            with pytest.raises(RemoteError):
                await take(TakeChunks(wrong, news=True))
        assert len(fellow.offenders()) == 3
        news = asyncio.create_task(take(TakeChunks((), news=True)))
        await asyncio.sleep(0.5)
        incoming.add(3)
        assert await news == {1, 3}
    with pytest.raises(RejectedError, match="not held"):
        await take(TakeChunks((1,), news=True))


@virtually
async def test_news_come_at_once_where_there_are_any_and_end_with_the_last_chunk(swarm: Swarm) -> None:
    """Else who asks for nothing but news would keep a place, and the state in memory, for ever."""
    snapshot = make_snapshot()
    manifest, fellow, stranger = build_manifest(snapshot), swarm.peer(), swarm.peer()
    incoming = IncomingState(manifest, snapshot, [1])
    clock = asyncio.get_running_loop().time
    async with stranger.node.open(fellow.id, CHUNKS) as stream:
        with fellow.server.sharing(incoming):
            await stream.send(OpenDownload(manifest.digest))
            await stream.receive(DownloadOpened)
            for index in range(2, CHUNKS_IN_ALL):
                incoming.add(index)
            incoming.add(0)
        begun_s = clock()
        await stream.send(TakeChunks((), news=True))
        told = read_bitmap((await stream.receive(HeldChunks)).bitmap, manifest.chunk_count)
        assert told == set(range(CHUNKS_IN_ALL))
        assert clock() - begun_s < 0.5
        await stream.send(TakeChunks((), news=True))
        with pytest.raises(RemoteError):
            await stream.receive(HeldChunks)
    assert fellow.offenders() == [stranger.id]


@virtually
async def test_who_has_all_of_a_state_serves_all_of_it_though_it_fetches_that(swarm: Swarm) -> None:
    snapshot = make_snapshot()
    (donor,) = await donors_of(swarm, snapshot)
    with donor.server.sharing(IncomingState(build_manifest(snapshot), snapshot, [])):
        assert same(await share(swarm.peer(), [donor]), snapshot)


@virtually
async def test_only_donors_name_fellows(swarm: Swarm) -> None:
    """Made-up names of a fellow would take the places of true ones."""
    asked = list[str]()

    async def serve(stream: MessageStream) -> None:
        asked.append(stream.peer)
        await stream.receive(OpenDownload)
        await stream.send(DownloadOpened((str(victim.id),), held=b"\x00"))
        await asyncio.Event().wait()

    victim = swarm.peer()
    victim.node.serve(CHUNKS, lambda _, stream: serve(stream))
    newcomer, _ = await fetch_beside(swarm, serve)
    assert asked == [newcomer.id], "only the fellow"


@virtually
async def test_a_fellow_that_sends_a_chunk_now_and_then_keeps_no_download_open_without_donors(swarm: Swarm) -> None:
    snapshot = make_snapshot(chunks=MANY)
    donor, fellow, newcomer = swarm.peer(SLOW), swarm.peer(), swarm.peer()
    donor.server.publish(snapshot)
    await asyncio.sleep(0.001)

    async def serve(stream: MessageStream) -> None:
        await stream.receive(OpenDownload)
        await stream.send(DownloadOpened())
        while indices := (await stream.receive(TakeChunks)).indices:
            for index in indices:
                await asyncio.sleep(55.0)
                await stream.send_bulk(snapshot.bytes_view[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES])

    fellow.node.serve(CHUNKS, lambda _, stream: serve(stream))
    async with fellow.node.open(donor.id, CHUNKS) as stream:
        await stream.send(OpenDownload(build_manifest(snapshot).digest))
        await stream.receive(DownloadOpened)
        fetching = asyncio.create_task(share(newcomer, [donor]))
        await asyncio.sleep(5.0)
        swarm.internet.kill(donor.network)
        with pytest.raises(BrokenOffError):
            await asyncio.wait_for(fetching, 120.0)


@virtually
async def test_nobody_is_met_any_more_when_a_download_is_over(swarm: Swarm) -> None:
    snapshot = make_snapshot()
    (donor,), newcomer, fellow = await donors_of(swarm, snapshot), swarm.peer(), swarm.peer()
    asked = list[str]()

    async def serve(stream: MessageStream) -> None:
        asked.append(stream.peer)
        await stream.receive(OpenDownload)

    async def ignore(index: int, data: memoryview) -> None:
        pass

    fellow.node.serve(CHUNKS, lambda _, stream: serve(stream))
    source = ChunkSource(newcomer.node, CHUNKS, lambda *_: None)
    fetch = ChunkFetch(source, build_manifest(snapshot), range(CHUNKS_IN_ALL), ignore, torch.device("cpu"))
    running = asyncio.create_task(fetch.run([donor.id]))
    await asyncio.sleep(0.3)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    fetch.meet(fellow.id)
    await asyncio.sleep(5.0)
    assert asked == []


@virtually
async def test_who_gives_its_download_up_says_so(swarm: Swarm) -> None:
    snapshot = make_snapshot()
    manifest, fellow, stranger = build_manifest(snapshot), swarm.peer(), swarm.peer()
    async with stranger.node.open(fellow.id, CHUNKS) as stream:
        with fellow.server.sharing(IncomingState(manifest, snapshot, [1])):
            await stream.send(OpenDownload(manifest.digest))
            await stream.receive(DownloadOpened)
            await stream.send(TakeChunks((), news=True))
            await asyncio.sleep(0.5)
        with pytest.raises(RejectedError, match="given up"):
            await stream.receive(HeldChunks)


@virtually
async def test_a_donor_that_has_all_tells_no_news(swarm: Swarm) -> None:
    (donor,) = await donors_of(swarm, make_snapshot())
    stranger = swarm.peer()
    async with stranger.node.open(donor.id, CHUNKS) as stream:
        await stream.send(OpenDownload(build_manifest(make_snapshot()).digest))
        await stream.receive(DownloadOpened)
        await stream.send(TakeChunks((), news=True))
        with pytest.raises(RemoteError):
            await stream.receive(HeldChunks)
    assert donor.offenders() == [stranger.id]
