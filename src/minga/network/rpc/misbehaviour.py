"""How often each peer broke the protocol: `MAX_OFFENCES` in `OFFENCE_MEMORY_S` cut a peer off until some are older."""

from __future__ import annotations

from collections import deque

from minga.core.thread_guard import loop_bound
from minga.network.bounded_dict import BoundedDict
from minga.network.interface import PeerId

MAX_OFFENCES = 8
OFFENCE_MEMORY_S = 60.0
MAX_OFFENDERS = 4096
"""How many peers' offences are remembered. Keys cost nothing, so a peer gains nothing if its flood of keys makes us
forget one.
"""


@loop_bound
class MisbehaviourScore:
    """Times of the last offences of each peer. `now` is always the loop's time in seconds."""

    def __init__(self) -> None:
        self._times: BoundedDict[PeerId, deque[float]] = BoundedDict(MAX_OFFENDERS)

    def __len__(self) -> int:
        return len(self._times)

    def note(self, peer: PeerId, now: float) -> None:
        """Count one more."""
        times = self._times.get(peer) or deque(maxlen=MAX_OFFENCES)
        times.append(now)
        self._times[peer] = times

    def is_cut_off(self, peer: PeerId, now: float) -> bool:
        """Whether there were too many of late."""
        times = self._times.get(peer)
        return times is not None and len(times) == MAX_OFFENCES and now - times[0] < OFFENCE_MEMORY_S
