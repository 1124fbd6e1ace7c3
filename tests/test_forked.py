"""The forked processes of tests are like those of a fresh interpreter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worlds import forked

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere they are fresh interpreters")

TELL = """
import json, logging, os, sys, threading, warnings
print(json.dumps({
    "argv": sys.argv, "pid": os.getpid(), "parent": os.getppid(), "cwd": os.getcwd(), "only": os.environ.get("ONLY"),
    "variables": len(os.environ), "said": sys.stdin.read(), "threads": threading.active_count(), "name": __name__,
    "handlers": len(logging.root.handlers), "files": len(os.listdir("/proc/self/fd")),
}))
print("wrong", file=sys.stderr)
sys.exit(7)
"""


def test_streams_arguments_surroundings_and_status(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    options = {"stdin": pipe, "stdout": pipe, "stderr": pipe, "cwd": tmp_path, "env": {"ONLY": "this"}}
    with forked.start("-c", TELL, "a", "b c", **options) as process:
        output, errors = process.communicate("hello", timeout=50)
    told = json.loads(output)
    assert process.returncode == 7
    assert errors == "wrong\n"
    assert told["argv"] == ["-c", "a", "b c"]
    assert (told["pid"], told["parent"]) == (process.pid, os.getpid())
    assert (told["cwd"], told["only"], told["said"], told["name"]) == (str(tmp_path), "this", "hello", "__main__")
    assert (told["threads"], told["handlers"]) == (1, 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_end_them_as_they_end_others(number: int) -> None:
    code = "import time; print('here', flush=True); time.sleep(50)"
    with forked.start("-c", code, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait(20) == -number


def test_what_is_killed_ends_where_another_process_has_forked_it() -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(50)"
    with forked.start_otherwise("-c", code, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
        process.communicate(timeout=20)  # to the end of its output
