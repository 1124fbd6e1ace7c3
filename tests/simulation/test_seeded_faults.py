"""Random mishaps, two at a time, in swarms of twelve: see `fault_search` for what happens and what is checked.

python -m pytest tests/simulation/test_seeded_faults.py --fault-seeds 137:138   one seed alone, and its story if it
fails make soak SEEDS=2000                                                               as many as you like
"""

from __future__ import annotations

import pytest

from tests.worlds.fault_search import play, search, story

pytestmark = pytest.mark.promise("any-peer-may-die")

REPLAY = "python -m pytest tests/simulation/test_seeded_faults.py --fault-seeds {}:{}"


def test_a_swarm_survives_two_mishaps_at_a_time(fault_seed: int) -> None:
    if wrong := search(fault_seed):
        print("\n".join(story(play(fault_seed))))
        alone = f"seed {fault_seed}, alone by `{REPLAY.format(fault_seed, fault_seed + 1)}`:"
        pytest.fail("\n  ".join([alone, *wrong]), pytrace=False)


LOCAL = {"blocking": {}, "overlapped": {"overlap": True}, "streaming": {"overlap": True, "fragments": 4}}


@pytest.mark.soak
def test_a_swarm_that_steps_locally_survives_them_as_well() -> None:
    if wrong := search(5, "local", LOCAL["streaming"]):
        pytest.fail("\n  ".join(["seed 5, streaming:", *wrong]), pytrace=False)


@pytest.mark.soak
@pytest.mark.parametrize("kind", LOCAL)
def test_a_swarm_that_steps_locally_survives_any(kind: str, fault_seed: int) -> None:
    if wrong := search(fault_seed, "local", LOCAL[kind]):
        pytest.fail("\n  ".join([f"seed {fault_seed}, {kind}:", *wrong]), pytrace=False)
