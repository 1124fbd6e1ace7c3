"""Events of Byzantine-tolerant runs, whose members verify each other's work."""

from __future__ import annotations

from minga.core.events.bus import EventData


class SecureWaiting(EventData, kind="secure.waiting"):
    """The run waits for its founders: `ready` of the `wanted` have joined."""

    ready: int
    wanted: int


class SecureFounded(EventData, kind="secure.founded"):
    """The organiser has named the founders; `founders` is how many they are."""

    founders: int


class SecureStepTaken(EventData, kind="secure.step"):
    """This peer took a step as a member. `attempt` says how often the step was done again."""

    step: int
    attempt: int
    members: int


class SecureStepFollowed(EventData, kind="secure.followed"):
    """This peer followed a step without being a member."""

    step: int
    members: int


class SecureMemberAway(EventData, kind="secure.member_away"):
    """A member was away for too long and was removed, without blame."""

    step: int
    peer: str


class SecureBanned(EventData, kind="secure.banned"):
    """A member was banned. `reason` is the name of the rule, `why` says it in words."""

    step: int
    peer: str
    reason: str
    why: str


class SecureCandidate(EventData, kind="secure.candidate"):
    """A newcomer is on probation."""

    step: int
    peer: str


class SecureAdmitted(EventData, kind="secure.admitted"):
    """A newcomer is a member now."""

    step: int
    peer: str


class SecureDropped(EventData, kind="secure.dropped"):
    """A newcomer did not pass, and has to start over."""

    step: int
    peer: str
