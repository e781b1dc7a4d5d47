"""A Trainer with the private strategy trains as the package's own loop does, and shows nothing of the records."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, random_split

import adadpigu as ad
from adadpigu.accounting.ledger_reading import LEDGER_FILE, read_ledger
from adadpigu.core.randomness import ReproducibleRandomness
from lightning_cases import (
    EPOCHS,
    STEPS,
    B,
    Classifier,
    N,
    loader,
    losses,
    net,
    records,
    same,
    strategy,
    trained,
    trainer,
)

METHODS: dict[str, ad.Method] = {
    "dpsgd": ad.DPSGD(clip_norm=0.5),
    "adadpigu": ad.AdaDPIGU(retention=0.5, schedule="linear", clip_norm=0.5, mean_decay=0.9, offset=0.1),
    "dpsur": ad.DPSUR(clip_norm=0.5, test_batch_size=8),
}
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_fit_ends_at_the_weights_of_the_packages_loop(name: str) -> None:
    oracle, module, private = net(), Classifier(), strategy(method=METHODS[name], ema=0.9)
    run = trained(oracle, losses=losses, method=METHODS[name], ema=0.9)
    trainer(private).fit(module, loader(shuffle=True), loader(records(2)))
    assert same(module.net, oracle)
    assert private.epsilon == run.epsilon == private.privacy.epsilon_pld
    assert (private.run.steps_done, private.privacy.steps_charged, private.run.model) == (STEPS, STEPS, module)
    assert private.run.gradients.startswith("one record at a time under vmap, because training_step gives one loss")


class Declared(Classifier):
    """Says what the loss of a record is."""

    def private_losses(self, batch: Any) -> Any:
        x, y = batch
        found = F.cross_entropy(self(x), y, reduction="none")
        self.log("seen", found.mean())
        return found


@pytest.mark.parametrize(("engine", "told"), [("auto", "one record at a time"), ("ghost", "layer rules")])
def test_declared_losses_train_as_the_packages_loop_does(engine: str, told: str) -> None:
    oracle, module, private = net(), Declared(), strategy(engine=engine)
    trained(oracle, losses=losses, engine=engine)
    with pytest.warns(UserWarning, match="'seen': not logged"):
        trainer(private).fit(module, loader())
    assert same(module.net, oracle)
    assert private.run.gradients.startswith(told)


class Named(Dataset[Any]):
    """Items as dicts, with parts that training does not use."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, Any]:
        x, y = records()
        return {"name": f"person {index}", "label": int(y[index]), "parts": (x[index], index)}


class FromDict(Classifier):
    """Takes what it needs of a dict."""

    def training_step(self, batch: Any) -> Any:  # type: ignore[override]
        return F.cross_entropy(self(batch["parts"][0]), batch["label"])


class Data(pl.LightningDataModule):
    """A DataModule of dicts."""

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(Named(), batch_size=B, shuffle=True)


def test_dict_batches_of_a_data_module_train_as_tensors_do() -> None:
    module, oracle = FromDict(), net()
    trained(oracle, losses=losses)
    trainer(strategy()).fit(module, datamodule=Data())
    assert same(module.net, oracle)


class Scaled(Classifier):
    """A loss of several operations and a module, with constants; a parameter beside the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
        self.register_buffer("shift", torch.tensor([0.1, 0.2, 0.3]))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        scores = (self.net(x.view(x.size(0), -1)) * self.scale).unsqueeze(1).squeeze(1)
        return 2 * self.criterion(scores + self.shift, y) + (scores**2).mean() * torch.tensor(0.5)


class ScaledNet(nn.Module):
    """Its oracle."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.net = net()

    def forward(self, x: Tensor) -> Any:
        return self.net(x) * self.scale


def scaled_loss(scores: Tensor, y: Tensor) -> Tensor:
    """The same, written by hand."""
    shifted = scores + torch.tensor([0.1, 0.2, 0.3])
    return 2 * F.cross_entropy(shifted, y, label_smoothing=0.1) + 0.5 * (scores**2).mean()


