"""A framework's way into a run, and the runs that it stays out of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import minga
from minga.access.standing_orders import STOP
from minga.integrations.place import RunPlace, enter
from tests.worlds.organiser_desk import desk_in

SPEC: dict[str, Any] = {"name": "test", "model": {"recipe": "custom"}, "network": {"relay": "none"}}


def options(folder: Path, **more: Any) -> minga.PeerOptions:
    return minga.PeerOptions(ephemeral=True, directory=folder, host="127.0.0.1", **more)


def test_a_peer_of_the_program_stays_when_the_place_is_left(tmp_path: Path) -> None:
    spec = {**SPEC, "training": {"stop_after_steps": 7}}
    with minga.host(spec, options(tmp_path / "host")) as peer:
        place = enter(peer)
        assert (place.peer, place.owned, place.schedule_steps) == (peer, False, 7)
        place.leave()
        joined = enter(peer.link, options(tmp_path / "guest"))
        assert joined.owned
        assert joined.peer is not None
        joined.leave()
        with pytest.raises(minga.ClosedError):
            joined.peer.status()
        with pytest.raises(minga.ConfigurationError, match=r"'auxiliary' computes no gradients"):
            enter(peer.link, options(tmp_path / "third", role="auxiliary"))
        assert peer.status().step == 0


def test_a_schedule_over_a_run_without_an_end_is_told(caplog: pytest.LogCaptureFixture) -> None:
    spec = minga.RunSpec.from_mapping({**SPEC, "optimizer": {"total_steps": 500, "warmup_steps": 0}})
    assert RunPlace(None, spec, owned=False).schedule_steps == 500
    assert "goes over optimizer.total_steps = 500 steps" in caplog.text


@pytest.mark.parametrize(
    ("norm", "own", "told"), [(1.0, 1.0, False), (1.0, 0.5, True), (1.0, None, True), ("off", 0.0, False)]
)
def test_a_script_that_clips_otherwise_than_the_run_is_told_so(
    norm: float | str, own: float | None, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It was said at a level that nobody sees, or not at all."""
    spec = minga.RunSpec.from_mapping({**SPEC, "optimizer": {"max_grad_norm": norm}})
    RunPlace(None, spec, owned=False).tell_of_clipping(own)
    assert ("the run clips gradients to 1.0" in caplog.text) == told


def test_a_script_that_clips_values_is_told_so_also_with_the_number_of_the_norm(
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = RunPlace(None, minga.RunSpec.from_mapping({**SPEC, "optimizer": {"max_grad_norm": 1.0}}), owned=False)
    place.tell_of_clipping(1.0, by_value=True)
    assert "the run clips gradients to 1.0" in caplog.text
    assert "this script clips each value to 1.0, which is left out" in caplog.text


def test_the_last_step_of_a_run_is_the_amended_one(tmp_path: Path) -> None:
    """A framework that ended was told of the end that the run had at first."""
    spec = {**SPEC, "training": {"stop_after_steps": 7, "target_batch_size": 1}}
    model = torch.nn.Linear(2, 1)
    with minga.host(
        spec, minga.PeerOptions(identity=tmp_path / "key.json", directory=tmp_path, host="127.0.0.1")
    ) as peer:
        place = enter(peer)
        assert place.last_step == 7
        optimizer = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), peer, model=model)
        desk = desk_in(peer)
        assert desk.put_in_force(desk.amend({STOP: 9}, 0))[1]
        while optimizer.global_step < 2:
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step(samples=1)
            optimizer.zero_grad()
        assert place.last_step == 9
    assert RunPlace(None, place.spec, owned=False).last_step is None


def test_what_has_no_place_is_told_why(tmp_path: Path) -> None:
    with pytest.raises(minga.LinkError, match=r"the first process needs a link"):
        enter(None)
    with pytest.raises(minga.ConfigurationError, match=r"init_process_group"):
        enter(None, is_first=False)
    secure = {**SPEC, "security": {"verification": "byzantine"}, "training": {"buffers": "local"}}
    with (
        minga.host(secure, options(tmp_path)) as peer,
        pytest.raises(minga.ConfigurationError, match=r"the run chooses the data .*Optimizer\.batches"),
    ):
        enter(peer)
