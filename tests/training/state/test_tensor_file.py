"""Files written piece by piece: the library reads them, with every dtype that a state may hold."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from minga.averaging.codecs.tensor_bytes import as_bytes
from minga.training.state.checkpoints import NAMES, write_tensors
from minga.training.state.snapshot import DTYPES, TensorEntry


def pieces(tensor: torch.Tensor) -> Iterator[memoryview]:
    whole = as_bytes(tensor.reshape(-1).view(torch.uint8))
    for start in range(0, len(whole), 5):
        yield whole[start : start + 5]


def test_the_library_reads_what_was_written_in_pieces(tmp_path: Path) -> None:
    assert NAMES.keys() == DTYPES.keys()
    generator = torch.Generator().manual_seed(1)
    raw = torch.randint(0, 2, (3, 16), dtype=torch.uint8, generator=generator)
    tensors = {f'a "{name}" é': raw.view(-1).view(dtype).view(3, -1).clone() for name, dtype in DTYPES.items()}
    tensors["a scalar"], tensors["nothing"] = torch.tensor(3.0), torch.zeros(0, 4)
    names = {dtype: name for name, dtype in DTYPES.items()}
    entries = [
        (TensorEntry(name, names[tensor.dtype], tuple(tensor.shape)), partial(pieces, tensor))
        for name, tensor in tensors.items()
    ]
    path = tmp_path / "some.safetensors"
    with path.open("wb") as file:
        write_tensors(file, entries, {"format": "pt"})
    with safe_open(path, framework="pt") as opened:
        assert opened.metadata() == {"format": "pt"}
    read = load_file(path)
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(read[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


def test_a_file_without_tensors_can_be_read(tmp_path: Path) -> None:
    with (tmp_path / "none.safetensors").open("wb") as file:
        write_tensors(file, [])
    assert load_file(tmp_path / "none.safetensors") == {}
