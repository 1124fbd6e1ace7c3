"""Places elsewhere that archived checkpoints are copied to: a folder, a bucket, or the Hugging Face hub.

A copy is complete once its record is there, which is therefore written last. A copy that was interrupted is made again,
over what is there of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from minga.core.errors import ConfigurationError
from minga.training.archive.record import RECORD_FILE

HUB = "hf://"


class UploadError(Exception):
    """A copy failed; it may work later. The text says why."""


class Target(ABC):
    """Where copies go. All methods block, and raise `UploadError` where the other side or the way there fails."""

    @abstractmethod
    def upload(self, folder: Path) -> None:
        """Copy a checkpoint's folder there, under its own name, the record last."""


def target_of(url: str) -> Target:
    """The place that `upload_to` names.

    That is a local folder; `hf://OWNER/NAME`, a model repository of the hub; or a URL of fsspec, such as
    `s3://BUCKET/FOLDER`. Raises `ConfigurationError` for an unknown kind, or if the package for it is missing.
    """
    if url.startswith(HUB):
        return _Hub(url.removeprefix(HUB))
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        if "://" not in url:
            raise ConfigurationError(f"checkpoints.upload_to = {url!r}: install fsspec to copy checkpoints") from error
        raise ConfigurationError(f"checkpoints.upload_to = {url!r}: install fsspec for such addresses") from error
    try:
        system, path = url_to_fs(str(Path(url).expanduser()) if "://" not in url else url)
    except (ImportError, ValueError, OSError) as error:
        raise ConfigurationError(f"checkpoints.upload_to = {url!r}: {error}") from error
    return _Folder(system, str(path))


class _Folder(Target):
    """Any file system that fsspec knows."""

    def __init__(self, system: Any, path: str) -> None:
        self._system, self._path = system, path.rstrip("/")

    def upload(self, folder: Path) -> None:
        there = f"{self._path}/{folder.name}"
        try:
            self._system.makedirs(there, exist_ok=True)
            for path in sorted(folder.iterdir(), key=lambda path: path.name == RECORD_FILE):
                self._system.put_file(str(path), f"{there}/{path.name}")
        except Exception as error:  # each file system has errors of its own
            raise UploadError(f"{type(error).__name__}: {error}") from error


class _Hub(Target):
    """A model repository; each checkpoint is one commit, which is there whole or not at all."""

    def __init__(self, repository: str) -> None:
        if repository.count("/") != 1 or not all(repository.split("/")):
            raise ConfigurationError(f"checkpoints.upload_to = {HUB + repository!r}: write {HUB}OWNER/NAME")
        try:
            from huggingface_hub import HfApi
        except ImportError as error:
            raise ConfigurationError("checkpoints.upload_to: install huggingface_hub to copy to the hub") from error
        self._repository, self._hub = repository, HfApi()

    def upload(self, folder: Path) -> None:
        try:
            self._hub.create_repo(self._repository, exist_ok=True, private=True)
            self._hub.upload_folder(
                repo_id=self._repository,
                folder_path=folder,
                path_in_repo=folder.name,
                commit_message=f"minga checkpoint {folder.name}",
            )
        except Exception as error:  # of the network, the hub's answer, or the token
            raise UploadError(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}") from error
