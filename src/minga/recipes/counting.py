"""What a model costs, counted without making it: on the device `meta`, which has shapes and no memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode


def tensors_and_operations(
    build_model: Callable[[], nn.Module],
    batch: Mapping[str, Tensor],
    loss: Callable[[nn.Module, dict[str, Tensor]], Tensor],
) -> tuple[tuple[int, ...], float]:
    """Elements of each trained tensor, and the operations of `batch` forward and backward."""
    with torch.device("meta"):
        model = build_model().to("meta")
    # Inputs are fake tensors as well: libraries know that these have no values, and look at none.
    with FakeTensorMode(allow_non_fake_inputs=True), FlopCounterMode(display=False) as counter:
        shapes = {name: torch.empty(each.shape, dtype=each.dtype, device="meta") for name, each in batch.items()}
        loss(model, shapes).backward()  # type: ignore[no-untyped-call]
    tensors = tuple(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return tensors, float(counter.get_total_flops())
