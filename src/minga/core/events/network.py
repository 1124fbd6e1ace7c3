"""Events of connections, access links and the board."""

from __future__ import annotations

from minga.core.events.bus import EventData

# ---- connections


class PeerConnected(EventData, kind="peer.connected"):
    """A connection to another peer is open. `path` is "direct", "relayed" or "unknown"."""

    peer: str
    path: str


class PeerDisconnected(EventData, kind="peer.disconnected"):
    """The last connection to a peer is gone."""

    peer: str


class PeerTurnedAway(EventData, kind="peer.turned_away"):
    """A connection from a peer was refused: the peer is of another run or version, or not admitted."""

    peer: str
    reason: str


class PeerRefused(EventData, kind="peer.refused"):
    """A peer no longer lets this one in, because of this machine's clock, or because another process uses its key."""

    peer: str
    reason: str


class PeerOffence(EventData, kind="peer.offence"):
    """A peer sent a message that the protocol does not allow; `what` says what."""

    peer: str
    what: str


class PeerCutOff(EventData, kind="peer.cut_off"):
    """A peer broke the protocol so often that no connection to it is kept for `seconds`."""

    peer: str
    seconds: float


class PeerNotDialable(EventData, kind="peer.not_dialable"):
    """Others cannot dial this peer, so it takes part as a client."""


class AddressSeen(EventData, kind="address.seen"):
    """Others see this peer at `endpoint`, which it did not know; `reached`: whether a new peer can dial it there."""

    endpoint: str
    reached: bool | None


class AddressChanged(EventData, kind="address.changed"):
    """From now on others can dial this peer at `direct` and through `relay`."""

    direct: list[str]
    relay: str | None


class LinksProbed(EventData, kind="links.probed"):
    """This peer filled its access link for less than a second, to measure its rate."""

    upload: float | None
    download: float | None


class LinksMeasured(EventData, kind="links.measured"):
    """This peer published the measured rates of its access link and of `paths` links to other peers.

    `limited_by` names what limits each direction: "cap", "line" or "unknown".
    """

    upload: float | None
    download: float | None
    paths: int
    limited_by: str


# ---- the board


class MemberJoined(EventData, kind="member.joined"):
    """A peer is alive: its first record arrived, or it answers again."""

    peer: str


class MemberLeft(EventData, kind="member.left"):
    """A peer said goodbye."""

    peer: str


class MemberLost(EventData, kind="member.lost"):
    """A peer has been silent for so long that it counts as dead."""

    peer: str


class BoardStalled(EventData, kind="board.stalled"):
    """This process did not run for `seconds`: it was stopped, or the machine is overloaded."""

    seconds: float


class RecordIgnored(EventData, kind="record.ignored"):
    """A record of `peer`, passed on by `sender`, was not taken in.

    Emitted for the 1st, 2nd, 4th, 8th, … such record; `count` is how many there were for this reason.
    """

    peer: str
    sender: str
    reason: str
    count: int
