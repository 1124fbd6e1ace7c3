"""What every pair of codecs must do whose uploads or means leave anything out, as checks to be run against a pair.

    @pytest.mark.parametrize("check", PAIR_CHECKS)
    def test_my_pair(check):
        check(CodecPair(MyUpload(), MyDownload()))

Each check plays rounds of three peers, one of which reduces, and raises `Violation` with what failed. All data come
from fixed seeds. What only the all-reduce can get wrong, such as who is told what after a death, is not checked here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import torch

from minga.averaging.codecs.interface import CodecPair
from minga.averaging.codecs.layout import Chunk
from minga.averaging.codecs.residual import Encoder, Residual
from minga.averaging.compressors.sparse_codec import FLOAT16_MAX
from minga.testing.arguments import require_instance
from minga.testing.violation import require

PEERS, ROUNDS = 3, 60
MOST_LOST_BY_RELAY: Final = 0.1
"""Share of the squared norm."""
WEIGHTS: Final = (1, 7, 1000, 1_000_000)


class _Mean(NamedTuple):
    """What all peers decode, what of each peer's chunk is in it, and the mean before it was encoded."""

    mean: torch.Tensor
    shares: dict[int, torch.Tensor]
    exact: torch.Tensor


class _Swarm:
    """Peers with residuals in rounds of one chunk; the first of those that are counted reduces."""

    def __init__(self, pair: CodecPair, *, seed: int, dtype: torch.dtype = torch.float32) -> None:
        numel = pair.upload.block_elements + pair.download.block_elements // 8 + 3
        sizes = (codec.max_encoded_bytes(numel) for codec in (pair.upload, pair.download))
        self.pair, self.chunk = pair, Chunk(0, 0, numel, pair, *sizes)
        self.chance, self._generator = random.Random(seed), torch.Generator().manual_seed(seed)
        self.residuals = [Residual(numel) for _ in range(PEERS)]
        for residual in self.residuals:
            residual.mass = residual.mass.to(dtype)

    def vector(self) -> torch.Tensor:
        """The gradient of a peer: normal values of which each has a size of its own, over three decades."""
        sizes = 10.0 ** (3 * torch.rand(self.chunk.numel, generator=self._generator) - 2)
        return sizes * torch.randn(self.chunk.numel, generator=self._generator)

    def seal(self, step: int) -> tuple[list[torch.Tensor], list[Encoder]]:
        """What each peer brings, and its contribution."""
        vectors = [self.vector() for _ in range(PEERS)]
        weights = [self.chance.choice(WEIGHTS) for _ in range(PEERS)]
        return vectors, [
            residual.seal(vector, weight, step)
            for residual, vector, weight in zip(self.residuals, vectors, weights, strict=True)
        ]

    def encoded(self, encoder: Encoder) -> bytes:
        """What a peer sends."""
        return bytes(encoder.encode(self.chunk, memoryview(bytearray(self.chunk.upload_bytes))))

    def decoded(self, encoded: bytes) -> torch.Tensor:
        """What the member that reduces reads from it."""
        values = torch.empty(self.chunk.numel)
        self.pair.upload.decode(encoded, values)
        return values

    def reduce(self, encoders: Sequence[Encoder], counted: Sequence[int]) -> _Mean:
        """A round, as the all-reduce has it."""
        first, *others = counted
        shares = {first: encoders[first].own_share(self.chunk)}
        total = shares[first] * float(encoders[first].weight)
        for peer in others:
            encoded = self.encoded(encoders[peer])
            self.pair.upload.decode_add(encoded, total, float(encoders[peer].weight))
            shares[peer] = self.decoded(encoded)
        exact = total / sum(encoders[peer].weight for peer in counted) if others else shares[first].clone()
        room, mean = bytearray(self.chunk.download_bytes), torch.empty(self.chunk.numel)
        self.pair.download.decode(room[: self.pair.download.encode(exact, room)], mean)
        return _Mean(mean, shares, exact)

    def told(self, encoders: Sequence[Encoder], counted: Sequence[int]) -> list[list[tuple[Chunk, bool]]]:
        """What each peer is told of its chunk; the one that reduces knows whether it encoded its own."""
        encoders[counted[0]].summed = set() if self.pair.encodes_own else {self.chunk.start}
        return [[(self.chunk, peer in counted)] for peer in range(PEERS)]


