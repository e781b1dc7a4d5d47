"""What a private Trainer says and writes holds no training loss; a run that was stopped goes on with its schedule."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import arguments, classifier, records, trainer
from torch import Tensor
from torchmetrics import MeanMetric
from transformers import TrainerCallback

import adadpigu as ad
from adadpigu.core.randomness import SystemRandomness
from adadpigu.integrations.transformers import PrivateTrainer

TELLING = ("loss", "grad_norm", "per_second", "runtime", "flos", "tokens_seen")


class _Listening(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Keeps all that integrations would be told."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.told.append(dict(logs))


@pytest.mark.slow
def test_no_training_loss_is_said_or_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in what callbacks are told, nor on the terminal (bar and all), nor in any file, nor in the result."""
    listening = _Listening()
    args = arguments(
        tmp_path, save_strategy="steps", save_steps=2, disable_tqdm=False, log_level="info", logging_first_step=True
    )
    with caplog.at_level(logging.INFO):
        private = trainer(classifier(), args, callbacks=[listening], randomness=SystemRandomness())
        output = private.train()
    private.save_state()
    assert [line["learning_rate"] for line in listening.told[:-1]] == [0.1] * 4
    for line in listening.told:
        assert not [key for key in line if any(word in key for word in TELLING)], line
    assert output.training_loss is None
    assert output.metrics.keys() == {"epoch", "train_steps"}
    spoken = capfd.readouterr()
    for text in (spoken.out, spoken.err, caplog.text):
        assert "'loss'" not in text
        assert "grad_norm" not in text
        assert "runtime" not in text
    drawn = [line for line in spoken.err.replace("\r", "\n").splitlines() if line.endswith("/4")]
    assert len(drawn) >= 4  # the bar, of steps and not of time
    assert not [line for line in drawn if "it/s" in line or ":" in line]
    states = [*tmp_path.glob("**/trainer_state.json")]
    assert len(states) == 3
    for path in states:
        state = json.loads(path.read_text())
        assert state["total_flos"] == state["num_input_tokens_seen"] == 0
        for line in state["log_history"]:
            assert not [key for key in line if any(word in key for word in TELLING)], line
    for path in tmp_path.glob("**/*"):
        if path.suffix in (".json", ".jsonl", ".txt", ".toml", ".log", ".head"):
            assert "train_loss" not in path.read_text()
            assert "train_runtime" not in path.read_text()
            assert "grad_norm" not in path.read_text()


@pytest.mark.slow
def test_a_plain_trainer_would_have_said_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: without our `log` the stand-in for a loss gets everywhere."""
    from transformers import Trainer

    listening = _Listening()
    monkeypatch.setattr(PrivateTrainer, "log", Trainer.log)
    trainer(classifier(), arguments(tmp_path), callbacks=[listening]).train()
    assert [line for line in listening.told if "loss" in line]
    assert [line for line in listening.told if "train_runtime" in line]


@pytest.mark.slow
def test_diagnostics_are_a_file_of_their_own_and_the_statement_says_so(tmp_path: Path) -> None:
    private = trainer(classifier(), arguments(tmp_path), diagnostics=True, randomness=None)
    private.train()
    assert (tmp_path / "private" / "diagnostics.jsonl").exists()
    assert "diagnostics" in private.run.privacy.statement().lower()
    assert not [line for line in private.state.log_history if "loss" in line]


class _Meter:
    def __init__(self) -> None:
        self.total, self.count, self.values = 0.0, 0, list[float]()

    def add(self, loss: Tensor) -> None:
        self.total, self.count = self.total + float(loss), self.count + 1
        self.values.append(float(loss))


class _Keeping(PrivateTrainer):
    """Keeps its losses as the test says, and logs what was kept."""

    kept: Any = None
    keep: Callable[[Any, Tensor], object]
    read: Callable[[Any], float]

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        self.keep(self.kept, loss.detach())
        return loss

    def log(self, logs: Any, start_time: Any = None) -> None:
        super().log({**logs, "average": self.read(self.kept)}, start_time)


def _keeping(folder: Path, kept: Any, keep: Callable[[Any, Tensor], object], read: Callable[[Any], float]) -> Any:
    private: Any = trainer(classifier(), arguments(folder, max_steps=2), kind=_Keeping, engine="loop")
    private.kept, private.keep, private.read = kept, keep, read
    return private


KEPT: dict[str, Any] = {
    "object": (_Meter(), _Meter.add, lambda meter: meter.total + meter.count + len(meter.values)),
    "objects": ({"loss": [_Meter()]}, lambda kept, loss: kept["loss"][0].add(loss), lambda kept: kept["loss"][0].total),
    "list": ([], list.append, len),
    "metric": (MeanMetric(), lambda metric, loss: metric.update(loss), lambda metric: metric.update_count),
    "metrics": ({"loss": MeanMetric()}, lambda kept, x: kept["loss"].update(x), lambda kept: kept["loss"].update_count),
}


@pytest.mark.filterwarnings("ignore:slow for a transformer")
@pytest.mark.parametrize("place", KEPT)
def test_what_compute_loss_keeps_on_the_trainer_is_withheld_from_log(place: str, tmp_path: Path) -> None:
    """Else `log` would hand on the exact average of the records' losses, beside the loss that is left out."""
    private = _keeping(tmp_path, *KEPT[place])
    private.train()
    assert [line["average"] for line in private.state.log_history if "average" in line] == [0.0] * 3


