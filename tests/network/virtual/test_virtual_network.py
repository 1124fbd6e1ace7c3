from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import pytest

from minga.core.errors import ClosedError, ConfigurationError, UnreachableError
from minga.network.interface import Address, Network, Stream
from minga.network.virtual.internet import Delivery, HostSettings, VirtualInternet, VirtualNetwork
from minga.network.virtual.paths import Nat
from minga.simulation import run_virtual
from minga.testing import MakeNetwork, check_network
from minga.testing.suite import join, read_all, stream_pair

SETTINGS = {
    "fast": HostSettings(),
    "slow and lossy": HostSettings(4e7, 3e7, latency_s=0.04, loss=0.02),
}


def make_on(internet: VirtualInternet, settings: HostSettings) -> MakeNetwork:
    async def make(*, dialable: bool = True) -> Network:
        return internet.host(replace(settings, dialable=dialable))

    return make


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_conformance(settings: HostSettings) -> None:
    async def main() -> None:
        await check_network(make_on(VirtualInternet(1), settings))

    run_virtual(main())


class World:
    """A virtual internet in which protocol code counts, sends and listens."""

    def __init__(self, seed: int = 0, **options: Any) -> None:
        self.log: list[Delivery] = []
        self.internet = VirtualInternet(seed, on_delivery=self.log.append, **options)
        self.loop = asyncio.get_running_loop()

    async def streams(self, dialler: VirtualNetwork, acceptor: VirtualNetwork) -> tuple[Stream, Stream]:
        return await stream_pair(*(await join(dialler, acceptor))[2:])

    async def transfer_s(self, near: Stream, far: Stream, size: int) -> float:
        start = self.loop.time()
        await asyncio.gather(near.write(bytes(size)), far.read_into(memoryview(bytearray(size))))
        return self.loop.time() - start


