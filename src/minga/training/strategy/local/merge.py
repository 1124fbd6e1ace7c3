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
from dataclasses import dataclass
from typing import Final

import torch


@dataclass(frozen=True)
class Merge:
    """What a slice of θ becomes, in place: `depart` before Θ takes its step, `arrive` after it.

    `depart` gets θ, Θ as the model holds it, and the contribution if the mean has it; `arrive` θ, the new Θ and alpha.
    """

    depart: Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], None]
    arrive: Callable[[torch.Tensor, torch.Tensor, float], None]


def _to_moved(own: torch.Tensor, anchor: torch.Tensor, contribution: torch.Tensor | None) -> None:
    own.sub_(anchor)
    if contribution is not None:
        own.add_(contribution)


def _stay(own: torch.Tensor, anchor: torch.Tensor, contribution: torch.Tensor | None) -> None:
    pass


def _add(own: torch.Tensor, anchor: torch.Tensor, alpha: float) -> None:  # noqa: ARG001
    own.add_(anchor)


def _mix(own: torch.Tensor, anchor: torch.Tensor, alpha: float) -> None:
    own.mul_(alpha).add_(anchor, alpha=1.0 - alpha)


def _overwrite(own: torch.Tensor, anchor: torch.Tensor, alpha: float) -> None:  # noqa: ARG001
    own.copy_(anchor)


_REBASE: Final = Merge(_to_moved, _add)
MERGES: Final[dict[str, Merge]] = {
    "rebase": _REBASE,
    "mix": Merge(_stay, _mix),
    "overwrite": Merge(_stay, _overwrite),
    "eager": _REBASE,
}
