"""What a model costs, counted without making it: on the device `meta`, which has shapes and no memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode


def tensors_and_operations(
    build_model: Callable[[], nn.Module],
    batch: Mapping[str, Tensor],
    loss: Callable[[nn.Module, dict[str, Tensor]], Tensor],
) -> tuple[tuple[int, ...], float]:
    """Elements of each trained tensor, and the operations of `batch` forward and backward."""
    with torch.device("meta"):
        model = build_model().to("meta")
    with FlopCounterMode(display=False) as counter:
        loss(model, {name: tensor.to("meta") for name, tensor in batch.items()}).backward()  # type: ignore[no-untyped-call]
    tensors = tuple(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return tensors, float(counter.get_total_flops())
