"""Codecs: the conformance suite on each, the exact wire formats, and errors in numbers."""

from __future__ import annotations

import math
import os
import struct
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from minga.averaging.codecs import dense, tensor_bytes
from minga.averaging.codecs.dense import FLOAT32_MAX, CastCodec, InvalidEncodingError, codec, is_finite
from minga.averaging.codecs.registry import CODECS
from minga.core.errors import ConfigurationError
from minga.testing import CODEC_CHECKS, Violation
from minga.testing.codecs.cases import sample_vectors
from minga.testing.codecs.defence import check_limit_is_consistent
from minga.testing.codecs.suite import (
    check_cuts,
    check_decode_add,
    check_error_bound,
    check_processes,
)
from tests.worlds.nonzero_codec import ENTRY, NonzeroCodec
from tests.worlds.seeds import soaked
from tests.worlds.torch_defaults import defaults

ALL = pytest.mark.parametrize("name", CODECS.names())


def encode(name: str, values: torch.Tensor) -> bytearray:
    target = bytearray(codec(name).max_encoded_bytes(values.numel()))
    return target[: codec(name).encode(values, target)]


def decode(name: str, encoded: bytes | bytearray, numel: int) -> torch.Tensor:
    target = torch.zeros(numel)
    codec(name).decode(encoded, target)
    return target


ONE_PROCESS = [check for check in CODEC_CHECKS if check is not check_processes]
"""All checks but the one that starts a process, which takes all codecs at once."""
DRAWING = [f"{name}(rounding=stochastic)" for name in ("int8", "int4", "e3m0", "natural")]


@ALL
def test_conformance(name: str) -> None:
    for check in ONE_PROCESS:
        check(codec(name))


@pytest.mark.parametrize("dtype", [torch.float64, *map(soaked, (torch.bfloat16, torch.float16))])
@pytest.mark.parametrize("name", [*CODECS.names(), *DRAWING])
def test_what_a_codec_makes_does_not_go_by_defaults_of_torch(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_of_it() -> Iterator[bytes]:
        monkeypatch.setattr(dense, "_made", {})  # as in a program that has set them before
        for source, target, total in vectors:
            yield bytes(encoded := encode(name, source))
            codec(name).decode(encoded, target)
            codec(name).decode_add(encoded, total, 3.0)
            yield from (each.numpy().tobytes() for each in (target, total))

    samples = [source for _, source in sample_vectors() if not (source.abs() > 1e28).any()]
    vectors = [(source, torch.zeros_like(source), torch.ones_like(source)) for source in samples]
    usual = list(all_of_it())
    for _, target, total in vectors:
        target.zero_()
        total.fill_(1.0)
    with defaults(dtype, "meta"):
        assert list(all_of_it()) == usual


def test_another_process_makes_the_same_bytes() -> None:
    sound = NonzeroCodec(), *map(codec, CODECS.names()), *map(codec, DRAWING), codec("topk(k=41, values=2bit)")
    with pytest.raises(Violation, match=r"homesick.*another process made other bytes"):  # and not what is before it
        check_processes(*sound, HomeSick())


@ALL
def test_conformance_on_a_machine_that_must_reorder_bytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_bytes, "_SWAP", True)
    for check in (check_cuts, check_decode_add):
        check(codec(name))


def test_conformance_of_a_codec_whose_encodings_differ_in_length() -> None:
    for check in ONE_PROCESS:
        check(NonzeroCodec())


def test_the_suite_finds_a_codec_that_takes_more_than_it_says() -> None:
    class Growing(NonzeroCodec):
        def _encode(self, source: torch.Tensor, raw: torch.Tensor, limit: float, seed: int) -> int:
            return super()._encode(source, raw, limit, seed) + raw.numel()

    with pytest.raises(Violation, match="encode took"):
        check_error_bound(Growing())


def test_what_a_package_brings_under_another_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CODECS._builtin, "sparse", ENTRY)
    with pytest.raises(ConfigurationError, match="brings as 'sparse' is <codec nonzero>"):
        codec("sparse")


