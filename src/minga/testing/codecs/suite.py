"""What every codec must do, as checks to be run against an instance.

    @pytest.mark.parametrize("check", CODEC_CHECKS)
    def test_my_codec(check):
        check(MyCodec())

Each check raises `Violation` with the case that failed. All data come from fixed seeds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import torch

from minga.averaging.codecs.dense import CastCodec
from minga.averaging.codecs.interface import (
    CONTRIBUTION_LIMIT,
    FLOAT32_MAX,
    Codec,
    CodecPair,
    InvalidEncodingError,
)
from minga.averaging.codecs.tensor_bytes import bytes_of, store
from minga.core.spec.plugins import NAME_PATTERN
from minga.testing.arguments import require_instance
from minga.testing.codecs.cases import (
    SIZES,
    decoded_of,
    digest_of_samples,
    encoded_of,
    refuses,
    sample_vectors,
)
from minga.testing.codecs.classes import check_contraction, check_error_feedback, check_unbiased
from minga.testing.codecs.defence import (
    check_hostile_bytes,
    check_limit_is_consistent,
    check_local_non_finite,
    check_weights,
)
from minga.testing.other_process import can_be_imported, said_elsewhere
from minga.testing.pair_suite import check_mass
from minga.testing.violation import require


def check_error_bound(codec: Codec) -> None:
    """Every decoded element is finite and within `max_error` of the source, also the largest one of all; and the source
    stays as it is.
    """
    for name, source in sample_vectors():
        given = source.clone()
        decoded = decoded_of(codec, encoded_of(codec, given), source.numel())
        require(torch.equal(given, source), codec, f"{name}: encode changed its source")
        require(bool(decoded.isfinite().all()), codec, f"{name}: decoded to values that are not finite")
        error = (decoded.double() - source.double()).abs()
        bound = codec.max_error(source)
        require(bound.shape == source.shape, codec, f"{name}: max_error has the shape {tuple(bound.shape)}")
        excess = error > bound
        where = int(excess.int().argmax()) if source.numel() else 0
        require(
            not bool(excess.any()),
            codec,
            f"{name}: element {where} is off by {error[where] if source.numel() else 0}, more than its bound",
        )


def check_zeros_stay_zero(codec: Codec) -> None:
    """A vector of zeros decodes to zeros."""
    for size in SIZES:
        decoded = decoded_of(codec, encoded_of(codec, torch.zeros(size)), size)
        require(torch.equal(decoded, torch.zeros(size)), codec, f"{size} zeros did not stay zero")


def check_repeatable(codec: Codec) -> None:
    """Encoding twice gives the same bytes; encoding a decoded slice, unless at random, gives the same values again."""
    for name, source in sample_vectors():
        encoded = encoded_of(codec, source)
        require(encoded == encoded_of(codec, source), codec, f"{name}: two encodings differ")
        if codec.draws:
            continue
        decoded = decoded_of(codec, encoded, source.numel())
        again = decoded_of(codec, encoded_of(codec, decoded), source.numel())
        require(torch.equal(decoded, again), codec, f"{name}: encoding the decoded values again changed them")


def check_decode_add(codec: Codec) -> None:
    """`decode_add` is decoding, then adding with the weight, up to float32 rounding; exactly so for weight 1."""
    chance = torch.Generator().manual_seed(7)
    for name, source in sample_vectors():
        encoded = encoded_of(codec, source)
        decoded = decoded_of(codec, encoded, source.numel())
        start = torch.randn(source.numel(), generator=chance)
        for weight in (0.0, 1.0, 3.0, 17.25, -0.5):
            if abs(weight) > 1 and source.numel() and float(decoded.abs().max()) > CONTRIBUTION_LIMIT:
                continue  # the sum itself would overflow
            accumulator = start.clone()
            codec.decode_add(encoded, accumulator, weight, limit=FLOAT32_MAX)
            wanted = start.double() + weight * decoded.double()
            slack = 2.0**-22 * (start.double().abs() + abs(weight) * decoded.double().abs()) + 2.0**-140
            close = bool(((accumulator.double() - wanted).abs() <= slack).all())
            require(close, codec, f"{name}: decode_add with weight {weight} is not decode then add")
            if weight == 1.0:
                require(
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
        require(whole == added, codec, "max_encoded_bytes is not additive over blocks")
    for size in SIZES:
        exact = codec.max_encoded_bytes(size)
        require(codec.max_encoded_bytes(size + 1) >= exact, codec, f"{size + 1} elements take less than {size}")
        for wrong in {max(0, exact - 1), exact + 1, exact + 2, 2 * exact + 4} - {exact}:
            vector = torch.zeros(size)
            refuses(codec, ValueError, f"a target of {wrong} bytes", codec.encode, vector, bytearray(wrong))
            if wrong < exact and not codec.has_fixed_size:
                continue
            refuses(codec, InvalidEncodingError, f"a source of {wrong} bytes", codec.decode, bytes(wrong), vector)
            refuses(
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
    wanted = encoded_of(codec, source)
    values = decoded_of(codec, wanted, 1003)
    for offset in range(9):
        room = bytearray(b"\xaa" * (size + 16))
        view = memoryview(room)[offset : offset + size]
        took = codec.encode(source, view)
        require(view[:took] == wanted, codec, f"a target at offset {offset} got other bytes")
        require(room[:offset] + room[offset + size :] == b"\xaa" * 16, codec, "encode wrote outside its target")
        tensor = torch.full((size + 16,), 0xAA, dtype=torch.uint8)
        codec.encode(source, tensor[offset : offset + size])
        view, tensor = view[:took], tensor[offset : offset + took]
        require(bytes(tensor.tolist()) == wanted, codec, "a tensor got other bytes")
        for buffer in (view, tensor, bytes(view), memoryview(bytes(room))[offset:][:took]):
            target = torch.zeros(1003)
            codec.decode(buffer, target)
            require(torch.equal(target, values), codec, f"a source at offset {offset} decoded to other values")
            accumulator = torch.ones(1003)
            codec.decode_add(buffer, accumulator, 1.0)
            require(torch.equal(accumulator, values + 1), codec, f"a source at offset {offset} added other values")
    refuses(codec, ValueError, "a read-only target", codec.encode, source, bytes(size))
    strided = memoryview(bytearray(2 * size))[::2]
    refuses(codec, ValueError, "a strided target", codec.encode, source, strided)
    refuses(codec, ValueError, "a float target", codec.encode, source, torch.zeros(size))


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
        refuses(codec, ValueError, f"a {name} source", codec.encode, tensor, buffer)
        refuses(codec, ValueError, f"a {name} target", codec.decode, buffer, tensor)
        refuses(codec, ValueError, f"a {name} sum", codec.decode_add, buffer, tensor, 1.0)
    tracked = torch.ones(8, requires_grad=True)
    buffer = buffer[: codec.encode(tracked, buffer)]
    codec.decode(buffer, tracked)
    codec.decode_add(buffer, tracked, 1.0)
    require(
        torch.equal(tracked.detach(), 2 * decoded_of(codec, buffer, 8)),
        codec,
        "a tensor with requires_grad was not handled",
    )


def check_cuts(codec: Codec) -> None:
    """A vector cut anywhere at whole blocks decodes to the same values as in one piece, unless it draws."""
    if codec.draws:
        return
    block = codec.block_elements
    for name, source in sample_vectors():
        whole = decoded_of(codec, encoded_of(codec, source), source.numel())
        for blocks in (1, 3, 7):
            cut = min(blocks * block, source.numel())
            pieces = [
                decoded_of(codec, encoded_of(codec, piece), piece.numel()) for piece in (source[:cut], source[cut:])
            ]
            require(torch.equal(torch.cat(pieces), whole), codec, f"{name}: cut at {cut} it decoded to other values")


def check_threads(codec: Codec) -> None:
    """Bytes do not depend on how many threads compute, nor on who encodes at the same time."""
    sources = [torch.randn(131_329, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    wanted, threads = [encoded_of(codec, source) for source in sources], torch.get_num_threads()
    try:
        torch.set_num_threads(1 if threads > 1 else 2)
        again = encoded_of(codec, sources[0])
        torch.set_num_threads(1)
        with ThreadPoolExecutor(3) as pool:
            together = list(pool.map(lambda source: encoded_of(codec, source), sources))
    finally:
        torch.set_num_threads(threads)
    require(again == wanted[0], codec, "another number of threads gave other bytes")
    require(together == wanted, codec, "encoding several vectors at the same time gave other bytes")


def check_processes(codec: Codec, *others: Codec) -> None:
    """Another process, with other threads and other seeds, makes the same bytes; it may check several codecs.

    Of a codec that no other process can import, because a function made it, nothing is checked.
    """
    codecs = [each for each in (codec, *others) if can_be_imported(type(each))]
    if not codecs:
        return
    words = [word for each in codecs for word in (type(each).__module__, type(each).__qualname__, each.choice)]
    for each, digest in zip(codecs, said_elsewhere(_ELSEWHERE, *words), strict=True):
        require(digest == digest_of_samples(each), each, "another process made other bytes")


_ELSEWHERE: Final = """
from minga.averaging.codecs.dense import codec
from minga.core.errors import ConfigurationError
from minga.core.spec.choices import parse_choice, settings_of
from minga.testing.codecs.cases import digest_of_samples
for module, name, choice in zip(*[iter(words)] * 3):
    kind = find(module, name)
    try:
        made = codec(choice)
    except ConfigurationError:  # no installed package brings it
        settings = settings_of(parse_choice(choice), kind.Settings, "codec")
        made = kind(settings) if kind.Settings.model_fields else kind()
    if type(made) is not kind:
        made = kind()
    say(digest_of_samples(made))
