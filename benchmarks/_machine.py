"""What the machine does meanwhile: CPU time and memory of process trees, the share of others, loopback traffic.

Reads /proc, so these measurements run on Linux only. CPU times have the kernel's resolution of 10 ms.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
QUIET_SHARE = 0.10
"""A measurement is disturbed if others used more than this share of the machine's CPU time."""


class MachineTime(NamedTuple):
    """Seconds of all cores since boot: in use (stolen by the hypervisor included) and altogether."""

    busy_s: float
    total_s: float


def machine_time() -> MachineTime:
    """The machine's CPU time so far."""
    values = [int(v) for v in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = values[3] + values[4]
    return MachineTime((sum(values) - idle) * TICK_S, sum(values) * TICK_S)


def others_share(before: MachineTime, after: MachineTime, own_cpu_s: float) -> float:
    """The share of the machine's CPU time between two moments that went to processes which are not ours."""
    busy_s, total_s = after.busy_s - before.busy_s, after.total_s - before.total_s
    return max(0.0, busy_s - own_cpu_s) / max(TICK_S, total_s)


def wait_until_quiet(limit_s: float, span_s: float = 0.5) -> None:
    """Wait, for at most `limit_s` seconds, until the rest of the machine idles; call it while our processes do."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        before = machine_time()
        time.sleep(span_s)
        if others_share(before, machine_time(), 0.0) < QUIET_SHARE:
            return


def process_tree(root: int) -> list[int]:
    """`root` and all its living descendants."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))):
            parents[int(entry)] = int(fields[1])
    tree = [root]
    for pid in tree:
        tree += [child for child, parent in parents.items() if parent == pid]
    return tree


def cpu_s(roots: Iterable[int]) -> float:
    """User and system seconds of the process trees so far, reaped children included."""
    ticks = 0
    for root in roots:
        for pid in process_tree(root):
            if fields := _stat(pid):
                ticks += sum(int(v) for v in fields[11:15])
    return ticks * TICK_S


def memory_bytes(root: int, *, peak: bool = False) -> int:
    """Resident memory of the process tree, at present or (sum of each process's own) at its peak."""
    total = 0
    for pid in process_tree(root):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        name = "VmHWM:" if peak else "VmRSS:"
        total += sum(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(name))
    return total


def loopback_bytes() -> int:
    """Bytes that the loopback device has carried so far."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, rest = line.strip().partition(":")
        if name == "lo":
            return int(rest.split()[0])
    return 0


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; empty if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()
