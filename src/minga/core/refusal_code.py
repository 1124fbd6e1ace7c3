"""Why a peer refuses a connection or a call, for programs; the sentence that comes with it is for people.

The values travel in `minga.network.rpc.stream.Refusal`, so they never change. A code that a later version adds counts
as `REFUSED` here.
"""

from __future__ import annotations

from enum import Enum, StrEnum


class RefusalCause(Enum):
    """What it takes before the same request can succeed."""

    LOCAL = "the peer that asks has to change, to be admitted or to catch up first"
    REMOTE = "the peer that was asked cannot do it; another one may"
    TEMPORARY = "it passes by itself; the same request may succeed a little later"
    OVER = "what it was about has ended; no peer will do it any more"


class RefusalCode(StrEnum):
    """The codes of all refusals; `cause` says what it takes before the same request can succeed."""

    cause: RefusalCause

    def __new__(cls, word: str, cause: RefusalCause) -> RefusalCode:
        """A member is the word that travels."""
        code = str.__new__(cls, word)
        code._value_, code.cause = word, cause
        return code

    @classmethod
    def of(cls, word: str) -> RefusalCode:
        """The code that another peer sent; `REFUSED` if it is not known here."""
        return cls._value2member_map_.get(word, cls.REFUSED)  # type: ignore[return-value]

    REFUSED = "refused", RefusalCause.REMOTE
    """For a reason without a code of its own."""

    # ---- connections and calls
    VERSION = "version", RefusalCause.LOCAL
    """The two speak no common wire version."""
    RUN = "run", RefusalCause.LOCAL
    """The two are in different runs."""
    ACCESS = "access", RefusalCause.LOCAL
    """The peer that asks shows no valid access, or its access does not cover this call."""
    ORDERS = "orders", RefusalCause.REMOTE
    """One of the two does not know the organisers that admitted the other."""
    BANNED = "banned", RefusalCause.LOCAL
    """The organisers banned the peer that asks: its key, its invitation or its addresses."""
    CLOCK = "clock", RefusalCause.LOCAL
    """The clock of the peer that asks is too far off the run's time."""
    KEY = "key", RefusalCause.LOCAL
    """Another process uses the key of the peer that asks."""
    CUT_OFF = "cut_off", RefusalCause.TEMPORARY
    """The peer that asks broke the protocol too often of late."""
    FULL = "full", RefusalCause.TEMPORARY
    """There are as many connections, or members of a group, as there may be."""
    METHOD = "method", RefusalCause.REMOTE
    """The peer that was asked does not know this method; it may be of an earlier version."""
    BUSY = "busy", RefusalCause.TEMPORARY
    """The peer that was asked does as much of this kind as it does at a time."""
    OFTEN = "often", RefusalCause.TEMPORARY
    """It was asked for more often than it may be."""
    ADDRESS = "address", RefusalCause.LOCAL
    """The address that is to be tried is not that of the peer that asks."""

    # ---- states and files
    GONE = "gone", RefusalCause.REMOTE
    """The file or state is not held any more."""
    NOT_READY = "not_ready", RefusalCause.TEMPORARY
    """There is no state as new as was asked for."""
    IDLE = "idle", RefusalCause.OVER
    """A download in which nothing was asked for any more."""

    # ---- groups
    STAND_BY = "stand_by", RefusalCause.TEMPORARY
    """It cannot be said yet who leads, or whose result counts."""
    AHEAD = "ahead", RefusalCause.TEMPORARY
    """The peer that was asked is at an earlier step than the one that asks."""
    BEHIND = "behind", RefusalCause.LOCAL
    """The swarm is at a later step than the peer that asks."""
    DIVERGED = "diverged", RefusalCause.LOCAL
    """The peer that asks applied another result than most others."""
    LAYOUT = "layout", RefusalCause.LOCAL
    """Its vectors have another layout or codec than those of the run."""
    UNFAIR = "unfair", RefusalCause.REMOTE
    """The plan of the leader gives the peer that refuses it far more work than its line can carry."""

    # ---- all-reduce
    ROUND = "round", RefusalCause.OVER
    """The round is over or unknown."""
    PART = "part", RefusalCause.REMOTE
    """The peer that was asked does not reduce this part."""
    LATE = "late", RefusalCause.OVER
    """It came too late and is not waited for."""
    ABORTED = "aborted", RefusalCause.OVER
    """The round was given up."""
    GIVEN_UP = "given_up", RefusalCause.OVER
    """The others went on without the peer that asks."""
    TERM = "term", RefusalCause.OVER
    """A later repair of the round is under way."""

    # ---- verified steps
    MEMBER = "member", RefusalCause.LOCAL
    """Only members of the step may ask."""
    ABSENT = "absent", RefusalCause.REMOTE
    """What was asked for is not held."""
    ATTEMPT = "attempt", RefusalCause.OVER
    """The attempt is not under way."""

    # ---- split learning
    SESSION = "session", RefusalCause.LOCAL
    """The server knows no such batch of the client's session, or does not have its reply any more: begin anew."""
