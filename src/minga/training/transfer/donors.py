"""Asking donors what state they have, and choosing one.

Donors are asked all at once. Each votes for the states that it holds ready; the state with most votes wins, then the
one of the higher standing (`minga.training.lineage`), then the organiser's, then that of the peer with the lowest
id. States that do not descend from the run's founding, or of a lower standing than is wanted, are left out. As soon as
more than half of all donors agree, the others get `GRACE_S` more to answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from blake3 import blake3

from minga.core.aio.ending import end
from minga.core.errors import ProtocolError, RemoteError, StateMismatchError, UnreachableError
from minga.core.events.training import StateDonorDropped
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.training.lineage import Lineage, Standing
from minga.training.state.manifest import Manifest
from minga.training.transfer.messages import (
    BOUNDARY_WAIT_S,
    DESCRIBE,
    MANIFEST,
    PAGE_BYTES,
    DescribeReply,
    DescribeRequest,
    Description,
    ManifestReply,
    ManifestRequest,
    timely,
)

DESCRIBE_TIMEOUT_S = BOUNDARY_WAIT_S + 15.0
"""Seconds for an answer: the donor's own wait, and time to dial, copy and hash."""

GRACE_S = 1.0
MAX_REASONS = 10


def drop_donor(node: Node, donor: PeerId, error: RemoteError) -> None:
    """Tell all who listen why a donor is not used any more; a lie counts as an offence."""
    lied = isinstance(error, StateMismatchError)
    if lied:
        node.offend(donor, str(error))
    node.events.emit(StateDonorDropped(peer=donor, reason=str(error), lied=lied))


class OvertakenError(UnreachableError):
    """No donor has the wanted state any more: all of them have taken further steps since."""


@dataclass(frozen=True)
class Wanted:
    """The state to fetch: that after `minimum_step` or later, and with this `digest`, if one is given.

    In a run whose lineage is known it descends from this `founding` and stands at `least` or higher; the `organiser`
    is the run's.
    """

    minimum_step: int = 0
    digest: str | None = None
    founding: str = ""
    least: Standing | None = None
    organiser: PeerId | None = None

    def suits(self, state: Description) -> bool:
        """Whether it is such a state."""
        lineage = state.lineage
        return (
            self.digest in (None, state.digest)
            and self.founding in ("", lineage.founding)
            and (self.least is None or lineage.standing(state.step, self.organiser) >= self.least)
        )


