"""What the organisers do in a scenario, and when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import field_validator, model_validator

from minga.core.spec.fields import Section, choice, described, whole
from minga.simulation.scenario.fields import Duration, Span, one_duration, quantity

Change = bool | int | float | str


class OrderTable(Section):
    """An act of the organisers: an order that they sign, a backup, or its restoring."""

    at: Duration = quantity(..., "duration", "virtual time")
    order: Literal["amend", "pause", "resume", "stop", "ban", "backup", "restore"] = choice(
        ...,
        "what they do; backup and restore: of the state, the orders and the key of one peer, on another machine",
        "amend",
        "pause",
        "resume",
        "stop",
        "ban",
        "backup",
        "restore",
    )
    changes: Mapping[str, Change] = described({}, "(amend) new values", "a table of settings, such as those of amend")
    steps_ahead: int = whole(3, 1, 1000, "(amend, pause, stop) so many steps after the newest one")
    peer: str | None = described(None, "(ban, backup, restore) which peer", "the name of a peer, such as home-1")
    lasts: Span | None = quantity(None, "duration", "(ban) for how long its address is barred, too")

    @field_validator("at")
    @classmethod
    def _check_at(cls, at: Duration) -> Duration:
        return one_duration(at)

    @model_validator(mode="after")
    def _check_order(self) -> OrderTable:
        if (self.order == "amend") != bool(self.changes):
            raise ValueError('amend, and only it, needs changes, such as { "optimizer.learning_rate" = 0.001 }')
        if (self.order in ("ban", "backup", "restore")) != (self.peer is not None):
            raise ValueError("peer belongs to ban, backup and restore, which need it, and to nothing else")
        if self.lasts is not None and self.order != "ban":
            raise ValueError("lasts belongs to ban")
        return self
