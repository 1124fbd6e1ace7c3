"""The organiser of a simulated run: signs orders, enters them at one peer, keeps a backup and restores it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from minga.access.standing_orders import PAUSED, STOP, StandingOrders
from minga.core.errors import ConfigurationError
from minga.identity.access.ledger import AccessLedger, PublicOrder, draft_amendment, draft_range_ban, draft_revocation
from minga.identity.keys.keys import Identity
from minga.simulation.swarm.simulated_peer import SimulatedPeer
from minga.simulation.swarm.swarm import Swarm
from minga.training.organiser import draft_regroup
from minga.training.state.snapshot import StateSnapshot

WHY: Final = "in a scenario"
NOBODY: Final = "no peer is there that could take an order"


@dataclass(frozen=True)
class _Backup:
    """What lies on another machine: a state, and the orders that were known."""

    snapshot: StateSnapshot
    orders: tuple[PublicOrder, ...]


class SwarmOrganiser:
    """Acts for the organiser with the key `identity` of a run that follows its orders."""

    def __init__(self, swarm: Swarm, identity: Identity) -> None:
        self._swarm, self._identity = swarm, identity
        self._backups: dict[str, _Backup] = {}
        self.last_step: int | None = None
        """After which step the run ends, if the organiser said so."""

    def amend(self, changes: Mapping[str, Any], steps_ahead: int) -> int:
        """Change settings from a step on, which is returned. Raises `ConfigurationError` for those that cannot."""
        step = self._newest() + steps_ahead
        self._amend(changes, step)
        return step

    def pause(self, steps_ahead: int) -> int:
        """Let the run rest from a step on, which is returned."""
        return self.amend({PAUSED: True}, steps_ahead)

    def resume(self) -> None:
        """Let a paused run go on."""
        self._amend({PAUSED: False}, 0)

    def stop(self, steps_ahead: int) -> int:
        """End the run after a step, which is returned."""
        step = self._newest() + steps_ahead
        self._amend({STOP: step, PAUSED: False}, 0)
        self.last_step = step
        return step

    def regroup(self, peer: str) -> None:
        """Let the run go on with the members that a peer sees. Raises `ConfigurationError` if it sees none."""
        entry = self._peer(peer)
        ledger, now = entry.session.ledger, int(entry.network.wall_time())
        if ledger is None:
            raise ConfigurationError(f"{peer} does not know the run yet")
        self._enter(entry, [draft_regroup(entry.session.board, ledger, now).signed_by(self._identity)])

    def ban(self, peer: str, lasts_s: float | None) -> None:
        """Bar the key of a peer, and its present address for a time."""
        network = self._peer(peer).network
        entry, ledger, now = self._entry()
        orders: list[PublicOrder] = [draft_revocation(ledger, network.peer_id, WHY, now).signed_by(self._identity)]
        if lasts_s is not None and network.address.direct:
            place, until = network.address.direct[0].rpartition(":")[0], now + max(1, int(lasts_s))
            orders.append(draft_range_ban(ledger, place, until, WHY, now).signed_by(self._identity))
        self._enter(entry, orders)

    def back_up(self, peer: str) -> int:
        """Keep the state of a peer and the orders that it knows; returns the step."""
        source = self._peer(peer)
        ledger = source.session.ledger
        self._backups[peer] = _Backup(source.replica.capture(), () if ledger is None else tuple(ledger.orders()))
        return source.replica.step

    def restore(self, peer: str) -> SimulatedPeer:
        """Start a peer that is gone on another machine, with its key and what its backup holds."""
        kept = self._backups.get(peer)
        if kept is None:
            raise ConfigurationError(f"there is no backup of {peer}")
        restored = self._swarm.restart(peer, checkpoint=kept.snapshot)
        restored.session.admission.take(kept.orders)
        return restored

    def agree(self, peers: Iterable[SimulatedPeer]) -> bool:
        """Whether these peers know the same orders."""
        return len({_known_orders(peer) for peer in peers}) <= 1

    def _peer(self, name: str) -> SimulatedPeer:
        if name not in self._swarm.peers:
            raise ConfigurationError(f"{name} has not come yet")
        return self._swarm.peers[name]

    def _amend(self, changes: Mapping[str, Any], from_step: int) -> None:
        entry, ledger, now = self._entry()
        order = draft_amendment(ledger, changes, from_step, now)
        StandingOrders(self._swarm.spec, ledger).check(order, self._newest())
        self._enter(entry, [order.signed_by(self._identity)])

    def _enter(self, entry: SimulatedPeer, orders: list[PublicOrder]) -> None:
        if invalid := entry.session.admission.take(orders):
            raise ConfigurationError(f"an order is not valid: {invalid[0]}")
        entry.network.process.run(entry.session.spread_orders())

    def _entry(self) -> tuple[SimulatedPeer, AccessLedger, int]:
        """The peer at which orders are entered, what it knows of orders, and its time."""
        for peer in self._swarm.alive():
            ledger, member = peer.session.ledger, peer.session.member
            if ledger is not None and member is not None and member.ready.is_set():
                return peer, ledger, int(peer.network.wall_time())
        raise ConfigurationError(NOBODY)

    def _newest(self) -> int:
        if not (alive := self._swarm.alive()):
            raise ConfigurationError(NOBODY)
        return max(peer.replica.step for peer in alive)


def _known_orders(peer: SimulatedPeer) -> frozenset[bytes]:
    ledger = peer.session.ledger
    return frozenset() if ledger is None else frozenset(order.statement() for order in ledger.orders())
