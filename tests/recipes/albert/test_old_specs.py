"""Run specs of version 2 train what they trained: same id, files, parameters, first batches, losses, evaluation."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from blake3 import blake3

from minga.core.spec.run_spec import RunSpec
from minga.recipes import load_recipe, new_model
from minga.recipes.interface import StreamPosition
from tests.worlds.recipe_text import ALICE, GENESIS, write_files

PATH = "texts/genesis.txt"
"""In the spec, since the path of a text is part of a spec of version 2 until it is published."""

SPECS: dict[str, dict[str, Any]] = {
    "small": {
        "model": {
            "size": "tiny",
            "max_length": 48,
            "overrides": {"hidden_size": 32, "intermediate_size": 64, "embedding_size": 16},
        },
        "data": {"heldout_fraction": 0.1, "vocabulary_size": 300},
        "training": {"seed": 3},
    },
    "masks": {
        "model": {"size": "tiny", "max_length": 32},
        "data": {"heldout_fraction": 0.2, "vocabulary_size": 300, "masked_fraction": 0.4},
        "training": {"seed": 5},
    },
    "grouped": {
        "model": {
            "size": "small",
            "max_length": 64,
            "overrides": {
                "num_hidden_layers": 2,
                "hidden_size": 64,
                "num_attention_heads": 4,
                "intermediate_size": 96,
                "num_hidden_groups": 2,
                "classifier_dropout_prob": 0,
            },
        },
        "data": {"heldout_fraction": 0.1, "vocabulary_size": 400},
        "training": {"seed": 7},
    },
}
# Of the minga in which ALBERT was the only recipe: run id, files, parameters and three batches as BLAKE3, three losses
# and the held-out loss. The tokenizer is given, since training one twice need not give the same bytes.
PINS: dict[str, tuple[str, str, str, str, list[float], float]] = {
    "small": (
        "ecd14ef2e6014430703cb59fd57dfb66",
        "3885974418887e9eba321f21e0ca3f11",
        "a24870f6622d6b4973128219683528fb",
        "3c94e8a7abe125992618e36942a380da",
        [6.416290760040283, 6.380298614501953, 6.400347709655762],
        5.698991057160613,
    ),
    "masks": (
        "1dfea117162f635bba4e1df3c9b267fd",
        "01ddfe7ca073e73284b32ff9282077c7",
        "aa3fb22cf7f2b230acb72688b866c7eb",
        "a4559e7c11ab61e4bd7034b42c43efb6",
        [6.466818332672119, 6.308126926422119, 6.466566562652588],
        5.7126341925726996,
    ),
    "grouped": (
        "866a964b027ac9f1fbe61b8d47c70289",
        "3885974418887e9eba321f21e0ca3f11",
        "691a02fe66ab64f97fa6bd27ae828b73",
        "b4367c893d187004e561bc52cfa9b5ea",
        [6.664906978607178, 6.658682823181152, 6.692673206329346],
        6.0265181193980135,
    ),
}


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    found = blake3()
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(tensors[name].detach().contiguous().numpy().tobytes())
    return found.hexdigest()[:32]


@pytest.mark.parametrize("name", SPECS)
def test_old_specs_train_what_they_trained(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    Path(PATH).write_bytes(GENESIS.read_bytes())
    data = {"source": "files", "files": [PATH], **SPECS[name]["data"]}
    spec = RunSpec.from_mapping({"name": name, "spec_version": 2, **SPECS[name], "data": data})
    run_id, files_digest, parameters, first_batches, losses, heldout = PINS[name]
    assert spec.published().run_id[:32] == run_id
    recipe = load_recipe(spec)
    contents = {**recipe.prepare(), "tokenizer.json": (GENESIS.parent / "genesis_tokenizer.json").read_bytes()}
    assert blake3(b"".join(contents[each] for each in sorted(contents))).hexdigest()[:32] == files_digest
    files = write_files(tmp_path, contents)
    model = new_model(recipe)
    assert digest(model.state_dict()) == parameters
    batches = list(itertools.islice(recipe.batches(files, StreamPosition(ALICE), 4), 3))
    assert blake3("".join(map(digest, batches)).encode()).hexdigest()[:32] == first_batches
    # Sums of floats depend on the processor, if little; here they were equal to the last bit.
    assert [recipe.total_loss(model, batch).item() for batch in batches] == pytest.approx(losses, abs=1e-5)
    assert recipe.evaluate(model, files)["heldout_mlm_loss"] == pytest.approx(heldout, abs=1e-5)
