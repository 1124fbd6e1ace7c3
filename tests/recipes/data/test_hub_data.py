"""What a run spec calls a data set of the hub is one of the hub, also where a folder has the same name."""

from __future__ import annotations

from pathlib import Path

import pytest

from minga.core.errors import ConfigurationError
from minga.recipes.data.hub import open_hub
from minga.recipes.swav.pictures import encoded_pictures
from minga.recipes.swav.settings import ImageData


@pytest.mark.parametrize("name", ["Documents", "private/texts", "text", "json", "imagefolder"])
def test_a_name_of_the_hub_never_leads_to_files_of_this_machine(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("Documents", "private/texts"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "diary.txt").write_text("Nobody shall train on this.")
    (tmp_path / "notes.txt").write_text("Nor on this.")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"folder or file of this name|loader of files on this machine"):
        open_hub(name)
    with pytest.raises(ConfigurationError, match=r"folder or file of this name|loader of files on this machine"):
        next(encoded_pictures(ImageData(source="hub", name=name)))
