"""What the errors say."""

from __future__ import annotations

import errno

from minga.core.errors import reason_of


def test_the_reason_of_an_os_error_is_the_systems_word_or_the_errors_own() -> None:
    assert reason_of(FileNotFoundError(errno.ENOENT, "No such file or directory", "a file")) == (
        "No such file or directory"
    )
    assert reason_of(OSError("the folder is full")) == "the folder is full"
