"""Events of group formation, plans and rounds."""

from __future__ import annotations

from minga.core.events.bus import EventData

# ---- group formation and plans


class GroupMinority(EventData, kind="group.minority"):
    """This peer sees too few members of the last round, or too many of them were started again, so no step may be
    taken; `view` is how many it had.
    """

    step: int
    view: int
    why: str


class GroupLeaderLost(EventData, kind="group.leader_lost"):
    """A leader fell silent or refused; this peer asks the next in the ranking."""

    peer: str
    step: int
    why: str


class PlanRefused(EventData, kind="plan.refused"):
    """This peer refused the plan of the leader `peer`, which is unfair by the rates that this peer knows."""

    peer: str
    step: int
    why: str


class PlanResting(EventData, kind="plan.resting"):
    """The plan put this peer on standby (`resting`), or ended its standby."""

    step: int
    resting: bool


class PlanRestedInVain(EventData, kind="plan.rested_in_vain"):
    """Steps took longer while this peer was on standby, so it computes again."""

    step: int
    why: str


# ---- rounds


class RoundBegun(EventData, kind="round.begun"):
    """The members of a group begin to average. `samples` are those of this peer.

    `waited_s` is how long the group took to form, and `predicted_s` how long the leader expects the round to take.
    The vector is divided into `parts`; the peers of each of `sites` average among themselves first.
    """

    step: int
    round: str
    leader: str
    members: int
    samples: int
    waited_s: float
    parts: int
    sites: int
    predicted_s: float | None


class RoundReduced(EventData, kind="round.reduced"):
    """This peer has the average; it took `seconds`, and `lost` members dropped out."""

    step: int
    round: str
    seconds: float
    lost: int
    bytes_sent: int
    bytes_received: int


class RoundAborted(EventData, kind="round.aborted"):
    """A round was aborted. The step is done again, with the same samples."""

    step: int
    why: str


class RoundMemberLost(EventData, kind="round.member_lost"):
    """The others gave up a member in the middle of a round."""

    step: int
    peer: str
    why: str
    round: str


class RoundWorkTakenOver(EventData, kind="round.work_taken_over"):
    """Other members do the work that a member, perhaps this one, has not finished."""

    step: int
    peer: str
    round: str


class RoundRepaired(EventData, kind="round.repaired"):
    """The leader divided the work of `lost` members again; `term` counts the repairs of this round."""

    step: int
    term: int
    lost: int


class RoundSenderDropped(EventData, kind="round.sender_dropped"):
    """A member's part arrived too late or not at all; the step goes on without the missing chunks."""

    step: int
    peer: str
    why: str
