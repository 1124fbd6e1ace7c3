"""A few peers in one process that train a tiny model by a run spec: real numbers, and rounds without a network."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.residual import ContributionFate, Encoder, RoundVectors
from minga.averaging.codecs.seeds import RoundSeeds
from minga.averaging.codecs.tensor_bytes import as_bytes
from minga.averaging.strategy_choice import StrategyChoice
from minga.core.spec.run_spec import RunSpec
from minga.training.replica.replica import Replica

SIZE = 1056
"""So that the weights are more than one block of any codec."""
SAMPLES = 4
CHUNK_BYTES = 8192
ROUND_ID = "round"


class CombinedPeer:
    """One peer: a linear model of 1056 by 4 numbers or another `model`, and what the run spec says lies around it."""

    def __init__(self, spec: RunSpec, number: int, model: torch.nn.Module | None = None) -> None:
        torch.manual_seed(1)
        self.number, self.model = number, torch.nn.Linear(SIZE, 4) if model is None else model
        choice = StrategyChoice.of(spec)
        self.facts = choice.facts
        self.replica = Replica(spec, torch.optim.SGD(self.model.parameters(), lr=0.01), model=self.model)
        self.strategy = choice.kind(threading.Condition(), unit=SAMPLES, settings=choice.settings)
        self.strategy.begin(self.replica)
        keeps = self.facts.keeps_uncounted
        self.vectors = RoundVectors(self.replica.layout_of, torch.zeros, keeps_uncounted=keeps)
        self._noise = torch.Generator().manual_seed(number)

    def compute(self) -> None:
        """Two micro-batches."""
        for _ in range(2):
            inputs = torch.randn(SAMPLES, SIZE, generator=self._noise)
            loss = (self.model(inputs) - inputs[:, :4]).square().mean()
            loss.backward()
            self.strategy.note_loss(loss.item())
            assert self.strategy.micro_batch(SAMPLES)
            self.strategy.count(SAMPLES)
            self.replica.zero_grad()

    def seal(self, step: int) -> Encoder:
        """What it gives to the round of `step`; where rounds run beside computing, it goes on meanwhile."""
        vector, samples = self.strategy.contribution()
        values = self.replica.project(vector, samples, step, ROUND_ID)
        if self.facts.max_in_flight:
            self.compute()
        assert values is not None
        weight = samples if self.facts.weights == "samples" else 1
        seeds = RoundSeeds(self.replica.layout_of(step).fingerprint, step, str(self.number))
        residual = self.vectors.residual(step)
        return Encoder(values, weight, seeds=seeds) if residual is None else residual.seal(values, weight, step, seeds)

    def absorb(self, mean: torch.Tensor, step: int, contributors: int, *, gave: bool) -> None:
        """Take up the mean of the round of `step`."""
        whole = self.replica.expand(mean, step, counted_in=ROUND_ID if gave else None)
        self.strategy.note_round(contributors, 2 * SAMPLES * contributors)
        fate = ContributionFate.COUNTED if gave else ContributionFate.ABSENT
        self.strategy.absorb(step + 1, whole, fate)

    def loss(self) -> float:
        """Of fresh data, the same for all peers."""
        inputs = torch.randn(256, SIZE, generator=torch.Generator().manual_seed(99))
        with torch.no_grad():
            return float((self.model(inputs) - inputs[:, :4]).square().mean())


def take_step(peers: Sequence[CombinedPeer]) -> None:
    """Compute, reduce and absorb, as the round of the next step does; the contributions are encoded and decoded."""
    step, layout = peers[0].replica.step, peers[0].replica.layout_of(peers[0].replica.step)
    for peer in peers:
        peer.compute()
        peer.strategy.close()
        assert peer.replica.layout_of(step) == layout
    givers = peers[:1] if peers[0].facts.contributors == "best" else peers
    mean = _reduce(layout, step, [peer.seal(step) for peer in givers])
    for peer in peers:
        peer.absorb(mean.clone(), step, len(givers), gave=peer in givers)


def _reduce(layout: VectorLayout, step: int, encoders: Sequence[Encoder]) -> torch.Tensor:
    """The mean, as all decode it."""
    mean, chunks = torch.zeros(layout.total), layout.chunks(0, layout.total, CHUNK_BYTES)
    weight, seeds = sum(encoder.weight for encoder in encoders), RoundSeeds(layout.fingerprint, step)
    for chunk in chunks:
        total, room = torch.zeros(chunk.numel), torch.empty(chunk.upload_bytes, dtype=torch.uint8)
        for encoder in encoders:
            chunk.codecs.upload.decode_add(encoder.encode(chunk, as_bytes(room)), total, encoder.weight)
        encoded, codec = torch.empty(chunk.download_bytes, dtype=torch.uint8), chunk.codecs.download
        size = codec.encode(total / weight, as_bytes(encoded), seed=seeds.download(chunk))
        codec.decode(as_bytes(encoded)[:size], mean[chunk.start : chunk.stop])
    for encoder in encoders:
        encoder.settle(((chunk, True) for chunk in chunks), mean)
    return mean