def virtually(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        run_virtual(test())

    run.__name__ = test.__name__
    return run


@virtually
async def test_one_transfer_takes_size_over_the_slower_rate() -> None:
    world = World()
    fast, slow = world.internet.host(), world.internet.host(HostSettings(1e6, 2e6))
    assert await world.transfer_s(*await world.streams(slow, fast), 5_000_000) == pytest.approx(5.0, rel=0.03)
    assert await world.transfer_s(*await world.streams(fast, slow), 5_000_000) == pytest.approx(2.5, rel=0.03)


@virtually
async def test_transfers_share_an_uplink_evenly_and_use_what_others_leave() -> None:
    world = World()
    hub = world.internet.host(HostSettings(3e6, 3e6))
    quick = [world.internet.host() for _ in range(2)]
    slow = world.internet.host(HostSettings(5e5, 5e5))
    pairs = [await world.streams(hub, other) for other in (*quick, slow)]
    sizes = [12_500_000, 12_500_000, 5_000_000]  # at 1.25, 1.25 and 0.5 MB/s each takes ten seconds
    times = await asyncio.gather(*(world.transfer_s(*pair, size) for pair, size in zip(pairs, sizes, strict=True)))
    assert times == pytest.approx([10.0, 10.0, 10.0], rel=0.05)


@virtually
async def test_a_limited_path_leaves_the_rest_of_the_uplink_to_others() -> None:
    world = World()
    hub = world.internet.host(HostSettings(1.5e6, 1.5e6))
    near, far = world.internet.host(), world.internet.host()
    world.internet.set_path_rate(hub, far, 5e5)
    pairs = [await world.streams(hub, far), await world.streams(hub, far), await world.streams(hub, near)]
    sizes = [2_500_000, 2_500_000, 10_000_000]  # two streams share the path
    times = await asyncio.gather(*(world.transfer_s(*pair, size) for pair, size in zip(pairs, sizes, strict=True)))
    assert times == pytest.approx([10.0, 10.0, 10.0], rel=0.05)
    forth, back = await world.streams(far, hub)
    assert await world.transfer_s(forth, back, 1_500_000) == pytest.approx(1.0, rel=0.05)  # the other way is free


@virtually
async def test_each_path_between_two_regions_has_their_rate() -> None:
    world = World()
    hub = world.internet.host(HostSettings(region="north"))
    far = [world.internet.host(HostSettings(region="south")) for _ in range(2)]
    world.internet.set_region_rate("south", "north", 1e6)
    pairs = [await world.streams(hub, each) for each in far] + [await world.streams(far[0], hub)]
    times = await asyncio.gather(*(world.transfer_s(*pair, 2_000_000) for pair in pairs))
    assert times == pytest.approx([2.0] * 3, rel=0.05)
    assert await world.transfer_s(*await world.streams(*far), 2_000_000) < 0.1  # inside a region nothing is limited


@virtually
async def test_what_waits_for_a_limited_path_goes_on_after_a_cut() -> None:
    world = World()
    source, target = world.internet.host(), world.internet.host()
    world.internet.set_path_rate(source, target, 1e6)
    near, far = await world.streams(source, target)
    for when, action in ((1.0, world.internet.cut), (3.0, world.internet.restore)):
        world.loop.call_at(when, action, source, target)
    assert await world.transfer_s(near, far, 2_000_000) == pytest.approx(4.0, rel=0.05)
    await near.finish()
    assert await far.read(1) == b""


@virtually
async def test_latency_and_small_messages_next_to_a_large_one() -> None:
    world = World()
    a = world.internet.host(HostSettings(1e6, 1e6, latency_s=0.03))
    b = world.internet.host(HostSettings(1e6, 1e6, latency_s=0.02))
    near, far = await world.streams(a, b)
    assert await world.transfer_s(near, far, 100) == pytest.approx(0.05, abs=0.002)
    world.internet.set_latency(a, "peer-1", 0.2)
    assert await world.transfer_s(near, far, 100) == pytest.approx(0.2, abs=0.002)
    big_near, big_far = await world.streams(a, b)
    big = asyncio.ensure_future(world.transfer_s(big_near, big_far, 3_000_000))
    await asyncio.sleep(0.5)
    assert await world.transfer_s(near, far, 100) < 0.3  # a queue of a few quanta, not of three seconds
    world.internet.set_rate(a, 1e7, 1e7)
    world.internet.set_rate(b, 1e7, 1e7)
    assert await big < 1.7


@virtually
async def test_a_reader_is_told_of_bytes_when_they_come_and_woken_when_all_are_there() -> None:
    world = World()
    near, far = await world.streams(*(world.internet.host(HostSettings(1e6, 1e6)) for _ in range(2)))
    times: list[float] = []
    of_test, told = ContextVar("of_test", default=""), list[tuple[int, str]]()
    of_test.set("reader")

    def came(size: int) -> None:
        times.append(world.loop.time())
        told.append((size, of_test.get()))

    target, writing = bytearray(500_000), asyncio.ensure_future(near.write(bytes(range(250)) * 2001))
    reading = world.loop.create_task(far.read_into(memoryview(target), came))
    turns = 0
    while not reading.done():
        turns += 1
        await asyncio.sleep(0.1)
    assert turns in (5, 6), "half a second of transfer"
    assert sum(size for size, _ in told) == len(target) == 500_000
    assert {whose for _, whose in told} == {"reader"}, "called in the reader's context"
    assert len(times) > 10, "told at once"
    assert times[-1] - times[0] > 0.4, "told at once"
    assert bytes(target) == bytes(range(250)) * 2000
    await writing
    assert await far.read(1000) == bytes(range(250)), "what was not asked for is left"


@virtually
async def test_what_goes_wrong_where_bytes_are_counted_reaches_the_reader() -> None:
    world = World()
    near, far = await world.streams(*(world.internet.host(HostSettings(1e6, 1e6)) for _ in range(2)))

    def refuse(size: int) -> None:
        raise RuntimeError(f"{size} bytes too many")

    reading = world.loop.create_task(far.read_into(memoryview(bytearray(1000)), refuse))
    await asyncio.sleep(0.0)
    await near.write(bytes(2000))
    with pytest.raises(RuntimeError, match="1000 bytes too many"):
        await reading
    assert await far.read(5000) == bytes(1000)


@virtually
async def test_a_small_message_does_not_wait_for_a_turn_of_every_transfer() -> None:
    world = World()
    hub = world.internet.host(HostSettings(1e6, 1e6))
    others = [world.internet.host() for _ in range(30)]
    busy = [await world.streams(other, hub) for other in others]
    near, far = await world.streams(world.internet.host(), hub)
    transfers = [asyncio.create_task(world.transfer_s(*pair, 200_000)) for pair in busy]
    await asyncio.sleep(1.0)
    assert await world.transfer_s(near, far, 100) < 0.1  # and not the 0.6 s of 30 quanta
    await asyncio.gather(*transfers)


@virtually
async def test_a_window_limits_what_is_under_way() -> None:
    world = World(window_bytes=1 << 20)
    a, b = (world.internet.host(HostSettings(latency_s=0.25)) for _ in range(2))
    elapsed = await world.transfer_s(*await world.streams(a, b), 8 << 20)
    assert 4.0 < elapsed < 10.0  # about a window per round trip of one second


@virtually
async def test_loss_delays_but_loses_nothing() -> None:
    world = World()
    a, b = (world.internet.host(HostSettings(1e6, 1e6, latency_s=0.05, loss=0.05)) for _ in range(2))
    near, far = await world.streams(a, b)
    times = [await world.transfer_s(near, far, 100) for _ in range(200)]
    resent = sum(t > 0.2 for t in times)
    assert 5 < resent < 45  # 9.75 % of the packets are lost
    assert min(times) == pytest.approx(0.1, abs=0.002)


@virtually
async def test_nat_lets_nobody_in() -> None:
    world = World()
    hidden, other = (world.internet.host(HostSettings(dialable=False)) for _ in range(2))
    public = world.internet.host(HostSettings(clock_skew_s=30.0))
    with pytest.raises(UnreachableError):
        await other.connect(hidden.address)
    forged = Address(hidden.peer_id, ("10.0.0.0:4433",))
    with pytest.raises(UnreachableError, match="no answer for 5 s"):
        await other.connect(forged)
    assert public.wall_time() - other.wall_time() == 30.0
    await join(hidden, public)
    with pytest.raises(UnreachableError, match="own"):
        await public.connect(public.address)


@virtually
async def test_a_killed_host_falls_silent() -> None:
    world = World()
    victim, other = world.internet.host(), world.internet.host()
    near, far = await world.streams(victim, other)
    accepting, reading = asyncio.ensure_future(victim.accept()), asyncio.ensure_future(near.read(1))
    await asyncio.sleep(1)
    await near.write(b"last words")  # has left when the kill comes
    world.internet.kill(victim)
    world.internet.kill(victim)
    for task in (accepting, reading, near.write(b"x"), victim.accept(), victim.connect(other.address)):
        with pytest.raises(ClosedError):
            await task
    await near.reset()
    await victim.close()
    assert await read_all(far, 10) == b"last words"
    start = world.loop.time()
    with pytest.raises(UnreachableError, match="nothing was heard for 30 s"):
        await far.read(1)
    assert world.loop.time() - start == pytest.approx(30, abs=0.1)
    with pytest.raises(UnreachableError, match="no answer"):
        await other.connect(victim.address)
    again = world.internet.host(name=victim.name, private_key=victim.private_key)
    assert again.peer_id == victim.peer_id
    await world.streams(other, again)


@pytest.mark.parametrize("hidden", [None, "cut", "stall", "relay"])
def test_the_end_of_a_process_is_noticed_where_nothing_hides_it(hidden: str | None) -> None:
    @virtually
    async def main() -> None:
        world = World()
        settings = HostSettings()
        if hidden == "relay":
            world.internet.add_relay("https://relay")
            settings = HostSettings(nat=Nat.SYMMETRIC, relay="https://relay")
        one, other = world.internet.host(settings), world.internet.host(settings)
        _, _, outgoing, incoming = await join(one, other)
        near, _ = await stream_pair(outgoing, incoming)
        world.internet.kill(other, is_noticed=True)
        if hidden == "cut":
            world.internet.cut(one, other)
        elif hidden == "stall":
            world.internet.stall(one)
        await asyncio.sleep(1.0)
        if hidden == "stall":
            world.internet.resume(one)
        assert outgoing.is_closed == outgoing.has_process_ended == (hidden is None)
        if hidden is None:
            with pytest.raises(UnreachableError, match="its process has ended"):
                await near.read(1)

    main()


@virtually
async def test_a_kill_ends_the_tasks_of_the_host_and_only_those() -> None:
    world = World()
    victim, other = world.internet.host(), world.internet.host()
    near, far = await world.streams(victim, other)
    said: list[str] = []

    async def chatter() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.Event().wait())
                while True:
                    await asyncio.sleep(1)
                    await near.write(b"x")
        finally:
            said.append("cleaned up")
            await near.write(b"after death")

    task = victim.process.run(chatter())
    await asyncio.sleep(3.5)
    world.internet.kill(victim)
    await asyncio.wait({task})
    assert said == ["cleaned up"]
    assert await read_all(far, 3) == b"xxx"
    assert not victim.process.tasks


