"""Members that check each other's work ban a member that trains on swapped captions."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from minga.recipes.initial import new_model
from minga.recipes.interface import Batch
from minga.security.protocol.behaviour import Behaviour, Seeds, TrainingBackend
from minga.security.randomness.public_batch import PublicBatch
from tests.worlds.recipe_pictures import picture_recipe, write_pictures
from tests.worlds.secure_swarm import SecureSwarm
from tests.worlds.secure_world import Quadratic
from tests.worlds.swarm_tools import virtually

SMALLEST = {"width": 16, "layers": 2, "heads": 1, "text_length": 12, "vocabulary": 512}


class PairsWork(Quadratic):
    """Work: the gradients of the recipe on public batches of two pairs."""

    def __init__(self, files: dict[str, Path]) -> None:
        self.recipe, self.files = picture_recipe(overrides=SMALLEST), files
        self.model = new_model(self.recipe)
        first = parameters_to_vector(self.model.parameters()).detach()
        super().__init__(len(first), rate=0.5)
        self.parameters = {0: first.clone()}

    def batch(self, seed: bytes) -> Batch:
        return self.recipe.public_batch(self.files, PublicBatch.of(seed, 0, 2))

    async def gradient(self, step: int, seed: bytes) -> torch.Tensor:
        return self.gradient_of(step, self.batch(seed))

    def gradient_of(self, step: int, batch: Batch) -> torch.Tensor:
        vector_to_parameters(self.parameters[step], self.model.parameters())
        self.model.zero_grad()
        self.recipe.total_loss(self.model, batch).backward()  # type: ignore[no-untyped-call]
        return parameters_to_vector([each.grad for each in self.model.parameters() if each.grad is not None])


class SwappedCaptions(Behaviour):
    """Trains on the pictures of its batch with each other's captions."""

    async def gradient(self, work: TrainingBackend, step: int, seeds: Seeds) -> torch.Tensor:
        assert isinstance(work, PairsWork)
        batch = work.batch(seeds.own)
        return work.gradient_of(step, {**batch, "captions": batch["captions"].flip(0)})


def test_a_member_that_trains_on_swapped_captions_is_banned(tmp_path: Path) -> None:
    files = write_pictures(tmp_path)

    @virtually
    async def run() -> None:
        swarm = SecureSwarm(4, lambda: PairsWork(files), {"p2": lambda allies: SwappedCaptions()})
        ends = await swarm.run(12)
        assert all(ends[peer.name] is None for peer in swarm.honest)
        assert swarm.bans(swarm.honest[0]) == {"p2": "WRONG_GRADIENT"}
        assert len({await peer.work.digest() for peer in swarm.honest}) == 1

    run()
