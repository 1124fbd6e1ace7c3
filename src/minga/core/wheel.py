"""The wheel of the minga that runs, which organisers hand out as long as no package index has it.

It holds the files of the package as they lie on this machine, and what the installation recorded of it. So a checkout
that is installed as editable gives one as well as an installed wheel. Equal code gives equal bytes on every machine:
the order, the times and the modes of the files are fixed, and nothing is compressed, since versions of zlib differ.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

WHEEL_PATTERN: Final = r"^minga-[0-9A-Za-z.+_]{1,64}-py3-none-any\.whl#sha256=[0-9a-f]{64}$"
"""How a run spec names the wheel that its organiser hands out."""

_PACKAGE: Final = Path(__file__).parent.parent
_KEPT: Final = ("METADATA", "entry_points.txt")
"""What goes on from one installation to the next; the rest of the metadata tells of this one."""
_WHEEL: Final = b"Wheel-Version: 1.0\nGenerator: minga\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@dataclass(frozen=True)
class Wheel:
    """A wheel: the name of the file, its content, and its SHA-256 in hexadecimal."""

    name: str
    data: bytes
    sha256: str

    @property
    def reference(self) -> str:
        """Name and hash, as pip takes them at the end of an address."""
        return f"{self.name}#sha256={self.sha256}"


@cache
def own_wheel() -> Wheel | None:
    """The wheel of the minga that runs, made once; None where it was not installed or its files cannot be read."""
    try:
        installed = distribution("minga")
        files = dict(_files(installed))
    except (PackageNotFoundError, OSError):
        return None
    version = installed.version.replace("-", "_")
    information = f"minga-{version}.dist-info"
    files[f"{information}/WHEEL"] = _WHEEL
    record = "".join(f"{name},{_digest(data)},{len(data)}\n" for name, data in sorted(files.items()))
    files[f"{information}/RECORD"] = f"{record}{information}/RECORD,,\n".encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)
            entry.create_system, entry.external_attr = 3, 0o100644 << 16  # as on Unix, also where this is Windows
            archive.writestr(entry, data)
    data = packed.getvalue()
    return Wheel(f"minga-{version}-py3-none-any.whl", data, hashlib.sha256(data).hexdigest())


def _files(installed: Distribution) -> Iterator[tuple[str, bytes]]:
    """The files of the package in order of their names, then those of its metadata; without what this machine made."""
    for path in sorted(_PACKAGE.rglob("*"), key=Path.as_posix):
        parts = path.relative_to(_PACKAGE.parent).parts
        is_made_here = "__pycache__" in parts or path.suffix == ".pyc" or any(part.startswith(".") for part in parts)
        if path.is_file() and not is_made_here:
            yield "/".join(parts), path.read_bytes()
    for file in sorted(installed.files or (), key=str):
        folder, *inside = file.parts
        if folder.endswith(".dist-info") and (inside[0] == "licenses" or "/".join(inside) in _KEPT):
            yield file.as_posix(), Path(str(installed.locate_file(file))).read_bytes()


def _digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
