"""The gradients of candidates: no member aggregates them, but a member that rechecks one can have a sample.

Theory of operation. What a candidate owes is the proof that it computed. So it cuts its gradient into pieces and
commits to the root of their Merkle tree; the next coin, which also says who validates, draws the few pieces that it has
to show. A sample is a small share of the gradient however large that is, so whoever has the line of a member can hand
it to all members while these compute, and nobody needs the memory of a whole gradient for it. Who leaves out a share s
of the work is found with a probability of 1 - (1 - s)^`SAMPLED` whenever a member looks, which happens many times in a
probation.

A piece counts by its path to the root; so it may come from anybody who has it, in particular from a validator who
accuses the candidate of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import torch

from minga.averaging.codecs.layout import VectorLayout
from minga.core.aio import racing
from minga.core.buffer_pool import Bytes
from minga.core.errors import ProtocolError, RejectedError, RemoteError
from minga.core.refusal_code import RefusalCode
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream
from minga.security.parts.equal_parts import EqualParts, MerkleTree, depth, digest_of, encoded, root_of
from minga.security.parts.transfer_limits import ServingLimit, receive_whole, transfer
from minga.security.protocol.statements import Digest, Peer, Step
from minga.security.randomness.coin import UniformIntegers, derive

SUBMISSION = "secure.submission"
SAMPLED: Final = 16
"""Pieces of a sample."""
MAX_PIECES: Final = 2048
PIECE_NUMEL: Final = 512
"""Elements of a piece, at least, unless the gradient is shorter."""
MAX_SERVED_EACH: Final = 4
"""Samples that one member is handed at once."""

Place = Annotated[int, msgspec.Meta(ge=0, lt=MAX_PIECES)]
Path = Annotated[tuple[Digest, ...], msgspec.Meta(max_length=depth(MAX_PIECES))]


class Request(msgspec.Struct, frozen=True):
    """Ask for pieces of the gradient that a candidate committed to in a step."""

    step: Step
    candidate: Peer
    places: Annotated[tuple[Place, ...], msgspec.Meta(max_length=SAMPLED)]


class PiecePaths(msgspec.Struct, frozen=True):
    """Those of the pieces that were asked for; the pieces follow, one after the other."""

    paths: Annotated[tuple[Path, ...], msgspec.Meta(max_length=SAMPLED)]


@dataclass(frozen=True)
class GradientPieces:
    """Pieces of a gradient with their paths, by place."""

    pieces: Mapping[int, tuple[Bytes, tuple[bytes, ...]]]

    def sample(self, places: Iterable[int]) -> GradientPieces:
        """Some of these. Raises `KeyError` if one is not there."""
        return GradientPieces({place: self.pieces[place] for place in places})

    def belongs_to(self, root: bytes, count: int) -> bool:
        """Whether these are pieces of the gradient with that root, of `count` pieces."""
        return all(
            root_of(digest_of(piece), place, count, path) == root for place, (piece, path) in self.pieces.items()
        )


class GradientCommitment:
    """A whole gradient, encoded in `pieces`, and the `tree` over them."""

    def __init__(self, pieces: Sequence[Bytes], tree: MerkleTree) -> None:
        self._pieces, self._tree = pieces, tree

    @property
    def root(self) -> bytes:
        """What a candidate commits to."""
        return self._tree.root

    def sample(self, places: Iterable[int]) -> GradientPieces:
        """Some pieces. Raises `IndexError` if there is none at one of the places."""
        return GradientPieces({place: (self._pieces[place], self._tree.path(place)) for place in places})


class GradientSamples:
    """Keeps gradients of `layout`, or samples of them, and hands samples to those who are members in the eyes of this
    peer.
    """

    def __init__(self, node: Node, layout: VectorLayout, is_member: Callable[[PeerId], bool]) -> None:
        self._node, self._is_member = node, is_member
        self._count = max(1, min(MAX_PIECES, layout.total // PIECE_NUMEL))
        self._division = EqualParts.equal(layout, self._count)
        self._piece_bytes = self._division.part_bytes
        self._kept: dict[tuple[int, PeerId], GradientCommitment | GradientPieces] = {}
        self._served = ServingLimit(MAX_SERVED_EACH)
        node.serve(SUBMISSION, self._serve)

    async def encode(self, gradient: torch.Tensor) -> GradientCommitment:
        """A gradient as its candidate would submit it. Raises `NonFiniteError`."""
        return GradientCommitment(*await asyncio.to_thread(encoded, self._division, gradient))

    def decode(self, sample: GradientPieces) -> torch.Tensor:
        """The numbers of a sample. Raises `InvalidEncodingError`."""
        return torch.cat([self._division.row(piece, place) for place, (piece, _) in sorted(sample.pieces.items())])

    def drawn(self, coin: bytes, candidate: PeerId) -> tuple[int, ...]:
        """The places of the pieces that a candidate has to show, by the `coin` of the step after its gradient."""
        integers = UniformIntegers(derive(coin, "sample of a candidate", candidate))
        return tuple(integers.sample(range(self._count), min(SAMPLED, self._count)))

    def keep(self, step: int, candidate: PeerId, submission: GradientCommitment | GradientPieces) -> None:
        """Hand it on to any member that asks."""
        self._kept[step, candidate] = submission

    def forget_before(self, step: int) -> None:
        """Drop what belongs to earlier steps."""
        for key in [key for key in self._kept if key[0] < step]:
            del self._kept[key]

    async def fetch(
        self, step: int, candidate: PeerId, root: bytes, places: Sequence[int], peers: Iterable[PeerId]
    ) -> GradientPieces | None:
        """Pieces of the gradient with that root from any of `peers` who has them, and kept here from then on."""
        sample = self._sample(step, candidate, places)
        if sample is not None and await asyncio.to_thread(sample.belongs_to, root, self._count):
            return sample
        wanted = Request(step, candidate, tuple(places))
        others = [peer for peer in peers if peer != self._node.peer_id]
        async with racing(self._ask(peer, wanted) for peer in others) as answers:
            for answer in answers:
                sample = await answer
                if sample is not None and await asyncio.to_thread(sample.belongs_to, root, self._count):
                    self.keep(step, candidate, sample)
                    return sample
        return None

    # ---- inner workings

    def _sample(self, step: int, candidate: PeerId, places: Iterable[int]) -> GradientPieces | None:
        """What is kept of it; None if a piece of it is not."""
        try:
            return self._kept[step, candidate].sample(places)
        except LookupError:
            return None

    async def _ask(self, peer: PeerId, wanted: Request) -> GradientPieces | None:
        sizes = [self._piece_bytes[place] for place in wanted.places]
        try:
            async with (
                self._node.open(peer, SUBMISSION, bulk=True) as stream,
                transfer(self._node, stream, sum(sizes)),
            ):
                await stream.send(wanted)
                shown = await stream.receive(PiecePaths)
                if len(shown.paths) != len(sizes):
                    raise ProtocolError("it shows other pieces than it was asked for", peer=peer, round=wanted.step)
                data = bytearray(sum(sizes))
                await receive_whole(stream, memoryview(data))
        except (RemoteError, TimeoutError):
            return None
        pieces, at = {}, 0
        for place, size, path in zip(wanted.places, sizes, shown.paths, strict=True):
            pieces[place] = bytes(data[at : at + size]), path
            at += size
        return GradientPieces(pieces)

    async def _serve(self, peer: PeerId, stream: MessageStream) -> None:
        wanted = await stream.receive(Request)
        if not self._is_member(peer):
            raise RejectedError("only members look into candidates", code=RefusalCode.MEMBER)
        sample = self._sample(wanted.step, PeerId(wanted.candidate), wanted.places)
        if sample is None:
            raise RejectedError("it is not here", code=RefusalCode.ABSENT)
        body = b"".join(piece for piece, _ in sample.pieces.values())
        async with self._served.serve(stream, len(body)):
            await stream.send(PiecePaths(tuple(path for _, path in sample.pieces.values())))
            await stream.send_bulk(body)
