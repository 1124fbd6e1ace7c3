"""What all peers compute from one mean has equal bits, whatever their processors."""

from __future__ import annotations

from tests.worlds import forked
from tests.worlds.sketch_bits import bits_of_some_rounds


def test_other_numbers_of_threads_and_other_instructions_give_equal_bits() -> None:
    """The digests of states would differ, and each peer would download what the others have."""
    done = forked.run_otherwise("-m", "tests.worlds.sketch_bits")
    assert done.stdout.strip() == bits_of_some_rounds(), done.stderr
