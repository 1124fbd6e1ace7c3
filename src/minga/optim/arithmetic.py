"""What is equal on every device: which operations the optimizers use, and constants that are rounded beforehand.

Theory of operation. IEEE 754 defines the result of an addition, a subtraction, a multiplication, a division and a
square root to the last bit: the exact result, rounded once. An elementwise operation of torch that is just one of these
has equal bits on every processor that follows the standard, with any vector width and any number of threads. Everything
else may differ from device to device. Fused operations (`addcmul`, `lerp`, `alpha=`, fused kernels) round once or
twice. Sums over a tensor are added in an order that the kernel chooses. So:

* Updates are made of `mul`, `add`, `sub`, `div` and `square_root`, one operation a call. On a CPU torch leaves `sqrt`
  to MKL, which rounds one of six roots wrongly on some processors; NumPy uses the processor's own instruction.
* An accelerator does one operation for many tensors in few kernels (`torch._foreach_*`, see `Tensors`), each of which
  is still just that operation. It is believed after a trial of its own.
* Tensors are divided by tensors only. CUDA divides by a constant by multiplying with its rounded reciprocal.
* Constants are rounded to the type of the tensor before they meet it (`rounded`). What leads to them is computed in
  float64 with the same five operations; powers by repeated squaring (`power`), because libraries of mathematics differ.
* Sums have an order of their own (`minga.optim.norms`).

A device is believed after a trial (`is_exact`). CUDA rounds as the standard says. Metal (MPS) has no float64 and may
take numbers below 2**-126 for 0, so the arithmetic of tensors there is done on the CPU (`work_device`).
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_SMALLEST_NORMAL: Final = 2.0**-126
_TRIED: Final = 1 << 13
_CPU: Final = torch.device("cpu")


def rounded(value: float, dtype: torch.dtype) -> float:
    """Return `value` rounded to float32 or float64, to nearest; infinity where it is too large."""
    return value if dtype == torch.float64 else ctypes.c_float(value).value


class Tensors:
    """Flat tensors that are changed together, in few kernels, with the bits of each by itself."""

    def __init__(self, parts: Sequence[Tensor]) -> None:
        self.parts = list(parts)

    def numel(self) -> int:
        """Elements of all together."""
        return sum(part.numel() for part in self.parts)

    def mul_(self, other: Tensors | float) -> Tensors:
        """Multiply each by a number, or by that of the others at its place."""
        torch._foreach_mul_(self.parts, _parts(other))
        return self

    def add_(self, other: Tensors | float) -> Tensors:
        """The same for a sum."""
        torch._foreach_add_(self.parts, _parts(other))
        return self

    def sub_(self, other: Tensors) -> Tensors:
        """The same for a difference."""
        torch._foreach_sub_(self.parts, other.parts)
        return self


Piece = TypeVar("Piece", Tensor, Tensors)


def _parts(value: Tensors | float) -> Any:
    return value.parts if isinstance(value, Tensors) else value


def like(scratch: Tensor, piece: Piece) -> Piece:
    """The beginning of `scratch` in the sizes of `piece`."""
    if isinstance(piece, Tensors):
        sizes = [part.numel() for part in piece.parts]
        return Tensors(torch.split(scratch[: sum(sizes)], sizes))
    return scratch[: piece.numel()]


def multiply(values: Piece, factor: Piece | float, out: Piece) -> Piece:
    """Write each element times the factor to `out`, and return that."""
    if isinstance(values, Tensors):
        torch._foreach_copy_(out.parts, values.parts)
        return out.mul_(factor)
    torch.mul(values, factor, out=out)
    return out


def divide(values: Piece, divisor: Piece) -> None:
    """Write each element by that of the divisor to the latter."""
    if isinstance(values, Tensors):
        quotients = torch._foreach_div(values.parts, divisor.parts)  # noqa: SLF001  (torch has no other word)
        torch._foreach_copy_(divisor.parts, quotients)
    else:
        torch.div(values, divisor, out=divisor)


def square_root(values: Piece, out: Piece) -> None:
    """Write the square root of each element, none below 0, to `out`, rounded once."""
    if isinstance(values, Tensors):
        torch._foreach_copy_(out.parts, values.parts)
        torch._foreach_sqrt_(out.parts)
    elif values.device.type == "cpu":
        np.sqrt(values.numpy(), out=out.numpy())
    else:
        torch.sqrt(values, out=out)


def scale(tensors: Sequence[Tensor], factors: Sequence[float]) -> None:
    """Multiply each tensor, all on one device, by the factor at its place."""
    if tensors and is_exact_together(tensors[0].device):
        torch._foreach_mul_(list(tensors), list(factors))
        return
    for tensor, factor in zip(tensors, factors, strict=True):
        tensor.mul_(factor)


def forbid_rounded_products() -> None:
    """Have all devices multiply float32 matrices, and convolve, in float32, GPUs in an order that is always the same.

    PyTorch lets NVIDIA's convolutions round what they multiply to 10 bits (TF32) unless told otherwise: gradients are
    then 2e-3 from those of a processor, by their length, and 1e-4 or less without. It holds for the whole process,
    since backward passes run on threads of their own.
    """
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    for names in ("cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn"):
        library, operation = names.split(".")
        settings: Any = getattr(getattr(torch.backends, library), operation, None)
        if hasattr(settings, "fp32_precision"):  # of newer versions; goes before what is said for several of them
            settings.fp32_precision = "ieee"
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True


def power(base: float, exponent: int) -> float:
    """Return `base` to the power of a whole number from 0 on, by repeated squaring in float64."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def work_device(device: torch.device) -> torch.device:
    """Return the device on which the arithmetic for tensors on `device` is done: itself, or the CPU."""
    return device if is_exact(device) else _CPU


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device had too little memory: each kind of device says so in its own way."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    said = str(error) if isinstance(error, RuntimeError) else ""
    if "cublasCreate" in said and "NOT_INITIALIZED" in said:  # it needs room of its own on the device
        return True
    words = ("out of memory", "not enough memory", "can't allocate memory", "ALLOC_FAILED", "ALLOCATION_FAILED")
    return any(each in said for each in words)


