"""Averaging one vector with N peers over iroh on loopback, each peer a process: group forming and all-reduce.

    python -m benchmarks.allreduce --peers 4 --mib 64 --codec float32 --rounds 5 --json

Each round goes through the code that training uses: the board, `GroupFormation` and `AllReduce`; only the trainer is
missing. One line for each round, then the summary; figures in brackets are [median, minimum, maximum] over the rounds
that nobody disturbed (over all if `rounds_quiet` is 0).

    matchmaking_s      from the moment at which all peers, with their samples ready, ask for a group until the last of
                       them holds the signed plan
    allreduce_s        from the start signal (all hold the plan and wait) until the last peer has the whole result
    mib_per_s          the vector's size by that time
    cpu_*_s            user and system seconds of all peers in that phase
    wire_mib           bytes that the loopback device carried in the all-reduce
    max_err, rms_err   difference of any peer's result from the true mean (computed in float64), the largest of all
                       rounds; rms_mean is the root mean square of the mean itself
    others_share       share of the machine's CPU time that went to other processes; above 0.10 a round is disturbed
    rounds_correct     rounds in which all peers took part, have bitwise equal results, and rms_err is within the
                       codec's bound
    memory_mib         resident memory of all peers at the end

ok: all rounds correct, matchmaking_s at most 0.05 (median), and for 4 peers, 64 MiB and float32 allreduce_s at most
1.46, which is what hivemind 1.1.12 takes on two cores.
"""

from __future__ import annotations

import asyncio
import cProfile
import statistics
import time
from pathlib import Path
from typing import Any

import blake3
import numpy as np
import torch

from benchmarks import _machine
from benchmarks._processes import Worker, Workers
from benchmarks._report import emit, finish, parser, spread
from benchmarks._worker import Channel
from minga.averaging._all_reduce import AllReduce
from minga.averaging._formation import GroupFormation
from minga.averaging._group import GroupSettings
from minga.averaging._layout import VectorLayout
from minga.averaging._messages import Report
from minga.core._signal import Signal
from minga.identity._keys import Identity
from minga.network._interface import Address, PeerId
from minga.network._iroh import IrohNetwork
from minga.network._iroh_settings import NetworkSettings
from minga.network._records import Progress
from minga.training._session import Session, SessionSettings
from minga.training._surveyor import BoardSurveyor

RUN_ID = "0" * 64
SAMPLES = 1000
RMS_BOUND = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 1e-2, "int8": 2e-2}
"""Largest rms_err / rms_mean of a correct round."""
MATCHMAKING_LIMIT_S = 0.05
ALLREDUCE_LIMIT_S = 1.46
FIGURES = (
    "matchmaking_s",
    "allreduce_s",
    "mib_per_s",
    "cpu_matchmaking_s",
    "cpu_allreduce_s",
    "others_share",
    "wire_mib",
)


# ---- a peer


class FixedContributor:
    """A trainer that has nothing to do: its samples and its vector are there from the start."""

    def __init__(self, vector: torch.Tensor) -> None:
        self.changed = Signal()
        self._vector, self._parked = vector, False

    def report(self) -> Report:
        """See `Contributor`."""
        return Report(SAMPLES, 1000.0, parked=self._parked)

    def park(self) -> None:
        """See `Contributor`."""
        self._parked = True
        self.changed.fire()

    def resume(self) -> None:
        """See `Contributor`."""
        self._parked = False
        self.changed.fire()

    def rest(self, *, resting: bool) -> None:
        """See `Contributor`: there is nothing to leave off."""

    async def seal(self) -> tuple[torch.Tensor | None, int]:
        """See `Contributor`."""
        return self._vector, SAMPLES


