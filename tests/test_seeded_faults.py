"""Random mishaps, two at a time, in swarms of twelve: see `fault_search` for what happens and what is checked.

python -m pytest tests/test_seeded_faults.py --fault-seeds 137:138      one seed alone, and its story if it fails
make soak SEEDS=2000                                                    as many as you like
"""

from __future__ import annotations

from fault_search import Scene, play, search, story

REPLAY = "python -m pytest tests/test_seeded_faults.py --fault-seeds {}:{}"


def test_a_swarm_survives_two_mishaps_at_a_time(fault_seeds: range) -> None:
    failures = {seed: wrong for seed in fault_seeds if (wrong := search(seed))}
    if failures and len(fault_seeds) == 1:
        print("\n".join(story(play(fault_seeds[0]))))
    told = [
        "\n  ".join([f"seed {seed}, alone by `{REPLAY.format(seed, seed + 1)}`:", *wrong])
        for seed, wrong in failures.items()
    ]
    assert not failures, "\n".join(told)


def test_equal_seeds_give_equal_stories() -> None:
    first, second = story(play(3)), story(play(3))
    assert first == second
    assert len(first) > 50
    assert Scene.drawn(3) != Scene.drawn(4)