def is_exact(device: torch.device) -> bool:
    """Whether `device` rounds float32 and float64 as IEEE 754 says, by a trial on numbers of all magnitudes.

    The reference is NumPy. If the CPU itself fails, a `RuntimeWarning` says so: then its results may differ from other
    peers', and there is nothing better to compute on.
    """
    return passes(_rounds_once, device)


def is_exact_together(device: torch.device) -> bool:
    """Whether `device` gives the same bits where it changes many tensors together (`Tensors`), by a trial."""
    return device.type != "cpu" and is_exact(device) and passes(_groups, device)


def passes(trial: Callable[[torch.device], bool], device: torch.device) -> bool:
    """Whether `device` passes a trial; not while it lacks the memory for that."""
    try:
        return trial(device)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return False  # at present: nothing is kept of it, and the trial is made again the next time


@cache
def _rounds_once(device: torch.device) -> bool:
    try:
        exact = _is_gradual() and all(_agrees(device, dtype) for dtype in (np.float32, np.float64))
    except (RuntimeError, TypeError) as error:  # a device that lacks float64 or one of the operations
        if is_out_of_memory(error):
            raise
        exact = False
    if not exact and device.type == "cpu":
        warnings.warn(
            "this process does not round as IEEE 754 says, so other peers will compute other last bits: numbers below "
            "1e-38 become 0; call torch.set_flush_denormal(False) on this thread",
            RuntimeWarning,
            stacklevel=4,
        )
    return exact


@cache
def _groups(device: torch.device) -> bool:
    try:
        return all(_agrees_together(device, dtype) for dtype in (np.float32, np.float64))
    except (RuntimeError, TypeError) as error:  # an operation is missing
        if is_out_of_memory(error):
            raise
        return False


