"""What training offers to the protocol of secure steps: gradients that any member can compute again, and the same
state.

The parameters of a step are kept for as long as a member may ask about it, one vector for each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from minga.averaging.codecs.layout import VectorLayout
from minga.core.errors import ConfigurationError
from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.security.protocol.behaviour import KEPT_STEPS
from minga.training.bridge.assigned_port import AssignedPort, GradientTask
from minga.training.lineage import Lineage
from minga.training.replica.interface import ReplicaInterface
from minga.training.transfer.donors import Wanted
from minga.training.transfer.download import download


@loop_bound
class VerifiedBackend:
    """The `TrainingBackend` of a member whose model lies behind `port`; other members are reached by `node`.

    A large state that is fetched lies in the run's folder `directory`, if there is one, as do its verified chunks.
    """

    def __init__(
        self, node: Node, replica: ReplicaInterface, port: AssignedPort, directory: Path | None = None
    ) -> None:
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
        )
        founded = state.snapshot.of(Lineage.founded(self._replica.lineage.founding))  # the members' votes say the rest
        await self._port.request("restore", lambda: self._replica.restore(founded))
        self._past.clear()
