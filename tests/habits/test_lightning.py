"""Habits of people who come from Lightning: precision, clipping, accumulation, dry runs, profilers, callbacks."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.plugins.precision import MixedPrecision, Precision

from adadpigu.integrations.lightning.settings import take_over_precision
from lightning_cases import STEPS, B, Classifier, loader, losses, net, records, same, strategy, trained, trainer

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_a_precision_that_cannot_be_had_is_said_to_have_no_effect_and_trains_in_float32(precision: Any) -> None:
    asked, plain, private = Classifier(), Classifier(), strategy()
    with pytest.warns(UserWarning, match=f"precision='{precision}' has no effect: the net is computed in float32"):
        trainer(private, precision=precision).fit(asked, loader(), loader(records(2)))
    trainer(strategy()).fit(plain, loader())
    assert same(asked, plain)


def test_mixed_precision_on_a_gpu_with_layer_rules_is_the_packages_own() -> None:
    """Checked without a GPU: which of the two computes in bfloat16. Norms, sums and noise stay float32."""
    on_gpu: Any = SimpleNamespace(
        precision_plugin=MixedPrecision("bf16-mixed", "cuda"), root_device=torch.device("cuda")
    )
    options: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        take_over_precision(on_gpu, options, by_rules=True)
    assert options == {"precision": "bf16"}
    assert type(on_gpu.precision_plugin) is Precision


def test_a_clipped_release_moves_weights_no_further() -> None:
    """gradient_clip_val comes after the noise; with σ = 1 it would be far above 1e-4 without it."""
    module, private = Classifier(), strategy()
    module.configure_optimizers = lambda: torch.optim.SGD(module.parameters(), lr=1.0)  # type: ignore[method-assign]
    trainer(private, gradient_clip_val=1e-4).fit(module, loader())
    moved = [now - before for now, before in zip(module.net.parameters(), net().parameters(), strict=True)]
    assert 0 < float(torch.cat([each.flatten() for each in moved]).norm()) <= STEPS * 1e-4 * 1.001


def test_fast_dev_run_is_a_plan_of_so_many_steps(capsys: pytest.CaptureFixture[str]) -> None:
    private = strategy()
    trainer(private, fast_dev_run=2).fit(Classifier(), loader())
    assert capsys.readouterr().err.count("per-record gradients: one record at a time under vmap") == 1
    assert private.run.steps == private.run.steps_done == 2


def test_profilers_timers_and_callbacks_run_and_the_statement_says_so() -> None:
    private, seen = strategy(randomness=None), list[object]()
    started = LambdaCallback(on_train_start=lambda *_: seen.append(_))
    trainer(private, profiler="simple", max_time={"hours": 1}, callbacks=[started]).fit(Classifier(), loader())
    assert private.run.steps_done == STEPS
    assert len(seen) == 1
    assert "what Classifier, its callbacks and profilers write" in " ".join(private.privacy.statement().split())


def test_accumulated_batches_are_one_logical_batch_in_parts() -> None:
    """Four batches of 4 records are one draw of 16: the steps, the noise and the weights are those of B = 16."""
    module, oracle, private = Classifier(), net(), strategy()
    trained(oracle, losses=losses)
    run = trainer(private, accumulate_grad_batches=4)
    run.fit(module, loader(batch_size=B // 4))
    assert private.run.steps_done == module.trainer.global_step == STEPS
    assert run.accumulate_grad_batches == 4
    for one, other in zip(module.net.parameters(), oracle.parameters(), strict=True):
        torch.testing.assert_close(one, other)


class Printing(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        found = super().training_step(batch, batch_idx)
        print(found["loss"], f"{found['loss']:.3f}")
        return found


def test_a_loss_that_training_step_prints_is_withheld(capsys: pytest.CaptureFixture[str]) -> None:
    trainer(strategy()).fit(Printing(), loader())
    assert {line for line in capsys.readouterr().out.splitlines() if "withheld" in line or "tensor" in line} == {
        "(withheld) (withheld)"
    }


class Annealed(Classifier):
    """As people write it: a loss that fades in, logs, a count of its own."""

    seen = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen += 1
        found = super().training_step(batch, batch_idx)
        return {**found, "loss": found["loss"] * (self.global_step > 0)}


def test_annealing_by_the_step_logging_and_settings_of_a_loader() -> None:
    """Without noise the first step moves nothing, and later ones do. What would be un-noised is withheld by name."""
    module, moves = Annealed(), [next(net().parameters()).detach()]
    watch = LambdaCallback(on_train_batch_end=lambda *_: moves.append(next(module.net.parameters()).detach().clone()))
    run = trainer(strategy(noise_multiplier=1e-9), callbacks=[watch])
    with pytest.warns(UserWarning, match="not logged") as told:
        run.fit(module, loader(shuffle=True, drop_last=True, num_workers=1, pin_memory=True))
    lines = [str(line.message) for line in told]
    assert torch.allclose(moves[1], moves[0], atol=1e-6)
    assert not torch.allclose(moves[2], moves[1], atol=1e-6)
    assert any(
        "shuffle=True and drop_last=True and num_workers=1 and pin_memory=True has no effect" in line for line in lines
    )
    assert any("'train_loss', 'train_accuracy', 'step': not logged" in line for line in lines)
    assert any("'seen'" in line and "not kept" in line for line in lines)
    assert run.logged_metrics == {}
    assert (module.seen, module.losses) == (0, [])
