"""The simulated world: scenarios, virtual time and scripted faults, with the code of production in one process.

    scenario/ ─▶ runner ─▶ lifecycle ─▶ swarm/ (faults/, attacks/) on virtual_time
                   └─▶ recorder ─▶ event_log ─▶ timeline ─▶ outcome (with pictures)

Read: virtual_time (the event loop), runner (entry), lifecycle (who takes part, drawn from the seed; who attacks, and
how; peers join, leave, crash, come back), models (what is trained), recorder (writes down what happens), event_log (the
same bytes for equal seeds), timeline (what became of each step), outcome (in figures and pictures). Then swarm, split
(runs with a cut model), faults, attacks, scenario. How planner foresees runs without simulating is another room.

Called by cli, dashboard, tests and benchmarks. It is one thread: faults of threads cannot be seen here.
"""

from __future__ import annotations

from minga.security.protocol.behaviour import Seeds, TrainingBackend
from minga.simulation.attacks.interface import BEHAVIOURS, Attack, Lie
from minga.simulation.faults.driver import FaultDriver, FaultRecord, VirtualFaults
from minga.simulation.faults.script import AtEvent, AtTime, Fault, parse_faults
from minga.simulation.outcome import Outcome
from minga.simulation.runner import Simulation
from minga.simulation.scenario.scenario import Scenario, read_scenario
from minga.simulation.virtual_time import DeadlockError, VirtualTimeLimitError, VirtualTimeLoop, run_virtual

__all__ = [
    "BEHAVIOURS",
    "AtEvent",
    "AtTime",
    "Attack",
    "DeadlockError",
    "Fault",
    "FaultDriver",
    "FaultRecord",
    "Lie",
    "Outcome",
    "Scenario",
    "Seeds",
    "Simulation",
    "TrainingBackend",
    "VirtualFaults",
    "VirtualTimeLimitError",
    "VirtualTimeLoop",
    "parse_faults",
    "read_scenario",
    "run_virtual",
]
