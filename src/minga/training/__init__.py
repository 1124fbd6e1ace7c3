"""Training together: the objects that a program holds (optimizer, peer), and one peer's presence in one run.

    program ─▶ join, host ─▶ peer ─▶ session ─▶ network, board, servers
                    ▲                  └─▶ life/ (steps) ◀── bridge/ ──▶ optimizer on the training thread
                    └ minga/keeping, minga/access

Read: optimizer (`minga.Optimizer`), peer (`minga.Peer`), join (`minga.join`), prospect (what a peer sees before it
downloads), host (`minga.host`), session (assembles what lies below), checkpointer (when a checkpoint is due, and what
is written with it), own_access (a peer's own credentials), organiser (invite, admit, revoke), lineage (which states
descend from the run's founding), plugins_of_run (packages that a run names), record_kinds (records about training),
backup (a run in one encrypted file). Then the folders: state, replica, ranks, bridge, strategy, transfer, agreement,
life, status.

Called by programs, recipes, split, integrations, monitor, dashboard, simulation, authority and cli. It knows any torch
model, and no recipe.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minga.averaging.codecs.residual import ContributionFate
    from minga.averaging.messages import PeerScore
    from minga.averaging.strategy_choice import STRATEGIES, StrategyFacts
    from minga.core.spec.fields import choice, described, real, whole
    from minga.training.strategy.interface import Recovery, Settings, Strategy
    from minga.training.strategy.synchronous import Delayed, Synchronous

__all__ = [
    "STRATEGIES",
    "ContributionFate",
    "Delayed",
    "PeerScore",
    "Recovery",
    "Settings",
    "Strategy",
    "StrategyFacts",
    "Synchronous",
    "choice",
    "described",
    "real",
    "whole",
]

_LATE = {  # imported when they are first asked for
    "ContributionFate": "minga.averaging.codecs.residual",
    "Delayed": "minga.training.strategy.synchronous",
    "PeerScore": "minga.averaging.messages",
    "Recovery": "minga.training.strategy.interface",
    "STRATEGIES": "minga.averaging.strategy_choice",
    "Settings": "minga.training.strategy.interface",
    "Strategy": "minga.training.strategy.interface",
    "StrategyFacts": "minga.averaging.strategy_choice",
    "Synchronous": "minga.training.strategy.synchronous",
    "choice": "minga.core.spec.fields",
    "described": "minga.core.spec.fields",
    "real": "minga.core.spec.fields",
    "whole": "minga.core.spec.fields",
}


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATE[name]), name)
