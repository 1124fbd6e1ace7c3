"""Whose state is the run's: real peers over loopback, each with a model of its own weights."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from blake3 import blake3
from torch import nn

import minga
from minga.access.standing_orders import STOP
from minga.network.iroh import network
from minga.training.life import catching_up
from minga.training.lineage import Lineage
from minga.training.record_kinds import Progress
from minga.training.state.checkpoints import CheckpointStore, read_checkpoint
from tests.worlds.organiser_desk import desk_in

pytestmark = pytest.mark.promise("whose-state-is-the-runs")

SPEC: dict[str, Any] = {
    "name": "lineage",
    "model": {"recipe": "custom"},
    "training": {"target_batch_size": 8},
    "checkpoints": {"every_steps": 2},
    "network": {"relay": "none"},
}
FAR, NEAR = 5.0, 0.0
"""Where the weights of the organiser's model begin, and those of others."""
PAUSE_S, SLOW_S = 0.02, 0.3


class Trainer:
    """A program that trains a model whose weights begin at `start`, once it is `loaded`: no gradient moves them."""

    def __init__(self, peer: minga.Peer, start: float, loaded: threading.Event | None = None) -> None:
        self.peer, self.model = peer, nn.Linear(4, 2)
        self.error: minga.MingaError | None = None
        self.pause_s = PAUSE_S
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.fill_(start)
        self.optimizer: minga.Optimizer | None = None
        self._loaded, self._stops = loaded, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        if self._loaded is not None:
            self._loaded.wait()
        try:
            self.optimizer = minga.Optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1), self.peer)
            while not (self._stops.is_set() or self.optimizer.finished):
                for parameter in self.model.parameters():
                    parameter.grad = torch.zeros_like(parameter)
                self.optimizer.step(samples=4)
                time.sleep(self.pause_s)
        except minga.MingaError as error:
            self.error = error

    @property
    def step(self) -> int:
        return 0 if self.optimizer is None else self.optimizer.global_step

    @property
    def kept(self) -> int:
        """The step of its newest checkpoint, 0 without one: a disk may be slower than steps."""
        return max(CheckpointStore(self.peer.directory / "checkpoints").steps(), default=0)

    @property
    def lineage(self) -> Lineage:
        return Lineage() if self.optimizer is None else self.optimizer._replica.lineage

    @property
    def weight(self) -> float:
        return float(self.model.weight.detach().mean())

    def end(self) -> None:
        """Leave with a goodbye."""
        self._stops.set()
        self.peer.close()
        self._thread.join(10.0)

    def vanish(self) -> None:
        """Go without one, as after a kill: the connections end, and nobody is told."""
        self.peer._thread.call(self.peer.session.node.close(), 5.0)
        self.end()


def options(folder: Path, name: str) -> minga.PeerOptions:
    return minga.PeerOptions(identity=folder / f"{name}.json", directory=folder / name, host="127.0.0.1")


