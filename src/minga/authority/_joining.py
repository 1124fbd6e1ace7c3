"""Joining a run by a link that names an authority: what `minga.training` is given to get tokens with."""

from __future__ import annotations

import asyncio

from minga.authority._client import AuthorityClient
from minga.authority._login import LogIn, Person
from minga.authority._renewal import keep_renewed
from minga.identity._access_token import Token
from minga.identity._keys import Identity
from minga.identity._links import Link
from minga.training._peer import Peer
from minga.training._run_access import Obtain


def obtaining(link: Link, person: Person) -> Obtain | None:
    """Gets a token from the authority that the link names; None if it names none. Blocks as long as that takes."""
    url = link.authority
    if url is None:
        return None

    async def obtain(identity: Identity, kept: Token | None) -> Token | None:
        client = AuthorityClient(url, link.run_id)
        try:
            return await LogIn(client, person, asyncio.sleep).obtain(identity, kept)
        finally:
            await client.close()

    def run(identity: Identity, kept: Token | None) -> Token | None:
        return kept if identity.peer_id == link.organiser else asyncio.run(obtain(identity, kept))

    return run


def renewing(peer: Peer, link: Link, person: Person) -> None:
    """Keep the token of a peer renewed in the background, if the link names an authority."""
    url = link.authority
    if url is None:
        return
    session = peer.session

    async def renew() -> None:
        client = AuthorityClient(url, link.run_id)
        try:
            await keep_renewed(session, LogIn(client, person, asyncio.sleep))
        finally:
            await client.close()

    peer.on_loop(lambda: session.node.spawn(renew()))
