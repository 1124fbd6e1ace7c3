"""Where a peer keeps what it has to know of a secure run; several peers of one machine share the folder of a run."""

from __future__ import annotations

from pathlib import Path

from minga.network.interface import PeerId


def genesis_file(directory: Path, peer: PeerId) -> Path:
    """The genesis, as this peer got it."""
    return directory / f"genesis-{peer[:10]}.bin"


def evidence_file(directory: Path, peer: PeerId) -> Path:
    """What this peer saw of why others left."""
    return directory / f"evidence-{peer[:10]}.bin"


def witnesses(directory: Path) -> list[PeerId]:
    """The beginnings of the ids of all peers that left either of them there."""
    files = [*directory.glob("genesis-*.bin"), *directory.glob("evidence-*.bin")]
    return sorted({PeerId(path.stem.partition("-")[2]) for path in files})