def until(is_so: Callable[[], bool], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


@pytest.fixture
def _who_is_gone_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody answers for it: to dial it takes as long as that may take."""
    monkeypatch.setattr(network, "DIAL_TIMEOUT_S", 6.0)


def test_a_run_begins_with_the_organisers_weights_however_late_these_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A volunteer's program is ready long before the organiser's has loaded its model."""
    with caplog.at_level(logging.WARNING, "minga.training"):
        organiser = minga.host(SPEC, options(tmp_path, "host"))
        host = Trainer(organiser, FAR, loaded := threading.Event())
        other = Trainer(minga.join(organiser.link, options(tmp_path, "other")), NEAR)
        until(lambda: f"its organiser {organiser.peer_id[:10]} gives it" in caplog.text)
        loaded.set()
        until(lambda: host.step > 3 and other.step > 3)
    assert (host.weight, other.weight) == (FAR, FAR)
    other.end()
    host.end()


@pytest.mark.usefixtures("_who_is_gone_is_given_up_soon")
def test_who_is_told_of_a_state_and_cannot_get_it_waits_and_never_trains(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The host is gone while the other loads, and comes back with its checkpoint."""
    organiser = minga.host(SPEC, options(tmp_path, "host"))
    host = Trainer(organiser, FAR)
    joined = minga.join(organiser.link, options(tmp_path, "other"))
    until(lambda: host.kept >= 6)
    host.vanish()
    with caplog.at_level(logging.WARNING, "minga.training"):
        other = Trainer(joined, NEAR)
        until(lambda: "no peer that has the state of this run is here" in caplog.text)
        assert (other.step, other.weight, other.error) == (0, NEAR, None)
        host = Trainer(minga.host(None, options(tmp_path, "host"), resume=organiser.directory), FAR)
        until(lambda: other.step > 8)
    assert host.step >= 6, "its checkpoint is the run's"
    assert (host.weight, other.weight) == (FAR, FAR)
    other.end()
    host.end()


def folder_without_genesis(folder: Path) -> Path:
    """That of a host that was killed, and lost the file that says how the run was founded."""
    host = Trainer(minga.host(SPEC, options(folder, "host")), FAR)
    until(lambda: host.kept >= 2)
    host.vanish()
    (genesis,) = host.peer.directory.glob("genesis-*")
    genesis.unlink()
    return host.peer.directory


def test_a_host_whose_record_of_the_founding_is_lost_has_it_in_its_checkpoints(tmp_path: Path) -> None:
    """Else it would train alone, and keep newcomers waiting for a founding that was long ago."""
    kept = folder_without_genesis(tmp_path)
    for path in kept.glob("checkpoints/step-*/genesis.bin"):  # where a writer leaves it that is killed
        path.rename(path.with_name(f"~new-{blake3(path.read_bytes()).hexdigest()}-{path.name}"))
    host = Trainer(minga.host(None, options(tmp_path, "host"), resume=kept), NEAR)
    other = Trainer(minga.join(host.peer.link, options(tmp_path, "other")), NEAR)
    until(lambda: host.step > 6 and other.step > 6)
    assert (host.weight, other.weight) == (FAR, FAR)
    other.end()
    host.end()


def test_a_checkpoint_of_another_run_that_somebody_laid_there_hides_no_own_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Trainer(minga.host(SPEC, options(tmp_path, "host")), FAR)
    until(lambda: first.kept >= 4)
    first.end()
    second = Trainer(minga.host(SPEC, options(tmp_path, "second")), NEAR)
    own, foreign = (each.peer.directory / "checkpoints" for each in (first, second))
    until(lambda: second.kept > first.kept)
    second.end()
    newest = max(foreign.glob("step-*"))
    shutil.copytree(newest, own / newest.name)
    with caplog.at_level(logging.WARNING, "minga.training"):
        host = Trainer(minga.host(None, options(tmp_path, "host"), resume=first.peer.directory), NEAR)
        until(lambda: host.step >= first.step + 3)
    assert host.weight == FAR
    host.end()
    assert "is of another run, by the founding that it names; going on from step" in caplog.text
    assert "gave up" not in caplog.text


def test_a_host_and_a_newcomer_are_told_that_nobody_knows_how_the_run_was_founded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = folder_without_genesis(tmp_path)
    checkpoint = CheckpointStore(kept / "checkpoints").load()
    assert checkpoint is not None
    shutil.rmtree(kept / "checkpoints")
    CheckpointStore(kept / "checkpoints").save(checkpoint.snapshot)
    with caplog.at_level(logging.WARNING, "minga.training"):
        host = Trainer(minga.host(None, options(tmp_path, "host"), resume=kept), NEAR)
        other = Trainer(minga.join(host.peer.link, options(tmp_path, "other")), NEAR)
        until(lambda: caplog.text.count("no peer that is here has the record of how it was founded") == 2)
    assert (host.optimizer, other.optimizer) == (None, None), "neither trains"
    other.end()
    host.end()


def test_who_waits_for_a_founder_that_was_lost_is_told_of_whom_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It alone had the first state: no other peer may found the run again."""
    spec = {**SPEC, "training": {"target_batch_size": 1 << 16}, "state": {"founder": "first"}}
    watching = minga.PeerOptions("monitor", identity=tmp_path / "m.json", directory=tmp_path / "m", host="127.0.0.1")
    with minga.host(spec, watching) as monitor:
        founder = Trainer(minga.join(monitor.link, options(tmp_path, "first")), FAR)
        until(lambda: founder.optimizer is not None)
        name = founder.peer.peer_id[:10]
        founder.vanish()
        monkeypatch.setattr(catching_up, "LONGEST_WAIT_S", 2.0)
        with caplog.at_level(logging.WARNING, "minga.training"):
            other = Trainer(minga.join(monitor.link, options(tmp_path, "other")), NEAR)
            until(lambda: other.error is not None)
        assert f"{name} founded it, and has left" in caplog.text
        assert isinstance(other.error, minga.NoStateError)
        assert f"{name} founded it: if that does not come back with its folder, host a new run" in str(other.error)
        assert (other.step, other.weight) == (0, NEAR)
        other.end()


def test_a_complete_run_stays_complete(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A monitor alone is left of it: it says how far the run got, and nobody trains it again."""
    spec = {**SPEC, "training": {"target_batch_size": 8, "stop_after_steps": 4}}
    organiser = minga.host(spec, options(tmp_path, "host"))
    host = Trainer(organiser, FAR)
    watching = minga.PeerOptions("monitor", identity=tmp_path / "m.json", directory=tmp_path / "m", host="127.0.0.1")
    with minga.join(organiser.link, watching) as monitor:
        until(lambda: host.optimizer is not None and host.optimizer.finished)
        late = Trainer(minga.join(organiser.link, options(tmp_path, "late")), NEAR)
        until(lambda: late.optimizer is not None and late.optimizer.finished)
        assert (late.step, late.weight) == (4, FAR), "who comes while one of them is there gets the final state"
        late.end()
        host.end()
        with caplog.at_level(logging.WARNING, "minga.training"):
            last = Trainer(minga.join(monitor.link, options(tmp_path, "last")), NEAR)
            until(lambda: "it was at step 4" in caplog.text)
        assert (last.step, last.weight) == (0, NEAR)
        last.end()
    assert not list((tmp_path / "m").rglob("genesis-*")), "who only looks on leaves nothing behind"


def test_a_peer_that_is_through_does_not_hold_a_run_that_the_organiser_prolonged(tmp_path: Path) -> None:
    """Its program is still busy with the model after the loop, so it shows the state that was the last one."""
    spec = {**SPEC, "training": {"target_batch_size": 8, "stop_after_steps": 4}}
    organiser = minga.host(spec, options(tmp_path, "host"))
    host = Trainer(organiser, FAR)
    other = Trainer(minga.join(organiser.link, options(tmp_path, "other")), NEAR)
    until(lambda: all(each.optimizer is not None and each.optimizer.finished for each in (host, other)))
    desk = desk_in(organiser)
    desk.put_in_force(desk.amend({STOP: 8}, 0))
    host.end()
    again = minga.host(None, options(tmp_path, "host"), resume=organiser.directory)
    until(lambda: other.peer.peer_id in again.on_loop(lambda: again.session.board.payloads(Progress)))
    host = Trainer(again, NEAR)  # what it fetches is of one who votes no more
    until(lambda: host.optimizer is not None and host.optimizer.finished)
    assert (host.step, host.weight, other.step) == (8, FAR, 4)
    other.end()
    host.end()


@pytest.mark.usefixtures("_who_is_gone_is_given_up_soon")
def test_a_history_that_was_given_up_does_not_come_back_from_the_disk(tmp_path: Path) -> None:
    """The host went on alone to a later step than the one at which it finds the others, and is killed there."""
    spec = {**SPEC, "state": {"digest_every": 5}}
    organiser = minga.host(spec, options(tmp_path, "host"))
    host, link = Trainer(organiser, FAR), organiser.link
    other = Trainer(minga.join(link, options(tmp_path, "other")), NEAR)
    until(lambda: other.kept > 0)  # else it waits for others
    other.end()
    until(lambda: host.step >= 60)
    host.end()
    alone, newest = host.step, host.kept
    other = Trainer(minga.join(link, options(tmp_path, "other")), NEAR)
    third = Trainer(minga.join(other.peer.link, options(tmp_path, "third")), NEAR)
    until(lambda: other.lineage.standing(other.step, None).shared > host.lineage.standing(alone, None).shared)
    other.pause_s = third.pause_s = SLOW_S  # else they come to that later step, too, before the host is back
    host = Trainer(minga.host(None, options(tmp_path, "host"), resume=organiser.directory), NEAR)
    until(lambda: host.step > 0 and host.lineage.solo == other.lineage.solo)
    until(lambda: CheckpointStore(organiser.directory / "checkpoints").steps()[-1] <= host.step < alone)
    host.vanish()
    kept = CheckpointStore(organiser.directory / "checkpoints").load()
    assert kept is not None
    assert kept.snapshot.lineage.solo == other.lineage.solo
    (given_up,) = (organiser.directory / "checkpoints").glob("given-up-*")
    assert read_checkpoint(given_up).snapshot.step >= newest, "not lost either"
    for each in (other, third):
        each.end()
