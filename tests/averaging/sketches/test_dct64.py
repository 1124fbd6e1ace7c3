"""The cosine transform of blocks: orthonormal, what SciPy computes, and laid out so that sparse codecs see blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.registry import CODECS
from minga.averaging.codecs.residual import Residuals
from minga.averaging.sketches.dct64 import DCT64, SIZE, to_coefficients, to_numbers
from minga.averaging.sketches.interface import make_sketch
from minga.averaging.sketches.projection import Projection
from tests.worlds import loudest_codec


def dct64(*shapes: tuple[int, ...]) -> DCT64:
    return DCT64(VectorLayout(shapes, "float32"))


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def cosines() -> torch.Tensor:
    """The matrix of the transform by its definition."""
    places = torch.arange(SIZE, dtype=torch.float64)
    matrix = torch.cos(places[:, None] * (2 * places + 1) * torch.pi / (2 * SIZE)) * (2 / SIZE) ** 0.5
    matrix[0] /= 2**0.5
    return matrix


def test_the_transform_is_orthonormal_and_its_inverse_is_its_transpose() -> None:
    eye = torch.eye(SIZE, dtype=torch.float64)
    there, back = (torch.from_numpy(change(np.eye(SIZE))) for change in (to_coefficients, to_numbers))
    assert (there @ there.T - eye).abs().max() < 1e-12
    assert (back - there.T).abs().max() < 1e-12
    assert (there - cosines()).abs().max() < 1e-12


def test_the_coefficients_of_a_block_lie_together_and_those_of_matrices_come_first() -> None:
    """Also of a kernel, whose first axis is the rows; the last blocks are padded with zeros."""
    sketch = dct64((70,), (100, 130), (64, 8, 9), (3, 200))
    assert sketch.shapes(0) == ((6, 64, 64), (2, 64, 64), (2, 64), (10, 64))
    vector = normal(sketch.whole.total)
    line, matrix, kernel, few = vector.split(list(sketch.whole.numels))
    padded = torch.zeros(128, 192, dtype=torch.float64)
    padded[:100, :130] = matrix.view(100, 130)
    blocks = [padded[top : top + 64, left : left + 64] for top in (0, 64) for left in (0, 64, 128)]
    padded = torch.zeros(64, 128, dtype=torch.float64)
    padded[:, :72] = kernel.view(64, 72)
    blocks += [padded[:, :64], padded[:, 64:]]
    rows = [*torch.nn.functional.pad(line, (0, 58)).view(2, 64), *torch.nn.functional.pad(few, (0, 40)).view(10, 64)]
    wanted = [(cosines() @ block @ cosines().T).flatten() for block in blocks]
    wanted += [cosines() @ row.double() for row in rows]
    torch.testing.assert_close(sketch.project(vector, 0), torch.cat(wanted).float(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    "shapes", [((64, 64),), ((1,),), ((), (2, 3)), ((65, 4200),), ((4200, 65),), ((300_001,),), ((0, 64), (64, 65))]
)
def test_each_vector_comes_back_and_keeps_its_length(shapes: tuple[tuple[int, ...], ...]) -> None:
    sketch = dct64(*shapes)
    vector = normal(sketch.whole.total)
    values = sketch.project(vector, 3)
    assert abs(values.double().norm() / vector.double().norm() - 1) < 1e-7
    assert (sketch.expand(values, 3) - vector).norm() < 1e-7 * vector.norm()


def test_a_codec_that_needs_a_residual_goes_with_a_sketch_that_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The codec keeps what it leaves out, and the sketch nothing: else it would count twice."""
    monkeypatch.setitem(CODECS._builtin, "loudest", loudest_codec.ENTRY)
    sketch = make_sketch("dct64", VectorLayout(((70, 70), (9,)), "loudest", "float32"))
    assert sketch.layout(0).needs_residual
    residuals, vector = Residuals(), normal(4909)
    projection = Projection(sketch, residuals)
    for counted_in in ("a round", None):
        values = projection.contribution(vector, 3, 0, "a round")
        assert values is not None
        assert torch.equal(values, sketch.project(vector, 0))
        projection.absorb(values, 0, counted_in=counted_in)
    assert not residuals.kept(1)


def test_a_sparse_codec_chooses_within_the_blocks_of_matrices() -> None:
    """What it sends of each 4096 values are the largest coefficients of one block, in whatever part of the vector."""
    sketch = make_sketch("dct64", VectorLayout(((256, 130), (70,)), "topk(k=32)", "float16"))
    layout = sketch.layout(0)
    assert layout.choosing_block_elements == 64 * 64
    values = sketch.project(normal(sketch.whole.total), 0)
    (chunk, *_) = layout.chunks(3 * 4096, 5 * 4096, 1 << 20)
    sent = torch.empty(chunk.upload_bytes, dtype=torch.uint8)
    block, decoded = values[chunk.start : chunk.stop], torch.empty(chunk.numel)
    chunk.codecs.upload.decode(sent[: chunk.codecs.upload.encode(block, sent)], decoded)
    for one, found in zip(block.view(2, 4096), decoded.view(2, 4096), strict=True):
        assert set(found.nonzero().flatten().tolist()) == set(one.abs().topk(32).indices.tolist())


def test_what_cannot_be_sent_is_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    projection = Projection(dct64((64, 64)))
    assert projection.contribution(torch.full((4096,), 2.0**95), 1, 0, "a round") is None
    assert "left out of step" in caplog.text
