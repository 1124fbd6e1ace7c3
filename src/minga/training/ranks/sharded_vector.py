"""The vector that peers average, of a model that is sharded over the ranks of this peer.

Its order is that of the unsharded model, so peers of both kinds average with each other. The whole vector exists at
rank 0 only, in CPU memory; other ranks hold their shards, and vectors of no elements stand for it there.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

import torch

from minga.core.spec.sections import AveragingSection
from minga.optim.shards import local
from minga.training.ranks.process_group import ProcessGroup
from minga.training.ranks.shard_map import Placed, ShardMap
from minga.training.ranks.shard_stream import ShardStream
from minga.training.replica.buffers import SharedBuffers
from minga.training.replica.flat_vector import ParameterVector, all_finite

ITEM_BYTES = 4
"""Bytes of an element of the vector, float32."""


class ShardedVector(ParameterVector):
    """All methods that read or change numbers are collective, but `new` and `is_finite`."""

    def __init__(
        self,
        ranks: ProcessGroup,
        stream: ShardStream,
        optimizer: torch.optim.Optimizer,
        buffers: SharedBuffers,
        averaging: AveragingSection,
        model: torch.nn.Module | None,
    ) -> None:
        self._ranks, self._stream = ranks, stream
        super().__init__(optimizer, buffers, averaging.codec, averaging.download_codec, model=model)
        starts = accumulate((p.numel() * ITEM_BYTES for p in self._parameters), initial=0)
        placed = [
            Placed(start, p, ITEM_BYTES) for (start, _), p in zip(pairwise(starts), self._parameters, strict=True)
        ]
        self._map = ShardMap(placed, stream.shards, self.parameters_numel * ITEM_BYTES)
        self._held: list[torch.Tensor] | None = None
        self._tail = torch.zeros(self.numel - self.parameters_numel)
        """What follows the parameters in the vector, of the micro-batch that is held: buffers and presence."""

    def new(self, numel: int | None = None) -> torch.Tensor:
        """A zeroed float32 vector in CPU memory; of no elements in ranks other than 0."""
        return super().new(numel if self._ranks.leads else 0)

    @torch.no_grad()
    def is_finite(self) -> bool:
        """Whether the present gradients of this rank and its buffers' movements are; broken buffers go back."""
        gradients = [local(p.grad) for p in self._parameters if p.grad is not None]
        if all_finite([*gradients, *self._buffers.movements()]):
            return True
        self._buffers.undo_broken()
        return False

    @torch.no_grad()
    def hold(self, share: float) -> None:
        """Keep the present gradients for `accumulate`, whatever the program does with them; and the mean of the
        movements of buffers over the ranks, of which this one counts by its `share`, and which gradients there are.
        """
        self._held = [_gradient_here(parameter) for parameter in self._parameters]
        present = self._presence([parameter.grad is not None for parameter in self._parameters])
        torch.cat([*self._moved(), present], out=self._tail)
        self._tail.mul_(share)
        self._ranks.sum_at_leader(self._tail)

    def let_go(self) -> None:
        """Forget what `hold` kept."""
        self._held = None

    @torch.no_grad()
    def accumulate(self, vector: torch.Tensor, weight: float) -> bool:
        """Add `weight` times what `hold` kept in all ranks to rank 0's `vector`."""
        held, self._held = self._held or [], None
        for start, piece in self._stream.gather(self._map, held, torch.float32):
            values = piece.view(torch.float32)
            vector[start // ITEM_BYTES :][: values.numel()].add_(values, alpha=weight)
        if self._ranks.leads:
            vector[self.parameters_numel :].add_(self._tail, alpha=weight)
        return True

    @torch.no_grad()
    def load(self, vector: torch.Tensor) -> None:
        """Set the gradients of all ranks from rank 0's vector of means, and move the averaged buffers by theirs."""
        self.load_gradients(vector)
        self._advance_buffers(vector)

    @torch.no_grad()
    def load_gradients(self, vector: torch.Tensor) -> None:
        """Set the gradients of all ranks from rank 0's vector."""
        gradients = []
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            gradients.append(parameter.grad)
        self._scatter(gradients, vector)
        told = torch.zeros(len(gradients), dtype=torch.uint8)
        if self._ranks.leads:
            told.copy_(torch.tensor(self.has_gradient(vector)))
        self._ranks.share(told)
        for parameter, has_gradient in zip(self._parameters, told.tolist(), strict=True):
            if not has_gradient:
                parameter.grad = None

    @torch.no_grad()
    def read_values(self) -> torch.Tensor:
        """At rank 0 the parameters of all ranks, and the movements of its own averaged buffers."""
        values = self.new()
        parts = [local(parameter).reshape(-1) for parameter in self._parameters]
        for start, piece in self._stream.gather(self._map, parts, torch.float32):
            numbers = piece.view(torch.float32)
            values[start // ITEM_BYTES :][: numbers.numel()].copy_(numbers)
        if self._ranks.leads and self._buffers.averaged:
            movements = torch.cat(self._moved())
            values[self.parameters_numel :][: movements.numel()].copy_(movements)
        return values

    @torch.no_grad()
    def adopt(self, vector: torch.Tensor) -> None:
        """Set the parameters of all ranks from such a vector, and move the averaged buffers by their means."""
        self.write_values(vector)
        self._advance_buffers(vector)

    @torch.no_grad()
    def write_values(self, vector: torch.Tensor) -> None:
        """Set the parameters of all ranks from such a vector."""
        self._scatter(self._parameters, vector)

    def _scatter(self, tensors: list[torch.Tensor], vector: torch.Tensor) -> None:
        parts = [local(tensor).view(-1) for tensor in tensors]
        raw = vector[: self.parameters_numel].view(torch.uint8)
        self._stream.scatter(self._map, parts, lambda start, stop: raw[start:stop], torch.float32)

    def _moved(self) -> list[torch.Tensor]:
        return [movement.reshape(-1).cpu() for movement in self._buffers.movements()]

    def _advance_buffers(self, vector: torch.Tensor) -> None:
        sizes = [buffer.numel() for buffer in self._buffers.averaged]
        if not sizes:
            self._buffers.advance([])
            return
        start, stop = self.parameters_numel, self.parameters_numel + sum(sizes)
        means = vector[start:stop].clone() if self._ranks.leads else torch.empty(stop - start)
        self._ranks.share(means)
        self._buffers.advance(list(torch.split(means, sizes)))


def _gradient_here(parameter: torch.Tensor) -> torch.Tensor:
    """The flat shard of the gradient in this rank; zeros if there is none."""
    if parameter.grad is None:
        return torch.zeros((), dtype=parameter.dtype).expand(local(parameter).numel())
    return local(parameter.grad).reshape(-1)
