"""Serving and downloading training states between virtual peers: honest, lying, dying and slow ones."""

from __future__ import annotations

import asyncio
import errno
import tracemalloc
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from blake3 import blake3

from minga.core.errors import (
    ConfigurationError,
    ProtocolError,
    RejectedError,
    RemoteError,
    StateMismatchError,
    UnreachableError,
)
from minga.core.events.bus import Event
from minga.network.rpc.stream import MessageStream
from minga.network.virtual.internet import HostSettings
from minga.training.state.manifest import CHUNK_BYTES, MAX_MANIFEST_BYTES, Manifest, build_manifest
from minga.training.state.snapshot import StateSnapshot, TensorEntry
from minga.training.transfer.download import (
    BrokenOffError,
    DownloadedState,
    OvertakenError,
    OvertakenMidwayError,
    Wanted,
    download,
)
from minga.training.transfer.messages import (
    CHUNKS,
    DESCRIBE,
    MANIFEST,
    DescribeReply,
    DescribeRequest,
    Description,
    DownloadOpened,
    ManifestReply,
    ManifestRequest,
    OpenDownload,
    TakeChunks,
)
from minga.training.transfer.part_file import PartFile
from minga.training.transfer.server import IDLE_S
from tests.worlds.transfer_world import LINE, Peer, Swarm, virtually

CHUNKS_IN_ALL = 8
ANY = Wanted()


def make_snapshot(step: int = 5, seed: int = 0, chunks: int = CHUNKS_IN_ALL) -> StateSnapshot:
    drawn = np.random.default_rng(seed).bytes(chunks * CHUNK_BYTES)
    buffer = torch.frombuffer(bytearray(drawn), dtype=torch.uint8)
    entries = (
        TensorEntry("model/a", "float32", (CHUNK_BYTES,)),
        TensorEntry("model/b", "uint8", ((chunks - 4) << 20,)),
    )
    return StateSnapshot(step, entries, {"lr": 0.5}, buffer)


def changed(snapshot: StateSnapshot, *chunks: int, step: int | None = None) -> StateSnapshot:
    buffer = snapshot.buffer.clone()
    for chunk in chunks:
        buffer[chunk * CHUNK_BYTES + 7] ^= 1
    return replace(snapshot, buffer=buffer, step=snapshot.step if step is None else step)


async def donors_of(swarm: Swarm, *snapshots: StateSnapshot, manifest: Manifest | None = None) -> list[Peer]:
    donors = [swarm.peer() for _ in snapshots]
    for donor, snapshot in zip(donors, snapshots, strict=True):
        donor.server.publish(snapshot, manifest)
    await asyncio.sleep(0.001)
    return donors


async def fetch(newcomer: Peer, donors: list[Peer], wanted: Wanted = ANY, **options: Any) -> DownloadedState:
    return await download(newcomer.node, [donor.id for donor in donors], wanted, **options)


def same(result: DownloadedState, snapshot: StateSnapshot) -> bool:
    return build_manifest(result.snapshot) == build_manifest(snapshot)


# ---- what should work


@virtually
async def test_chunks_come_from_all_donors_and_progress_is_told(swarm: Swarm) -> None:
    snapshot = make_snapshot()
    donors = await donors_of(swarm, snapshot, snapshot, snapshot)
    newcomer = swarm.peer()
    begin = asyncio.get_running_loop().time()
    result = await fetch(newcomer, donors)
    took_s = asyncio.get_running_loop().time() - begin
    assert same(result, snapshot)
    assert result.failed == {}
    assert result.received_bytes == CHUNKS_IN_ALL * CHUNK_BYTES
    (downloaded,) = [event for event in newcomer.events if event.kind == "state.downloaded"]
    assert downloaded.fields["donors"] == sorted(donor.id for donor in donors)
    assert took_s < 0.75 * CHUNKS_IN_ALL * CHUNK_BYTES / 4e6  # faster than one donor could
    told = [event.fields for event in newcomer.events if event.kind == "sync.progress"]
    assert [each["done_bytes"] for each in told] == [CHUNK_BYTES * done for done in range(CHUNKS_IN_ALL + 1)]
    assert {each["total_bytes"] for each in told} == {snapshot.buffer.numel()}