def test_bytes_are_reversed_where_the_machine_is_big_endian(monkeypatch: pytest.MonkeyPatch) -> None:
    native = {name: encode(name, torch.tensor([1.5, -2.25])) for name in ("float32", "float16", "bfloat16")}
    assert (sys.byteorder == "big") == tensor_bytes._SWAP
    monkeypatch.setattr(tensor_bytes, "_SWAP", not tensor_bytes._SWAP)
    for name, encoded in native.items():
        width = len(encoded) // 2
        assert encode(name, torch.tensor([1.5, -2.25])) == encoded[:width][::-1] + encoded[width:][::-1]


def test_the_suite_names_the_bytes_that_a_codec_encodes_and_then_refuses() -> None:
    class Forgetful(type(codec("float16"))):  # type: ignore[misc]
        def _check(self, raw: torch.Tensor, numel: int, limit: float) -> None:
            if limit < FLOAT32_MAX:
                raise InvalidEncodingError("a scale that no encoder writes")

    with pytest.raises(Violation, match=r"refuses what it encoded itself, 700 .* limit of both, 1e-30: a scale"):
        check_limit_is_consistent(Forgetful("float16", torch.float16))


def test_the_suite_finds_a_codec_that_clips() -> None:
    class Clipping(type(codec("float16"))):  # type: ignore[misc]
        def _encode(self, source: torch.Tensor, raw: torch.Tensor, limit: float, seed: int) -> int:
            sigma = source.square().mean().sqrt()
            return super()._encode(source.clamp(-3 * sigma, 3 * sigma), raw, limit, seed)

    with pytest.raises(Violation, match="is off by"):
        check_error_bound(Clipping("float16", torch.float16))


def test_exact_bytes() -> None:
    values = torch.tensor([1.0, -2.5, 0.0])
    assert encode("float32", values) == struct.pack("<3f", 1.0, -2.5, 0.0)
    assert encode("float16", values) == struct.pack("<3e", 1.0, -2.5, 0.0)
    assert encode("bfloat16", values) == bytes.fromhex("803f20c00000")
    # 127 / 127 = 1.0 is the scale, 3f80 as bfloat16; 2.5 and 3.5 go to the even neighbour.
    assert encode("int8", torch.tensor([127.0, -2.5, 3.5, 0.4])) == bytes.fromhex("803f7ffe0400")
    two_blocks = torch.cat([torch.full((256,), 127.0), torch.tensor([254.0])])
    assert encode("int8", two_blocks) == bytes.fromhex("803f0040") + bytes([127] * 257)


def test_float16_is_clamped_not_infinite() -> None:
    values = torch.tensor([65503.0, 65519.0, 65520.0, -7e4, 1e38])
    assert decode("float16", encode("float16", values), 5).tolist() == [65504.0, 65504.0, 65504.0, -65504.0, 65504.0]
    many = torch.full((200_000,), -1e9)
    assert bool((decode("float16", encode("float16", many), 200_000) == -65504.0).all())


def test_bfloat16_rounds_to_nearest_even_and_stays_finite() -> None:
    halves = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, FLOAT32_MAX])
    wanted = [1.0, 1 + 4 * 2**-8, torch.finfo(torch.bfloat16).max]
    assert decode("bfloat16", encode("bfloat16", halves), 3).tolist() == wanted


def test_int8_is_more_precise_than_six_sigma_in_256_steps() -> None:
    values = torch.randn(1 << 20, generator=torch.Generator().manual_seed(1))
    error = decode("int8", encode("int8", values), values.numel()) - values
    assert float(error.square().mean().sqrt()) < 0.0070  # 0.016 with 256 steps over six standard deviations
    assert float(error.abs().max()) < 0.025  # 2 with them
    assert codec("int8").max_encoded_bytes(1 << 20) / (1 << 20) < 1.008


