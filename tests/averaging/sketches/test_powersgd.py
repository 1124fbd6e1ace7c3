"""PowerSGD: bases, bytes, matrices that are hard, and what PyTorch's own computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.sketches.powersgd import EPSILON, PowerSGD, PowerSGDSettings, directions, orthonormal
from minga.averaging.sketches.projection import Projection


def powersgd(*shapes: tuple[int, ...], codec: str = "float32", **settings: Any) -> PowerSGD:
    return PowerSGD(VectorLayout(shapes, codec), PowerSGDSettings(**{"start": 0, **settings}))


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def round_of(sketch: PowerSGD, vector: torch.Tensor, step: int) -> torch.Tensor:
    """What a round of one peer applies."""
    values = sketch.project(vector, step)
    image = sketch.expand(values, step)
    sketch.absorb(values, step)
    return image


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_a_matrix_of_the_rank_arrives_whole_from_the_second_round_on(rank: int, first: int) -> None:
    sketch = powersgd((30, 5, 8), (4,), rank=rank)
    matrix = normal(30, rank) @ normal(rank, 40, seed=2)
    vector = torch.cat([matrix.flatten(), normal(4)])
    round_of(sketch, vector, first)
    for step in (first + 1, first + 2, first + 3):
        assert (round_of(sketch, vector, step) - vector).norm() < 1e-5 * vector.norm()


def test_the_first_axis_is_the_rows_and_small_tensors_travel_as_they_are() -> None:
    sketch = powersgd((64, 16, 3, 3), (40, 40), (16, 16), (64,), (), rank=4, ratio=2.0)
    dense = ((16, 16), (64,), ())  # 4 (16 + 16) is half of 16 x 16, and not less
    assert sketch.shapes(0) == ((64, 4), (40, 4), *dense)
    assert sketch.shapes(1) == ((144, 4), (40, 4), *dense)
    assert sketch.shapes(0) == sketch.shapes(2)
    assert sketch.layout(0) == sketch.layout(2) != sketch.layout(1)
    vector = normal(sketch.whole.total)
    rest = slice(64 * 144 + 40 * 40, None)
    for step in (0, 1):
        assert torch.equal(round_of(sketch, vector, step)[rest], vector[rest])
    assert powersgd((16, 16), rank=4, ratio=1.5).shapes(0) == ((16, 4),)
    assert not powersgd((16, 16), (5,), rank=4).basis()


def test_the_first_rounds_average_whole_gradients() -> None:
    sketch, vector = powersgd((40, 40), rank=2, start=3), normal(1600)
    basis = {name: tensor.clone() for name, tensor in sketch.basis().items()}
    for step in range(3):
        assert torch.equal(round_of(sketch, vector, step), vector)
    assert sketch.shapes(2) == ((40, 40),)
    assert all(torch.equal(tensor, basis[name]) for name, tensor in sketch.basis().items())
    assert sketch.shapes(3) == ((40, 2),)
    assert len({sketch.layout(step).fingerprint for step in range(9)}) == 3
    assert PowerSGDSettings() == PowerSGDSettings(rank=4, ratio=2.0, start=100)
    for wrong in ({"rank": 0}, {"ratio": 0.5}, {"start": -1}, {"ranks": 3}):
        with pytest.raises(ValueError, match="validation error"):
            PowerSGDSettings(**wrong)


"""The tensors of the GPT-2 of 124 million parameters, with one for the input and the output words."""


@pytest.mark.parametrize("kind", ["zeros", "one rank", "huge column", "equal columns", "tiny", "the spare direction"])
def test_the_basis_is_orthonormal_whatever_the_mean(kind: str) -> None:
    columns = {
        "zeros": torch.zeros(50, 4),
        "one rank": normal(50, 1) @ normal(1, 4),
        "huge column": normal(50, 4) * torch.tensor([1.0, 2.0**90, 1.0, 2.0**-120]),
        "equal columns": normal(50, 1).expand(50, 4).contiguous(),
        "tiny": normal(50, 4) * 2.0**-140,
        "the spare direction": torch.stack([torch.from_numpy(next(directions(50, "seed"))).float()] * 4, 1),
    }[kind]
    kept = columns.clone()
    found = orthonormal(columns, "seed")
    assert torch.equal(columns, kept)
    assert (found.double().T @ found.double() - torch.eye(4)).abs().max() < 1e-6
    first = columns[:, 0].double()
    if first.any():
        assert (found[:, 0].double() - first / first.norm()).abs().max() < 1e-7
    assert torch.equal(orthonormal(columns, "seed"), found)
    assert EPSILON == 1e-8


def test_the_basis_is_that_of_a_qr_decomposition() -> None:
    columns = normal(70, 5)
    q, r = torch.linalg.qr(columns.double())
    assert (orthonormal(columns, "seed").double() - q * r.diagonal().sign()).abs().max() < 1e-7


@pytest.fixture
def one_process() -> Any:
    """A process group of one, for what PyTorch computes."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_it_is_the_powersgd_of_pytorch_on_a_matrix_that_stays_the_same(
    one_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rounds here are one step there, where the gradient M is constant and no residual is added.

    PyTorch's hook keeps Q from the step before and computes in one step

        P = M orth(Q),   P' = orth(P),   Q = M' P',   and applies P' Q' = P' P'' M.

    An even round here sends P = M Q' with Q' = orth(Q), so its new left basis is the same P'. The odd round after it
    sends Q = M' P' and applies P' Q'. Bases of one span give one projection, however they were made orthonormal, so the
    odd rounds apply what PyTorch applies, once both begin with the same Q. Its first step draws that, so Q of the first
    step is taken over here, and the second step is compared with the first two rounds.

    Both compute P in float32: an error of 2**-24 times about the root of the number of columns, relative to the largest
    singular value of P. Its span is uncertain by that times the condition of P, here below 3, and so is the projection:
    2**-24 * sqrt(40) * 3, a little above 1e-6 of the norm of M.
    """
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # else the hook waits for it, of the processor
    matrix, rank = normal(48, 40) @ torch.diag(0.8 ** torch.arange(40.0)), 3
    model = torch.nn.Linear(40, 48, bias=False)
    wrapped = DistributedDataParallel(model)
    state = powerSGD_hook.PowerSGDState(
        None, rank, start_powerSGD_iter=2, use_error_feedback=False, warm_start=True, orthogonalization_epsilon=0
    )
    wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    def gradient() -> torch.Tensor:
        model.zero_grad()
        wrapped(torch.eye(40)).mul(matrix.T).sum().backward()
        assert model.weight.grad is not None
        return model.weight.grad.clone()

    while not state.q_memory_dict:  # its first steps are dense
        gradient()
    sketch = powersgd((48, 40), rank=rank)
    (known,) = state.q_memory_dict.values()
    sketch.basis()["right"].copy_(orthonormal(known.view(40, rank), "seed"))
    for step in range(0, 6, 2):
        theirs = gradient()
        round_of(sketch, matrix.flatten(), step)
        ours = round_of(sketch, matrix.flatten(), step + 1).view(48, 40)
        assert (ours - theirs).norm() < 2e-6 * matrix.norm()
        assert (ours - matrix).norm() > 0.1 * matrix.norm()


def test_the_residual_takes_up_what_the_codec_rounds_away() -> None:
    """Values are rounded before they are sent, so a coarse codec only delays what it does not resolve."""
    projection = Projection(powersgd((40, 40), codec="bfloat16", rank=2))
    vector, applied = normal(1600), torch.zeros(1600, dtype=torch.float64)
    for step in range(6):
        values = projection.contribution(vector, 4, step, "a round")
        assert values is not None
        assert torch.equal(values, values.bfloat16().float())
        applied += 4 * projection.absorb(values, step, counted_in="a round").double()
        assert (applied + projection.residual.mass - 4 * (step + 1) * vector).norm() < 1e-5 * vector.norm() * 4 * (
            step + 1
        )


def test_what_has_a_larger_neighbour_in_the_chunk_than_in_the_segment_comes_later_too() -> None:
    """Parts begin anywhere, and blocks with them: rounded by the blocks of segments alone, it would never arrive."""
    projection = Projection(powersgd((64,), codec="int4(block=32)"))
    vector, applied = torch.full((64,), 0.02), torch.zeros(64, dtype=torch.float64)
    vector[40] = 1.0
    for step in range(16):
        layout = projection.layout_of(step)
        chunks = [*layout.chunks(0, 20, 1 << 16), *layout.chunks(20, 64, 1 << 16)]
        values = projection.contribution(vector, 4, step, "a round", lambda chunks=chunks: chunks)
        assert values is not None
        received = torch.empty_like(values)
        for chunk in chunks:
            body = torch.empty(chunk.upload_bytes, dtype=torch.uint8)
            chunk.codecs.upload.encode(values[chunk.start : chunk.stop], body)
            chunk.codecs.upload.decode(body, received[chunk.start : chunk.stop])
        applied += projection.absorb(received, step, counted_in="a round").double()
    assert torch.allclose(applied + projection.residual.mass / 4, 16 * vector.double(), atol=1e-5)
    assert (applied > 8 * vector).all()
