"""Output whose encoding lacks some characters, as that of a pipe on Windows or of an old locale."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from minga.cli.terminal.plain_characters import use_plain_characters


def written(text: str, encoding: str) -> str:
    """What a stream in this encoding gets of `text`."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    use_plain_characters([stream])
    stream.write(text)
    stream.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("utf-8", "Wait … → ü █"),
        ("cp1252", "Wait … -> ü ?"),
        ("latin-1", "Wait ... -> ü ?"),
        ("ascii", "Wait ... -> ? ?"),
    ],
)
def test_what_an_encoding_lacks_is_written_by_the_nearest_characters(encoding: str, expected: str) -> None:
    assert written("Wait … → ü █", encoding) == expected


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
    assert b"0 done - 1 a check" in b" ".join(done.stdout.split())