@virtually
async def test_a_stalled_host_stands_still_and_goes_on() -> None:
    world = World()
    sleeper, other = world.internet.host(), world.internet.host()
    near, far = await world.streams(sleeper, other)
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            await asyncio.sleep(1)
            ticks.append(world.loop.time())
            await near.write(b"t")

    begin = world.loop.time()
    sleeper.process.run(tick())
    await asyncio.sleep(2.5)
    world.internet.stall(sleeper)
    await far.write(b"to the sleeper")
    outside = asyncio.ensure_future(near.read(100))
    connecting = asyncio.ensure_future(other.connect(sleeper.address))
    await asyncio.sleep(4)
    assert len(ticks) == 2
    assert not outside.done()
    assert not connecting.done()
    world.internet.resume("peer-0")
    assert await outside == b"to the sleeper"
    await connecting
    await asyncio.sleep(2)
    # One overdue tick at the end of the stall, not four: the timer was set once.
    assert [round(t - begin - 0.001, 1) for t in ticks[:3]] == [1.0, 2.0, 6.5]
    assert not near._connection.is_closed  # type: ignore[attr-defined]


@virtually
async def test_a_stall_beyond_the_idle_timeout_loses_the_connection() -> None:
    world = World(idle_timeout_s=3.0)
    sleeper, other = world.internet.host(), world.internet.host()
    near, far = await world.streams(sleeper, other)
    world.internet.stall(sleeper)
    await asyncio.sleep(3.5)
    world.internet.resume(sleeper)
    for stream in (near, far):
        with pytest.raises(UnreachableError, match="nothing was heard"):
            await stream.read(1)
    await world.streams(other, sleeper)


