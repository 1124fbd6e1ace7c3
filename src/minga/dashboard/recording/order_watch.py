"""Which orders of the organisers came into force, as far as looks at the run show it: a monitor hears no more."""

from __future__ import annotations

from typing import Any

from minga.training.status.run_status import RunStatus


class OrderWatch:
    """Compares looks. What is in force at the first one is taken as known."""

    def __init__(self) -> None:
        self._due: set[int] | None = None
        self._paused = False

    def take(self, status: RunStatus) -> list[tuple[str, dict[str, Any]]]:
        """The history entries (name and fields) of what changed since the look before."""
        due = {each.number for each in status.amendments if each.due or each.overruled}
        before, self._due = self._due, due
        paused, self._paused = self._paused, status.paused
        if before is None:
            return []
        found: list[tuple[str, dict[str, Any]]] = [
            ("amended", {"step": each.from_step, "changes": each.changes})
            for each in status.amendments
            if each.number in due - before and not each.changes.startswith("paused = ")
        ]
        if status.paused != paused:
            found.append(("paused" if status.paused else "resumed", {"step": status.step}))
        return found
