"""What users install: wheel and sdist are whole, and the Dockerfile is one that can be built."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from dockerfile_parse import DockerfileParser

from tests.worlds.installed_wheel import ROOT, build

TEXT = re.compile(r"pip install ['\"]?minga(?![-\w])")


def test_wheel_and_sdist_are_whole(tmp_path: Path) -> None:
    wheel, sdist = build(tmp_path)
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