@virtually
async def test_a_cut_holds_everything_back_until_restored() -> None:
    world = World()
    a, b, c = (world.internet.host(HostSettings(1e6, 1e6)) for _ in range(3))
    near, far = await world.streams(a, b)
    elsewhere = await world.streams(a, c)
    sending = asyncio.ensure_future(world.transfer_s(near, far, 2_000_000))
    await asyncio.sleep(1)
    world.internet.cut("peer-0", "peer-1")
    delivered = len(world.log)
    assert await world.transfer_s(*elsewhere, 1_000_000) < 1.2  # the uplink is free for others
    assert all(delivery.target == "peer-2" for delivery in world.log[delivered + 1 :])
    assert not sending.done()
    with pytest.raises(UnreachableError, match="no answer for 5 s"):
        await a.connect(b.address)
    world.internet.restore(a, b)
    assert 6 < await sending < 9


@virtually
async def test_a_cut_is_noticed_as_silence_on_both_sides() -> None:
    world = World(idle_timeout_s=5.0)
    a, b = world.internet.host(), world.internet.host()
    near, far = await world.streams(a, b)
    world.internet.cut(a, b, one_way=True)
    await far.write(b"one way")
    assert await read_all(near, 7) == b"one way"
    start = world.loop.time()
    for stream in (near, far):
        with pytest.raises(UnreachableError, match="nothing was heard for 5 s"):
            await stream.read(1)
    assert world.loop.time() - start == pytest.approx(5.0, abs=0.1)


@virtually
async def test_keys_follow_from_the_seed() -> None:
    one, same, other = VirtualInternet(1), VirtualInternet(1), VirtualInternet(2)
    assert one.host().peer_id == same.host().peer_id != other.host().peer_id
    assert one.host().peer_id == same.host().peer_id
    with pytest.raises(ConfigurationError, match="exists"):
        one.host(name="peer-1")
    with pytest.raises(ConfigurationError, match="no host named nobody"):
        one.kill("nobody")
    with pytest.raises(ConfigurationError, match="latency_s"):
        one.set_latency("peer-0", "peer-1", -1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("up_bytes_per_s", 0.0),
        ("down_bytes_per_s", -1.0),
        ("up_bytes_per_s", math.nan),
        ("latency_s", -0.1),
        ("latency_s", math.inf),
        ("loss", 1.0),
        ("loss", -0.1),
        ("loss", math.nan),
        ("clock_skew_s", math.inf),
    ],
)
def test_settings_that_make_no_sense(field: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=field):
        HostSettings(**{field: value})  # type: ignore[arg-type]


@virtually
async def test_misuse_of_a_stream() -> None:
    world = World()
    near, far = await world.streams(world.internet.host(), world.internet.host())
    with pytest.raises(ValueError, match="max_bytes"):
        await near.read(0)
    await near.finish()
    with pytest.raises(ValueError, match="after finish"):
        await near.write(b"x")
    assert await far.read(1) == b""
