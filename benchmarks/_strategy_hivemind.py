"""The tasks of `benchmarks.strategies` by hivemind's optimizer: one process for each peer, in real time.

Its peers begin with the same parameters as minga's and have the same batches in the same order, inner optimizer,
schedule and clipping, so losses at equal samples can be compared, and bytes. Seconds cannot: hivemind's are those of
this machine, minga's those of a clock. Peers run in an environment that has hivemind 1.1.12, and what minga needs.

With shared steps a peer takes its part of a batch and waits for the others, so that a round has as many samples as were
asked for; a user's loop would go on until it hears from them. With local updates, whose rounds run in the background,
peers go on at a set pace.
"""

from __future__ import annotations

import logging
import math
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import psutil
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from benchmarks._processes import Message, Workers
from benchmarks._report import note
from benchmarks._strategy_methods import REFERENCE, method_of
from benchmarks._strategy_run import Cell, Record
from benchmarks._strategy_tasks import GLOBAL_BATCH, Subject
from benchmarks._worker import Channel
from minga.core.spec.sections import OptimizerSection
from minga.training.replica.build_optimizer import schedule

METHODS: Final = (REFERENCE, "local-5-r1-m0")
"""Those of minga that hivemind has, too: gradients averaged as float16, and parameters averaged after local steps."""
START_S, RUN_S = 300.0, 3600.0
MEGA: Final = 1e6

Row = dict[str, Any]


def has_hivemind(python: str) -> bool:
    """Whether this interpreter can import it."""
    return subprocess.run([python, "-c", "import hivemind"], capture_output=True, check=False).returncode == 0


def run_hivemind(cell: Cell, folder: Path, python: str) -> list[Message]:
    """What each peer says at the end of a run by hivemind, whose peers are processes of `python`."""
    peers = len(cell.speeds)
    settings = {"task": cell.task, "method": cell.method.name, "seed": cell.seed, "samples": cell.samples}
    settings |= {"peers": peers, "folder": str(folder)}
    with Workers() as workers:

        def start(index: int, known: Sequence[str]) -> None:
            own = {**settings, "index": index, "initial_peers": known}
            workers.start(f"peer {index}", "benchmarks._strategy_hivemind:run", own, python=python)

        start(0, [])
        (first,) = workers.gather(START_S)
        for index in range(1, peers):
            start(index, first["addresses"])
        workers.gather(START_S, workers.all[1:])
        workers.gather(START_S)
        found = workers.ask("train", RUN_S)
    note(f"hivemind {cell.task} {cell.method.name} seed {cell.seed}: {found[0]['seconds']:.0f} s")
    return found


def hivemind_row(cell: Cell, said: Sequence[Message], ours: Record, reference: Record) -> Row:
    """Both beside each other, of the small model. Pairs are hivemind's figure and minga's; `gap_percent` is to minga's
    synchronous float16, `loss` the mean, least and most of hivemind's peers, and `whole` the share of its averagings in
    which all of them took part.
    """
    counts = sum((Counter(each["said"]) for each in said), Counter[str]())
    whole = sum(count for what, count in counts.items() if what.endswith(f" {len(cell.speeds)}"))
    losses, last = [each["loss"] for each in said], ours["curve"][-1]
    pair, samples = (fmean(losses), last["loss"]), [sum(each["samples"] for each in said), last["samples"]]
    return {
        "task": cell.task,
        "method": cell.method.name,
        "seed": cell.seed,
        "peers": len(cell.speeds),
        "samples": samples,
        "rounds": [round(fmean(each["rounds"] for each in said), 1), len(ours["rounds"])],
        "loss": [round(each, 4) for each in (pair[0], min(losses), max(losses))],
        "gap_percent": [round(100 * (each / reference["curve"][-1]["loss"] - 1), 2) for each in pair],
        # A daemon writes each byte to others that its peer gave it, and to its peer what came from others.
        "sent_mb": [
            round(fmean(each["passed_on"] for each in said) / 2 / MEGA, 2),
            round(sum(fmean(each["up"]) for each in ours["rounds"]) / MEGA, 2),
        ],
        "whole": round(whole / max(1, counts.total()), 3),
        "seconds": round(max(each["seconds"] for each in said), 1),
        "ok": samples[0] == samples[1],
    }


# ---- the process of one peer


SAID: Final = re.compile(
    r"Averaged (gradients|parameters) with (\d+) peers|Proceeding with (local) gradients|(out of s)"
)
MATCHMAKING_S, AVERAGING_S = 2.0, 30.0
LOCAL_ROUND_S: Final = 4.0
"""What the local steps of a round take, by the pace: more than an averaging of parameters."""
POLL_S, ROUND_LIMIT_S = 0.02, 90.0


