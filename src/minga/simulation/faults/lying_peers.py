"""Peers that lie: honest ones of which a method was replaced, since honest code need not know that lies exist.

    false-rates   claims `BOAST` times what its line carries, to be given a larger part of the vector
    false-state   serves peers that fetch the state one with a flipped bit in each chunk, under the true digest

Both are found out by what peers do in any run. What hostile members of a byzantine run do is in
`simulation/attacks/gradient_attacks.py` and others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from minga.network.bandwidth.access_link import AccessRates
from minga.simulation.attacks.interface import Lie
from minga.simulation.attacks.registry import lie
from minga.training.session import Session
from minga.training.state.manifest import CHUNK_BYTES, Manifest, build_manifest
from minga.training.state.snapshot import StateSnapshot

BOAST: Final = 10.0


class LyingPeers:
    """Makes peers lie, and honest again; `session_of` finds a peer's session by its name."""

    def __init__(self, session_of: Callable[[str], Session]) -> None:
        self._session_of = session_of
        self._undo: dict[str, Callable[[], None]] = {}

    def lie(self, peer: str, behaviour: str | None) -> None:
        """Let a peer lie in this way and no other; None makes it honest."""
        chosen = None if behaviour is None else lie(behaviour)()
        if undo := self._undo.pop(peer, None):
            undo()
        if chosen is not None:
            self._undo[peer] = chosen.begin(self._session_of(peer))


class FalseRates(Lie):
    """Claims `BOAST` times what its line carries."""

    def begin(self, session: Session) -> Callable[[], None]:
        """In all that it tells others of its rates."""
        lines = session.node.access_link
        honest = lines.rates

        def rates() -> AccessRates:
            true = honest()
            return replace(true, upload=_times(true.upload), download=_times(true.download))

        lines.rates = rates  # type: ignore[method-assign]

        def undo() -> None:
            lines.rates = honest  # type: ignore[method-assign]

        return undo


class FalseState(Lie):
    """Serves a state with a flipped bit in each chunk, under the true digest."""

    def begin(self, session: Session) -> Callable[[], None]:
        """From the next state on that it offers."""
        server = session.state_server
        honest = server.publish

        def publish(snapshot: StateSnapshot, manifest: Manifest | None = None, *, stays: bool = False) -> None:
            buffer = snapshot.buffer.clone()
            buffer[::CHUNK_BYTES] ^= 1
            honest(replace(snapshot, buffer=buffer), manifest or build_manifest(snapshot), stays=stays)

        server.publish = publish  # type: ignore[method-assign]

        def undo() -> None:
            server.publish = honest  # type: ignore[method-assign]
            server.withdraw()

        return undo


def _times(rate: float | None) -> float | None:
    return None if rate is None else BOAST * rate
