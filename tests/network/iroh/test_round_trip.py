"""The time that a busy peer takes to accept a connection does not stay in the round trip of that connection."""

from __future__ import annotations

import asyncio
import subprocess

import pytest

from minga.network.interface import Address, PeerId
from minga.network.iroh.round_trip import MOST_ROUNDS, PACKETS, SHORT_S, settle
from minga.simulation import run_virtual
from tests.network.iroh.test_iroh_network import networks, run
from tests.worlds import forked

NEAR = 1.6
"""A round leaves (7/8)^4 of what is too much; where that is a fall by a fifth, at most 0.55 of the path is left."""


class Estimate:
    """A smoothed round trip, as the transport keeps it, over a path of `path_s` seconds."""

    def __init__(self, first_s: float | None, path_s: float) -> None:
        self.seconds, self._path_s, self.asked = first_s, path_s, 0

    async def ask(self) -> None:
        self.asked += 1
        asyncio.get_running_loop().call_later(self._path_s, self._sample)

    def _sample(self) -> None:
        assert self.seconds is not None
        self.seconds += (self._path_s - self.seconds) / 8


@pytest.mark.parametrize(
    ("first_s", "path_s", "most_packets"),
    [(None, 0.001, 0), (SHORT_S, 0.001, 0), (0.25, 0.25, PACKETS), (0.6, 0.001, MOST_ROUNDS * PACKETS), (0.9, 0.2, 24)],
)
def test_the_estimate_comes_down_to_the_path(first_s: float | None, path_s: float, most_packets: int) -> None:
    async def main() -> None:
        estimate = Estimate(first_s, path_s)
        await settle(estimate.ask, lambda: estimate.seconds)
        assert estimate.asked <= most_packets
        assert estimate.seconds is None or estimate.seconds <= max(SHORT_S, NEAR * path_s)

    run_virtual(main())


CHILD = """
import asyncio, os, time
from minga.network.iroh.network import IrohNetwork
async def main():
    network = await IrohNetwork.open(os.urandom(32))
    print(network.peer_id, *network.address.direct, flush=True)
    input()
    asyncio.get_running_loop().call_soon(time.sleep, 0.6)
    await network.accept()
    await asyncio.sleep(60.0)
asyncio.run(main())
"""


def test_who_accepts_late_is_not_far_away() -> None:
    with forked.start("-c", CHILD, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        peer, *direct = child.stdout.readline().split()

        async def main() -> None:
            async with networks(1) as (network,):
                child.stdin.write("\n")
                child.stdin.flush()
                await asyncio.sleep(0.1)
                connection = await network.connect(Address(PeerId(peer), tuple(direct)))
                first_s = connection.round_trip_s or 0.0
                while (connection.round_trip_s or 0.0) > max(SHORT_S, first_s / 4):
                    await asyncio.sleep(0.05)

        run(main)
        child.kill()
