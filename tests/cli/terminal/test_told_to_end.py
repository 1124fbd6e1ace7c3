"""SIGTERM and SIGHUP, which seldom come alone, and last words that nobody reads any more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from minga.cli.terminal import exit_codes
from tests.worlds import forked

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of this kind are not sent there")

DEFERRING = """
import os, signal, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from minga.cli.terminal import interrupt
interrupt.DEADLINE_S = interrupt.PATIENCE_S = 0.05
interrupt.DEFERRED_S = 30.0
interruption, asked, after = interrupt.Interruption(), [], "none"
interruption.defer(lambda: asked.append(1) or True, ends=True)
try:
    for after in NAMES:
        os.kill(os.getpid(), getattr(signal, after))
        time.sleep(0.01)
    after = "time"
    time.sleep(0.5)
    after = "trigger"
    interrupt.DEADLINE_S = interrupt.PATIENCE_S = 30.0
    interruption.trigger()
    time.sleep(5)
except (interrupt.Terminated, KeyboardInterrupt):
    print(after, len(asked), flush=True)
"""


@pytest.mark.parametrize(
    "names",
    [("SIGHUP", "SIGHUP"), ("SIGTERM", "SIGHUP"), ("SIGTERM", "SIGTERM", "SIGHUP"), ("SIGINT", "SIGHUP")],
)
def test_what_was_deferred_is_not_broken_off_by_a_second_signal(names: tuple[str, ...]) -> None:
    """Neither by the handler nor by the watchdog, which would have ended the process after a tenth of a second."""
    done = forked.run("-c", DEFERRING.replace("NAMES", str(names)), timeout_s=40)
    assert (done.returncode, done.stdout) == (0, "trigger 1\n"), done.stderr


DEAF = """
import os, signal, time
from minga.cli.terminal import interrupt
interrupt.PATIENCE_S = interrupt.DEFERRED_S = 0.05
interrupt.DEADLINE_S = 2.0
interruption = interrupt.Interruption()
interruption.defer(lambda: True, ends=True)
interruption.on_interrupt(lambda: os.write(1, b"goodbye"))
signal.signal(signal.SIGTERM, lambda *_: None)  # the main thread hears nothing, as in a long call of torch
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(20)
"""


def test_a_program_that_hears_nothing_of_its_end_ends_all_the_same() -> None:
    done = forked.run("-c", DEAF, timeout_s=40)
    assert (done.returncode, done.stdout) == (exit_codes.TERMINATED, "goodbye"), done.stderr


HELD_UP = """
import os, signal, sys, time
from minga.cli.terminal import exit_codes, interrupt
interrupt.PATIENCE_S = interrupt.DEADLINE_S = 0.05
exit_codes.farewells.append(lambda done: f"Stopped at step {done['step']}.")
exit_codes.done_so_far.append(lambda: {"step": 7})
interrupt.Interruption(json_output=JSON)
if DEAF:
    signal.signal(signal.SIGINT, lambda *_: None)  # as in a long call of torch
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(20)
except KeyboardInterrupt:
    exit_codes.report_interrupt(json_output=JSON)
    time.sleep(20)
"""


@pytest.mark.parametrize("deaf", [True, False])
def test_the_last_words_are_said_once_whatever_holds_the_program_up(deaf: bool) -> None:
    done = forked.run("-c", HELD_UP.replace("DEAF", str(deaf)).replace("JSON", "False"), timeout_s=40)
    assert (done.returncode, done.stdout) == (exit_codes.INTERRUPTED, "Stopped at step 7.\n"), done.stderr
    done = forked.run("-c", HELD_UP.replace("DEAF", str(deaf)).replace("JSON", "True"), timeout_s=40)
    assert (done.returncode, json.loads(done.stdout)["step"]) == (exit_codes.INTERRUPTED, 7), done.stderr


IMPATIENT = """
import os, signal, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from minga.cli.terminal import interrupt
interrupt.DEADLINE_S = 30.0
interruption = interrupt.Interruption()
interruption.defer(lambda: True, ends=True)
try:
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
except KeyboardInterrupt:
    print("at once", flush=True)
"""


def test_ctrl_c_ends_at_once_what_was_deferred() -> None:
    done = forked.run("-c", IMPATIENT, timeout_s=40)
    assert done.stdout == "at once\n", done.stderr


COMMAND = """
import os, signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from minga import cli
from minga.cli.terminal import exit_codes, interrupt

def hang_up():
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    time.sleep(0.01)

class Resource:
    def __enter__(self):
        pass
    def __exit__(self, *_):
        hang_up()

def invoke(arguments):
    interrupt.Interruption()
    with Resource():
        hang_up()

def tell():
    hang_up()
    return {"step": 7}

cli._invoke = invoke
exit_codes.done_so_far.append(tell)
cli.main([])
"""


@pytest.mark.parametrize(("name", "code"), [("SIGHUP", exit_codes.TERMINATED), ("SIGINT", exit_codes.INTERRUPTED)])
def test_further_signals_leave_a_command_that_ends_in_peace(name: str, code: int) -> None:
    """They come while it tidies up, and while it says what it had done."""
    done = forked.run("-c", COMMAND, name, timeout_s=40)
    assert (done.returncode, done.stderr) == (code, "minga: interrupted at step 7\n")


UNREAD = """
import sys
from minga import cli
from minga.cli.terminal import exit_codes, interrupt

def invoke(arguments):
    raise ERROR

cli._invoke = invoke
if sys.argv[1] == "farewell":
    exit_codes.farewells.append(lambda done: "This host has left.")
cli.main(sys.argv[2:])
"""


@pytest.mark.parametrize(
    ("words", "error", "code"),
    [
        (("farewell",), "KeyboardInterrupt", 130),
        (("none",), "KeyboardInterrupt", 130),
        (("none", "--json"), "interrupt.Terminated", 143),
    ],
)
def test_last_words_that_nobody_reads_change_no_exit_code(words: tuple[str, ...], error: str, code: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        script = UNREAD.replace("ERROR", error)
        process = subprocess.run([sys.executable, "-c", script, *words], stdout=writing, stderr=writing, timeout=40.0)
    finally:
        os.close(writing)
    assert process.returncode == code


CLOSED = """
import os, signal, sys
descriptors = os.open("/dev/zero", os.O_WRONLY), os.openpty()[1]
for number, descriptor in enumerate(descriptors, 1):
    os.dup2(descriptor, number)
from minga.cli.terminal.interrupt import Interruption
Interruption().let_go_of_terminal()
now = [os.fstat(number).st_rdev for number in (1, 2)]
with open(sys.argv[1], "w") as told:
    print(now == [os.stat(path).st_rdev for path in ("/dev/zero", os.devnull)], file=told)
"""


def test_only_a_terminal_is_let_go_of(tmp_path: Path) -> None:
    """Another device on descriptor 1 is not the terminal that was closed."""
    told = tmp_path / "told"
    forked.run("-c", CLOSED, str(told), timeout_s=40)
    assert told.read_text() == "True\n"
