"""What the tests of the command line share: running `minga`, as a process or in this one, and a run on real text."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

import pytest
import torch

import minga.cli
from tests.worlds import forked

GUARDED_MINGA = str(Path(__file__).with_name("guarded_minga.py"))
"""`python -m minga` with the check that what belongs to an event loop is used on its own thread."""

GENESIS = Path(__file__).parent.parent / "data" / "web_genesis.txt"
LOCAL = ("--bind", "127.0.0.1")
ALONE = (*LOCAL, "--ephemeral", "--device", "cpu", "--threads", "1")

SPEC = f"""
name = "tiny"
[recipe.albert]
max_length = 32
vocabulary_size = 300
overrides = {{ hidden_size = 16, num_hidden_layers = 1, intermediate_size = 32, embedding_size = 16 }}
[recipe.albert.data]
source = "files"
files = ['{GENESIS}']
heldout_fraction = 0.05
[optimizer]
name = "adamw"
warmup_steps = 2
[training]
target_batch_size = 64
stop_after_steps = 500
[state]
digest_every = 1
[network]
relay = "none"
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one command to its end in this process, as `call` does, and keep what it says."""
    with contextlib.ExitStack() as files, pytest.MonkeyPatch.context() as patch:
        # Files, because commands write their JSON below Python's buffers; by lines, to keep it all in order.
        output, errors = (
            files.enter_context(tempfile.TemporaryFile("w+", buffering=1, encoding="utf-8")) for _ in range(2)
        )
        patch.setenv("COLUMNS", "200")
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = call(*arguments)
        return subprocess.CompletedProcess(arguments, code, _content(output), _content(errors))


def _content(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def call(*arguments: str) -> int:
    """Run one command in this process, which has imported torch already; its exit code.

    Ending a command freezes the garbage collector or ends the process, and signals are redirected; none of that is for
    the test process.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minga.cli.gc.freeze", lambda: None)
        patch.setattr("minga.cli.os._exit", sys.exit)
        patch.setattr("minga.training.organiser.GOSSIP_S", 1.0)  # a few peers on one machine hear of each other soon
        patch.setattr("minga.cli.terminal.context.gc.disable", lambda: None)
        patch.setattr("minga.cli.terminal.interrupt.Interruption.__init__", lambda self, **_: None)
        patch.setattr("minga.cli.terminal.interrupt.Interruption.on_interrupt", lambda self, goodbye: None)
        threads = torch.get_num_threads()
        with pytest.raises(SystemExit) as end:
            minga.cli.main(list(arguments))
        torch.set_num_threads(threads)
    assert isinstance(end.value.code, int)
    return end.value.code


def last_json(output: str) -> dict[str, Any]:
    """The last line of a command's output, which is its summary."""
    value = json.loads(output.strip().splitlines()[-1])
    assert value["summary"] is True
    return dict(value)


class Running:
    """A command with `--json` that runs beside the test; use it as a context manager."""

    def __init__(
        self,
        *arguments: str,
        python: str | None = None,
        namespace: str | None = None,
        dial_timeout_s: float | None = None,
        python_of_ranks: Path | None = None,
    ) -> None:
        """This interpreter runs it, if one is given and so the imports matter; else see `forked`. `namespace`: that of
        its host, where a network of `tests.netlab` is used. `dial_timeout_s`: where it is to find that others are gone.
        `python_of_ranks` runs the processes of its further devices.
        """
        where = ("--namespace", namespace) if namespace else ()
        patience = ("--dial-timeout", str(dial_timeout_s)) if dial_timeout_s else ()
        ranks = ("--python", str(python_of_ranks)) if python_of_ranks else ()
        words = (GUARDED_MINGA, *patience, *ranks, *where, *arguments, "--json", "--leash")
        pipe = subprocess.PIPE
        self.process = (
            subprocess.Popen([python, *words], stdin=pipe, stdout=pipe, stderr=pipe, text=True, encoding="utf-8")
            if python
            else forked.start(*words, stdin=pipe, stdout=pipe, stderr=pipe)
        )
        self.events: list[dict[str, Any]] = []
        self._inbox: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def wait_for(self, kind: str, timeout_s: float = 45.0, **fields: Any) -> dict[str, Any]:
        """The next event of this kind with these fields."""
        deadline = time.monotonic() + timeout_s
        while True:
            event = self._next(max(0.01, deadline - time.monotonic()))
            if event is None:
                raise AssertionError(f"it ended first: {self.process.communicate()[1]}")
            self.events.append(event)
            if event.get("event") == kind and all(event.get(name) == value for name, value in fields.items()):
                return event

    def told(self, kind: str) -> dict[str, Any]:
        """The first event of this kind, also if it came while the test waited for another."""
        before = (event for event in self.events if event.get("event") == kind)
        return next(before, None) or self.wait_for(kind)

    def latest_step(self) -> int:
        """The step that it applied last, as far as it has told."""
        while not self._inbox.empty():
            event = self._inbox.get()
            assert event is not None, "it ended first"
            self.events.append(event)
        return max((event["step"] for event in self.events if event.get("event") == "step.applied"), default=0)

    def finish(self, step: int) -> dict[str, Any]:
        """Let it end after global step `step`; its summary."""
        self.end_at(step)
        return self.summary()

    def end_at(self, step: int) -> None:
        """Let it end after global step `step`."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"end {step}\n")
        self.process.stdin.flush()

    def summary(self) -> dict[str, Any]:
        """What it said last, after it ended."""
        while (event := self._next(45.0)) is not None:
            self.events.append(event)
        self.process.wait(10.0)
        assert self.events[-1].get("summary") is True, self.events[-1]
        return self.events[-1]

    def _next(self, timeout_s: float) -> dict[str, Any] | None:
        try:
            return self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            raise AssertionError(f"it says nothing more after {self.events[-5:]}") from None

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        try:
            for line in self.process.stdout:
                self._inbox.put(json.loads(line))
        except ValueError:  # the test closed the pipe
            pass
        self._inbox.put(None)