@pytest.mark.filterwarnings("ignore:slow for a transformer")
def test_what_a_loss_object_keeps_of_records_is_put_back(tmp_path: Path) -> None:
    """As `compute_loss_func`, from which a callback could log it."""

    class Averaging(_Meter):
        def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
            loss = torch.nn.functional.cross_entropy(outputs.logits, labels)
            self.add(loss.detach())
            return loss

    meter = Averaging()
    trainer(classifier(), arguments(tmp_path, max_steps=1), compute_loss_func=meter, engine="loop").train()
    assert (meter.total, meter.count, meter.values) == (0.0, 0, [])


@pytest.mark.filterwarnings("ignore:slow for a transformer")
@pytest.mark.parametrize("kept", [torch.zeros(()), [torch.zeros(())]])
def test_a_tensor_of_the_trainer_that_compute_loss_adds_to_is_refused(kept: Any, tmp_path: Path) -> None:
    private = _keeping(
        tmp_path, kept, lambda kept, loss: (kept[0] if isinstance(kept, list) else kept).add_(loss), float
    )
    with pytest.raises(ad.ModelError, match=r"_Keeping: its loss changes the tensor 'kept(\[0\])?' in place"):
        private.train()


class _Stopping(TrainerCallback):  # type: ignore[misc, unused-ignore]
    def __init__(self, after: int) -> None:
        self._after = after

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step == self._after


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_with_its_schedule(tmp_path: Path) -> None:
    """Steps, epochs and learning rates are those of a run that was not stopped, and each step is charged once."""
    how = {"num_train_epochs": 2, "max_steps": -1, "lr_scheduler_type": "linear", "optim": "adamw_torch"}
    changes: dict[str, Any] = {"randomness": SystemRandomness(), "checkpoint_every": 1}
    whole = trainer(classifier(), arguments(tmp_path / "whole", **how), **changes)
    whole.train()
    first = trainer(classifier(), arguments(tmp_path / "run", **how), callbacks=[_Stopping(3)], **changes)
    first.train()
    assert first.run.interrupted
    assert first.run.steps_done == first.state.global_step == 3
    kept = first.model.state_dict()
    again = trainer(classifier(), arguments(tmp_path / "run", **how), **changes)
    seen: list[bool] = []

    class Looking(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            if not seen:
                seen.append(all(torch.equal(value, kept[name]) for name, value in model.state_dict().items()))

    again.add_callback(Looking())
    output = again.train(resume_from_checkpoint=True)
    assert seen == [True]
    assert output.global_step == again.run.steps_done == 8
    rates = [[line["learning_rate"] for line in t.state.log_history if "learning_rate" in line] for t in (whole, again)]
    assert rates[0][3:] == pytest.approx(rates[1])
    assert again.run.privacy.epsilon_pld == whole.run.privacy.epsilon_pld
    assert again.run.privacy.epsilon_spent == pytest.approx(whole.run.privacy.epsilon_spent)


def test_trainers_default_clip_does_nothing(tmp_path: Path) -> None:
    """max_grad_norm at its default and off give the same weights: a release is not clipped again."""
    ends = []
    for number, norm in enumerate((1.0, 0.0)):
        model = classifier()
        args = arguments(tmp_path / str(number), max_grad_norm=norm, max_steps=1)
        trainer(model, args, method=ad.DPSGD(clip_norm=50.0)).train()
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*ends)


