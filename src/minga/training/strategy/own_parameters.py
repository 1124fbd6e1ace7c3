"""What strategies have in common whose peers train parameters of their own, beside those that all share.

The shared parameters are a flat vector (float32, on the CPU, as `ReplicaInterface.read_values` makes it). The model in
the replica, and what its optimizer keeps, are the peer's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from minga.training.replica.interface import ReplicaInterface

_OPTIMIZER: Final = "optimizer/"


def shared_model(replica: ReplicaInterface, parameters: torch.Tensor, name: str) -> dict[str, torch.Tensor]:
    """The model with the shared `parameters` in place of the peer's own, by its names in checkpoints; and these as they
    are, as `name`, where the model has fewer bits.
    """
    model = {each: tensor for each, tensor in replica.tensors().items() if not each.startswith(_OPTIMIZER)}
    found = {**model, **replica.named(parameters)}
    if replica.rounded(parameters) is not parameters:
        found[name] = parameters
    return found


def own_moments(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Of some tensors of a replica, those that its optimizer keeps."""
    return {name: tensor for name, tensor in tensors.items() if name.startswith(_OPTIMIZER)}
