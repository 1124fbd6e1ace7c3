"""The answers of the API as JSON values; docs/dashboard.md describes their fields, which keep their meaning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from minga.dashboard.model.contributions import Contribution, Contributions
from minga.dashboard.model.run_model import RunModel
from minga.receipts.book import PeerTotals
from minga.training.status.run_status import PeerStatus, RunStatus
from minga.training.status.status_reader import Look

VERSION: Final = 1


def head(look: Look, model: RunModel) -> dict[str, Any]:
    """The figures of this moment, and `state`: the run in a word."""
    status = look.status
    return {
        "t": round(look.time_s, 2),
        "state": state_of(status),
        "step": status.step,
        "last_step": status.last_step,
        "loss": None if status.loss is None else round(status.loss, 4),
        "samples_per_second": round(status.samples_per_second, 2),
        "steps_per_hour": None if (pace := model.steps_per_hour) is None else round(pace, 2),
        "samples": status.samples,
        "target_batch_size": status.target_batch_size,
        "total_samples": status.total_samples,
        "members": status.members,
        "digests_agree": status.digests_agree,
        "peers": peer_counts(status),
        "counts": model.counts,
        "trouble": None if status.trouble is None else {"text": status.trouble.text, "age_s": status.trouble.age_s},
        "amendments": [asdict(each) for each in status.amendments],
        "split": None if status.split is None else asdict(status.split),
    }


def state_of(status: RunStatus) -> str:
    """The run in a word: empty, founding, finished, paused, syncing, alone or training."""
    counts = peer_counts(status)
    if status.founders is not None:
        return "founding"
    if status.is_complete:
        return "finished"
    if status.paused:
        return "paused"
    if status.split is not None:
        return "training" if status.averages else "empty"
    if not any(_computes(peer) for peer in status.peers):
        return "syncing" if counts["syncing"] else "empty"
    return "training" if status.averages else "alone"


def peer_counts(status: RunStatus) -> dict[str, int]:
    """How many peers are alive, compute, help the others without computing, are syncing, are relayed from here, and how
    many have each role.

    Where a model is cut, those with a part of it are alive, and its clients train.
    """
    cut = status.split is not None
    part = [peer for peer in status.peers if (peer.part if cut else peer.status) is not None]
    roles = Counter(peer.role for peer in status.peers)
    return {
        "alive": len(part),
        "training": sum(peer.part == "client" if cut else _computes(peer) for peer in part),
        "helping": 0 if cut else sum(peer.is_in_step and not _computes(peer) for peer in part),
        "syncing": sum(peer.status == "syncing" for peer in part),
        "relayed": sum(peer.path == "relayed" for peer in part),
        **{role: roles[role] for role in ("trainer", "client", "auxiliary", "monitor")},
    }


def _computes(peer: PeerStatus) -> bool:
    return peer.is_in_step and peer.role != "auxiliary"


def run_document(look: Look, model: RunModel, *, only_watches: bool = False) -> dict[str, Any]:
    """All that the page of the run shows. `sees_rounds`: the peer behind it takes part in them, or heard of them."""
    status = look.status
    return {
        "api": VERSION,
        "name": status.name,
        "run_id": status.run_id,
        "mode": status.mode,
        "headline": model.headline,
        "sees_rounds": not only_watches or model.counts["round"] > 0,
        "now": head(look, model),
        "series": {name: series.document() for name, series in model.series.items()},
        "journals": {name: journal.document() for name, journal in model.journals.items()},
        "rates": model.rates.document(),
    }


def live_document(look: Look, model: RunModel) -> dict[str, Any]:
    """What changes: the figures of this moment, and the ends of curves and journals."""
    return {
        "now": head(look, model),
        "series": {name: series.document(tail=True) for name, series in model.series.items()},
        "journals": {name: journal.document(tail=True) for name, journal in model.journals.items()},
    }


def peers_document(look: Look, contributions: Contributions, names: Mapping[str, str]) -> dict[str, Any]:
    """One row for each living peer."""
    rows = [
        peer_row(peer, contributions.peers.get(peer.peer_id), names.get(peer.peer_id, "")) for peer in look.status.peers
    ]
    return {"api": VERSION, "t": round(look.time_s, 2), "step": look.status.step, "peers": rows}


def peer_row(peer: PeerStatus, contribution: Contribution | None, name: str) -> dict[str, Any]:
    """One peer in the table."""
    row = {**asdict(peer), "status": peer.doing}
    row["samples_per_second"] = round(peer.samples_per_second, 2)
    row["age_s"] = round(peer.age_s, 2)
    row["round_trip_s"] = None if peer.round_trip_s is None else round(peer.round_trip_s, 4)
    row["name"] = name
    row["hours"] = 0.0 if contribution is None else round(contribution.seconds / 3600.0, 3)
    row["steps_taken"] = 0 if contribution is None else contribution.steps
    return row


def peer_document(
    peer_id: str, look: Look, model: RunModel, contributions: Contributions, names: Mapping[str, str]
) -> dict[str, Any] | None:
    """One peer: its row if it is alive, what it gave, what happened to it. None if nothing is known of it."""
    living = next((peer for peer in look.status.peers if peer.peer_id == peer_id), None)
    given = contributions.peers.get(peer_id)
    journals = {
        name: [entry for entry in journal if entry.get("peer") == peer_id] for name, journal in model.journals.items()
    }
    if living is None and given is None and not any(journals.values()):
        return None
    plan = look.status.plan
    return {
        "api": VERSION,
        "peer_id": peer_id,
        "name": names.get(peer_id, "" if given is None else given.name),
        "now": None if living is None else peer_row(living, given, names.get(peer_id, "")),
        "reduces": None if plan is None else plan.reduces.get(peer_id),
        "given": None if given is None else contribution_document(given),
        "journals": {name: {"total": len(entries), "entries": entries} for name, entries in journals.items()},
    }


def contribution_document(given: Contribution) -> dict[str, Any]:
    """What one peer gave."""
    return {
        "samples": given.samples,
        "steps": given.steps,
        "hours": round(given.seconds / 3600.0, 3),
        "reduced_bytes": round(given.reduced_bytes),
        "last_seen": round(given.last_seen, 1),
    }


def leaderboard_document(
    look: Look, contributions: Contributions, attested: Mapping[str, PeerTotals]
) -> dict[str, Any]:
    """What each person and peer has given, and what the members attest of it."""
    return {"api": VERSION, "t": round(look.time_s, 2), "rows": contributions.document(attested)}
