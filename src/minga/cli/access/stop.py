"""`minga stop`: end a run for all, and wait until it has ended, where anything can be waited for."""

from __future__ import annotations

import time
from typing import Final

from minga.cli.terminal.context import Context
from minga.training.organiser import Organiser

WAIT_S: Final = 120.0
POLL_S: Final = 0.5
NOBODY_TRAINS: Final = (
    "No peer trains now. If the run is complete, nothing is left to stop; if not, this step is not taken before a peer "
    "joins. To end the run without it, end each `minga host` by Ctrl-C."
)


def wait_for_end(organiser: Organiser, last: int, context: Context, *, wait_s: float = WAIT_S) -> bool:
    """Whether the run has taken its last step; waits for that while some peer trains, for `wait_s` at most."""
    output, deadline = context.output, time.monotonic() + wait_s
    step, trainers = organiser.progress()
    if trainers and wait_s:
        output.say(
            f"Waiting up to {wait_s:.0f} s for step {last}; the run is at {step}. Ctrl-C ends this command only."
        )
    while step < last and trainers and time.monotonic() < deadline:
        time.sleep(POLL_S)
        now, trainers = organiser.progress()
        step = max(step, now)
    if step >= last:
        output.say(f"The run has ended with step {last}.")
    elif not trainers:
        output.say(NOBODY_TRAINS)
    elif wait_s:
        output.say(f"Step {step} is taken now. The run ends by itself; `minga status LINK` shows how far it is.")
    return step >= last
