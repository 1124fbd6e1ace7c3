"""The conformance suite on several architectures, at two layers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from minga.recipes import new_model
from minga.security.randomness.public_batch import PublicBatch
from minga.testing import RECIPE_CHECKS
from minga.testing.recipe_suite import check_equal_models, check_public_batches, digest
from tests.worlds import forked
from tests.worlds.language_models import CASES, case, prepared
from tests.worlds.seeds import soaked

PUBLIC = PublicBatch(b"7" * 32, 4)
IN_ANOTHER_PROCESS = (check_equal_models, check_public_batches)
"""These start a process of their own, which `test_another_process_gets_the_same` does once for all architectures."""
ALIKE = ("gpt2", "qwen3", "bert", "modernbert")
"""They differ from "llama" and "roberta" by what the library makes of them; `causal_lm` tests "gpt2" in all else, and
"bert" learns from pairs as ALBERT does, on which the suite is tried.
"""


TOLD_APART = [name for name in CASES if name not in ALIKE]


@pytest.mark.parametrize("architecture", [soaked(name) if name in ALIKE else name for name in CASES])
def test_architectures_conform(architecture: str, tmp_path: Path) -> None:
    for check in (check for check in RECIPE_CHECKS if check not in IN_ANOTHER_PROCESS):
        check(case(architecture), tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("check", IN_ANOTHER_PROCESS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("architecture", CASES)
def test_architectures_conform_in_other_processes(architecture: str, check: object, tmp_path: Path) -> None:
    check(case(architecture), tmp_path)  # type: ignore[operator]


def digests(folder: Path) -> list[str]:
    """Of each architecture's model and of one of its public batches, by the files in `folder`."""
    found = []
    for architecture in TOLD_APART:
        recipe = case(architecture).recipe()
        files = {path.name: path for path in (folder / architecture).iterdir()}
        found += [digest(new_model(recipe).state_dict()), digest(recipe.public_batch(files, PUBLIC))]
    return found


def test_another_process_gets_the_same(tmp_path: Path) -> None:
    for architecture in TOLD_APART:
        prepared(case(architecture).recipe(), tmp_path / architecture)
    lines = [
        "import json, sys; sys.path[:] = json.loads(sys.argv[1])",
        "import torch; torch.manual_seed(99); torch.set_num_threads(2)",
        "from pathlib import Path",
        "from tests.recipes.language.test_language_conformance import digests",
        "print(json.dumps(digests(Path(sys.argv[2]))))",
    ]
    told = json.dumps([str(Path.cwd()), *sys.path])
    ran = forked.run_otherwise("-c", "\n".join(lines), told, str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.strip().splitlines()[-1]) == digests(tmp_path)
