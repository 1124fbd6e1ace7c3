"""When a step is full, and what each class of peers has by then: the leader's own choice of limits, for known speeds.

All begin the step at the same time, and a peer's k-th micro-batch ends k times as long after that. From these paces
`share_out` of `minga.averaging.clocking.sample_quota` chooses the samples at which each peer stops, as it does for
leaders in a run; what they stop at together is the batch of the step. The way of a report to the leader is no part of
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minga.averaging.clocking import sample_quota


@dataclass(frozen=True)
class PeerPace:
    """`count` equal peers that compute `micro_batch` samples in `micro_batch_s` seconds."""

    count: int
    micro_batch: int
    micro_batch_s: float

    @property
    def samples_per_s(self) -> float:
        """Of all of them together."""
        return self.count * self.micro_batch / self.micro_batch_s


@dataclass(frozen=True)
class StepFill:
    """Seconds from the beginning of a step until all have stopped, and the samples that each pace has by then."""

    seconds: float
    samples: tuple[int, ...]


def fill(paces: Sequence[PeerPace], batch: int) -> StepFill:
    """How a step of at least `batch` samples fills up; forever if nobody computes."""
    singles = [
        sample_quota.MemberPace(0, pace.micro_batch, pace.micro_batch_s, pace.micro_batch_s)
        for pace in paces
        for _ in range(pace.count)
    ]
    limits = sample_quota.share_out(batch, singles)
    samples, start = [], 0
    for pace in paces:
        samples.append(sum(limits.samples[start : start + pace.count]))
        start += pace.count
    return StepFill(limits.seconds, tuple(samples))
