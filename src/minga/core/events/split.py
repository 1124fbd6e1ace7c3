"""Events of split learning."""

from __future__ import annotations

from minga.core.events.bus import EventData

# ---- at the server


class SplitClientBegan(EventData, kind="split.began"):
    """A client begins to send batches, or begins anew."""

    peer: str


class SplitBatchApplied(EventData, kind="split.applied"):
    """The server applied a batch of a client. `loss` is null where the client alone knows it."""

    step: int
    peer: str
    samples: int
    loss: float | None


class SplitBatchRefused(EventData, kind="split.refused"):
    """The server refused what a client sent, and did not apply it."""

    peer: str
    why: str


class SplitBatchDropped(EventData, kind="split.dropped"):
    """A client did not go on with its batch, and the server dropped it."""

    peer: str


# ---- at a client


class SplitServerChosen(EventData, kind="split.server"):
    """This client sends its batches to a server from now on."""

    peer: str


class SplitRetried(EventData, kind="split.retried"):
    """A batch got no answer, and this client sends it again; the server applies it once."""

    peer: str | None
    why: str


class SplitBatchGivenUp(EventData, kind="split.given_up"):
    """The server may have applied a batch whose gradients this client cannot get any more: it goes on with the next."""

    why: str
