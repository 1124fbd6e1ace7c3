"""What users install: wheel and sdist are whole, and the Dockerfile is one that can be built."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from dockerfile_parse import DockerfileParser

from minga.core.wheel import own_wheel
from tests.worlds.installed_wheel import ROOT, build, install

TEXT = re.compile(r"pip install ['\"]?minga(?![-\w])")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Wheel and sdist."""
    return build(tmp_path_factory.mktemp("built"))


def test_wheel_and_sdist_are_whole(built: tuple[Path, Path]) -> None:
    wheel, sdist = built
    check = subprocess.run(
        (sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)), capture_output=True, text=True
    )
    assert check.returncode == 0, check.stdout + check.stderr
    source = ROOT / "src"
    there = {
        path.relative_to(source).as_posix()
        for path in (source / "minga").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    in_wheel = set(zipfile.ZipFile(wheel).namelist())
    assert there <= in_wheel
    assert not {name for name in in_wheel - there if ".dist-info/" not in name}
    with tarfile.open(sdist) as archive:
        tops = {Path(name).parts[1] for name in archive.getnames()}
    assert {"src", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"} <= tops
    assert not {name for name in tops if name.startswith(".") and name != ".gitignore"}


def test_a_checkout_and_an_installed_wheel_hand_out_the_same_wheel(built: tuple[Path, Path], tmp_path: Path) -> None:
    """So everybody can verify what an organiser has signed, and pass it on."""
    wheel = own_wheel()
    assert wheel is not None
    path = tmp_path / wheel.name
    path.write_bytes(wheel.data)
    check = subprocess.run(
        (sys.executable, "-m", "twine", "check", "--strict", str(path)), capture_output=True, text=True
    )
    assert check.returncode == 0, check.stdout + check.stderr
    python = install(path, tmp_path / "environment")
    code = "from minga.core.wheel import own_wheel; print(own_wheel().sha256)"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run((python, "-c", code), capture_output=True, text=True, cwd=tmp_path, env=env)
    assert done.stdout.split() == [wheel.sha256], done.stderr
    names = {name for name in zipfile.ZipFile(built[0]).namelist() if ".dist-info/" not in name}
    own = zipfile.ZipFile(path)
    assert {name for name in own.namelist() if ".dist-info/" not in name} == names
    assert all(own.read(name) == zipfile.ZipFile(built[0]).read(name) for name in sorted(names)[::20])


def test_the_dockerfile_names_what_is_there() -> None:
    parser = DockerfileParser(fileobj=io.BytesIO((ROOT / "Dockerfile").read_bytes()))
    steps = [step for step in parser.structure if step["instruction"] != "COMMENT"]
    known = {"FROM", "ARG", "RUN", "WORKDIR", "COPY", "ENV", "USER", "VOLUME", "ENTRYPOINT", "CMD"}
    assert {step["instruction"] for step in steps} == known
    assert steps[0]["instruction"] == "FROM"
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    declared: set[str] = set()
    for step in steps:
        if step["instruction"] == "ARG":
            declared.add(step["value"].split("=")[0])
        assert set(re.findall(r"\$\{(\w+)\}", step["value"])) <= declared
        if step["instruction"] == "COPY":
            for source in step["value"].split()[:-1]:
                assert (ROOT / source).exists(), f"the Dockerfile copies {source}"
                assert f"!{source.removeprefix('./')}" in ignored, f".dockerignore keeps {source} out"


def test_no_text_installs_minga_from_an_index() -> None:
    """It is on none, so such a line would fail, or install a stranger's package."""
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "src").rglob("*.py"), ROOT / "Dockerfile"]
    wrong = [file.name for file in files if TEXT.search(file.read_text("utf-8"))]
    assert not wrong
