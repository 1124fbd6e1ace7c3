"""The page on how to take part: what the run is, and the commands with its link."""

from __future__ import annotations

from typing import Any

from minga.dashboard.model.documents import VERSION
from minga.dashboard.ways_to_join import ways_to_join
from minga.training.peer import Peer
from minga.training.status.status_reader import Look


def join_answer(peer: Peer, look: Look | None) -> dict[str, Any]:
    """What the page needs, by the last `look` at the run, if there was one. `link` is None in a run for members, whose
    organiser gives out invitations.
    """
    spec, status = peer.spec, None if look is None else look.status
    least, most = spec.training.batch_range
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
        "export": None if is_custom else f"minga export {word} --out model",
        "samples_per_step": least if status is None else status.target_batch_size,
        "most_samples_per_step": most,
        "last_step": spec.training.stop_after_steps if status is None else status.last_step,
        "complete_at": status.step if status is not None and status.is_complete else None,
        "run_id": peer.run_id,
        "organiser": peer.link.organiser,
        "mode": spec.security.mode,
    }
