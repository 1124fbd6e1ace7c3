"""A few peers in one process that train a tiny model by a run spec: real numbers, and rounds without a network."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.residual import Encoder, Fate
from minga.averaging.codecs.round_vectors import RoundVectors
from minga.averaging.codecs.seeds import RoundSeeds
from minga.averaging.codecs.tensor_bytes import as_bytes
from minga.averaging.strategy_choice import STRATEGIES
from minga.core.spec.run_spec import RunSpec
from minga.training.replica.replica import Replica
from minga.training.strategy.interface import ContributionFate

SIZE = 1056
"""So that the weights are more than one block of any codec."""
SAMPLES = 4
CHUNK_BYTES = 8192


class CombinedPeer:
    """One peer: a linear model of 1056 by 4 numbers, and what the run spec says lies around it."""

    def __init__(self, spec: RunSpec, number: int) -> None:
        torch.manual_seed(1)
        self.model = torch.nn.Linear(SIZE, 4)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.replica = Replica(spec, optimizer, model=self.model)
        kind = STRATEGIES.get(spec.training.strategy)
        self.strategy = kind(threading.Condition(), unit=SAMPLES)
        self.strategy.begin(self.replica)
        self.vectors = RoundVectors(
            self.replica.layout_of, torch.zeros, keeps_uncounted=self.strategy.facts.keeps_uncounted
        )
        self._noise = torch.Generator().manual_seed(number)

    def compute(self, micro_batches: int = 2) -> None:
        """A few micro-batches, and the round is closed."""
        for _ in range(micro_batches):
            inputs = torch.randn(SAMPLES, SIZE, generator=self._noise)
            (self.model(inputs) - inputs[:, :4]).square().mean().backward()
            assert self.strategy.micro_batch(SAMPLES)
            self.strategy.count(SAMPLES)
            self.replica.zero_grad()
        self.strategy.close()

    def loss(self) -> float:
        """Of fresh data, the same for all peers."""
        inputs = torch.randn(256, SIZE, generator=torch.Generator().manual_seed(99))
        with torch.no_grad():
            return float((self.model(inputs) - inputs[:, :4]).square().mean())


def take_step(peers: Sequence[CombinedPeer]) -> None:
    """Compute, reduce and absorb, as the round of the next step does; the contributions are encoded and decoded."""
    step = peers[0].replica.step
    layout, encoders = peers[0].replica.layout_of(step), []
    for peer in peers:
        peer.compute()
        vector, samples = peer.strategy.contribution()
        values = peer.replica.project(vector, samples, step, "round")
        assert values is not None
        assert peer.replica.layout_of(step) == layout
        residual = peer.vectors.residual(step)
        seeds = RoundSeeds(layout.fingerprint, step, str(len(encoders)))
        encoders.append(
            Encoder(values, samples, seeds=seeds) if residual is None else residual.seal(values, samples, step, seeds)
        )
    mean = _reduce(layout, encoders)
    for peer in peers:
        whole = peer.replica.expand(mean.clone(), step, counted_in="round")
        peer.strategy.absorb(step + 1, whole, ContributionFate.COUNTED)


def _reduce(layout: VectorLayout, encoders: Sequence[Encoder]) -> torch.Tensor:
    mean, chunks = torch.zeros(layout.total), layout.chunks(0, layout.total, CHUNK_BYTES)
    weight = sum(encoder.weight for encoder in encoders)
    for chunk in chunks:
        total, room = torch.zeros(chunk.numel), torch.empty(chunk.upload_bytes, dtype=torch.uint8)
        for encoder in encoders:
            chunk.codecs.upload.decode_add(encoder.encode(chunk, as_bytes(room)), total, encoder.weight)
        encoded = torch.empty(chunk.download_bytes, dtype=torch.uint8)
        size = chunk.codecs.download.encode(total / weight, as_bytes(encoded))
        chunk.codecs.download.decode(as_bytes(encoded)[:size], mean[chunk.start : chunk.stop])
    for encoder in encoders:
        encoder.commit([(chunk, Fate.COUNTED) for chunk in chunks], mean)
    return mean
