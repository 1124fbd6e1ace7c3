"""The model: a ResNet of transformers, a head of two layers, and prototypes, with which embeddings are compared.

pictures [n, c, s, s] ─▶ trunk ─▶ features [n, h] ─▶ head, normalised ─▶ embeddings [n, d] ─▶ scores [n, K]
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import ResNetConfig, ResNetModel
from transformers.models.resnet.modeling_resnet import ResNetConvLayer

from minga.optim.arithmetic import work_device
from minga.optim.norms import row_norms
from minga.recipes.swav.settings import TRUNKS, SwavSettings

PROTOTYPES: Final = "prototypes.weight"
_MEAN: Final = (0.485, 0.456, 0.406)
_DEVIATION: Final = (0.229, 0.224, 0.225)
_GREY_MEAN: Final = 0.449
_GREY_DEVIATION: Final = 0.226
_GROUPS: Final = 32
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
        if settings.norm == "group":
            _use_groups(self)
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


def _use_groups(model: nn.Module) -> None:
    """Replace each BatchNorm by a GroupNorm of 32 groups, or fewer where channels are few."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, nn.GroupNorm(min(_GROUPS, child.num_features), child.num_features))
            elif isinstance(child, nn.BatchNorm1d):
                setattr(module, name, nn.GroupNorm(_head_groups(child.num_features), child.num_features))


def _head_groups(channels: int) -> int:
    """Features have one value a channel, so a group needs several channels: at least four, if that is possible."""
    groups = math.gcd(_GROUPS, channels)
    while groups > 1 and channels // groups < 4:
        groups //= 2
    return groups
