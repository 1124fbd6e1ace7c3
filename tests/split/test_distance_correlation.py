"""Distance correlation: what it promises, the package `dcor`, and its gradients."""

from __future__ import annotations

import pytest
import torch

from minga.split import distance_correlation
from minga.split.no_peek import MOST_SAMPLES


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def related(seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = normal(40, 6, seed=seed, dtype=dtype)
    return inputs, torch.tanh(inputs @ normal(6, 3, seed=seed + 1, dtype=dtype)) + 0.3 * normal(
        40, 3, seed=seed + 2, dtype=dtype
    )


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_it_equals_the_package_dcor(dtype: torch.dtype, close: float, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    # Else its import compiles for half a minute its way for single columns, which is not asked for here.
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    import numba

    monkeypatch.setattr(numba, "guvectorize", lambda *_settings, **_named: lambda function: function)
    import dcor

    torch.set_num_threads(threads)  # its import changes them, and all tests after it would be many times slower

    for seed in range(5):
        inputs, activations = related(10 * seed, dtype)
        expected = dcor.distance_correlation(inputs.double().numpy(), activations.double().numpy())
        found = distance_correlation(inputs, activations)
        assert found.dtype == dtype
        assert float(found) == pytest.approx(float(expected), abs=close)


def test_its_gradients_are_those_of_finite_differences() -> None:
    inputs, activations = normal(7, 4), normal(7, 3, seed=1)
    assert torch.autograd.gradcheck(
        distance_correlation, (inputs.requires_grad_(), activations.requires_grad_()), atol=1e-6
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_samples_and_dead_activations_give_finite_gradients(dtype: torch.dtype) -> None:
    inputs = normal(12, 5, dtype=dtype)
    twice = torch.cat([inputs[:6], inputs[:6]])
    for activations in (inputs, twice, torch.zeros(12, 3, dtype=dtype), torch.ones(12, 3, dtype=dtype)):
        leaf = activations.clone().requires_grad_()
        found = distance_correlation(inputs, leaf)
        found.backward()
        assert leaf.grad is not None
        assert bool(leaf.grad.isfinite().all())
        assert 0.0 <= float(found.detach()) <= 1.0 + 1e-6
    assert float(distance_correlation(inputs, torch.ones(12, 3, dtype=dtype))) == 0.0


def test_samples_far_from_the_origin_keep_their_distances_in_float32() -> None:
    inputs = normal(200, 8, dtype=torch.float32)
    assert float(distance_correlation(inputs, inputs + 1000.0)) == pytest.approx(1.0, abs=1e-5)


def test_half_precision_is_computed_in_float32_and_any_shape_counts_as_rows() -> None:
    inputs, activations = normal(20, 1, 4, 4, dtype=torch.float32), normal(20, 2, 3, seed=1, dtype=torch.float32)
    whole = distance_correlation(inputs, activations)
    assert float(whole) == float(distance_correlation(inputs.flatten(1), activations.flatten(1)))
    halved = distance_correlation(inputs.half(), activations.bfloat16())
    assert halved.dtype == torch.float32
    assert float(halved) == pytest.approx(float(whole), abs=1e-2)


@pytest.mark.parametrize("counts", [(3, 4), (0, 0), (MOST_SAMPLES + 1, MOST_SAMPLES + 1)])
def test_batches_of_no_or_other_samples_are_refused(counts: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="samples"):
        distance_correlation(torch.zeros(counts[0], 2), torch.zeros(counts[1], 2))
    with pytest.raises(ValueError, match="samples"):
        distance_correlation(torch.tensor(1.0), torch.tensor(1.0))
