"""What this machine has for a run: an accelerator, a way in from outside, memory and disk for the model."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import platformdirs
import torch

from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.core.units import counted, format_size
from minga.core.urls import CUDA_WHEELS, is_public
from minga.recipes.interface import ParameterSizes
from minga.recipes.registry import CUSTOM, load_recipe

Finding = tuple[bool, str, str]
"""Whether it works, detail, advice."""


class Check(NamedTuple):
    """One hop: `ok` False with what to do in `advice`; `ok` True with an `advice` is a warning."""

    name: str
    ok: bool
    detail: str
    advice: str = ""


PYTORCH_BYTES = 600 << 20
"""Memory of a process with Python and PyTorch before it has a model; measured on Linux without a GPU."""


@dataclass(frozen=True)
class Accelerators:
    """What PyTorch and the system say: names of GPUs that PyTorch uses, what it was built for, whether a driver is
    there.
    """

    names: tuple[str, ...]
    built_for_gpu: bool
    has_nvidia_driver: bool
    processors: int

    @classmethod
    def of_this_machine(cls) -> Accelerators:
        """Ask PyTorch and the system."""
        names: tuple[str, ...] = ()
        if torch.cuda.is_available():
            names = tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
        elif torch.backends.mps.is_available():
            names = ("Apple GPU (mps)",)
        built = torch.version.cuda is not None or getattr(torch.version, "hip", None) is not None
        driver = shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia/version").exists()
        return cls(names, built, driver, torch.get_num_threads())


def accelerator(found: Accelerators) -> Finding:
    """Which GPU is used, or why none is and what to install."""
    if found.names:
        which = "it" if len(found.names) == 1 else "all of them, unless --device names one"
        return True, f"{', '.join(found.names)}; `minga join` uses {which}", ""
    if found.has_nvidia_driver and not found.built_for_gpu:
        install = f'"{sys.executable}" -m pip install --force-reinstall torch --index-url {CUDA_WHEELS}'
        return True, "an NVIDIA driver is here, but this PyTorch is built for the CPU only", f"run {install}"
    if found.has_nvidia_driver:
        return True, "an NVIDIA driver is here, but PyTorch cannot use its GPU", "update the NVIDIA driver and restart"
    return True, f"none; this machine computes with {counted(found.processors, 'thread')} of its processor", ""


def from_outside(direct: Sequence[str]) -> Finding:
    """Whether peers outside the local network can dial this machine, judged by the addresses that it knows."""
    public = [address for address in direct if is_public(address)]
    if public:
        detail = f"public address {public[0].rpartition(':')[0]}, where firewall and router let UDP in"
        return True, detail, ""
    return (
        True,
        "private addresses only",
        "nothing, if the run uses relays. Else forward a UDP port of the router to this machine; to host a run, then "
        "start it with --port PORT --announce YOUR.PUBLIC.IP:PORT",
    )


@dataclass(frozen=True)
class Needs:
    """Bytes that a run takes: of memory with PyTorch, the model, its optimizer and the base that it tunes, without
    activations; of its state; and of disk, with its checkpoints and the base.
    """

    memory: int
    state: int
    disk: int

    @classmethod
    def of(cls, spec: RunSpec, model: ParameterSizes) -> Needs:
        """What a run of this model takes."""
        from minga.averaging.strategy_choice import largest_strategy
        from minga.core.spec.sections import BASE_FOLDER
        from minga.training.replica.build_optimizer import moment_bytes

        size, moments = 4 * model.parameters, moment_bytes(model.tensors, spec.optimizer)
        vectors = 3 + largest_strategy(spec).facts.vectors
        state = size + moments
        base = sum(entry.size_bytes for name, entry in spec.files.items() if name.startswith(BASE_FOLDER))
        memory = PYTORCH_BYTES + size * vectors + moments + model.frozen_bytes
        return cls(memory, state, state * (spec.checkpoints.keep + 1) + base)


def model_of(spec: RunSpec) -> ParameterSizes | None:
    """What the run trains; None if that is the organiser's own program's, or its recipe is not installed here or makes
    no model of these settings, which joining says.
    """
    if spec.model.recipe == CUSTOM:
        return None
    try:
        recipe = load_recipe(spec)
        recipe.check_received()
        return recipe.parameter_sizes()
    except ConfigurationError:
        return None


def room(needs: Needs, total_memory: int | None, free_disk: int) -> Finding:
    """Whether this machine has them; activations of a micro-batch come on top."""
    detail = f"the run takes at least {format_size(needs.memory)} of memory and {format_size(needs.disk)} of disk"
    if total_memory is not None:
        detail += f"; here are {format_size(total_memory)} and {format_size(free_disk)} free"
    if total_memory is not None and needs.memory > total_memory:
        return False, detail, "the model does not fit into the memory of this machine: use another one"
    if needs.disk > free_disk:
        return False, detail, "free some disk, or join with --directory on another one"
    return True, detail, ""


def data_folder(directory: Path | None = None) -> Path:
    """The folder of runs (`directory`; None: the user's data folder), or the nearest one above it that exists."""
    folder = (directory or platformdirs.user_data_path("minga")).absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def room_for(spec: RunSpec, directory: Path | None) -> Finding | None:
    """Whether this machine has room for the run, whose folder is in `directory`; None if nobody can tell."""
    model = model_of(spec)
    if model is None:
        return None
    return room(Needs.of(spec, model), total_memory(), shutil.disk_usage(data_folder(directory)).free)


def total_memory(device: torch.device | None = None) -> int | None:
    """Bytes of the device that computes, by default the first GPU if there is one; None where the system does not
    say.
    """
    if torch.cuda.is_available() and (device is None or device.type == "cuda"):
        return int(torch.cuda.get_device_properties(device or 0).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
