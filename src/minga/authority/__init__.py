"""The authority: a small web service that admits people who log in to a run for members, and its client.

    GET  /v1/offer     -> Offer        the run, in which ways people log in here, a nonce
    POST /v1/device    -> DeviceCode   begins a login in the browser (RFC 8628)
    POST /v1/token     SignedRequest   -> TokenAnswer: Issued, or Pending while the browser is waited for
    any of them        -> Refusal      with a status from 400 on

Theory of operation. An organiser makes an invitation for many peers (`minga admit LINK --uses 500`) and gives it to
the operator of the authority. The authority keeps the invitation's secret and signs with it: for the key of a peer,
under the name of the person, until a date that is hours away (`minga.identity.access.token.Login`). So no
organiser's key lies on a web server, members verify everything offline, and a stolen invitation can admit at most
as many peers as it is for, until the organisers bar it.

A request is signed by the peer's key and holds the run's id and a nonce that counts once and for a minute. So only the
owner of the key gets its token, and a recorded request is worth nothing. No clock matters for that. The list of people,
and how many peers each may have, is a file (server/allow_list); another file (server/roster) keeps the tokens of each
person. Before a token expires its peer gets the next one by its key alone, without another login, as long as its person
is on the list, and for some weeks at most.

`join` is `minga.join` for links that name an authority; `minga join` uses it, and programs with their own loop can.

Read: messages (what both sides say, as JSON), http (requests whose answers are bounded). Then server, client.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minga.authority.client.join import join
    from minga.authority.client.login import Credentials

__all__ = ["Credentials", "join"]

_LATE = {
    "Credentials": "minga.authority.client.login",
    "join": "minga.authority.client.join",
}  # these import torch and more


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATE[name]), name)
