"""What a crash and a resume must not wash away: a buffer that a record touched, confessions, warnings, honest words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adadpigu as ad
from adadpigu.accounting import read_ledger
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.errors import ModelError
from adadpigu.methods import DPSGD
from adadpigu.training import Facts, Metrics, Run
from trials import SHORT, arrays, small_net

OUTLIER = 733.125


class Stopping:
    """Ends a run after so many steps, as a crash would or as Ctrl-C would."""

    def __init__(self, after: int, how: type[BaseException]) -> None:
        self._after, self._how = after, how

    def begin(self, facts: Facts) -> None: ...

    def end(self, run: Run) -> None: ...

    def update(self, metrics: Metrics) -> None:
        if metrics.step == self._after:
            raise self._how


class Hoarder(nn.Module):
    """Keeps the largest input it ever saw, where torch's version counter does not notice."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("top", torch.tensor(100.0))
        self.net = small_net()

    def forward(self, inputs: Tensor) -> Tensor:
        top: Any = self.top
        if inputs.max() > top:
            top.data.fill_(inputs.max())
        return self.net(inputs)  # type: ignore[no-any-return]


def train(model: nn.Module, data: tuple[Tensor, Tensor], out: Path, **options: Any) -> Run:
    common: dict[str, Any] = {"records": 240, "method": DPSGD(), "noise_multiplier": 2.0, **SHORT, "steps": 12}
    return ad.train(model, data, out=out, **(common | options))


def outlying() -> tuple[Tensor, Tensor]:
    inputs, targets = arrays()
    inputs = inputs.clone()
    inputs[..., 0] = OUTLIER
    return inputs, targets


def test_a_buffer_that_a_record_touched_reaches_no_checkpoint_and_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="top"):
        train(Hoarder(), outlying(), tmp_path / "run", checkpoint_every=4)
    for _ in range(2):  # nor by going on from what is there
        with pytest.raises(ModelError, match="top"):
            train(Hoarder(), outlying(), tmp_path / "run", checkpoint_every=4, resume=True)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    kept = torch.tensor(OUTLIER).numpy().tobytes()
    for file in (tmp_path / "run").rglob("*"):
        assert not file.is_file() or kept not in file.read_bytes(), file


def test_a_run_that_failed_once_says_so_to_the_end(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        train(small_net(), arrays(), tmp_path / "run", observers=[Stopping(5, ZeroDivisionError)], checkpoint_every=2)
    run = train(small_net(), arrays(), tmp_path / "run", checkpoint_every=2, resume=True, spare_steps=0)
    assert any("that the run failed" in line for line in run.privacy.not_covered)
    assert [session.end for session in run.privacy.sessions] == ["failed", "exhausted"]


def test_what_one_process_was_warned_of_the_next_one_says_too(tmp_path: Path) -> None:
    model = small_net()
    train(model, arrays(), tmp_path / "first")
    train(model, arrays(), tmp_path / "run", observers=[Stopping(5, KeyboardInterrupt)], checkpoint_every=2)
    run = train(small_net(), arrays(), tmp_path / "run", resume=True, checkpoint_every=2)
    assert any("trained before in this process" in warning for warning in run.privacy.warnings)


def test_a_resumed_run_leaves_no_older_statement_behind(tmp_path: Path) -> None:
    train(small_net(), arrays(), tmp_path / "run", observers=[Stopping(5, KeyboardInterrupt)], checkpoint_every=2)
    assert (tmp_path / "run" / "statement.txt").exists()

    class Looking(Stopping):
        def begin(self, facts: Facts) -> None:
            for name in ("statement.txt", "privacy.json", "model.safetensors", "summary.json"):
                assert not (tmp_path / "run" / name).exists()

    run = train(
        small_net(), arrays(), tmp_path / "run", observers=[Looking(99, SystemExit)], resume=True, checkpoint_every=2
    )
    assert json.loads((tmp_path / "run" / "privacy.json").read_text())["steps_charged"] == run.privacy.steps_charged


@pytest.mark.parametrize("known_first", [True, False])
def test_one_process_with_noise_that_can_be_repeated_taints_the_run(tmp_path: Path, known_first: bool) -> None:
    tiers: list[Any] = [ReproducibleRandomness(3), "secure"]
    first, second = tiers if known_first else tiers[::-1]
    stopped = [Stopping(5, KeyboardInterrupt)]
    train(small_net(), arrays(), tmp_path / "run", observers=stopped, randomness=first, checkpoint_every=2)
    run = train(small_net(), arrays(), tmp_path / "run", randomness=second, resume=True, checkpoint_every=2)
    assert not run.privacy.private
    text = run.privacy.statement()
    assert text.startswith("NOT PRIVATE")
    assert "2 processes worked on this run" in text
    assert read_ledger(tmp_path / "run" / "ledger.log").epsilon() == float("inf")


def test_noise_that_can_be_repeated_has_no_epsilon_on_the_way(tmp_path: Path) -> None:
    run = train(small_net(), arrays(), tmp_path / "run", randomness=ReproducibleRandomness(3))
    assert [metrics.epsilon for metrics in run.metrics] == [None] * len(run.metrics)