def test_evaluation_pads_as_training_does_and_metrics_are_the_users(tmp_path: Path) -> None:
    def accuracy(found: Any) -> dict[str, float]:
        return {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())}

    private = trainer(classifier(), arguments(tmp_path), eval_dataset=records(9, seed=8), compute_metrics=accuracy)
    found = private.evaluate()
    predicted = private.predict(records(9, seed=8))
    assert found["eval_accuracy"] == predicted.metrics["test_accuracy"]
    assert predicted.predictions.shape == (9, 3)


def _hooked(say: Any) -> tuple[Any, list[PrivateTrainer]]:
    """A model whose hook speaks by its trainer, which is put into the list."""
    model, speaking = classifier(), list[PrivateTrainer]()

    def look(module: Any, _: Any, output: Any) -> None:
        if speaking and module.training:
            say(speaking[0], 12345.0 + float(output.detach().mean()))

    model.classifier.register_forward_hook(look)
    return model, speaking


def test_what_a_hook_logs_is_withheld_and_the_statement_names_the_hook(tmp_path: Path) -> None:
    listening = _Listening()
    model, speaking = _hooked(lambda who, value: who.log({"seen": value}))
    private = trainer(model, arguments(tmp_path, save_strategy="steps", save_steps=2), callbacks=[listening])
    speaking.append(private)
    with pytest.warns(UserWarning, match="hooks of the user's own.*forward hook look on 'classifier'"):
        private.train()
    assert not [line for line in (*listening.told, *private.state.log_history) if "seen" in line]
    assert not [path for path in tmp_path.rglob("*.json*") if "12345" in path.read_text()]
    assert [text for text in private.run.privacy.not_covered if "forward hook look on 'classifier'" in text]


@pytest.mark.parametrize("when", ["between steps", "amid a step"])
def test_an_interrupted_trainer_keeps_its_weights_and_goes_on(when: str, tmp_path: Path) -> None:
    class Pressing(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if when == "between steps" and state.global_step == 2:
                signal.raise_signal(signal.SIGINT)

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if when == "amid a step" and state.global_step == 1:
                signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    changes: dict[str, Any] = {"randomness": SystemRandomness()}
    private = trainer(classifier(), arguments(tmp_path), callbacks=[Pressing()], **changes)
    try:
        with pytest.raises(KeyboardInterrupt):
            private.train()
    finally:
        signal.signal(signal.SIGINT, before)
    assert private.run.interrupted
    assert private.run.steps_done == 2
    assert not all(
        torch.equal(one, other)
        for one, other in zip(private.model.parameters(), classifier().parameters(), strict=True)
    )
    again = trainer(classifier(), arguments(tmp_path), **changes)
    again.train(resume_from_checkpoint=True)
    assert again.run.steps_done == 4


def test_a_saved_model_and_its_card_say_what_is_claimed(tmp_path: Path) -> None:
    args = arguments(tmp_path, save_strategy="steps", save_steps=2)
    private = trainer(classifier(), args, randomness=SystemRandomness())
    private.train()
    private.save_model(str(tmp_path / "given"))
    private.create_model_card()
    said = (tmp_path / "given" / "privacy_statement.txt").read_text()
    assert said.strip() == private.run.privacy.statement()
    assert f"epsilon = {private.run.epsilon:.4g}" in (tmp_path / "README.md").read_text()
    halfway = (tmp_path / "checkpoint-2" / "privacy_statement.txt").read_text()
    assert "has not ended: after" in halfway
    assert f"epsilon = {private.run.epsilon:.4g} at delta = 1e-05" in halfway