@virtually
async def test_a_fast_donor_serves_more_and_a_crawling_one_does_not_hold_up_the_end(swarm: Swarm) -> None:
    snapshot = make_snapshot(chunks=24)
    fast, slow = swarm.peer(replace(LINE, up_bytes_per_s=8e6)), swarm.peer(replace(LINE, up_bytes_per_s=5e4))
    for donor in (fast, slow):
        donor.server.publish(snapshot)
    begin = asyncio.get_running_loop().time()
    result = await fetch(swarm.peer(), [fast, slow])
    assert same(result, snapshot)
    assert asyncio.get_running_loop().time() - begin < 10.0  # one chunk alone takes the slow one 21 s
    assert fast.node.traffic()[0] >= 22 * CHUNK_BYTES


@virtually
async def test_healing_transfers_only_what_differs(swarm: Swarm) -> None:
    right = make_snapshot()
    donors = await donors_of(swarm, right, right)
    result = await fetch(swarm.peer(), donors, have=changed(right, 2, 5))
    assert same(result, right)
    assert result.received_bytes == 2 * CHUNK_BYTES
    nothing = await fetch(swarm.peer(), donors, have=right)
    assert same(nothing, right)
    assert nothing.received_bytes == 0


@virtually
async def test_an_empty_state_and_one_smaller_than_a_chunk(swarm: Swarm) -> None:
    empty = StateSnapshot(1, (), {}, torch.zeros(0, dtype=torch.uint8))
    small = StateSnapshot(2, (TensorEntry("a", "int64", (3,)),), {}, torch.arange(32, dtype=torch.uint8))
    for snapshot in (empty, small):
        donors = await donors_of(swarm, snapshot)
        assert same(await fetch(swarm.peer(), donors), snapshot)


@virtually
async def test_a_donor_behind_nat_serves_over_the_connection_that_it_dialled(swarm: Swarm) -> None:
    snapshot = make_snapshot()
    hidden, newcomer = swarm.peer(replace(LINE, dialable=False)), swarm.peer()
    hidden.server.publish(snapshot)
    with pytest.raises(UnreachableError, match="no address"):
        await fetch(newcomer, [hidden])
    await hidden.node.connection(newcomer.id)
    assert same(await fetch(newcomer, [hidden]), snapshot)


# ---- which state is chosen


@virtually
async def test_the_majority_wins_then_the_later_step(swarm: Swarm) -> None:
    common, later, other = make_snapshot(5), make_snapshot(9, 1), make_snapshot(7, 2)
    donors = await donors_of(swarm, common, later, common, other)
    newcomer = swarm.peer()
    assert same(await fetch(newcomer, donors), common)
    assert sorted(newcomer.named("state.donor_dropped")) == []
    assert same(await fetch(swarm.peer(), donors[1:]), later)
    for minimum_step, error in ((4, OvertakenError), (5, UnreachableError)):
        with pytest.raises(UnreachableError, match="another state than the one wanted, of step 9") as told:
            await fetch(newcomer, donors, Wanted(minimum_step, "0" * 64))
        assert type(told.value) is error, "who wants that of step 5 is not told that all have gone on from there"
    expected = build_manifest(other).digest
    assert same(await fetch(newcomer, donors, Wanted(digest=expected)), other)


@virtually
async def test_of_states_that_as_many_have_the_organisers_wins(swarm: Swarm) -> None:
    states = [make_snapshot(5, seed) for seed in range(3)]
    donors = await donors_of(swarm, *states)
    for donor, state in zip(donors, states, strict=True):
        assert same(await fetch(swarm.peer(), donors, Wanted(organiser=donor.id)), state)
    donors = await donors_of(swarm, states[0], states[1], states[1])
    assert same(await fetch(swarm.peer(), donors, Wanted(organiser=donors[0].id)), states[1]), "more outvote fewer"


@virtually
async def test_of_states_that_as_many_have_without_the_organiser_that_of_the_lowest_id_wins(swarm: Swarm) -> None:
    states = [make_snapshot(5, seed) for seed in range(4)]
    donors = await donors_of(swarm, *states)
    lowest = min(range(4), key=lambda index: donors[index].id)
    assert same(await fetch(swarm.peer(), donors, Wanted(organiser=swarm.peer().id)), states[lowest])
    pairs = [states[index % 2] for index in range(4)]
    donors = await donors_of(swarm, *pairs)
    lowest = min(range(4), key=lambda index: donors[index].id)
    assert same(await fetch(swarm.peer(), donors), pairs[lowest])


