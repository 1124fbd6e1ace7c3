"""What an organiser reads who begins a run of a name that another run of this machine has."""

from __future__ import annotations

from pathlib import Path

import pytest

from minga.cli.taking_part.host import _name_earlier_run
from minga.cli.terminal.output import Output
from minga.core.spec.run_spec import RunSpec
from minga.identity.keys.keys import Identity
from minga.identity.links.signed_spec import SignedRunSpec
from minga.keeping.rejoin import SPEC_FILE


@pytest.mark.parametrize("is_own", [True, False])
def test_only_a_run_that_this_machine_can_host_is_one_to_go_on_with(
    is_own: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of others a volunteer has a folder, too."""
    own, folder = Identity.load_or_create(tmp_path / "key.json"), tmp_path / "runs" / "ab"
    organiser = own if is_own else Identity.generate()
    folder.mkdir(parents=True)
    spec = RunSpec.from_mapping({"name": "a run"}).published({}).begin(organiser.peer_id)
    (folder / SPEC_FILE).write_bytes(SignedRunSpec.sign(spec, organiser).encode())
    _name_earlier_run("a run", tmp_path / "runs", tmp_path / "key.json", Output(json_output=False))
    assert ("To go on with the one of this name" in capsys.readouterr().out) == is_own
