"""The simulated world: virtual time, scripted faults, and all that drives many peers in one process."""

from __future__ import annotations

from minga.simulation._virtual_time import DeadlockError, VirtualTimeLimitError, VirtualTimeLoop, run_virtual

__all__ = ["DeadlockError", "VirtualTimeLimitError", "VirtualTimeLoop", "run_virtual"]
