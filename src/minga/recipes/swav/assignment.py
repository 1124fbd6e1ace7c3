"""Which prototypes the pictures of a micro-batch are assigned to: each prototype the same share of them.

Sinkhorn's iteration (Cuturi 2013, arXiv:1306.0895) as SwAV uses it (Caron et al. 2020, arXiv:2006.09882, section 3.1),
for scores S [n, K]:

    Q = exp(S / ε)
    repeat: divide the column of each prototype by its sum, then the row of each sample by its sum

computed with logarithms, in which no sum is 0, however far apart the scores are.
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def sinkhorn(scores: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Assignments float32 [n, K] of n samples: each row has the sum 1, and each column n/K, the nearer the more
    `iterations`. `scores` are finite, float [n, K].
    """
    logs = scores.float()
    logs = (logs - logs.max()) / epsilon
    for _ in range(iterations):
        logs = logs - torch.logsumexp(logs, dim=0, keepdim=True)
        logs = logs - torch.logsumexp(logs, dim=1, keepdim=True)
    return logs.exp()


class EmbeddingQueue:
    """The last embeddings of one crop, which are assigned together with a micro-batch so that shares are of more
    pictures. Scores are computed anew, since prototypes move. A peer's own: never sent, never kept.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._kept: Tensor | None = None

    @property
    def is_full(self) -> bool:
        """Whether there are as many as are wanted; before that none is used."""
        return self.capacity > 0 and self._kept is not None and len(self._kept) == self.capacity

    def embeddings(self) -> Tensor | None:
        """The embeddings float32 [capacity, d], the newest first; None until there are enough."""
        return self._kept if self.is_full else None

    def push(self, embeddings: Tensor) -> None:
        """Add those of a micro-batch, float32 [n, d], in the place of the oldest."""
        if self.capacity == 0:
            return
        new = embeddings.detach()
        kept = new if self._kept is None else torch.cat([new, self._kept.to(new.device)])
        self._kept = kept[: self.capacity].clone()


@torch.no_grad()
def assign(embeddings: Tensor, prototypes: Tensor, queued: Tensor | None, epsilon: float, iterations: int) -> Tensor:
    """The assignments float32 [n, K] of `embeddings` [n, d], together with those of `queued` [m, d]."""
    together = embeddings if queued is None else torch.cat([queued.to(embeddings.device), embeddings])
    return sinkhorn(together @ prototypes.t(), epsilon, iterations)[-len(embeddings) :]
