from __future__ import annotations

import math
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.training.replica import flat_vector
from minga.training.replica.buffers import SharedBuffers
from minga.training.replica.flat_vector import PRESENT, ParameterVector, all_finite
from minga.training.replica.replica import Replica


def vector_of(*shapes: tuple[int, ...], codec: str = "float32", dtype: torch.dtype = torch.float32) -> ParameterVector:
    parameters = [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes]
    return ParameterVector(torch.optim.SGD(parameters, lr=1.0), SharedBuffers(None), codec)


def test_large_tensors_come_first_and_shared_ones_once() -> None:
    small, large, frozen = (torch.nn.Parameter(torch.zeros(n)) for n in (10, 70_000, 5))
    frozen.requires_grad_(False)
    optimizer = torch.optim.SGD([{"params": [small, frozen]}, {"params": [large]}], lr=1.0)
    vector = ParameterVector(optimizer, SharedBuffers(None), "adaptive")
    assert vector.layout.numels == (70_000, 10, 2)
    assert [p is q for p, q in zip(vector.parameters(), [large, small], strict=True)] == [True, True]
    assert (vector.parameters_numel, vector.numel) == (70_010, 70_012)
    with pytest.raises(ConfigurationError, match="no parameter"):
        ParameterVector(torch.optim.SGD([frozen], lr=1.0), SharedBuffers(None), "float32")


def test_what_is_accumulated_is_the_sum_over_samples() -> None:
    vector = vector_of((2, 3), (4,))
    assert vector.layout.shapes == ((2, 3), (4,), (2,))
    flat = vector.new()
    first, second = vector.parameters()
    first.grad, second.grad = torch.full((2, 3), 2.0), torch.arange(4.0)
    assert vector.accumulate(flat, 3)
    first.grad, second.grad = torch.full((2, 3), -1.0), None
    assert vector.accumulate(flat, 2)
    assert flat.tolist() == [4.0] * 6 + [0.0, 3.0, 6.0, 9.0] + [5 * PRESENT, 3 * PRESENT]
    vector.load(flat / 5)
    assert first.grad.shape == (2, 3)
    assert torch.allclose(first.grad, torch.tensor(0.8))
    assert second.grad is not None
    assert torch.allclose(second.grad, torch.arange(4.0) * 0.6)
    flat[-1] = 0.0  # as of one sample among so many that a codec rounds its share to nothing
    vector.load(flat / 5)
    assert second.grad is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_gradients_that_are_not_finite_leave_everything_as_it_was(dtype: torch.dtype, bad: float) -> None:
    vector = vector_of((3,), (2,), dtype=dtype)
    flat = torch.arange(5.0)
    first, second = vector.parameters()
    first.grad, second.grad = torch.ones(3, dtype=dtype), torch.tensor([1.0, bad], dtype=dtype)
    assert not vector.accumulate(flat, 4)
    assert flat.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_sparse_gradients_and_buffers() -> None:
    table = torch.nn.Embedding(4, 2, sparse=True)
    table.register_buffer("moving", torch.tensor([5.0, 6.0]))
    table.register_buffer("whole", torch.tensor(7))
    vector = ParameterVector(torch.optim.SGD(table.parameters(), lr=1.0), SharedBuffers(table), "float32")
    table(torch.tensor([1, 1, 3])).sum().backward()
    table.moving += torch.tensor([1.0, 2.0])
    flat = vector.new()
    assert vector.accumulate(flat, 2)
    assert flat.tolist() == [0, 0, 4, 4, 0, 0, 2, 2, 2, 4, 2 * PRESENT]  # of buffers, how far they moved
    vector.load(flat / 4)  # as if a peer with as many samples had had no gradient
    assert table.moving.tolist() == [5.5, 7.0]
    assert table.whole.item() == 7
    assert table.weight.grad is not None
    assert table.weight.grad.tolist() == [[0, 0], [1, 1], [0, 0], [0.5, 0.5]]


def test_a_step_of_a_peer_alone_by_sparse_gradients_is_that_by_dense_ones() -> None:
    """Neither AdamW nor clipping takes sparse ones, and the mean of a round is dense anyway."""
    stepped = []
    for is_sparse in (False, True):
        table = torch.nn.Embedding.from_pretrained(torch.ones(4, 2), freeze=False, sparse=is_sparse)
        optimizer = torch.optim.AdamW(table.parameters(), lr=0.1)
        replica = Replica(RunSpec.from_mapping({"name": "sparse"}), optimizer, model=table, max_grad_norm=1.0)
        table(torch.tensor([1, 1, 3])).sum().backward()
        assert replica.inner_step()
        stepped.append(table.weight.detach())
    assert torch.equal(*stepped)
    assert stepped[0][0, 0] != 1.0  # decayed


