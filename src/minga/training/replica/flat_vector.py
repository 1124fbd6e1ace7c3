"""Gradients (and averaged buffers) of a model as one flat vector, and back.

Order: tensors that the adaptive codec quantises come first, small ones (biases, norms) after them, so that the codecs
of a layout form few long segments; within each kind the order is that of the names, so that peers whose programs list
their layers in other orders average the same ones (`training/state/model_names.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from minga.averaging.codecs.dense import CONTRIBUTION_LIMIT, is_finite
from minga.averaging.codecs.layout import ADAPTIVE_INT8_MIN_ELEMENTS, VectorLayout
from minga.core.errors import ConfigurationError
from minga.training.replica.buffers import SharedBuffers
from minga.training.replica.trained_record import trained_parameters

QUICK_ELEMENTS = 1 << 16
JOINED_ELEMENTS = 1 << 13
"""Neighbours of at most so many elements are joined: to copy one costs less than to look at it and to add it alone."""
STAGED_ELEMENTS = 1 << 24
"""Gradients on an accelerator come to the CPU in pieces of at most this many elements, or of one tensor."""


class ParameterVector:
    """Which tensors make up the averaged vector of one optimizer, and where each lies in it; `model` names them.

    Parameters that do not require a gradient are left out; shared ones count once. Movements of `buffers` are averaged
    alongside. Raises `ConfigurationError` for parameters that cannot be averaged.

    With `quick` only tensors of at most `QUICK_ELEMENTS` elements (biases and norms, which hardly ever stay finite
    where others do not) are looked at before they are added: whoever uses the sum has to look at that.
    """

    quick = False

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        buffers: SharedBuffers,
        codec: str,
        download_codec: str | None = None,
        *,
        model: torch.nn.Module | None = None,
    ) -> None:
        parameters = trained_parameters(optimizer, model)
        if not parameters:
            raise ConfigurationError("the optimizer has no parameter that requires a gradient")
        tensors = sorted(parameters.values(), key=lambda p: p.numel() < ADAPTIVE_INT8_MIN_ELEMENTS)
        for tensor in tensors:
            _check_parameter(tensor)
        self._parameters = [p for p in tensors if p.numel()]
        self._buffers = buffers
        self._staging: torch.Tensor | None = None
        self.layout = VectorLayout(
            tuple(tuple(t.shape) for t in [*self._parameters, *buffers.averaged]), codec, download_codec
        )
        self.numel = self.layout.total
        self.parameters_numel = sum(p.numel() for p in self._parameters)
        self._runs = _runs_of_small([p.numel() for p in self._parameters])

    def new(self, numel: int | None = None) -> torch.Tensor:
        """A zeroed float32 vector in CPU memory, of `numel` elements if not as long as this one."""
        return torch.zeros(self.numel if numel is None else numel, dtype=torch.float32)

    def wait(self) -> None:
        """Block until the present gradients are there; an accelerator may still be computing them."""
        for device in {p.device for p in self._parameters if not p.is_cpu and p.grad is not None}:
            torch.zeros((), device=device).cpu()  # comes after what was asked of the device before

    def accumulate(self, vector: torch.Tensor, weight: float) -> bool:
        """Add `weight` times the present gradients, and the buffers' movements likewise, to `vector`.

        Returns False, leaving `vector` unchanged, if a gradient is not finite. Missing gradients count as zero, sparse
        ones are made dense. The mean of a buffer is thus over all micro-batches, as that of a gradient is.
        """
        with torch.no_grad():  # as a decorator it takes twice as long
            return self._accumulate(vector, weight)

    def _accumulate(self, vector: torch.Tensor, weight: float) -> bool:
        # This comes with each micro-batch: each tensor is touched in Python as rarely as can be.
        flats, numels = self._joined(self._present())
        if not self._are_finite(flats):
            return False
        far: list[tuple[int, torch.Tensor]] = []
        offset = 0
        for flat, part in zip(flats, vector.split_with_sizes(numels), strict=True):
            if flat is not None:
                if flat.is_cpu:
                    part.add_(flat, alpha=weight)
                else:
                    far.append((offset, flat))
            offset += part.numel()
        for start, piece in self._fetch(far):
            vector[start : start + piece.numel()].add_(piece, alpha=weight)
        return True

    @torch.no_grad()
    def is_finite(self) -> bool:
        """Whether the present gradients and the buffers' movements are, as far as they are looked at; broken buffers
        go back.
        """
        return self._are_finite(self._present())

    def _present(self) -> list[torch.Tensor | None]:
        """The present gradients, and the buffers' movements, as flat dense tensors; None for those that are missing."""
        gradients = (p.grad for p in self._parameters)
        flats = [None if g is None else (g.to_dense() if g.is_sparse else g).reshape(-1) for g in gradients]
        if not self._buffers.averaged:
            return flats
        return [*flats, *(movement.reshape(-1) for movement in self._buffers.movements())]

    def _joined(self, flats: list[torch.Tensor | None]) -> tuple[list[torch.Tensor | None], list[int]]:
        """The same values with small neighbours in RAM as one tensor each, and the sizes of all."""
        numels = list(self.layout.numels)
        for first, behind in self._runs:
            run = [f for f in flats[first:behind] if f is not None and f.is_cpu and f.dtype == torch.float32]
            if len(run) == behind - first:
                flats[first:behind] = [torch.cat(run)]
                numels[first:behind] = [sum(numels[first:behind])]
        return flats, numels

    def _are_finite(self, flats: Sequence[torch.Tensor | None]) -> bool:
        if all_finite([f for f in flats if f is not None and not (self.quick and f.numel() > QUICK_ELEMENTS)]):
            return True
        self._buffers.undo_broken()
        return False

    @torch.no_grad()
    def load(self, vector: torch.Tensor) -> None:
        """Set all gradients from a vector of means, and move the averaged buffers by theirs."""
        self.load_gradients(vector)
        self._buffers.advance(list(self._slices(vector))[len(self._parameters) :])

    @torch.no_grad()
    def load_gradients(self, vector: torch.Tensor) -> None:
        """Set all gradients from a vector."""
        for parameter, part in zip(self._parameters, self._slices(vector), strict=False):
            if parameter.grad is None or parameter.grad.is_sparse:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(part.view(parameter.shape))

    @torch.no_grad()
    def read_values(self) -> torch.Tensor:
        """The parameters themselves, in the order of the vector, and the movements of averaged buffers."""
        values = self.new()
        for value, part in zip([*self._parameters, *self._buffers.movements()], self._slices(values), strict=True):
            part.copy_(value.reshape(-1))
        return values

    @torch.no_grad()
    def adopt(self, vector: torch.Tensor) -> None:
        """Set the parameters from such a vector, and move the averaged buffers by their means."""
        self.write_values(vector)
        self._buffers.advance(list(self._slices(vector))[len(self._parameters) :])

    @torch.no_grad()
    def write_values(self, vector: torch.Tensor) -> None:
        """Set the parameters from such a vector."""
        for parameter, part in zip(self._parameters, self._slices(vector), strict=False):
            parameter.copy_(part.view(parameter.shape))

    @torch.no_grad()
    def rounded(self, vector: torch.Tensor) -> torch.Tensor:
        """What `read_values` gives of the parameters once such a vector was written; the vector itself if that is it.

        Elements beyond the parameters stay.
        """
        if all(parameter.dtype in (torch.float32, torch.float64) for parameter in self._parameters):
            return vector
        found = vector.clone()
        for parameter, part in zip(self._parameters, self._slices(found), strict=False):
            part.copy_(part.to(parameter.dtype))
        return found

    def parameters(self) -> list[torch.Tensor]:
        """The parameters in the vector, in its order."""
        return list(self._parameters)

    def _slices(self, vector: torch.Tensor) -> Iterator[torch.Tensor]:
        offset = 0
        for numel in self.layout.numels:
            yield vector[offset : offset + numel]
            offset += numel

    def _fetch(self, values: Sequence[tuple[int, torch.Tensor]]) -> Iterator[tuple[int, torch.Tensor]]:
        """Flat float32 CPU copies of flat tensors elsewhere, given and returned with their offsets.

        Neighbours on one device are joined there first, so that few large transfers do, into memory that the device can
        write to directly. Each piece is valid until the next is taken.
        """
        run: list[torch.Tensor] = []
        start = stop = 0
        for offset, value in values:
            full = stop - start + value.numel() > STAGED_ELEMENTS
            if run and (offset != stop or value.device != run[0].device or full):
                yield start, self._stage(run)
                run = []
            if not run:
                start = offset
            run.append(value)
            stop = offset + value.numel()
        if run:
            yield start, self._stage(run)

    def _stage(self, run: Sequence[torch.Tensor]) -> torch.Tensor:
        joined = torch.cat([value.to(torch.float32) for value in run])
        if self._staging is None or self._staging.numel() < joined.numel():
            pinned = joined.device.type == "cuda"
            self._staging = torch.empty(joined.numel(), dtype=torch.float32, pin_memory=pinned)
        return self._staging[: joined.numel()].copy_(joined)  # waits until it is here


