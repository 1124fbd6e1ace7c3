"""Output whose encoding lacks some characters, as that of a pipe on Windows or of an old locale."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from minga.cli.terminal.plain_characters import use_plain_characters


def written(text: str, encoding: str, errors: str = "strict") -> bytes:
    """What a stream in this encoding gets of `text`, with the error handler that it had before."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors=errors)
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


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ("strict", rb"-> J\xfcrgen"),
        ("backslashreplace", rb"-> J\xfcrgen"),
        ("surrogateescape", rb"-> J\xfcrgen"),
        ("replace", b"-> J?rgen"),
        ("xmlcharrefreplace", b"-> J&#252;rgen"),
        ("ignore", b"-> Jrgen"),
    ],
)
def test_what_has_no_nearest_character_is_left_to_the_handler_that_was_there(errors: str, expected: bytes) -> None:
    assert written("→ Jürgen", "ascii", errors) == expected


def test_the_name_of_a_file_is_written_with_its_own_bytes_in_the_locale_c() -> None:
    name = "/home/Jürgen/run".encode()
    assert written(f"→ {name.decode('ascii', 'surrogateescape')}", "ascii", "surrogateescape") == b"-> " + name


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
