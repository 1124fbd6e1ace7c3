"""Gradients (and averaged buffers) of a model as one flat vector, and back.

Order: tensors that the adaptive codec quantises come first, small ones (biases, norms) after them, so that the codecs
of a layout form few long segments; within each kind the order is that of the names (`training/state/model_names.py`),
so that peers whose programs list their layers in other orders average the same ones. Movements of averaged buffers
follow, and at the end one number for each parameter, in the same order. Both travel whole.

Such a number says in how many of the samples the parameter had a gradient at all. To torch a gradient of zeros and none
are two things: by zeros an optimizer decays a parameter and moves its moments, and without a gradient it leaves the
parameter alone. So the mean over all peers has to tell them apart. A parameter has no gradient in a mean if this number
is 0, which nobody added to, and all elements of its gradient are. The second half matters where something was lost on
the way: by a coarse codec, or where what a peer sent counts in one part of the vector and not in another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import torch

from minga.averaging.codecs.dense import CONTRIBUTION_LIMIT, is_finite
from minga.averaging.codecs.layout import ADAPTIVE_INT8_MIN_ELEMENTS, VectorLayout
from minga.core.errors import ConfigurationError
from minga.optim.shards import local
from minga.training.replica.accelerator import COPIED_ELEMENTS, Accelerator, DeviceEvent, LateVerdict, wait_for
from minga.training.replica.buffers import SharedBuffers
from minga.training.replica.trained_record import trained_parameters
from minga.training.state.sketch import Sketch, length, sketch_of

QUICK_ELEMENTS = 1 << 16
JOINED_ELEMENTS = 1 << 13
"""Neighbours of at most so many elements are joined: to copy one costs less than to look at it and to add it alone."""
LOOKED_AT = 1 << 22
"""Elements of a piece of which something is found out that takes copies of it."""

KEPT_PATTERNS = 64
"""Which gradients there were in micro-batches is kept on the device for so many patterns, as experts take turns: to
copy one there holds the thread up.
"""
SAMPLED = 256
"""A sample of the gradients has so many tensors, and so many elements of each, at most."""
_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Whole numbers of so many bytes."""
PRESENT = 2.0**-10
"""What one sample with a gradient adds to its parameter's number: little beside gradients, whose norms robust means
compare, and enough for float16.
"""


