"""Joining a run by a link that names an authority."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from minga.authority.client.client import AuthorityClient
from minga.authority.client.login import Credentials, LogIn, LoginUser
from minga.authority.client.renewal import keep_renewed
from minga.identity.access.token import Token
from minga.identity.keys.keys import Identity
from minga.identity.links.links import Link
from minga.training import join as join_module
from minga.training.join import PeerOptions
from minga.training.peer import Peer
from minga.training.prospect import Consider

T = TypeVar("T")


def join(
    link: Link | str,
    options: PeerOptions | None = None,
    person: LoginUser | None = None,
    *,
    consider: Consider | None = None,
    probes: bool = True,
) -> Peer:
    """Join a run as `minga.join` does; if the link names an authority, log in there, and keep the access renewed.

    `person` is asked where this peer's key is not enough; without one (`Credentials()`) it has to be. Blocks as long as
    all that takes. Raises what `minga.join` raises: `RejectedError` if the authority refuses, `UnreachableError` if it
    does not answer, and `ConfigurationError` if `person` cannot say what is needed.
    """
    link = join_module.read_link(link)
    person = person or Credentials()
    if link.authority is None:
        return join_module.join(link, options, consider=consider, probes=probes)
    url, run_id, organiser = link.authority, link.run_id, link.organiser

    async def log_in(identity: Identity, kept: Token | None) -> Token:
        client = AuthorityClient(url, run_id, on_pause=person.wait)
        try:
            return await LogIn(client, person, asyncio.sleep).obtain(identity, kept)
        finally:
            await client.close()

    def obtain(identity: Identity, kept: Token | None) -> Token | None:
        return kept if identity.peer_id == organiser else _completed(log_in(identity, kept))

    peer = join_module.join(link, options, obtain=obtain, consider=consider, probes=probes)
    try:
        peer.on_loop(lambda: peer.session.node.spawn(_renew(peer, AuthorityClient(url, run_id), person)))
    except BaseException:  # such as Ctrl-C: nobody else knows of this peer yet
        peer.close()
        raise
    return peer


def _completed(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, also where a loop runs already, as in notebooks."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


async def _renew(peer: Peer, client: AuthorityClient, person: LoginUser) -> None:
    try:
        await keep_renewed(peer.session, LogIn(client, person, asyncio.sleep))
    finally:
        await client.close()