"""


def check_residual(codec: Codec) -> None:
    """What a codec that needs a residual leaves out is never more than it was given, and all of it comes in the end:
    whatever becomes of contributions, as `check_mass` has it, with means in float32.
    """
    if not codec.needs_residual:
        return
    for name, source in sample_vectors():
        left = source.double() - decoded_of(codec, encoded_of(codec, source), source.numel()).double()
        require(bool(left.norm() <= source.double().norm()), codec, f"{name}: it left out more than there was")
    check_mass(CodecPair(codec, CastCodec("float32", torch.float32)))


def check_facts(codec: Codec) -> None:
    """Name and version are well formed; an identity says so, and nothing else does."""
    require(re.fullmatch(NAME_PATTERN, codec.name) is not None, codec, "the name is none that a run spec can hold")
    require(codec.version >= 1 and codec.block_elements >= 1, codec, "version and block_elements count from 1")
    source = torch.randn(1000, generator=torch.Generator().manual_seed(17))
    plain = bytearray(4000)
    store(source, bytes_of(plain, writable=True), torch.float32)
    is_identity = encoded_of(codec, source) == plain
    require(is_identity == codec.is_identity, codec, f"is_identity is {codec.is_identity}")
    require(codec.has_fixed_size or not codec.is_identity, codec, "an identity has a fixed size")


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
    check_contraction,
    check_unbiased,
    check_error_feedback,
    check_facts,
)
"""All checks, each taking the codec and raising `Violation` if it fails."""


def check_codec(codec: Codec) -> None:
    """Run every check in turn. Raises the first failure, and `TypeError` for what is no codec."""
    require_instance(codec, Codec, "check_codec({}())")
    for check in CODEC_CHECKS:
        check(codec)
