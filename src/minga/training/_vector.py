"""Gradients (and averaged buffers) of a model as one flat vector, and back.

Order: tensors that the adaptive codec quantises come first, small ones (biases, norms) after them, so that the codecs
of a layout form few long segments; within each kind the order is that of the optimizer's parameter groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from minga.averaging._codecs import CONTRIBUTION_LIMIT, is_finite
from minga.averaging._layout import ADAPTIVE_INT8_MIN_ELEMENTS, VectorLayout
from minga.core._errors import ConfigurationError


class ParameterVector:
    """Which tensors make up the averaged vector of one optimizer, and where each lies in it.

    Parameters that do not require a gradient are left out; shared ones count once. `buffers` are averaged alongside.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, buffers: Sequence[torch.Tensor], codec: str) -> None:
        parameters: dict[int, torch.Tensor] = {}
        for group in optimizer.param_groups:
            parameters.update({id(p): p for p in group["params"] if p.requires_grad})
        if not parameters:
            raise ConfigurationError("the optimizer has no parameter that requires a gradient")
        tensors = sorted(parameters.values(), key=lambda p: p.numel() < ADAPTIVE_INT8_MIN_ELEMENTS)
        self._parameters = [p for p in tensors if p.numel()]
        self._buffers = [b for b in buffers if b.is_floating_point() and b.numel()]
        self.layout = VectorLayout(tuple(t.numel() for t in [*self._parameters, *self._buffers]), codec)
        self.numel = self.layout.total

    def new(self) -> torch.Tensor:
        """A zeroed float32 vector in CPU memory."""
        return torch.zeros(self.numel, dtype=torch.float32)

    def accumulate(self, vector: torch.Tensor, samples: int) -> bool:
        """Add `samples` times the present gradients, and the buffers' present values likewise, to `vector`.

        Returns False, leaving `vector` unchanged, if a gradient is not finite. Missing gradients count as zero.
        The mean of a buffer is thus over all micro-batches, as that of a gradient is.
        """
        values = [p.grad for p in self._parameters] + [b.detach() for b in self._buffers]
        if not all_finite([v for v in values if v is not None]):
            return False
        for value, part in zip(values, self._slices(vector), strict=True):
            if value is not None:
                flat = (value.to_dense() if value.is_sparse else value).detach().reshape(-1)
                if flat.dtype != torch.float32 or flat.device.type != "cpu":
                    flat = flat.to(device="cpu", dtype=torch.float32)
                part.add_(flat, alpha=samples)
        return True

    @torch.no_grad()
    def load(self, vector: torch.Tensor) -> None:
        """Set all gradients, and the averaged buffers, from a vector of means."""
        slices = self._slices(vector)
        for parameter in self._parameters:
            if parameter.grad is None or parameter.grad.is_sparse:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(next(slices).view(parameter.shape))
        for buffer in self._buffers:
            buffer.copy_(next(slices).view(buffer.shape))

    def read_values(self) -> torch.Tensor:
        """The parameters and averaged buffers themselves, in the order of the vector."""
        values = [*self._parameters, *self._buffers]
        return torch.cat([v.detach().reshape(-1).to(device="cpu", dtype=torch.float32) for v in values])

    @torch.no_grad()
    def write_values(self, vector: torch.Tensor) -> None:
        """Set the parameters and averaged buffers from such a vector."""
        for value, part in zip([*self._parameters, *self._buffers], self._slices(vector), strict=True):
            value.copy_(part.view(value.shape))

    def parameters(self) -> list[torch.Tensor]:
        """The parameters in the vector, in its order."""
        return list(self._parameters)

    def _slices(self, vector: torch.Tensor) -> Iterator[torch.Tensor]:
        offset = 0
        for numel in self.layout.numels:
            yield vector[offset : offset + numel]
            offset += numel


def all_finite(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether no element is NaN, infinite or too large to be sent; one synchronisation with an accelerator."""
    on_device: list[torch.Tensor] = []
    for tensor in tensors:
        values = tensor.coalesce().values() if tensor.is_sparse else tensor
        if values.numel() == 0:
            continue
        if values.device.type == "cpu":
            if not is_finite(values.reshape(-1), CONTRIBUTION_LIMIT):
                return False
        else:
            on_device += [bound.to(torch.float32) for bound in torch.aminmax(values)]
    return not on_device or is_finite(torch.stack(on_device).cpu(), CONTRIBUTION_LIMIT)
