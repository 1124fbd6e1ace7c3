"""The life of one peer in a secure run, on the event loop; `member.py` does this in ordinary runs.

    wait for the genesis ──▶ founders: take secure steps ──▶ the run's last step
                        └──▶ newcomers: state, probation ──┘

`minga.security` has the protocol between the members, and decides on bans. This module connects it to the board, the
training thread and the servers of state.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import torch

from minga.averaging.codecs.layout import VectorLayout
from minga.core.aio import Backoff, Observers, racing
from minga.core.errors import ConfigurationError, RemoteError, RunFinishedError
from minga.core.events.training import (
    MemberDiverged,
    MemberOutOfSync,
    RunFinished,
    StateAwaited,
    StepApplied,
    SyncFailed,
    SyncFinished,
    SyncOvertaken,
)
from minga.core.thread_guard import loop_bound
from minga.core.units import counted
from minga.identity.keys.keys import Identity
from minga.network.gossip.board import Board
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.security.accountability.log import EvidenceLog
from minga.security.messaging.voting import DivergedError
from minga.security.protocol.behaviour import KEPT_STEPS, Behaviour
from minga.security.protocol.protocol_state import ProtocolState
from minga.security.protocol.rules import SecureSettings
from minga.security.step.member import BannedError, Joiner, MemberSetup, SecureMember
from minga.training.bridge.assigned_port import AssignedPort, GradientTask
from minga.training.life.board_view import BoardView
from minga.training.life.founding import Bootstrap, Founding
from minga.training.life.leaving import closing, see_others_off
from minga.training.life.progress_publisher import ProgressPublisher
from minga.training.lineage import Lineage
from minga.training.record_kinds import StateInfo
from minga.training.replica.interface import ReplicaInterface
from minga.training.state.manifest import build_manifest
from minga.training.state.snapshot import StateSnapshot
from minga.training.transfer.download import OvertakenError, Wanted, download, fetch_manifest
from minga.training.transfer.messages import Description
from minga.training.transfer.server import StateServer

# ---- The training backend of secure steps: gradients that any member can compute again, and the same state.
#
# The parameters of a step are kept for as long as a member may ask about it, one vector for each step.


@loop_bound
class VerifiedBackend:
    """The `TrainingBackend` of a member whose model lies behind `port`; other members are reached by `node`.

    A large state that is fetched lies in the run's folder `directory`, if there is one, as do its verified chunks;
    `states` serves these to others that fetch the same.
    """

    def __init__(
        self,
        node: Node,
        replica: ReplicaInterface,
        port: AssignedPort,
        states: StateServer,
        directory: Path | None = None,
    ) -> None:
        self._states = states
        self._downloads = None if directory is None else directory / "downloads"
        self.layout: VectorLayout = replica.vector.layout
        self.state_digest = ""
        """Of the present state, once it was asked for: 64 hexadecimal digits."""
        self._node, self._replica, self._port = node, replica, port
        self._past: dict[int, torch.Tensor] = {}
        """The parameters before a step, for the steps that were taken last."""

    async def gradient(self, step: int, seed: bytes) -> torch.Tensor:
        """The mean gradient (flat float32) of the public batch of `seed` at the parameters before `step`.

        Raises `ConfigurationError` for a step whose parameters are not kept any more.
        """
        if step not in self._past and step == self._replica.step:
            return await self._port.compute(GradientTask(seed))
        if step not in self._past:
            raise ConfigurationError(f"the parameters of step {step} are not kept any more")
        past, present, replica = self._past[step], list[torch.Tensor](), self._replica

        def before() -> None:
            present.append(replica.read_values())
            replica.write_values(past)

        return await self._port.compute(GradientTask(seed, before, lambda: replica.write_values(present.pop())))

    async def apply(self, step: int, mean: torch.Tensor) -> None:
        """Take step `step` with the aggregate gradient."""
        self._past[step] = await self._port.request("read", self._replica.read_values)
        await self._port.request("apply", lambda: self._replica.apply(mean, step + 1))
        for old in [old for old in self._past if old <= step - KEPT_STEPS]:
            del self._past[old]

    async def digest(self) -> bytes:
        """32 bytes that are equal for equal states."""
        self.state_digest = await self._port.request("digest", self._replica.digest)
        return bytes.fromhex(self.state_digest)

    async def adopt(self, step: int, digest: bytes, donors: Sequence[PeerId]) -> None:
        """Fetch the state before `step` from any of the donors. Raises `RemoteError` if none has it any more."""
        have = await self._port.request("capture", self._replica.capture)
        state = await download(
            self._node,
            donors,
            Wanted(step, digest.hex(), self._replica.lineage.founding),
            have=have,
            cache=self._downloads,
            accept=lambda manifest: self._port.accept(lambda: self._replica.check(manifest)),
            server=self._states,
        )
        founded = state.snapshot.of(Lineage.founded(self._replica.lineage.founding))  # the members' votes say the rest
        await self._port.request("restore", lambda: self._replica.restore(founded))
        self._past.clear()


# ---- The files of a peer about a secure run; several peers of one machine share the folder of a run.


def genesis_file(directory: Path, peer: PeerId) -> Path:
    """The genesis, as this peer got it."""
    return directory / f"genesis-{peer[:10]}.bin"


def evidence_file(directory: Path, peer: PeerId) -> Path:
    """What this peer saw of why others left."""
    return directory / f"evidence-{peer[:10]}.bin"


def witnesses(directory: Path) -> list[PeerId]:
    """The beginnings of the ids of all peers that left either of them there."""
    files = [*directory.glob("genesis-*.bin"), *directory.glob("evidence-*.bin")]
    return sorted({PeerId(path.stem.partition("-")[2]) for path in files})


# ---- The member of a secure run.


SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
"""Between two attempts to come to where the members are, in seconds; short at first, since steps may be short."""
PATIENT_ATTEMPTS = 5
"""So often in a row the members may have gone on when their state is here, which is normal where steps are short."""
COMPARE_PERIOD_S = 1.0
MOST_COMPARED = 8
"""States of others of which a founder that waits is told how they differ from its own: anybody can claim any state."""
SETTLES_S = 30.0
"""For so long a member that took the last step waits for most others to say that they came to the same state, and then
for theirs if it is another: those who wait in vain for a member take twice about five seconds.
"""
MAX_DIVERGENCES = 3
"""A machine that computes in another way would fetch the whole state again and again, for nothing."""

logger = logging.getLogger("minga.training")


@dataclass(frozen=True)
class VerifiedOptions:
    """How one peer takes part: how the run is founded, what shows its states, how the peer conducts itself, the folder
    of the run, and where its secrets come from.
    """

    founding: Founding
    states: StateServer
    behaviour: Behaviour
    directory: Path | None = None
    entropy: Callable[[int], bytes] = secrets.token_bytes


@loop_bound
class VerifiedMember:
    """Drives the steps of one peer."""

    stays_s: Final = 10.0
    """Longest time, in seconds, that `see_off` takes: as long as a slow line needs for an attempt."""

    def __init__(
        self,
        node: Node,
        identity: Identity,
        board: Board,
        options: VerifiedOptions,
        replica: ReplicaInterface,
        port: AssignedPort,
    ) -> None:
        self.ready = asyncio.Event()
        """Set once the peer takes part in steps."""
        self.on_finished: Callable[[StateSnapshot], None] | None = None
        """Called on the loop with the state after the run's last step."""
        self.on_step_ended = Observers[[]]()
        """Called when this peer has applied a step, or aborted a round."""
        self.swarm_view = BoardView(board, node, options.founding.run.organiser)
        self.secure: SecureMember | None = None
        """Set while this peer is where the members are."""
        self._node, self._board, self._replica, self._port = node, board, replica, port
        self._spec = spec = options.founding.run.spec
        self._work = VerifiedBackend(node, replica, port, options.states, options.directory)
        self._known: frozenset[PeerId] = frozenset()
        """Peers whose word counts if this peer has to enter: the founders, and the members that it came to know by the
        word of most of these.
        """
        self._founders = self._known
        self._is_vouched_for = True
        """Whether the members that this peer observes, or is one of, are known to be the true ones."""
        self._backoff = Backoff(SHORTEST_PAUSE_S, LONGEST_PAUSE_S)
        self._attempts = 0
        """How often in a row this peer failed to adopt the members' state."""
        self._divergences = 0
        """Steps in a row by which this peer came to another state than the members."""
        security, path = spec.security, options.directory
        settings = SecureSettings(
            peers_per_validator=security.peers_per_validator,
            probation_steps=security.probation_steps,
            aggregator=security.aggregator,
        )
        evidence = EvidenceLog(None if path is None else evidence_file(path, node.peer_id))
        self._setup = MemberSetup(node, identity, self._work, settings, options.behaviour, evidence, options.entropy)
        layout = replica.vector.layout
        self._publisher = ProgressPublisher(
            board,
            node,
            port,
            lambda: (self.step, self._batch_size),
            client=False,
            vector_bytes=lambda _: layout.encoded_bytes(0, layout.total),
            lineage=lambda: replica.lineage,
        )
        self.founding, self._states = options.founding, options.states

    @property
    def step(self) -> int:
        """Global steps that this peer has taken, or fetched the state of."""
        return self._replica.step

    @property
    def view(self) -> tuple[PeerId, ...]:
        """The members at present."""
        return self.secure.membership.members if self.secure is not None else ()

    @property
    def has_a_say(self) -> bool:
        """Whether the others count on this peer in the present step."""
        return self.secure is not None and self.secure.is_member and not self._is_finished()

    def close(self, error: BaseException) -> None:
        """Let the trainer go; its next boundary raises `error`."""
        self._port.close(error)

    async def see_off(self) -> None:
        """Before this peer leaves: say what the others wait for. No other needs its data, since every member keeps the
        aggregates.
        """
        if self.secure is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.stays_s):
                    await self.secure.see_off()

    async def run(self, step: int = 0) -> None:
        """Live until cancelled; `step` is where the local state stands.

        After the run's last step the trainer is let go with `RunFinishedError`, but the peer goes on serving its
        state to others. Whatever is raised here also lets the trainer go, by a `ClosedError` if it is no error of
        minga's own.
        """
        publisher = asyncio.get_running_loop().create_task(self._publisher.run())
        try:
            await self._begin(step)
            is_settled = False
            while not is_settled:
                if self._is_finished():
                    is_settled = await self._settle()
                elif self.secure is None:
                    await self._enter()
                else:
                    await self._take_step(self.secure)
            await self._finish()
            await asyncio.Event().wait()
        except Exception as error:
            self._port.close(closing(error))
            self.ready.set()
            raise
        finally:
            publisher.cancel()

    # ---- inner workings

    @property
    def _batch_size(self) -> int:
        return len(self.view) * self._port.unit

    async def _begin(self, step: int) -> None:
        """Find out who the founders are; to be one of them at the first step is to be a member from the start."""
        self.founding.step = step  # another founder, which lost its files, may ask
        waiting = asyncio.get_running_loop().create_task(self._wait_as_founder())
        try:
            beginning = await self._find_founders(step)
        finally:
            waiting.cancel()
        lineage = Lineage.founded(beginning.genesis.id)

        def found() -> None:
            self._replica.lineage = lineage

        await self._port.request("founded", found)
        self.swarm_view.lineage = lineage
        self._known = self._founders = frozenset(map(PeerId, beginning.genesis.founders))
        if self._node.peer_id in self._known and not beginning.has_begun and not step:
            standing = ProtocolState.first(self._node.run_id, self._known)
            self.secure = SecureMember(self._setup, standing)
            self._take_part()

    async def _find_founders(self, step: int) -> Bootstrap:
        """Wait until the run is founded: by this peer, too, if it is at the first `step`."""
        if step or self.founding.genesis is not None:
            return await self.founding.find()
        loop = asyncio.get_running_loop()
        first = await loop.run_in_executor(
            None, build_manifest, await self._port.request("capture", self._replica.capture)
        )
        self._states.first = first
        try:
            async with racing((self.founding.find(first.digest), self._compare_first(first.digest))) as ends:
                return await next(ends)
        finally:
            self._states.first = None

    async def _compare_first(self, first: str) -> NoReturn:
        """Tell the program once for each other state with which the run may be founded how it differs from the `first`
        one here. Raises `UnfitError` if the organiser's peer trains something else.
        """
        compared = set[str]()
        while True:
            await asyncio.sleep(COMPARE_PERIOD_S)
            other = self.founding.other_first(first)
            if other is None or other[1] in compared:
                continue
            peer, state = other
            if len(compared) >= MOST_COMPARED and peer != self.founding.run.organiser:
                continue
            what = "its parameters have other values. Begin with equal ones on all peers, as recipes do"
            try:
                manifest = await fetch_manifest(self._node, peer, Description(0, state))
                await self._port.accept(partial(self._replica.check, manifest))
            except ConfigurationError as error:
                if peer == self.founding.run.organiser:
                    raise
                what = str(error)
            except RemoteError:
                continue  # it may have left
            compared.add(state)
            why = f"peer {peer[:10]} would begin the run with another state than this program: {what}"
            self._node.events.emit(StateAwaited(why=why))
            logger.warning("waiting: %s. Nothing is trained meanwhile", why)

    async def _enter(self) -> None:
        """Adopt the members' state as a newcomer does, and try again if that fails."""
        self._publisher.set_status("syncing")
        newcomer = Joiner(self._setup, self._known)
        began_s = asyncio.get_running_loop().time()
        try:
            self.secure = await newcomer.enter()
        except BannedError:
            raise
        except RemoteError as error:
            self._attempts += 1
            is_normal = isinstance(error, OvertakenError) and self._attempts < PATIENT_ATTEMPTS
            told = SyncOvertaken if is_normal else SyncFailed
            self._node.events.emit(told(step=self.step, why=error.message))
            await asyncio.sleep(self._backoff.next_s())
            return
        self._is_vouched_for = newcomer.is_vouched_for
        seconds = asyncio.get_running_loop().time() - began_s
        self._node.events.emit(SyncFinished(step=self.step, seconds=seconds))
        self._take_part()

    def _take_part(self) -> None:
        self._publisher.set_status("training")
        self.ready.set()

    async def _wait_as_founder(self) -> None:
        """Until there are enough to begin, the program that holds this peer has all there is."""
        await self.founding.is_first.wait()
        self._take_part()

    async def _take_step(self, secure: SecureMember) -> None:
        try:
            await secure.take_step()
        except BannedError:
            raise
        except RemoteError as error:  # it was away for too long, or most are somewhere else
            self._node.events.emit(MemberOutOfSync(step=self.step, why=error.message))
            self.secure = None
            self._divergences += isinstance(error, DivergedError)
            if self._divergences >= MAX_DIVERGENCES:
                raise ConfigurationError(
                    f"{self._divergences} times in a row this peer came to another state than the members by the same "
                    "step: it computes in another way, so take an optimizer of minga.optim, or look for another kind "
                    "of device, number of threads or version of torch than theirs"
                ) from error
            self._attempts += 1
            if self._attempts >= PATIENT_ATTEMPTS:
                why = f"{self._attempts} times in a row the members had gone on when it was here; {error.message}"
                self._node.events.emit(SyncFailed(step=self.step, why=why))
            await asyncio.sleep(self._backoff.next_s())
            return
        self._attempts, self._divergences = 0, 0
        self._backoff.overcome()
        if self._is_vouched_for:
            barred = {peer for peer in secure.membership.bans if secure.membership.is_barred(peer, self.step)}
            self._known = (self._founders | {*secure.membership.members}) - barred
        self.founding.step = self.step
        samples = self._port.unit if secure.is_member else 0
        self._node.events.emit(
            StepApplied(
                step=self.step,
                samples=samples,
                members=len(self.view),
                batch=self._batch_size,
                held_s=round(self._port.held_s(), 6),
            )
        )
        self.on_step_ended.tell()
        if self.step % self._spec.state.digest_every == 0:
            self._board.put(StateInfo(self.step, self._work.state_digest))

    async def _settle(self) -> bool:
        """Whether this peer may end with the state that it has. If that is not the one of most members it takes theirs,
        and says so if it cannot.
        """
        if self.secure is None:
            return True
        try:
            if await self.secure.settle(SETTLES_S):
                self._node.events.emit(MemberDiverged(step=self.step))
            return True
        except RemoteError as error:
            why = error.message
        self._node.events.emit(MemberOutOfSync(step=self.step, why=why))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLES_S):
                await self._enter_anew()
                return False
        self._node.events.emit(SyncFailed(step=self.step, why=f"the run is over, and {why}"))
        logger.warning(
            "the run ended at step %d, but %s, and no state that most have could be had: what the model is here may be "
            "another than that of the others, so compare it with theirs",
            self.step,
            why,
        )
        return True

    async def _enter_anew(self) -> None:
        self.secure = None
        while self.secure is None:
            await self._enter()

    async def _finish(self) -> None:
        self._node.events.emit(RunFinished(step=self.step))
        self._publisher.set_status("finished")
        if self.on_finished is not None:  # the trainer leaves, and could not be asked for the state later
            self.on_finished(await self._port.request("capture", self._replica.capture))
        await see_others_off(self.swarm_view, self._company(), lambda _, progress: progress.status != "finished")
        self._port.close(RunFinishedError(f"the run is complete after {counted(self.step, 'step')}"))

    def _company(self) -> set[PeerId]:
        """Who may need this peer at the end: members, candidates, and who was removed, but not for a lie."""
        if self.secure is None:
            return set()
        membership = self.secure.membership
        suspended = {peer for peer, ban in membership.bans.items() if ban.until is not None}
        return {*membership.members, *membership.candidates, *membership.former, *suspended}

    def _is_finished(self) -> bool:
        last = self._spec.training.stop_after_steps
        return last is not None and self.step >= last
