"""What all peers compute from one mean has equal bits, whatever their processors."""

from __future__ import annotations

import json

from tests.worlds import forked
from tests.worlds.shared_bits import bits_of_some_rounds


def test_other_numbers_of_threads_and_other_instructions_give_equal_bits() -> None:
    """The digests of states would differ, and each peer would download what the others have."""
    done = forked.run_otherwise("-m", "tests.worlds.shared_bits")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == bits_of_some_rounds()
