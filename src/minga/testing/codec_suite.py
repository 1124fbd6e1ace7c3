"""What every codec must do, as checks to be run against an instance.

    @pytest.mark.parametrize("check", CODEC_CHECKS)
    def test_my_codec(check):
        check(MyCodec())

Each check raises `CodecViolation` with the case that failed. All data come from fixed seeds.
"""

from __future__ import annotations

import hashlib
import math
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from minga.averaging.codecs.dense import CastCodec
from minga.averaging.codecs.interface import (
    CONTRIBUTION_LIMIT,
    FLOAT32_MAX,
    WEIGHT_LIMIT,
    Codec,
    CodecPair,
    InvalidEncodingError,
)
from minga.averaging.codecs.layout import Chunk
from minga.averaging.codecs.residual import Fate, Residual
from minga.averaging.codecs.tensor_bytes import bytes_of, store
from minga.core.errors import NonFiniteError
from minga.core.spec.plugins import NAME_PATTERN

_SIZES: Final = (0, 1, 2, 3, 127, 128, 255, 256, 257, 511, 513, 1000, 4095, 65_535, 65_536, 65_537, 131_329)


class CodecViolation(AssertionError):
    """A codec broke a promise of the interface."""


def _require(holds: bool, codec: Codec, what: str) -> None:
    if not holds:
        raise CodecViolation(f"{codec.name}: {what}")


def sample_vectors() -> Iterator[tuple[str, torch.Tensor]]:
    """Named finite float32 vectors that are hard on codecs: sizes, magnitudes, outliers, constants, subnormals."""
    chance = torch.Generator().manual_seed(20_240_229)
    for size in _SIZES:
        yield f"{size} normal values", torch.randn(size, generator=chance)
    normal = torch.randn(1000, generator=chance)
    for exponent in (-149, -140, -126, -100, -24, -14, 15, 16, 64, 100, 126):
        scaled = (normal.double() * 2.0**exponent).clamp(-FLOAT32_MAX, FLOAT32_MAX).float()
        yield f"normal values times 2**{exponent}", scaled
    yield "magnitudes over 60 decades", torch.pow(10.0, torch.rand(5000, generator=chance) * 60 - 30)
    for value in (0.0, -0.0, 1.0, -1.0, 0.1, 65_504.0, 65_520.0, -1e30, FLOAT32_MAX, -FLOAT32_MAX, 1e-45, -(2.0**-126)):
        yield f"constant {value:g}", torch.full((300,), value)
    normal = torch.randn(1000, generator=chance)
    yield "Laplace values", torch.rand(1000, generator=chance).log() * normal.sign()
    degrees = torch.randn(3, 1000, generator=chance).square().mean(0).sqrt()
    yield "Student's t of 3 degrees", torch.randn(1000, generator=chance) / degrees
    yield "alternating signs", torch.tensor([1.5, -1.5]).repeat(500)
    alone = torch.zeros(1000)
    alone[611] = -7.0
    yield "one value among zeros", alone
    outlier = torch.randn(2048, generator=chance)
    outlier[777] = 1000.0
    yield "one value a thousand standard deviations out", outlier
    extremes = torch.zeros(600)
    extremes[[0, 255, 256, 599]] = torch.tensor([FLOAT32_MAX, -FLOAT32_MAX, 1e-45, 3.0])
    yield "the largest and the smallest magnitude as neighbours", extremes


def _encoded(codec: Codec, source: torch.Tensor) -> bytearray:
    target = bytearray(codec.max_encoded_bytes(source.numel()))
    size = codec.encode(source, target)
    exact = size == len(target) or (not codec.has_fixed_size and 0 < size < len(target))
    _require(exact, codec, f"encode took {size} of {len(target)} bytes")
    return target[:size]


def _decoded(codec: Codec, encoded: bytearray | bytes, numel: int) -> torch.Tensor:
    target = torch.full((numel,), math.nan)
    codec.decode(encoded, target)
    return target


def check_error_bound(codec: Codec) -> None:
    """Every decoded element is finite and within `max_error` of the source, also the largest one of all."""
    for name, source in sample_vectors():
        decoded = _decoded(codec, _encoded(codec, source), source.numel())
        _require(bool(decoded.isfinite().all()), codec, f"{name}: decoded to values that are not finite")
        error = (decoded.double() - source.double()).abs()
        bound = codec.max_error(source)
        _require(bound.shape == source.shape, codec, f"{name}: max_error has the shape {tuple(bound.shape)}")
        excess = error > bound
        where = int(excess.int().argmax()) if source.numel() else 0
        _require(
            not bool(excess.any()),
            codec,
            f"{name}: element {where} is off by {error[where] if source.numel() else 0}, more than its bound",
        )


