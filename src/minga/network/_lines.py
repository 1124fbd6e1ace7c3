"""A peer's line as its streams see it: what they report to the meter, and what holds them back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from minga.core._schedule import RateCap
from minga.network._pacing import Pacer
from minga.network._rates import IDLE_SHARE, LinkMeter


@dataclass(frozen=True)
class LineRates:
    """A peer's own present rates and caps in bytes per second, None where unknown or without limit.

    No rate exceeds its cap.
    """

    upload: float | None = None
    download: float | None = None
    upload_cap: float | None = None
    download_cap: float | None = None

    @property
    def limited_by(self) -> str:
        """What limits each direction, for people: "cap", "line" or "unknown", such as "upload cap, download line"."""
        return f"upload {_limit(self.upload, self.upload_cap)}, download {_limit(self.download, self.download_cap)}"


class Lines:
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
        """How often something took much longer than the rates let expect, since they were probed."""
        self.meter = LinkMeter(clock)
        self.received_bytes = 0
        """Bulk bytes that came so far, from anybody."""
        self.upload, self.download = Pacer(upload_cap, wall_time), Pacer(download_cap, wall_time)

    def doubt(self) -> None:
        """Something took much longer than the rates let expect; after a few times this peer probes its line anew."""
        self.doubts += 1

    def has_room(self, received_bytes: int, seconds: float) -> bool:
        """Whether the download is known to carry clearly more than so many bytes in this time."""
        known = self.meter.down.total.value
        return known is not None and received_bytes < IDLE_SHARE * known * seconds

    def rates(self) -> LineRates:
        """What this peer can send and receive at present, as far as it knows."""
        self.meter.up.settle()
        self.meter.down.settle()
        up, down = self.upload.rate, self.download.rate
        return LineRates(_at_most(self.meter.up.total.value, up), _at_most(self.meter.down.total.value, down), up, down)


def _at_most(rate: float | None, cap: float | None) -> float | None:
    return rate if rate is None or cap is None else min(rate, cap)


def _limit(rate: float | None, cap: float | None) -> str:
    if rate is None:
        return "unknown" if cap is None else "cap"
    return "cap" if cap is not None and rate >= 0.95 * cap else "line"
