"""A recipe: which corner of a square is a noisy point near?"""

import numpy as np
import torch
from torch import nn

from minga.recipes import Exported, Metric, Recipe, Settings, evaluating, shuffled, whole

POINTS, HELD_OUT = 4000, 500
LOAD = 'from safetensors.torch import load_file\nparameters = load_file("model.safetensors")'


class CornersSettings(Settings):
    """The shape of a small classifier."""

    hidden: int = whole(16, 1, 4096, "width of the hidden layer")


class Corners(Recipe[CornersSettings]):
    Settings, headline = CornersSettings, Metric("heldout_accuracy", better="higher")

    def prepare(self):
        return {}  # the points come from the seed

    def build_model(self):
        return nn.Sequential(nn.Linear(2, self.settings.hidden), nn.ReLU(), nn.Linear(self.settings.hidden, 4))

    def rows(self, rows):
        chance = np.random.default_rng(self.context.seed)
        corners = chance.integers(0, 4, POINTS)
        points = np.stack([corners % 2, corners // 2], 1) + 0.3 * chance.standard_normal((POINTS, 2))
        return {"x": torch.from_numpy(points[rows].astype(np.float32)), "y": torch.from_numpy(corners[rows])}

    def batches(self, files, position, micro_batch_size):
        return (self.rows(r) for r, _ in shuffled(POINTS - HELD_OUT, self.context.seed, position, micro_batch_size))

    def public_batch(self, files, batch):
        return self.rows(batch.indices(POINTS - HELD_OUT))

    def synthetic_batch(self, size):
        return {"x": torch.zeros(size, 2), "y": torch.zeros(size, dtype=torch.long)}

    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    def evaluate(self, model, files):
        batch = self.rows(np.arange(POINTS - HELD_OUT, POINTS))
        with evaluating(model) as device:  # without gradients, in evaluation mode
            found = model(batch["x"].to(device)).argmax(1).cpu()
        return {"heldout_accuracy": float((found == batch["y"]).float().mean())}

    def export(self, model, files, directory, provenance):
        with Exported.to(directory, provenance) as exported:
            exported.tensors("model.safetensors", model.state_dict())
            exported.card("Corners", "It names the corner of a point.", self.evaluate(model, files), LOAD)
