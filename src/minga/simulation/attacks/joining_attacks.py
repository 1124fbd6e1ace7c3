"""The attack lab, where newcomers come in: hostile candidates, and members who mislead newcomers."""

from __future__ import annotations

import msgspec
import torch

from minga.network.interface import PeerId
from minga.security.protocol.behaviour import MakeBehaviour, Seeds, TrainingBackend
from minga.security.protocol.statements import StateClaim
from minga.simulation.attacks.interface import Attack


class Machine:
    """What several identities of one attacker share: it can compute one gradient in each step."""

    def __init__(self) -> None:
        self.step = -1
        self.user = PeerId("")

    def is_free(self, step: int, peer: PeerId) -> bool:
        """Whether it computes for that identity: always for the same one, as long as that lives."""
        if step - self.step > 1:  # its last user is gone
            self.user = peer
        if peer == self.user:
            self.step = step
        return peer == self.user


class Sybil(Attack):
    """One of many identities with the machine of one, that come at the step at which the attack begins; those for which
    it does not compute commit to garbage.
    """

    who_comes = "attackers"

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine

    @classmethod
    def begin(cls, from_step: int) -> MakeBehaviour:  # noqa: ARG003
        """All share one machine."""
        machine = Machine()
        return lambda _: cls(machine)

    async def gradient(self, work: TrainingBackend, step: int, seeds: Seeds) -> torch.Tensor:
        """Right if the machine computes for this one, else something made up that costs nothing."""
        if self._machine.is_free(step, seeds.me):
            return await work.gradient(step, seeds.own)
        generator = torch.Generator().manual_seed(int.from_bytes(seeds.own[:7], "little"))
        return torch.randn(work.layout.total, generator=generator)


class WithholdingSybil(Sybil):
    """Lets nobody look into what it commits to."""

    def submits(self) -> bool:
        """Never."""
        return False


class PoisonedDonor(Attack):
    """Gives newcomers another state than that of the step they ask for."""

    who_comes = "newcomer"

    def gives(self, data: bytes) -> bytes:
        """All numbers of the state moved."""
        moved = torch.frombuffer(bytearray(data), dtype=torch.float32) + 1.0
        return moved.numpy().tobytes()


class LyingGuide(PoisonedDonor):
    """Tells newcomers that the members stand elsewhere, and gives them a state that fits."""

    def stands(self, place: StateClaim) -> StateClaim:
        """Where nobody is."""
        return msgspec.structs.replace(place, standing=bytes(32), state=bytes(32))
