"""One operating system process for each peer, and a coordinator that commands, measures and ends them.

Messages are lines of JSON over the worker's standard input and output; see `_worker` for the other end. All times are
`time.monotonic()`, which is one clock for the whole machine, and also the clock of the event loops.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import minga
from benchmarks import _machine

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = Path(minga.__file__).resolve().parent.parent

Message = dict[str, Any]


class WorkerError(RuntimeError):
    """A worker ended or kept silent when it should have answered."""


class Worker:
    """One process of the interpreter `python` that runs `function` ("module:name"). `heard` is called with each
    message, on a thread.
    """

    def __init__(
        self,
        name: str,
        function: str,
        settings: Mapping[str, Any],
        log: IO[str],
        heard: Callable[[Worker, Message], None] | None = None,
        *,
        python: str = sys.executable,
    ) -> None:
        self.name = name
        self._log, self._heard = log, heard
        self._messages: queue.Queue[Message | None] = queue.Queue()
        path = os.pathsep.join([str(ROOT), str(PACKAGES), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [python, "-m", "benchmarks._worker", function, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            bufsize=1,
            cwd=ROOT,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def send(self, do: str, **fields: Any) -> None:
        """Give a command; one that ended cannot be told anything."""
        try:
            self.process.stdin.write(json.dumps({"do": do, **fields}) + "\n")  # type: ignore[union-attr]
        except OSError:
            return

    def receive(self, within_s: float) -> Message:
        """Its next message. Raises `WorkerError` if none comes in time."""
        try:
            message = self._messages.get(timeout=max(0.0, within_s))
        except queue.Empty:
            raise WorkerError(f"{self.name} said nothing for {within_s:.0f} s\n{self.log_tail()}") from None
        if message is None:
            raise WorkerError(f"{self.name} ended early\n{self.log_tail()}")
        return message

    def ask(self, do: str, within_s: float, **fields: Any) -> Message:
        """Give a command and return the answer."""
        self.send(do, **fields)
        return self.receive(within_s)

    def log_tail(self) -> str:
        """The end of what it wrote to standard error."""
        return "\n".join(Path(self._log.name).read_text(errors="replace").splitlines()[-15:])

    def signal(self, number: int) -> None:
        """Send a signal to every process of its tree."""
        for pid in _machine.process_tree(self.pid):
            try:
                os.kill(pid, number)
            except OSError:
                continue

    def close(self, grace_s: float = 3.0) -> None:
        """Ask it to end, and make it."""
        self.send("exit")
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it at once."""
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
            self.process.wait(10)

    def _read(self) -> None:
        for line in self.process.stdout or ():
            message = json.loads(line)
            if self._heard is not None:
                self._heard(self, message)
            else:
                self._messages.put(message)
        self._messages.put(None)


class Workers:
    """A set of workers; all are gone when the `with` block is left, whatever happened in it."""

    def __init__(self) -> None:
        self.all: list[Worker] = []
        self._logs = tempfile.TemporaryDirectory(prefix="minga-bench-")
        self.directory = Path(self._logs.name)
        """A folder that lives as long as the workers."""

    def start(
        self,
        name: str,
        function: str,
        settings: Mapping[str, Any],
        heard: Callable[[Worker, Message], None] | None = None,
        *,
        python: str = sys.executable,
    ) -> Worker:
        """Start one more."""
        log = open(self.directory / f"{name}.log", "w")  # noqa: SIM115  (closed with the set)
        worker = Worker(name, function, settings, log, heard, python=python)
        self.all.append(worker)
        return worker

    def ask(self, do: str, within_s: float, workers: Iterable[Worker] | None = None, **fields: Any) -> list[Message]:
        """Give all the same command and collect an answer of each. Raises `WorkerError`."""
        chosen = list(self.all if workers is None else workers)
        for worker in chosen:
            worker.send(do, **fields)
        return self.gather(within_s, chosen)

    def gather(self, within_s: float, workers: Iterable[Worker] | None = None) -> list[Message]:
        """One message of each. Raises `WorkerError`."""
        deadline = time.monotonic() + within_s
        return [w.receive(deadline - time.monotonic()) for w in (self.all if workers is None else workers)]

    def cpu_s(self) -> float:
        """CPU seconds of all of them so far."""
        return _machine.cpu_s(w.pid for w in self.all)

    def __enter__(self) -> Workers:
        # Ended by a timeout command or a job scheduler: leave through `__exit__`. Only the main thread may say so.
        if threading.current_thread() is threading.main_thread():
            self._old_handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        threads = [threading.Thread(target=w.close if kind is None else w.kill, daemon=True) for w in self.all]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for worker in self.all:
            for file in (worker.process.stdin, worker.process.stdout, worker._log):
                if file is not None:
                    try:
                        file.close()
                    except OSError:
                        continue
        self._logs.cleanup()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._old_handler)
