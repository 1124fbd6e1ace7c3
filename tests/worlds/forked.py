"""Processes for tests without another import of torch and transformers, which is most of the work of a short one.

After the collection of tests, `open_server` forks off a process that has imported whatever the tests have, and that has
one thread. `start` lets this server fork once more for each program that a test wants to run. What comes of it is a
real process with a process id, arguments, an environment, standard streams and an exit status of its own. It gets
signals, and it shares no object with the test. It differs from a fresh interpreter in what it has imported already, and
its strings hash like those of the other forked processes. Where one of these is the subject, and on systems other than
Linux, tests start an interpreter. `start_otherwise` uses a second such server, which is an interpreter of its own in
which strings hash otherwise, and which has no vector instructions.

The workers of pytest are forked in the same way, by a server of the process that hands out the tests, and share its
second server.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import importlib
import json
import logging
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from minga.core.wheel import own_wheel

SET_SUBREAPER = 36
"""The number of PR_SET_CHILD_SUBREAPER: orphans among the descendants become children of this process."""
MOST_BYTES = 2**20
USUAL = ("minga.recipes.albert.recipe", "minga.cli.taking_part.host", "minga.cli.taking_part.join")
"""What most programs need, if no test has imported it: the server waits with this for the first request."""
FRAMEWORKS = ("transformers.trainer", "minga.integrations.transformers", "minga.integrations.accelerate")
"""What only programs of training frameworks need: the server imports it when the first one comes."""
LIGHTNING = ("pytorch_lightning", "minga.integrations.lightning")
"""The same of those with Lightning."""

OTHER_HASHES = "99"
"""PYTHONHASHSEED of the second server."""
OTHER = {
    "PYTHONHASHSEED": OTHER_HASHES,
    "ATEN_CPU_CAPABILITY": "default",
    "NPY_DISABLE_CPU_FEATURES": " ".join(np.show_config(mode="dicts")["SIMD Extensions"].get("found", ())),
    "OMP_WAIT_POLICY": "passive",
}
"""What is otherwise for the second server. Threads that wait must not spin: there are more of them than cores."""

_servers: list[tuple[socket.socket, int]] = []
"""The way to the server, and the number of its process."""
_others: list[tuple[socket.socket, subprocess.Popen[bytes]]] = []
otherwise: list[str] = []
"""The command by which the workers of pytest use the second server of the process that has forked them."""


def start(*words: str, needs: Sequence[str] = (), **options: Any) -> subprocess.Popen[str]:
    """Run `python WORDS` (a script, `-c CODE` or `-m MODULE` with arguments); the options are those of Popen.

    The modules that it `needs` are imported once for all processes to come.
    """
    if _servers:
        return _Forked(words, text=True, encoding="utf-8", server=_servers[0][0], needs=needs, **options)
    return subprocess.Popen([sys.executable, *words], text=True, encoding="utf-8", **options)


def run(*words: str, timeout_s: float = 50.0, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `python WORDS` to its end, and keep what it says."""
    pipe = subprocess.PIPE
    return _ended(start(*words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, **options), words, timeout_s)


def start_otherwise(*words: str, **options: Any) -> subprocess.Popen[str]:
    """Run `python WORDS` where strings hash otherwise, and without vector instructions; the options are those of Popen.

    What it imports beyond `USUAL` it imports by itself, as nothing of the tests' process is in it.
    """
    env = {**os.environ, **options.pop("env", {}), **OTHER}
    if otherwise or not _servers:
        python = otherwise or [sys.executable]
        return subprocess.Popen([*python, *words], text=True, encoding="utf-8", env=env, **options)
    if not _others:
        _others.append(_open_other(env))
    return _Forked(words, text=True, encoding="utf-8", server=_others[0][0], env=env, **options)


