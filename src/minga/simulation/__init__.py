"""The simulated world: scenarios, virtual time, scripted faults, and all that drives many peers in one process."""

from __future__ import annotations

from minga.simulation._fault_driver import FaultDriver, FaultRecord, FaultTarget, VirtualFaults
from minga.simulation._faults import AtEvent, AtTime, Fault, parse_faults
from minga.simulation._outcome import Outcome
from minga.simulation._runner import Simulation
from minga.simulation._scenario import Scenario, read_scenario
from minga.simulation._virtual_time import DeadlockError, VirtualTimeLimitError, VirtualTimeLoop, run_virtual

__all__ = [
    "AtEvent",
    "AtTime",
    "DeadlockError",
    "Fault",
    "FaultDriver",
    "FaultRecord",
    "FaultTarget",
    "Outcome",
    "Scenario",
    "Simulation",
    "VirtualFaults",
    "VirtualTimeLimitError",
    "VirtualTimeLoop",
    "parse_faults",
    "read_scenario",
    "run_virtual",
]
