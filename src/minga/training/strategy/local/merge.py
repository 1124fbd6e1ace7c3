"""What becomes of a peer's own parameters when the shared ones take a step.

    rebase      θ ← Θ' + moved                 what moved counts once: in the next contribution
    mix         θ ← alpha θ + (1 - alpha) Θ'   part of it is lost, and θ is pulled to Θ'
    overwrite   θ ← Θ'                         all of it is lost

Moved is by how much θ has left where it was when the contribution was made. Where that is in no mean, it is by how much
θ has left Θ.

Sources: mix is that of Streaming DiLoCo (arXiv:2501.18512). That rebase conserves all movement is plain algebra.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

Merge = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]
"""From θ, what moved, Θ' and alpha, flat and of one length, to the new θ. Any of the first two may be changed."""


def _rebase(own: torch.Tensor, moved: torch.Tensor, anchor: torch.Tensor, alpha: float) -> torch.Tensor:  # noqa: ARG001
    return moved.add_(anchor)


def _mix(own: torch.Tensor, moved: torch.Tensor, anchor: torch.Tensor, alpha: float) -> torch.Tensor:  # noqa: ARG001
    return own.mul_(alpha).add_(anchor, alpha=1.0 - alpha)


def _overwrite(own: torch.Tensor, moved: torch.Tensor, anchor: torch.Tensor, alpha: float) -> torch.Tensor:  # noqa: ARG001
    return anchor


MERGES: Final[dict[str, Merge]] = {"rebase": _rebase, "mix": _mix, "overwrite": _overwrite, "eager": _rebase}
