"""The random directions z on which differences are projected, expanded from the shared random string.

Any distribution with independent entries would do where the difference is spread over many elements: the projection is
then nearly Gaussian. The choice is made for the aggregator that picks its error by hand.

* **Signs** (+1 or -1) need the fewest random bits, but an error on two equal elements vanishes whenever their signs
  differ: such an aggregator escapes every second time, however large its error is.
* **Gaussians** have no such gaps, but need logarithms and cosines, whose last bits differ between machines.
* **Odd integers from -127 to 127**, one byte for each, are what is used. They are exact in every float format and
  come straight from a stream of bytes, hence are the same everywhere and no slower than signs unpacked from bits. An
  error on few elements, if it is well above the tolerance, escapes with a probability of at most about 1/128 for each
  direction, however it was picked; and for a residual R that was fixed before z was drawn, P(|<z, R>| > κ‖R‖) ≤
  2 exp(-κ²/2) once z is scaled to unit variance, the bound that holds for signs and Gaussians too: the uniform
  distribution on equally spaced points is strictly sub-Gaussian, since
  sinh(128t) / (128 sinh t) ≤ exp((128² - 1) t² / 6).

One direction leaves a small error undetected with a probability of some percent, q of them with its q-th power.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from minga.security._randomness import derive, expand

DEFAULT_DIRECTIONS: Final = 3
MAX_DIRECTIONS: Final = 64
ENTRY_DEVIATION: Final = math.sqrt((128**2 - 1) / 3)
"""Standard deviation of an entry: claims are divided by it."""


@dataclass(frozen=True, slots=True)
class Directions:
    """`count` independent directions as long as the vector, seen from its element `start` on.

    `randomness`: the 32 bytes that the members made together, after the results were committed to.
    Raises `ValueError` for a count outside 1 to `MAX_DIRECTIONS` or a negative start.
    """

    randomness: bytes
    count: int = DEFAULT_DIRECTIONS
    start: int = 0
    _keys: tuple[bytes, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MAX_DIRECTIONS or self.start < 0:
            raise ValueError(
                f"{self.count} directions from element {self.start}: "
                f"1 to {MAX_DIRECTIONS} are possible, from element 0 or later"
            )
        keys = tuple(derive(self.randomness, "projection", index) for index in range(self.count))
        object.__setattr__(self, "_keys", keys)

    def of_part(self, start: int) -> Directions:
        """The same directions for a part that begins `start` elements further on."""
        return Directions(self.randomness, self.count, self.start + start)

    def entries(self, start: int, stop: int) -> npt.NDArray[np.float64]:
        """Return elements `start` to `stop` of each direction, odd integers, as float64 [count, stop - start]."""
        entries = np.empty((self.count, stop - start))
        for index, key in enumerate(self._keys):
            entries[index] = np.frombuffer(expand(key, self.start + start, stop - start), np.int8) | np.int8(1)
        return entries
