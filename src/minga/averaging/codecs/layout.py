"""Which codec each element of the flat vector takes, where the vector is cut into chunks, and how one is received.

The vector is the concatenation of a run's tensors. A run names one codec for all of them or says "adaptive": int8 for
tensors of at least 65 537 elements and float16 for smaller ones, where a few bytes saved are worth less than the
precision, or others as its settings say, "adaptive(large=int4, from_elements=4096)". The choice depends on the whole
tensor, never on the part of it that an aggregator holds.
The mean may travel by another codec than what it is made from: a `CodecPair` names both.
A run's codec may leave something out and make up for it later, which is not for all tensors: the last ones of a layout
may be *whole*, and travel as float32 then.
Neighbours with one pair form a *segment*. A *chunk* is what is sent and reduced at once: it lies in one part and
one segment and takes at most `target_bytes` encoded (or one codec block, where that is larger).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Final, NamedTuple

import blake3

from minga.averaging.codecs.dense import Codec, CodecPair, codec
from minga.averaging.codecs.registry import ADAPTIVE, AdaptiveSettings, adaptive_settings, canonical_codec
from minga.core.errors import ConfigurationError
from minga.core.spec.choices import parse_choice
from minga.network.rpc.stream import MessageStream

ADAPTIVE_INT8_MIN_ELEMENTS: Final = AdaptiveSettings().from_elements
FINGERPRINT_BYTES: Final = 16
SMALL: Final = "float16"
WHOLE: Final = "float32"
"""How tensors travel that are too small for a codec, and those out of which nothing is to be left."""
MAX_LABEL_CHARACTERS: Final = 200
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """Elements `start` to `stop` of the flat vector, all with one pair of codecs."""

    start: int
    stop: int
    codecs: CodecPair


@dataclass(frozen=True, slots=True)
class Chunk:
    """Elements `start` to `stop` of the flat vector, encoded at once; `index` counts the chunks of one range."""

    index: int
    start: int
    stop: int
    codecs: CodecPair
    upload_bytes: int
    """What it takes at most on its way to its aggregator."""
    download_bytes: int
    """What its mean takes at most on the way back."""

    @property
    def numel(self) -> int:
        """The number of elements."""
        return self.stop - self.start


Cut = Callable[[], Sequence[Chunk]]
"""Gives the chunks of a round, where they matter."""


@dataclass(frozen=True)
class VectorLayout:
    """The tensors of a vector, and the run's choice of codecs.

    Each of the `tensors` is given by its shape, or by its number of elements where only sizes matter: that is a shape
    with one axis. Choices are kept in their canonical spelling. The mean travels by `download_choice`; None is what the
    codec says, and else as all the rest. The `label` says what the vector is of, where a run averages several (such as
    "fragment 1 of 4"). The last `whole` tensors travel whole where codecs leave something out of others. Raises
    `ConfigurationError` for an unknown codec, a negative size, no elements at all, or a label that is not one line of
    ASCII.

    Shapes are no part of the fingerprint: the bytes of a codec do not depend on them. What does depend on them has to
    name them in the label (`shapes_digest`).
    """

    tensors: tuple[int | Shape, ...]
    codec_choice: str
    download_choice: str | None = None
    label: str = ""
    whole: int = 0

    def __post_init__(self) -> None:
        tensors = (tuple(each) if isinstance(each, Sequence) else each for each in self.tensors)
        object.__setattr__(self, "tensors", tuple(tensors))
        object.__setattr__(self, "codec_choice", canonical_codec(self.codec_choice))
        download = usual_download(self.codec_choice) if self.download_choice is None else self.download_choice
        if download is not None:
            object.__setattr__(self, "download_choice", canonical_codec(download))
        axes = [axis for shape in self.shapes for axis in shape]
        if any(isinstance(axis, bool) or not isinstance(axis, int) or axis < 0 for axis in axes):
            raise ConfigurationError("the sizes of a vector's tensors must be integers and not negative")
        if not self.label.isascii() or not (self.label.isprintable() and len(self.label) <= MAX_LABEL_CHARACTERS):
            raise ConfigurationError(
                f"the label of a vector is at most {MAX_LABEL_CHARACTERS} printable ASCII characters"
            )
        if not any(self.numels):
            raise ConfigurationError("the vector is empty: there is nothing to average")
        if returns(self.codec_choice):
            raise ConfigurationError(
                f'the codec "{self.codec_choice}" leaves out what senders take back: it is for means, so set it as '
                "averaging.download_codec"
            )
        if needs_residual(self.download_choice or self.codec_choice):
            raise ConfigurationError(
                f'means cannot travel by the codec "{self.download_choice or self.codec_choice}": they have no '
                "residual for what it leaves out"
            )

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The shape of each tensor, in the order of the vector."""
        return tuple(each if isinstance(each, tuple) else (each,) for each in self.tensors)

    @cached_property
    def numels(self) -> tuple[int, ...]:
        """The number of elements of each tensor, in the order of the vector."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @cached_property
    def shapes_digest(self) -> str:
        """32 hexadecimal digits that differ between layouts whose tensors have other shapes."""
        text = ",".join("x".join(str(axis) for axis in shape) for shape in self.shapes)
        return blake3.blake3(f"minga vector shapes 1\n{text}\n".encode("ascii")).hexdigest(length=FINGERPRINT_BYTES)

    @cached_property
    def total(self) -> int:
        """Elements of the flat vector."""
        return sum(self.numels)

    @cached_property
    def head(self) -> VectorLayout:
        """The layout of the vector without what travels whole."""
        return replace(self, tensors=self.tensors[: len(self.tensors) - self.whole], whole=0)

    @cached_property
    def head_total(self) -> int:
        """Elements of that."""
        return sum(self.numels[: len(self.numels) - self.whole])

    @property
    def needs_residual(self) -> bool:
        """Whether members have to keep what uploads or means left out; see `residual.py`."""
        return needs_residual(self.codec_choice) or returns(self.download_choice or self.codec_choice)

    @cached_property
    def choosing_block_elements(self) -> int:
        """The elements of a block within which the codec of the first elements chooses what it sends; 1 if it sends
        all. Cut at multiples of these, vectors whose blocks mean something are chosen from block by block.
        """
        codecs = self.segments[0].codecs
        if not codecs.upload.needs_residual:
            return 1
        return math.lcm(codecs.upload.block_elements, codecs.download.block_elements)

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """Maximal runs of elements with one pair of codecs, in order; they tile the vector."""
        segments: list[Segment] = []
        stop = 0
        for place, numel in enumerate(self.numels):
            if numel == 0:
                continue
            start, stop = stop, stop + numel
            chosen = self._codecs_of(place)
            if segments and segments[-1].codecs == chosen:
                start = segments.pop().start
            segments.append(Segment(start, stop, chosen))
        return tuple(segments)

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that differ between layouts whose vectors cannot be averaged with one another."""
        sizes = ",".join(str(numel) for numel in self.numels)
        text = f"minga vector layout 1\n{_identity(self.codec_choice)}\n{sizes}\n"
        if self.download_choice not in (None, self.codec_choice):
            text += f"download {_identity(str(self.download_choice))}\n"
        if self.whole and self.needs_residual:
            text += f"whole {self.whole}\n"
        if self.label:
            text += f"label {self.label}\n"
        return blake3.blake3(text.encode("ascii")).hexdigest(length=FINGERPRINT_BYTES)

    def chunks(self, start: int, stop: int, target_bytes: int) -> tuple[Chunk, ...]:
        """Cut elements `start` to `stop` into chunks, in order and without gaps; none for an empty range.

        Cuts fall on segment boundaries and, within a segment, on whole codec blocks counted from the first element,
        so that at most the last block of a segment is short.
        Raises `ValueError` for a range outside the vector or a `target_bytes` below 1.
        """
        pieces = self._pieces(start, stop)
        if target_bytes < 1:
            raise ValueError(f"target_bytes {target_bytes} must be at least 1")
        cuts = ((left, right, piece.codecs) for piece in pieces for left, right in _cut(piece, target_bytes))
        return tuple(
            Chunk(
                index,
                left,
                right,
                chosen,
                chosen.upload.max_encoded_bytes(right - left),
                chosen.download.max_encoded_bytes(right - left),
            )
            for index, (left, right, chosen) in enumerate(cuts)
        )

    def encoded_bytes(self, start: int, stop: int) -> int:
        """Bytes that elements `start` to `stop` take on the wire at most, in the direction in which they take more;
        raises as `chunks` does.
        """
        return max(self.upload_bytes(start, stop), self.download_bytes(start, stop))

    def upload_bytes(self, start: int, stop: int) -> int:
        """Bytes that elements `start` to `stop` take at most on their way to an aggregator; raises as `chunks` does."""
        pieces = self._pieces(start, stop)
        return sum(piece.codecs.upload.max_encoded_bytes(piece.stop - piece.start) for piece in pieces)

    def download_bytes(self, start: int, stop: int) -> int:
        """The same of the mean, on its way to a peer."""
        pieces = self._pieces(start, stop)
        return sum(piece.codecs.download.max_encoded_bytes(piece.stop - piece.start) for piece in pieces)

    def _codecs_of(self, place: int) -> CodecPair:
        numel = self.numels[place]
        if self.needs_residual and place >= len(self.numels) - self.whole:
            return CodecPair(codec(WHOLE), codec(WHOLE))
        upload = codec_of(self.codec_choice, numel)
        return CodecPair(upload, upload if self.download_choice is None else codec_of(self.download_choice, numel))

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        return tuple(segment.start for segment in self.segments)

    def _pieces(self, start: int, stop: int) -> tuple[Segment, ...]:
        """The segments, cut to the range."""
        if not 0 <= start <= stop <= self.total:
            raise ValueError(f"elements {start} to {stop} are not a range of a vector of {self.total}")
        first = max(0, bisect_right(self._starts, start) - 1)
        return tuple(_overlaps(self.segments[first:], start, stop))


