"""Renews a peer's token while it takes part, so that its access does not end in the middle of a run.

The peer asks for the next token when a third of the present one's life is left, so an authority may be down for long
without any effect. Members learn of the new token by gossip, and newcomers see it in handshakes.
"""

from __future__ import annotations

import asyncio
import math

from minga.authority.client.login import LogIn, check_clock
from minga.core.aio import Backoff
from minga.core.errors import LocalError, RejectedError, RemoteError
from minga.core.events.training import AccessNotRenewed, AccessRenewed
from minga.identity.access.token import Token
from minga.training.session import Session

LEFT_OF_LIFE = 1.0 / 3.0
LOOK_S = 20.0
"""Seconds between looks at the clock, which goes on while a machine sleeps."""

MIN_PAUSE_S, MAX_PAUSE_S = 5.0, 600.0


async def keep_renewed(session: Session, log_in: LogIn) -> None:
    """Renew until the authority says no, or gives no longer access; at once done with access that no login gave.

    Tells `access.renewed` and `access.not_renewed`.
    """
    ends_s = _ends_s(session.admission.token)
    if math.isinf(ends_s):
        return
    while True:
        now_s = session.node.clock.now()
        await _sleep_until(session, ends_s - LEFT_OF_LIFE * max(0.0, ends_s - now_s))
        token = await _next(session, log_in, ends_s)
        if token is None:
            return
        session.show_token(token)
        session.events.emit(AccessRenewed(expires=token.expires))
        if _ends_s(token) <= ends_s:
            return  # the person's time, or the invitation, ends then
        ends_s = _ends_s(token)


async def _next(session: Session, log_in: LogIn, ends_s: float) -> Token | None:
    """The next token, however long that takes; None once the answer is no, or if it means nothing by this clock."""
    backoff = Backoff(MIN_PAUSE_S, MAX_PAUSE_S)
    while True:
        try:
            token = await log_in.renew(session.identity)
            check_clock(token, session.node.clock.now())
            return token
        except (RemoteError, LocalError) as error:
            is_final = isinstance(error, RejectedError | LocalError)
            session.events.emit(AccessNotRenewed(why=str(error), expires=int(ends_s), tries_again=not is_final))
            if is_final:
                return None
        await asyncio.sleep(backoff.next_s())


async def _sleep_until(session: Session, due_s: float) -> None:
    while (left_s := due_s - session.node.clock.now()) > 0.0:
        await asyncio.sleep(min(LOOK_S, left_s))


def _ends_s(token: Token | None) -> float:
    """Unix seconds; infinite for one that needs no renewal, such as an organiser's."""
    return float("inf") if token is None or token.login is None else float(token.expires or 0)
