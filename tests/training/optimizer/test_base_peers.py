"""A run on a base: a newcomer gets what is trained, and one with another base is refused with words on both sides."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import minga
from minga.core.events.bus import Event
from tests.worlds.optimizer_loops import MakePeer, train
from tests.worlds.seeds import soaked

WIDE = 400


def frozen_layers(seed: int = 0) -> nn.Module:
    """The first layers are the base; 4 * 161,000 bytes of it and 4 * 1,203 that are trained."""
    torch.manual_seed(seed)
    base = nn.Sequential(nn.Linear(6, WIDE), nn.Tanh(), nn.Linear(WIDE, WIDE)).requires_grad_(False)
    torch.manual_seed(7)
    return nn.Sequential(base, nn.Linear(WIDE, 3))


def adapters(seed: int = 0) -> nn.Module:
    """The same with adapters of `peft` on the large layer, and the last layer in a copy that is trained."""
    peft = pytest.importorskip("peft", reason="peft makes the adapters")
    model = frozen_layers(seed)
    found: nn.Module = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["0.2"], modules_to_save=["1"]))
    return found


class Program:
    """A loop that goes on in a thread until it is to end."""

    def __init__(self, peer: minga.Peer, model: nn.Module) -> None:
        self.peer, self.model, self.error = peer, model, ""
        self.heard: list[Event] = []
        self.step, self.last_step = 0, 1 << 30
        peer.subscribe(self.heard.append)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        given = [each for each in self.model.parameters() if each.requires_grad]
        try:
            opt = minga.Optimizer(minga.optim.AdamW(given, lr=0.01), self.peer, model=self.model)
            while self.step < self.last_step:
                train(opt, self.model, 12, steps=opt.global_step + 1)
                self.step = opt.global_step
            opt.save_checkpoint()
        except minga.UnfitError as error:
            self.error = str(error)

    def wait_until_over(self) -> None:
        self._thread.join(40)
        assert not self._thread.is_alive()

    def end(self) -> None:
        self.last_step = min(self.last_step, self.step)
        self.wait_until_over()

    def fields(self, kind: str) -> list[dict[str, Any]]:
        return [dict(event.fields) for event in self.heard if event.kind == kind]

    def wait_for(self, kind: str) -> dict[str, Any]:
        deadline_s = time.monotonic() + 40
        while not (found := self.fields(kind)):
            assert time.monotonic() < deadline_s, kind
            time.sleep(0.02)
        return found[0]


@pytest.mark.parametrize("make", [soaked(frozen_layers), adapters])
def test_a_newcomer_gets_what_is_trained_and_another_base_is_refused_on_both_sides(
    make: Callable[..., nn.Module], host: MakePeer, tmp_path: Path
) -> None:
    model = make()
    trained_bytes = 4 * sum(each.numel() for each in model.parameters() if each.requires_grad)
    base_bytes = 4 * sum(each.numel() for each in model.parameters() if not each.requires_grad)
    assert base_bytes > 30 * trained_bytes
    first = Program(host(stop_after_steps=None, target_batch_size=24), model)
    programs = [first]

    def join(name: str, seed: int) -> Program:
        options = minga.PeerOptions(ephemeral=True, directory=tmp_path / name, host="127.0.0.1")
        programs.append(Program(minga.join(str(first.peer.link), options), make(seed)))
        return programs[-1]

    try:
        first.wait_for("step.applied")
        other = join("other", seed=1)
        told = first.wait_for("member.unfit")
        assert "is frozen and has other values in the run than in this program" in other.error
        assert ".weight`" in other.error or ".bias`" in other.error
        assert told["why"] == other.error[:400]
        assert not other.fields("state.downloaded")

        same = join("same", seed=0)
        came = same.wait_for("state.downloaded")
        assert came["received_bytes"] <= came["total_bytes"] < 4 * trained_bytes
        same.wait_for("step.applied")
        # The newcomer first, and its peer with it: a program whose loop has ended offers no state to who lags behind.
        for program in (same, first):
            program.last_step = program.step + 5
            program.wait_until_over()
            assert not program.error
            (folder,) = sorted((program.peer.directory / "checkpoints").glob("step-*"))[-1:]
            assert sum(each.stat().st_size for each in folder.iterdir()) < 4 * trained_bytes + 32_768
            program.peer.close()
    finally:
        for program in programs:
            program.end()
            program.peer.close()
    for name, value in make().state_dict().items():
        is_trained = model.get_parameter(name).requires_grad
        assert torch.equal(value, model.state_dict()[name]) != is_trained, name
