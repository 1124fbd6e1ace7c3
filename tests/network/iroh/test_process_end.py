"""A process that ended is known soon; one that lives, is busy, or whose connection was reset is never taken for one."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections.abc import Callable

import pytest

from minga.core.errors import UnreachableError
from minga.network.interface import Address, PeerId
from minga.network.iroh import connection as connection_module
from minga.network.iroh.connection import ASKED, PAUSE_S, SETTLE_S, IrohConnection
from minga.network.tcp import bulk_lane
from minga.network.virtual import internet as host
from minga.simulation import run_virtual
from minga.testing.suite import join
from tests.network.iroh.test_iroh_network import CHILD, networks, run
from tests.worlds import forked

ROUND_TRIP_S = 0.1


class SaidToHaveEnded(IrohConnection):
    """Its TCP connections ended. `answers` says after how many questions something comes over UDP, `late_s` when old
    bytes arrive.
    """

    round_trip_s = ROUND_TRIP_S

    def __init__(self, answers: int | None = None, late_s: float | None = None) -> None:
        self.bytes, self.asked, self._answers = 0, 0, answers
        if late_s is not None:
            asyncio.get_running_loop().call_later(late_s, self._come)

    def _ask(self) -> None:
        self.asked += 1
        if self.asked == self._answers:
            asyncio.get_running_loop().call_later(ROUND_TRIP_S, self._come)

    def _received_over_udp(self) -> int:
        return self.bytes

    def _come(self) -> None:
        self.bytes += 1200


def test_silence_of_udp_after_the_end_of_tcp_is_the_end() -> None:
    async def main() -> None:
        begun_s = asyncio.get_running_loop().time()
        assert await SaidToHaveEnded(late_s=ROUND_TRIP_S)._is_silent(), (
            "what was sent before the end is no sign of life"
        )
        took_s = asyncio.get_running_loop().time() - begun_s
        assert took_s == pytest.approx(SETTLE_S + ASKED * PAUSE_S + (1 + ASKED) * ROUND_TRIP_S)
        assert took_s == pytest.approx(host.END_NOTICED_S + host.END_ROUND_TRIPS * ROUND_TRIP_S), "as in simulations"

    run_virtual(main())


@pytest.mark.parametrize("answers", range(1, ASKED + 1))
def test_one_answer_is_life(answers: int) -> None:
    async def main() -> None:
        assert not await SaidToHaveEnded(answers)._is_silent()

    run_virtual(main())


def test_who_is_starved_itself_concludes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "PAUSE_S", 0.002)
    monkeypatch.setattr(SaidToHaveEnded, "round_trip_s", 0.0)

    class Starved(SaidToHaveEnded):
        def _ask(self) -> None:
            super()._ask()
            asyncio.get_running_loop().call_soon(time.sleep, 0.01)  # the answer would be here, but nobody looks

    async def main() -> None:
        connection = Starved()
        assert not await connection._is_silent()
        assert connection.asked == connection_module.MOST_ASKED

    asyncio.run(main())


def test_a_killed_process_is_known_to_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_lane, "PATIENCE_S", 20.0)
    with forked.start("-c", CHILD, "linger", stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        lines = child.stdout
        peer, *direct = lines.readline().split()

        async def main() -> None:
            async with networks(1) as (network,):
                connection = await network.connect(Address(PeerId(peer), tuple(direct)))
                bulk, plain = await connection.open_stream(bulk=True), await connection.open_stream()
                assert not bulk.is_detour
                await bulk.write(b"x")
                await plain.write(b"x")
                assert await asyncio.to_thread(lines.readline) == "streaming\n"
                assert not connection.has_process_ended
                child.kill()
                with pytest.raises(UnreachableError):
                    await bulk.read(1)
                with pytest.raises(UnreachableError, match="its process has ended"):  # over iroh nothing else tells it
                    await plain.read(1)
                assert connection.is_closed
                assert connection.has_process_ended

        run(main)


def test_a_peer_that_resets_streams_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_lane, "PATIENCE_S", 20.0)
    verdicts: list[bool] = []

    judge = IrohConnection._is_silent

    async def watched(connection: IrohConnection) -> bool:
        verdicts.append(await judge(connection))
        return verdicts[-1]

    monkeypatch.setattr(IrohConnection, "_is_silent", watched)

    async def main() -> None:
        async with networks(2) as pair:
            joined = await join(*pair)
            near, far = joined.outgoing, joined.incoming
            for _ in range(3):
                opened = await near.open_stream(bulk=True)
                await opened.write(b"x")
                arrived = await far.accept_stream()
                await arrived.read(1)
                await arrived.reset()
                with contextlib.suppress(UnreachableError):
                    await opened.read(1)
                await until(lambda: bool(verdicts))
                assert not any(verdicts)
                verdicts.clear()
            for connection in (near, far):
                assert not connection.is_closed
                assert not connection.has_process_ended

    run(main)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)
