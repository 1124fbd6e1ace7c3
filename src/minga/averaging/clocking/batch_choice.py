"""The smallest target batch size with which communication takes no more than a given share of the time.

With the synchronous strategy a step is B / s seconds of computing (B samples, s samples per second of all peers
together) and then c seconds in which nobody computes: group forming, the round, the update. So its share is
c / (B / s + c), and at most x for B >= s c (1 - x) / x. With the delayed strategy both overlap and a step takes
max(B / s, c): nobody computes for the share 1 - (B / s) / c of it if c is longer, so B >= s c (1 - x) is enough.
"""

from __future__ import annotations

import math


def idle_share(batch: float, samples_per_second: float, communication_s: float, *, overlapped: bool) -> float:
    """The share (0 to 1) of a step of `batch` samples in which nobody computes; 1 if nobody ever computes.

    `communication_s` is the seconds of a step that are not computing; with `overlapped` they run beside it.
    """
    if not (samples_per_second > 0.0 and batch > 0.0):
        return 1.0
    computing_s = batch / samples_per_second
    step_s = max(computing_s, communication_s) if overlapped else computing_s + communication_s
    return 1.0 - computing_s / step_s if math.isfinite(step_s) else 1.0


def smallest_batch(
    samples_per_second: float,
    communication_s: float,
    largest_share: float,
    allowed: tuple[int, int],
    *,
    overlapped: bool,
) -> int:
    """The smallest batch with an `idle_share` of at most `largest_share`, or the bound of `allowed` next to it.

    `allowed` is the smallest and the largest batch that the run permits. Where communication would never end the answer
    is the largest, where nobody computes (so that no batch is better than another) the smallest.

    Raises `ValueError` for a share that is not between 0 and 1 (both excluded), negative or undefined rates and
    seconds, or an empty range.
    """
    least, most = allowed
    if not 0.0 < largest_share < 1.0:
        raise ValueError(f"largest_share {largest_share} must be above 0 and below 1")
    if not (samples_per_second >= 0.0 and communication_s >= 0.0):
        raise ValueError(f"{samples_per_second} samples/s and {communication_s} s must not be negative")
    if not 1 <= least <= most:
        raise ValueError(f"no batch is from {least} to {most}")
    if samples_per_second == 0.0:
        return least
    wanted = samples_per_second * communication_s * (1.0 - largest_share)
    if not overlapped:
        wanted /= largest_share
    # Off by a rounding error, a share that is exactly met would ask for one more sample.
    return most if wanted >= most else max(least, math.ceil(wanted * (1.0 - 1e-12)))