def test_int8_never_reaches_beyond_127_whatever_the_scale() -> None:
    # Largest magnitudes that cover several binades finely: a / 127 falls on both sides of all bfloat16 midpoints.
    largest = torch.logspace(-3, 3, 20_001, base=2.0, dtype=torch.float64).float()
    blocks = torch.zeros(20_001, 256)
    blocks[:, 5], blocks[:, 200] = largest, -largest / 3
    encoded = encode("int8", blocks.view(-1))
    values = torch.frombuffer(encoded, dtype=torch.int8, offset=2 * 20_001).view(20_001, 256)
    assert bool((values[:, 5] == 127).all())


@example(np.array([5.382428e-28], np.float32), "gaussiank")
@given(
    arrays.arrays(
        np.float32,
        st.integers(0, 700),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
        fill=st.nothing(),
    ),
    st.sampled_from(CODECS.names()),
)
def test_any_finite_vector_is_within_the_bound_and_repeatable(values: np.ndarray, name: str) -> None:
    source = torch.from_numpy(values.copy())
    encoded = encode(name, source)
    decoded = decode(name, encoded, source.numel())
    assert bool(((decoded.double() - source.double()).abs() <= codec(name).max_error(source)).all())
    # An 8-bit zero has lost its sign, and what rounded to zero need not be among the largest any more.
    assert encode(name, decoded) == encoded or bool((decoded == 0).any())
    assert torch.equal(decode(name, encode(name, decoded), source.numel()), decoded)


@pytest.mark.parametrize("bits", [0x7F80, 0x7FC0, 0x0001, 0xBF80])
def test_int8_refuses_scales_that_no_encoder_sends(bits: int) -> None:
    encoded = encode("int8", torch.ones(300))
    encoded[2:4] = struct.pack("<H", bits)
    with pytest.raises(InvalidEncodingError, match="block scales"):
        decode("int8", encoded, 300)


def test_int8_refuses_minus_128() -> None:
    encoded = encode("int8", torch.ones(300))
    encoded[-1] = 0x80
    with pytest.raises(InvalidEncodingError, match="-128"):
        decode("int8", encoded, 300)


@pytest.mark.parametrize("name", ["float17", "INT8", "adaptive", None])
def test_unknown_names(name: object) -> None:
    with pytest.raises(ConfigurationError, match=r"codec: .*(is none of float32, float16, bfloat16, int8|is not NAME)"):
        codec(name)  # type: ignore[arg-type]


def test_is_finite() -> None:
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        good = torch.randn(3, 1000).to(dtype)
        assert is_finite(good)
        assert is_finite(good.t())
        assert not is_finite(good, limit=1.0)
        for value in (math.nan, math.inf, -math.inf):
            bad = good.clone()
            bad[2, 517] = value
            assert not is_finite(bad)
            assert not is_finite(bad.t())
    assert is_finite(torch.empty(0))
    assert is_finite(torch.ones(3, requires_grad=True))


def test_inference_mode_leaves_nothing_behind() -> None:
    values = torch.randn(1000)

    def first_inside_then_outside() -> tuple[bytearray, bytearray]:
        with torch.inference_mode():
            inside = encode("int8", values)
        return inside, encode("int8", values)

    with ThreadPoolExecutor(1) as pool:  # a thread that has not used a codec yet
        inside, outside = pool.submit(first_inside_then_outside).result()
    assert inside == outside


def test_the_suite_finds_a_codec_that_changes_its_source() -> None:
    class Spoiling(CastCodec):
        def _encode(self, source: torch.Tensor, *others: Any) -> int:
            took = super()._encode(source, *others)
            source.copy_(source.half())
            return took

    with pytest.raises(Violation, match="1 normal values: encode changed its source"):
        check_error_bound(Spoiling("float16", torch.float16))


class HomeSick(CastCodec):
    """Turns the vector by what only this process knows."""

    def __init__(self) -> None:
        super().__init__("homesick", torch.float32)

    def _encode(self, source: torch.Tensor, raw: torch.Tensor, limit: float, seed: int) -> int:
        return super()._encode(source.roll(os.getpid() % 997), raw, limit, seed)
