"""Six real processes train for minutes while peers are killed and others join at random moments.

    python -m benchmarks.soak --minutes 10 --json

All over iroh on loopback, on a small classification task. Two of the peers are never killed; the others get SIGKILL,
one or two at a time, and newcomers take their places some seconds later. Before, in the first fifth of the time (a
minute at most), and after, in the last fifth, nobody comes or goes.

    longest_stall_s   longest time between two steps that a peer applied, from its first step until it was killed or the
                      soak ended; more than half of the swarm lives all the time
    memory_growth     by which share the resident memory of each peer that stayed grew: median of the last 15 s over
                      that of the 15 s after the first quarter of the coming and going
    leaked            how many more tasks of the event loop, threads and open files each of these has in the last 15 s
                      than in the 15 s before the first kill; least numbers, at equal numbers of neighbours
    loss_by_quarter   mean held-out loss in each quarter of the steps
    rounds_given_up   rounds that a peer gave up (each is done again, or was done without it)
    others_share      share of the machine's CPU time that other processes used during the run: stalls on a machine
                      that is busy otherwise say nothing

ok: no stall above 5 s, at most 2 % of growth, at most 5 more of anything, a loss that falls from quarter to quarter,
equal digests of all peers after every step, no peer that failed, ended by itself or broke the protocol. `wrong` says
what was not so.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

from benchmarks import _machine
from benchmarks._processes import WorkerError, Workers
from benchmarks._recovery_swarm import Swarm, Told
from benchmarks._report import finish, note, parser
from benchmarks._soak_churn import Churn
from benchmarks._soak_peer import MICRO_BATCH
from benchmarks._soak_verdict import WINDOW_S, Course, judge
from minga import RunSpec

PEERS = 6
MICRO_BATCH_S = 0.2
MICRO_BATCHES_A_STEP = 4
LONGEST_REST_S = 60.0
REST_SHARE = 0.2
WARM_SHARE = 0.25
PATIENCE_S = 120.0


def spec_of(seconds: float) -> RunSpec:
    """The run spec; the rate is so low that the loss has not reached its end when the soak ends."""
    steps = round(2 * seconds / (MICRO_BATCH_S * MICRO_BATCHES_A_STEP))
    return RunSpec.from_mapping(
        {
            "name": "soak",
            "model": {"recipe": "custom"},
            "network": {"relay": "none"},
            "optimizer": {"name": "adamw", "learning_rate": 0.0001, "warmup_steps": 1, "total_steps": steps},
            "training": {"target_batch_size": PEERS * MICRO_BATCH * MICRO_BATCHES_A_STEP},
            "state": {"digest_every": 5},
            "checkpoints": {"every_steps": 0},
        }
    )


def soak(swarm: Swarm, seconds: float, seed: int) -> tuple[Churn, Course]:
    """Let the swarm train, with peers that come and go in between."""
    swarm.wait(lambda: all(swarm.step(name) for name in swarm.peers), PATIENCE_S)
    churn = Churn(swarm, PEERS, seed)
    rest_s = max(WINDOW_S, min(LONGEST_REST_S, REST_SHARE * seconds))
    begun_s = time.monotonic()
    watch(churn, begun_s + rest_s)
    churn_s, quiet_s = time.monotonic(), begun_s + seconds - rest_s
    churn.run(quiet_s)
    watch(churn, time.monotonic() + rest_s)
    return churn, Course(churn_s, churn_s + WARM_SHARE * (quiet_s - churn_s), quiet_s, time.monotonic())


def watch(churn: Churn, until_s: float) -> None:
    """Wait, and see that nobody ends by itself."""
    while time.monotonic() < until_s:
        churn.check()
        time.sleep(0.5)


def run(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """The whole soak: its figures, and what is wrong with them."""
    with Workers() as workers:
        settings = {"micro_batch_s": MICRO_BATCH_S}
        spec, roles = spec_of(60 * arguments.minutes), ["trainer"] * PEERS
        swarm = Swarm(workers, spec, settings, roles, "benchmarks._soak_peer:peer")
        try:
            churn, course = soak(swarm, 60 * arguments.minutes, arguments.seed)
        finally:
            if arguments.log:
                write_log(swarm, Path(arguments.log))
        log = [told for told in in_order(swarm) if told.t <= course.end_s]
        figures, wrong = judge(log, churn.stayers, churn.killed, course)
        absent = [name for name in churn.joined if name not in churn.killed and not swarm.step(name)]
        wrong += [f"{name} joined, but took no step" for name in absent]
        return {"killed": len(churn.killed), "joined": len(churn.joined), **figures}, wrong


def write_log(swarm: Swarm, path: Path) -> None:
    """Write all that the peers told, in order of time."""
    path.write_text("".join(f"{t.t:.3f} {t.name} {t.event} {t.fields}\n" for t in in_order(swarm)))


def in_order(swarm: Swarm) -> list[Told]:
    """All that the peers told, in order of time."""
    return sorted(swarm.log, key=lambda told: told.t)


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--minutes", type=float, default=10.0, help="how long peers train; at least 1.5")
    options.add_argument("--seed", type=int, default=0, help="decides who is killed and who joins, and when")
    options.add_argument("--log", default="", help="file to which all that the peers told is written")
    arguments = options.parse_args()
    if not arguments.minutes >= 1.5:
        options.error(f"--minutes {arguments.minutes:g}: at least 1.5, or there is no time for anybody to come and go")
    note(f"about {60 * arguments.minutes + 30:.0f} s")
    machine, began = _machine.machine_time(), sum(os.times()[:4])
    figures: dict[str, Any] = {}
    try:
        figures, wrong = run(arguments)
    except (WorkerError, ValueError) as error:
        wrong = [str(error)]
    own = sum(os.times()[:4]) - began
    return finish(
        "soak",
        not wrong,
        arguments.json,
        minutes=arguments.minutes,
        seed=arguments.seed,
        **figures,
        others_share=_machine.others_share(machine, _machine.machine_time(), own),
        wrong=wrong,
    )


if __name__ == "__main__":
    raise SystemExit(main())
