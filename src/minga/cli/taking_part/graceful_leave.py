"""How a peer leaves a run by Ctrl-C, and what is said then.

In a run whose members check each other it is between two steps. There silence after a commitment costs the key its
place for a while. So the first Ctrl-C only asks to leave when the step is taken; the second one leaves at once.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from minga.cli.terminal.context import Context
from minga.core.units import counted
from minga.training.join import PeerOptions
from minga.training.life.verified_member import VerifiedMember
from minga.training.peer import Peer

ASKED = "Leaving when this step is taken. Ctrl-C again leaves at once, and may suspend this key for some steps."


def thanks(ended: str, contributed: int, samples: int) -> str:
    """The last words to a volunteer."""
    return (
        f"{ended}. This machine took part in {counted(contributed, 'step')} with {counted(samples, 'sample')}. "
        "Thank you!"
    )


def farewell_of_volunteer(done: Mapping[str, int]) -> str:
    """What a volunteer reads who left by Ctrl-C."""
    said = thanks(f"Stopped at step {done['step']}", done["steps_contributed"], done["samples"])
    return f"{said} To come back, type the same command again."


def farewell_of_host(folder: Path, options: PeerOptions, done: Mapping[str, int], *, is_temporary: bool) -> str:
    """What an organiser reads whose `minga host` was told to end, by Ctrl-C or another signal; a key for one time only
    cannot go on with the run. `is_temporary`: `folder` is deleted with the command.
    """
    at = f" at step {done['step']}" if "step" in done else ""
    kept = f"; the newest checkpoint is of step {done['checkpoint']}" if "checkpoint" in done else ""
    if is_temporary:
        return f"This host has left{at}. The run's folder was a temporary one, and is deleted."
    said = f"This host has left{at}{kept}. The run lies in {folder}"
    if options.ephemeral:
        return f"{said}."
    key = "" if options.identity is None else f" --identity {shlex.quote(str(options.identity))}"
    return f"{said}. To go on with it:\nminga host {shlex.quote(str(folder))}{key}"


class GracefulLeave:
    """Whether the person at this machine has asked to leave, in a run where that takes until the end of the step."""

    def __init__(self, peer: Peer, context: Context) -> None:
        self._peer, self._output = peer, context.output
        self._asked_at: int | None = None
        if peer.spec.security.verification == "byzantine" and peer.role == "trainer":
            context.interruption.defer(self._ask)

    def is_over(self, step: int) -> bool:
        """Whether it is time to go, with `step` taken."""
        return self._asked_at is not None and step > self._asked_at

    def ask(self) -> bool:
        """Note the wish to leave; False if nothing is lost by leaving at once."""
        life = self._peer.session.member
        if not isinstance(life, VerifiedMember) or not life.has_a_say:
            return False
        self._asked_at = life.step
        return True

    def _ask(self) -> bool:
        asked = self.ask()
        if asked:
            self._output.say(ASKED)
        return asked
