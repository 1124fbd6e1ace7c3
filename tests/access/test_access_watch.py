"""Whose access ends during a step leaves at its end, unless it was renewed by then."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from minga.access.access_files import PERIOD_S, AccessWatch
from minga.access.admission import Admission
from minga.identity.access.ledger import CLOCK_SKEW_S, AccessLedger, Organisers
from minga.identity.access.orders import Grant
from minga.identity.access.token import Login, Token
from minga.identity.keys.keys import Identity
from minga.network.interface import PeerId
from minga.network.rpc.run_clock import RunClock
from minga.simulation.virtual_time import run_virtual

RUN = bytes([0xAB] * 32)
ORGANISER, AUTHORITY, OWN, OTHER = (Identity.from_seed(bytes([i]) * 32) for i in (230, 231, 232, 233))
NOW = 1_000_000


def token(peer: Identity, expires: int) -> Token:
    grant = Grant(RUN, 0, NOW - 1000, (), bytes.fromhex(AUTHORITY.peer_id), 10, 1, NOW + 10**6).signed_by(ORGANISER)
    return Token.by_login(grant, AUTHORITY, peer.peer_id, Login("anna", expires))


async def step(*, is_renewed: bool) -> set[str]:
    """Who had to leave at the end of a step in which two tokens ended; they may be renewed before."""
    clock, gone, in_step = [float(NOW)], list[str](), [True]
    ledger = AccessLedger(RUN.hex(), Organisers(frozenset({ORGANISER.peer_id}), 1), ORGANISER.peer_id)
    admission = Admission(PeerId(OWN.peer_id), RunClock(lambda: clock[0], lambda: clock[0]), token(OWN, NOW + 100))
    admission.enforce(ledger)
    other = PeerId(OTHER.peer_id)
    admission.meet(other, token(OTHER, NOW + 100).encode())

    async def nothing(_: PeerId) -> None:
        return

    node: Any = SimpleNamespace(
        peer_id=PeerId(OWN.peer_id),
        serve=lambda *_: None,
        on_connected=set(),
        connected=list,
        events=SimpleNamespace(emit=lambda _: None),
        spawn=lambda work: asyncio.get_running_loop().create_task(work),
        disconnect=nothing,
    )
    board: Any = SimpleNamespace(expel=gone.append)
    watch = AccessWatch(
        node,
        board,
        admission,
        ledger,
        None,
        None,
        None,  # type: ignore[arg-type]  # nothing is written
        in_step=lambda: in_step[0],
        on_own_end=lambda _: gone.append(node.peer_id),
    )
    watch.exchange.exchange = nothing  # type: ignore[method-assign]
    clock[0] += 101.0 + CLOCK_SKEW_S
    watch.look()
    assert gone == [], "a step is under way"
    if is_renewed:
        admission.show(token(OWN, NOW + 20_000))
        assert admission.learn(other, token(OTHER, NOW + 20_000).encode())
    in_step[0] = False
    watch.end_step()
    await asyncio.sleep(PERIOD_S)
    return set(gone)


def test_who_shows_a_new_token_before_the_end_of_the_step_stays() -> None:
    assert run_virtual(step(is_renewed=False)) == {OWN.peer_id, OTHER.peer_id}
    assert run_virtual(step(is_renewed=True)) == set()
