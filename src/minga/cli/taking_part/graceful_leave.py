"""How a peer leaves a run whose members check each other: between two steps.

There silence after a commitment costs the key its place for a while. So the first Ctrl-C only asks to leave when the
step is taken; the second one leaves at once.
"""

from __future__ import annotations

from minga.cli.terminal.context import Context
from minga.training.life.verified_member import VerifiedMember
from minga.training.peer import Peer

ASKED = "Leaving when this step is taken. Ctrl-C again leaves at once, and may suspend this key for some steps."


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
