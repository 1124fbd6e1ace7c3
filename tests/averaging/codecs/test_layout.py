"""The layout of the vector: codec per tensor, segments, chunks that tile, fingerprints."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minga.averaging.codecs.dense import codec
from minga.averaging.codecs.layout import VectorLayout, returns
from minga.averaging.codecs.registry import codec_choices
from minga.core.errors import ConfigurationError

BIG, SMALL = 65_537, 65_536


def spans(layout: VectorLayout) -> list[tuple[int, int, str]]:
    return [(segment.start, segment.stop, segment.codecs.upload.name) for segment in layout.segments]


def test_adaptive_is_decided_by_the_tensor() -> None:
    layout = VectorLayout((SMALL, 3, BIG, 0, BIG, 7), "adaptive")
    first, second = SMALL + 3, SMALL + 3 + 2 * BIG
    assert spans(layout) == [(0, first, "float16"), (first, second, "int8"), (second, second + 7, "float16")]
    # A part that holds three elements of a large tensor still sends them as int8.
    (chunk,) = layout.chunks(second - 3, second, 1000)
    assert chunk.codecs.upload.name == "int8"
    assert chunk.upload_bytes == 5


def test_adaptive_may_choose_between_other_codecs_from_another_size_on() -> None:
    layout = VectorLayout((99, 100, 3), "adaptive( from_elements = 100, large = int4(block=32, rounding=nearest))")
    assert layout.codec_choice == "adaptive(large=int4(block=32), from_elements=100)"
    assert spans(layout) == [(0, 99, "float16"), (99, 199, "int4"), (199, 202, "float16")]
    usual = VectorLayout((99, 100, 3), "adaptive")
    assert layout.fingerprint != usual.fingerprint
    assert VectorLayout((99, 100, 3), "adaptive(large=int8,from_elements=65537)").fingerprint == usual.fingerprint


def test_large_tensors_may_leave_something_out_for_later() -> None:
    layout = VectorLayout((9, BIG), "adaptive(large=sign)", "adaptive")
    assert layout.needs_residual
    assert [segment.codecs.download.name for segment in layout.segments] == ["float16", "int8"]
    assert VectorLayout((9, BIG), "adaptive(large=sign)").download_choice == "int8"
    with pytest.raises(ConfigurationError, match="means cannot travel by"):
        VectorLayout((9, BIG), "adaptive(large=sign)", "adaptive(large=sign)")


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ("adaptive(large=adaptive)", "large = 'adaptive': it chooses by size already"),
        ("adaptive(large=int5)", "'int5' is none of"),
        ("adaptive(small=int4(block=33))", "block = 33: must be 32, 64 or 128"),
        ("adaptive(from_elements=0)", "from_elements = 0: must be a whole number from 1"),
    ],
)
def test_what_adaptive_cannot_choose_between(choice: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        VectorLayout((5,), choice)
    assert said in str(caught.value)


def test_chunks_are_whole_blocks_of_about_the_target() -> None:
    layout = VectorLayout((1_000_000,), "int8")
    chunks = layout.chunks(100, 900_000, 1 << 16)
    assert {chunk.numel for chunk in chunks[:-1]} == {254 * 256}
    assert {chunk.upload_bytes for chunk in chunks[:-1]} == {254 * 258}
    assert 254 * 258 <= 1 << 16 < 255 * 258
    # No bytes are lost to cuts.
    assert sum(chunk.upload_bytes for chunk in chunks) == layout.encoded_bytes(100, 900_000)
    whole = VectorLayout((1 << 20,), "float32").chunks(0, 1 << 20, 1 << 20)
    assert [(chunk.index, chunk.numel, chunk.upload_bytes) for chunk in whole] == [
        (index, 1 << 18, 1 << 20) for index in range(4)
    ]


UPLOADS = [choice for choice in codec_choices() if not returns(choice)]


@given(
    st.lists(st.one_of(st.integers(0, 600), st.integers(SMALL - 2, BIG + 2), st.integers(0, 300_000)), max_size=12),
    st.sampled_from(UPLOADS),
    st.integers(1, 1 << 20),
    st.lists(st.floats(0, 1), max_size=4),
)
def test_chunks_tile_every_part(numels: list[int], choice: str, target_bytes: int, cuts: list[float]) -> None:
    numels = [*numels, 1]
    layout = VectorLayout(tuple(numels), choice)
    target_bytes = max(target_bytes, layout.total // 500 * 4)  # a test, not a benchmark
    borders = [0, *sorted(int(cut * layout.total) for cut in cuts), layout.total]
    inner = {segment.start for segment in layout.segments}
    expected = 0
    for start, stop in pairwise(borders):
        chunks = layout.chunks(start, stop, target_bytes)
        assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
        assert (start == stop) == (not chunks)
        for chunk in chunks:
            assert chunk.start == expected < chunk.stop
            expected = chunk.stop
            assert chunk.upload_bytes == chunk.codecs.upload.max_encoded_bytes(chunk.numel)
            block = math.lcm(chunk.codecs.upload.block_elements, chunk.codecs.download.block_elements)
            for used, size in (
                (chunk.codecs.upload, chunk.upload_bytes),
                (chunk.codecs.download, chunk.download_bytes),
            ):
                assert size <= max(target_bytes, used.max_encoded_bytes(block))
            assert not any(chunk.start < border < chunk.stop for border in inner)
            (segment,) = (one for one in layout.segments if one.start <= chunk.start < one.stop)
            assert chunk.codecs.upload is segment.codecs.upload
        assert expected == stop
        upload, download = (sum(chunk.upload_bytes for chunk in chunks), sum(chunk.download_bytes for chunk in chunks))
        assert upload == layout.upload_bytes(start, stop)
        assert max(upload, download) == layout.encoded_bytes(start, stop)
        assert layout.chunks(start, stop, target_bytes) == chunks
    assert expected == layout.total


def test_fingerprints_tell_layouts_apart() -> None:
    layouts = [
        VectorLayout(numels, choice)
        for numels in ((1, 23), (12, 3), (1, 2, 3), (24,), (1, 23, 0), (23, 1))
        for choice in UPLOADS
    ]
    assert len({layout.fingerprint for layout in layouts}) == len(layouts)
    assert all(len(layout.fingerprint) == 32 for layout in layouts)
    assert VectorLayout((1, 23), "int8").fingerprint == VectorLayout([1, 23], "int8").fingerprint  # type: ignore[arg-type]
    # Pinned: peers of two versions must agree on it.
    assert VectorLayout((3, 70_000), "adaptive").fingerprint == "b65a753e61df70f8d6073d660f9fc723"


def test_shapes_are_known_and_say_nothing_to_dense_codecs() -> None:
    layout = VectorLayout(((4, 6), (), (5,), 7), "adaptive")
    assert layout.shapes == ((4, 6), (), (5,), (7,))
    assert layout.numels == (24, 1, 5, 7)
    assert layout.total == 37
    assert layout.fingerprint == VectorLayout((24, 1, 5, 7), "adaptive").fingerprint
    assert hash(VectorLayout([[4, 6]], "int8")) == hash(VectorLayout(((4, 6),), "int8"))  # type: ignore[arg-type]
    turned = VectorLayout(((6, 4), (), (5,), 7), "adaptive")
    assert turned.fingerprint == layout.fingerprint
    assert turned.shapes_digest != layout.shapes_digest


def test_a_label_tells_vectors_of_equal_sizes_apart() -> None:
    labels = ("", "fragment 0 of 2", "fragment 1 of 2")
    layouts = [VectorLayout((24,), "int8", None, label) for label in labels]
    assert len({layout.fingerprint for layout in layouts}) == 3
    assert layouts[0].fingerprint == VectorLayout((24,), "int8").fingerprint
    for bad in ("two\nlines", "\N{GREEK SMALL LETTER MU}", "x" * 201):
        with pytest.raises(ConfigurationError, match="printable ASCII"):
            VectorLayout((24,), "int8", None, bad)


@pytest.mark.parametrize("numels", [(), (0,), (0, 0), (-1, 5), (1.5,), ("3",), (True,), ((2, -1), 3), ((2, 0),)])
def test_bad_sizes(numels: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError):
        VectorLayout(numels, "float32")


@pytest.mark.parametrize("choice", ["", "int5", "Adaptive", None, 3])
def test_bad_codec(choice: str) -> None:
    with pytest.raises(ConfigurationError, match=r"codec: .* is (none of|not NAME)"):
        VectorLayout((5,), choice)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 11), (11, 11)])
def test_bad_ranges(start: int, stop: int) -> None:
    layout = VectorLayout((10,), "float32")
    with pytest.raises(ValueError, match="not a range of a vector of 10"):
        layout.chunks(start, stop, 100)
    with pytest.raises(ValueError, match="not a range"):
        layout.encoded_bytes(start, stop)
    with pytest.raises(ValueError, match="target_bytes 0"):
        layout.chunks(0, 5, 0)


def test_means_may_travel_by_another_codec() -> None:
    layout = VectorLayout((SMALL, BIG), "float16", "int8")
    (segment,) = layout.segments
    assert (segment.codecs.upload.name, segment.codecs.download.name) == ("float16", "int8")
    chunks = layout.chunks(0, layout.total, 5000)
    assert all(chunk.start % 256 == 0 and chunk.upload_bytes <= 5000 for chunk in chunks)
    assert sum(chunk.download_bytes for chunk in chunks) < layout.encoded_bytes(0, layout.total) == 2 * layout.total
    one, other = (VectorLayout((5,), "float16", download).fingerprint for download in (None, "float32"))
    assert one != other
    assert VectorLayout((5,), "float16", "float16").fingerprint == one


def test_a_later_version_of_a_codec_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    before = VectorLayout((5,), "int8").fingerprint
    monkeypatch.setattr(codec("int8"), "version", 2)
    assert VectorLayout((5,), "int8").fingerprint != before


def test_what_travels_whole_does_so_where_codecs_leave_something_out() -> None:
    tensors, sizes = ((80, 100), (9_000,), (3,)), (8_000, 9_000, 3)
    for choice, download in (("topk", None), ("sign", None), ("topk", "gtopk"), ("adaptive(large=sign)", None)):
        layout = VectorLayout(tensors, choice, download, whole=2)
        codecs = [(each.codecs.upload.name, each.codecs.download.name) for each in layout.segments]
        assert codecs[-1] == ("float32", "float32")
        assert layout.segments[-1].start <= sizes[0]
        assert layout.head == VectorLayout(tensors[:1], choice, download)
        assert layout.head_total == sizes[0]
        assert layout.fingerprint != VectorLayout(tensors, choice, download).fingerprint
    for choice in ("int8", "float32", "adaptive"):
        layout = VectorLayout(tensors, choice, whole=2)
        assert layout.segments == VectorLayout(tensors, choice).segments
        assert layout.fingerprint == VectorLayout(tensors, choice).fingerprint
