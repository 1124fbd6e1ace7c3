"""A recipe: which corner of a square is a noisy point near?"""

import numpy as np
import torch
from torch.nn import functional

from minga import ConfigurationError
from minga.recipes import Metric, Recipe, Settings, real, shuffled, whole

POINTS, HELD_OUT = 4000, 500


class CornersSettings(Settings):
    """Points around the corners of a square."""

    hidden: int = whole(16, 1, 4096, "width of the hidden layer")
    noise: float = real(0.3, 0.0, 10.0, "standard deviation around a corner")


class Corners(Recipe[CornersSettings]):
    Settings, headline = CornersSettings, Metric("heldout_accuracy", better="higher", chance=0.25)

    def prepare(self):
        return {}  # the points come from the seed

    def build_model(self):
        width = self.settings.hidden
        return torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.ReLU(), torch.nn.Linear(width, 4))

    def rows(self, rows):
        chance = np.random.default_rng(self.context.seed)
        corners = chance.integers(0, 4, POINTS)
        points = np.stack([corners % 2, corners // 2], 1) + self.settings.noise * chance.standard_normal((POINTS, 2))
        return {"x": torch.from_numpy(points[rows].astype(np.float32)), "y": torch.from_numpy(corners[rows])}

    def batches(self, files, position, micro_batch_size):
        order = shuffled(POINTS - HELD_OUT, self.context.seed, position, micro_batch_size)
        return (self.rows(rows) for rows, _ in order)

    def public_batch(self, files, batch):
        return self.rows(batch.indices(POINTS - HELD_OUT))

    def synthetic_batch(self, size):
        return {"x": torch.zeros(size, 2), "y": torch.zeros(size, dtype=torch.long)}

    def loss(self, model, batch):
        return functional.cross_entropy(model(batch["x"]), batch["y"])

    def evaluate(self, model, files):
        batch = self.rows(np.arange(POINTS - HELD_OUT, POINTS))
        with torch.no_grad():
            return {"heldout_accuracy": float((model(batch["x"]).argmax(1) == batch["y"]).float().mean())}

    def export(self, model, files, directory, *, step):
        if directory.exists():
            raise ConfigurationError(f"{directory} is there already")
        directory.mkdir(parents=True)
        torch.save(model.state_dict(), directory / "model.pt")
        (directory / "README.md").write_text(f"The model after {step} steps.")