def test_a_loss_of_several_parts_is_the_loss_of_each_record_alone() -> None:
    module, oracle = Scaled(), ScaledNet()
    trained(oracle, loss=scaled_loss)
    trainer(strategy()).fit(module, loader())
    torch.testing.assert_close(module.scale, oracle.scale, rtol=1e-5, atol=1e-6)
    assert not torch.equal(module.scale, torch.ones(3))
    for one, other in zip(module.net.parameters(), oracle.net.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


class Mixing(Classifier):
    """A loss that compares each record with the batch: alone, a record compares with itself."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        scores = self(x)
        return F.cross_entropy(scores - scores.mean(0), y)


def test_a_loss_that_compares_records_with_each_other_is_warned_of() -> None:
    """Every record's loss alone is log 3: private, and not what the user wrote."""
    module = Mixing()
    with pytest.warns(UserWarning, match="neither the mean nor the sum of its records' losses"):
        trainer(strategy(noise_multiplier=1e-6)).fit(module, loader())
    for one, other in zip(module.net.parameters(), net().parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=0)


class Autoencoder(pl.LightningModule):
    """Compares outputs with inputs; batches are tensors, not pairs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(5, 5)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return F.mse_loss(self.net(batch[0]), batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9)


def test_inputs_may_be_targets() -> None:
    module = Autoencoder()
    torch.manual_seed(0)
    oracle, (x, _) = nn.Linear(5, 5), records()
    trained(oracle, (x, x), losses=lambda model, batch: (model(batch[0]) - batch[1]).square().mean(1))
    trainer(strategy()).fit(module, loader((x,)))
    torch.testing.assert_close(module.net.weight, oracle.weight)


class Scheduled(Classifier):
    """Two groups, and a schedule that asks the Trainer how long it will be."""

    def configure_optimizers(self) -> Any:
        first, last = self.net[0].parameters(), self.net[2].parameters()
        optimizer = torch.optim.AdamW([{"params": first, "lr": 0.1}, {"params": last, "lr": 0.01}])
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def test_schedules_groups_and_splits_work(tmp_path: Path) -> None:
    module, private = Scheduled(), strategy(records=48, out=tmp_path / "run")
    whole = loader().dataset
    training, held_out = random_split(whole, [48, 16], generator=torch.Generator().manual_seed(0))
    run = trainer(private)
    run.fit(module, DataLoader(training, batch_size=16), DataLoader(held_out, batch_size=16))
    assert private.run.steps_done == EPOCHS * 3
    assert module.lr_schedulers().get_last_lr() == pytest.approx([0.0, 0.0])  # type: ignore[union-attr]
    assert json.loads((tmp_path / "run" / "privacy.json").read_text())["steps_charged"] == EPOCHS * 3
    assert read_ledger(tmp_path / "run" / LEDGER_FILE).sessions()[-1].end == "finished"


def test_nothing_that_is_written_or_shown_is_a_value_of_the_records(tmp_path: Path) -> None:
    """Loggers, metrics and checkpoints of two fits with the same noise on other records differ by weights alone."""
    seen: list[Any] = []
    for seed in (1, 4):
        module = Classifier()
        run = trainer(
            strategy(),
            logger=CSVLogger(tmp_path / str(seed)),
            log_every_n_steps=1,
            callbacks=[ModelCheckpoint(dirpath=tmp_path / f"kept{seed}", save_last=True)],
            enable_checkpointing=True,
        )
        with pytest.warns(UserWarning, match=r"'train_loss', 'train_accuracy', 'step': not logged"):
            run.fit(module, loader(records(seed)))
        assert module.losses == []
        assert run.callback_metrics == run.logged_metrics == run.progress_bar_metrics == {}
        assert not list((tmp_path / str(seed)).rglob("metrics.csv"))
        kept = torch.load(tmp_path / f"kept{seed}" / "last.ckpt", weights_only=False)
        seen.append({key: value for key, value in kept.items() if key not in ("state_dict", "optimizer_states")})
        seen[-1].pop("callbacks")
    assert str(seen[0]) == str(seen[1])


def test_validation_is_as_usual_and_the_statement_names_it(tmp_path: Path) -> None:
    private = strategy(randomness=None)
    run = trainer(private, logger=CSVLogger(tmp_path), log_every_n_steps=1)
    module = Classifier()
    run.fit(module, loader(), loader(records(2)))
    x, y = records(2)
    batches = [F.cross_entropy(module(x[i : i + B]), y[i : i + B]) for i in range(0, N, B)]
    torch.testing.assert_close(run.callback_metrics["val_loss"], torch.stack(batches).mean().detach())
    rows = list(csv.DictReader((tmp_path / "lightning_logs" / "version_0" / "metrics.csv").open()))
    assert len(rows) == EPOCHS
    assert set(rows[0]) == {"epoch", "step", "val_loss"}
    statement = " ".join(private.privacy.statement().split())
    assert "the validation records: metrics on them are exact" in statement
    assert run.validate(module, loader(records(2)), verbose=False)[0]["val_loss"] > 0


def test_early_stopping_claims_the_whole_plan() -> None:
    private = strategy(randomness=None)
    stop = EarlyStopping(monitor="val_loss", patience=0, min_delta=100.0)
    trainer(private, max_epochs=9, callbacks=[stop]).fit(Classifier(), loader(), loader(records(2)))
    assert private.run.interrupted
    assert private.run.steps_done == 2 * N // B < private.run.steps == 9 * N // B
    assert private.privacy.epsilon_spent < private.epsilon


def test_diagnostics_keep_losses_in_a_file_and_the_statement_says_so(tmp_path: Path) -> None:
    private = strategy(diagnostics=True, out=tmp_path / "run", randomness=None)
    trainer(private).fit(Classifier(), loader())
    assert len((tmp_path / "run" / "diagnostics.jsonl").read_text().splitlines()) == STEPS
    assert private.privacy.diagnostics_exposed


def test_gradients_in_hooks_are_releases() -> None:
    """With the records' gradients clipped to 1e-9 and σ = 1 at B = 16, what hooks see is noise of 1e-9/16."""
    seen: list[float] = []

    class Looks(pl.Callback):
        def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
            seen.append(float(torch.cat([p.grad.flatten() for p in pl_module.parameters()]).norm()))

        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            seen.append(float(torch.cat([p.grad.flatten() for p in pl_module.parameters()]).norm()))

    trainer(strategy(method=ad.DPSGD(clip_norm=1e-9)), callbacks=[Looks()]).fit(Classifier(), loader())
    assert len(seen) == 2 * STEPS
    assert 0 < max(seen) < 1e-8


def test_a_second_run_on_the_same_module_is_warned_of() -> None:
    module, again = Classifier(), strategy(randomness=ReproducibleRandomness(6))
    trainer(strategy()).fit(module, loader())
    trainer(again).fit(module, loader())
    assert any("trained before" in warning for warning in again.privacy.warnings)