class Donors:
    """The donors that were asked: their states, which states lead, and why some donors are not used any more."""

    def __init__(self, node: Node, donors: Sequence[PeerId], wanted: Wanted) -> None:
        self.failed: dict[PeerId, RemoteError] = {}
        self._node, self._donors, self._wanted = node, list(dict.fromkeys(donors)), wanted
        self._votes: dict[Description, set[PeerId]] = {}
        self._reached: dict[PeerId, int] = {}
        """The newest step of which each donor has the state."""

    async def ask(self) -> None:
        """Ask all donors what they have of the step that is wanted or later ones."""
        least = self._wanted.minimum_step
        asking = {asyncio.ensure_future(_ask(self._node, donor, least)): donor for donor in self._donors}
        try:
            waiting = set(asking)
            while waiting:
                most = max(map(len, self._votes.values()), default=0)
                grace_s = GRACE_S if most * 2 > len(self._donors) else None
                answered, waiting = await asyncio.wait(waiting, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
                if not answered:
                    break
                for task in sorted(answered, key=lambda each: asking[each]):
                    self._count(asking[task], task)
        finally:
            await end(*asking)

    def leading(self) -> tuple[Description, list[PeerId]] | None:
        """The state that most of the donors not yet dropped have, and which these are; None if there is none.

        Of those of one standing that as many have that of the organiser counts, else that of the peer with the lowest
        id, as where states are compared: who gives way there is not to take a state that its other peers give up.
        """
        organiser = self._wanted.organiser
        supporters = {state: sorted(voters - self.failed.keys()) for state, voters in self._votes.items()}
        ranking = sorted(
            supporters,
            key=lambda state: (
                -len(supporters[state]),
                [-part for part in state.lineage.standing(state.step, organiser)[:4]],
                organiser not in supporters[state],
                supporters[state],
                state.digest,
            ),
        )
        return (ranking[0], supporters[ranking[0]]) if ranking and supporters[ranking[0]] else None

    def drop(self, donor: PeerId, error: RemoteError) -> None:
        """Do not use a donor any more, and say why."""
        self.failed[donor] = error
        drop_donor(self._node, donor, error)

    def nobody(self) -> UnreachableError:
        """The error that tells why the state cannot be had; an `OvertakenError` if it has become an old one."""
        reasons = [f"{donor[:10]}: {error.message}" for donor, error in sorted(self.failed.items())]
        reached = {donor: step for donor, step in sorted(self._reached.items()) if donor not in self.failed}
        reasons += [
            f"{donor[:10]}: has another state than the one wanted, of step {reached[donor]}" for donor in reached
        ]
        count, told = len(self._donors), "; ".join(reasons[:MAX_REASONS]) or "there was nobody to ask"
        kind = OvertakenError if reached and min(reached.values()) > self._wanted.minimum_step else UnreachableError
        return kind(f"none of {count} donors could serve the state ({told})", phase="state download")

    async def fetch_manifest(self) -> tuple[Manifest, Lineage, list[PeerId]]:
        """The manifest of the leading state, its lineage, and the peers that have that state.

        A donor that does not serve what it described is dropped, with its vote. Raises `UnreachableError` when no
        state is left.
        """
        while leading := self.leading():
            state, supporters = leading
            donor = supporters[0]
            try:
                return await fetch_manifest(self._node, donor, state), state.lineage, supporters
            except RemoteError as error:
                self.drop(donor, error)
        raise self.nobody()

    def _count(self, donor: PeerId, answer: asyncio.Task[DescribeReply]) -> None:
        try:
            states = answer.result().snapshots
        except RemoteError as error:
            self.drop(donor, error)
            return
        self._reached[donor] = max(state.step for state in states)
        for state in states:
            if self._wanted.suits(state):
                self._votes.setdefault(state, set()).add(donor)


async def _ask(node: Node, donor: PeerId, minimum_step: int) -> DescribeReply:
    request = DescribeRequest(minimum_step)
    reply = await node.call(donor, DESCRIBE, request, DescribeReply, timeout_s=DESCRIBE_TIMEOUT_S)
    if not reply.snapshots or any(state.step < minimum_step for state in reply.snapshots):
        error_text = f"offers no state or one before step {minimum_step}"
        node.offend(donor, error_text)
        raise ProtocolError(error_text, peer=donor)
    return reply


async def fetch_manifest(node: Node, donor: PeerId, state: Description) -> Manifest:
    """That of a `state` which `donor` described. Raises `RemoteError`."""
    receiving = _receive_manifest(node, donor, state.digest)
    return _checked(donor, state, await timely(receiving, donor, "sent no manifest"))


async def _receive_manifest(node: Node, donor: PeerId, digest: str) -> bytearray:
    async with node.open(donor, MANIFEST) as stream:
        await stream.send(ManifestRequest(digest))
        encoded = await stream.receive_pages((await stream.receive(ManifestReply)).size_bytes, PAGE_BYTES)
        await stream.finish()
    return encoded


def _checked(donor: PeerId, state: Description, encoded: bytearray) -> Manifest:
    """The decoded manifest. Raises `StateMismatchError` if it is not what the donor described."""
    if blake3(encoded).hexdigest() != state.digest:
        raise StateMismatchError("served a manifest that does not match its digest", peer=donor)
    try:
        manifest = Manifest.decode(encoded)
    except ValueError as error:
        raise StateMismatchError(f"offers a state that nobody can use: {error}", peer=donor) from error
    if manifest.step != state.step:
        raise StateMismatchError(f"calls a state of step {manifest.step} one of step {state.step}", peer=donor)
    return manifest
