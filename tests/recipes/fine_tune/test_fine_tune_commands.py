"""The commands about a run of adapters: what its model says and is worth beside its base, and what it is written as."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import minga
from minga.cli.taking_part.first_screen import require_recipe
from minga.cli.taking_part.join import check_base
from minga.core.errors import ConfigurationError
from minga.recipes.registry import load_recipe
from minga.recipes.running.run import RecipeRun, Work
from minga.training.transfer.run_files import describe_file
from tests.recipes.fine_tune.conftest import RunOf
from tests.worlds.cli_run import run

pytest.importorskip("peft", reason="peft makes the adapters")


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # of peft
def test_commands_show_the_tuned_model_beside_its_base(base: Path, run_of: RunOf) -> None:
    spec, files = run_of(training={"target_batch_size": 8, "stop_after_steps": 8})
    options = minga.PeerOptions(ephemeral=True, directory=base.parent / "peer", host="127.0.0.1")
    with minga.host(spec, options, files=files) as peer:
        training = RecipeRun(peer, Work(device="cpu", micro_batch=8, base_bits=16))
        training.train(lambda _: False, lambda *_: None)
        training.optimizer.save_checkpoint()
        folder = str(peer.directory)
    figures = json.loads(run("evaluate", folder, "--json").stdout.splitlines()[-1])
    assert figures["heldout_loss"] < figures["heldout_loss_of_base"]
    refused = run("evaluate", folder, "--task", "ner", "--repeat", "7")
    assert "the recipe fine-tune has no tasks" in " ".join(refused.stderr.split())
    said = run("sample", folder, "where is the cow number 3", "--temperature", "0", "--length", "6").stdout
    assert "  base:  " in said
    assert "  tuned: " in said
    adapters, whole = base.parent / "adapters", base.parent / "whole"
    for out, more in ((adapters, ()), (whole, ("--merge",))):
        done = run("export", folder, "--out", str(out), *more)
        assert done.returncode == 0, done.stderr
    assert (adapters / "adapter_model.safetensors").is_file()
    assert (whole / "model.safetensors").is_file()


def test_a_folder_without_the_base_is_told_before_anything_comes(
    base: Path, run_of: RunOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, files = run_of()
    spec = spec.published({name: describe_file(path) for name, path in files.items()})
    check_base(base, spec)
    with pytest.raises(ConfigurationError, match=r"no model\.safetensors of .* bytes in it"):
        check_base(base / "elsewhere", spec)

    def refuse(path: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ConfigurationError, match=r"model\.safetensors cannot be read \(Permission denied\)"):
        check_base(base, spec)


def test_what_to_install_is_said_where_peft_is_missing(run_of: RunOf, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, _ = run_of()
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigurationError, match="pip install peft"):
        require_recipe(spec)  # before anything is downloaded
    with pytest.raises(ConfigurationError, match="pip install peft"):
        load_recipe(spec).prepare()