@virtually
async def test_a_silent_minority_is_not_waited_for(swarm: Swarm) -> None:
    snapshot = make_snapshot()
    donors = await donors_of(swarm, snapshot, snapshot)
    waiting = swarm.peer()  # nobody publishes there
    begin = asyncio.get_running_loop().time()
    assert same(await fetch(swarm.peer(), [*donors, waiting]), snapshot)
    assert asyncio.get_running_loop().time() - begin < 8.0


@virtually
async def test_a_state_that_does_not_fit_is_refused_before_memory_is_taken(swarm: Swarm) -> None:
    donors = await donors_of(swarm, make_snapshot())

    async def refuse(manifest: Manifest) -> None:
        raise ConfigurationError(f"no model with {len(manifest.tensors)} tensors here")

    with pytest.raises(ConfigurationError, match="2 tensors"):
        await fetch(swarm.peer(), donors, accept=refuse)


@virtually
async def test_without_donors_the_error_says_so(swarm: Swarm) -> None:
    with pytest.raises(UnreachableError, match="nobody to ask"):
        await fetch(swarm.peer(), [])


# ---- the server and the training thread


@virtually
async def test_a_request_waits_for_the_next_boundary_and_one_copy_serves_all(swarm: Swarm) -> None:
    donor, newcomers = swarm.peer(), [swarm.peer() for _ in range(3)]
    assert not donor.server.wants(9)
    tasks = [asyncio.ensure_future(fetch(each, [donor], Wanted(6))) for each in newcomers]
    published = []
    for step in range(4, 9):
        await asyncio.sleep(1.0)
        if donor.server.wants(step):
            published.append(step)
            donor.server.publish(make_snapshot(step))
    results = await asyncio.gather(*tasks)
    assert published == [6]
    assert all(same(result, make_snapshot(6)) for result in results)
    assert not donor.server.wants(9)


@virtually
async def test_whoever_fetches_the_state_itself_lets_nobody_wait_for_it(swarm: Swarm) -> None:
    donors = [*await donors_of(swarm, make_snapshot()), swarm.peer(), swarm.peer(), swarm.peer()]
    clock = asyncio.get_running_loop().time
    begun_s = clock()
    asking = asyncio.create_task(download(swarm.peer().node, [donor.id for donor in donors], Wanted(5)))
    with donors[1].server.fetching():
        await asyncio.sleep(1.0)
        with donors[3].server.fetching():
            pass  # there was nobody to ask
        with donors[2].server.fetching():  # it was asked before it began
            state = await asking
    assert state.snapshot.step == 5
    assert clock() - begun_s < 10.0


@virtually
async def test_a_donor_that_is_behind_says_so(swarm: Swarm) -> None:
    donors = await donors_of(swarm, make_snapshot(5))
    with pytest.raises(UnreachableError, match="no state of step 6"):
        await fetch(swarm.peer(), donors, Wanted(6))


@virtually
async def test_snapshots_are_released_and_never_more_than_two_are_held(swarm: Swarm) -> None:
    donor = (await donors_of(swarm, make_snapshot(1)))[0]
    size = make_snapshot().buffer.numel()
    for step in (2, 3, 4):
        donor.server.publish(make_snapshot(step, step))
        await asyncio.sleep(1.0)
        assert donor.server.held_bytes == 2 * size
    await asyncio.sleep(61.0)
    assert donor.server.held_bytes == 0
    task = asyncio.ensure_future(fetch(swarm.peer(), [donor]))
    await asyncio.sleep(1.0)
    assert donor.server.wants(4)  # the same step again, since its copy is gone
    donor.server.publish(make_snapshot(4, 4))
    await task


