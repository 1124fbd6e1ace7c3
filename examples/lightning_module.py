"""A LightningModule as a peer: its Trainer has the strategy MingaStrategy.

python examples/lightning_module.py            host a run in one terminal; it prints a link
python examples/lightning_module.py LINK       join it in others; the other examples with frameworks can join, too
"""

import pytorch_lightning as pl
import spirals
import torch
from torch.utils.data import DataLoader

from minga.integrations.lightning import MingaStrategy


class Module(pl.LightningModule):
    """An ordinary module; nothing in it knows of a run."""

    def __init__(self) -> None:
        super().__init__()
        self.network = spirals.Network()

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        """The mean loss of a batch."""
        return self.network(**batch)["loss"]

    def configure_optimizers(self) -> dict[str, object]:
        """Optimizer and schedule; in a run the schedule counts global steps, whatever the interval."""
        optimizer, scheduler = spirals.optimizer_of(self.network)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main() -> None:
    peer = spirals.enter("lightning_module.py")
    module = Module()
    trainer = pl.Trainer(
        # MingaStrategy(LINK) does, too; by this name peers of other frameworks find the network in the module
        strategy=MingaStrategy({"network": peer}),
        accelerator="cpu",
        max_epochs=1_000,  # more than there will be: fit ends with the run
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(spirals.Points(), batch_size=128, shuffle=True))
    print("the run's figures:", {name: round(float(value), 3) for name, value in trainer.callback_metrics.items()})
    spirals.show(module.network, peer)


if __name__ == "__main__":
    main()