class AveragingPeer:
    """Session, board, group formation and all-reduce of one peer, as `Member` has them."""

    def __init__(self, session: Session, identity: Identity, vector: torch.Tensor, settings: dict[str, Any]) -> None:
        self.session, self.step = session, 0
        self.layout = layout = VectorLayout((vector.numel(),), settings["codec"])
        self.vector, self.result = vector, torch.zeros_like(vector)
        self.contributor = FixedContributor(vector)
        encoded_bytes = layout.encoded_bytes(0, vector.numel())
        group = GroupSettings(settings["peers"] * SAMPLES, layout.fingerprint, vector.numel(), encoded_bytes, True)
        surveyor = BoardSurveyor(session.board, session.node)
        self.formation = GroupFormation(session.node, identity, group, surveyor, self.contributor)
        self.all_reduce = AllReduce(session.node)

    def publish(self) -> None:
        """Tell the others at which step this peer is."""
        progress = Progress(self.step, SAMPLES, 1000.0, "training", self.session.node.network.wall_time())
        self.session.board.put(progress)

    async def round(self, channel: Channel, receive: Any, profile: cProfile.Profile | None) -> None:
        """One group and its all-reduce; the second begins when told to."""
        plan = await self.formation.form(self.step)
        channel.send(planned_s=time.monotonic(), members=len(plan.members))
        await receive()
        local, weight = await self.contributor.seal()
        if profile is not None:
            profile.enable()
        outcome = await self.all_reduce.reduce(plan, self.layout, local, weight, self.result)
        done_s = time.monotonic()
        if profile is not None:
            profile.disable()
        self.contributor.resume()
        channel.send(done_s=done_s, lost=len(outcome.lost))
        self.step += 1


def peer(channel: Channel, settings: dict[str, Any]) -> None:
    """The process of one peer."""
    torch.set_num_threads(1)
    asyncio.run(_peer(channel, settings))


