"""Output whose encoding lacks some characters, as that of a pipe on Windows or of an old locale."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from minga.cli.terminal.plain_characters import use_plain_characters


def written(text: str, encoding: str) -> bytes:
    """What a stream in this encoding gets of `text`."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    for _ in range(2):  # as where one process runs several commands
        use_plain_characters([stream])
    stream.write(text)
    stream.flush()
    return raw.getvalue()


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("utf-8", "Wait … → ü █ ☃"),
        ("cp1252", r"Wait … -> ü # \u2603"),
        ("latin-1", r"Wait ... -> ü # \u2603"),
        ("ascii", r"Wait ... -> \xfc # \u2603"),
    ],
)
def test_what_an_encoding_lacks_is_written_by_the_nearest_characters(encoding: str, expected: str) -> None:
    assert written("Wait … → ü █ ☃", encoding) == expected.encode(encoding)


def test_a_stream_that_is_no_text_of_python_is_left_alone() -> None:
    use_plain_characters([io.StringIO(), None])


def test_a_command_says_all_where_the_locale_is_ascii() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "minga", "--help"],
        capture_output=True,
        timeout=45.0,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"0 done - 2 a wrong option" in b" ".join(done.stdout.split())
