"""Two peers in one process."""

from __future__ import annotations

import re
import threading
import time
import traceback
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import minga
from minga.core.events.bus import Event
from tests.worlds.optimizer_loops import MakePeer, Normed, batches, mean_loss, small_model, train
from tests.worlds.seeds import soaked
from tests.worlds.side_by_side import SideBySide


def live_together(peers: list[minga.Peer], models: list[nn.Module], folder: Path) -> list[minga.Optimizer]:
    """Train in two threads, side by side."""
    optimizers: list[minga.Optimizer] = []
    errors: list[BaseException] = []

    def live(i: int, samples: int) -> None:
        try:
            inner = torch.optim.AdamW(models[i].parameters(), lr=0.05)
            scheduler = lr_scheduler.ExponentialLR(inner, 0.9)
            opt = minga.Optimizer(inner, peers[i], scheduler=scheduler, model=models[i])
            optimizers.append(opt)
            beside = SideBySide(folder, str(i), "01", peers[i])
            for batch in batches(samples):
                mean_loss(models[i], batch).backward()
                opt.step(samples=samples)
                beside.keep_pace(opt)
                if opt.finished:
                    break
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=live, args=(i, samples), daemon=True) for i, samples in ((0, 4), (1, 3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert errors == []
    assert not any(thread.is_alive() for thread in threads)
    return optimizers


@pytest.mark.parametrize(("strategy", "buffers"), [("synchronous", "average"), soaked("delayed", "local")])
def test_two_peers_hold_the_same_model(host: MakePeer, tmp_path: Path, strategy: str, buffers: str) -> None:
    first = host(strategy=strategy, buffers=buffers, target_batch_size=32, stop_after_steps=12)
    heard: list[Event] = []
    first.subscribe(heard.append)
    options = minga.PeerOptions(ephemeral=True, directory=tmp_path, host="127.0.0.1")
    with minga.join(str(first.link), options) as guest:
        guest.subscribe(heard.append)
        one, other = live_together([first, guest], [Normed(), Normed()], tmp_path)
        assert one.finished
        assert other.finished
        assert one.digest() == other.digest()
    assert [event for event in heard if event.kind == "step.applied" and event.fields["members"] == 2]
    assert not [event for event in heard if event.kind in ("member.diverged", "member.failed")]


class TwoLayers(nn.Module):
    """A body and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.head(torch.tanh(self.body(x))))


def test_a_layer_that_is_replaced_later_ends_the_peer_and_the_run_hears_it_at_the_door(
    host: MakePeer, tmp_path: Path
) -> None:
    """Noticed at the next comparison of states at the guest, and at the next checkpoint by a peer that is alone."""
    words = "the optimizer trains 2 tensors that the model no longer has, such as `head.bias`"
    first = host(target_batch_size=32, stop_after_steps=None)
    heard: list[str] = []
    first.subscribe(lambda event: heard.append(str(event.fields["why"])) if event.kind == "member.unfit" else None)
    options = minga.PeerOptions(ephemeral=True, directory=tmp_path, host="127.0.0.1")
    left, models = threading.Event(), [TwoLayers(), TwoLayers()]

    def live() -> None:
        opt = minga.Optimizer(torch.optim.SGD(models[0].parameters(), lr=0.1), first, model=models[0])
        for batch in batches(8):
            if left.is_set():
                return
            mean_loss(models[0], batch).backward()
            opt.step(samples=8)

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    try:
        with minga.join(str(first.link), options) as guest:
            opt = minga.Optimizer(torch.optim.SGD(models[1].parameters(), lr=0.1), guest, model=models[1])
            train(opt, models[1], 8, steps=opt.global_step + 3)
            models[1].head = nn.Linear(6, 6)
            with pytest.raises(minga.UnfitError, match=words):
                train(opt, models[1], 8)
            while not heard:
                time.sleep(0.05)
    finally:
        left.set()
        thread.join(40)
    assert [each[: len(words)] for each in heard] == [words]

    alone, model = host(checkpoint_every=1, stop_after_steps=None), TwoLayers()
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), alone, model=model)
    train(opt, model, steps=2)
    model.head = nn.Linear(6, 6)
    with pytest.raises(minga.UnfitError, match=words):
        train(opt, model)  # a checkpoint may be under way


def test_a_newcomer_with_what_does_not_fit_gets_one_clear_error_at_the_door(host: MakePeer, tmp_path: Path) -> None:
    """Another shape named a bias first, and came with fifty lines of the inner workings of the peer."""
    message = "the run's model has `0.weight` [5, 6], this program's has [7, 6] (2 others differ)"
    first, left = host(stop_after_steps=None), threading.Event()

    def live() -> None:
        model = small_model()
        opt = minga.Optimizer(torch.optim.AdamW(model.parameters()), first, model=model)
        train(opt, model, steps=1)
        while not left.is_set():
            opt.follow(0.05)

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    heard: list[str] = []
    first.subscribe(lambda event: heard.append(str(event.fields["why"])) if event.kind == "member.unfit" else None)
    options = minga.PeerOptions(ephemeral=True, directory=tmp_path, host="127.0.0.1")
    wide = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3))
    try:
        with minga.join(str(first.link), options) as guest:
            with pytest.raises(minga.LocalError, match=re.escape(message)) as caught:
                minga.Optimizer(torch.optim.AdamW(wide.parameters()), guest, model=wide)
            while not heard:  # a program that leaves at once waits half a second for its last words
                time.sleep(0.02)
    finally:
        left.set()
        thread.join(40)
    assert message in heard[0], "the run's side hears the same"
    assert len(traceback.format_exception(caught.value)) < 10
