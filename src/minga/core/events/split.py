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


class SplitCheckpointFetched(EventData, kind="split.fetched"):
    """This standby has a checkpoint of the server's part, after so many of its steps."""

    step: int
    peer: str


class SplitCheckpointFailed(EventData, kind="split.not_fetched"):
    """This standby could not get the server's checkpoint; it tries again."""

    peer: str
    why: str


class SplitTookOver(EventData, kind="split.took_over"):
    """This standby serves from now on, from a checkpoint after so many steps. It has not seen `unseen` batches, as far
    as the last server's records say.
    """

    step: int
    unseen: int


class SplitGaveWay(EventData, kind="split.gave_way"):
    """Another peer serves, too, and comes first: this one serves no more, and stands by."""

    peer: str
    step: int


# ---- at a client


class SplitServerChosen(EventData, kind="split.server"):
    """This client sends its batches to a server from now on."""

    peer: str


class SplitRetried(EventData, kind="split.retried"):
    """A batch got no answer, and this client sends it again; the server applies it once."""

    peer: str | None
    why: str


class SplitSuspicious(EventData, kind="split.suspicious"):
    """What the server sends makes the model worse, as the `loss` of this client's held-out samples says."""

    loss: float
    why: str


class SplitBatchesLost(EventData, kind="split.lost"):
    """The server knows nothing of the last `count` requests of this client, which were answered: it went on from a
    checkpoint before them, or forgot the client.
    """

    count: int


class SplitBatchGivenUp(EventData, kind="split.given_up"):
    """The server may have applied a batch whose gradients this client cannot get any more: it goes on with the next."""

    why: str
