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
from minga.recipes.swav.assignment import assign
from minga.recipes.swav.batching import crop_names
from minga.recipes.swav.model import SwavModel
from minga.recipes.swav.settings import SwavSettings


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
