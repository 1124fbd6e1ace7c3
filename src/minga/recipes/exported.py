"""The folder of an exported model: there whole or not at all, with a README, and with a `minga.json` that says where
the model is from: its recipe, and which state it is.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from minga.core.decoding import DECODING_ERRORS, decode_json
from minga.core.errors import ConfigurationError, StorageError, reason_of
from minga.core.spec.fields import Section, without_private
from minga.training.lineage import Lineage

if TYPE_CHECKING:
    from torch import Tensor

PROVENANCE_FILE: Final = "minga.json"
MAX_BYTES: Final = 64 << 10


class Provenance(msgspec.Struct, frozen=True):
    """The recipe of a model, the settings with which its run was published, and which state of the run it is: that
    after `step` steps, which descends from this `founding` by these `rounds` (`minga.training.lineage`). Both are ""
    for a model that is of no run.
    """

    recipe: str
    settings: dict[str, Any]
    run_id: str = ""
    step: int = 0
    founding: str = ""
    rounds: str = ""

    @classmethod
    def of(cls, recipe: str, settings: Section, run_id: str, step: int, lineage: Lineage) -> Provenance:
        """Without what names things of this machine."""
        shown = without_private(settings).model_dump(mode="json")
        return cls(recipe, shown, run_id, step, lineage.founding, lineage.rounds)

    @property
    def place(self) -> str:
        """Which state it is, in words for a model card."""
        history = f" (founding `{self.founding}`, rounds `{self.rounds}`)" if self.founding else ""
        return f"after {self.step} global steps of run `{self.run_id}`{history}"

    def write(self, folder: Path) -> None:
        """Write `minga.json` into `folder`."""
        (folder / PROVENANCE_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")


def read_provenance(folder: Path) -> Provenance | None:
    """What `minga.json` in `folder` says, None if it is not there. Raises `ConfigurationError` if it is damaged."""
    path = folder / PROVENANCE_FILE
    try:
        with path.open("rb") as file:
            body = file.read(MAX_BYTES + 1)
        if len(body) > MAX_BYTES:
            raise ConfigurationError(f"{path}: larger than {MAX_BYTES >> 10} KiB")
        return decode_json(body, Provenance)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {reason_of(error)}") from error
    except DECODING_ERRORS as error:
        raise ConfigurationError(f"{path}: not what an export writes: {str(error)[:200]}") from error


# ---- Writing an export.


@dataclass(frozen=True)
class Exported:
    """The `folder` of a model that is being exported. Whoever writes to it ends with `card`."""

    folder: Path
    provenance: Provenance

    @classmethod
    @contextmanager
    def to(cls, directory: Path, provenance: Provenance) -> Iterator[Exported]:
        """A folder beside `directory` to write to, which takes its name at the end; nothing is left if the block
        raises. It says in `minga.json` where the model is from.

        Raises `ConfigurationError` if `directory` has content, `StorageError` if the disk refuses.
        """
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ConfigurationError(f"{directory}: already there and not empty; choose another directory")
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            unfinished = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
        except OSError as error:
            raise StorageError(f"{directory}: cannot be created: {reason_of(error)}") from error
        try:
            yield cls(unfinished, provenance)
            provenance.write(unfinished)
            if directory.exists():
                directory.rmdir()
            for path in (unfinished, *unfinished.rglob("*")):  # some libraries write files for their owner alone
                path.chmod(0o755 if path.is_dir() else 0o644)
            unfinished.rename(directory)
        except OSError as error:
            raise StorageError(f"{directory}: cannot be written: {reason_of(error)}") from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Write parameters as a safetensors file."""
        from safetensors.torch import save_file

        own = {key: each.detach().cpu().contiguous() for key, each in tensors.items()}
        save_file(own, self.folder / name, metadata={"format": "pt"})

    def card(
        self,
        title: str,
        about: str,
        facts: Mapping[str, object],
        code: str,
        *,
        tags: Sequence[str] = (),
        library: str = "",
        notes: str = "",
    ) -> None:
        """Write the README: what it is `about`, a table of `facts`, `notes`, and the `code` that loads the model."""
        shown = title.replace("\\", "\\\\").replace("`", "\\`")
        values = {name: f"{value:.4f}" if isinstance(value, float) else value for name, value in facts.items()}
        rows = [f"| {name} | {value} |" for name, value in values.items()]
        head = [*([f"library_name: {library}"] if library else []), f"tags: [{', '.join([*tags, 'minga'])}]"]
        parts = [
            "\n".join(["---", *head, "---"]),
            f"# {shown}",
            f"{about} These are the parameters {self.provenance.place}.",
            *(["\n".join(["| | |", "| --- | --- |", *rows])] if rows else []),
            *([notes] if notes else []),
            f"```python\n{code}\n```\n",
        ]
        (self.folder / "README.md").write_text("\n\n".join(parts), encoding="utf-8")
