"""Exactly once: which request of each client was applied last, and what it was answered.

A client begins a session, whose number the server draws, and numbers its requests from 1. The server takes the next
number alone. The last number again gets the same answer again, byte for byte, and is not applied twice. All others are
refused, and so is every session but the client's last. A client that is refused begins anew and asks what became of the
request that it is in doubt about:

    applied        its gradients are lost, and the client goes on with the next batch
    not applied    the client sends it once more, in the new session
    not known      the client goes on with the next batch: it is not applied twice

Memory is bounded in two ways. Answers are kept for the clients of the latest requests, as many as there is room for;
the numbers of a client whose answer was dropped are kept, so the server still knows what it applied. Of more clients
than `MAX_CLIENTS` the server forgets those that were quiet for longest. Of a session that it does not find it says "not
known", also right after its start: the top may come from a file, and have seen the request.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from minga.core.errors import RejectedError
from minga.core.refusal_code import RefusalCode
from minga.split.wire.messages import BeginReply, BeginRequest
from minga.split.wire.tensors import EncodedReply

MAX_CLIENTS: Final = 4096


@dataclass
class _KnownClient:
    """Its session, the number applied last, with its answer, and the session before, of which the last number is known,
    too (0: there was none).
    """

    session: int
    last: int = 0
    before_session: int = 0
    before_last: int = 0
    reply: EncodedReply | None = None


class Sessions:
    """The sessions of all clients of one server; `entropy` gives random bytes."""

    def __init__(self, entropy: Callable[[int], bytes], kept_bytes: int, *, max_clients: int = MAX_CLIENTS) -> None:
        self._entropy, self._kept_bytes, self._max_clients = entropy, kept_bytes, max_clients
        self._clients: OrderedDict[str, _KnownClient] = OrderedDict()  # the one with the latest request last
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def held_bytes(self) -> int:
        """Bytes of the answers that are kept."""
        return self._bytes

    def begin(self, client: str, request: BeginRequest, step: int) -> BeginReply:
        """Begin a session in place of the client's last one."""
        old = self._clients.get(client)
        session = (int.from_bytes(self._entropy(8), "big") >> 1) or 1
        made = _KnownClient(session)
        if old is not None:
            before = (old.session, old.last) if old.last else (old.before_session, old.before_last)
            made.before_session, made.before_last = before
            self._drop_reply(old)
        self._clients[client] = made
        self._clients.move_to_end(client)
        while len(self._clients) > self._max_clients:
            _, gone = self._clients.popitem(last=False)
            self._drop_reply(gone)
        return BeginReply(session, self._applied(old, request), step)

    def check(self, client: str, session: int, number: int) -> EncodedReply | None:
        """Whether this request is the next one: None; or the answer that it got already.

        Raises `RejectedError` for all others.
        """
        known = self._clients.get(client)
        if known is None or known.session != session:
            raise anew("this session is not known here")
        if number == known.last and number and known.reply is not None:
            return known.reply
        if number != known.last + 1:
            raise anew(f"request {number} of this session, where {known.last + 1} is due")
        return None

    def note(self, client: str, session: int, number: int, reply: EncodedReply | None) -> None:
        """A request was applied, of which `check` has said that it is the next one; None: its answer cannot be kept.

        Nothing is kept of a client that was forgotten while its request waited for those of others.
        """
        known = self._clients.get(client)
        if known is None:
            return
        if (known.session, known.last + 1) != (session, number):
            raise ValueError(f"request {number} of session {session} was not due")
        self._drop_reply(known)
        known.last, known.reply = number, reply
        self._bytes += 0 if reply is None else reply.size_bytes
        self._clients.move_to_end(client)
        for other in self._clients.values():
            if self._bytes <= self._kept_bytes or other is known:
                break
            self._drop_reply(other)

    def _applied(self, known: _KnownClient | None, request: BeginRequest) -> bool | None:
        if not request.doubt_session:
            return None
        if known is not None and request.doubt_session == known.session:
            return request.doubt_number <= known.last
        if known is not None and request.doubt_session == known.before_session:
            return request.doubt_number <= known.before_last
        return None  # it was forgotten, or the top is one that was loaded from a file and may have seen it

    def _drop_reply(self, kept: _KnownClient) -> None:
        if kept.reply is not None:
            self._bytes -= kept.reply.size_bytes
            kept.reply = None


def anew(why: str) -> RejectedError:
    """The refusal after which a client has to begin anew."""
    return RejectedError(f"{why}; begin anew", code=RefusalCode.SESSION)
