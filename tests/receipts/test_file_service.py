"""A peer that takes no part reads the receipts, and believes none that do not hold."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import tracemalloc
import weakref
from pathlib import Path

import pytest
import torch

import minga
from minga.identity.keys.keys import Identity
from minga.identity.links.signed_spec import SignedRunSpec
from minga.network.interface import PeerId
from minga.network.rpc.stream import MessageStream
from minga.receipts import document as file_service
from minga.receipts import receipts
from minga.receipts.attestation import Claim, JudgedCount
from minga.receipts.book import PeerTotals, ReceiptBook
from minga.receipts.book_file import books_in, read_book
from minga.receipts.document import (
    FILE,
    MAX_FILE_BYTES,
    FileReply,
    FileRequest,
    ReceiptFileServer,
    fetch_receipts,
)
from tests.worlds.cli_run import last_json, run
from tests.worlds.receipt_world import IDS, KEYS, make_count, sign
from tests.worlds.reduce_world import World
from tests.worlds.side_by_side import SideBySide
from tests.worlds.swarm_tools import make_spec, virtually

ORGANISER = Identity.from_seed(bytes(32))
SPEC = make_spec(16)
SIGNED = SignedRunSpec.sign(SPEC, ORGANISER)


def book_of(counts: int, run: str = SPEC.run_id) -> ReceiptBook:
    book = ReceiptBook()
    for number in range(counts):
        count = make_count(10 + 5 * number, [Claim(4, 4, 100, 50)] * 3)
        book.add_count(JudgedCount(count, b"", is_witness=True))
        for key in KEYS[:3]:
            book.add(sign(key, count, run=run))
    return book


@virtually
async def test_a_reader_takes_the_first_file_that_holds() -> None:
    world = World(5)
    await world.start()
    reader, silent, empty, liar, honest = world.parties
    book = book_of(2)
    ReceiptFileServer(empty.node, ReceiptBook(), SIGNED)
    ReceiptFileServer(liar.node, book_of(2, run="ab" * 32), SIGNED)
    ReceiptFileServer(honest.node, book, SIGNED)

    async def read(*members: PeerId) -> int | None:
        fetching = fetch_receipts(reader.node, members, SPEC.run_id, ORGANISER.peer_id)
        found = await reader.network.process.run(fetching)
        return None if found is None else found.totals[IDS[0]].samples

    assert await read(empty.peer_id, liar.peer_id, honest.peer_id) == 200
    assert await read(silent.peer_id, empty.peer_id, liar.peer_id, honest.peer_id) is None, "it asks a few only"
    assert await read() is None
    wrong = f"its receipts prove nothing: a signature of {IDS[0][:16]} is wrong"
    assert reader.offences() == [(liar.peer_id, wrong)] * 2
    count = make_count(40, [Claim(4, 4, 7, 0)] * 3)
    book.add_count(JudgedCount(count, b"", is_witness=True))
    for key in KEYS[:3]:
        book.add(sign(key, count, run=SPEC.run_id))
    assert await read(honest.peer_id) == 200, "what was made is sent again for a while"
    await asyncio.sleep(file_service.FRESH_S)
    assert await read(honest.peer_id) == 207
    await world.close()


@virtually
async def test_a_member_that_lives_and_never_sends_its_file_holds_up_no_reader() -> None:
    world = World(3)
    await world.start()
    reader, stalling, honest = world.parties

    async def stall(peer: PeerId, stream: MessageStream) -> None:
        await stream.receive(FileRequest)
        await asyncio.Event().wait()  # its node sends signs of life meanwhile

    stalling.node.serve(FILE, stall)
    ReceiptFileServer(honest.node, book_of(1), SIGNED)
    members = [stalling.peer_id, honest.peer_id]
    fetching = fetch_receipts(reader.node, members, SPEC.run_id, ORGANISER.peer_id)
    found = await asyncio.wait_for(reader.network.process.run(fetching), 2 * file_service.FETCH_S)
    assert found is not None
    assert found.totals[IDS[0]].samples == 100
    await world.close()


@virtually
async def test_a_file_that_is_only_announced_takes_no_memory() -> None:
    world = World(3)
    await world.start()
    reader, boasting, honest = world.parties

    async def boast(peer: PeerId, stream: MessageStream) -> None:
        await stream.receive(FileRequest)
        await stream.send(FileReply(MAX_FILE_BYTES))

    boasting.node.serve(FILE, boast)
    ReceiptFileServer(honest.node, book_of(1), SIGNED)
    members = [boasting.peer_id, honest.peer_id]
    tracemalloc.start()
    fetching = fetch_receipts(reader.node, members, SPEC.run_id, ORGANISER.peer_id)
    assert await reader.network.process.run(fetching) is not None
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MAX_FILE_BYTES / 8
    await world.close()


def test_who_asks_for_the_file_and_never_reads_keeps_no_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class File(bytearray):
        """Can be seen to be there."""

    files: list[weakref.ref[File]] = []

    def write(*_: object) -> bytearray:
        file = File(MAX_FILE_BYTES // 8)
        files.append(weakref.ref(file))
        return file

    monkeypatch.setattr(file_service, "write_document", write)

    @virtually
    async def run() -> None:
        world = World(2)
        await world.start()
        reader, member = world.parties
        ReceiptFileServer(member.node, ReceiptBook(), SIGNED)
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(4):
                stream = await stack.enter_async_context(reader.node.open(member.peer_id, FILE, bulk=True))
                await stream.send(FileRequest())
                await asyncio.sleep(file_service.FRESH_S + 1.0)
            await asyncio.sleep(file_service.FETCH_S)
            assert len(files) == 4
            assert [file() is None for file in files] == [True, True, True, False]
            assert not member.node._served
        await world.close()

    run()


def test_a_monitor_has_the_totals_of_a_member_over_real_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "COUNT_S", 0.0)
    monkeypatch.setattr(receipts, "SIGN_S", 0.0)
    monkeypatch.setattr(file_service, "FRESH_S", 0.0)
    spec = minga.RunSpec.from_mapping(
        {"name": "test", "model": {"recipe": "custom"}, "training": {"target_batch_size": 8, "stop_after_steps": 12}}
    )
    options = [
        minga.PeerOptions(role, ephemeral=True, directory=tmp_path / str(number), host="127.0.0.1")
        for number, role in enumerate(["trainer", "trainer", "monitor"])
    ]
    with minga.host(spec, options[0]) as first, minga.join(first.link, options[1]) as second:
        peers, threads = [first, second], []
        for peer in peers:
            threads.append(threading.Thread(target=train, args=(peer, str(len(threads)), tmp_path)))
            threads[-1].start()
        with minga.join(first.link, options[2]) as monitor:
            assert monitor.peer_id not in monitor.receipts()
            for thread in threads:
                thread.join()
            deadline = time.monotonic() + 20.0
            while not all(monitor.receipts().get(peer.peer_id, PeerTotals()).samples for peer in peers):
                assert time.monotonic() < deadline
                time.sleep(0.2)
            shown = last_json(run("runs", "receipts", str(first.link), "--bind", "127.0.0.1", "--json").stdout)
            assert shown["peers"].keys() == {peer.peer_id for peer in peers}
            own = first.receipts()
            assert own.keys() == {peer.peer_id for peer in peers}
            assert read_book(books_in(first.directory)[0]).totals()[PeerId(first.peer_id)] == own[first.peer_id]


def train(peer: minga.Peer, name: str, folder: Path) -> None:
    """Train a small model until the run is over, of whose first steps both have a part."""
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 2)
    optimizer = minga.Optimizer(minga.optim.SGD(model.parameters(), lr=0.1), peer, model=model)
    beside = SideBySide(folder, name, "01", peer)
    while not optimizer.finished:
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step(samples=2)
        optimizer.zero_grad()
        beside.keep_pace(optimizer)
