"""The package as users get it: built as wheel and sdist, and installed into a fresh environment."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def build(folder: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from the sdist, so that the sdist lacks nothing; returns (wheel, sdist)."""
    words = (sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT))
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def install(wheel: Path, folder: Path) -> str:
    """Install this wheel into a new environment in `folder`; returns its interpreter.

    Its dependencies are those of the environment of the tests, which are not installed a second time; minga is not
    among them, since what makes it editable there is a file that only its own environment reads.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    python = str(folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python"))
    options = ("--quiet", "--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check")
    words = (sys.executable, "-m", "pip", "--python", python, "install", *options, str(wheel))
    subprocess.run(words, check=True, capture_output=True)
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run((python, "-c", code), check=True, capture_output=True, text=True).stdout.strip()
    Path(site, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    return python


def environment_without_minga(folder: Path) -> str:
    """A new environment in `folder` with all that the environment of the tests has but minga, as a machine on which
    PyTorch was installed before; returns its interpreter.
    """
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = str(folder / "venv" / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python"))
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run((python, "-c", code), check=True, capture_output=True, text=True).stdout.strip()
    others = folder / "others"
    others.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if path.name not in ("__pycache__", "distutils-precedence.pth") and "minga" not in path.name:
            (others / path.name).symlink_to(path)
    Path(site, "others.pth").write_text(f"{others}\n", "utf-8")
    return python
