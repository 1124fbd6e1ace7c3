"""The sizes in which the recipe builds its model: the trunk, and the settings that go with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

Size = Literal["tiny", "small", "paper"]


@dataclass(frozen=True)
class Trunk:
    """A ResNet: how many blocks each stage has and how wide it is; `stride` is that of a 3x3 stem."""

    layer_type: Literal["basic", "bottleneck"]
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    stem_width: int
    stride: int


TRUNKS: Final[dict[str, Trunk]] = {
    "tiny": Trunk("basic", (1, 1, 1), (16, 32, 64), 16, 2),
    "small": Trunk("basic", (2, 2, 2, 2), (64, 128, 256, 512), 64, 1),  # ResNet-18
    "paper": Trunk("bottleneck", (3, 4, 6, 3), (256, 512, 1024, 2048), 64, 1),  # ResNet-50
}

PRESETS: Final[dict[str, dict[str, Any]]] = {
    # For digits, whose 8 by 8 pixels hold little: small crops, strong changes of brightness and soft assignments would
    # leave nothing to predict, and the model would give all the same answer. A mirrored digit is none.
    "tiny": {
        "crops": [[2, 16, 0.4, 1.0]],
        "prototypes": 64,
        "head": [128, 64],
        "epsilon": 0.03,
        "flip": 0.0,
        "jitter": 0.3,
        "blur": 0.0,
        "data": {"source": "digits", "packed_size": 28},
    },
    "small": {
        "crops": [[2, 32, 0.3, 1.0], [4, 20, 0.1, 0.4]],
        "prototypes": 300,
        "head": [512, 128],
        "data": {"source": "folder", "packed_size": 64},
    },
    "paper": {
        "crops": [[2, 224, 0.14, 1.0], [6, 96, 0.05, 0.14]],
        "prototypes": 3000,
        "head": [2048, 128],
        "epsilon": 0.03,
        "queue": 3840,
        "queue_from_step": 1531,
        "freeze_prototypes_steps": 40,
        "data": {"source": "folder", "packed_size": 0},
    },
}
"""What each size sets. That of the paper (Diskin et al. 2021, arXiv:2106.10207) is SwAV's on ImageNet, with DeDLOC's
assignment; steps of its peers are counted here in global steps of 32,768 pictures.
"""
