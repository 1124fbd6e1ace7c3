"""`minga evaluate` knows from an exported model which tasks it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from minga.cli.keeping.models import NAMES
from minga.cli.terminal import exit_codes
from minga.core.spec.run_spec import RunSpec
from minga.identity.keys.keys import Identity
from minga.identity.links.links import EntryPoint, Link
from minga.identity.links.signed_spec import SignedRunSpec
from minga.keeping.rejoin import SPEC_FILE
from minga.recipes import RECIPES
from minga.recipes.exported import MAX_BYTES, PROVENANCE_FILE, Provenance
from tests.worlds.cli_run import run


def said_by(recipe: str, folder: Path) -> str:
    """A folder that says that it is a model of a recipe, and has nothing else."""
    folder.mkdir(exist_ok=True)
    Provenance(recipe, {}).write(folder)
    return str(folder)


def test_the_help_names_the_tasks_of_all_recipes() -> None:
    tasks = {task for name in RECIPES.names() for task in RECIPES.get(name).tasks}
    assert tasks == set(NAMES)
    shown = run("evaluate", "--help").stdout
    assert all(task in shown for task in tasks)


@pytest.mark.parametrize(
    ("recipe", "task", "words"),
    [
        ("swav", "ner", "of the recipe swav, for which there are no tasks"),
        ("albert", "knn", "--task knn: a model of the recipe albert has ner and ncc"),
        ("causal-lm", "knn", "--task knn: a model of the recipe causal-lm has ner and ncc"),
        ("text-to-image", "ner", "of the recipe text-to-image, for which there are no tasks"),
        ("no-such", "ner", "no-such"),
    ],
)
def test_a_task_that_a_model_does_not_have_is_refused(recipe: str, task: str, words: str, tmp_path: Path) -> None:
    done = run("evaluate", said_by(recipe, tmp_path / "model"), "--task", task)
    assert done.returncode != 0
    assert words in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("albert", "no folder named checkpoints in it"),
        (
            "albert --task ner",
            "which is measured on its held-out data without them; they are for a model, so type minga export",
        ),
        ("text-to-image", "no folder named checkpoints in it"),
        ("custom", "the program that trains it has to evaluate it"),
    ],
)
def test_the_folder_of_a_run_says_what_to_type(recipe: str, words: str, tmp_path: Path) -> None:
    recipe, *options = recipe.split()
    identity = Identity.from_seed(bytes(32))
    spec = RunSpec.from_mapping({"name": "a run", "model": {"recipe": recipe}}).published({}).begin(identity.peer_id)
    (tmp_path / SPEC_FILE).write_bytes(SignedRunSpec.sign(spec, identity).encode())
    done = run("evaluate", str(tmp_path), *options)
    assert done.returncode != 0
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_link_is_no_name_of_a_model_and_it_is_said_what_to_type() -> None:
    entries = tuple(EntryPoint(f"{number}d" * 32) for number in range(8))  # longer than a file's name may be
    done = run("evaluate", f"https://volunteers.example/#{Link('ab' * 32, 'cd' * 32, entries)}")
    assert done.returncode == exit_codes.USAGE
    assert "no model yet; type minga export LINK --out MODEL" in done.stderr


def test_a_model_without_tasks_says_what_to_type(tmp_path: Path) -> None:
    said = " ".join(run("evaluate", said_by("text-to-image", tmp_path / "model")).stderr.split())
    assert "no tasks; it is judged by its heldout_image_loss: minga evaluate FOLDER shows it" in said


def test_a_damaged_origin_is_refused_and_a_folder_without_one_is_a_language_model(tmp_path: Path) -> None:
    assert "no model that transformers can load" in run("evaluate", str(tmp_path), "--data", _classes(tmp_path)).stderr
    for body in ("[]", "{", "x" * (MAX_BYTES + 1)):
        (tmp_path / PROVENANCE_FILE).write_text(body)
        done = run("evaluate", str(tmp_path))
        assert done.returncode != 0
        assert PROVENANCE_FILE in done.stderr
        assert "Traceback" not in done.stderr


def _classes(folder: Path) -> str:
    path = folder / "sentences.txt"
    path.write_text("\n\n".join(f"word{number}\tB-person\nhere\tO" for number in range(300)))
    return str(path)
