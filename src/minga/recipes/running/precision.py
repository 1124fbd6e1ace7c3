"""In which number format a device computes losses and gradients; parameters and optimizer state stay in float32.

    --precision, the device, and in byzantine runs the run spec ─▶ choose_precision ─▶ Precision
        autocast around the loss ─▶ backward ─▶ float32 gradients, for float16 divided by the loss scale again

Each machine chooses for itself: what it sends are float32 gradients of float32 parameters. Only where members compute
each other's gradients again does the run spec say the format for all.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec

logger = logging.getLogger("minga.recipes")

FORMATS: Final[Mapping[str, torch.dtype]] = MappingProxyType(
    {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
)
CHOICES: Final = ("auto", *FORMATS)

BFLOAT16_CAPABILITY: Final = (8, 0)
FLOAT16_CAPABILITY: Final = (7, 0)
"""CUDA compute capabilities from which matrix products in these formats are faster than in float32."""

SMALLEST_SCALE: Final = 1.0
"""A loss scale below this means that the forward pass overflows: no scale helps, and float32 does."""


def choose_precision(wished: str, device: torch.device, spec: RunSpec) -> Precision:
    """The format that `device` computes in, for a peer whose owner `wished` for one of `CHOICES`.

    "auto" is the run spec's in a byzantine run; elsewhere bfloat16 on CUDA devices that have it, float16 on older ones
    with tensor cores, float32 on all others. Raises `ConfigurationError` for an unknown format, for one that the device
    refuses, and in a byzantine run for another one than the run's.
    """
    if wished not in CHOICES:
        raise ConfigurationError(f"--precision {wished}: choose {', '.join(CHOICES[:-1])} or {CHOICES[-1]}")
    if spec.security.verification == "byzantine":
        if wished not in ("auto", spec.security.precision):
            raise ConfigurationError(
                f"--precision {wished}: in this run all compute in {spec.security.precision}, so that each can check "
                "the others; leave --precision out"
            )
        name: str = spec.security.precision
    else:
        name = _fastest(device) if wished == "auto" else wished
    _try_out(name, device)
    return Precision(name, device)


def _fastest(device: torch.device) -> str:
    if device.type != "cuda":
        return "float32"
    if torch.version.hip is not None:  # there capabilities are numbered otherwise
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    capability = torch.cuda.get_device_capability(device)
    if capability >= BFLOAT16_CAPABILITY:
        return "bfloat16"
    return "float16" if capability >= FLOAT16_CAPABILITY else "float32"


def _try_out(name: str, device: torch.device) -> None:
    """Raise `ConfigurationError` if the device cannot multiply matrices in this format."""
    try:
        ones = torch.ones(2, 2, device=device, dtype=FORMATS[name])
        (ones @ ones).sum().item()
    except (RuntimeError, TypeError) as error:
        why = str(error).strip().split("\n")[0][:160]
        other = "--device cpu" if name == "float32" else "--precision float32"
        raise ConfigurationError(f"--precision {name}: {device} cannot compute in it ({why}); try {other}") from error


class Precision:
    """One number format on one device, with the loss scale that float16 needs (Micikevicius et al. 2018,
    arXiv:1710.03740); the scale is this machine's own.

    `name` is that of the format.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self.name, self._device = name, device
        self._scaler = torch.amp.GradScaler(device.type) if name == "float16" else None

    def autocast(self) -> AbstractContextManager[object]:
        """Compute the loss inside this; the backward pass outside."""
        return torch.autocast(self._device.type, FORMATS[self.name], enabled=self.name != "float32")

    def backward(self, loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
        """Lay the gradients of `loss` into the parameters of `optimizer`, which had none.

        Where float16 overflowed all are NaN, so that the micro-batch is dropped, and the loss scale is smaller from
        then on. A forward pass that overflows by itself ends float16 on this machine: float32 takes over.
        """
        if self._scaler is None:
            loss.backward()  # type: ignore[no-untyped-call]
            return
        scale = self._scaler.get_scale()
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self._scaler.unscale_(optimizer)
        self._scaler.update()
        if self._scaler.get_scale() >= scale:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.fill_(math.nan)
        if self._scaler.get_scale() < SMALLEST_SCALE:
            self.name, self._scaler = "float32", None
            logger.warning("float16 overflows whatever the loss scale: this machine goes on in float32")
