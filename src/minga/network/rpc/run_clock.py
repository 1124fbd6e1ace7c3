"""The run's time: the wall clock by which records expire and access ends, the same on all peers.

Theory of operation. The clocks of machines differ, and a peer whose clock is minutes off would find the records of all
others expired, or they its own. So each hello says what its sender's clock shows and, once it knows, what the run's
time is; each exchange of gossip says the latter again. A newcomer takes the run's time over from an entry of its link,
which it trusts with finding the run anyway. From then on it gives way only to more than half of the voices: its own,
that of its machine's clock where it shows another time, and those of the peers that it is connected to. So a single
liar moves no other peer, and the run keeps the time that it began with, whatever its founder's clock showed. Where half
of the voices say one thing and half another, as when two peers of a run in which no peer was left come back at once,
the peer with the smallest id decides, of this one and the trusted.

A correction is `MAX_CORRECTION_S` at most: two clocks that are wrong by half of that in opposite directions. A peer
whose clock is farther off is refused, with a sentence that says so. Nor can others mislead a peer by more: an access
token is good for so much longer at most, whatever they say.

While a peer is connected the run's time goes on by a steady clock, which counts sleep, so it does no harm if somebody
sets the machine's clock meanwhile, right or wrong. A peer alone goes by its machine's clock, unless that is too far
from the steady one for a correction. Then one of the two is wrong: of a virtual machine that was paused all clocks
stood still. Others know which. Each hello says both times, and is refused only if neither fits; a peer on its own takes
the one of its two that is closer to what the next hello says. In company the voices decide, and a peer whose machine's
clock is so far ahead has none: its machine may have been paused. Those that were paused together, with nobody else,
go by their machines.

A reading is uncertain by half the time that the exchange took, 5 s at most. Differences up to `TOLERANCE_S` count as
none: clocks that a time server sets are never corrected, and no error of measurement adds up from peer to peer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable

from minga.core.aio import Signal
from minga.core.errors import RejectedError
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.core.units import format_duration
from minga.network.interface import Address, Network, PeerId

MAX_CORRECTION_S = 1800.0
"""Seconds by which a machine's clock may be off the run's time."""

TOLERANCE_S = 15.0
"""Seconds of difference that are not corrected; records and access tokens bear many more."""


@loop_bound
class RunClock:
    """The run's time as the peer `own_id` knows it. `wall_time` gives Unix seconds by this machine's clock, `steady`
    seconds by one that nobody sets, see `Network`. The word of `trusted` peers, the entries of the link, is enough for
    a newcomer; without any this peer founds the run, and its clock shows the run's time.
    """

    def __init__(
        self,
        wall_time: Callable[[], float],
        steady: Callable[[], float],
        trusted: Collection[PeerId] = (),
        own_id: str = "",
    ) -> None:
        self.is_settled = not trusted
        """Whether this peer knows the run's time."""
        self.on_heard = Signal()
        """Fired when another one said whether it does."""
        self._wall_time, self._steady, self._own_id = wall_time, steady, own_id
        self._trusted = frozenset(trusted)
        self._met: dict[PeerId, float | None] = {}  # the run's time at zero of the steady clock, as each knows it
        self._paused: set[PeerId] = set()  # those of them that knew it, and do not any more
        self._zero_s = -math.inf  # the same as this peer knows it, once it has met any other
        self._correction_s = 0.0  # of its machine's clock, while it is on its own
        self._trusts_machine = True  # then, however far that is from the steady clock

    @classmethod
    def of(cls, network: Network, entries: Iterable[Address] = ()) -> RunClock:
        """That of a peer which enters a run by `entries`."""
        trusted = {entry.peer_id for entry in entries} - {network.peer_id}
        return cls(network.wall_time, network.steady_time, trusted, network.peer_id)

    def now(self) -> float:
        """The run's time, in Unix seconds."""
        steady_time, machine_time = self._own_times()
        by_machine = self._trusts_machine or abs(machine_time - steady_time) <= MAX_CORRECTION_S
        return machine_time if by_machine and not self._met else steady_time

    def known_time(self) -> float | None:
        """The same; None while this peer only has its machine's clock to go by."""
        return self.now() if self.is_settled else None

    def voice(self) -> float | None:
        """What this peer says to those that it is connected to: the same, or None if it may have been paused."""
        return None if self._may_have_been_paused() else self.known_time()

    def _may_have_been_paused(self) -> bool:
        return -self.correction_s > MAX_CORRECTION_S

    def machine_time(self) -> float:
        """Unix seconds by this machine's clock."""
        return self._wall_time()

    @property
    def correction_s(self) -> float:
        """Seconds by which the run's time is ahead of this machine's clock."""
        return self.now() - self._wall_time()

    def settle(self) -> None:
        """Go by the time that this peer has: there is no peer that it could ask."""
        self.is_settled = True

    def check_guest(self, peer: PeerId, wall_time: float, run_time: float | None) -> None:
        """Raise `RejectedError` if neither time that `peer` says, which asks to be let in, fits one of this peer's."""
        if self.is_settled:
            said = [wall_time] if run_time is None else [run_time, wall_time]
            _check(min((time - own for time in said for own in self._own_times()), key=abs), peer)
            self._choose(said[0])

    def enter_by(self, peer: PeerId, run_time: float | None) -> None:
        """As a newcomer, take over the `run_time` of a `peer` that lets this one in, if it knows it and is trusted.

        Raises `RejectedError` if this machine's clock is too far off.
        """
        if run_time is None:
            return
        if self.is_settled:
            self._choose(run_time)
            return
        _check(self._wall_time() - run_time, peer)
        if peer in self._trusted:
            self._go_by(run_time)
            self.settle()

    def meet(self, peer: PeerId, run_time: float | None) -> None:
        """A peer that this one is connected to, and for which it is `run_time` now; None if it does not know it."""
        self._zero_s = self.now() - self._steady()
        self._trusts_machine = False
        if run_time is not None:
            self._paused.discard(peer)
        elif self._met.get(peer) is not None:
            self._paused.add(peer)
        self._met[peer] = None if run_time is None else run_time - self._steady()
        if self._may_have_been_paused() and self._paused == self._met.keys():
            self._go_by(self._own_times()[1])
        elif run_time is not None:
            self._go_by(self._most_say())
        self.on_heard.fire()

    def time_at(self, peer: PeerId) -> float | None:
        """The run's time as `peer` knows it; None if it does not, or this peer is not connected to it."""
        zero_s = self._met.get(peer)
        return None if zero_s is None else zero_s + self._steady()

    def part(self, peer: PeerId) -> None:
        """The last connection to `peer` is gone."""
        steady_time, machine_time = self._own_times()
        if abs(machine_time - steady_time) <= MAX_CORRECTION_S:
            self._correction_s = self.correction_s
        self._met.pop(peer, None)
        self._paused.discard(peer)

    def _own_times(self) -> tuple[float, float]:
        """The run's time by the steady clock, and by the machine's."""
        return self._zero_s + self._steady(), self._wall_time() + self._correction_s

    def _choose(self, time: float) -> None:
        """On its own, go by the one of this peer's two times that is closer to that of another one."""
        steady_time, machine_time = self._own_times()
        self._trusts_machine = abs(time - machine_time) < abs(time - steady_time)

    def _most_say(self) -> float:
        """The median of the voices if more than half of them say that it is later, or earlier, than here."""
        now, machine_time = self.now(), self._wall_time()
        said: dict[str, float] = {
            peer: zero_s + self._steady() for peer, zero_s in self._met.items() if zero_s is not None
        }
        said[self._own_id] = now
        voices = sorted([*said.values(), *([machine_time] if abs(machine_time - now) > TOLERANCE_S else [])])
        low, high = voices[(len(voices) - 1) // 2], voices[len(voices) // 2]
        if high - low > TOLERANCE_S:
            return said[min(peer for peer in said if peer == self._own_id or peer in self._trusted)]
        return max(low, min(high, now))

    def _go_by(self, run_time: float) -> None:
        if abs(run_time - self.now()) > TOLERANCE_S and abs(run_time - self._wall_time()) <= MAX_CORRECTION_S:
            self._zero_s, self._correction_s = run_time - self._steady(), run_time - self._wall_time()
            self._trusts_machine = False


def _check(ahead_s: float, peer: PeerId) -> None:
    """`ahead_s` is by how many seconds the clock of a machine is ahead of the run's time."""
    if abs(ahead_s) <= MAX_CORRECTION_S:
        return
    side = "ahead of" if ahead_s > 0 else "behind"
    raise RejectedError(
        f"this machine's clock is {format_duration(abs(ahead_s))} {side} the run's, and at most "
        f"{format_duration(MAX_CORRECTION_S)} can be corrected. Set it, let it follow a time server, then join again; "
        "if it is right, tell the organiser",
        code=RefusalCode.CLOCK,
        peer=peer,
    )
