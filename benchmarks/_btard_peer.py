"""One peer of `benchmarks.btard_cost`: averages its vector plainly or by secure steps, as it is told."""

from __future__ import annotations

import asyncio
import cProfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3

from benchmarks._allreduce_peer import AveragingPeer, vector_of
from benchmarks._entering import RUN_ID, enter, tell_address
from benchmarks._worker import Channel
from minga.averaging.codecs.layout import VectorLayout
from minga.identity.keys.keys import Identity
from minga.network.interface import PeerId
from minga.network.iroh.network import NetworkSettings
from minga.security.protocol.protocol_state import ProtocolState
from minga.security.step.member import MemberSetup, SecureMember
from minga.training.session import Session, SessionSettings


class FixedWork:
    """Work whose gradient is there from the start; `mean` is the last aggregate."""

    def __init__(self, vector: torch.Tensor) -> None:
        self.layout, self._vector = VectorLayout((vector.numel(),), "float32"), vector
        self.mean = torch.zeros_like(vector)
        self._step = 0

    async def gradient(self, step: int, seed: bytes) -> torch.Tensor:  # noqa: ARG002
        """See `TrainingBackend`."""
        return self._vector

    async def apply(self, step: int, mean: torch.Tensor) -> None:
        """See `TrainingBackend`."""
        self.mean, self._step = mean, step + 1

    async def digest(self) -> bytes:
        """See `TrainingBackend`."""
        return blake3(str(self._step).encode()).digest()

    async def adopt(self, step: int, digest: bytes, donors: Sequence[PeerId]) -> None:
        """See `TrainingBackend`; nobody comes late."""


class Peer:
    """What the commands of the coordinator act on."""

    def __init__(self, channel: Channel, session: Session, identity: Identity, settings: dict[str, Any]) -> None:
        self._channel, self._session, self._identity, self._settings = channel, session, identity, settings
        self._vector = torch.from_numpy(vector_of(1, settings["index"], settings["numel"]))
        self._plain = AveragingPeer(session, identity, self._vector, {**settings, "codec": "float32"})
        self._work = FixedWork(self._vector)
        self._member: SecureMember | None = None
        self._profile = cProfile.Profile(time.thread_time) if settings["profile"] else None

    async def meet(self, members: list[str]) -> None:
        """Be a member with these others, and connected with all of them."""
        standing = ProtocolState.first(RUN_ID, map(PeerId, members))
        self._member = SecureMember(MemberSetup(self._session.node, self._identity, self._work), standing)
        self._member._register.draw = dict  # type: ignore[method-assign]  # what validators compute is not measured
        await self._see_all()
        others = [PeerId(member) for member in members if member != self._session.peer_id]
        await asyncio.gather(*map(self._session.node.connection, others))
        self._channel.send(met=True)

    async def plain(self) -> None:
        """One ordinary round: the group is formed, and the all-reduce begins when told to."""
        await self._see_all()
        await self._plain.round(self._channel, None)

    async def _see_all(self) -> None:
        """Until the board shows all others at the step at which this peer is."""
        self._plain.publish()
        while len(self._plain.formation._swarm_view.at(self._plain.step)) < self._settings["peers"] - 1:
            await asyncio.sleep(0.01)

    async def secure(self) -> None:
        """One secure step."""
        if self._member is None:
            raise RuntimeError("it has to meet the others first")
        if self._profile is not None:
            self._profile.enable()
        await self._member.take_step()
        if self._profile is not None:
            self._profile.disable()
        self._channel.send(
            done_s=time.monotonic(), members=len(self._member.membership.members), digest=digest_of(self._work.mean)
        )

    def save_profile(self) -> None:
        """Write the profile of all secure steps, if there is one."""
        if self._profile is not None:
            self._profile.dump_stats(Path(self._settings["profile"]) / f"peer-{self._settings['index']}.prof")


def digest_of(vector: torch.Tensor) -> str:
    """Equal for equal vectors; of every thousandth element, so that it takes no time that others need."""
    return blake3(vector[::1000].contiguous().numpy().tobytes()).hexdigest()


def peer(channel: Channel, settings: dict[str, Any]) -> None:
    """The process of one peer."""
    torch.set_num_threads(1)
    asyncio.run(_peer(channel, settings))


async def _peer(channel: Channel, settings: dict[str, Any]) -> None:
    session, identity = await enter(settings["entries"], NetworkSettings(host="127.0.0.1"), SessionSettings())
    me = Peer(channel, session, identity, settings)
    tell_address(channel, session)
    while (command := await channel.receive_on_loop())["do"] != "exit":
        if command["do"] == "meet":
            await me.meet(command["members"])
        elif command["do"] == "plain":
            await me.plain()
        elif command["do"] == "secure":
            await me.secure()
    me.save_profile()
    await session.close()
