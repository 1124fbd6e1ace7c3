"""Histories of other peers: asked for over the network, thinned, and put where one's own has nothing."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import zlib
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minga.core.errors import ProtocolError, RejectedError
from minga.monitor import history as history_module
from minga.monitor.history import (
    FREQUENT,
    HISTORY,
    LEAST_PERIOD_S,
    LONGEST_SILENCE_S,
    MOST_ENTRIES,
    MOST_REPLY_BYTES,
    REST,
    Entry,
    History,
    HistoryReply,
    HistoryRequest,
    HistoryServer,
    Line,
    ask_history,
    fill_gaps,
    packed,
    parse_entry,
    read_history,
    thinned,
    told_since,
)
from minga.network.interface import PeerId
from minga.network.rpc.stream import MessageStream
from minga.simulation.virtual_time import run_virtual
from tests.worlds.node_world import World


def entry(time_s: float, event: str = "step", **fields: Any) -> Entry:
    return {"t": time_s, "event": event, **fields}


def written(path: Path, entries: list[Entry]) -> Path:
    history = History(path)
    for each in entries:
        history.add(each["t"], each["event"], **{k: v for k, v in each.items() if k not in ("t", "event")})
    return path


def few_of(entries: Iterable[Entry], most: int) -> list[Entry]:
    """What remains of them, as read from a file."""
    lines = [line for each in entries if (line := Line.of(json.dumps(each).encode())) is not None]
    return [json.loads(line.text) for line in thinned(lines, most)]


def test_a_peer_sends_what_it_kept_of_a_time(tmp_path: Path) -> None:
    path = written(tmp_path / "history.jsonl", [entry(float(second), step=second) for second in range(100)])

    async def test() -> None:
        world = World()
        keeper, asker = await world.node(), await world.node()
        HistoryServer(keeper, [path, tmp_path / "not there"])
        found = await ask_history(asker, keeper.peer_id, 30.0, 60.0)
        assert [each["step"] for each in found] == list(range(31, 61))
        with pytest.raises(RejectedError):
            await ask_history(asker, keeper.peer_id, 0.0, 60.0)
        await asyncio.sleep(LEAST_PERIOD_S)
        assert len(await ask_history(asker, keeper.peer_id, 0.0, 99.0)) == 99
        for node in world.nodes:
            await node.close()

    run_virtual(test())


def test_a_history_that_takes_long_to_read_is_read_more_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "history.jsonl", [entry(1.0, step=1)])

    async def test() -> None:
        world, loop = World(), asyncio.get_running_loop()
        keeper, asker = await world.node(), await world.node()

        async def read_for_four_seconds(read: Callable[[], bytes]) -> bytes:
            await asyncio.sleep(4.0)
            return read()

        monkeypatch.setattr(loop, "run_in_executor", lambda _, read: loop.create_task(read_for_four_seconds(read)))
        HistoryServer(keeper, [path])
        first = loop.create_task(ask_history(asker, keeper.peer_id, 0.0, 60.0))
        await asyncio.sleep(3.0)
        with pytest.raises(RejectedError):  # while it is being read
            await ask_history(asker, keeper.peer_id, 0.0, 60.0)
        assert len(await first) == 1
        await asyncio.sleep(0.9 * REST * 4.0)
        with pytest.raises(RejectedError):
            await ask_history(asker, keeper.peer_id, 0.0, 60.0)
        await asyncio.sleep(0.1 * REST * 4.0)
        assert len(await ask_history(asker, keeper.peer_id, 0.0, 60.0)) == 1
        for node in world.nodes:
            await node.close()

    run_virtual(test())


def test_while_the_organisers_host_is_busy_nobody_is_believed_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "history.jsonl", [entry(5.0, step=7, total_samples=70)])
    monkeypatch.setattr(history_module, "time", SimpleNamespace(time=lambda: 9.0))

    async def test() -> None:
        world = World()
        host, liar, monitor = await world.node(), await world.node(), await world.node()
        peer = SimpleNamespace(
            session=SimpleNamespace(node=monitor),
            link=SimpleNamespace(organiser=host.peer_id),
            call=lambda asking: asking,
        )

        async def answer(_: PeerId, stream: MessageStream) -> None:
            await stream.receive(HistoryRequest)
            await stream.send(HistoryReply(zlib.compress(b'{"t": 6.0, "event": "step", "step": 9}')))

        liar.serve(HISTORY, answer)
        await ask_history(monitor, liar.peer_id, 0.0, 9.0)
        with pytest.raises(RejectedError):
            await ask_history(monitor, host.peer_id, 0.0, 9.0)
        found = await told_since(peer, 0.0)  # type: ignore[arg-type, misc]
        assert [each["step"] for each in found] == [9], "a host that keeps none"
        server = HistoryServer(host, [path])
        await ask_history(monitor, host.peer_id, 0.0, 9.0)  # it is busy from now on
        found = await told_since(peer, 0.0)  # type: ignore[arg-type, misc]
        assert [each["step"] for each in found] == [7]
        server._free_s = math.inf
        assert await told_since(peer, 0.0) == []  # type: ignore[arg-type, misc]
        for node in world.nodes:
            await node.close()

    run_virtual(test())


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        (zlib.compress(b'{"t": 5, "event": "step"}\n{"t": 500, "event": "step"}\n[]\n{"t": NaN}\n\xff'), 1),
        (zlib.compress(b'{"t": 1' + b"0" * 400 + b', "event": "step"}\n{"t": 5, "event": "step"}'), 1),
        (zlib.compress(b"x" * (1 << 26)), 0),
        (zlib.compress(b'{"t": 5, "event": "step"}\n' * 100_000), MOST_ENTRIES),
        (zlib.compress(b'{"t": 5, "event": "' + b"y" * 9000 + b'"}'), 0),
        (zlib.compress(b'{"t": 5, "event": "missed", "peer": "\\ud800"}'), 0),
        (zlib.compress(b'{"t": 5, "event": "missed", "peer": "\xed\xa0\x80"}'), 0),
        (zlib.compress('{"t": 5, "event": "missed", "peer": "\\ud800"}'.encode("utf-16-le")), 0),
        (b"", 0),
        (b"no zlib", None),
    ],
    ids=[
        "garbage",
        "beyond a float",
        "bomb",
        "many",
        "long",
        "half a letter",
        "its bytes",
        "in UTF-16",
        "empty",
        "unpacked",
    ],
)
def test_any_reply_is_bounded_and_read_with_care(lines: bytes, kept: int | None) -> None:
    async def test() -> None:
        world = World()
        liar, asker = await world.node(), await world.node()

        async def answer(_: PeerId, stream: MessageStream) -> None:
            await stream.receive(HistoryRequest)
            await stream.send(HistoryReply(lines))

        liar.serve(HISTORY, answer)
        if kept is None:
            with pytest.raises(ProtocolError):
                await ask_history(asker, liar.peer_id, 0.0, 60.0)
        else:
            assert len(await ask_history(asker, liar.peer_id, 0.0, 60.0)) == kept
        for node in world.nodes:
            await node.close()

    run_virtual(test())


def test_what_is_told_can_be_written_however_deep_it_is_nested(tmp_path: Path) -> None:
    history, speeds = History(tmp_path / "history.jsonl"), {"aa": 3.5}
    for depth in range(1, 1100):
        found = parse_entry(
            b'{"t": 5, "event": "swarm", "by_peer": {"aa": 3.5}, "x": %s}' % (b"[" * depth + b"]" * depth)
        )
        if found is not None:  # else too deep to be read
            history.put(found)
    assert parse_entry(b'{"t": 5, "event": "swarm", "by_peer": {"aa": {}}}') == entry(5, "swarm")
    for told in read_history(tmp_path / "history.jsonl"):
        assert told == entry(5, "swarm", by_peer=speeds)


def test_a_long_history_is_thinned_and_rare_entries_stay() -> None:
    entries = [entry(float(second), step=second) for second in range(20_000)]
    entries += [entry(float(second), "lost", peer="aa" * 32) for second in range(0, 20_000, 500)]
    few = few_of(sorted(entries, key=lambda each: float(each["t"])), MOST_ENTRIES)
    assert len(few) <= MOST_ENTRIES
    assert sum(each["event"] == "lost" for each in few) == 40
    times = [each["t"] for each in few]
    assert times == sorted(times)
    assert times[0] < 20.0
    assert times[-1] == 19_999.0


def test_those_who_come_and_go_displace_nothing_rarer_but_are_told_each_while_there_is_room() -> None:
    kinds = ("step", *["joined", "left"] * 4)
    entries = [entry(600.0 * hour, kind, peer=at) for hour in range(900) for at, kind in enumerate(kinds)]
    assert few_of(entries[:1000], MOST_ENTRIES) == entries[:1000], "also those of one moment"
    bans = [entry(600.0 * hour, "banned") for hour in range(900)]
    few = few_of(sorted([*entries, *bans], key=lambda each: float(each["t"])), MOST_ENTRIES)
    assert len(few) <= MOST_ENTRIES
    assert [each for each in few if each["event"] == "banned"] == bans


@pytest.mark.parametrize("most", range(20))
def test_few_entries_are_no_more_than_were_asked_for(most: int) -> None:
    """Whoever makes them fewer until they are small enough would never end."""
    entries = [entry(t, kind) for t in (-5.0, 5.0) for kind in (*FREQUENT, "banned")]
    assert len(few_of(entries, most)) <= most


def test_each_frequent_kind_is_thinned_by_itself_and_evenly_over_time() -> None:
    """Also where one kind follows the other, and where it is written more often towards the end."""
    moments = [*range(0, 20_000, 10), *range(20_000, 40_000)]
    entries = [entry(t + later, kind) for t in moments for later, kind in ((0.0, "step"), (0.5, "round"))]
    few = few_of([entry(-1e9, "step"), *entries], MOST_ENTRIES)
    for kind in ("step", "round"):
        times = [each["t"] for each in few if each["event"] == kind and each["t"] >= 0.0]
        assert MOST_ENTRIES / 8 <= len(times) <= MOST_ENTRIES / 2
        assert max(later - earlier for earlier, later in pairwise(times)) <= 20_000 / (len(times) / 4)
        assert times[0] <= 100.0
        assert times[-1] >= 39_999.0


def test_what_is_sent_is_bounded_in_bytes(tmp_path: Path) -> None:
    rng = random.Random(1)
    noisy = [entry(float(second), "missed", why=rng.randbytes(600).hex()) for second in range(MOST_ENTRIES)]
    lines = packed([written(tmp_path / "history.jsonl", noisy)], 0.0, 1e9)
    assert len(lines) <= MOST_REPLY_BYTES
    assert len(zlib.decompress(lines).split(b"\n")) >= 100
    assert json.loads(zlib.decompress(lines).split(b"\n")[0])["event"] == "missed"


def test_what_is_old_is_neither_kept_in_memory_nor_read_where_the_file_is_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "history.jsonl", [entry(float(second), step=second) for second in range(100)])
    before = written(tmp_path / "history.jsonl.1", [entry(-1.0)])
    os.utime(before, (20.0, 20.0))
    os.utime(path, (99.0, 99.0))
    read = list[bytes]()
    monkeypatch.setattr(history_module, "parse_entry", lambda line: read.append(line) or parse_entry(line))  # type: ignore[func-returns-value]
    monkeypatch.setattr(history_module, "_last_step", lambda _: None)
    assert len(zlib.decompress(packed([path], 89.0, 1e9)).splitlines()) == 10
    assert read == [], "the beginning of a line tells whether it is sent"


def test_another_history_fills_the_gaps_of_ones_own() -> None:
    own = [entry(t, who="own") for t in (0.0, 60.0, 120.0, 1000.0, 1050.0)]
    other = [entry(t, who="other") for t in (30.0, 90.0, 200.0, 500.0, 999.0, 1020.0, 2000.0)]
    merged = fill_gaps(own, other)
    assert [each["t"] for each in merged if each["who"] == "other"] == [200.0, 500.0, 999.0, 2000.0]
    assert [each["t"] for each in merged] == sorted(each["t"] for each in merged)
    assert fill_gaps([], other) == other
    assert fill_gaps(own, []) == own
    assert LONGEST_SILENCE_S > 60.0