def all_finite(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether no element is NaN, infinite or too large to be sent; one synchronisation with each accelerator."""
    on_device: list[torch.Tensor] = []
    for tensor in tensors:
        values = tensor.coalesce().values() if tensor.is_sparse else tensor
        if values.numel() == 0:
            continue
        if values.is_cpu:
            flat = values.reshape(-1) if values.dim() != 1 else values
            if flat.dtype == torch.float32 and float(torch.dot(flat, flat)) <= CONTRIBUTION_LIMIT**2:
                continue  # the fastest way to see it; whatever fails here is looked at more closely
            if not is_finite(flat, CONTRIBUTION_LIMIT):
                return False
        else:
            on_device += [bound.to(torch.float32) for bound in torch.aminmax(values)]
    devices = {bound.device for bound in on_device}
    bounds = [torch.stack([bound for bound in on_device if bound.device == device]).cpu() for device in devices]
    return all(is_finite(each, CONTRIBUTION_LIMIT) for each in bounds)


def _runs_of_small(numels: Sequence[int]) -> list[tuple[int, int]]:
    """Where neighbours can be joined, the last first: the index of the first of them, and that behind them."""
    runs, first, joined = list[tuple[int, int]](), 0, 0
    for index, numel in enumerate(numels):
        if numel > JOINED_ELEMENTS or joined + numel > QUICK_ELEMENTS:
            runs.append((first, index))
            first, joined = (index + 1, 0) if numel > JOINED_ELEMENTS else (index, 0)
        joined += numel if numel <= JOINED_ELEMENTS else 0
    return [run for run in reversed([*runs, (first, len(numels))]) if run[1] > run[0] + 1]


def _check_parameter(parameter: torch.Tensor) -> None:
    shape = list(parameter.shape)
    if parameter.is_complex():
        raise ConfigurationError(f"a parameter of shape {shape} is complex; only real ones can be averaged")
    if parameter.is_meta:
        raise ConfigurationError(f"a parameter of shape {shape} is on the device meta: give it values first")
