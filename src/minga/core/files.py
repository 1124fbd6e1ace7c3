"""Files that are there whole or not at all, whenever the program is killed; what is kept in small ones; texts as people
save them; and TOML.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import glob
import logging
import os
import shutil
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from minga.core.decoding import DECODING_ERRORS, decode_json, decode_msgpack
from minga.core.errors import ConfigurationError, StorageError, reason_of

T = TypeVar("T")

logger = logging.getLogger("minga")

NOT_TEXT = "not a text in UTF-8: save it as UTF-8, in PowerShell with `Set-Content -Encoding utf8`"
"""What is said of a file that is none."""

Content: TypeAlias = "bytes | Path"
"""What a file holds: its bytes, or a file with the same content, for what is too large to lie in memory."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write to the path that this gives, which takes the place of `path` afterwards, durably.

    Until then, and if the block raises, the old file stays. Raises `OSError` if the disk refuses; nothing is left
    behind then.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        yield partial
        with partial.open("r+b") as file:
            os.fsync(file.fileno())
        partial.replace(path)
        flush_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def flush_tree(folder: Path) -> None:
    """Make all that lies in and below a folder durable, its names included. Raises `OSError`."""
    for path in [*folder.rglob("*"), folder]:
        if path.is_dir():
            flush_folder(path)
        else:
            with path.open("r+b") as file:
                os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Make the names in a folder durable; Windows does that by itself and cannot open folders. Raises `OSError`."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno in (errno.EIO, errno.ENOSPC, errno.EDQUOT):  # else it is a disk that cannot do it
                raise
        finally:
            os.close(descriptor)


def unfinished_of(path: Path) -> list[Path]:
    """What `replacing` left beside `path` where its process was killed, and what another one writes at this moment."""
    return sorted(path.parent.glob(f"{glob.escape(path.name)}.*-*.part"))


def in_pieces(data: bytes, piece_bytes: int = 64 << 10) -> Iterator[bytes]:
    """The same in pieces, for a server that waits for clients that read slowly, and holds one piece for each."""
    for start in range(0, len(data), piece_bytes):
        yield data[start : start + piece_bytes]


def write_atomically(path: Path, content: Content) -> None:
    """Write `content` to `path`; see `replacing`."""
    with replacing(path) as partial:
        write(partial, content)


def store(path: Path, content: Content) -> Path:
    """Like `write_atomically`; returns the path. Raises `StorageError` if the disk refuses."""
    try:
        write_atomically(path, content)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {reason_of(error)}") from error
    return path


def read_struct(path: Path, kind: type[T], most_bytes: int) -> T:
    """The `kind`, a type, that lies in a small file: in JSON if it is called so, else in MessagePack.

    Raises `OSError` if it cannot be read, and `ValueError` if it is something else or larger.
    """
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"more than {most_bytes} bytes")
    try:
        return decode_json(data, kind) if path.suffix == ".json" else decode_msgpack(data, kind)
    except DECODING_ERRORS as error:
        raise ValueError(str(error)) from error


def read_kept(path: Path, kind: type[T], most_bytes: int) -> T | None:
    """What `keep` wrote; None if there is nothing, or if it is damaged, which is told."""
    try:
        return read_struct(path, kind, most_bytes)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        logger.warning("%s is left out, since it cannot be read: %s", path, error)
        return None


def keep(path: Path, value: Any) -> None:
    """Write a small file for `read_kept`. Raises `StorageError` if the disk refuses."""
    body = (
        msgspec.json.format(msgspec.json.encode(value), indent=1)
        if path.suffix == ".json"
        else msgspec.msgpack.encode(value)
    )
    store(path, body)


def write(path: Path, content: Content) -> None:
    """Write `content` to `path`, whose folder is made. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        shutil.copyfile(content, path)
    else:
        path.write_bytes(content)


def link_or_copy(source: Path, path: Path) -> None:
    """Give a file another name at `path`, which takes no room; where the disk has no such names, copy it. What `path`
    was before is replaced. Raises `OSError`.
    """
    path.unlink(missing_ok=True)
    try:
        os.link(source.resolve(), path)
    except OSError:
        write_atomically(path, source)


def text_encoding(path: Path) -> str:
    """The encoding of a text file by its first bytes: UTF-8, or UTF-16 as PowerShell writes what is redirected to a
    file. Raises `OSError`.
    """
    with path.open("rb") as file:
        return _encoding(file.read(2))


def decode_text(data: bytes, errors: str = "strict") -> str:
    """The text in such a file. Raises `UnicodeDecodeError`, which is a `ValueError`, if `errors` are not replaced."""
    return data.decode(_encoding(data[:2]), errors)


def read_secret(path: Path, option: str, most: int) -> str:
    """The line of at most `most` characters that a file holds, or a pipe such as `<(pass show minga)`, which is read
    once. Raises `ConfigurationError`, which names the `option` and repeats nothing of the secret.
    """
    try:
        with path.open("rb") as file:
            secret = decode_text(file.read(4 * (most + 3)))[: most + 3].strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{option} {path}: cannot be read as text: {type(error).__name__}") from error
    if not secret.strip() or len(secret) > most:
        raise ConfigurationError(f"{option} {path}: it holds one line of 1 to {most} characters")
    return secret


def _encoding(head: bytes) -> str:
    return "utf-16" if head in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


# ---- Reading settings: a bounded TOML file, or KEY=VALUE as it is written on a command line.


def read_toml(path: Path, max_bytes: int) -> dict[str, Any]:
    """The values of a TOML file. Raises `ConfigurationError` if it cannot be read, is too large or is no TOML."""
    try:
        with open(path, "rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {reason_of(error)}") from error
    if len(data) > max_bytes:
        raise ConfigurationError(f"{path}: more than {max_bytes} bytes; is it the right file?")
    try:
        return tomllib.loads(decode_text(data))
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: byte {error.start}: {NOT_TEXT}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path}: not valid TOML: {str(error)[:200]}") from error


def split_setting(text: str, option: str, example: str) -> tuple[str, str]:
    """Key and value of KEY=VALUE. A `ConfigurationError` names the `option` and an `example`."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or not value.strip():
        raise ConfigurationError(f"{option}{text[:60]!r}: write KEY=VALUE, such as {example}")
    return key.strip(), value.strip()


def parse_value(text: str) -> Any:
    """A number, a truth value or a list if it reads like one in TOML, else the text itself."""
    try:
        values = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # no TOML, or more digits or brackets than anybody needs
        return text
    return values["value"] if len(values) == 1 else text  # a text of several lines can be several settings
