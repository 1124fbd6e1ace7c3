"""How fast devices compute: a table of estimates, and what `minga plan --measure` measured on this machine.

An estimate of samples per second is

    peak arithmetic of the data sheet * share of it that training reaches / operations of a sample

with the operations of `minga.planner.model_facts` (forward and backward). The shares are assumptions:
half of the peak in float32 and a sixth of the tensor cores' in half precision, whose small products they wait for.
They make a T4 compute some 10 samples per second of ALBERT-large (512 tokens) in half precision, the speed that the
spread of T4s in published collaborations was planned with; single devices may be off by a factor of two either way.
To know, measure (`minga plan --measure`), or give samples_per_s.

The update after a round is taken to touch `UPDATE_BYTES` of memory for each parameter (LAMB reads and writes
gradients, moments and parameters several times), and the processor of each peer, which encodes, decodes and hashes
the vector, to take `HOST_S_PER_PARAMETER`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import platformdirs

from minga.core.decoding import decode_json
from minga.core.errors import ConfigurationError, reason_of
from minga.core.files import store

HALF_SHARE: Final = 1.0 / 6.0
SINGLE_SHARE: Final = 0.5
UPDATE_BYTES: Final = 80.0
HOST_S_PER_PARAMETER: Final = 4e-9
MAX_FILE_BYTES: Final = 1 << 20
THIS: Final = "this"

Precision = Literal["auto", "single", "half"]
"""In which format a device computes; "auto" is what `minga join` chooses for it."""


@dataclass(frozen=True)
class Device:
    """A kind of device by its data sheet: operations per second in float32 and half precision (16-bit factors, sums of
    32 bits where it has them), bytes of memory, bytes per second to it, the micro-batch that `minga join` takes,
    whether it takes a smaller one by itself where memory is short, and whether it chooses half precision: on NVIDIA's
    devices with tensor cores.
    """

    single_per_s: float
    half_per_s: float
    memory_bytes: int
    memory_bytes_per_s: float
    micro_batch: int = 64
    fits_micro_batch: bool = True
    joins_in_half: bool = False

    def samples_per_s(self, operations: float, precision: Precision) -> float:
        """Estimated speed for samples of so many operations."""
        if precision == "single" or (precision == "auto" and not self.joins_in_half):
            return self.single_per_s * SINGLE_SHARE / operations
        return max(self.half_per_s * HALF_SHARE, self.single_per_s * SINGLE_SHARE) / operations

    def update_s(self, parameters: int) -> float:
        """Estimated seconds to apply a step."""
        return parameters * (UPDATE_BYTES / self.memory_bytes_per_s + HOST_S_PER_PARAMETER)


def _device(single: float, half: float, memory_gib: int, gb_per_s: float) -> Device:
    return Device(single * 1e12, half * 1e12, memory_gib << 30, gb_per_s * 1e9)


def _processor(operations: float, memory_gib: int, gb_per_s: float) -> Device:
    return replace(_device(operations, operations, memory_gib, gb_per_s), micro_batch=16, fits_micro_batch=False)


def _with_tensor_cores(single: float, half: float, memory_gib: int, gb_per_s: float) -> Device:
    return replace(_device(single, half, memory_gib, gb_per_s), joins_in_half=True)


DEVICES: Final[dict[str, Device]] = {
    # 10^12 operations/s in float32, in half precision; GiB; 10^9 bytes/s: the makers' data sheets, without sparsity
    "t4": _with_tensor_cores(8.1, 65, 16, 320),
    "p100": _device(9.3, 18.7, 16, 732),
    "v100": _with_tensor_cores(15.7, 125, 16, 900),
    "a10g": _with_tensor_cores(31.2, 70, 24, 600),
    "l4": _with_tensor_cores(30.3, 121, 24, 300),
    "a100": _with_tensor_cores(19.5, 312, 40, 1555),
    "h100": _with_tensor_cores(67, 989, 80, 3350),
    "h200": _with_tensor_cores(67, 989, 141, 4800),
    "1080ti": _device(11.3, 11.3, 11, 484),
    "2080ti": _with_tensor_cores(13.4, 54, 11, 616),
    "3060": _with_tensor_cores(12.7, 25.4, 12, 360),
    "3090": _with_tensor_cores(35.6, 71, 24, 936),
    "4090": _with_tensor_cores(82.6, 165, 24, 1008),
    "m1": _device(2.6, 5.2, 8, 68),
    "m2-pro": _device(6.8, 13.6, 16, 200),
    # eight cores with 256-bit vectors at some 2.5 GHz; a server with four times as many
    "laptop-cpu": _processor(0.6, 16, 40),
    "server-cpu": _processor(2.4, 64, 150),
}
ALIASES: Final = {"cpu": "laptop-cpu", "laptop": "laptop-cpu", "rtx3090": "3090", "rtx4090": "4090", "rtx3060": "3060"}


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured of one model on one device of this machine. Which model that is, its `shape` says: models of
    two run specs may have one name.

    `update_s` is that of applying one step of all parameters; `peak_bytes` the most memory of the device in use while
    the micro-batch was computed (None where that cannot be told).
    """

    device: str
    model: str
    parameters: int
    operations: float
    tokens: int
    micro_batch: Annotated[int, msgspec.Meta(ge=1)]
    samples_per_s: Annotated[float, msgspec.Meta(gt=0)]
    update_s: Annotated[float, msgspec.Meta(ge=0)]
    peak_bytes: int | None
    hardware: str

    @property
    def shape(self) -> tuple[int, float, int]:
        """Parameters, and the operations and tokens of a sample."""
        return self.parameters, self.operations, self.tokens

    @property
    def name(self) -> str:
        """The model, for people."""
        return f"{self.model} of {self.parameters:,} parameters with {self.tokens} tokens"


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    measurements: list[Measurement]


def table_path() -> Path:
    """Where measurements of this machine are kept."""
    return platformdirs.user_data_path("minga", appauthor=False) / "devices.json"


def read_measurements(path: Path | None = None) -> list[Measurement]:
    """What was measured on this machine, empty if nothing was. Raises `ConfigurationError` if the file is damaged."""
    path = path or table_path()
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        return decode_json(data[:MAX_FILE_BYTES], _Table).measurements
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {reason_of(error)}") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigurationError(
            f"{path}: no table of devices ({error}); `minga plan --measure` makes a new one"
        ) from error


def keep_measurements(found: list[Measurement], path: Path | None = None) -> Path:
    """Add measurements to those of this machine; what was known of the same device and model is replaced."""
    path = path or table_path()
    try:
        before = read_measurements(path)
    except ConfigurationError:
        before = []  # it is damaged, and nothing in it can be saved
    replaced = {(each.device, each.shape) for each in found}
    kept = [each for each in before if (each.device, each.shape) not in replaced]
    table = msgspec.to_builtins(_Table([*kept, *found]))
    store(path, json.dumps(table, indent=1).encode() + b"\n")
    return path


def look_up(name: str) -> Device:
    """The device called `name`. Raises `ConfigurationError` with the known names."""
    device = DEVICES.get(ALIASES.get(name, name))
    if device is None:
        raise ConfigurationError(
            f"no device called {name!r}; there are: {', '.join(DEVICES)}, {', '.join(ALIASES)}, and {THIS!r} for this "
            "machine once `minga plan --measure` has measured it; or give samples_per_s="
        )
    return device
