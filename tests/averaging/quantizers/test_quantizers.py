"""Quantizers: the suite with their settings, exact bytes, constants, and errors in numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minga.averaging.codecs.dense import FLOAT32_MAX, InvalidEncodingError, codec
from minga.averaging.quantizers.blocks import noise_of
from minga.core.errors import ConfigurationError
from minga.testing import CODEC_CHECKS, Violation
from minga.testing.codecs.classes import check_contraction, check_error_feedback, check_unbiased, distance_after
from minga.testing.codecs.suite import check_processes
from tests.worlds.loudest_codec import LoudestCodec

VARIANTS = [
    "int8(rounding=stochastic)",
    "int4(block=128, rounding=stochastic)",
    "e3m0(block=64, rounding=stochastic)",
    "natural(rounding=stochastic)",
    "sign(magnitudes=2)",
]


def encode(choice: str, values: torch.Tensor, seed: int = 0) -> bytes:
    target = bytearray(codec(choice).max_encoded_bytes(values.numel()))
    codec(choice).encode(values, target, seed=seed)
    return bytes(target)


def decode(choice: str, encoded: bytes, numel: int) -> torch.Tensor:
    target = torch.zeros(numel)
    codec(choice).decode(encoded, target)
    return target


def error(choice: str, values: torch.Tensor) -> float:
    decoded = decode(choice, encode(choice, values), values.numel()).double()
    return float((decoded - values.double()).square().sum() / values.double().square().sum())


@pytest.mark.parametrize("choice", VARIANTS)
def test_conformance_with_settings(choice: str) -> None:
    for check in CODEC_CHECKS:
        if check is not check_processes:  # of all codecs at once elsewhere
            check(codec(choice))


def test_exact_bytes() -> None:
    values = torch.tensor([7.0, -1.0, 0.4, -6.5, 2.5])  # the scale is 1; 2.5 and -6.5 go to the even neighbour
    assert encode("int4", values) == bytes.fromhex("803f f7 a0 02")
    assert encode("float8", torch.tensor([448.0, -1.0, 0.0])) == bytes.fromhex("803f 7e b8 00")
    powers = torch.tensor([1.0, -0.5, 0.74, 0.75, 2**-6, -(2.0**-8)])
    assert encode("e3m0", powers) == bytes.fromhex("803f e7 76 81")
    assert encode("natural", torch.tensor([1.0, -3.0, 2.9, 0.0])) == bytes([127, 129, 128, 0, 0b0010])
    assert encode("sign", torch.tensor([3.0, -1.0, 2.0, -2.0])) == bytes.fromhex("0040 0a")
    assert encode("sign(magnitudes=2)", torch.tensor([3.0, -1.0, 5.0, -2.0])) == bytes.fromhex("c03f 8040 66")
    assert encode("sign(magnitudes=2)", torch.tensor([2.0, -2.0])) == bytes.fromhex("0040 0040 04")


def test_drawn_bytes_are_the_same_for_ever() -> None:
    assert noise_of(7)(4).tolist() == [-1116, 10729, 13496, -8384]
    assert noise_of(2**64 - 1)(3).tolist() == [23547, -29218, 8645]
    values = torch.tensor([7.0, 0.5, -0.5, 0.25, 3.9, -3.1])
    assert [encode("int4(rounding=stochastic)", values, seed).hex() for seed in (1, 2)] == ["803f171fd4", "803f171fd4"]


@pytest.mark.parametrize(
    ("choice", "bits", "delta", "zeta"),
    [
        ("int8", 8.0625, 1.00403, None),
        ("int8(rounding=stochastic)", 8.0625, 1.00408, 1.00406),
        ("int4(block=32)", 4.5, 1.1607, None),
        ("int4", 4.25, 1.3266, None),
        ("int4(block=128)", 4.125, 1.6582, None),
        ("int4(rounding=stochastic)", 4.25, 1.3536, 1.2612),
        ("float8", 8.125, 1.00347, None),
        ("e3m0", 4.125, 1.125, None),
        ("e3m0(rounding=stochastic)", 4.125, 8 / 7, 1.125),
        ("natural", 9.0, 1.125, None),
        ("natural(rounding=stochastic)", 9.0, 8 / 7, 1.125),
        ("sign", 1.0625, 256.0039, None),
        ("sign(magnitudes=2)", 2.125, 256.0039, None),
        ("float32", 32.0, 1.0, None),
        ("float16", 16.0, None, None),
        ("bfloat16", 16.0, 1.00002, None),
    ],
)
def test_sizes_and_constants(choice: str, bits: float, delta: float | None, zeta: float | None) -> None:
    made = codec(choice)
    assert 8 * made.max_encoded_bytes(1 << 16) / (1 << 16) == bits
    assert made.delta(1 << 16) == (None if delta is None else pytest.approx(delta, abs=6e-5))
    assert made.zeta(1 << 16) == (None if zeta is None else pytest.approx(zeta, abs=6e-5))


@pytest.mark.parametrize(("choice", "with_exact_scale"), [("int4(block=32)", 1.158), ("int4(block=128)", 1.648)])
def test_the_constant_of_int4_counts_that_scales_are_rounded_up(choice: str, with_exact_scale: float) -> None:
    made, block = codec(choice), codec(choice).block_elements
    largest = torch.linspace(1.0, 2.0, 500)
    scales = largest / 7
    scales = torch.where(scales.bfloat16() < scales, scales.bfloat16() * (1 + 2.0**-7), scales.bfloat16()).float()
    rows = (0.499 * scales).repeat_interleave(block).view(-1, block)
    rows[:, 0] = largest
    worst = max(error(choice, row) for row in rows)
    assert 1 - 1 / with_exact_scale < worst < 1 - 1 / (made.delta(block) or 1.0)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_what_e3m0_loses_below_its_smallest_power_is_less_than_what_its_largest_element_spares(rounding: str) -> None:
    choice = f"e3m0(block=128, rounding={rounding})"
    for largest in (1.0, 1.0 + 2.0**-7 + 2.0**-20, 1.99):
        for worst in (0.75, 4 / 3 / 2, 0.375):
            for count in (0, 1, 64, 127):
                block = torch.full((128,), 2.0**-7 * 0.999)
                block[:count], block[-1] = worst, 1.0
                found = error(choice, (block * largest).repeat(200))
                assert found <= 1 - 1 / (codec(choice).delta(128) or 1.0), (largest, worst, count)


def test_what_lies_on_a_step_is_never_rounded_at_random() -> None:
    values = torch.arange(-7.0, 8.0)
    for seed in range(50):
        encoded = encode("int4(rounding=stochastic)", values, seed)
        assert torch.equal(decode("int4", encoded, 15), values)


def test_other_seeds_give_other_bytes_and_the_same_seed_the_same() -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(6))
    for choice in VARIANTS:
        drawn = {encode(choice, values, seed) for seed in (0, 1, 2**64 - 1, 0)}
        assert len(drawn) == (3 if codec(choice).draws else 1)


@pytest.mark.parametrize(
    ("choice", "at", "byte", "said"),
    [
        ("int4", -1, 0x80, "a level is -8"),
        ("int4", -1, 0x08, "a level is -8"),
        ("int4", 1, 0xFF, "block scales"),
        ("int4", 1, 0x80, "block scales"),
        ("float8", -1, 0x7F, "a value is NaN"),
        ("float8", -1, 0xFF, "a value is NaN"),
        ("e3m0", 1, 0x80, "block scales"),
        ("natural", 0, 0xFF, "an exponent is above 127"),
        ("natural", -1, 0x80, "more signs than elements"),
        ("sign", -1, 0x80, "more signs than elements"),
        ("sign", 1, 0xBF, "means from"),
        ("sign", 1, 0x7F, "means from"),
        ("sign(magnitudes=2)", 1, 0x40, "the mean of small magnitudes is above"),
    ],
)
def test_bytes_that_no_encoder_writes_are_refused(choice: str, at: int, byte: int, said: str) -> None:
    encoded = bytearray(encode(choice, torch.full((300,), 0.5)))
    encoded[at] = byte
    if choice == "sign" and byte == 0x7F:
        encoded[0] = 0xC0
    with pytest.raises(InvalidEncodingError, match=said):
        decode(choice, bytes(encoded), 300)


def test_an_odd_number_of_codes_leaves_half_a_byte_empty() -> None:
    for choice in ("int4", "e3m0"):
        encoded = bytearray(encode(choice, torch.ones(5)))
        assert encoded[-1] >> 4 == 0
        encoded[-1] |= 0x10
        with pytest.raises(InvalidEncodingError, match="an element too many"):
            decode(choice, bytes(encoded), 5)
    encoded = bytearray(encode("sign(magnitudes=2)", torch.ones(5)))
    assert encoded[-1] == 0
    encoded[-1] = 0b0100
    with pytest.raises(InvalidEncodingError, match="more signs than elements"):
        decode("sign(magnitudes=2)", bytes(encoded), 5)


def test_blocks_that_no_scale_can_hold_lose_less_than_a_hundredth() -> None:
    values = torch.tensor([FLOAT32_MAX, -FLOAT32_MAX, 1.0])
    for choice in ("int4", "int4(rounding=stochastic)", "float8", "e3m0", "e3m0(rounding=stochastic)"):
        for seed in range(20):
            decoded = decode(choice, encode(choice, values, seed), 3)
            assert float((decoded[:2] / values[:2] - 1).abs().max()) < 0.01


@given(st.integers(1, 700), st.floats(-40, 38), st.integers(0, 2**64 - 1), st.sampled_from(VARIANTS))
def test_any_magnitude_and_any_seed_is_within_the_bound(numel: int, exponent: float, seed: int, choice: str) -> None:
    chance = torch.Generator().manual_seed(seed % 2**32)
    values = (torch.randn(numel, generator=chance).double() * 10.0**exponent).clamp(-FLOAT32_MAX, FLOAT32_MAX).float()
    decoded = decode(choice, encode(choice, values, seed), numel)
    assert bool(((decoded.double() - values.double()).abs() <= codec(choice).max_error(values)).all())


@pytest.mark.parametrize(
    "choice",
    ["int4(block=63)", "int4(rounding=down)", "float8(rounding=stochastic)", "sign(k=3)", "sign(magnitudes=3)"],
)
def test_settings_that_there_are_not(choice: str) -> None:
    with pytest.raises(ConfigurationError, match="codec"):
        codec(choice)


# ---- what the suite finds


class Optimistic(type(codec("int4"))):  # type: ignore[misc]
    """Promises more than it keeps."""

    def delta(self, numel: int) -> float | None:
        return 1.02

    def zeta(self, numel: int) -> float | None:
        return 1.001 if self.draws else None


class Biased(type(codec("natural"))):  # type: ignore[misc]
    """Says that it has no bias, and always rounds to nearest."""

    draws = True

    def __init__(self) -> None:
        super().__init__()
        self.draws = True

    def _encode(self, source: torch.Tensor, raw: torch.Tensor, limit: float, seed: int) -> int:
        return int(codec("natural")._encode(source, raw, limit, seed))


def test_the_suite_finds_constants_that_do_not_hold() -> None:
    with pytest.raises(Violation, match="B3"):
        check_contraction(Optimistic())
    with pytest.raises(Violation, match="mean square"):
        check_unbiased(Optimistic(codec("int4(rounding=stochastic)").settings))


def test_the_suite_finds_a_bias() -> None:
    with pytest.raises(Violation, match="draws is off by"):
        check_unbiased(Biased())


def test_the_suite_finds_a_codec_that_never_sends_what_it_left_out() -> None:
    class Stuck(LoudestCodec):
        def _encode(self, source: torch.Tensor, raw: torch.Tensor, limit: float, seed: int) -> int:
            first = torch.zeros_like(source)
            first[0] = source[0]
            return super()._encode(first, raw, limit, seed)

    with pytest.raises(Violation, match="descent ended"):
        check_error_feedback(Stuck())


def test_the_largest_element_alone_diverges_without_what_was_left_out_and_arrives_with_it() -> None:
    assert distance_after(LoudestCodec(), with_residual=False) > 1e3
    assert distance_after(LoudestCodec(), with_residual=True) < 1e-3
