"""What a round takes beside the vectors that it is given: encoded chunks on their way, and nothing afterwards."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from typing import Any

import pytest
import torch

from minga.averaging.allreduce.round import Round
from minga.averaging.codecs.layout import VectorLayout
from tests.worlds.reduce_world import World
from tests.worlds.swarm_tools import virtually

NUMEL = 4_000_000
VECTOR_BYTES = 4 * NUMEL
PEERS = 3


class _MallInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


class Allocated:
    """Bytes that the C library has given out, and the buffers that rounds take from the system itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._count = ctypes.CDLL(None).mallinfo2
        self._count.restype = _MallInfo
        self._mapped = 0
        gc.collect()
        self._before = self.now()
        self.peak = 0
        buffer, got = Round.buffer, Round.got

        def counted_buffer(round: Round, size: int) -> memoryview:
            made = buffer(round, size)
            if not isinstance(made.obj, torch.Tensor) and size >= 128 << 10:
                self._mapped += size
                weakref.finalize(made.obj, self._forget, size)
            self.look()
            return made

        def counted_got(round: Round, index: int) -> None:
            self.look()
            got(round, index)

        monkeypatch.setattr(Round, "buffer", counted_buffer)
        monkeypatch.setattr(Round, "got", counted_got)

    def now(self) -> int:
        found: Any = self._count()
        return int(found.uordblks + found.hblkhd) + self._mapped

    def look(self) -> int:
        """Bytes more than at the beginning."""
        more = self.now() - self._before
        self.peak = max(self.peak, more)
        return more

    def _forget(self, size: int) -> None:
        self._mapped -= size


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc counts what it has given out")
def test_a_round_takes_little_more_than_the_encoded_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    layout, encoded = VectorLayout((NUMEL,), "adaptive"), 0.25
    vectors = [torch.randn(NUMEL, generator=torch.Generator().manual_seed(seed)) for seed in range(PEERS)]

    @virtually
    async def reduce() -> float:
        world = World(PEERS, up_bytes_per_s=1e8, down_bytes_per_s=1e8)
        await world.start()
        found = Allocated(monkeypatch)
        results, _ = await world.reduce(world.plan(layout, chunk_bytes=1 << 18), layout, vectors, [1, 2, 3])
        await world.close()
        held = sum(result.nbytes for result in results)
        assert found.look() - held < 0.1 * VECTOR_BYTES
        return found.peak - held

    # All peers together: the means of all parts as encoded, and in the network's windows some of what is sent.
    assert 0.5 * encoded < reduce() / VECTOR_BYTES < 3.0 * encoded