def check_zeros_stay_zero(codec: Codec) -> None:
    """A vector of zeros decodes to zeros."""
    for size in _SIZES:
        decoded = _decoded(codec, _encoded(codec, torch.zeros(size)), size)
        _require(torch.equal(decoded, torch.zeros(size)), codec, f"{size} zeros did not stay zero")


def check_repeatable(codec: Codec) -> None:
    """Encoding a decoded slice gives the same values again, and encoding twice gives the same bytes."""
    for name, source in sample_vectors():
        encoded = _encoded(codec, source)
        _require(encoded == _encoded(codec, source), codec, f"{name}: two encodings differ")
        decoded = _decoded(codec, encoded, source.numel())
        again = _decoded(codec, _encoded(codec, decoded), source.numel())
        _require(torch.equal(decoded, again), codec, f"{name}: encoding the decoded values again changed them")


def check_decode_add(codec: Codec) -> None:
    """`decode_add` is decoding, then adding with the weight, up to float32 rounding; exactly so for weight 1."""
    chance = torch.Generator().manual_seed(7)
    for name, source in sample_vectors():
        encoded = _encoded(codec, source)
        decoded = _decoded(codec, encoded, source.numel())
        start = torch.randn(source.numel(), generator=chance)
        for weight in (0.0, 1.0, 3.0, 17.25, -0.5):
            if abs(weight) > 1 and source.numel() and float(decoded.abs().max()) > CONTRIBUTION_LIMIT:
                continue  # the sum itself would overflow
            accumulator = start.clone()
            codec.decode_add(encoded, accumulator, weight, limit=FLOAT32_MAX)
            wanted = start.double() + weight * decoded.double()
            slack = 2.0**-22 * (start.double().abs() + abs(weight) * decoded.double().abs()) + 2.0**-140
            close = bool(((accumulator.double() - wanted).abs() <= slack).all())
            _require(close, codec, f"{name}: decode_add with weight {weight} is not decode then add")
            if weight == 1.0:
                _require(
                    torch.equal(accumulator, start + decoded), codec, f"{name}: decode_add with weight 1 is not exact"
                )


def check_sizes(codec: Codec) -> None:
    """`max_encoded_bytes` is additive over blocks and never shrinks, and buffers of any other size are refused; but a
    codec without a fixed size may take shorter sources.
    """
    block = codec.block_elements
    for count in (1, 2, 7, 1000):
        added = count * codec.max_encoded_bytes(block) + codec.max_encoded_bytes(3)
        whole = codec.max_encoded_bytes(count * block + 3)
        _require(whole == added, codec, "max_encoded_bytes is not additive over blocks")
    for size in _SIZES:
        exact = codec.max_encoded_bytes(size)
        _require(codec.max_encoded_bytes(size + 1) >= exact, codec, f"{size + 1} elements take less than {size}")
        for wrong in {max(0, exact - 1), exact + 1, exact + 2, 2 * exact + 4} - {exact}:
            vector = torch.zeros(size)
            _refuses(codec, ValueError, f"a target of {wrong} bytes", codec.encode, vector, bytearray(wrong))
            if wrong < exact and not codec.has_fixed_size:
                continue
            _refuses(codec, InvalidEncodingError, f"a source of {wrong} bytes", codec.decode, bytes(wrong), vector)
            _refuses(
                codec,
                InvalidEncodingError,
                f"a source of {wrong} bytes to add",
                codec.decode_add,
                bytes(wrong),
                vector,
                1.0,
            )


def check_buffers(codec: Codec) -> None:
    """Every kind of buffer, at any alignment, gives the same bytes and values; read-only targets are refused."""
    source = torch.randn(1003, generator=torch.Generator().manual_seed(3))
    size = codec.max_encoded_bytes(1003)
    wanted = _encoded(codec, source)
    values = _decoded(codec, wanted, 1003)
    for offset in range(9):
        room = bytearray(b"\xaa" * (size + 16))
        view = memoryview(room)[offset : offset + size]
        took = codec.encode(source, view)
        _require(view[:took] == wanted, codec, f"a target at offset {offset} got other bytes")
        _require(room[:offset] + room[offset + size :] == b"\xaa" * 16, codec, "encode wrote outside its target")
        tensor = torch.full((size + 16,), 0xAA, dtype=torch.uint8)
        codec.encode(source, tensor[offset : offset + size])
        _require(bytes(tensor[offset : offset + size].tolist()) == wanted, codec, "a tensor got other bytes")
        for buffer in (view, tensor[offset : offset + size], bytes(view), memoryview(bytes(room))[offset:][:size]):
            target = torch.zeros(1003)
            codec.decode(buffer, target)
            _require(torch.equal(target, values), codec, f"a source at offset {offset} decoded to other values")
            accumulator = torch.ones(1003)
            codec.decode_add(buffer, accumulator, 1.0)
            _require(torch.equal(accumulator, values + 1), codec, f"a source at offset {offset} added other values")
    _refuses(codec, ValueError, "a read-only target", codec.encode, source, bytes(size))
    strided = memoryview(bytearray(2 * size))[::2]
    _refuses(codec, ValueError, "a strided target", codec.encode, source, strided)
    _refuses(codec, ValueError, "a float target", codec.encode, source, torch.zeros(size))


