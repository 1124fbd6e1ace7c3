"""Commands `minga` and `python` for processes beside the tests: what they start is forked, see `forked`."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.worlds import forked

CLIENT = """#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
    line.connect({path!r})
    request = json.dumps([{words} + sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(line, [request], [0, 1, 2])
    sys.exit(int(line.recv(100) or 1))
"""


@contextlib.contextmanager
def forked_commands(folder: Path) -> Iterator[Path]:
    """The folder with both, a new one in `folder`; elsewhere than on Linux that of this interpreter."""
    if sys.platform != "linux":
        yield Path(sys.executable).parent
        return
    commands = folder / "commands"
    commands.mkdir()
    path = str(commands / "socket")
    for name, words in (("minga", ["-m", "minga"]), (Path(sys.executable).name, [])):
        program = commands / name
        program.write_text(CLIENT.format(python=sys.executable, path=path, words=words), "utf-8")
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
            words, cwd, env = json.loads(request)
            given = dict(zip(("stdin", "stdout", "stderr"), streams, strict=True))
            process = forked.start(*words, cwd=cwd, env=env, **given)
            for stream in streams:
                os.close(stream)
            running.append(threading.Thread(target=_tell_its_end, args=(line, process)))
            running[-1].start()
    for thread in running:
        thread.join()


def _tell_its_end(line: socket.socket, process: subprocess.Popen[str]) -> None:
    with line, process:
        code = process.wait() % 256
        with contextlib.suppress(OSError):  # who asked has ended
            line.send(str(code).encode())
