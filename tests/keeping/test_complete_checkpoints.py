"""What counts as a complete checkpoint, by its name."""

from __future__ import annotations

from pathlib import Path

from minga.keeping.complete_checkpoints import complete_checkpoints, folder_name


def test_complete_checkpoints_are_listed_oldest_first_and_a_folder_that_is_not_there_has_none(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    assert complete_checkpoints(folder) == []
    later, earlier = (folder / folder_name(step, "ab" * 32) for step in (1_000_000_000, 7))
    for path in (later, earlier, folder / "step-000000008-partly"):
        path.mkdir(parents=True)
    assert complete_checkpoints(folder) == [(7, earlier), (1_000_000_000, later)]
