"""Which devices this machine has, and on which of them a peer computes: one process for each, see `local_ranks.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import torch
import torch.distributed as dist

from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.core.units import counted
from minga.core.urls import CUDA_WHEELS

MAX_DEVICES: Final = 64


def devices() -> list[str]:
    """What this machine can compute with, the accelerators first."""
    found = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return [*found, *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]


def hardware(device: torch.device) -> str:
    """What the device is called by its maker, as far as one can tell."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {counted(torch.get_num_threads(), 'thread')}" if device.type == "cpu" else device.type


def choose_device(name: str) -> torch.device:
    """The device called `name`, checked by using it; "auto" is the best one there is."""
    advice = "auto"
    if name == "auto":
        best = "mps" if torch.backends.mps.is_available() else "cpu"
        name, advice = "cuda" if torch.cuda.is_available() else best, "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigurationError(
            f"--device {name[:40]}: PyTorch has no device of this name; choose auto, cpu, cuda, cuda:1 or mps"
        ) from error
    if device.type == "cuda" and torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        raise ConfigurationError(
            f"--device {name}: this PyTorch is built for the processor only; for an NVIDIA GPU install another one: "
            f"python -m pip install --force-reinstall torch --index-url {CUDA_WHEELS}"
        )
    try:
        torch.ones(1, device=device).sum().item()  # zeros would need no kernel
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).strip().split("\n")[0][:160]
        raise ConfigurationError(
            f"--device {name}: this machine cannot use it ({why}); try --device {advice}"
        ) from error
    return device


def choose_devices(name: str, count: str, spec: RunSpec, role: str) -> list[torch.device]:
    """The devices of a peer, one for each of its processes.

    `name` is that of `choose_device`. `count` is "all": all GPUs that PyTorch finds if `name` leaves the choice, else
    the one device that it names. Or it is a number: of those GPUs, or of processes on the one device. Peers that
    compute no gradients have one, and so have those of byzantine runs, where each process is a peer of its own. Raises
    `ConfigurationError` for a count that this machine or the run does not allow.
    """
    wanted = _parse(count)
    first = choose_device(name)
    if role not in ("trainer", "client"):
        return [first]
    is_verified = spec.security.verification == "byzantine"
    if is_verified or not (dist.is_available() and dist.is_gloo_available()):
        if wanted is not None and wanted > 1:
            why = "in this run each process is a peer with a key of its own" if is_verified else "PyTorch has no gloo"
            raise ConfigurationError(
                f"--devices {count}: {why}; start one `minga join` for each device, with --device and --identity"
            )
        return [first]
    found = _gpus() if first == torch.device("cuda") else []
    if not found:
        return [first] * (wanted or 1)
    if wanted is not None and wanted > len(found):
        raise ConfigurationError(f"--devices {count}: PyTorch finds {len(found)} on this machine")
    return found[:wanted]


def machine_name(devices: Sequence[torch.device]) -> str:
    """What the devices are called by their makers, as far as one can tell, such as "2 x NVIDIA RTX A4000"."""
    names = Counter(hardware(device) for device in devices)
    return ", ".join(name if number == 1 else f"{number} x {name}" for name, number in names.items())


def _gpus() -> list[torch.device]:
    return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]


def _parse(count: str) -> int | None:
    if count == "all":
        return None
    if not (count.isascii() and count.isdecimal() and 1 <= int(count) <= MAX_DEVICES):
        raise ConfigurationError(f"--devices {count[:20]}: choose a number from 1 to {MAX_DEVICES}, or all")
    return int(count)
