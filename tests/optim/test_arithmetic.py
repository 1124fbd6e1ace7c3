"""The trial of a device, constants, and sums in a fixed order."""

from __future__ import annotations

import math
import operator
import struct
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minga.optim import arithmetic, pieces
from minga.optim.arithmetic import forbid_rounded_products, power, rounded, square_root
from minga.optim.norms import FEWEST_LANES, clip_by_global_norm, global_norm, norms, row_norms, sums_of_squares

CPU = torch.device("cpu")


def test_square_roots_are_rounded_once() -> None:
    """torch.sqrt is not on every CPU: MKL is one unit in the last place off, here and there."""
    numbers = np.random.default_rng(4).lognormal(0.0, 20.0, 3000).astype(np.float32)
    numbers[:3] = 0.0, 1e-45, 3.4e38
    roots = torch.empty(len(numbers))
    square_root(torch.from_numpy(numbers), roots)
    for number, root in zip(numbers, roots.numpy(), strict=True):
        below, above = (float(np.nextafter(root, np.float32(end))) for end in (0.0, np.inf))
        low, high = ((Fraction(float(root)) + Fraction(other)) / 2 for other in (below, above))
        assert low**2 <= Fraction(float(number)) <= high**2


def test_a_process_that_takes_small_numbers_for_zero_is_told() -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush small numbers to zero")
    try:
        with pytest.warns(RuntimeWarning, match="set_flush_denormal"):
            assert not arithmetic._rounds_once.__wrapped__(CPU)
    finally:
        torch.set_flush_denormal(False)
    assert arithmetic._rounds_once.__wrapped__(CPU)


def test_what_a_device_cannot_do_exactly_is_done_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "is_exact", lambda device: device.type != "mps")
    assert arithmetic.work_device(torch.device("mps")) == CPU
    assert arithmetic.work_device(torch.device("cuda", 1)) == torch.device("cuda", 1)
    assert pieces.Place.of(torch.ones(3, dtype=torch.bfloat16)) == (CPU, torch.float32)


@given(st.floats(allow_nan=False))
def test_constants_are_rounded_to_float32(value: float) -> None:
    single = rounded(value, torch.float32)
    assert rounded(value, torch.float64) == value
    if abs(value) < 3.4e38:
        assert single == struct.unpack("f", struct.pack("f", value))[0]
    elif abs(value) > 3.41e38:
        assert math.isinf(single)


@given(st.floats(0.0, 1.0), st.integers(0, 5000))
def test_powers(base: float, exponent: int) -> None:
    assert power(base, exponent) == pytest.approx(base**exponent, rel=1e-11, abs=1e-300)


@pytest.mark.parametrize("numel", [0, 1, 16 * FEWEST_LANES + 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_norm_is_that_of_exact_sums(numel: int, dtype: torch.dtype) -> None:
    values = torch.from_numpy(np.random.default_rng(numel).standard_normal(numel)).to(dtype)
    exact = math.sqrt(math.fsum(float(each) ** 2 for each in values.double()))
    assert norms([values]) == pytest.approx([exact], rel=1e-14)


def test_a_norm_neither_overflows_nor_vanishes() -> None:
    assert norms([torch.full((4,), 1e30), torch.full((4,), 1e-40)]) == pytest.approx([2e30, 2e-40], rel=1e-5)
    assert math.isinf(norms([torch.tensor([math.inf, 1.0])])[0])
    assert math.isnan(global_norm([torch.ones(3), torch.tensor([math.nan])]))


@pytest.mark.parametrize("numel", [1, 700, 1025, 3000, 16_385, 40_000, 70_001, 131_072])
def test_the_order_of_the_sum_is_that_of_the_definition(numel: int) -> None:
    values = np.random.default_rng(numel).standard_normal(numel).astype(np.float32)
    expected = [float(value) ** 2 for value in values]
    while len(expected) & (len(expected) - 1):
        expected.append(0.0)
    while len(expected) > 1:
        half = len(expected) // 2
        expected = [low + high for low, high in zip(expected[:half], expected[half:], strict=True)]
    both = torch.stack([torch.from_numpy(values), torch.zeros(numel)], dim=1)
    assert sums_of_squares([torch.from_numpy(values), both[:, 0], torch.ones(3)]) == [*expected, *expected, 3.0]


@pytest.mark.parametrize("shape", [(5, 1), (7, 128), (300, 33)])
def test_row_norms_are_those_of_float64_on_any_number_of_threads(shape: tuple[int, int]) -> None:
    matrix = torch.from_numpy(np.random.default_rng(1).standard_normal(shape)).float()
    expected = np.linalg.norm(matrix.double().numpy(), axis=1, keepdims=True)
    np.testing.assert_allclose(row_norms(matrix).numpy(), expected, rtol=1e-14)
    threads, found = torch.get_num_threads(), []
    try:
        for number in (1, 4):
            torch.set_num_threads(number)
            found.append(row_norms(matrix))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)


def test_clipping_is_that_of_torch_up_to_rounding() -> None:
    generator = np.random.default_rng(8)
    shapes = [(40, 30), (7,), (9000,), ()]
    ours, theirs = ([torch.nn.Parameter(torch.zeros(shape)) for shape in shapes] for _ in range(2))
    for one, other in zip(ours, theirs, strict=True):
        one.grad = torch.from_numpy(np.asarray(generator.standard_normal(tuple(one.shape)))).float()
        other.grad = one.grad.clone()
    untouched = torch.nn.Parameter(torch.ones(3))
    norm = clip_by_global_norm([*ours, untouched], 0.5)
    expected = torch.nn.utils.clip_grad_norm_(theirs, 0.5)
    assert norm == pytest.approx(float(expected), rel=1e-6)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-6, atol=0.0)
    before = [one.grad.clone() for one in ours]
    assert clip_by_global_norm(ours, 1.0) == pytest.approx(0.5, rel=1e-5)
    assert all(torch.equal(one.grad, kept) for one, kept in zip(ours, before, strict=True))
    assert untouched.grad is None


def test_clipping_shows_gradients_that_are_no_number() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.tensor([1.0, math.nan, 1.0])
    assert math.isnan(clip_by_global_norm([parameter], 1.0))
    assert parameter.grad.isnan().all()
    assert clip_by_global_norm([torch.nn.Parameter(torch.ones(2))], 1.0) == 0.0


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="of newer versions of PyTorch")
@pytest.mark.parametrize("scope", ["", "cudnn", "mkldnn", "mkldnn.matmul", "cudnn.conv", "cuda.matmul"])
def test_products_are_not_rounded_whatever_the_program_allowed(scope: str) -> None:
    torch.set_float32_matmul_precision("medium")
    scopes = operator.attrgetter(scope)(torch.backends) if scope else torch.backends
    before, scopes.fp32_precision = scopes.fp32_precision, "tf32"
    try:
        forbid_rounded_products()
        used = ("cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")
        found = {name: operator.attrgetter(name)(torch.backends).fp32_precision for name in used}
        assert found == dict.fromkeys(used, "ieee")
        assert torch.get_float32_matmul_precision() == "highest"  # torch.compile asks for it
    finally:
        scopes.fp32_precision = before
        torch.set_float32_matmul_precision("highest")
