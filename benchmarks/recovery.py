"""What a swarm loses when one of its peers is killed or stopped, at the worst moments.

    python -m benchmarks.recovery --json

Four processes over iroh (three trainers and a client, which only sends) average a vector of 17.8 million float32
gradients step after step. In each case one peer gets SIGKILL, or SIGSTOP and, two steps later, SIGCONT: the sender (the
client), an aggregator (a trainer that does not lead) or the step's leader; *before* the round (while the step's samples
are being accumulated), *during* it (after 40 % of the time that a round takes as a rule) or *after* it (as soon as the
victim has the result, before anybody is known to have applied it). A killed peer is replaced by a new process.

One line for each case:

    gap_s           longest time between two steps that a survivor applied, from the fault on, for two steps
    normal_step_s   median time of the two steps before the fault
    extra_s         gap_s less normal_step_s
    back_s          from SIGCONT, or from the start signal for the new process, until it has applied a step
    removed         survivors that another survivor gave up, in the words of its events (must be empty)
    digests_equal   whether all peers had bitwise equal parameters after every step; a stopped peer counts from the
                    first step that it takes with the others again

    normal_step_s   in the summary: their median
    worst_gap_s     longest gap_s of all cases
    killed_extra_s  greatest extra_s of a case with a killed peer (null without one)
    stopped_extra_s the same with a stopped peer
    others_share    share of the machine's CPU time that other processes used during the run

ok: a killed peer costs at most 1 s and a stopped one at most 2 s more than a normal step, nothing removed,
digests_equal and the peer came back, in every case.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import statistics
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks import _machine
from benchmarks._plain_spec import plain_spec
from benchmarks._processes import Worker, WorkerError, Workers
from benchmarks._recovery_swarm import REMOVALS, SAMPLES, Swarm, Told
from benchmarks._report import emit, finish, note, parser
from minga import RunSpec

FAULTS, VICTIMS, PHASES = ("kill", "stop"), ("sender", "aggregator", "leader"), ("before", "during", "after")
ROLES = ("trainer", "trainer", "trainer", "client")
MICRO_BATCHES_A_STEP = 5
EXTRA_LIMIT_S = {"kill": 1.0, "stop": 2.0}
"""A killed process is noticed at once, since its system closes its connections; a stopped one by its silence."""
PATIENCE_S = 60.0


def spec_of(codec: str) -> RunSpec:
    """The run spec; digests are not compared by the peers themselves, so that nothing is healed behind our back."""
    return plain_spec(
        "recovery",
        len(ROLES) * SAMPLES * MICRO_BATCHES_A_STEP,
        averaging={"codec": codec},
        state={"digest_every": 1_000_000},
    )


class Strike:
    """Sends a signal to the peer in some role at some phase of the next round, from the thread that hears of it."""

    def __init__(self, swarm: Swarm, fault: str, role: str, phase: str, delay_s: float) -> None:
        self.swarm, self.role, self.phase, self.delay_s = swarm, role, phase, delay_s
        self.number = signal.SIGKILL if fault == "kill" else signal.SIGSTOP
        self.victim: Worker | None = None
        self.at_s: float | None = None
        self._step = max(swarm.step(name) for name in swarm.peers) + 1
        self._lock = threading.Lock()

    def __call__(self, told: Told) -> None:
        """Watch the swarm's events."""
        with self._lock:
            if self.victim is None and told.name in self.swarm.peers:
                self._aim(told)

    def _aim(self, told: Told) -> None:
        swarm, step = self.swarm, int(told.fields.get("step", -1))
        if self.phase == "before":
            if told.event == "step.applied" and all(swarm.step(name) >= self._step for name in swarm.peers):
                self._strike(self._choose(swarm.leader(self._step)), 0.3)
            return
        wanted = "round.begun" if self.phase == "during" else "round.reduced"
        if told.event != wanted or step < self._step:
            return
        begun = [t for t in swarm.of("round.begun") if t.fields["step"] == step]
        if begun and told.name == (victim := self._choose(swarm.name_of(begun[0].fields["leader"]))):
            self._strike(victim, self.delay_s if self.phase == "during" else 0.0)

    def _choose(self, leader: str) -> str:
        if self.role == "leader":
            return leader
        role = "client" if self.role == "sender" else "trainer"
        return next(name for name in self.swarm.peers if self.swarm.roles[name] == role and name != leader)

    def _strike(self, name: str, delay_s: float) -> None:
        self.victim = victim = self.swarm.peers[name]

        def hit() -> None:
            victim.process.send_signal(self.number)
            self.at_s = time.monotonic()

        threading.Timer(delay_s, hit).start() if delay_s else hit()


