"""Runs behind a script for Opacus: what an error, a stored loss or fewer records at once leave behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from adadpigu.errors import InputError
from adadpigu.integrations.opacus import PrivacyEngine
from adadpigu.integrations.opacus.utils.batch_memory_manager import BatchMemoryManager


@dataclass
class Script:
    """A linear model made private on eight records, with a pass of eight steps."""

    engine: PrivacyEngine
    module: nn.Linear
    model: Any
    optimizer: Any
    criterion: Any
    loader: Any

    def go(self, change: Callable[[Any], Any] = lambda loss: loss, loader: Any = None) -> None:
        """One pass; `change` makes something of each loss before its backward."""
        for given, target in self.loader if loader is None else loader:
            self.optimizer.zero_grad()
            change(self.criterion(self.model(given), target)).backward()
            self.optimizer.step()


def made(out: Path | None = None, total_steps: int | None = None) -> Script:
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(8, 6, generator=generator), torch.arange(8) % 2)
    engine, module = PrivacyEngine(out=out), nn.Linear(6, 2)
    parts = engine.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.5),
        data_loader=DataLoader(data, batch_size=1),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        total_steps=total_steps,
        criterion=nn.CrossEntropyLoss(),
    )
    return Script(engine, module, *parts)


def test_a_script_that_fails_leaves_what_was_released() -> None:
    script, steps = made(total_steps=8), iter((1,))
    start = script.module.weight.detach().clone()
    with pytest.raises(InputError, match="another loss"):
        script.go(lambda loss: loss if next(steps, 0) else 2 * loss)
    script.engine.finish()
    assert script.engine.report().interrupted
    assert not torch.equal(script.module.weight, start)


def test_a_pass_that_failed_stays_in_the_report() -> None:
    script, steps = made(), iter((1, 2))
    with pytest.raises(StopIteration):
        script.go(lambda loss: (loss, next(steps))[0])
    script.go()
    report = script.engine.report()
    assert report.interrupted
    assert report.stages[0].planned == 16


def test_fewer_records_at_once_change_no_run_folder(tmp_path: Path) -> None:
    script = made(out=tmp_path / "run", total_steps=8)
    with BatchMemoryManager(
        data_loader=script.loader, max_physical_batch_size=2, optimizer=script.optimizer
    ) as smaller:
        script.go(loader=smaller)
    assert script.engine.report().stages[0].done == 8
    assert (tmp_path / "run" / "statement.txt").is_file()


def test_a_stored_loss_is_its_value_and_holds_no_record(tmp_path: Path) -> None:
    script = made()
    for given, target in script.loader:
        loss = script.criterion(script.model(given), target)
        torch.save([loss.detach(), loss], tmp_path / "losses.pt")
        break
    stored = torch.load(tmp_path / "losses.pt", weights_only=True)
    assert [type(one) for one in stored] == [Tensor, Tensor]
    torch.testing.assert_close(stored[0], loss.detach(), equal_nan=True)


def test_the_report_of_an_open_pass_counts_all_of_it() -> None:
    script = made()
    script.go()
    alone = script.engine.report().epsilon_pld
    given, target = next(opened := iter(script.loader))
    script.criterion(script.model(given), target).backward()
    script.optimizer.step()
    assert script.engine.get_epsilon(1e-5) > alone
    report = script.engine.report()
    assert report.epsilon_pld == pytest.approx(script.engine.get_epsilon(1e-5))
    assert not any("trained before" in told for told in report.warnings)  # by a pass that is counted here
    del opened
