"""A volunteer's own text in place of the run's: same tokenizer, same held-out text, other training documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from minga.core._atomic import write_atomically
from minga.core._errors import ConfigurationError, StorageError
from minga.core._run_spec import RunSpec
from minga.core._run_spec_sections import DataSection


def with_own_data(
    spec: RunSpec, files: Mapping[str, Path], patterns: Sequence[str], folder: Path
) -> tuple[RunSpec, dict[str, Path]]:
    """The run as this peer's recipe should see it, so that it trains on the .txt and .jsonl files of `patterns`.

    What is held out for everybody stays held out. The packed text is kept in `folder`. Raises `ConfigurationError` if
    the files hold no text to train on, or the run's recipe has no text at all; `StorageError` if the disk refuses.
    """
    from minga.recipes._corpus import (
        HELDOUT_FILE,
        TRAINING_FILE,
        local_documents,
        pack_documents,
        unpack_documents,
    )

    if spec.model.recipe != "albert":
        raise ConfigurationError(f"--data: the recipe {spec.model.recipe} does not train on text files")
    kept = {"vocabulary_size", "masked_fraction", "tokenizer", "heldout_fraction"}
    values = {name: getattr(spec.data, name) for name in kept}
    data = DataSection(source="files", files=tuple(patterns), text_column=spec.data.text_column, **values)
    held_out = set(unpack_documents(files[HELDOUT_FILE])) if HELDOUT_FILE in files else set()
    documents = [document for document in local_documents(data) if document not in held_out]
    if not documents:
        raise ConfigurationError(f"--data {' '.join(patterns)}: no text to train on besides what is held out")
    path = folder / TRAINING_FILE
    try:
        write_atomically(path, pack_documents(documents))
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}") from error
    return spec.model_copy(update={"data": data}), {**files, TRAINING_FILE: path}