def first_step(swarm: Swarm) -> None:
    """Wait until all peers took a step."""
    swarm.wait(lambda: all(swarm.step(name) for name in swarm.peers), PATIENCE_S)


def settle(swarm: Swarm) -> None:
    """Wait until all peers took the same step together, twice."""
    newest = max(swarm.step(name) for name in swarm.peers)
    swarm.wait(lambda: all(swarm.step(name) >= newest + 2 for name in swarm.peers), PATIENCE_S)


def step_times(swarm: Swarm, name: str, since: float = 0.0) -> list[float]:
    """Seconds between the steps that a peer applied, the first being the last one before `since`."""
    moments = [told.t for told in swarm.applied(name)]
    before = [t for t in moments if t < since][-1:]
    return [b - a for a, b in itertools.pairwise(before + [t for t in moments if t >= since])]


def run_case(swarm: Swarm, fault: str, role: str, phase: str) -> dict[str, Any]:
    """One fault and its consequences, as a row of figures. Raises `WorkerError` if the swarm does not recover."""
    settle(swarm)
    rounds = [told.fields["seconds"] for told in swarm.of("round.reduced")][-8:]
    normal = [seconds for name in swarm.peers for seconds in step_times(swarm, name)[-2:]]
    strike = swarm.watcher = Strike(swarm, fault, role, phase, 0.4 * statistics.median(rounds))
    swarm.wait(lambda: strike.at_s is not None, PATIENCE_S)
    swarm.watcher = None
    victim, at_s = strike.victim, strike.at_s
    if victim is None or at_s is None:
        raise WorkerError("no signal was sent")
    del swarm.peers[victim.name]
    survivors = list(swarm.peers)
    row: dict[str, Any] = {"fault": fault, "victim": role, "phase": phase}
    swarm.wait(lambda: all(len(step_times(swarm, n, at_s)) >= 2 for n in survivors), PATIENCE_S)
    row["gap_s"] = max(s for name in survivors for s in step_times(swarm, name, at_s)[:2])
    back_s, back_at_step = bring_back(swarm, victim, fault)
    removed = sorted(
        {
            f"{told.event} {swarm.name_of(told.fields['peer'])} by {told.name}: {told.fields.get('why', '')}"
            for event in REMOVALS
            for told in swarm.of(event, at_s)
            if told.name in survivors and swarm.name_of(told.fields["peer"]) in survivors
        }
    )
    row["normal_step_s"] = statistics.median(normal)
    row["extra_s"] = row["gap_s"] - row["normal_step_s"]
    row |= {"back_s": back_s, "removed": removed}
    row["noticed"] = sorted({t.event for e in REMOVALS for t in swarm.of(e, at_s)})
    row["digests_equal"] = not swarm.digests_differ(at_s, victim.name, back_at_step)
    return row


def bring_back(swarm: Swarm, victim: Worker, fault: str) -> tuple[float, int]:
    """Wake the victim, or start another in its place; returns the seconds until that has applied a step, and which."""
    survivors = list(swarm.peers)
    if fault == "kill":
        victim.kill()
        worker = swarm.spawn()
        swarm.wait(lambda: any(told.name == worker.name for told in swarm.of("waiting")), PATIENCE_S)
        asked = time.monotonic()
        swarm.enter(worker, swarm.roles[victim.name])
    else:
        worker, asked = victim, time.monotonic()
        victim.process.send_signal(signal.SIGCONT)
        swarm.peers[victim.name] = victim
    newest = max(swarm.step(name) for name in survivors)

    def steps() -> list[Told]:
        return [t for t in swarm.of("standing") if t.name == worker.name and t.fields["step"] > newest]

    swarm.wait(lambda: bool(steps()), PATIENCE_S)
    return steps()[0].t - asked, newest + 1


