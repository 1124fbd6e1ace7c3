"""Writing a safetensors file piece by piece, so that it takes no memory beside the state that is written.

The format: 8 bytes with the length of the header, little-endian; the header, JSON with dtype, shape and place of each
tensor, and spaces up to a multiple of 8 bytes; then the tensors, one behind the other. Widest dtypes come first, so
that each tensor lies at a multiple of its element size. Reading is left to the library.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO

from minga.training.state.snapshot import DTYPES, TensorEntry

NAMES = {
    "bfloat16": "BF16",
    "bool": "BOOL",
    "complex64": "C64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "int8": "I8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "uint8": "U8",
}
"""The format's names of the dtypes of a state."""

Pieces = Callable[[], Iterable[memoryview]]
"""The bytes of one tensor, in order, when they are asked for."""


def write_tensors(
    file: IO[bytes], tensors: Sequence[tuple[TensorEntry, Pieces]], metadata: Mapping[str, str] | None = None
) -> None:
    """Write all `tensors` and the `metadata`. Raises `OSError` when the disk refuses."""
    ordered = sorted(tensors, key=lambda each: (-DTYPES[each[0].dtype].itemsize, each[0].name))
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for entry, _ in ordered:
        start, end = end, end + entry.size_bytes
        header[entry.name] = {"dtype": NAMES[entry.dtype], "shape": list(entry.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for _, pieces in ordered:
        for piece in pieces():
            file.write(piece)
