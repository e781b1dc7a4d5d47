"""What the tests of the Lightning strategy share: records, a module as users write them, a quiet Trainer."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
import torchmetrics
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import adadpigu as ad
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.integrations.lightning import PrivateStrategy

N, B, EPOCHS = 64, 16, 2
STEPS = EPOCHS * N // B


def records(seed: int = 1, count: int = N) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 5, generator=generator), torch.randint(3, (count,), generator=generator)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


class Classifier(pl.LightningModule):
    """As users write them: metrics, logs, lists of losses, all of it in training_step."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=3)
        self.losses: list[Tensor] = []

    def forward(self, x: Tensor) -> Any:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        scores = self(x)
        loss = F.cross_entropy(scores, y)
        self.losses.append(loss)
        self.accuracy.update(scores, y)
        self.log("train_loss", loss, prog_bar=True, batch_size=len(x))
        self.log_dict({"train_accuracy": self.accuracy, "step": float(self.global_step)})
        if batch_idx % 2 == 0:
            self.print(f"loss {loss}")
        return {"loss": loss, "scores": scores.detach()}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", F.cross_entropy(self(x), y))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9)


def strategy(**changes: Any) -> PrivateStrategy:
    settings: dict[str, Any] = {
        "records": N,
        "method": ad.DPSGD(clip_norm=0.5),
        "noise_multiplier": 1.0,
        "randomness": ReproducibleRandomness(5),
        "seed": 3,
    }
    return PrivateStrategy(**{**settings, **changes})


def trainer(strategy: PrivateStrategy, **changes: Any) -> pl.Trainer:
    settings: dict[str, Any] = {
        "max_epochs": EPOCHS,
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return pl.Trainer(strategy=strategy, **{**settings, **changes})


def loader(data: tuple[Tensor, ...] | None = None, **changes: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*(data or records())), **{"batch_size": B, **changes})


def trained(net: nn.Module, data: tuple[Tensor, Tensor] | None = None, **changes: Any) -> ad.Run:
    """The oracle: the package's own loop on the same records, with the same noise."""
    settings: dict[str, Any] = {
        "records": N,
        "batch_size": B,
        "steps": STEPS,
        "method": ad.DPSGD(clip_norm=0.5),
        "noise_multiplier": 1.0,
        "lr": 0.3,
        "momentum": 0.9,
        "seed": 3,
        "randomness": ReproducibleRandomness(5),
    }
    return ad.train(net, data or records(), **{**settings, **changes})


def losses(model: nn.Module, batch: Any) -> Tensor:
    """Those of `Classifier`, for the oracle."""
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def same(one: nn.Module, other: nn.Module) -> bool:
    """Whether two nets have the same weights, bit by bit."""
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
