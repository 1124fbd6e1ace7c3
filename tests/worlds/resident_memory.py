"""The resident memory of this process, on Linux."""

from __future__ import annotations

import sys
from pathlib import Path

CAN_BE_MEASURED = sys.platform == "linux"


def resident_bytes(name: str = "VmRSS:") -> int:
    """What it has now, or (`VmHWM:`) the most since the last `reset_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def reset_peak() -> None:
    """Begin to measure the largest resident memory anew."""
    Path("/proc/self/clear_refs").write_text("5")
