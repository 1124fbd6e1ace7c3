"""The page on how to take part: what the run is, and the commands with its link."""

from __future__ import annotations

from typing import Any

from minga.dashboard.model.documents import VERSION
from minga.dashboard.ways_to_join import ways_to_join
from minga.training.peer import Peer
from minga.training.status.run_status import present_spec


def join_answer(peer: Peer) -> dict[str, Any]:
    """What the page needs. `link` is None in a run for members, whose organiser gives out invitations."""
    spec, session = peer.spec, peer.session
    present = peer.on_loop(lambda: present_spec(session.board, spec, session.ledger))
    for_members = spec.security.admission == "members"
    link = None if for_members else str(peer.link)
    word = link or "LINK"
    ways = [
        {"title": title, "commands": [command.replace("LINK", word) for command in commands]}
        for title, commands in ways_to_join(spec)
    ]
    is_custom = spec.model.recipe == "custom"
    return {
        "api": VERSION,
        "name": spec.name,
        "link": link,
        "command": f"python PROGRAM.py {word}" if is_custom else f"minga join {word}",
        "ways": ways,
        "recipe": None if is_custom else spec.model.recipe,
        "most_samples_per_step": present.training.batch_range[1],
        "last_step": present.training.stop_after_steps,
        "run_id": peer.run_id,
        "organiser": peer.link.organiser,
        "mode": spec.security.mode,
    }