def check_tensors(codec: Codec) -> None:
    """Vectors that are not contiguous 1-D float32 CPU tensors are refused; gradients are not tracked."""
    wrong = {
        "float64": torch.zeros(8, dtype=torch.float64),
        "float16": torch.zeros(8, dtype=torch.float16),
        "2-D": torch.zeros(2, 4),
        "strided": torch.zeros(16)[::2],
        "meta": torch.zeros(8, device="meta"),
    }
    buffer = bytearray(codec.max_encoded_bytes(8))
    codec.encode(torch.zeros(8), buffer)
    for name, tensor in wrong.items():
        _refuses(codec, ValueError, f"a {name} source", codec.encode, tensor, buffer)
        _refuses(codec, ValueError, f"a {name} target", codec.decode, buffer, tensor)
        _refuses(codec, ValueError, f"a {name} sum", codec.decode_add, buffer, tensor, 1.0)
    tracked = torch.ones(8, requires_grad=True)
    codec.encode(tracked, buffer)
    codec.decode(buffer, tracked)
    codec.decode_add(buffer, tracked, 1.0)
    _require(
        torch.equal(tracked.detach(), 2 * _decoded(codec, buffer, 8)),
        codec,
        "a tensor with requires_grad was not handled",
    )


def check_local_non_finite(codec: Codec) -> None:
    """`encode` raises `NonFiniteError` for NaN, infinity and magnitudes above the limit, wherever they are."""
    for size in (1, 255, 256, 257, 1000, 65_536 + 300):
        for position in {0, size // 2, size - 1}:
            for value in (math.nan, math.inf, -math.inf):
                source = torch.zeros(size)
                source[position] = value
                buffer = bytearray(b"\x55" * codec.max_encoded_bytes(size))
                _refuses(codec, NonFiniteError, f"{value} at {position}", codec.encode, source, buffer)
                _require(set(buffer) == {0x55}, codec, "encode wrote to its target before it raised")
    buffer = bytearray(codec.max_encoded_bytes(3))
    codec.encode(torch.tensor([1.0, -10.0, 2.0]), buffer, limit=10.0)
    above = torch.tensor([1.0, -10.001, 2.0])
    _refuses(codec, NonFiniteError, "a value above the limit", codec.encode, above, buffer, limit=10.0)


def check_limit_is_consistent(codec: Codec) -> None:
    """What `encode` accepts under a limit, `decode` and `decode_add` accept under the same limit."""
    normal = torch.randn(700, generator=torch.Generator().manual_seed(11)).clamp(-1, 1)
    normal[13] = -1.0
    for limit in (1e-30, 1.0, 0.3, 7.7, 1e9, CONTRIBUTION_LIMIT, FLOAT32_MAX):
        source = (normal * limit).clamp(-limit, limit)
        buffer = bytearray(codec.max_encoded_bytes(700))
        exact = float(source.abs().max())
        codec.encode(source, buffer, limit=exact)
        codec.decode(buffer, torch.zeros(700), limit=exact)
        codec.decode_add(buffer, torch.zeros(700), 0.5, limit=exact)
    too_large = torch.full((700,), 2 * CONTRIBUTION_LIMIT)
    decoded = _decoded(codec, _encoded(codec, too_large), 700)
    if float(decoded.max()) > CONTRIBUTION_LIMIT:
        encoded = _encoded(codec, too_large)
        _refuses(
            codec,
            InvalidEncodingError,
            "a contribution so large that sums overflow",
            codec.decode_add,
            encoded,
            torch.zeros(700),
            1.0,
        )


def check_hostile_bytes(codec: Codec) -> None:
    """Whatever bytes come, decoding raises `InvalidEncodingError` with nothing written, or yields finite values; and it
    takes no more memory for that than twice what it decodes to, or 1 MiB where that is more.
    """
    chance = torch.Generator().manual_seed(13)
    size = 600
    count = codec.max_encoded_bytes(size)
    cases = [bytes([fill]) * count for fill in range(256)]
    cases += [bytes(torch.randint(0, 256, (count,), generator=chance).tolist()) for _ in range(100)]
    valid = _encoded(codec, torch.randn(size, generator=chance))
    ends = (*range(min(100, len(valid))), *range(100, len(valid), 7), *range(max(0, len(valid) - 50), len(valid)))
    cases += [bytes(valid[:stop]) for stop in ends]
    if not codec.has_fixed_size:  # short frames whose counts, if there are any, are small
        cases += [bytes([fill]) * stop for fill in (0, 0xFF) for stop in range(1, count, 29)]
    for _ in range(300):
        flipped, bit = bytearray(valid), int(torch.randint(0, 8 * len(valid), (), generator=chance))
        flipped[bit // 8] ^= 1 << bit % 8
        cases.append(bytes(flipped))
    for position in range(0, len(valid), 7):
        flipped = bytearray(valid)
        flipped[position] = 0xFF - flipped[position]
        cases.append(bytes(flipped))
    # Counts and lengths in the bytes, if there are any, at their largest in every place.
    cases += [bytes(valid[:at]) + b"\xff" * 8 + bytes(valid[at + 8 :]) for at in range(0, len(valid) - 8, 5)]
    with _Allocations() as allocations:
        for case in cases:
            _decode_hostile(codec, case, size)
    most = max(2 * 4 * size, 1 << 20)
    _require(allocations.largest <= most, codec, f"decoding {size} elements took {allocations.largest} bytes at once")


def _decode_hostile(codec: Codec, case: bytes, size: int) -> None:
    accumulator, target = torch.full((size,), 7.0), torch.full((size,), 7.0)
    try:
        codec.decode_add(case, accumulator, WEIGHT_LIMIT)
    except InvalidEncodingError:
        _require(bool((accumulator == 7.0).all()), codec, "decode_add changed the sum before it raised")
    _require(bool(accumulator.isfinite().all()), codec, "hostile bytes made a sum infinite or NaN")
    try:
        codec.decode(case, target)
    except InvalidEncodingError:
        _require(bool((target == 7.0).all()), codec, "decode changed its target before it raised")
    _require(bool(target.isfinite().all()), codec, "hostile bytes decoded to infinity or NaN")


class _Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the largest tensor that anything inside makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.largest = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for each in found if isinstance(found, tuple | list) else (found,):
            if isinstance(each, torch.Tensor) and not each.is_meta:
                self.largest = max(self.largest, each.untyped_storage().nbytes())
        return found


def check_cuts(codec: Codec) -> None:
    """A vector cut anywhere at whole blocks decodes to the same values as in one piece."""
    block = codec.block_elements
    for name, source in sample_vectors():
        whole = _decoded(codec, _encoded(codec, source), source.numel())
        for blocks in (1, 3, 7):
            cut = min(blocks * block, source.numel())
            pieces = [_decoded(codec, _encoded(codec, piece), piece.numel()) for piece in (source[:cut], source[cut:])]
            _require(torch.equal(torch.cat(pieces), whole), codec, f"{name}: cut at {cut} it decoded to other values")


def check_threads(codec: Codec) -> None:
    """Bytes do not depend on how many threads compute, nor on who encodes at the same time."""
    sources = [torch.randn(131_329, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    wanted, threads = [_encoded(codec, source) for source in sources], torch.get_num_threads()
    try:
        torch.set_num_threads(1 if threads > 1 else 2)
        again = [_encoded(codec, source) for source in sources]
    finally:
        torch.set_num_threads(threads)
    _require(again == wanted, codec, "another number of threads gave other bytes")
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda source: _encoded(codec, source), sources))
    _require(together == wanted, codec, "encoding several vectors at the same time gave other bytes")


def check_processes(codec: Codec) -> None:
    """Another process, with one thread and another seed of hashes, makes the same bytes.

    Of a codec that no other process can import, because a function made it, nothing is checked.
    """
    kind = type(codec)
    if "<locals>" in kind.__qualname__ or kind.__module__ == "__main__":
        return
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-c", _ELSEWHERE, kind.__module__, kind.__qualname__, codec.name]
    ran = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    _require(ran.returncode == 0, codec, f"it does not work in another process: {ran.stderr[-300:]}")
    _require(ran.stdout.strip() == digest_of_samples(codec), codec, "another process made other bytes")


def digest_of_samples(codec: Codec) -> str:
    """A digest of what the codec makes of all `sample_vectors`."""
    digest = hashlib.blake2b()
    for _, source in sample_vectors():
        digest.update(_encoded(codec, source))
    return digest.hexdigest()


_ELSEWHERE: Final = """
import sys
from importlib import import_module
from minga.averaging.codecs.dense import codec
from minga.testing.codec_suite import digest_of_samples
kind = getattr(import_module(sys.argv[1]), sys.argv[2])
try:
    made = kind()
except TypeError:  # it takes arguments, which its entry point knows
    made = codec(sys.argv[3])
print(digest_of_samples(made))
"""


def check_residual(codec: Codec) -> None:
    """What a codec that needs a residual leaves out is never more than it was given, and all of it comes in the end:
    whatever becomes of a contribution, what was applied and what is left is what was brought.
    """
    if not codec.needs_residual:
        return
    for name, source in sample_vectors():
        left = source.double() - _decoded(codec, _encoded(codec, source), source.numel()).double()
        _require(bool(left.norm() <= source.double().norm()), codec, f"{name}: it left out more than there was")
    numel, chance = 3 * codec.block_elements + 2, random.Random(17)
    generator = torch.Generator().manual_seed(17)
    plain = CastCodec("float32", torch.float32)
    size = codec.max_encoded_bytes(numel)
    chunk = Chunk(0, 0, numel, CodecPair(codec, plain), size, plain.max_encoded_bytes(numel))
    residual = Residual(numel)
    brought, applied = torch.zeros(2, numel, dtype=torch.float64)
    for step in range(200):
        mean, weight = torch.randn(numel, generator=generator), chance.choice([1, 7, 1000])
        sealed = residual.seal(mean, weight, step)
        room = memoryview(bytearray(size))
        sent = _decoded(codec, bytes(sealed.encode(chunk, room)), numel)
        if chance.random() < 0.2:
            sealed.take_back()
            continue
        fate = chance.choice(list(Fate))
        taken = {Fate.COUNTED: sent, Fate.WHOLE: sealed.values(chunk), Fate.LEFT_OUT: torch.zeros(numel)}[fate]
        applied += weight * taken.double()
        brought += weight * mean.double()
        sealed.commit([(chunk, fate)])
    lost = float((brought - applied - residual.mass.double()).norm() / brought.norm())
    _require(lost < 1e-5, codec, f"{lost:.1e} of what was brought was neither applied nor kept")


def check_facts(codec: Codec) -> None:
    """Name and version are well formed; an identity says so, and nothing else does."""
    _require(re.fullmatch(NAME_PATTERN, codec.name) is not None, codec, "the name is none that a run spec can hold")
    _require(codec.version >= 1 and codec.block_elements >= 1, codec, "version and block_elements count from 1")
    source = torch.randn(1000, generator=torch.Generator().manual_seed(17))
    plain = bytearray(4000)
    store(source, bytes_of(plain, writable=True), torch.float32)
    is_identity = _encoded(codec, source) == plain
    _require(is_identity == codec.is_identity, codec, f"is_identity is {codec.is_identity}")
    _require(codec.has_fixed_size or not codec.is_identity, codec, "an identity has a fixed size")


def check_weights(codec: Codec) -> None:
    """Weights that are not finite or beyond +-2**31 are refused."""
    buffer = _encoded(codec, torch.ones(5))
    for weight in (math.nan, math.inf, -math.inf, 2.0**31 + 1):
        _refuses(codec, ValueError, f"weight {weight}", codec.decode_add, buffer, torch.ones(5), weight)


def _refuses(
    codec: Codec, error: type[Exception], what: str, call: Callable[..., object], *arguments: object, **named: object
) -> None:
    try:
        call(*arguments, **named)
    except error:
        return
    except Exception as other:
        raise CodecViolation(f"{codec.name}: {what} raised {type(other).__name__}, not {error.__name__}") from other
    raise CodecViolation(f"{codec.name}: {what} was accepted")


CODEC_CHECKS: Final[tuple[Callable[[Codec], None], ...]] = (
    check_error_bound,
    check_zeros_stay_zero,
    check_repeatable,
    check_decode_add,
    check_sizes,
    check_buffers,
    check_tensors,
    check_local_non_finite,
    check_limit_is_consistent,
    check_hostile_bytes,
    check_weights,
    check_cuts,
    check_threads,
    check_processes,
    check_residual,
    check_facts,
)
"""All checks, each taking the codec and raising `CodecViolation` if it fails."""


def check_codec(codec: Codec) -> None:
    """Run every check in turn. Raises the first failure."""
    for check in CODEC_CHECKS:
        check(codec)