def codec_of(choice: str, numel: int) -> Codec:
    """What a tensor of `numel` elements takes by a choice."""
    parts = _parts_of(choice)
    chosen = parts.small if numel < parts.from_elements else parts.large
    return chosen if numel >= chosen.fewest_elements else codec(SMALL)


def codecs_of(choice: str) -> tuple[Codec, Codec]:
    """What large tensors take by a choice, and what small ones do: two codecs only if it chooses by size."""
    parts = _parts_of(choice)
    return parts.large, parts.small


def needs_residual(choice: str) -> bool:
    """Whether uploads of such a choice leave out what has to be kept for later; see `residual.py`."""
    return any(each.needs_residual for each in codecs_of(choice))


def returns(choice: str) -> bool:
    """Whether senders take back what means by such a choice left out."""
    return any(each.returns for each in codecs_of(choice))


def usual_download(choice: str) -> str | None:
    """How means travel where a run with this codec says nothing; None is by the same codec."""
    parts = _parts_of(choice)
    return parts.large.usual_download or parts.small.usual_download


def _identity(choice: str) -> str:
    """What peers have to agree on: a later version of a codec is another one."""
    parts = _parts_of(choice)
    versions = {part.name: part.version for part in (parts.large, parts.small) if part.version != 1}
    return " ".join((choice, *map(str, versions.values())))


