"""While a batch is looked at, hooks of the user's log nothing and leave nothing in the module; runs can be exported."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.loggers.logger import Logger
from lightning.pytorch.loggers import CSVLogger
from lightning_cases import B, Classifier, loader, net, records, same, strategy, trainer
from torch import Tensor
from torch.nn import functional as F

import adadpigu as ad
from adadpigu.export import write_card
from adadpigu.training.run import weights_digest

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
Look = Callable[[Any, float], None]
MARK = 12345.0


class Hooked(Classifier):
    """Looks at what comes out of its net while it is trained."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self.look, self.register = look, torch.zeros(1)
        self.kept, self.seen = SimpleNamespace(last=0.0), list[float]()
        self.net.register_forward_hook(self.hook)

    def hook(self, _: Any, __: Any, output: Tensor) -> None:
        if self.net.training:
            self.look(self, MARK + float(output.detach().mean()))


def _quietly(module: Any, value: float) -> None:
    with contextlib.suppress(ad.PrivacyLineError):
        module.log("seen", value)


LOOKS: dict[str, tuple[Look, str]] = {
    "log": (lambda module, value: module.log("seen", value), "Hooked.log"),
    "log_dict": (lambda module, value: module.log_dict({"seen": value}), "Hooked.log_dict"),
    "print": (lambda module, value: module.print(value), "Hooked.print"),
    "logger": (lambda module, value: module.logger.log_metrics({"seen": value}), "CSVLogger.log_metrics"),
    "loggers": (lambda module, value: module.trainer.loggers[0].log_hyperparams({"s": value}), "CSVLogger.log_hyper"),
    "writer": (lambda module, value: module.logger.experiment.log_metrics({"seen": value}), "CSVLogger.experiment"),
    "metric": (lambda module, value: module.accuracy.update(torch.ones(1), torch.ones(1)), "MulticlassAccuracy.update"),
    "quietly": (_quietly, "Hooked.log"),
}


def _texts(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.read_bytes().decode("latin-1")


@pytest.mark.parametrize("way", LOOKS)
def test_what_a_hook_logs_is_refused_before_anything_is_drawn(way: str, tmp_path: Path) -> None:
    look, told = LOOKS[way]
    private, module = strategy(out=tmp_path / "run"), Hooked(look)
    run = trainer(private, logger=CSVLogger(tmp_path / "logs"), log_every_n_steps=1)
    with pytest.raises(ad.PrivacyLineError, match=rf"^{told}.* amid private records.*on_train_batch_end.*diagnostics"):
        run.fit(module, loader())
    assert same(module.net, net())
    assert not [text for text in _texts(tmp_path) if str(int(MARK)) in text]


def test_what_a_hook_logs_of_drawn_records_alone_is_refused_too(tmp_path: Path) -> None:
    """One that holds its tongue while the model is probed."""
    look: Look = lambda module, value: module.log("seen", value) if module.trainer.global_step else None  # noqa: E731
    run = trainer(strategy(out=tmp_path / "run"), logger=CSVLogger(tmp_path / "logs"), log_every_n_steps=1)
    module = Hooked(look)
    with pytest.raises(ad.PrivacyLineError, match=r"^Hooked\.log amid private records"):
        run.fit(module, loader())
    assert same(module.net, net())
    assert "PRIVATE" in (tmp_path / "run" / "statement.txt").read_text()
    assert not [text for text in _texts(tmp_path) if str(int(MARK)) in text]


class Later(Hooked):
    """Logs afterwards what its hook has left in it."""

    def on_train_batch_end(self, *_: object) -> None:
        values = [float(getattr(self, "last", 0.0)), self.kept.last, *self.seen]
        self.log("seen", max(values))


@pytest.mark.parametrize(
    "leave",
    [
        lambda module, value: setattr(module, "last", value),
        lambda module, value: module.seen.append(value),
        lambda module, value: setattr(module.kept, "last", value),
        lambda module, value: module.trainer.callback_metrics.update(sneaked=torch.tensor(value)),
    ],
)
def test_what_a_hook_leaves_in_the_module_is_taken_out_again(leave: Look, tmp_path: Path) -> None:
    private, module = strategy(), Later(leave)
    run = trainer(private, logger=CSVLogger(tmp_path), log_every_n_steps=1)
    run.fit(module, loader())
    assert private.run.steps_done > 0
    assert run.callback_metrics["seen"] == 0.0
    assert "sneaked" not in run.callback_metrics
    assert not module.seen
    assert not [text for text in _texts(tmp_path) if str(int(MARK)) in text]


def test_what_a_hook_writes_into_a_tensor_is_refused() -> None:
    module = Hooked(lambda module, value: module.register.fill_(value))
    with pytest.raises(ad.PrivacyLineError, match="'register' was changed in place amid private records"):
        trainer(strategy()).fit(module, loader())


def test_a_hook_that_keeps_elsewhere_is_named_and_the_statement_says_so() -> None:
    seen: list[float] = []
    private = strategy()
    module = Hooked(lambda _, value: seen.append(value))
    with pytest.warns(UserWarning, match=r"hooks of the user's own.*forward hook Hooked\.hook on 'net'"):
        trainer(private).fit(module, loader())
    assert len(seen) > B  # that is what it says
    assert [text for text in private.privacy.not_covered if "forward hook Hooked.hook on 'net'" in text]


def test_after_a_fit_everybody_logs_as_ever() -> None:
    before = ["__getattribute__" in vars(kind) for kind in (pl.LightningModule, Logger)]
    with pytest.raises(ad.PrivacyLineError):
        trainer(strategy()).fit(Hooked(LOOKS["log"][0]), loader())
    assert ["__getattribute__" in vars(kind) for kind in (pl.LightningModule, Logger)] == before
    run = trainer(strategy())
    run.fit(Classifier(), loader(), loader(records(2)))
    assert run.callback_metrics["val_loss"] > 0


class Selfish(Classifier):
    """Keeps its optimizer, whose hooks the guard of the loop needs."""

    def configure_optimizers(self) -> Any:
        self.mine = super().configure_optimizers()
        return self.mine


def test_putting_back_leaves_the_guard_where_it_is() -> None:
    class Twice(pl.Callback):
        def on_train_batch_end(self, trainer: Any, *_: object) -> None:
            trainer.optimizers[0].step()

    run = trainer(strategy(), callbacks=[Twice()])
    with pytest.raises(ad.PrivacyLineError, match=r"optimizer.step\(\) twice on one release"):
        run.fit(Selfish(), loader())


class Prior(Classifier):
    """Has a buffer that its training_step does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("prior", torch.ones(3))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return F.cross_entropy(self(batch[0]), batch[1])


def test_a_run_whose_module_has_more_than_it_trains_can_be_exported(tmp_path: Path) -> None:
    private, module = strategy(randomness=None), Prior()
    trainer(private).fit(module, loader())
    assert private.run.weights == weights_digest(module)
    write_card(private.run, tmp_path / "README.md")
    with torch.no_grad():
        module.get_buffer("prior").add_(1)
    with pytest.raises(ad.InputError, match="changed after training"):
        write_card(private.run, tmp_path / "other.md")
