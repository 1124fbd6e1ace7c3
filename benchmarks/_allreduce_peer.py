"""One peer of `benchmarks.allreduce`: everything that averages for training, without a trainer."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import blake3
import numpy as np
import torch

from benchmarks._entering import enter, tell_address
from benchmarks._worker import Channel
from minga.averaging.allreduce.service import AllReduce
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.residual import RoundVectors
from minga.averaging.group import GroupSettings
from minga.averaging.matchmaking.former import GroupFormation
from minga.averaging.messages import Report
from minga.averaging.strategy_choice import StrategyFacts
from minga.core.aio import Signal
from minga.core.rate_cap import RateCap
from minga.identity.keys.keys import Identity
from minga.network.iroh.network import NetworkSettings
from minga.training.life.board_view import BoardView
from minga.training.record_kinds import Progress
from minga.training.session import Session, SessionSettings

SAMPLES = 1000


class FixedContributor:
    """A trainer that has nothing to do: its samples and its vector are there from the start."""

    facts = StrategyFacts(max_in_flight=0, keeps_late_micro_batches=False, vectors=1)

    def __init__(self, vector: torch.Tensor) -> None:
        self.changed = Signal()
        self._vector = vector

    def report(self) -> Report:
        """See `Contributor`."""
        return Report(SAMPLES, 1000.0)

    def limit(self, samples: int | None) -> None:
        """See `Contributor`: there is nothing to stop."""

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
        vectors = RoundVectors(lambda _: layout, torch.zeros)
        group = GroupSettings(settings["peers"] * SAMPLES, vectors.described, aggregates=True)
        swarm_view = BoardView(session.board, session.node)
        self.formation = GroupFormation(session.node, identity, group, swarm_view, self.contributor)
        self.all_reduce = AllReduce(session.node)

    def publish(self) -> None:
        """Tell the others at which step this peer is."""
        progress = Progress(self.step, SAMPLES, 1000.0, "training")
        self.session.board.put(progress)

    async def round(self, channel: Channel) -> None:
        """One group and its all-reduce; the second begins when told to."""
        plan = await self.formation.form(self.step)
        channel.send(planned_s=time.monotonic(), members=len(plan.members))
        await channel.receive_on_loop()
        local, weight = await self.contributor.seal()
        outcome = await self.all_reduce.reduce(plan, self.layout, local, weight, self.result)
        channel.send(done_s=time.monotonic(), lost=len(outcome.lost))
        self.step += 1


def peer(channel: Channel, settings: dict[str, Any]) -> None:
    """The process of one peer."""
    torch.set_num_threads(1)
    asyncio.run(_peer(channel, settings))


async def _peer(channel: Channel, settings: dict[str, Any]) -> None:
    upload = RateCap(settings["upload_mbit"] * 1e6 / 8) if settings["upload_mbit"] else None
    network = NetworkSettings(host="127.0.0.1", tcp=not settings["no_tcp"])
    session, identity = await enter(settings["entries"], network, SessionSettings(max_upload=upload))
    vector = torch.from_numpy(vector_of(settings["seed"], settings["index"], settings["numel"]))
    me = AveragingPeer(session, identity, vector, settings)
    tell_address(channel, session)
    while (command := await channel.receive_on_loop())["do"] != "exit":
        if command["do"] == "settle":
            me.publish()
            while len(me.formation._swarm_view.at(me.step)) < settings["peers"] - 1:
                await asyncio.sleep(0.01)
            channel.send(settled=True)
        elif command["do"] == "round":
            await me.round(channel)
        elif command["do"] == "check":
            channel.send(**compare(me.result, Path(command["mean"])))
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
