"""The commands by which a machine takes part in a run, by system."""

from __future__ import annotations

from minga.core.spec.run_spec import RunSpec
from minga.core.urls import CUDA_WHEELS

_GET = "git clone REPOSITORY minga && cd minga"
"""minga is on no package index, so each way begins with its source."""


def ways_to_join(spec: RunSpec) -> list[tuple[str, list[str]]]:
    """Title and commands of each way to join; LINK stands for the link."""
    if spec.model.recipe == "custom":
        return [("With the organiser's program", ["python PROGRAM.py LINK"])]
    unix = [_GET, "python3 -m venv .venv && . .venv/bin/activate", "python -m pip install '.[data]'", "minga join LINK"]
    return [
        ("Linux", unix),
        ("macOS", ["xcode-select --install", *unix]),
        ("Windows, in WSL", ["wsl --install   (in PowerShell, once; then in its terminal:)", *unix]),
        (
            "Windows, without WSL (PowerShell)",
            [
                "git clone REPOSITORY minga; cd minga",
                "py -m venv .venv; .venv\\Scripts\\Activate.ps1",
                f"python -m pip install torch --index-url {CUDA_WHEELS}   (with an NVIDIA GPU)",
                'python -m pip install ".[data]"',
                "minga join LINK",
            ],
        ),
        (
            "Docker",
            [_GET, "docker build -t minga .", "docker run --rm -it -v minga:/data minga join LINK"],
        ),
        (
            "Colab (in a cell; choose a runtime with a GPU)",
            ["!git clone REPOSITORY minga && cd minga && pip install '.[data]'", "!minga join LINK"],
        ),
    ]
