"""Scripts that seed everything with one number, as most do, and so draw the same samples on each machine."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import minga
from tests.worlds.script_peers import Machine, network, run_scripts, spec_of


@pytest.mark.parametrize("seeded_by", ["1337", "peer.seed"])
def test_peers_that_draw_the_same_samples_are_told_what_to_add(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, seeded_by: str
) -> None:
    def train(machine: Machine) -> Any:
        model = network()
        chance = torch.Generator().manual_seed(1337 if seeded_by == "1337" else machine.peer.seed)
        optimizer = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), machine.peer, model=model)
        told: list[str] = []
        machine.peer.subscribe(lambda event: told.append(event.kind))

        def give() -> None:
            model(torch.randn(4, 6, generator=chance)).square().mean().backward()
            optimizer.step(samples=4)

        machine.meet(optimizer)
        give()
        machine.meet(optimizer)  # who is slow finds no room otherwise
        while not optimizer.finished:
            give()
        return told.count("training.twin"), optimizer.digest()

    with caplog.at_level(logging.WARNING, "minga"):
        found = run_scripts(spec_of(8, 4), [train] * 2, tmp_path)
    assert len({digest for _, digest in found}) == 1
    words = [each.getMessage() for each in caplog.records if "computes what another one does" in each.getMessage()]
    if seeded_by == "peer.seed":
        assert (words, [twins for twins, _ in found]) == ([], [0] * 2)
    else:
        assert [twins for twins, _ in found] == [1] * 2
        assert all("torch.manual_seed(peer.seed)" in each for each in words)
        assert len(words) == sum(twins for twins, _ in found)
