"""What is there when a peer begins to train is not looked through for garbage until the last peer is closed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.worlds import settled_claims


@pytest.mark.parametrize("claim", [claim.__name__ for claim in settled_claims.CLAIMS])
def test_settled_objects(claim: str) -> None:
    words = [sys.executable, settled_claims.__file__, claim]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60.0)
    assert (done.returncode, done.stdout) == (0, "held\n"), done.stderr