@virtually
async def test_the_state_after_the_last_step_stays(swarm: Swarm) -> None:
    """No training thread is there any more that could be asked for it again."""
    last = make_snapshot(9, 9)
    fresh, asked_before = swarm.peer(), (await donors_of(swarm, last))[0]
    for donor in (fresh, asked_before):
        donor.server.publish_last(last)
    await asyncio.sleep(200.0)
    for donor in (fresh, asked_before):
        assert same(await fetch(swarm.peer(), [donor]), last)
        assert not donor.server.wants(9)


@virtually
async def test_a_running_download_keeps_its_snapshot_for_a_while(swarm: Swarm) -> None:
    donor = swarm.peer(replace(LINE, up_bytes_per_s=2e5))
    donor.server.publish(make_snapshot(1))
    slow = asyncio.ensure_future(fetch(swarm.peer(), [donor]))
    await asyncio.sleep(2.0)
    other = asyncio.ensure_future(fetch(swarm.peer(), [donor], Wanted(2)))
    await asyncio.sleep(2.0)
    assert donor.server.wants(2)
    donor.server.publish(make_snapshot(2))
    await asyncio.sleep(2.0)
    third = asyncio.ensure_future(fetch(swarm.peer(), [donor], Wanted(3)))
    await asyncio.sleep(2.0)
    assert not donor.server.wants(3)
    assert same(await slow, make_snapshot(1))
    assert same(await other, make_snapshot(2))
    with pytest.raises(UnreachableError):
        await third


@virtually
async def test_a_withdrawn_state_is_not_offered_any_more_nor_one_that_was_still_hashed(swarm: Swarm) -> None:
    (served,), hashing = await donors_of(swarm, make_snapshot(5)), swarm.peer()
    served.server.withdraw()
    tasks = [asyncio.ensure_future(fetch(swarm.peer(), [donor])) for donor in (served, hashing)]
    await asyncio.sleep(1.0)
    hashing.server.publish(make_snapshot(5))
    hashing.server.withdraw()
    await asyncio.sleep(1.0)
    assert not hashing.server.held_bytes
    for donor, task in zip((served, hashing), tasks, strict=True):
        assert donor.server.wants(5), "the peer that waits gets what this one has now"
        donor.server.publish(make_snapshot(5, 1))
        assert same(await task, make_snapshot(5, 1))


@virtually
async def test_downloads_beyond_the_limit_are_refused_in_words(swarm: Swarm) -> None:
    donor = swarm.peer(max_downloads=1)
    donor.server.publish(make_snapshot())
    first = asyncio.ensure_future(fetch(swarm.peer(), [donor]))
    await asyncio.sleep(0.5)
    with pytest.raises(UnreachableError, match="1 downloads are served at a time"):
        await fetch(swarm.peer(), [donor])
    assert same(await first, make_snapshot())


# ---- donors that lie or die


@virtually
async def test_a_donor_of_false_chunks_is_named_and_the_download_succeeds(swarm: Swarm) -> None:
    snapshot = make_snapshot()
    manifest = build_manifest(snapshot)
    liar = (await donors_of(swarm, changed(snapshot, *range(CHUNKS_IN_ALL)), manifest=manifest))[0]
    honest = await donors_of(swarm, snapshot, snapshot)
    newcomer = swarm.peer()
    result = await fetch(newcomer, [liar, *honest])
    assert same(result, snapshot)
    assert isinstance(result.failed[liar.id], StateMismatchError)
    assert list(result.failed) == [liar.id]
    assert newcomer.offenders() == [liar.id]
    assert newcomer.named("state.donor_dropped") == [liar.id]


@virtually
async def test_if_all_lie_the_error_names_them(swarm: Swarm) -> None:
    snapshot = make_snapshot()
    liars = await donors_of(
        swarm, changed(snapshot, *range(8)), changed(snapshot, *range(8)), manifest=build_manifest(snapshot)
    )
    with pytest.raises(UnreachableError, match="does not match its hash") as error:
        await fetch(swarm.peer(), liars)
    assert all(liar.id[:10] in str(error.value) for liar in liars)
    assert type(error.value) is UnreachableError, "nothing of it came"