def _agrees_together(device: torch.device, dtype: type[np.float32 | np.float64]) -> bool:
    numbers = [torch.from_numpy(each).to(device) for each in _numbers(dtype)]
    others, constant = numbers[::-1], rounded(0.1, numbers[0].dtype)
    apart: list[list[Tensor]] = []
    together: list[Tensors] = []
    for change in ("mul_", "add_"):
        apart.append([getattr(each.clone(), change)(constant) for each in numbers])
        together.append(getattr(_copies(numbers), change)(constant))
    for change in ("mul_", "add_", "sub_"):
        apart.append([getattr(a.clone(), change)(b) for a, b in zip(numbers, others, strict=True)])
        together.append(getattr(_copies(numbers), change)(Tensors(others)))
    roots, quotients = [torch.empty_like(each) for each in numbers], _copies(others)
    for each, root in zip(numbers, roots, strict=True):
        square_root(each.abs(), root)
    square_root(Tensors([each.abs() for each in numbers]), found := _copies(numbers))
    divide(Tensors(numbers), quotients)
    torch._foreach_mul_((scaled := _copies(numbers)).parts, [constant, 3.0])
    apart.append([each * factor for each, factor in zip(numbers, (constant, 3.0), strict=True)])
    together.append(scaled)
    apart += [roots, [a / b for a, b in zip(numbers, others, strict=True)]]
    together += [found, quotients]
    return all(
        _equal_bits(ours, theirs.cpu().numpy())
        for one, other in zip(together, apart, strict=True)
        for ours, theirs in zip(one.parts, other, strict=True)
    )


def _copies(tensors: Sequence[Tensor]) -> Tensors:
    return Tensors([each.clone() for each in tensors])


def _is_gradual() -> bool:
    """Whether numbers below the smallest normal one exist on this thread, for torch and for NumPy."""
    halved = torch.full((64,), _SMALLEST_NORMAL, dtype=torch.float32, device=_CPU).mul_(0.5)
    return bool((halved != 0).all()) and bool(np.float32(_SMALLEST_NORMAL) * np.float32(0.5) != 0)


def _agrees(device: torch.device, dtype: type[np.float32 | np.float64]) -> bool:
    first, second = _numbers(dtype)
    a, b = (torch.from_numpy(each).to(device) for each in (first, second))
    constant, roots = rounded(0.1, a.dtype), torch.empty_like(a)
    square_root(a.abs(), roots)
    with np.errstate(all="ignore"):
        pairs = [
            (a + b, first + second),
            (a - b, first - second),
            (a * b, first * second),
            (a / b, first / second),
            (roots, np.sqrt(np.abs(first))),
            (a * constant, first * dtype(constant)),
            (a + constant, first + dtype(constant)),
            (a.to(torch.float32), first.astype(np.float32)),
            (a.to(torch.float64), first.astype(np.float64)),
        ]
    return all(_equal_bits(ours, theirs) for ours, theirs in pairs)


def _numbers(dtype: type[np.float32 | np.float64]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Two arrays of finite numbers other than 0: of any bits, near 1, and around the smallest normal one."""
    generator = np.random.default_rng(0)
    info = np.finfo(dtype)
    any_bits = np.frombuffer(generator.bytes(2 * _TRIED * np.dtype(dtype).itemsize), dtype=dtype)
    near_one = generator.standard_normal(2 * _TRIED).astype(dtype)
    tiny = (generator.standard_normal(2 * _TRIED) * (4 * float(info.smallest_normal))).astype(dtype)
    found = []
    for half in (slice(0, _TRIED), slice(_TRIED, None)):
        numbers = np.concatenate([any_bits[half], near_one[half], tiny[half], near_one[half]])
        found.append(np.where(np.isfinite(numbers) & (numbers != 0), numbers, dtype(1.5)).astype(dtype))
    return found[0], found[1]


def _equal_bits(ours: Tensor, theirs: npt.NDArray[Any]) -> bool:
    """Whether both hold the same bits; results that are no number count as equal."""
    own = ours.cpu().numpy()
    whole = np.int32 if own.dtype == np.float32 else np.int64
    same = own.view(whole) == np.ascontiguousarray(theirs).view(whole)
    return bool((same | (np.isnan(own) & np.isnan(theirs))).all())
