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


class SplitRetried(EventData, kind="split.retried"):
    """A batch got no answer, and this client sends it again; the server applies it once."""

    peer: str | None
    why: str


class SplitSuspicious(EventData, kind="split.suspicious"):
    """What the server sends makes the model worse, as the `loss` of this client's held-out samples says."""

    loss: float
    why: str


class SplitBatchGivenUp(EventData, kind="split.given_up"):
    """The server may have applied a batch whose gradients this client cannot get any more: it goes on with the next."""

    why: str
