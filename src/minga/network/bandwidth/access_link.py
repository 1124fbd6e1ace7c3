"""A peer's access link as its streams use it: they report to its meter, and its pacers limit them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from minga.core.rate_cap import RateCap
from minga.core.thread_guard import loop_bound
from minga.network.bandwidth.estimate import Estimate
from minga.network.bandwidth.meter import IDLE_SHARE, LinkMeter
from minga.network.bandwidth.token_bucket import TokenBucket


@dataclass(frozen=True)
class AccessRates:
    """A peer's own present rates and caps in bytes per second, None where unknown or without limit.

    No rate exceeds its cap. A rate that is not `shown` is only what traffic asked for: the link was never full, and may
    carry more.
    """

    upload: float | None = None
    download: float | None = None
    upload_cap: float | None = None
    download_cap: float | None = None
    upload_shown: bool = True
    download_shown: bool = True

    @property
    def limits(self) -> tuple[float | None, float | None]:
        """The rate of the link in each direction, up first; None where traffic has not shown it."""
        return self.upload if self.upload_shown else None, self.download if self.download_shown else None

    @property
    def limited_by(self) -> str:
        """What limits each direction, for people: "cap", "line" or "unknown", such as "upload cap, download line"."""
        return f"upload {_limit(self.upload, self.upload_cap)}, download {_limit(self.download, self.download_cap)}"


@loop_bound
class AccessLink:
    """Meter and pacers of one node. `clock` is the loop's, `wall_time` the Unix time for schedules."""

    def __init__(
        self,
        clock: Callable[[], float],
        wall_time: Callable[[], float],
        upload_cap: RateCap | None = None,
        download_cap: RateCap | None = None,
    ) -> None:
        self.clock = clock
        self.doubts = 0
        """How many transfers took much longer than the rates predict, since the last probe."""
        self.meter = LinkMeter(clock)
        self.received_bytes = 0
        """Bulk bytes that arrived so far, from all peers."""
        self.upload, self.download = TokenBucket(upload_cap, wall_time), TokenBucket(download_cap, wall_time)

    def doubt(self) -> None:
        """Note that a transfer took much longer than the rates predict; after a few of these this peer probes its link
        again.
        """
        self.doubts += 1

    def has_room(self, received_bytes: int, seconds: float) -> bool:
        """Whether the download is known to carry clearly more than `received_bytes` in this time."""
        known = self.meter.down.total.value
        return known is not None and received_bytes < IDLE_SHARE * known * seconds

    def rates(self) -> AccessRates:
        """What this peer can send and receive at present, as far as it knows."""
        self.meter.up.settle()
        self.meter.down.settle()
        sent, received, caps = self.meter.up.total, self.meter.down.total, (self.upload.rate, self.download.rate)
        upload, upload_shown = _under(sent, caps[0])
        download, download_shown = _under(received, caps[1])
        return AccessRates(upload, download, *caps, upload_shown, download_shown)


def _under(seen: Estimate, cap: float | None) -> tuple[float | None, bool]:
    """The observed rate, or the cap if that is lower, and whether the link carries no more than that."""
    if seen.value is None or cap is None or seen.value < cap:
        return seen.value, seen.is_shown
    return cap, True


def _limit(rate: float | None, cap: float | None) -> str:
    if rate is None:
        return "unknown" if cap is None else "cap"
    return "cap" if cap is not None and rate >= 0.95 * cap else "line"