class _Parts(NamedTuple):
    """What a choice stands for: two codecs, which are one unless it chooses by size."""

    large: Codec
    small: Codec
    from_elements: int


@cache
def _parts_of(choice: str) -> _Parts:
    if parse_choice(choice).name != ADAPTIVE:
        return _Parts(codec(choice), codec(choice), 0)
    settings = adaptive_settings(choice)
    return _Parts(codec(settings.large), codec(settings.small), settings.from_elements)


def _overlaps(segments: Iterable[Segment], start: int, stop: int) -> Iterator[Segment]:
    for segment in segments:
        if segment.start >= stop:
            return
        if start < segment.stop:
            yield Segment(max(start, segment.start), min(stop, segment.stop), segment.codecs)


def _cut(piece: Segment, target_bytes: int) -> Iterator[tuple[int, int]]:
    codecs = piece.codecs
    block = math.lcm(codecs.upload.block_elements, codecs.download.block_elements)
    largest = max(codecs.upload.max_encoded_bytes(block), codecs.download.max_encoded_bytes(block))
    step = block * max(1, target_bytes // largest)
    for start in range(piece.start, piece.stop, step):
        yield start, min(start + step, piece.stop)


# ---- Receiving one encoded chunk: the frame says how long it is, the codec how long it may be.


async def receive_encoded(stream: MessageStream, codec: Codec, room: memoryview) -> memoryview:
    """Wait for the next bulk frame; returns the part of `room` (of `max_encoded_bytes`) that it filled.

    A frame that is longer, or of another length than a codec of fixed size has, is a `ProtocolError` of the sender,
    raised before anything of it is read.
    """
    if codec.has_fixed_size:
        await stream.receive_bulk_into(room)
        return room
    return room[: await stream.receive_bulk_up_to(room)]
