"""What is free on the heap goes back to the system, also below what is still in use."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from minga.core.free_memory import give_back_free_memory

BLOCK_BYTES, BLOCKS = 100 << 10, 400
"""Blocks of this size always come from the heap."""


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the C library of Linux can give memory back")
def test_free_blocks_below_a_used_one_go_back_to_the_system() -> None:
    blocks = [np.ones(BLOCK_BYTES, np.uint8) for _ in range(BLOCKS)]
    last = blocks[-1]
    blocks.clear()
    before = resident_bytes()
    give_back_free_memory()
    assert resident_bytes() < before - BLOCKS * BLOCK_BYTES * 3 // 4
    assert last.all()


def test_a_platform_without_that_call_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minga.core.free_memory._trim", lambda: None)
    give_back_free_memory()