def run_otherwise(*words: str, timeout_s: float = 200.0) -> subprocess.CompletedProcess[str]:
    """Run `python WORDS` there to its end, and keep what it says."""
    pipe = subprocess.PIPE
    process = start_otherwise(*words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    return _ended(process, words, timeout_s)


def run_for_suite(words: Sequence[str], *, env: Mapping[str, str], timeout: float, **_: Any) -> Any:
    """The `subprocess.run` of the conformance suite of recipes, which has other hashes there, too."""
    assert env["PYTHONHASHSEED"] == OTHER_HASHES
    return run_otherwise(*words[1:], timeout_s=timeout)


def _ended(
    started: subprocess.Popen[str], words: tuple[str, ...], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    with started as process:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(words, process.returncode, output, errors)


def _open_other(env: dict[str, str]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = "import json, socket, sys; sys.path[:] = json.loads(sys.argv[2]); from tests.worlds import forked; "
    code += "import torch; torch.backends.cpu.get_cpu_capability(); "  # from now on it is that of this process
    code += "forked._serve(socket.socket(fileno=int(sys.argv[1])))"
    words = [sys.executable, "-c", code, str(its.fileno()), json.dumps(sys.path)]
    with its:
        return ours, subprocess.Popen(words, pass_fds=[its.fileno()], env=env)


def results_of(processes: list[subprocess.Popen[str]], timeout_s: float) -> list[dict[str, Any]]:
    """Let programs that work together end, each with JSON as its last line; what they say. None is left over."""
    try:
        results = []
        for process in processes:
            output, errors = process.communicate(timeout=timeout_s)
            assert process.returncode == 0, errors
            results.append(json.loads(output.splitlines()[-1]))
        return results
    finally:
        for process in processes:
            with process:  # which closes its pipes: the next test would be blamed for them
                if process.poll() is None:
                    process.kill()
                    process.communicate()


def close_server() -> None:
    """Let the servers end."""
    while _servers:
        its, number = _servers.pop()
        its.close()
        os.waitpid(number, 0)
    while _others:
        its, process = _others.pop()
        its.close()
        process.wait()


def open_server(prepare: Callable[[], None] = lambda: None) -> None:
    """Fork off the server, which prepares itself; to be called once, before this process has begun anything."""
    if sys.platform != "linux":
        return
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with warnings.catch_warnings(action="ignore"):  # this process has other threads, of which the server needs nothing
        if process := os.fork():
            its.close()
            _servers.append((ours, process))
            return
    try:
        _servers.clear()  # those of this process, which a server may itself come of
        _serve(its, prepare)
    finally:
        os._exit(1)


class _Forked(subprocess.Popen[str]):
    """A process that a server forks, as a child of this process."""

    def __init__(self, *words: Any, server: socket.socket, needs: Sequence[str] = (), **options: Any) -> None:
        self._server, self._needs = server, list(needs)
        super().__init__(*words, **options)

    def _execute_child(self, args: Any, *others: Any) -> None:
        cwd, env = others[4:6]
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = others[9:15]
        given = [own if own != -1 else number for number, own in enumerate((p2cread, c2pwrite, errwrite))]
        request = {
            "needs": self._needs,
            "words": args,
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "new_session": others[20],
        }
        libc = ctypes.CDLL(None)
        libc.prctl(SET_SUBREAPER, 1)  # the process is an orphan when its id arrives, and so has become our child
        socket.send_fds(self._server, [json.dumps(request).encode()], given)
        self.pid = int(self._server.recv(MOST_BYTES))
        libc.prctl(SET_SUBREAPER, 0)
        self._child_created = True
        pairs = ((p2cread, p2cwrite), (c2pwrite, c2pread), (errwrite, errread))
        for end in {its for its, ours in pairs if -1 not in (its, ours)} | {getattr(self, "_devnull", -1)} - {-1}:
            os.close(end)


def _serve(requests: socket.socket, prepare: Callable[[], None] = lambda: None) -> None:
    """Fork a process for each request, until the tests are over."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        # Replaced, not closed: some object that is collected later may close its number once more.
        if int(name) not in (nothing, requests.fileno()):
            with contextlib.suppress(OSError):  # the folder itself, which was listed
                os.fstat(int(name))
                os.dup2(nothing, int(name), inheritable=False)
    logging.root.handlers.clear()  # those of pytest; Lightning makes one of its own, which keeps the stream
    sys.stderr = os.fdopen(2, "w", 1, "utf-8", "backslashreplace", closefd=False)
    prepare()
    while True:
        data, streams, *_ = socket.recv_fds(requests, MOST_BYTES, 3)
        if not data:
            os._exit(0)
        request = json.loads(data)
        for name in (*USUAL, *request.pop("needs")):
            with contextlib.suppress(ImportError):  # then the program says so
                importlib.import_module(name)
        own_wheel()  # which each host of a run would make anew
        told, tell = os.pipe()
        if not (between := os.fork()):
            between = os.getpid()
            if process := os.fork():
                os.write(tell, str(process).encode())
                os._exit(0)
            for end in (told, tell, requests.fileno()):
                os.dup2(nothing, end, inheritable=False)
            while os.getppid() == between:  # the end of a parent has consequences for what asked to be told of it
                time.sleep(0.001)
            _become(streams, **request)
        os.waitpid(between, 0)
        requests.send(os.read(told, 100))
        for end in (told, tell, *streams):
            os.close(end)


def _become(streams: list[int], words: list[str], cwd: str, env: dict[str, str], new_session: bool) -> NoReturn:
    """Be the process that runs this program, and end with its exit status."""
    code = 1
    try:
        _forget_the_tests()
        if new_session:
            os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdin = sys.__stdin__ = os.fdopen(0, encoding="utf-8", closefd=False)  # type: ignore[misc]
        sys.stdout = sys.__stdout__ = os.fdopen(1, "w", encoding="utf-8", closefd=False)  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, "utf-8", "backslashreplace", closefd=False)  # type: ignore[misc]
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        _run(words)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for file in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                file.flush()
        os._exit(code)


def _forget_the_tests() -> None:
    """Undo what pytest and its workers have changed in the interpreter."""
    atexit._clear()
    faulthandler.disable()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.unraisablehook, threading.excepthook = sys.__unraisablehook__, threading.__excepthook__
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    warnings.resetwarnings()
    for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", category)
    np.random.seed()


def _run(words: list[str]) -> None:
    if words[0] == "-u":
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
        words = words[1:]
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if words[0] == "-c":
        source, sys.argv = words[1], ["-c", *words[2:]]
        sys.path.insert(0, "")
    else:
        source, sys.argv = Path(words[0]).read_text("utf-8"), words
        main.__file__ = words[0]
        sys.path.insert(0, str(Path(words[0]).parent))
    exec(compile(source, sys.argv[0], "exec"), vars(main))