@virtually
async def test_a_donor_killed_with_the_only_chunk_costs_about_a_second(swarm: Swarm) -> None:
    snapshot = StateSnapshot(2, (TensorEntry("a", "uint8", (CHUNK_BYTES,)),), {}, torch.ones(CHUNK_BYTES).byte())
    donors = await donors_of(swarm, snapshot, snapshot, snapshot)
    newcomer = swarm.peer()
    task = asyncio.ensure_future(fetch(newcomer, donors))
    while not (asked := [donor for donor in donors if donor.server._places._taken]):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    for donor in asked[:1]:
        swarm.internet.kill(donor.network)
    killed = asyncio.get_running_loop().time()
    assert same(await task, snapshot)
    assert asyncio.get_running_loop().time() - killed < 3.0
    assert newcomer.offenders() == []


@virtually
async def test_all_donors_killed_then_resumed_from_the_cache(swarm: Swarm) -> None:
    snapshot = make_snapshot(chunks=16)
    donors = await donors_of(swarm, snapshot, snapshot)
    newcomer, done = swarm.peer(), list[int]()

    def watch(event: Event) -> None:
        if event.kind == "sync.progress":
            done.append(event.fields["done_bytes"] // CHUNK_BYTES)
            if done[-1] == 6:
                for donor in donors:
                    swarm.internet.kill(donor.network)

    newcomer.node.events.subscribe(watch)
    with pytest.raises(BrokenOffError, match="none of 2 donors"):
        await fetch(newcomer, donors, cache=swarm.folder)
    kept = max(done)
    assert 6 <= kept < 16
    again = await fetch(swarm.peer(), await donors_of(swarm, snapshot), cache=swarm.folder)
    assert same(again, snapshot)
    assert again.received_bytes == (16 - kept) * CHUNK_BYTES
    assert list(swarm.folder.iterdir()) == []


@virtually
async def test_a_state_that_became_an_old_one_is_that_also_if_chunks_of_it_came(swarm: Swarm) -> None:
    snapshot = make_snapshot(chunks=16)
    lost = await donors_of(swarm, snapshot, snapshot)
    ahead = await donors_of(swarm, changed(snapshot, *range(16), step=snapshot.step + 1))
    newcomer, done = swarm.peer(), list[Event]()

    def watch(event: Event) -> None:
        if event.kind == "sync.progress":
            done.append(event)
            if len(done) == 6:
                for donor in lost:
                    swarm.internet.kill(donor.network)

    newcomer.node.events.subscribe(watch)
    with pytest.raises(OvertakenMidwayError):
        await fetch(newcomer, [*lost, *ahead], Wanted(minimum_step=snapshot.step))
    assert done[-1].fields["done_bytes"] > 0


@virtually
async def test_a_damaged_cache_costs_only_its_damaged_chunks(swarm: Swarm) -> None:
    snapshot = make_snapshot()
    digest = build_manifest(snapshot).digest
    swarm.folder.joinpath(f"{digest}.chunks").write_bytes(changed(snapshot, 3).bytes_view[: 6 * CHUNK_BYTES + 5])
    swarm.folder.joinpath(f"{'0' * 64}.chunks").write_bytes(b"of another state")
    swarm.folder.joinpath("mine.txt").write_bytes(b"not ours")
    result = await fetch(swarm.peer(), await donors_of(swarm, snapshot), cache=swarm.folder)
    assert same(result, snapshot)
    assert result.received_bytes == 3 * CHUNK_BYTES
    assert [path.name for path in swarm.folder.iterdir()] == ["mine.txt"]


@virtually
async def test_a_full_disk_does_not_stop_a_download(swarm: Swarm) -> None:
    def full(self: PartFile, index: int, data: memoryview) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    snapshot, newcomer = make_snapshot(), swarm.peer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartFile, "write", full)
        assert same(await fetch(newcomer, await donors_of(swarm, snapshot), cache=swarm.folder), snapshot)
    assert [event.fields["reason"] for event in newcomer.events if event.kind == "state.cache_failed"] == [
        "[Errno 28] No space left on device"
    ]
    assert list(swarm.folder.iterdir()) == []