def _taken(pair: CodecPair, outcome: _Mean, peer: int) -> torch.Tensor:
    """What the mean took up of a peer's chunk."""
    share = outcome.shares[peer].double()
    return share * (outcome.mean != 0.0) if pair.download.returns else share


def _check_mass(pair: CodecPair, dtype: torch.dtype, most_lost: float) -> None:
    swarm = _Swarm(pair, seed=5, dtype=dtype)
    brought, applied = torch.zeros(2, swarm.chunk.numel, dtype=torch.float64)
    for step in range(ROUNDS):
        vectors, encoders = swarm.seal(step)
        counted = swarm.chance.sample(range(PEERS), swarm.chance.choice([1, 2, PEERS]))
        outcome, told = swarm.reduce(encoders, counted), swarm.told(encoders, counted)
        ending = swarm.chance.choice(["result", "result", "nothing", "adopted"])
        if ending == "adopted":  # the round has a result, of which peers hear in another one, with other vectors
            for encoder, each in zip(encoders, told, strict=True):
                encoder.set_aside("earlier", each)
        if ending != "result":
            for encoder in encoders:
                encoder.take_back()
        if ending == "nothing":
            continue
        weights = [encoder.weight for encoder in encoders]
        if ending == "adopted":
            vectors, encoders = swarm.seal(step)
            for peer, encoder in enumerate(encoders):
                encoder.settle_adopted("earlier", outcome.mean, counted=peer in counted)
        else:
            for encoder, each in zip(encoders, told, strict=True):
                encoder.settle(each, outcome.mean)
        taken = sum(weights[peer] * _taken(pair, outcome, peer) for peer in counted)
        applied += taken
        brought += sum(encoder.weight * vector.double() for encoder, vector in zip(encoders, vectors, strict=True))
        _check_applied(pair, outcome, torch.as_tensor(taken), sum(weights[peer] for peer in counted))
    left = sum(residual.mass.double() for residual in swarm.residuals)
    lost = float((brought - applied - left).norm() / brought.norm())
    require(lost <= most_lost, pair, f"{lost:.1e} of what was brought was neither applied nor kept, as {dtype}")


def _check_applied(pair: CodecPair, outcome: _Mean, taken: torch.Tensor, weight: int) -> None:
    """The mean is what it took up, but for the rounding of sums and of its codec."""
    wanted = taken / weight
    sizes = torch.stack([share.double().abs() for share in outcome.shares.values()]).amax(0)
    kept = outcome.mean != 0.0 if pair.download.returns else torch.ones_like(outcome.mean, dtype=torch.bool)
    slack = pair.download.max_error(outcome.exact)
    if pair.download.is_sparse:  # then that is all of what is not sent; float16 is off by so much
        slack = (2.0**-11 * wanted.abs() + 2.0**-25).maximum(wanted.abs() - FLOAT16_MAX)
    off = (outcome.mean.double() - wanted).abs() > slack + 2.0**-20 * sizes
    require(not bool((off & kept).any()), pair, "the mean is not what was counted of the peers")


def check_mass(pair: CodecPair) -> None:
    """What peers bring is applied or kept, in 60 rounds with weights from 1 to 1 000 000 in which contributions are
    counted, not counted, taken back, counted by a result that is adopted later, and returned. It is lost by rounding
    alone: up to 1e-5 of it with residuals in float32, and 1e-12 with residuals in float64, unless the member that
    reduces counts its own part whole, as float32.
    """
    _check_mass(pair, torch.float32, 1e-5)
    _check_mass(pair, torch.float64, 1e-12 if pair.encodes_own else 1e-6)


def check_repairs(pair: CodecPair) -> None:
    """A contribution has the same bytes however often they are made, also after a round that came to nothing."""
    swarm = _Swarm(pair, seed=6)
    for residual in swarm.residuals:
        residual.mass.copy_(swarm.vector())
    vectors, encoders = swarm.seal(0)
    first = [swarm.encoded(encoder) for encoder in encoders]
    swarm.reduce(encoders, range(PEERS))
    require([swarm.encoded(encoder) for encoder in encoders] == first, pair, "a repair sends other bytes")
    weights = [encoder.weight for encoder in encoders]
    for encoder in encoders:
        encoder.take_back()
    again = [
        residual.seal(vector, weight, 0)
        for residual, vector, weight in zip(swarm.residuals, vectors, weights, strict=True)
    ]
    require([swarm.encoded(encoder) for encoder in again] == first, pair, "a second attempt sends other bytes")


