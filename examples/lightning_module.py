"""An unmodified LightningModule, trained privately: what differs from plain Lightning is the Trainer's strategy.

python examples/lightning_module.py --epochs 30
"""

from __future__ import annotations

import argparse
from typing import Any

import lightning as L
import torch
import torchmetrics
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import adadpigu as ad
from adadpigu.integrations.lightning import PrivateStrategy


class Digits(L.LightningModule):
    """As one would write it without privacy: it knows nothing of it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=10)

    def forward(self, x: Tensor) -> Any:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.accuracy(self(x), y)
        self.log("val_accuracy", self.accuracy)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=2.0, momentum=0.9)
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def loader(records: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*records.take(torch.arange(len(records)))), batch_size=256, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30)
    given = parser.parse_args()
    data = ad.load_dataset("digits")
    strategy = PrivateStrategy(  # all that is private about it
        records=data.records, privacy=ad.Budget(epsilon=4, delta=1e-5), method=ad.DPSGD(clip_norm=0.1)
    )
    trainer = L.Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=1,
        max_epochs=given.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Digits(), loader(data.train, shuffle=True), loader(data.test))
    print(f"test accuracy {trainer.callback_metrics['val_accuracy']:.1%}")
    print(strategy.privacy.statement())


if __name__ == "__main__":
    main()
