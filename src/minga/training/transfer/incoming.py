"""A state in the middle of its download, of which fellows, who download the same, may have what has come so far.

Theory of operation. Where several peers need the state at once, as friends do that join together, the line of the donor
is what all of them wait for. So a donor names to each the others, and these open a download at each other, as at a
donor. Each takes the chunks in an order of its own, and leaves to fellows what these have: the donor sends most
chunks once, and the lines of all carry them further. A chunk is verified before it is passed on, and again by who gets
it.
"""

from __future__ import annotations

from collections.abc import Iterable

from minga.averaging.allreduce.round import pack_bitmap, unpack_bitmap
from minga.core.aio import Observers, Signal
from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.training.state.manifest import Manifest
from minga.training.state.snapshot import StateSnapshot


@loop_bound
class IncomingState:
    """The `snapshot` of this `manifest`, of which the chunks `held` are here, and more as they are added."""

    def __init__(self, manifest: Manifest, snapshot: StateSnapshot, held: Iterable[int]) -> None:
        self.manifest, self.snapshot = manifest, snapshot
        self.changed = Signal()
        self.on_fellow = Observers[[PeerId]]()
        """Called with each peer that begins to take chunks from here."""
        self.is_given_up = False
        """Whether nothing comes any more, although chunks are missing."""
        here = set(held)
        self._held = [index in here for index in range(manifest.chunk_count)]
        self.count = len(here)
        """How many chunks are here."""

    def add(self, index: int) -> None:
        """This chunk is here, verified."""
        self._held[index] = True
        self.count += 1
        self.changed.fire()

    def end(self) -> None:
        """The download is over, with all chunks or without."""
        self.is_given_up = not self.is_complete
        self.changed.fire()

    @property
    def is_complete(self) -> bool:
        """Whether all chunks are here."""
        return self.count == self.manifest.chunk_count

    def has(self, indices: Iterable[int]) -> bool:
        """Whether all of these chunks are here."""
        return all(self._held[index] for index in indices)

    def bitmap(self) -> bytes:
        """Which chunks are here: a bit for each, lowest bit first."""
        return pack_bitmap(self._held)


def read_bitmap(bitmap: bytes, count: int) -> set[int]:
    """The chunks out of `count` that an `IncomingState.bitmap` names; bits beyond, or missing ones, name none."""
    return {index for index, is_held in enumerate(unpack_bitmap(bitmap, count)) if is_held}