class ParameterVector:
    """Which tensors make up the averaged vector of one optimizer, and where each lies in it; `model` names them.

    Parameters that do not require a gradient are left out; shared ones count once. Movements of `buffers` are averaged
    alongside, and which parameters had a gradient. Raises `ConfigurationError` for parameters that cannot be averaged.

    With `quick` only tensors of at most `QUICK_ELEMENTS` elements (biases and norms, which hardly ever stay finite
    where others do not) are looked at before they are added: whoever uses the sum has to look at that.
    """

    quick = False
    accelerator: Accelerator | None = None
    """Where micro-batches are added up; None is in RAM."""
    in_ram: Mapping[torch.Tensor, torch.Tensor] | None = None
    """The values of the parameters, where they are updated in RAM; see `HostMemory`."""

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
        self._all_present = torch.full((len(self._parameters),), PRESENT, dtype=torch.float32, device="cpu")
        self._loaded: DeviceEvent | None = None
        self._presence_there: dict[tuple[bool, ...], torch.Tensor] = {}
        self.layout = VectorLayout(
            tuple(tuple(t.shape) for t in [*self._parameters, *buffers.averaged, self._all_present]),
            codec,
            download_codec,
            whole=len(buffers.averaged) + 1,
        )
        self.numel = self.layout.total
        self.numels = list(self.layout.numels)
        """Elements of each of the tensors that `present` gives."""
        self.parameters_numel = sum(p.numel() for p in self._parameters)
        self._runs = _runs_of_small([p.numel() for p in self._parameters])

    def new(self, numel: int | None = None) -> torch.Tensor:
        """A zeroed float32 vector in CPU memory, of `numel` elements if not as long as this one."""
        numel = self.numel if numel is None else numel
        if self.accelerator is not None:
            return self.accelerator.host_memory(numel)
        return torch.zeros(numel, dtype=torch.float32, device="cpu")

    def wait(self) -> None:
        """Block until the present gradients are there, which an accelerator may still be computing, if they are added
        up in RAM.
        """
        if self.accelerator is not None:
            return
        for device in {p.device for p in self._parameters if not p.is_cpu and p.grad is not None}:
            wait_for(device)

    def accumulate(self, vector: torch.Tensor, weight: float) -> bool:
        """Add `weight` times the present gradients, and the buffers' movements likewise, to `vector`.

        Returns False, leaving `vector` unchanged, if a gradient is not finite. Missing gradients count as zero where
        others have one, sparse ones are made dense. The mean of a buffer is thus over all micro-batches, as that of a
        gradient is.
        """
        with torch.no_grad():  # as a decorator it takes twice as long
            return self._accumulate(vector, weight)

    def _accumulate(self, vector: torch.Tensor, weight: float) -> bool:
        # This comes with each micro-batch: each tensor is touched in Python as rarely as can be.
        flats, numels = self._joined(self.present())
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
    def accumulate_there(
        self, accelerator: Accelerator, vector: torch.Tensor, weight: float, loss: torch.Tensor | None
    ) -> LateVerdict:
        """The same to a vector on the accelerator, which is not waited for: gradients that are not finite are not
        added, and the verdict says so later, and with it the `loss`.

        Raises what the device raises if it has too little memory, with nothing changed.
        """
        flats = self.present_there(vector.device)
        is_finite = self.are_finite_there(flats)
        verdict = LateVerdict(accelerator, is_finite, loss)
        add_there(vector.split_with_sizes(self.numels), flats, weight, is_finite)
        return verdict

    def present_there(self, device: torch.device) -> list[torch.Tensor | None]:
        """What `present` gives, on the accelerator and such that it may be changed."""
        *flats, _ = self.present()
        is_present = tuple(flat is not None for flat in flats[: len(self._parameters)])
        if is_present not in self._presence_there:
            if len(self._presence_there) >= KEPT_PATTERNS:
                self._presence_there.clear()
            self._presence_there[is_present] = self._presence(is_present).to(device)
        flats.append(self._presence_there[is_present].clone())
        return [flat if flat is None else flat.to(device).contiguous() for flat in flats]

    def are_finite_there(self, flats: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """Whether these flat tensors on the accelerator are finite, as a flag there. Broken buffers go back."""
        norms = [
            torch.stack(torch._foreach_norm(tensors, math.inf)).to(torch.float32)  # noqa: SLF001
            for tensors in _by_dtype(flats).values()
        ]
        if self._buffers.averaged:
            self._buffers.undo_broken()
        return torch.cat(norms).amax() <= CONTRIBUTION_LIMIT  # False of NaN

    def has_gradients(self) -> bool:
        """Whether any parameter has one at present."""
        return any(parameter.grad is not None for parameter in self._parameters)

    @torch.no_grad()
    def sample(self) -> Sketch:
        """A sketch of some elements of the present gradients, by which peers tell whether theirs are the same; empty
        if it is not finite.
        """
        gradients = [p.grad for p in self._parameters[:SAMPLED] if p.grad is not None and not p.grad.is_sparse]
        found = sketch_of([local(gradient).reshape(-1)[:SAMPLED] for gradient in gradients])
        return found if length(found) < CONTRIBUTION_LIMIT else ()

    @torch.no_grad()
    def clipped(self) -> str:
        """By what the present gradients seem to have been clipped since backward; empty if they do not.

        They were changed in place; then their largest elements are equal, or their norm is a round number.
        """
        found = [p.grad for p in self._parameters if p.grad is not None and not p.grad.is_sparse]
        if not found or not all(gradient._version for gradient in found):  # noqa: SLF001  (torch has no other word)
            return ""
        largest = max((float(piece.abs().max()) for piece in _pieces(found)), default=0.0)
        ties = sum(int((piece.abs() == largest).sum()) for piece in _pieces(found))
        total = sum(piece.numel() for piece in _pieces(found))
        norm = math.sqrt(sum(float(piece.float().square().sum()) for piece in _pieces(found)))
        if 0.0 < largest < math.inf and 1 < ties < total:
            return f"clip_grad_value_ to {largest:g}"
        if 0.0 < norm < math.inf and _is_round(norm):
            return f"clip_grad_norm_ to {norm:.4g}"
        return ""

    @torch.no_grad()
    def is_finite(self) -> bool:
        """Whether the present gradients and the buffers' movements are, as far as they are looked at; broken buffers
        go back. Waits for the device.
        """
        if self.accelerator is not None:
            is_finite = self.are_finite_there(self.present_there(self.accelerator.device))
            return LateVerdict(self.accelerator, is_finite, None).wait()
        return self._are_finite(self.present())

    def densify(self) -> None:
        """Make sparse gradients dense, as those of a mean are: not every optimizer and no clipping takes others."""
        for parameter in self._parameters:
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()

    def present(self) -> list[torch.Tensor | None]:
        """The present gradients, the buffers' movements, and which gradients are present, as flat dense tensors; None
        for gradients that are missing.
        """
        gradients = (p.grad for p in self._parameters)
        flats = [None if g is None else (g.to_dense() if g.is_sparse else g).reshape(-1) for g in gradients]
        present = self._presence([flat is not None for flat in flats])
        return [*flats, *(movement.reshape(-1) for movement in self._buffers.movements()), present]

    def _presence(self, is_present: Sequence[bool]) -> torch.Tensor:
        """The end of the vector for one sample with these gradients."""
        return (
            self._all_present
            if all(is_present)
            else torch.tensor(is_present, dtype=torch.float32, device="cpu") * PRESENT
        )

    def _joined(self, flats: list[torch.Tensor | None]) -> tuple[list[torch.Tensor | None], list[int]]:
        """The same values with small neighbours in RAM as one tensor each, and the sizes of all."""
        numels = list(self.numels)
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

    def load(self, vector: torch.Tensor) -> None:
        """Set all gradients from a vector of means, and move the averaged buffers by theirs."""
        self.load_gradients(vector)
        self._advance_buffers(vector)

    @torch.no_grad()
    def load_gradients(self, vector: torch.Tensor) -> None:
        """Set all gradients from a vector; None for parameters of which nobody had one. From RAM an accelerator may
        still copy it afterwards, see `wait_for_load`.
        """
        has_gradients = self.has_gradient(vector)
        is_there = self.accelerator is not None
        if self.accelerator is not None and vector.is_cpu:
            vector = self._bring(vector, self.accelerator)
        for parameter, part, has_gradient in zip(self._parameters, self._slices(vector), has_gradients, strict=False):
            if not has_gradient:
                parameter.grad = None
            elif is_there and parameter.dtype == torch.float32 and parameter.is_contiguous():
                parameter.grad = part.view(parameter.shape)
            else:
                if parameter.grad is None or parameter.grad.is_sparse:
                    parameter.grad = torch.empty_like(parameter)
                parameter.grad.copy_(part.view(parameter.shape))

    def _bring(self, vector: torch.Tensor, accelerator: Accelerator) -> torch.Tensor:
        """The part of a vector in RAM that is of parameters, on the accelerator, which may still copy it."""
        there = torch.empty(self.parameters_numel, dtype=torch.float32, device=accelerator.device)
        accelerator.copy(vector[: self.parameters_numel], there)
        self._loaded = accelerator.mark()
        return there

    def wait_for_load(self) -> None:
        """Wait until the vector that was loaded last is read, and may be changed. What comes after it is not waited
        for.
        """
        if self._loaded is not None:
            self._loaded.synchronize()
            self._loaded = None

    def has_gradient(self, vector: torch.Tensor) -> list[bool]:
        """For each of `parameters` whether anybody had a gradient of it, by a vector of means or sums."""
        told = vector[self.numel - len(self._parameters) :].cpu().tolist()
        if all(told):
            return [True] * len(told)
        return [bool(number) or bool(part.any()) for number, part in zip(told, self._slices(vector), strict=False)]

    def _advance_buffers(self, vector: torch.Tensor) -> None:
        self._buffers.advance(islice(self._slices(vector), len(self._parameters), len(self.layout.numels) - 1))

    @torch.no_grad()
    def read_values(self) -> torch.Tensor:
        """The parameters themselves, in the order of the vector, and what averaged buffers had moved when the last
        micro-batch ended; zeros behind these. An accelerator is waited for once.
        """
        values, accelerator = self.new(), self.accelerator
        far, offset = list[tuple[int, torch.Tensor]](), 0
        parameters = self._parameters if self.in_ram is None else [self.in_ram[each] for each in self._parameters]
        for value, part in zip([*parameters, *self._buffers.moved], self._slices(values), strict=False):
            if accelerator is not None and value.device == accelerator.device:
                accelerator.copy(value.detach().reshape(-1), part)
            elif value.is_cpu:
                part.copy_(value.reshape(-1))
            else:
                far.append((offset, value.detach().reshape(-1)))
            offset += part.numel()
        for start, piece in self._fetch(far):
            values[start : start + piece.numel()].copy_(piece)
        if accelerator is not None:
            accelerator.mark().synchronize()
        return values

    @torch.no_grad()
    def adopt(self, vector: torch.Tensor) -> None:
        """Set the parameters from such a vector, and move the averaged buffers by their means."""
        self.write_values(vector)
        self._advance_buffers(vector)

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
            full = stop - start + value.numel() > COPIED_ELEMENTS
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
            self._staging = Accelerator(joined.device).host_memory(joined.numel())
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


def add_there(
    parts: Sequence[torch.Tensor], flats: Sequence[torch.Tensor | None], weight: float, is_finite: torch.Tensor
) -> None:
    """Add `weight` times each of the `flats` that is there to its part, all on one accelerator; 0 if they are not
    finite, as a flag there says. The flats are changed.
    """
    # Whether it counts is 1 or 0, by which the bits of all numbers are multiplied as whole numbers: of NaN and infinity
    # 0 remains, and what counts stays as it is.
    counts = {whole: is_finite.to(whole) for whole in _WHOLE.values()}  # before anything is changed
    rows = [(part, flat) for part, flat in zip(parts, flats, strict=True) if flat is not None]
    for dtype in {flat.dtype for _, flat in rows}:
        whole, alike = _WHOLE[dtype.itemsize], [row for row in rows if row[1].dtype == dtype]
        torch._foreach_mul_([flat.view(whole) for _, flat in alike], counts[whole])
        torch._foreach_add_([part for part, _ in alike], [flat for _, flat in alike], alpha=weight)


def _pieces(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """All elements of this process, by pieces of which a copy takes little."""
    for tensor in tensors:
        flat = local(tensor).detach().reshape(-1)
        yield from torch.split(flat, LOOKED_AT) if flat.numel() else ()


def _by_dtype(tensors: Sequence[torch.Tensor | None]) -> dict[torch.dtype, list[torch.Tensor]]:
    """Those that are there, by their dtypes."""
    found: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor is not None:
            found.setdefault(tensor.dtype, []).append(tensor)
    return found


def _runs_of_small(numels: Sequence[int]) -> list[tuple[int, int]]:
    """Where neighbours can be joined, the last first: the index of the first of them, and that behind them."""
    runs, first, joined = list[tuple[int, int]](), 0, 0
    for index, numel in enumerate(numels):
        if numel > JOINED_ELEMENTS or joined + numel > QUICK_ELEMENTS:
            runs.append((first, index))
            first, joined = (index + 1, 0) if numel > JOINED_ELEMENTS else (index, 0)
        joined += numel if numel <= JOINED_ELEMENTS else 0
    return [run for run in reversed([*runs, (first, len(numels))]) if run[1] > run[0] + 1]


def _is_round(number: float) -> bool:
    """Whether it is 1, 2 or 5 times a power of ten, as closely as clipping to such a norm comes."""
    digit = number / 10.0 ** math.floor(math.log10(number * (1 + 1e-5)))
    return any(abs(digit / each - 1.0) < 1e-5 for each in (1.0, 2.0, 5.0))


def _check_parameter(parameter: torch.Tensor) -> None:
    shape = list(parameter.shape)
    if parameter.is_complex():
        raise ConfigurationError(f"a parameter of shape {shape} is complex; only real ones can be averaged")
    if parameter.is_meta:
        raise ConfigurationError(f"a parameter of shape {shape} is on the device meta: give it values first")
