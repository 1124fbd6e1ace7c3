"""What a peer knows of a run before it downloads anything large, so that its owner can decline."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from minga.access.standing_orders import spec_due
from minga.averaging.planning.contributor_choice import StepWork
from minga.core.spec.run_spec import RunSpec
from minga.training.bridge.loop_thread import LoopThread
from minga.training.record_kinds import Progress
from minga.training.session import Session
from minga.training.status.run_status import LiveRates, live_rates, live_work

LOOK_S = 2.0
"""How long to wait for what the peers of the run say of themselves; a run that has not begun says nothing."""
_POLL_S = 0.05


@dataclass(frozen=True)
class Prospect:
    """A run as it looks from its door: the published spec, the organiser's key, and the peers that train.

    `live` has the peers that take part in rounds now and their rates; `work` is what their steps carry at present.
    `completed` is the last step of the run if that is taken: most peers that are here say so, and none trains on.
    """

    run_id: str
    organiser: str
    spec: RunSpec
    live: LiveRates
    work: StepWork
    completed: int | None = None


Consider = Callable[[Prospect], Path | None]
"""Called in the thread of the program. To decline, it raises; the exception comes out of `minga.join`. It may return a
folder of this machine that has files of the run, which are taken from there.
"""


def look(thread: LoopThread, session: Session, spec: RunSpec, organiser: str) -> Prospect:
    """What is known now, or after some moments if nothing is."""
    until = time.monotonic() + LOOK_S
    while not (live := thread.ask(lambda: live_rates(session.board))).vector_bytes and time.monotonic() < until:
        time.sleep(_POLL_S)
    live, work = thread.ask(lambda: live_work(session.board, spec, session.ledger))
    completed = None if live.peers else thread.ask(lambda: completed_step(session, spec))
    return Prospect(session.node.run_id, organiser, spec, live, work, completed)


def completed_step(session: Session, spec: RunSpec) -> int | None:
    """The last step by the spec and the organisers' orders, if most of the peers that are here say that it is taken.

    On the event loop only.
    """
    known = (item.payload for item in session.board.items(Progress))
    steps = sorted(progress.step for progress in known if progress.is_settled)
    step = steps[(len(steps) - 1) // 2] if steps else 0  # of which most are not below, so a liar alone changes nothing
    last = spec_due(spec, session.ledger, step).training.stop_after_steps
    return last if last is not None and step >= last else None
