"""Rounds of CenteredClip for tests: random parts, attackers among them, and the fixed point by a plain solver."""

from __future__ import annotations

import numpy as np

from minga.network.interface import PeerId
from minga.security.verification.count_sketch import Directions, PartSketch

STOP = 1e-6
PEERS = [PeerId(f"{number:064x}") for number in range(64)]


def entries_of(directions: Directions, numel: int) -> np.ndarray:
    """The directions themselves, odd integers, as float64 [count, numel]; a sketch never needs all of them."""
    sketch, entries = PartSketch(directions, numel), np.empty((directions.count, numel))
    for block in sketch.blocks():
        buckets = slice(block.bucket, block.bucket + block.part.stop - block.part.start)
        entries[:, block.part] = block.turn * block.signs * sketch.coefficients[:, buckets]
    return entries


def clipped(parts: np.ndarray, v: np.ndarray, radius: np.ndarray) -> np.ndarray:
    differences = parts - v[:, None]
    norms = np.linalg.norm(differences, axis=-1, keepdims=True)
    return differences * np.minimum(1.0, radius[:, None, None] / np.maximum(norms, 1e-300))


def solve(parts: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """The fixed points of many rounds by IRLS from the coordinate-wise median, each to STOP radii, in float64."""
    v = np.median(parts, axis=1)
    active = np.arange(len(parts))
    for _ in range(5000):
        differences = parts[active] - v[active, None]
        norms = np.linalg.norm(differences, axis=-1)
        scaled = np.minimum(1.0, radius[active, None] / np.maximum(norms, 1e-300))
        residual = np.einsum("rn,rnd->rd", scaled, differences)
        missing = np.linalg.norm(residual, axis=-1) > STOP * radius[active] * parts.shape[1]
        active, residual, scaled = active[missing], residual[missing], scaled[missing]
        if not len(active):
            return v
        v[active] += residual / scaled.sum(axis=1)[:, None]
    raise AssertionError(f"{len(active)} rounds did not converge")


def random_rounds(
    rng: np.random.Generator, rounds: int, numel: int, *, senders: int = 16, attackers: int = 7
) -> tuple[np.ndarray, np.ndarray]:
    """Parts in float32 whose honest ones lie about 1 from their mean, and radii from 0.3 to 3.

    Attackers are up to 1000 times as far away, together or each in its own direction.
    """
    mean = rng.normal(size=(rounds, 1, numel)) * rng.choice([0.0, 1.0, 10.0], size=(rounds, 1, 1))
    parts = rng.normal(size=(rounds, senders, numel)) / np.sqrt(numel) + mean
    common = rng.normal(size=(rounds, 1, numel)) / np.sqrt(numel)
    own = rng.normal(size=(rounds, attackers, numel)) / np.sqrt(numel)
    distance = 10.0 ** rng.uniform(-1, 3, size=(rounds, 1, 1))
    together = rng.integers(2, size=(rounds, 1, 1)).astype(bool)
    parts[:, :attackers] = mean + distance * np.where(together, common + 1e-3 * own, own)
    radius = 10.0 ** rng.uniform(-0.5, 0.5, size=rounds)
    return parts.astype(np.float32).astype(float), radius