async def _peer(channel: Channel, settings: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()

    async def receive() -> dict[str, Any]:
        return await loop.run_in_executor(None, channel.receive)

    identity = Identity.ephemeral()
    entries = [Address(PeerId(e[0]), tuple(e[1])) for e in settings["entries"]]
    network = await IrohNetwork.open(identity.seed, NetworkSettings(host="127.0.0.1"))
    session = Session(network, identity, RUN_ID, SessionSettings(), entries)
    await session.start()
    vector = torch.from_numpy(vector_of(settings["seed"], settings["index"], settings["numel"]))
    me = AveragingPeer(session, identity, vector, settings)
    channel.send(address=[session.peer_id, network.address.direct])
    profile = cProfile.Profile(time.thread_time) if settings["profile"] else None
    while (command := await receive())["do"] != "exit":
        if command["do"] == "settle":
            me.publish()
            while len(me.formation._surveyor.at(me.step)) < settings["peers"] - 1:
                await asyncio.sleep(0.01)
            channel.send(settled=True)
        elif command["do"] == "round":
            await me.round(channel, receive, profile)
        elif command["do"] == "check":
            channel.send(**compare(me.result, Path(command["mean"])))
    if profile is not None:
        profile.dump_stats(Path(settings["profile"]) / f"peer-{settings['index']}.prof")
    await session.close()


def vector_of(seed: int, index: int, numel: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The vector that a peer contributes: independent standard normal numbers."""
    return np.random.Generator(np.random.SFC64([seed, index])).standard_normal(numel, dtype=np.float32)


def compare(result: torch.Tensor, mean_file: Path) -> dict[str, Any]:
    """How far a result is from the true mean in a file of float32, and its digest."""
    mean = np.memmap(mean_file, np.float32, "r")
    largest = squares = mean_squares = 0.0
    values = result.numpy()
    for start in range(0, values.size, 1 << 20):
        true = mean[start : start + (1 << 20)].astype(np.float64)
        error = values[start : start + (1 << 20)] - true
        largest = max(largest, float(np.abs(error).max()))
        squares += float(error @ error)
        mean_squares += float(true @ true)
    return {
        "max_err": largest,
        "rms_err": (squares / values.size) ** 0.5,
        "rms_mean": (mean_squares / values.size) ** 0.5,
        "digest": blake3.blake3(values.data.cast("B")).hexdigest(),
    }


# ---- the coordinator


def measure_round(workers: Workers, mean_file: Path, arguments: Any) -> dict[str, Any]:
    """Let all peers average once; one row of figures."""
    workers.ask("settle", 30)
    _machine.wait_until_quiet(arguments.quiet_wait)
    machine, cpu = _machine.machine_time(), workers.cpu_s()
    asked_s = time.monotonic()
    planned = workers.ask("round", 60)
    cpu_planned, wire = workers.cpu_s(), _machine.loopback_bytes()
    started_s = time.monotonic()
    done = workers.ask("go", 120)
    cpu_done, wire_done, machine_done = workers.cpu_s(), _machine.loopback_bytes(), _machine.machine_time()
    checked = workers.ask("check", 60, mean=str(mean_file))
    worst = {name: max(c[name] for c in checked) for name in ("max_err", "rms_err", "rms_mean")}
    matchmaking_s = max(p["planned_s"] for p in planned) - asked_s
    allreduce_s = max(d["done_s"] for d in done) - started_s
    return {
        "matchmaking_s": matchmaking_s,
        "allreduce_s": allreduce_s,
        "mib_per_s": arguments.mib / allreduce_s,
        "cpu_matchmaking_s": cpu_planned - cpu,
        "cpu_allreduce_s": cpu_done - cpu_planned,
        "others_share": _machine.others_share(machine, machine_done, cpu_done - cpu),
        "wire_mib": (wire_done - wire) / 2**20,
        **worst,
        "correct": all(p["members"] == arguments.peers for p in planned)
        and not any(d["lost"] for d in done)
        and len({c["digest"] for c in checked}) == 1
        and worst["rms_err"] <= RMS_BOUND[arguments.codec] * worst["rms_mean"],
    }


def summarise(rows: list[dict[str, Any]], arguments: Any, memory_bytes: int) -> int:
    """Print the summary; returns the exit status."""
    quiet = [row for row in rows if row["others_share"] <= _machine.QUIET_SHARE]
    judged = quiet or rows
    correct = sum(row["correct"] for row in rows)
    ok = correct == len(rows)
    ok = ok and statistics.median(row["matchmaking_s"] for row in judged) <= MATCHMAKING_LIMIT_S
    if (arguments.peers, arguments.mib, arguments.codec) == (4, 64, "float32"):
        ok = ok and statistics.median(row["allreduce_s"] for row in judged) <= ALLREDUCE_LIMIT_S
    return finish(
        "allreduce",
        ok,
        arguments.json,
        peers=arguments.peers,
        mib=arguments.mib,
        codec=arguments.codec,
        rounds=len(rows),
        rounds_correct=correct,
        rounds_quiet=len(quiet),
        **{name: spread(row[name] for row in judged) for name in FIGURES},
        **{name: max(row[name] for row in rows) for name in ("max_err", "rms_err", "rms_mean")},
        memory_mib=round(memory_bytes / 2**20),
    )


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--peers", type=int, default=4)
    options.add_argument("--mib", type=int, default=64, help="size of the float32 vector in MiB")
    options.add_argument("--codec", choices=sorted(RMS_BOUND), default="float32")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--warmup", type=int, default=1, help="rounds before, which do not count")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--quiet-wait", type=float, default=3.0, help="seconds to wait for others to leave the CPU")
    options.add_argument(
        "--profile", type=str, default="", help="folder for a profile (cProfile, CPU seconds) of each peer"
    )
    arguments = options.parse_args()
    numel = arguments.mib * (1 << 18)
    shared = {name: getattr(arguments, name) for name in ("peers", "codec", "seed", "profile")} | {"numel": numel}
    if arguments.profile:
        Path(arguments.profile).mkdir(parents=True, exist_ok=True)
    with Workers() as workers:
        mean_file = workers.directory / "mean.float32"
        total = np.zeros(numel)
        for index in range(arguments.peers):
            total += vector_of(arguments.seed, index, numel)
        (total / arguments.peers).astype(np.float32).tofile(mean_file)
        del total
        entries: list[Any] = []

        def start(index: int) -> Worker:
            settings = {**shared, "index": index, "entries": entries}
            return workers.start(f"peer-{index}", "benchmarks.allreduce:peer", settings)

        entries.append(start(0).receive(60)["address"])
        workers.gather(90, [start(index) for index in range(1, arguments.peers)])
        rows = []
        for number in range(arguments.warmup + arguments.rounds):
            row = measure_round(workers, mean_file, arguments)
            emit(round=number, warmup=number < arguments.warmup, **row)
            if number >= arguments.warmup:
                rows.append(row)
        memory = sum(_machine.memory_bytes(worker.pid) for worker in workers.all)
    return summarise(rows, arguments, memory)


if __name__ == "__main__":
    raise SystemExit(main())
