"""Small files that people name on the command line."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from minga.core.errors import ConfigurationError
from minga.core.files import read_secret, write_atomically


@pytest.mark.skipif(sys.platform == "win32", reason="it has no named pipes in folders")
def test_a_line_comes_whole_out_of_a_pipe_which_can_be_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for data, said in ((b"correct horse\r\n", "correct horse"), ("pferd ä\n".encode("utf-16"), "pferd ä")):
        writer = threading.Thread(target=pipe.write_bytes, args=(data,), daemon=True)
        writer.start()
        assert read_secret(pipe, "--secret", 20) == said
        writer.join(10.0)
    for name, text in (("long", "x" * 10_000), ("blank", " \n")):
        (tmp_path / name).write_text(text)
        with pytest.raises(ConfigurationError, match=f"--secret .*{name}: it holds one line of 1 to 20 characters"):
            read_secret(tmp_path / name, "--secret", 20)


@pytest.mark.skipif(sys.platform == "win32", reason="it flushes the names in a folder by itself")
def test_a_file_that_is_replaced_is_on_the_disk_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, fsync, flushed = tmp_path / "file", os.fsync, list[tuple[int, bool]]()

    def note(descriptor: int) -> None:
        flushed.append((os.fstat(descriptor).st_ino, path.exists()))
        fsync(descriptor)

    monkeypatch.setattr("minga.core.files.os.fsync", note)
    write_atomically(path, b"content")
    assert flushed == [(path.stat().st_ino, False), (tmp_path.stat().st_ino, True)]