def run_cases(cases: list[tuple[str, str, str]], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """All cases, in one swarm as long as it survives them."""
    rows: list[dict[str, Any]] = []
    settings = {"numel": round(arguments.millions * 1e6), "micro_batch_s": arguments.micro_batch}
    while len(rows) < len(cases):
        with Workers() as workers:
            swarm = None
            try:
                swarm = Swarm(workers, spec_of(arguments.codec), settings, ROLES)
                first_step(swarm)
                while len(rows) < len(cases):
                    row = run_case(swarm, *cases[len(rows)])
                    rows.append(row)
                    emit(**row)
            except (WorkerError, StopIteration) as error:
                fault, role, phase = cases[len(rows)]
                rows.append({"fault": fault, "victim": role, "phase": phase, "gap_s": PATIENCE_S, "error": str(error)})
                emit(**rows[-1])
            finally:
                if arguments.log and swarm is not None:
                    write_log(swarm, Path(arguments.log))
    return rows


def write_log(swarm: Swarm, path: Path) -> None:
    """Append all events, in order of time, to a file."""
    with open(path, "a") as file:
        for told in sorted(swarm.log):
            fields = {k: swarm.name_of(v) if v in swarm.ids.values() else v for k, v in told.fields.items()}
            fields.pop("link", None)
            file.write(f"{told.t:.3f} {told.name} {told.event} {fields}\n")


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--codec", choices=["float32", "float16", "bfloat16", "int8"], default="float32")
    options.add_argument("--cases", default="", help="only these, such as kill-leader-during,stop; default all 18")
    options.add_argument("--millions", type=float, default=17.8, help="million elements of the vector")
    options.add_argument("--micro-batch", type=float, default=0.12, help="seconds that a micro-batch takes")
    options.add_argument("--log", default="", help="file to which all events are appended")
    arguments = options.parse_args()
    wanted = [set(part.split("-")) for part in arguments.cases.split(",") if part] or [set()]
    cases = [c for c in itertools.product(FAULTS, VICTIMS, PHASES) if any(part <= set(c) for part in wanted)]
    if not cases:
        options.error(f"no such case: {arguments.cases}")
    note(f"{len(cases)} cases, about {10 + 16 * len(cases)} s")
    machine, began = _machine.machine_time(), sum(os.times()[:4])
    rows = run_cases(cases, arguments)
    own = sum(os.times()[:4]) - began
    normal = [row["normal_step_s"] for row in rows if "normal_step_s" in row]
    normal_step_s = statistics.median(normal) if normal else 0.0
    worst = {f: max((r["extra_s"] for r in rows if r["fault"] == f and "extra_s" in r), default=None) for f in FAULTS}
    whole = [row for row in rows if "error" not in row and not row["removed"] and row["digests_equal"]]
    quick = [row for row in whole if row["extra_s"] <= EXTRA_LIMIT_S[row["fault"]]]
    return finish(
        "recovery",
        len(quick) == len(rows),
        arguments.json,
        codec=arguments.codec,
        elements=round(arguments.millions * 1e6),
        cases=len(rows),
        cases_whole=len(whole),
        normal_step_s=normal_step_s,
        worst_gap_s=max(row["gap_s"] for row in rows),
        killed_extra_s=worst["kill"],
        stopped_extra_s=worst["stop"],
        worst_back_s=max((row["back_s"] for row in whole), default=None),
        others_share=_machine.others_share(machine, _machine.machine_time(), own),
        failed=[f"{r['fault']}-{r['victim']}-{r['phase']}" for r in rows if r not in quick],
    )


if __name__ == "__main__":
    raise SystemExit(main())
