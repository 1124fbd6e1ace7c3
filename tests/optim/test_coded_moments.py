"""Moments in 8 bits: the nearest of the values, the same bits however work is cut, and nothing where nothing was."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from minga.optim import LAMB, AdamW, MomentStorage
from minga.optim.block_codes import blocks_of, code_values, decode, encode

CODED = MomentStorage(8)


@pytest.mark.parametrize("signed", [True, False])
def test_a_value_gets_the_nearest_code_and_the_lower_of_two(signed: bool) -> None:
    values = np.asarray(code_values(signed=signed))
    assert len(values) == len(set(values)) == 256
    assert values[-1] == 1.0
    assert values[0] == (-0.99296875 if signed else 0.0)
    assert min(abs(values[values != 0])) == pytest.approx(5.5e-7 if signed else 3.25e-7)
    given = np.geomspace(1e-9, 1.0, 500_000, dtype=np.float32)
    given = np.concatenate([[0.0], -given if signed else given, given]).astype(np.float32)
    given[1] = 1.0  # the scale
    if not signed:
        given[(given > 0) & (given < values[1] / 2)] = values[1]  # these are not rounded to 0, see below
    codes, scales = torch.empty(len(given), dtype=torch.uint8), torch.empty(1)
    encode([torch.from_numpy(given)], [codes], [scales], block=1 << 20, signed=signed)
    table = values.astype(np.float32)
    assert float(scales) == 1.0
    distance = np.abs(given - table[codes.numpy()])
    for neighbour in (-1, 1):
        other = table[np.clip(codes.numpy().astype(int) + neighbour, 0, 255)]
        assert (distance <= np.abs(given - other) + 1e-7 * np.abs(given)).all()
    assert table[codes[0]] == 0.0
    halves = ((values[1:] + values[:-1]) / 2).astype(np.float32)
    halves[-1] = 1.0  # the scale
    encode([torch.from_numpy(halves)], [codes[:255]], [scales], block=1 << 20, signed=signed)
    lower = np.maximum(np.arange(254), 0 if signed else 1)
    assert (codes[:254].numpy() == lower).all(), "half-way it is the lower one"


def test_an_element_far_smaller_than_its_block_takes_no_step_of_a_thousand_rates() -> None:
    parameter = nn.Parameter(torch.zeros(70_000))
    optimizer = AdamW([parameter], lr=1e-3, weight_decay=0.0, storage=CODED)
    for step in range(12):
        parameter.grad = torch.zeros_like(parameter)
        parameter.grad[0], parameter.grad[1] = 1.0, 0.0 if step == 10 else 1e-4
        before = parameter.detach().clone()
        optimizer.step()
        assert float((parameter.detach() - before).abs().max()) < 1.01e-3


def test_signs_are_kept_where_the_values_have_both() -> None:
    given = torch.randn(4096, generator=torch.Generator().manual_seed(0)).clamp(-0.9, 0.9)
    given[0], given[1] = 1.0, -1.0
    there, back = (torch.empty(4096, dtype=torch.uint8) for _ in range(2))
    scales = torch.empty(1)
    encode([given], [there], [scales], block=4096, signed=True)
    encode([-given], [back], [scales], block=4096, signed=True)
    (ones,) = decode([there], [scales], block=4096, signed=True)
    (others,) = decode([back], [scales], block=4096, signed=True)
    ties = ones != -others
    assert int(ties[2:].sum()) <= 2


def test_a_block_of_zeros_stays_one_and_blocks_do_not_mix() -> None:
    given = torch.cat([torch.zeros(16), torch.full((16,), 3e-39), torch.full((5,), -1e30)])
    codes, scales = torch.empty(37, dtype=torch.uint8), torch.empty(blocks_of(37, 16))
    encode([given], [codes], [scales], block=16, signed=True)
    (read,) = decode([codes], [scales], block=16, signed=True)
    assert torch.equal(read[:32], given[:32])
    assert torch.allclose(read[32:], given[32:], rtol=0.01)


def trained(
    kind: type[LAMB | AdamW], storage: MomentStorage, steps: int = 6
) -> tuple[nn.Parameter, torch.optim.Optimizer]:
    generator = torch.Generator().manual_seed(3)
    parameter = nn.Parameter(torch.randn(300, 250, generator=generator))
    optimizer = kind([parameter], lr=1e-2, storage=storage)
    for _ in range(steps):
        parameter.grad = torch.randn(300, 250, generator=generator)
        optimizer.step()
    return parameter.requires_grad_(False), optimizer


@pytest.mark.parametrize("kind", [LAMB, AdamW])
def test_moments_take_two_bytes_an_element_and_are_close_to_whole_ones(kind: type[LAMB | AdamW]) -> None:
    coded, optimizer = trained(kind, CODED)
    taken = sum(tensor.nbytes for tensor in optimizer.state[coded].values())
    assert taken <= 2.01 * coded.numel()
    whole, _ = trained(kind, MomentStorage())
    start, _ = trained(kind, CODED, steps=0)
    assert float((coded - whole).norm()) < 0.05 * float((whole - start).norm())
    assert not torch.equal(coded, whole)


@pytest.mark.parametrize("kind", [LAMB, AdamW])
def test_small_tensors_and_wide_ones_are_kept_as_they_are(kind: type[LAMB | AdamW]) -> None:
    small = nn.Parameter(torch.randn(255, 257))
    wide = nn.Parameter(torch.randn(70_000, dtype=torch.float64))
    optimizer = kind([small, wide], storage=CODED)
    small.grad, wide.grad = torch.ones_like(small), torch.ones_like(wide)
    optimizer.step()
    assert all("exp_avg" in optimizer.state[each] for each in (small, wide))


@pytest.mark.parametrize("kind", [LAMB, AdamW])
def test_rows_without_gradient_and_decay_never_move(kind: type[LAMB | AdamW]) -> None:
    generator = torch.Generator().manual_seed(5)
    parameter = nn.Parameter(torch.randn(70, 1000, generator=generator))
    before = parameter.detach().clone()
    optimizer = kind([parameter], lr=1e-2, weight_decay=0.0, storage=CODED)
    for _ in range(5):
        gradient = torch.randn(70, 1000, generator=generator)
        gradient[::2] = 0.0  # in blocks with rows that have one
        parameter.grad = gradient
        optimizer.step()
    assert torch.equal(parameter[::2], before[::2])
    assert not torch.equal(parameter[1::2], before[1::2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torch_state_dicts_keep_the_codes(dtype: torch.dtype) -> None:
    parameter = nn.Parameter(torch.randn(70, 1000, generator=torch.Generator().manual_seed(1)).to(dtype).t())
    optimizer = LAMB([parameter], storage=CODED, debias=False)
    parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    other = nn.Parameter(parameter.detach().clone())
    again = LAMB([other], storage=CODED)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for name, tensor in optimizer.state[parameter].items():
        assert (again.state[other][name].dtype, again.state[other][name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(again.state[other][name], tensor)
    parameter.grad = torch.full_like(parameter, 0.1)
    other.grad = torch.full_like(other, 0.1)
    optimizer.step()
    again.step()
    assert torch.equal(parameter, other)


def test_without_debias_the_first_update_has_the_whole_rate() -> None:
    moved = []
    for debias in (True, False):
        parameter = nn.Parameter(torch.ones(4))
        optimizer = LAMB([parameter], lr=0.5, betas=(0.9, 0.999), weight_decay=0.0, debias=debias)
        parameter.grad = torch.ones(4)
        optimizer.step()
        moved.append(1.0 - float(parameter[0].detach()))
    assert moved[1] == pytest.approx(0.5)
    assert moved[0] == pytest.approx(0.5 * math.sqrt(1 - 0.999) / (1 - 0.9))


@pytest.mark.parametrize("wrong", [{"bits": 16}, {"bits": 8, "block": 8}, {"bits": 8, "least_numel": 0}])
def test_settings_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        MomentStorage(**wrong)
