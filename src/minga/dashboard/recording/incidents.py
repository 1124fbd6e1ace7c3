"""Events that say why a peer missed a round, that a peer is mistrusted, or that the run was regrouped."""

from __future__ import annotations

from typing import Any

from minga.core.events.averaging import (
    GroupLeaderLost,
    GroupMinority,
    PlanResting,
    RoundAborted,
    RoundMemberLost,
    RoundSenderDropped,
)
from minga.core.events.bus import Event
from minga.core.events.network import PeerCutOff, PeerOffence
from minga.core.events.security import SecureAdmitted, SecureBanned, SecureDropped, SecureMemberAway
from minga.core.events.training import (
    AccessEnded,
    MemberOutOfSync,
    RunRegrouped,
    StateDonorDropped,
    TrainingTooSlow,
)

Incident = tuple[str, dict[str, Any]]


def incident_of(event: Event, own_id: str) -> Incident | None:
    """The history entry (name and fields) that an event makes; None for all other events.

    `own_id` is the peer whose events these are: some are about itself and name no peer.
    """
    if isinstance(event.data, RunRegrouped):
        return "regrouped", {"step": event.data.step}
    return _missed(event, own_id) or _mistrusted(event)


def _missed(event: Event, own_id: str) -> Incident | None:
    match event.data:
        case RoundMemberLost(step=step, peer=peer, why=why):
            return "missed", {"step": step, "peer": peer, "why": f"lost in the round: {why}"}
        case RoundSenderDropped(step=step, peer=peer, why=why):
            return "missed", {"step": step, "peer": peer, "why": f"its part came too late: {why}"}
        case PlanResting(step=step, resting=True):
            return "missed", {"step": step, "peer": own_id, "why": "on standby: its upload costs more than it brings"}
        case MemberOutOfSync(step=step, why=why):
            return "missed", {"step": step, "peer": own_id, "why": f"out of sync: {why}"}
        case TrainingTooSlow(step=step, why=why):
            return "missed", {"step": step, "peer": own_id, "why": f"too slow: {why}"}
        case RoundAborted(step=step, why=why):
            return "missed", {"step": step, "peer": None, "why": f"round aborted for all: {why}"}
        case GroupMinority(step=step, view=view):
            return "missed", {"step": step, "peer": None, "why": f"no majority: {view} members of the last round seen"}
    return None


def _mistrusted(event: Event) -> Incident | None:
    match event.data:
        case GroupLeaderLost(step=step, peer=peer, why=why):
            return "suspected", {"step": step, "peer": peer, "why": f"as leader: {why}"}
        case SecureMemberAway(step=step, peer=peer):
            return "suspected", {"step": step, "peer": peer, "why": "away for too long; removed without blame"}
        case PeerOffence(peer=peer, what=what):
            return "accused", {"peer": peer, "why": f"broke the protocol: {what}"}
        case PeerCutOff(peer=peer, seconds=seconds):
            return "accused", {"peer": peer, "why": f"broke the protocol often; cut off for {seconds:.0f} s"}
        case StateDonorDropped(peer=peer, reason=reason, lied=True):
            return "accused", {"peer": peer, "why": f"served a false state: {reason}"}
        case SecureDropped(step=step, peer=peer):
            return "accused", {"step": step, "peer": peer, "why": "did not pass probation"}
        case SecureBanned(step=step, peer=peer, why=why):
            return "banned", {"step": step, "peer": peer, "why": why}
        case AccessEnded(peer=peer, why=why):
            return "banned", {"peer": peer, "why": why}
        case SecureAdmitted(step=step, peer=peer):
            return "admitted", {"step": step, "peer": peer, "why": "passed probation"}
    return None
