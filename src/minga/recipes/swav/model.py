"""The model, a ResNet of transformers with a head of two layers and prototypes, and what it learns: from each crop of a
picture, to predict how the others are assigned to prototypes.

    pictures [n, c, s, s] ─▶ trunk ─▶ features [n, h] ─▶ head, normalised ─▶ embeddings [n, d] ─▶ scores [n, K]

With V crops of each of n pictures, scores s of their embeddings, and assignments q of the first two crops, which are
given no gradient (Caron et al. 2020, arXiv:2006.09882, equation 2 with multi-crop):

    loss = - 1/2 Σ_{i<2} 1/(V-1) Σ_{v≠i} mean over pictures of Σ_k q_i log softmax(s_v / τ)
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import ResNetConfig, ResNetModel
from transformers.models.resnet.modeling_resnet import ResNetConvLayer

from minga.optim.arithmetic import work_device
from minga.optim.norms import row_norms
from minga.recipes.interface import Batch
from minga.recipes.swav.crops import crop_names
from minga.recipes.swav.settings import TRUNKS, SwavSettings

PROTOTYPES: Final = "prototypes.weight"
_MEAN: Final = (0.485, 0.456, 0.406)
_DEVIATION: Final = (0.229, 0.224, 0.225)
_GREY_MEAN: Final = 0.449
_GREY_DEVIATION: Final = 0.226
_UNIT: Final = 5e-7
"""Rows whose norm is as close to 1 are left alone, so that to normalise them twice changes nothing."""


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


class SwavModel(nn.Module):
    """Trunk, head and prototypes. `queues`, one for each assigned crop, are this peer's own, and not in the state."""

    def __init__(self, settings: SwavSettings) -> None:
        super().__init__()
        self.trunk = build_trunk(settings)
        hidden, embedding = settings.head
        features = self.trunk.config.hidden_sizes[-1]
        self.head = nn.Sequential(
            nn.Linear(features, hidden), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True), nn.Linear(hidden, embedding)
        )
        self.prototypes = nn.Linear(embedding, settings.prototypes, bias=False)
        normalize_prototypes(self)
        self.side = settings.crops[0][1]
        """Pixels a side of the pictures that it is made for, those of the first crops."""
        self.queues = tuple(EmbeddingQueue(settings.queue) for _ in range(2))
        self.steps = 0
        """Global steps that this model is known to have seen; a newcomer learns of them with its first update."""

    def features(self, pictures: Tensor) -> Tensor:
        """What the trunk sees in pictures uint8 [n, c, s, s]: float [n, h]."""
        output: Tensor = self.trunk(normalized(pictures)).pooler_output
        return output.flatten(1)

    def embed(self, features: Tensor) -> Tensor:
        """Embeddings of norm 1, float32 [n, d]."""
        return functional.normalize(self.head(features).float(), dim=1)


def build_trunk(settings: SwavSettings) -> ResNetModel:
    """The trunk of the size, for pictures with the channels of the data."""
    trunk = TRUNKS[settings.size]
    model = ResNetModel(
        ResNetConfig(
            num_channels=settings.data.channels,
            embedding_size=trunk.stem_width,
            hidden_sizes=list(trunk.widths),
            depths=list(trunk.depths),
            layer_type=trunk.layer_type,
        )
    )
    if settings.uses_small_stem:
        use_small_stem(model, trunk.stride)
    return model


def use_small_stem(model: ResNetModel, stride: int) -> None:
    """Replace the 7x7 convolution with stride 2 and the pooling after it by a 3x3 convolution, for small pictures."""
    config = model.config
    stem = ResNetConvLayer(config.num_channels, config.embedding_size, kernel_size=3, stride=stride)
    nn.init.kaiming_normal_(stem.convolution.weight, mode="fan_out", nonlinearity="relu")
    model.embedder.embedder, model.embedder.pooler = stem, nn.Identity()


def mean_and_deviation(channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Those of pictures from 0 to 1, by channel."""
    return ((_GREY_MEAN,), (_GREY_DEVIATION,)) if channels == 1 else (_MEAN, _DEVIATION)


def normalized(pictures: Tensor) -> Tensor:
    """Pictures uint8 [n, c, s, s] as float32 of about mean 0 and deviation 1, by the figures of ImageNet."""
    mean, deviation = mean_and_deviation(pictures.shape[1])
    shift = torch.tensor(mean, device=pictures.device).view(1, -1, 1, 1)
    scale = torch.tensor(deviation, device=pictures.device).view(1, -1, 1, 1)
    return (pictures.float() / 255.0 - shift) / scale


@torch.no_grad()
def normalize_prototypes(model: SwavModel) -> None:
    """Scale each prototype to the norm 1, with equal bits on every device; a second time nothing changes."""
    weight = model.prototypes.weight
    if weight.is_meta:
        return
    rows = weight.detach().to(work_device(weight.device), torch.float64)
    lengths = row_norms(weight)
    apart = ((lengths - 1.0).abs() > _UNIT) & (lengths > 0.0)
    lengths = torch.where(apart, lengths, torch.ones_like(lengths))
    weight.copy_((rows / lengths).to(weight.dtype))


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
