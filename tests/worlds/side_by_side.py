"""Loops that stay side by side until their peers have had a step together: else a fast one may take all steps of a
short run before a slow one gets a turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import minga
from minga.core.events.bus import Event


class SideBySide:
    """The loop `name` of those named in `all_names`, which are threads or processes and have `folder` in common.

    A loop calls `keep_pace` after each micro-batch: it follows until the others have given as many micro-batches, or
    until each peer has applied so many `steps` of which all were members. Ranks of one peer, which follow alike, ask
    its two parts.
    """

    def __init__(self, folder: Path, name: str, all_names: Sequence[str], peer: minga.Peer, *, steps: int = 1) -> None:
        self._folder, self._name, self._all = folder, name, all_names
        self._given, self._steps_left = 0, steps
        peer.subscribe(self._hear)

    def keep_pace(self, optimizer: minga.Optimizer) -> None:
        """A micro-batch was given: take part without another one until this loop may go on."""
        self.give()
        while not (optimizer.finished or self.may_go_on()):
            optimizer.follow(0.01)

    def give(self) -> None:
        """A micro-batch was given."""
        self._given += 1
        self._mark(self._name, str(self._given)).touch()

    def may_go_on(self) -> bool:
        """Whether the next one may be."""
        marks = (str(self._given), "together")
        return any(all(self._mark(name, mark).exists() for name in self._all) for mark in marks)

    def _hear(self, event: Event) -> None:
        if event.kind == "step.applied" and event.fields["members"] == len(self._all):
            self._steps_left -= 1
            if not self._steps_left:
                self._mark(self._name, "together").touch()

    def _mark(self, name: str, mark: str) -> Path:
        return self._folder / f"{name}.{mark}"
