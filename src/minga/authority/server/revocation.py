"""Revokes the tokens of people who were taken off the list.

Without an organiser's key nothing can be taken back: their tokens are not renewed, and end within hours. With one, the
peers are barred by an organiser's order, like `minga ban`, and go at the end of the step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from minga.authority.server.issuer import Issuer
from minga.authority.server.roster import RosterFile
from minga.core.aio import Backoff
from minga.core.errors import MingaError
from minga.identity.links.links import Link
from minga.training.join import PeerOptions
from minga.training.organiser import organiser_desk

LOOK_S = 1.0
REASON = "no longer on the authority's list"
FIRST_PAUSE_S, MOST_PAUSE_S = 5.0, 300.0

Bar = Callable[[Sequence[str]], None]
"""Bars peers; blocks, and raises `MingaError` if that cannot be."""

Tell = Callable[..., None]

logger = logging.getLogger("minga.authority")


def barring(link: Link, options: PeerOptions, identity: Path) -> Bar:
    """Bars peers with the organiser's key in the file `identity`, entering the run for a moment to tell the others."""

    def bar(peers: Sequence[str]) -> None:
        with organiser_desk(link, options, identity, lambda _: None) as desk:
            for peer in peers:
                desk.bar(peer, REASON)

    return bar


async def watch_list(issuer: Issuer, roster: RosterFile, bar: Bar | None, tell: Tell) -> None:
    """Check every second whether a person was taken off the list, until cancelled."""
    told: set[str] = set()
    backoff = Backoff(FIRST_PAUSE_S, MOST_PAUSE_S)
    while True:
        overdue = issuer.overdue()
        for peer, name in overdue:
            if peer not in told:
                tell("authority.removed", peer=peer, name=name, barred=bar is not None)
        told = {peer for peer, _ in overdue}
        if overdue and bar is not None:
            try:
                await asyncio.to_thread(bar, [peer for peer, _ in overdue])
                for peer, _ in overdue:
                    roster.bar(peer)
                backoff.overcome()
            except MingaError as error:
                logger.warning("%d peers could not be barred yet: %s", len(overdue), error)
                await asyncio.sleep(backoff.next_s())
        await asyncio.sleep(LOOK_S)
