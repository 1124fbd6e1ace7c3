"""The simulated world: scenarios, virtual time, scripted faults, and all that drives many peers in one process."""

from __future__ import annotations

from minga.security._conduct import Seeds, Work
from minga.simulation._behaviour_interface import Attack, Lie
from minga.simulation._behaviours import BEHAVIOURS
from minga.simulation._fault_driver import FaultDriver, FaultRecord, FaultTarget, VirtualFaults
from minga.simulation._faults import AtEvent, AtTime, Fault, parse_faults
from minga.simulation._outcome import Outcome
from minga.simulation._runner import Simulation
from minga.simulation._scenario import Scenario, read_scenario
from minga.simulation._virtual_time import DeadlockError, VirtualTimeLimitError, VirtualTimeLoop, run_virtual

__all__ = [
    "BEHAVIOURS",
    "AtEvent",
    "AtTime",
    "Attack",
    "DeadlockError",
    "Fault",
    "FaultDriver",
    "FaultRecord",
    "FaultTarget",
    "Lie",
    "Outcome",
    "Scenario",
    "Seeds",
    "Simulation",
    "VirtualFaults",
    "VirtualTimeLimitError",
    "VirtualTimeLoop",
    "Work",
    "parse_faults",
    "read_scenario",
    "run_virtual",
]
