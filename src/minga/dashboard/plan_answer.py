"""The page of the plan: who limits the run, and what would help."""

from __future__ import annotations

from typing import Any, Final

from minga.dashboard.model.documents import VERSION
from minga.planner.explanation import alternatives, explain, plan_json, plan_text
from minga.training.peer import Peer
from minga.training.status.run_status import live_work

MOST_EXPLAINED: Final = 150
"""In a larger swarm, what would change by other plans takes minutes to work out; `minga plan LINK` does it."""


class NoPlanError(Exception):
    """There is nothing to plan; the words say why."""


def plan_answer(peer: Peer) -> dict[str, Any]:
    """The plan that the next leader would make, in sentences and as values; or `why_none`: why there is no plan.

    Blocks for the time that planning takes.
    """
    try:
        return {"api": VERSION, "why_none": None, **_plan(peer)}
    except NoPlanError as reason:
        return {"api": VERSION, "why_none": str(reason)}


def _plan(peer: Peer) -> dict[str, Any]:
    session, spec = peer.session, peer.spec
    if spec.security.verification == "byzantine":
        raise NoPlanError("Members of this run do not trust each other: all reduce equal parts, without a plan.")
    live, work = peer.on_loop(lambda: live_work(session.board, spec, session.ledger))
    if len(live.peers) < 2 or not live.vector_bytes:
        raise NoPlanError("There is a plan as soon as two peers take part.")
    if len(live.peers) > MOST_EXPLAINED:
        raise NoPlanError(f"{len(live.peers)} peers take part; `minga plan LINK` works out plans for so many.")
    if not any(one.aggregates for one in live.rates.peers):
        raise NoPlanError("All peers are clients, so none can aggregate; at least one must be reachable.")
    if not any(one.upload or one.download for one in live.rates.peers):
        raise NoPlanError("No peer has measured its line yet. Rates become known as rounds fill the lines.")
    explanation, others = explain(live.rates, work), alternatives(live.rates, work)
    names = [one[:10] for one in live.peers]
    return {
        "sentences": list(plan_text(explanation, others, names, work)),
        "peer_ids": list(live.peers),
        **plan_json(explanation, others, names, work),
    }
