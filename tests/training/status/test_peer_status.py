"""What a program learns of its run from a peer: status, peers, events."""

from __future__ import annotations

import threading

import pytest

import minga
from minga.core.events.bus import Event, EventBus
from minga.training.status.metrics_publisher import MOST_WAITING, EventStream


def test_a_program_asks_its_peer_and_hears_of_events() -> None:
    options = minga.PeerOptions(ephemeral=True, host="127.0.0.1", role="auxiliary")
    with minga.host(minga.RunSpec(name="asked"), options) as peer:
        status = peer.status()
        assert (status.name, status.run_id, status.mode) == ("asked", peer.run_id, "open")
        assert [(each.peer_id, each.role, each.is_self) for each in peer.peers()] == [(peer.peer_id, "auxiliary", True)]
        events, others = peer.events(), peer.events()
        peer.emit("my.event", word="first")
        peer.emit("my.event", word="second")
        assert [event.fields["word"] for _, event in zip(range(2), events, strict=False)] == ["first", "second"]
        heard: list[Event] = []
        listener = threading.Thread(target=lambda: heard.extend(others))
        listener.start()
    listener.join()
    assert [event.fields.get("word") for event in heard if event.kind == "my.event"] == ["first", "second"]
    for ask in (peer.status, peer.peers, peer.events):
        with pytest.raises(minga.ClosedError):
            ask()


def test_a_slow_program_loses_the_oldest_events_and_is_told_how_many() -> None:
    bus = EventBus(lambda: 0.0)
    with EventStream(bus.subscribe) as stream:
        for number in range(MOST_WAITING + 3):
            bus.emit_own("counted", {"number": number})
        assert stream.dropped == 3
        first = stream.get(1.0)
        assert first is not None
        assert first.fields["number"] == 3
    assert sum(1 for _ in stream) == MOST_WAITING - 1
    assert stream.get(1.0) is None, "a stream that has ended does not wait"
    bus.emit_own("counted", {"number": -1})
    assert list(stream) == []


def test_a_stream_without_news_waits_no_longer_than_asked() -> None:
    with EventStream(EventBus(lambda: 0.0).subscribe) as stream:
        assert stream.get(0.01) is None
