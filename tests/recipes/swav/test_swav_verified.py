"""SwAV among peers that verify each other's gradients: each can compute the others' micro-batches again."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.worlds.extension_world import hosted, recipe_swarm
from tests.worlds.swarm_tools import virtually
from tests.worlds.swav_world import SMALL, small_run

STEPS = 5


def test_honest_peers_stay_and_one_that_turns_signs_is_banned(tmp_path: Path) -> None:
    _, files = small_run(tmp_path)
    spec = hosted(
        {
            "name": "verified",
            "model": {"recipe": "swav"},
            "recipe": {"swav": SMALL},
            "training": {"target_batch_size": 40, "stop_after_steps": STEPS, "buffers": "local"},
            "optimizer": {"name": "larc", "learning_rate": 1.0, "warmup_steps": 0},
            "averaging": {"codec": "float32"},
            "security": {
                "verification": "byzantine",
                "micro_batch_size": 8,
                "founders": 5,
                "peers_per_validator": 2,
            },
        }
    )

    @virtually
    async def main() -> None:
        swarm = recipe_swarm(spec, {"p2": "sign-flip"}, from_step=1, files=files)
        peers = [swarm.add(name=f"p{number}") for number in range(5)]
        honest = [peer for peer in peers if peer.name != "p2"]
        for peer in honest:
            await peer.ended.wait()
        assert [(peer.error, peer.replica.step) for peer in honest] == [(None, STEPS)] * 4
        assert len(set(swarm.digests([peer.name for peer in honest]).values())) == 1
        banned = {str(event.fields["peer"]) for _, event in swarm.log.of("secure.banned")}
        assert banned == {peers[2].network.peer_id}
        weights = honest[0].replica.tensors()["model/prototypes.weight"]
        assert (weights.norm(dim=1) - 1.0).abs().max() <= 1e-6
        assert bool(torch.isfinite(weights).all())
        await swarm.close()

    main()