@pytest.mark.parametrize("averaging", [{"codec": "sign"}, {"codec": "float16", "sketch": "dct64"}], ids=str)
def test_a_parameter_that_nobody_used_has_no_gradient_whatever_the_mean_went_through(averaging: dict[str, str]) -> None:
    """It would be decayed. There are enough parameters for a block of the codec."""
    model = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(2)) for _ in range(300))
    spec = RunSpec.from_mapping({"name": "unused", "averaging": averaging})
    replica = Replica(spec, torch.optim.SGD(model.parameters(), lr=1.0), model=model)
    for parameter in replica.vector.parameters()[1:]:
        parameter.grad = torch.ones(2)
    mean = replica.vector.new()
    assert replica.accumulate(mean, 1.0)
    sent = replica.project(mean, 1, 0, "a round")
    assert sent is not None
    layout = replica.layout_of(0)
    for chunk in layout.chunks(0, layout.total, 1 << 14):
        for each, numel in ((chunk.codecs.upload, chunk.upload_bytes), (chunk.codecs.download, chunk.download_bytes)):
            room = torch.empty(numel, dtype=torch.uint8)
            each.decode(room[: each.encode(sent[chunk.start : chunk.stop], room)], sent[chunk.start : chunk.stop])
    found = replica.expand(sent, 0, counted_in="a round")
    assert replica.vector.has_gradient(found) == [False] + 299 * [True]


@given(
    values=st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), max_size=8),
    more=st.lists(st.floats(-1e9, 1e9), max_size=3),
)
def test_all_finite(values: list[float], more: list[float]) -> None:
    expected = all(math.isfinite(v) and abs(v) <= 2.0**96 for v in values)
    assert all_finite([torch.tensor(values), torch.tensor(more)]) == expected


@pytest.mark.parametrize("quick", [False, True])
def test_small_neighbours_that_are_joined_add_up_to_the_same_bits(*, quick: bool) -> None:
    """Runs of small tensors between large ones, more of them than one run holds, and one gradient in another format."""
    torch.manual_seed(3)
    sizes = [9_000, 5, 70_000, *[8_000] * 9, 1, 9_000, 7, 8_192]
    vector = vector_of(*[(size,) for size in sizes], codec="int8")
    vector.quick = quick
    flat, expected = torch.randn(vector.numel), torch.zeros(0)
    for present in (range(len(sizes)), range(0, len(sizes), 2), [1, 12, 14], []):
        for index, parameter in enumerate(vector.parameters()):
            parameter.grad = torch.randn_like(parameter) if index in present else None
        parts = [part.clone() for part in flat.split_with_sizes(list(vector.layout.numels))]
        for place, (part, parameter) in enumerate(zip(parts, vector.parameters(), strict=False)):
            if parameter.grad is not None:
                part.add_(parameter.grad, alpha=0.3)
                parts[-1][place].add_(PRESENT, alpha=0.3)
        expected = torch.cat(parts)
        assert vector.accumulate(flat, 0.3)
        assert torch.equal(flat, expected)
    for index in (1, 8, len(sizes) - 1):  # each in a run with others
        for parameter in vector.parameters():
            parameter.grad = torch.zeros_like(parameter)
        vector.parameters()[index].grad[0] = math.nan  # type: ignore[index]
        assert not vector.accumulate(flat, 0.3)
        assert torch.equal(flat, expected)


def test_gradients_that_come_in_turns_into_two_vectors_keep_to_their_own_and_old_vectors_are_let_go() -> None:
    torch.manual_seed(5)
    vector = vector_of((300, 300), (7,), (20, 5))
    vector.quick = True
    one, other = vector.new(), vector.new()
    for number, target in enumerate([one, other, one, other, one]):
        for parameter in vector.parameters():
            parameter.grad = torch.full_like(parameter, number + 1.0)
        assert vector.accumulate(target, 2.0)
    size = vector.parameters_numel
    assert torch.equal(one[:size], torch.full((size,), 18.0))
    assert torch.equal(other[:size], torch.full((size,), 12.0))
    kept = weakref.ref(one)
    del one, target
    vector.new()
    assert kept() is None


def test_large_gradients_in_a_small_tensor_are_no_reason_to_drop_a_sum() -> None:
    """The sum of two may pass what a single one may be: that is looked at when the sum is used."""
    vector = vector_of((300, 300), (7,), (20, 5))
    vector.quick = True
    total = vector.new()
    for parameter in vector.parameters():
        parameter.grad = torch.full_like(parameter, 2.0**95)
    assert all(vector.accumulate(total, 1.0) for _ in range(3))
    size = vector.parameters_numel
    assert torch.equal(total[:size], torch.full((size,), 3 * 2.0**95))


class Largest(TorchDispatchMode):
    """The elements of the largest tensor that an operation returned in memory other than that of `known`."""

    def __init__(self, known: torch.Tensor) -> None:
        super().__init__()
        self.elements, self._known = 0, known.untyped_storage().data_ptr()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() != self._known:
            self.elements = max(self.elements, result.numel())
        return result


def test_to_look_for_clipped_gradients_takes_no_copy_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that holds parameters, moments and gradients may have no room for another vector."""
    monkeypatch.setattr(flat_vector, "LOOKED_AT", 64)
    vector = vector_of((40, 30))
    (parameter,) = vector.parameters()
    parameter.grad = torch.randn(40, 30, generator=torch.Generator().manual_seed(1))
    torch.nn.utils.clip_grad_norm_([parameter], 0.5)
    with Largest(parameter.grad) as largest:
        assert vector.clipped() == "clip_grad_norm_ to 0.5"
    assert largest.elements <= 64
    torch.nn.utils.clip_grad_value_([parameter], 0.01)
    assert vector.clipped() == "clip_grad_value_ to 0.01"
