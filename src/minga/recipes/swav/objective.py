"""What the model learns: from each crop of a picture, to predict how the others are assigned to prototypes.

With V crops of each of n pictures, scores s of their embeddings, and assignments q of the first two crops, which are
given no gradient (Caron et al. 2020, arXiv:2006.09882, equation 2 with multi-crop):

    loss = - 1/2 Σ_{i<2} 1/(V-1) Σ_{v≠i} mean over pictures of Σ_k q_i log softmax(s_v / τ)
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn import functional

from minga.recipes.interface import Batch
from minga.recipes.swav.batching import crop_names
from minga.recipes.swav.model import SwavModel
from minga.recipes.swav.settings import SwavSettings

# ---- Which prototypes the pictures of a micro-batch are assigned to: each prototype the same share of them.
#
# Sinkhorn's iteration (Cuturi 2013, arXiv:1306.0895) as SwAV uses it (Caron et al. 2020, arXiv:2006.09882, section
# 3.1), for scores S [n, K]:
#
#     Q = exp(S / ε)
#     repeat: divide the column of each prototype by its sum, then the row of each sample by its sum
#
# computed with logarithms, in which no sum is 0, however far apart the scores are.


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


@torch.no_grad()
def assign(embeddings: Tensor, prototypes: Tensor, queued: Tensor | None, epsilon: float, iterations: int) -> Tensor:
    """The assignments float32 [n, K] of `embeddings` [n, d], together with those of `queued` [m, d]."""
    together = embeddings if queued is None else torch.cat([queued.to(embeddings.device), embeddings])
    return sinkhorn(together @ prototypes.t(), epsilon, iterations)[-len(embeddings) :]


def swav_loss(model: SwavModel, batch: Batch, settings: SwavSettings, *, with_queue: bool) -> Tensor:
    """The loss, a float32 scalar. Crops of one kind pass through the trunk together, and all through the head.

    With `with_queue`, assignments take the queue into account from its step on, and its embeddings are renewed.
    """
    features = [model.features(batch[name]) for name in crop_names(settings)]
    embeddings = model.embed(torch.cat(features))
    with _in_full_precision(embeddings.device):
        scores = embeddings @ model.prototypes.weight.float().t()
        pictures = len(embeddings) // settings.views
        logs = functional.log_softmax(scores / settings.temperature, dim=1).view(settings.views, pictures, -1)
        every = logs.sum(dim=0)
        losses = []
        for index, queue in enumerate(model.queues):
            own = embeddings[index * pictures : (index + 1) * pictures]
            is_used = with_queue and model.steps >= settings.queue_from_step
            queued = queue.embeddings() if is_used else None
            assigned = assign(own, model.prototypes.weight.float(), queued, settings.epsilon, settings.sinkhorn)
            if is_used:
                queue.push(own)
            losses.append(-(assigned * (every - logs[index])).sum(dim=1).mean() / (settings.views - 1))
        return torch.stack(losses).mean()


def _in_full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Scores and assignments are float32 where the rest is autocast, too; the device meta has no autocast."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)
