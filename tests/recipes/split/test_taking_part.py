"""A client of a split run: what it keeps on a machine with other clients, and what it holds out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from minga.core.errors import ConfigurationError, StorageError
from minga.core.spec.run_spec import RunSpec
from minga.recipes.split import taking_part
from minga.recipes.split.taking_part import ClientRun, ServerRun, split_recipe
from minga.split.computing.applying import BrokenPartError
from minga.split.computing.parts import ModelPart
from minga.split.examples.samples import LabelledSamples

TABLE = {"data": "table", "features": 3, "classes": 2, "bottom": [8], "top": [4]}
MAPPING: dict[str, Any] = {
    "name": "x",
    "model": {"recipe": "split"},
    "split": {"variant": "u-shaped"},
    "recipe": {"split": TABLE},
    "optimizer": {"name": "adamw", "schedule": "constant", "warmup_steps": 0},
}
SPEC = RunSpec.from_mapping(MAPPING)


class Alone:
    """A client that has its parts and no server."""

    def __init__(self, peer: Any, bottom: torch.nn.Module, head: torch.nn.Module, *, resume: Path, **_: object) -> None:
        self.peer, self.finished = peer, False
        self.part = ModelPart([bottom, head], None, peer.spec.optimizer)
        self.part.load(resume)
        self.steps, self.save = self.part.steps, self.part.save

    def watch(self, *_: object) -> None:
        """Nobody to look at."""

    def close(self) -> None:
        """Nobody to hand over to."""

    def train(self, *_: object) -> float:
        """Nothing is computed."""
        return 0.5


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking_part, "Client", Alone)


def table(path: Path, rows: Sequence[int]) -> str:
    path.write_text("".join(f"{row},{row * row % 7},{-row},{row % 2}\n" for row in rows))
    return str(path)


def client(peer_id: str, folder: Path, data: str) -> ClientRun:
    peer: Any = SimpleNamespace(spec=SPEC, files={}, peer_id=peer_id, directory=folder)
    return ClientRun(peer, data=[data])


def part_of(run: ClientRun) -> ModelPart:
    assert isinstance(run.client, Alone)
    return run.client.part


def first_values(samples: LabelledSamples | None) -> set[float]:
    assert samples is not None
    return set(samples.inputs[:, 0].tolist())


def test_two_clients_of_one_machine_keep_parts_and_samples_of_their_own(tmp_path: Path) -> None:
    ids, tables = ("a1" * 32, "b2" * 32), [table(tmp_path / f"{n}.csv", range(n, n + 40)) for n in (0, 500)]

    def both() -> list[ClientRun]:
        return [client(peer_id, tmp_path, data) for peer_id, data in zip(ids, tables, strict=True)]

    for number, each in enumerate(both()):
        assert not each.resumes
        part = part_of(each)
        with torch.no_grad():
            for parameter in part.parameters:
                parameter.fill_(1.0 + number)
        part.steps = 5
        each.close()
    for number, each in enumerate(both()):
        assert each.resumes
        values = {one for every in part_of(each).parameters for one in every.flatten().tolist()}
        assert values == {1.0 + number}
        known = first_values(each.samples) | first_values(each.held_out)
        assert known == set(map(float, range(500 * number, 500 * number + 40)))
    again = client(ids[0], tmp_path, tables[0])
    assert again.samples.inputs.max() < 500


def test_parts_that_came_from_peers_are_none_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class CaughtUp(Alone):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            self.steps = 5

    monkeypatch.setattr(taking_part, "Client", CaughtUp)
    assert not client("a1" * 32, tmp_path, table(tmp_path / "data.csv", range(40))).resumes


@pytest.mark.parametrize("more", [[1000], [-1], [-5, 2000, 2001], range(1000, 1400)])
def test_no_sample_that_was_trained_on_is_held_out_once_there_are_more(more: Sequence[int], tmp_path: Path) -> None:
    before = client("a1" * 32, tmp_path, table(tmp_path / "before.csv", range(1000)))
    now = client("a1" * 32, tmp_path, table(tmp_path / "now.csv", sorted([*range(1000), *more])))
    assert not first_values(before.samples) & first_values(now.held_out)
    assert 0.06 <= len(first_values(now.held_out)) / (1000 + len(more)) <= 0.14
    assert not first_values(now.samples) & first_values(now.held_out)


@pytest.mark.parametrize(("rows", "held"), [(1, False), (4, False), (6, True), (12, True)])
def test_of_few_samples_one_at_least_is_held_out_and_some_are_not(rows: int, held: bool, tmp_path: Path) -> None:
    found = client("a1" * 32, tmp_path, table(tmp_path / "few.csv", range(rows)))
    assert len(found.samples.labels) >= 1
    if held:
        assert first_values(found.held_out)


def test_equal_samples_are_on_one_side(tmp_path: Path) -> None:
    found = client("a1" * 32, tmp_path, table(tmp_path / "twice.csv", [*range(100), *range(100)]))
    assert not first_values(found.samples) & first_values(found.held_out)
    alike = client("a1" * 32, tmp_path, table(tmp_path / "alike.csv", [5] * 30))
    assert (len(alike.samples.labels), alike.held_out) == (30, None)


def test_a_disk_that_refuses_parts_for_now_ends_neither_client_nor_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(taking_part, "SAVE_S", 0.0)
    run = client("a1" * 32, tmp_path, table(tmp_path / "data.csv", range(40)))
    run.folder = tmp_path / "data.csv"  # nothing can be put into a file
    samples = list[int]()
    run.train(lambda: run.batches >= 3, samples.append)
    assert (run.batches, len(samples)) == (3, 3)
    server = ServerRun.__new__(ServerRun)
    server.top, server.folder, server._saved_s = torch.nn.Linear(1, 1), run.folder, 0.0
    kept: Any = SimpleNamespace(save=part_of(run).save, close=lambda: None, broken=None)
    server.server = kept
    server.save_if_due()
    assert len(caplog.records) == 4
    for last in (run.close, server.close):
        with pytest.raises(StorageError):
            last()
    kept.broken = BrokenPartError("half a step")
    server.close()  # and the last good part stays


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"optimizer": {"warmup_steps": 0}}, 'schedule = "linear"'),
        ({"optimizer": {"schedule": "constant", "warmup_steps": 9}}, "warmup_steps = 9"),
        ({"model": {"recipe": "split", "init_from": "there"}}, "model.init_from"),
        ({"training": {"stop_after_steps": 10}}, "--leave-after-steps"),
    ],
)
def test_settings_that_no_part_would_heed_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        split_recipe(RunSpec.from_mapping({**MAPPING, **change}))
    split_recipe(
        RunSpec.from_mapping({**MAPPING, "split": {"variant": "splitfed-1"}, "training": {"stop_after_steps": 10}})
    )
