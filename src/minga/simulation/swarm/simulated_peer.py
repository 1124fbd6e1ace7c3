"""One simulated peer: a host, a session of production code, and a coroutine that stands for the training thread."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from minga.averaging.strategy_choice import StrategyChoice
from minga.core.errors import ClosedError, ConfigurationError, LocalError, MingaError, RemoteError, RunFinishedError
from minga.core.spec.run_spec import RunSpec
from minga.identity.links.links import LinkAccess
from minga.network.virtual.internet import VirtualNetwork
from minga.security.randomness.public_batch import PublicBatch
from minga.security.step.member import BannedError
from minga.training.bridge.assigned_port import AssignedPort
from minga.training.bridge.gradient_port import GradientPort
from minga.training.bridge.thread_bridge import ThreadTask
from minga.training.life.founding import Genesis
from minga.training.life.verified_member import VerifiedMember
from minga.training.replica.interface import ReplicaInterface
from minga.training.session import Session
from minga.training.state.snapshot import StateSnapshot

POLL_S = 0.05
IDLE_S = 1.0
"""Longest pause of a trainer that has nothing to do but wait: it is woken for all but another try of its speed."""

Life = Callable[["SimulatedPeer"], Coroutine[Any, Any, None]]
"""What a peer does once it is in the run, until its end."""


@dataclass(frozen=True)
class TrainerSettings:
    """How a simulated trainer computes: `micro_batch` samples in `micro_batch_s` seconds each.

    Each time is multiplied by a factor drawn evenly from 1 - `jitter` to 1 + `jitter`.
    """

    micro_batch: int = 4
    micro_batch_s: float = 0.1
    jitter: float = 0.0

    @property
    def samples_per_second(self) -> float:
        """The speed of this trainer while it computes."""
        return self.micro_batch / self.micro_batch_s


@dataclass(frozen=True)
class TrainingTask:
    """What all peers of a swarm train: `gradient(peer, samples)` sets the gradients of a micro-batch on the peer's
    model and returns its mean loss, if that is known; in a run whose members check each other
    `public_gradient(peer, batch)` sets those of a public batch, and `organiser` is the id of the peer whose key signs
    who its founders are. With `checkpoint_every` each peer keeps a copy of its state at multiples of that many steps.
    `life` is what a peer does instead, where it does not train as a whole.
    """

    spec: RunSpec
    gradient: Callable[[SimulatedPeer, int], float | None]
    public_gradient: Callable[[SimulatedPeer, PublicBatch], None]
    checkpoint_every: int | None
    organiser: str
    life: Life | None = None


class SimulatedPeer:
    """One peer of a swarm: a host, a session, and a coroutine that trains. `settings` is None without a trainer."""

    def __init__(
        self,
        name: str,
        network: VirtualNetwork,
        session: Session,
        replica: ReplicaInterface,
        settings: TrainerSettings | None,
        apply_s: float = 0.0,
        load_s: float = 0.0,
    ) -> None:
        self.name, self.network, self.session, self.replica = name, network, session, replica
        self.settings = settings
        self.samples_done = 0
        self.error: LocalError | RemoteError | None = None
        self.checkpoint: StateSnapshot | None = None
        self._kept_genesis: Genesis | None = None
        self.port: GradientPort | None = None
        self.apply_s, self.load_s = apply_s, load_s
        self.access: LinkAccess | None = None
        """What admits it to a run for members."""
        self.ended = asyncio.Event()
        """Set when the peer takes part no more: it was killed or closed, or failed with `error`."""
        self._computed_s, self._busy_since, self._busy_s = 0.0, 0.0, 0.0
        self._random = random.Random(f"minga trainer {network.peer_id}")

    @property
    def genesis(self) -> Genesis | None:
        """What it keeps of how the run was founded, from the moment on at which it knows it."""
        founding = self.session.founding
        return self._kept_genesis if founding is None else founding.genesis

    def keep_of(self, former: SimulatedPeer) -> None:
        """Begin with what lies in the folder of its former self, but for the checkpoint."""
        self._kept_genesis = former.genesis
        if former.session.ledger is not None:
            self.session.admission.take(former.session.ledger.orders())

    @property
    def is_gone(self) -> bool:
        """Whether the peer was killed or closed."""
        return self.network.state.gone

    @property
    def is_banned(self) -> bool:
        """Whether the members of the run told it that it can never come back."""
        return isinstance(self.error, BannedError)

    @property
    def computed_s(self) -> float:
        """Seconds that it has spent on micro-batches so far, the one under way included."""
        under_way = min(asyncio.get_running_loop().time() - self._busy_since, self._busy_s) if self._busy_s else 0.0
        return self._computed_s + under_way

    async def live(self, task: TrainingTask) -> None:
        """Join the run and train until the end of the run, of the host or of the program."""
        try:
            await self._enter()
            self.session.begin_founding(task.spec, task.organiser, known=self._kept_genesis)
            await asyncio.sleep(self.load_s)
            if self.is_gone:  # closed meanwhile: the program hears so when it wants to take part
                return
            if task.life is not None:
                await task.life(self)
                return
            is_secure = task.spec.security.verification == "byzantine"
            await (self._train_publicly(task) if is_secure else self._train(task))
        except (RunFinishedError, ClosedError):
            return
        except (LocalError, RemoteError) as error:
            self.error = error  # neither the end of the run nor of the peer
        finally:
            self.ended.set()

    async def _enter(self) -> None:
        try:
            await self.session.start()
        except MingaError:
            await self.session.close()  # as the program ends
            raise

    async def finish_step(self, limit_s: float) -> None:
        """Wait until the present step is taken, if others count on this peer in it: in a run whose members check each
        other, to go in the middle of one costs the key its place (`minga.cli.taking_part.session`).
        """
        life, loop = self.session.member, asyncio.get_running_loop()
        step, until_s = self.replica.step, loop.time() + limit_s
        while (
            isinstance(life, VerifiedMember) and life.has_a_say and self.replica.step == step and loop.time() < until_s
        ):
            await asyncio.sleep(POLL_S)

    async def _train(self, task: TrainingTask) -> None:
        spec, checkpoint_every = task.spec, task.checkpoint_every
        strategy = StrategyChoice.of(spec, self.replica.strategy)
        self.port = port = GradientPort(
            asyncio.get_running_loop(), self.replica, strategy=strategy, choose=partial(StrategyChoice.of, spec)
        )
        member = self.session.attach(self.replica, port)
        await self._serve(port, member.ready.is_set, checkpoint_every)
        while True:
            if self.settings is None:
                port.pause()
                await self._serve(port, lambda: False, checkpoint_every)
                continue
            micro_batch = self.settings.micro_batch
            await self.compute(self.settings, self.settings.micro_batch_s)
            loss = task.gradient(self, micro_batch)
            if port.add(micro_batch, loss):
                self.samples_done += micro_batch
            self.replica.zero_grad()
            await self._serve(port, lambda: True, checkpoint_every)

    async def _train_publicly(self, task: TrainingTask) -> None:
        """The same where others say what is to be computed, and check it."""
        spec = task.spec
        if self.settings is None:
            raise ConfigurationError("in a run whose members check each other everybody computes")
        loop = asyncio.get_running_loop()
        port = AssignedPort(
            loop,
            self.replica.new_sum,
            micro_batches=spec.micro_batches_per_member,
            size=spec.security.micro_batch_size,
        )
        entropy = random.Random(f"minga secrets {self.network.peer_id} {loop.time()}").randbytes
        self.session.attach_secure(self.replica, port, entropy=entropy)
        while True:
            port.want_batch()
            await self._serve(port, lambda: True, task.checkpoint_every)
            batch = port.next_batch()
            await self.compute(self.settings, batch.size / self.settings.samples_per_second)
            task.public_gradient(self, batch)
            port.add(batch.size)
            self.samples_done += batch.size
            self.replica.zero_grad()

    async def compute(self, settings: TrainerSettings, seconds: float) -> None:
        """Let the time of a micro-batch pass, which takes so many seconds on average."""
        seconds *= self._random.uniform(1.0 - settings.jitter, 1.0 + settings.jitter)
        self._busy_since, self._busy_s = asyncio.get_running_loop().time(), seconds
        await asyncio.sleep(seconds)
        self._computed_s, self._busy_s = self._computed_s + seconds, 0.0

    async def _serve(
        self, port: GradientPort | AssignedPort, until: Callable[[], bool], checkpoint_every: int | None
    ) -> None:
        """Do what the loop asks for, as the training thread does in production."""
        while True:
            work = port.poll()
            if isinstance(work, ThreadTask):
                before = self.replica.step, self.replica.lineage.founding
                if work.name == "apply" and self.apply_s:
                    await asyncio.sleep(self.apply_s)
                port.finish(work)
                now = self.replica.step, self.replica.lineage.founding
                if checkpoint_every and now != before and self.replica.step % checkpoint_every == 0:
                    self.checkpoint = self.replica.capture()
            elif work is None and until():
                return
            else:  # what `until` asks for wakes nobody
                await port.woken.wait(POLL_S if work is None else IDLE_S)