def check_restart(pair: CodecPair) -> None:
    """A peer that goes on from its own checkpoint sends what it would have sent; without one it begins at 0."""
    swarm = _Swarm(pair, seed=7)
    _, encoders = swarm.seal(0)
    outcome = swarm.reduce(encoders, range(PEERS))
    for encoder, each in zip(encoders, swarm.told(encoders, range(PEERS)), strict=True):
        encoder.settle(each, outcome.mean)
    vector = swarm.vector()
    for residual in swarm.residuals:
        kept = residual.kept(1)
        again, fresh = Residual(swarm.chunk.numel), Residual(swarm.chunk.numel)
        require(kept is not None and not fresh.mass.any(), pair, "a residual cannot be kept")
        if kept is not None:
            again.restore(kept)
        sent = [swarm.encoded(each.seal(vector, 3, 1)) for each in (residual, again)]
        require(sent[0] == sent[1], pair, "after a restart a peer sends other bytes")


def check_returns(pair: CodecPair) -> None:
    """A mean that returns keeps the largest of each block: what it leaves out is no larger. What it kept and what went
    back is, together, all that was sent.
    """
    if not pair.download.returns:
        return
    swarm, block = _Swarm(pair, seed=8), pair.download.block_elements
    vectors, encoders = swarm.seal(0)
    outcome, told = swarm.reduce(encoders, range(PEERS)), swarm.told(encoders, range(PEERS))
    for mean, exact in zip(torch.split(outcome.mean, block), torch.split(outcome.exact, block), strict=True):
        kept, size = mean != 0.0, exact.abs()
        least = float(size[kept].min()) if bool(kept.any()) else float("inf")
        largest = float(size[~kept].max()) if not bool(kept.all()) else 0.0
        require(largest <= least or largest < 2.0**-25, pair, "it keeps smaller elements than it returns")
    for peer, (encoder, each) in enumerate(zip(encoders, told, strict=True)):
        encoder.settle(each, outcome.mean)
        unsent = vectors[peer].double() - outcome.shares[peer].double()
        returned = swarm.residuals[peer].mass.double() / encoder.weight - unsent
        wanted = outcome.shares[peer].double() * (outcome.mean == 0.0)
        close = (returned - wanted).abs() <= 2.0**-20 * vectors[peer].double().abs()
        require(bool(close.all()), pair, "what was kept and what was returned is not what was sent")


def check_alone(pair: CodecPair) -> None:
    """The mean of one peer is what the codecs make of its vector, and the residual holds all the rest."""
    swarm = _Swarm(pair, seed=9)
    vectors, encoders = swarm.seal(0)
    mean = swarm.reduce(encoders, [0]).mean
    sent = swarm.decoded(swarm.encoded(encoders[0])) if pair.encodes_own else vectors[0]
    room, wanted = bytearray(swarm.chunk.download_bytes), torch.empty(swarm.chunk.numel)
    pair.download.decode(room[: pair.download.encode(sent, room)], wanted)
    require(torch.equal(mean, wanted), pair, "the mean of one peer is not what its codecs make of its vector")


def check_relay(pair: CodecPair) -> None:
    """The mean of a site travels on to the root by a codec that leaves little out: a relay has no residual, and what it
    cut off would be in no mean, so that no sender would take it back.
    """
    swarm, relay = _Swarm(pair, seed=10), pair.relay
    require(not relay.needs_residual and not relay.returns, pair, f"a relay would cut off the rest by {relay!r}")
    exact = swarm.reduce(swarm.seal(0)[1], range(PEERS)).exact
    room, passed = bytearray(relay.max_encoded_bytes(exact.numel())), torch.empty_like(exact)
    relay.decode(room[: relay.encode(exact, room)], passed)
    lost = float((passed - exact).double().square().sum() / exact.double().square().sum())
    require(lost < MOST_LOST_BY_RELAY, pair, f"a relay loses {lost:.0%} of a mean by {relay!r}")


PAIR_CHECKS: Final[tuple[Callable[[CodecPair], None], ...]] = (
    check_mass,
    check_repairs,
    check_restart,
    check_returns,
    check_alone,
    check_relay,
)
"""All checks, each taking the pair and raising `Violation` if it fails."""


def check_pair(pair: CodecPair) -> None:
    """Run every check in turn. Raises the first failure, and `TypeError` for what is no pair."""
    require_instance(pair, CodecPair, "check_pair(CodecPair(MyUpload(), MyDownload()))")
    for check in PAIR_CHECKS:
        check(pair)