class _Heard(logging.Handler):
    """How often hivemind said that so many peers averaged something, that it failed, or that a peer began anew."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()
        for module in ("optimizer", "state_averager"):
            logging.getLogger(f"hivemind.optim.{module}").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if said := SAID.search(record.getMessage()):
            self.counts[" ".join(filter(None, said.groups()))] += 1


class _Peer:
    """A model with hivemind's optimizer, and the samples that it has had."""

    def __init__(self, hivemind: Any, dht: Any, cell: Cell, subject: Subject, index: int) -> None:
        peers, settings = len(cell.speeds), subject.spec.optimizer
        self.subject, self.model, self.samples = subject, subject.new_model(), 0
        self.steps, self.micro_batch, self.all_samples = (
            cell.method.batches,
            GLOBAL_BATCH // peers,
            cell.samples // peers,
        )
        self.is_local = self.steps > 1
        self._batches = subject.batches(f"peer {index}", self.micro_batch)
        float16 = import_module("hivemind.compression").Float16Compression()
        averager = {"target_group_size": peers, "request_timeout": MATCHMAKING_S / 2}
        kind: dict[str, Any] = {"use_local_updates": True, "delay_state_averaging": True}
        if not self.is_local:
            factory = partial(import_module("hivemind.optim.grad_averager").GradientAverager, **averager)
            kind = {"grad_compression": float16, "grad_averager_factory": factory, "delay_state_averaging": False}
        self.optimizer = hivemind.Optimizer(
            dht=dht,
            run_id=f"{cell.task}-{cell.method.name}-{cell.seed}",
            batch_size_per_step=self.micro_batch,
            target_batch_size=cell.batch,
            params=[
                {
                    "params": [each for each in self.model.parameters() if (each.ndim >= 2) == decays],
                    "weight_decay": rate,
                }
                for decays, rate in ((True, settings.weight_decay), (False, 0.0))
            ],
            optimizer=partial(_clipped_adamw, settings=settings),
            scheduler=lambda optimizer: LambdaLR(optimizer, schedule(settings)),
            matchmaking_time=MATCHMAKING_S,
            averaging_timeout=AVERAGING_S,
            state_averaging_compression=float16,
            averager_opts=averager,
            tracker_opts={"min_refresh_period": 0.1, "default_refresh_period": 0.3, "max_refresh_period": 0.5},
            verbose=True,
            **kind,
        )

    def train(self) -> None:
        """Take all samples. Raises `TimeoutError` if a round does not end."""
        while self.samples < self.all_samples:
            begun, epoch = time.monotonic(), self.optimizer.local_epoch
            self.subject.recipe.total_loss(self.model, next(self._batches)).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.samples += self.micro_batch
            if self.is_local:
                time.sleep(max(0.0, begun + LOCAL_ROUND_S / self.steps - time.monotonic()))
            else:
                self._end_round(epoch)
        self.optimizer.state_averager.step(wait_for_delayed_updates=True, apply_delayed_updates=True)

    def _end_round(self, epoch: int) -> None:
        """Go on to the next epoch, without further samples, as soon as the others are ready."""
        deadline = time.monotonic() + ROUND_LIMIT_S
        while self.optimizer.local_epoch == epoch:
            if time.monotonic() > deadline:
                raise TimeoutError(f"round {epoch} did not end")
            if self.optimizer.tracker.ready_to_update_epoch:
                self.optimizer.step(batch_size=0)
            else:
                time.sleep(POLL_S)


def _clipped_adamw(params: Any, settings: OptimizerSection) -> torch.optim.AdamW:
    optimizer = torch.optim.AdamW(params, lr=settings.learning_rate, betas=settings.betas, eps=settings.epsilon)

    def clip(*_: object) -> None:
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm or math.inf)

    optimizer.register_step_pre_hook(clip)
    return optimizer


def run(channel: Channel, settings: Any) -> None:
    """Train as `settings` say as soon as the coordinator says so, and tell it what came of that."""
    torch.set_num_threads(1)
    sys.stdin = open(os.devnull)  # noqa: SIM115  (forked processes close it; a thread has the lock of the real one)
    hivemind = import_module("hivemind")
    speeds = (1.0,) * settings["peers"]
    cell = Cell(settings["task"], method_of(settings["method"]), settings["seed"], speeds, settings["samples"])
    heard, subject = _Heard(), cell.subject(Path(settings["folder"]))
    known = {"initial_peers": settings["initial_peers"]} if settings["initial_peers"] else {}
    dht = hivemind.DHT(start=True, auto_nat=False, nat_port_map=False, use_relay=False, **known)
    channel.send(addresses=[str(each) for each in dht.get_visible_maddrs()])
    peer = _Peer(hivemind, dht, cell, subject, settings["index"])
    channel.send(ready=True)
    for _ in channel.commands():
        begun = time.monotonic()
        peer.train()
        daemons = [each for each in psutil.Process().children(recursive=True) if each.name() == "p2pd"]
        channel.send(
            seconds=time.monotonic() - begun,
            loss=subject.heldout_loss(peer.model),
            rounds=peer.optimizer.local_epoch,
            samples=peer.samples,
            said=heard.counts,
            passed_on=sum(each.io_counters().write_chars for each in daemons),
        )
    peer.optimizer.shutdown()
    dht.shutdown()
