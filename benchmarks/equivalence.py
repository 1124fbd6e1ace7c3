"""Whether peers that train together get what one process gets from the same samples.

    python -m benchmarks.equivalence --json            # four peers on the virtual network; the same figures every time
    python -m benchmarks.equivalence --real --json     # four processes over iroh

Four peers of different speed, micro-batch and link train a small classifier (LAMB, clipping, warm-up, linear decay)
for 20 global steps, once with each codec. Each peer notes which samples went into which step; then one process takes
the union of each step's samples as one large batch, with the same optimizer.

    rel_err            |p - q| / |q| of the parameters after the last step, p of the peers and q of the single process
                       (float64 norms; float32 codec)
    rel_err_update     |p - q| / |q - q0|: the same, measured against all that training changed
    loss_gap           by codec, largest relative difference of the held-out loss after any step from that of a single
                       float32 process with the same samples
    loss_gap_of_runs   the same, from the float32 run; its peers were faster or slower at times and drew other
                       samples, so this has the noise of sampling in it and is not judged
    loss               held-out loss with float32: before training, after it, and after it in the single process
    samples            realised batch sizes of the float32 run: [median, minimum, maximum]
    digests_equal      whether all peers ended with bitwise equal parameters, in all runs

ok: rel_err at most 1e-5, every loss_gap at most 0.01, digests_equal, and every step had at least the target batch
size and (the first two, in which peers still arrive, excepted) samples of all peers.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks._processes import Workers
from benchmarks._report import emit, finish, parser, spread
from benchmarks._worker import Channel
from minga import Optimizer, PeerOptions, RunSpec, host, join
from minga.network.virtual.internet import HostSettings
from minga.simulation.models import ClassifierReplica
from minga.simulation.swarm.classification import SAMPLES, Classification
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.simulation.virtual_time import run_virtual
from minga.training.state.snapshot import StateSnapshot

TARGET = 256
REL_ERR_LIMIT, LOSS_GAP_LIMIT = 1e-5, 0.01
TRAINERS = (TrainerSettings(4, 0.1), TrainerSettings(6, 0.25), TrainerSettings(16, 0.4), TrainerSettings(3, 0.05))
HOSTS = (
    HostSettings(latency_s=0.005, up_bytes_per_s=4e6, down_bytes_per_s=4e6),
    HostSettings(latency_s=0.02, up_bytes_per_s=1e6, down_bytes_per_s=8e6),
    HostSettings(latency_s=0.05, up_bytes_per_s=5e5, down_bytes_per_s=2e6),
    HostSettings(latency_s=0.001, up_bytes_per_s=2e7, down_bytes_per_s=2e7),
)
CODECS = ("float32", "float16", "int8")


@dataclass
class Run:
    """What came of one run.

    `steps[s]` has the samples of each peer in step s, `losses` the held-out loss after each step, `parameters` what
    each peer has in the end.
    """

    steps: dict[int, list[list[int]]] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    parameters: list[torch.Tensor] = field(default_factory=list)

    def sizes(self) -> list[int]:
        """Samples of each step."""
        return [sum(map(len, peers)) for peers in self.steps.values()]

    def union(self) -> dict[int, list[int]]:
        """The samples of each step."""
        return {step: [i for samples in peers for i in samples] for step, peers in self.steps.items()}

    def complete(self, steps: int) -> bool:
        """Whether all steps had at least the target batch size and, once all peers had arrived, samples of all."""
        everyone = all(len(peers) == len(TRAINERS) for step, peers in self.steps.items() if step > 2)
        return everyone and len(self.steps) == steps and min(self.sizes()) >= TARGET

    @property
    def digests_equal(self) -> bool:
        """Whether all peers have the same parameters, bit by bit."""
        return all(torch.equal(self.parameters[0], p) for p in self.parameters)


def spec_of(codec: str, steps: int, optimizer: str) -> RunSpec:
    """The run spec, which differs between runs only in the codec."""
    return RunSpec.from_mapping(
        {
            "name": f"equivalence {codec}",
            "model": {"recipe": "custom"},
            "network": {"relay": "none"},
            "optimizer": {
                "name": optimizer,
                "learning_rate": 0.1 if optimizer != "adamw" else 0.01,
                "warmup_steps": min(5, steps),
                "total_steps": 2 * steps,
                "max_grad_norm": 1.0,
            },
            "training": {"target_batch_size": TARGET, "stop_after_steps": steps, "seed": 3},
            "averaging": {"codec": codec},
            "state": {"digest_every": 1},
            "checkpoints": {"every_steps": 0},
        }
    ).published({})


# ---- on the virtual network


class NotingReplica(ClassifierReplica):
    """A replica that notes which samples it contributed to which step."""

    def __init__(self, spec: RunSpec) -> None:
        super().__init__(spec)
        self.current: list[int] = []
        self.steps: dict[int, list[int]] = {}
        self.losses: dict[int, float] = {}
        self._pending: list[int] = []

    def accumulate(self, vector: torch.Tensor, samples: float) -> bool:
        """See `Replica`."""
        taken = super().accumulate(vector, samples)
        if taken:
            self._pending += self.current
        return taken

    def apply(self, mean: torch.Tensor, step: int) -> None:
        """See `Replica`."""
        super().apply(mean, step)
        self.steps[step], self._pending = self._pending, []
        self.losses[step] = self.task.held_out_loss()

    def restore(self, snapshot: StateSnapshot) -> None:
        """See `Replica`."""
        super().restore(snapshot)
        self._pending = []


def run_in_virtual_world(spec: RunSpec, steps: int) -> Run:
    """Four simulated peers; nothing in the run depends on this machine."""
    replicas: list[NotingReplica] = []

    def make_replica(spec: RunSpec) -> NotingReplica:
        replicas.append(NotingReplica(spec))
        return replicas[-1]

    def gradient(peer: SimulatedPeer, samples: int) -> None:
        replica = peer.replica
        assert isinstance(replica, NotingReplica)
        order = random.Random(f"{peer.name} {peer.samples_done} {replica.step}")
        replica.current = order.choices(range(SAMPLES), k=samples)
        replica.task.backward(replica.current)

    async def live() -> None:
        swarm = Swarm(spec, seed=1, make_replica=make_replica, gradient=gradient)
        for settings, trainer in zip(HOSTS, TRAINERS, strict=True):
            swarm.add(settings, trainer)
        try:
            await swarm.run_until_step(steps, limit_s=600)
        finally:
            await swarm.close()

    run_virtual(live())
    run = Run(parameters=[r.task.parameters() for r in replicas])
    run.losses = [replicas[0].losses.get(s, float("nan")) for s in range(1, steps + 1)]
    run.steps = {s: [r.steps[s] for r in replicas if r.steps.get(s)] for s in range(1, steps + 1)}
    return run


# ---- over iroh


def peer(channel: Channel, settings: dict[str, Any]) -> None:
    """The process of one peer: trains to the end of the run and tells what it did."""
    torch.set_num_threads(1)
    index, options = (
        settings["index"],
        PeerOptions(ephemeral=True, directory=Path(settings["directory"]), host="127.0.0.1"),
    )
    if settings["link"]:
        entered = join(settings["link"], options)
    else:
        entered = host(RunSpec.from_toml(settings["spec"]), options)
    channel.send(link=str(entered.link))
    channel.receive()
    task, trainer = Classification(entered.spec), TRAINERS[index]
    optimizer = Optimizer(task.optimizer, entered, scheduler=task.scheduler, model=task.model)
    channel.send(ready=True)
    while channel.poll() is None:  # serves its state to those who come later
        optimizer.follow(0.05)
    order, pending, steps, losses = random.Random(index), [], {}, {}
    while not optimizer.finished:
        samples = order.choices(range(SAMPLES), k=trainer.micro_batch)
        task.backward(samples)
        time.sleep(trainer.micro_batch_s / 2)
        before = optimizer.global_step, optimizer.dropped_micro_batches
        optimizer.step(samples=len(samples))
        if optimizer.dropped_micro_batches == before[1]:
            pending += samples
        if optimizer.global_step != before[0]:
            steps[optimizer.global_step], pending = pending, []
            losses[optimizer.global_step] = task.held_out_loss()
        optimizer.zero_grad()
    torch.save(task.parameters(), settings["result"])
    channel.send(steps=steps, losses=losses)
    channel.receive()
    entered.close()


def run_over_iroh(spec: RunSpec, steps: int) -> Run:
    """Four processes on this machine, each twice as fast as on the virtual network."""
    with Workers() as workers:
        link = ""
        for index in range(len(TRAINERS)):
            folder = workers.directory / f"folder-{index}"
            settings = {
                "index": index,
                "directory": str(folder),
                "result": str(workers.directory / f"parameters-{index}"),
                "spec": spec.to_toml(),
                "link": link,
            }
            worker = workers.start(f"peer-{index}", "benchmarks.equivalence:peer", settings)
            link = link or worker.receive(60)["link"]
        workers.gather(60, workers.all[1:])
        for worker in workers.all:  # one after the other, so that all are members of the first step
            worker.ask("enter", 60)
        told = workers.ask("train", 60 + 10 * steps)
        parameters = [
            torch.load(workers.directory / f"parameters-{i}", weights_only=True) for i in range(len(TRAINERS))
        ]
    run = Run(parameters=parameters)
    run.losses = [told[0]["losses"].get(str(s), float("nan")) for s in range(1, steps + 1)]
    run.steps = {s: [t["steps"][str(s)] for t in told if t["steps"].get(str(s))] for s in range(1, steps + 1)}
    return run


def gap(losses: list[float], reference: list[float]) -> float:
    """The largest relative difference between two loss curves."""
    return round(max(abs(a - b) / b for a, b in zip(losses, reference, strict=True)), 6)


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--real", action="store_true", help="four processes over iroh")
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--optimizer", choices=["lamb", "adamw", "sgd", "lars"], default="lamb")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    execute = run_over_iroh if arguments.real else run_in_virtual_world
    runs: dict[str, Run] = {}
    for codec in CODECS:
        runs[codec] = execute(spec_of(codec, arguments.steps, arguments.optimizer), arguments.steps)
        emit(codec=codec, losses=[round(loss, 5) for loss in runs[codec].losses], samples=runs[codec].sizes())
    exact = runs["float32"]
    spec = spec_of("float32", arguments.steps, arguments.optimizer)
    start, end, alone = train_alone(spec, exact.union())
    difference = float((exact.parameters[0] - end).norm())
    rel_err = difference / float(end.norm())
    coarse = {codec: run for codec, run in runs.items() if codec != "float32"}
    gaps = {codec: gap(run.losses, train_alone(spec, run.union())[2]) for codec, run in coarse.items()}
    complete = all(run.complete(arguments.steps) for run in runs.values())
    digests_equal = all(run.digests_equal for run in runs.values())
    return finish(
        "equivalence",
        complete and digests_equal and rel_err <= REL_ERR_LIMIT and max(gaps.values()) <= LOSS_GAP_LIMIT,
        arguments.json,
        network="iroh" if arguments.real else "virtual",
        optimizer=arguments.optimizer,
        peers=len(TRAINERS),
        steps=arguments.steps,
        rel_err=rel_err,
        rel_err_update=difference / float((end - start).norm()),
        loss_gap=gaps,
        loss_gap_of_runs={codec: gap(run.losses, exact.losses) for codec, run in coarse.items()},
        loss=[Classification(spec).held_out_loss(), exact.losses[-1], alone[-1]],
        samples=spread(exact.sizes()),
        digests_equal=digests_equal,
        complete=complete,
    )


def train_alone(spec: RunSpec, steps: Mapping[int, Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor, list[float]]:
    """What one process gets by ordinary large-batch training: step `s` takes all samples of `steps[s]` at once.

    Returns the parameters at the start and at the end, and the held-out loss after each step.
    """
    task = Classification(spec)
    start, losses = task.parameters(), []
    for step in sorted(steps):
        task.optimizer.zero_grad()
        task.backward(steps[step])
        if spec.optimizer.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(task.model.parameters(), spec.optimizer.max_grad_norm)
        task.optimizer.step()
        task.scheduler.step()
        losses.append(task.held_out_loss())
    return start, task.parameters(), losses


if __name__ == "__main__":
    raise SystemExit(main())
