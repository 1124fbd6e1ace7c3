"""What all peers compute from one mean has equal bits, whatever their processors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.worlds.sketch_bits import bits_of_some_rounds

ROOT = Path(__file__).parents[3]
OTHER_INSTRUCTIONS = {"ATEN_CPU_CAPABILITY": "default", "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512_SKX"}


def test_other_numbers_of_threads_and_other_instructions_give_equal_bits() -> None:
    """The digests of states would differ, and each peer would download what the others have."""
    command, environment = [sys.executable, "-W", "ignore", "-m", "tests.worlds.sketch_bits"], dict(os.environ)
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, env=environment | OTHER_INSTRUCTIONS
    )
    assert done.stdout.strip() == bits_of_some_rounds()