@virtually
async def test_a_cancelled_download_leaves_nothing_running(swarm: Swarm) -> None:
    donor = (await donors_of(swarm, make_snapshot()))[0]
    before = len(asyncio.all_tasks())
    newcomer = swarm.peer()
    task = asyncio.ensure_future(fetch(newcomer, [donor], cache=swarm.folder))
    await asyncio.sleep(1.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await newcomer.node.close()
    await asyncio.sleep(10.0)
    assert len(asyncio.all_tasks()) <= before


Serve = Callable[[MessageStream], Coroutine[Any, Any, None]]


def false_donor(swarm: Swarm, described: Description | None = None, **handlers: Serve) -> Peer:
    """A donor that answers by hand-written handlers."""
    peer = swarm.peer()

    async def describe(stream: MessageStream) -> None:
        await stream.receive(DescribeRequest)
        await stream.send(DescribeReply(() if described is None else (described,)))

    for method, name in ((DESCRIBE, "describe"), (MANIFEST, "manifest"), (CHUNKS, "chunks")):
        handler = handlers.get(name, describe if name == "describe" else None)
        if handler is not None:
            peer.node.serve(method, lambda _, stream, handler=handler: handler(stream))
    return peer


def serving_manifest(encoded: bytes, announced: int | None = None) -> Serve:
    async def serve(stream: MessageStream) -> None:
        await stream.receive(ManifestRequest)
        await stream.send(ManifestReply(len(encoded) if announced is None else announced))
        for start in range(0, len(encoded), 1 << 20):
            await stream.send_bulk(encoded[start : start + (1 << 20)])

    return serve


@virtually
async def test_a_false_manifest_costs_the_liar_its_vote(swarm: Swarm) -> None:
    snapshot = make_snapshot()
    manifest = build_manifest(snapshot)
    forged = msgspec.structs.replace(manifest, scalars_json=b'{"lr":9.0}').encoded
    # Claiming a later step for the same digest wins the choice between two, until the manifest is asked for.
    liars = [
        false_donor(swarm, Description(99, manifest.digest), manifest=serving_manifest(manifest.encoded)),
        false_donor(swarm, Description(98, "a" * 64), manifest=serving_manifest(forged)),
        false_donor(swarm, Description(97, blake3(b"junk").hexdigest()), manifest=serving_manifest(b"junk")),
    ]
    newcomer = swarm.peer()
    result = await fetch(newcomer, [*liars, *await donors_of(swarm, snapshot)])
    assert same(result, snapshot)
    assert {donor for donor, error in result.failed.items() if isinstance(error, StateMismatchError)} == {
        liar.id for liar in liars
    }
    assert sorted(newcomer.offenders()) == sorted(liar.id for liar in liars)


@virtually
async def test_announced_sizes_are_never_allocated(swarm: Swarm) -> None:
    described = Description(9, "b" * 64)

    async def huge(stream: MessageStream) -> None:
        await stream.receive(ManifestRequest)
        await stream.send(ManifestReply(MAX_MANIFEST_BYTES))

    async def impossible(stream: MessageStream) -> None:
        await stream.receive(ManifestRequest)
        await stream.send(ManifestReply(MAX_MANIFEST_BYTES + 1))

    async def endless(stream: MessageStream) -> None:
        await stream.receive(DescribeRequest)
        await stream.send(DescribeReply((described,) * 3))

    newcomer = swarm.peer()
    tracemalloc.start()
    try:
        for donor in (
            false_donor(swarm, described, manifest=huge),
            false_donor(swarm, described, manifest=impossible),
            false_donor(swarm, described, manifest=serving_manifest(bytes(100), announced=50)),
            false_donor(swarm, described, describe=endless),
            false_donor(swarm, None),
            false_donor(swarm, Description(-1, "b" * 64)),
            false_donor(swarm, Description(1, "B" * 64)),
        ):
            with pytest.raises(UnreachableError, match=donor.id[:10]):
                await fetch(newcomer, [donor])
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@virtually
async def test_stale_descriptions_are_an_offence(swarm: Swarm) -> None:
    donor = false_donor(swarm, Description(3, "b" * 64))
    newcomer = swarm.peer()
    with pytest.raises(UnreachableError, match="before step 5"):
        await fetch(newcomer, [donor], Wanted(5))
    assert newcomer.offenders() == [donor.id]


@virtually
async def test_a_donor_that_pulses_but_sends_nothing_is_given_up(swarm: Swarm) -> None:
    manifest = build_manifest(make_snapshot())

    async def nothing(stream: MessageStream) -> None:
        await stream.receive(OpenDownload)
        await stream.send(DownloadOpened())
        await asyncio.Event().wait()

    donor = false_donor(
        swarm, Description(5, manifest.digest), manifest=serving_manifest(manifest.encoded), chunks=nothing
    )
    with pytest.raises(UnreachableError, match="sent no chunk for 60 s"):
        await fetch(swarm.peer(), [donor])


# ---- downloaders that misbehave


async def take(peer: Peer, donor: Peer, digest: str, *takes: tuple[int, ...]) -> None:
    """Open a download by hand and ask for chunks, waiting for each."""
    async with peer.node.open(donor.id, CHUNKS) as stream:
        await stream.send(OpenDownload(digest))
        await stream.receive(DownloadOpened)
        for indices in takes:
            await stream.send(TakeChunks(indices))
            for _ in indices:
                await stream.receive_bulk_into(memoryview(bytearray(CHUNK_BYTES)))


@virtually
async def test_impossible_chunks_are_an_offence(swarm: Swarm) -> None:
    donor, offenders = (await donors_of(swarm, make_snapshot()))[0], list[str]()
    for indices in ((0, CHUNKS_IN_ALL), (1 << 40,), (-1,), tuple(range(33))):
        bad = swarm.peer()
        with pytest.raises(RemoteError):
            await take(bad, donor, build_manifest(make_snapshot()).digest, indices)
        offenders.append(bad.id)
        assert donor.offenders() == offenders, indices
    assert same(await fetch(swarm.peer(), [donor]), make_snapshot())


@virtually
async def test_a_chunk_cannot_be_asked_for_for_ever(swarm: Swarm) -> None:
    donor = (await donors_of(swarm, make_snapshot()))[0]
    greedy = swarm.peer()
    with pytest.raises((ProtocolError, UnreachableError)):
        await take(greedy, donor, build_manifest(make_snapshot()).digest, *[(0,)] * 4 * CHUNKS_IN_ALL)
    assert donor.offenders() == [greedy.id]


@virtually
async def test_states_not_held_are_refused(swarm: Swarm) -> None:
    donor = (await donors_of(swarm, make_snapshot()))[0]
    stranger = swarm.peer()
    with pytest.raises(RejectedError, match="not held"):
        await stranger.node.call(donor.id, MANIFEST, ManifestRequest("c" * 64), ManifestReply)
    with pytest.raises(RejectedError, match="not held"):
        await take(stranger, donor, "c" * 64)
    with pytest.raises((ProtocolError, UnreachableError)):
        await stranger.node.call(donor.id, DESCRIBE, DescribeRequest(-1), DescribeReply)


@virtually
async def test_a_copy_of_the_state_is_kept_while_it_is_fetched_and_let_go_of_soon_after(swarm: Swarm) -> None:
    (donor,) = await donors_of(swarm, make_snapshot())
    newcomer = swarm.peer(HostSettings(up_bytes_per_s=1e9, down_bytes_per_s=CHUNKS_IN_ALL * CHUNK_BYTES / 150.0))
    fetching = asyncio.create_task(fetch(newcomer, [donor]))
    await asyncio.sleep(2.0 * IDLE_S)
    assert not fetching.done()
    assert same(await fetching, make_snapshot())
    await asyncio.sleep(1.1 * IDLE_S)
    with pytest.raises(RejectedError, match="not held"):
        await take(newcomer, donor, build_manifest(make_snapshot()).digest)


@virtually
async def test_a_downloader_that_reads_nothing_does_not_keep_its_place(swarm: Swarm) -> None:
    donor = swarm.peer(max_downloads=1)
    donor.server.publish(make_snapshot())
    idle = swarm.peer()
    async with idle.node.open(donor.id, CHUNKS) as stream:
        await asyncio.sleep(0.1)
        await stream.send(OpenDownload(build_manifest(make_snapshot()).digest))
        await stream.send(TakeChunks(tuple(range(CHUNKS_IN_ALL))))
        await asyncio.sleep(130.0)
        donor.server.publish(make_snapshot())
        await asyncio.sleep(0.1)
        assert same(await fetch(swarm.peer(), [donor]), make_snapshot())
