"""Ctrl-C in a run where members owe each other what they committed themselves to."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minga.cli.taking_part.session import ASKED, GracefulLeave
from minga.cli.terminal.context import Context
from minga.training.life.verified_member import VerifiedMember
from minga.training.peer import Peer
from tests.worlds import forked

PATIENT = """
import os, signal, sys, time
from minga.cli.terminal import interrupt
from minga.cli.terminal.interrupt import Interruption, Terminated
interrupt.DEADLINE_S = 30.0  # a busy machine may need longer than the second that a person waits
"""
"""What each script begins with."""

TWICE = (
    PATIENT
    + """
interruption, asked = Interruption(), []
def ask():
    asked.append(1)
    return ANSWER
interruption.defer(ask)
signals = 0
try:
    for signals in (1, 2):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
    print("not interrupted")
except KeyboardInterrupt:
    print(signals, len(asked), flush=True)
"""
)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of this kind are not sent there")
@pytest.mark.parametrize(("answer", "interrupted_by"), [(True, 2), (False, 1)])
def test_the_first_interrupt_may_only_ask(answer: bool, interrupted_by: int) -> None:
    script = TWICE.replace("ANSWER", str(answer))
    done = forked.run("-c", script, timeout_s=40)
    assert done.stdout.split() == [str(interrupted_by), "1"], done.stderr


TOLD_TO_END = (
    PATIENT
    + """
signal.signal(signal.SIGHUP, BEFORE)
interruption, asked = Interruption(), []
interruption.defer(lambda: asked.append(1) or True, ends=ENDS)
signals = 0
try:
    for signals in (1, 2):
        os.kill(os.getpid(), signal.NUMBER) if signals == 1 else interruption.trigger()
        time.sleep(0.1)
    print("not ended")
except (Terminated, KeyboardInterrupt) as error:
    print(signals, len(asked), type(error).__name__, flush=True)
"""
)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of this kind are not sent there")
@pytest.mark.parametrize(
    ("number", "ends", "told"), [("SIGTERM", True, "2 1 Terminated"), ("SIGHUP", False, "1 0 Terminated")]
)
def test_who_is_told_to_end_may_finish_what_it_does_first(number: str, ends: bool, told: str) -> None:
    """A service that is stopped, and a terminal that is closed; a member of a verified run does not wait for a step."""
    script = TOLD_TO_END.replace("NUMBER", number).replace("ENDS", str(ends)).replace("BEFORE", "signal.SIG_DFL")
    done = forked.run("-c", script, timeout_s=40)
    assert done.stdout.strip() == told, done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="signals of this kind are not sent there")
def test_under_nohup_a_closed_terminal_ends_nothing() -> None:
    script = TOLD_TO_END.replace("NUMBER", "SIGHUP").replace("ENDS", "True").replace("BEFORE", "signal.SIG_IGN")
    done = forked.run("-c", script, timeout_s=40)
    assert done.stdout.strip() == "not ended", "SIGHUP is ignored, and the first Ctrl-C only asks"


LATE = (
    PATIENT
    + """
interruption = Interruption()
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
except KeyboardInterrupt:
    pass
while any(thread.name == "minga-interrupt" for thread in __import__("threading").enumerate()):
    time.sleep(0.01)
for _ in range(2):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
    except KeyboardInterrupt:
        pass
print("quiet", flush=True)
"""
)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of this kind are not sent there")
def test_an_impatient_second_interrupt_prints_no_trouble() -> None:
    """The first one ends the watchdog, whose end of the socket was closed with it."""
    done = forked.run("-c", LATE, timeout_s=40)
    assert (done.stdout.split(), done.stderr) == (["quiet"], "")


class Interruption:
    def defer(self, instead: Any) -> None:
        self.instead = instead


def leaving(verification: str, life: object) -> tuple[GracefulLeave, Interruption, list[str]]:
    interruption, said = Interruption(), list[str]()
    peer = SimpleNamespace(
        role="trainer",
        spec=SimpleNamespace(security=SimpleNamespace(verification=verification)),
        session=SimpleNamespace(member=life),
    )
    context = SimpleNamespace(interruption=interruption, output=SimpleNamespace(say=said.append))
    return GracefulLeave(cast(Peer, peer), cast(Context, context)), interruption, said


def secure_life(*, has_a_say: bool) -> VerifiedMember:
    life = cast(Any, object.__new__(VerifiedMember))
    life._replica = SimpleNamespace(step=7)
    life.secure = SimpleNamespace(is_member=has_a_say)
    life._spec = SimpleNamespace(training=SimpleNamespace(stop_after_steps=None))
    return cast(VerifiedMember, life)


def test_a_member_leaves_when_the_step_is_taken() -> None:
    wish, interruption, said = leaving("byzantine", secure_life(has_a_say=True))
    assert not wish.is_over(7)
    assert interruption.instead()
    assert said == [ASKED]
    assert not wish.is_over(7)
    assert wish.is_over(8)


def test_whoever_has_no_say_leaves_at_once() -> None:
    wish, interruption, said = leaving("byzantine", secure_life(has_a_say=False))
    assert not interruption.instead()
    assert not said
    assert not wish.is_over(8)


def test_in_other_runs_nothing_is_deferred() -> None:
    _, interruption, _ = leaving("none", None)
    assert not hasattr(interruption, "instead")
