"""Commands for processes beside the tests: what they start is forked, see `forked`."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.worlds import forked

CLIENT = """#!{python} -SE
import json, os, signal, socket, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # which all of the group get, and so does what is forked
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
    line.connect({path!r})
    request = json.dumps([{start!r}, {words} + sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(line, [request], [0, 1, 2])
    sys.exit(int(line.recv(100) or 1))
"""


@contextlib.contextmanager
def forked_commands(folder: Path) -> Iterator[Path]:
    """The folder with `minga`, `python` and `otherwise`, a new one in `folder`; only on Linux they are forked.

    `otherwise` is a Python by `start_otherwise`; elsewhere than on Linux the folder is that of this interpreter.
    """
    if sys.platform != "linux":
        yield Path(sys.executable).parent
        return
    commands = folder / "commands"
    commands.mkdir()
    path = str(commands / "socket")
    for name, start, words in (
        ("minga", "start", ["-m", "minga"]),
        (Path(sys.executable).name, "start", []),
        ("otherwise", "start_otherwise", []),
    ):
        program = commands / name
        program.write_text(CLIENT.format(python=sys.executable, path=path, start=start, words=words), "utf-8")
        program.chmod(0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        server = threading.Thread(target=_serve, args=(listener,))
        server.start()
        try:
            yield commands
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # which ends its `accept`
            server.join()


def _serve(listener: socket.socket) -> None:
    running: list[threading.Thread] = []
    with contextlib.suppress(OSError):
        while True:
            line, _ = listener.accept()
            request, streams, *_ = socket.recv_fds(line, forked.MOST_BYTES, 3)
            start, words, cwd, env = json.loads(request)
            given = dict(zip(("stdin", "stdout", "stderr"), streams, strict=True))
            process = getattr(forked, start)(*words, cwd=cwd, env=env, **given)
            for stream in streams:
                os.close(stream)
            running.append(threading.Thread(target=_tell_its_end, args=(line, process)))
            running[-1].start()
    for thread in running:
        thread.join()


def _tell_its_end(line: socket.socket, process: subprocess.Popen[str]) -> None:
    with line, process, open(os.pidfd_open(process.pid)) as end:
        select.select([line, end], [], [])
        if process.poll() is None:
            process.kill()  # as who asked has been
        code = process.wait() % 256
        with contextlib.suppress(OSError):  # who asked has ended
            line.send(str(code).encode())
