"""Whatever would make a Trainer's training non-private is refused by name, and no uncharged run ends well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import LENGTH, WORDS, arguments, classifier, records, trainer
from torch.utils.data import DataLoader, IterableDataset, Subset
from transformers import Trainer, TrainerCallback

import adadpigu as ad
from adadpigu.compat.transformers import PrivateTrainer
from adadpigu.compat.transformers.settings import ARGUMENTS

SETTINGS: dict[str, Any] = {
    "gradient_accumulation_steps": 2,
    "max_grad_norm": 0.5,
    "bf16": True,
    "gradient_checkpointing": True,
    "auto_find_batch_size": True,
    "train_sampling_strategy": "group_by_length",
    "dataloader_drop_last": True,
    "data_seed": 7,
    "include_num_input_tokens_seen": "all",
    "skip_memory_metrics": False,
    "debug": "underflow_overflow",
    "neftune_noise_alpha": 5.0,
    "torch_compile": True,
    "optim": "lomo",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_is_not_private_is_refused_by_name(name: str, tmp_path: Path) -> None:
    args = arguments(tmp_path, **{name: SETTINGS[name]})
    with pytest.raises(ad.InputError, match=rf"^{name}=.*; allowed: |^{name}=.*allowed"):
        trainer(classifier(), args)


@pytest.mark.parametrize("name", ["fp16", "use_liger_kernel", "deepspeed", "fsdp", "parallelism_config", "tf32"])
def test_a_setting_that_needs_other_hardware_is_refused_by_name(name: str, tmp_path: Path) -> None:
    args = arguments(tmp_path)
    setattr(args, name, {"stage": 2} if name in ("deepspeed", "fsdp", "parallelism_config") else True)
    with pytest.raises(ad.InputError, match=rf"^{name}="):
        trainer(classifier(), args)


def test_a_setting_that_is_changed_later_is_refused_too(tmp_path: Path) -> None:
    private = trainer(classifier(), arguments(tmp_path))
    private.args.gradient_accumulation_steps = 4
    with pytest.raises(ad.InputError, match="gradient_accumulation_steps=4"):
        private.train()
    assert not (tmp_path / "private").exists()


@pytest.mark.parametrize("rate", [0.0, -1.0, None, float("nan"), float("inf"), "fast"])
def test_a_rate_by_which_nothing_is_learned_is_refused_before_it_is_paid_for(rate: Any, tmp_path: Path) -> None:
    args = arguments(tmp_path, learning_rate=rate)
    with pytest.raises(ad.InputError, match=r"learning_rate=.*allowed: a finite number above 0.*optimizers="):
        trainer(classifier(), args)
    model = classifier()
    trainer(model, args, optimizers=(torch.optim.SGD(model.parameters(), lr=0.1), None))  # args has no say


def test_what_is_no_folder_or_no_arguments_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    args = arguments(tmp_path)
    for output in ("", str(tmp_path / "file")):
        args.output_dir = output
        with pytest.raises(ad.InputError, match=r"output_dir='.*' is no folder; allowed: the name of one"):
            trainer(classifier(), args)
    with pytest.raises(ad.InputError, match=r"args=NoneType; allowed: transformers\.TrainingArguments\(output_dir="):
        trainer(classifier(), None)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ({"noise_multiplyer": 2.0}, "unknown option of PrivateTrainer 'noise_multiplyer'; did you mean 'noise_mult"),
        ({"physical_batchsize": 4}, "did you mean 'physical_batch_size'"),
        ({"ema": 2.0}, r"ema=2\.0 is not in \(0, 1\)"),
        ({"engine": "gohst"}, "unknown engine 'gohst'; did you mean 'ghost'"),
    ],
)
def test_an_option_that_is_none_is_refused_when_the_trainer_is_made(
    option: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(ad.InputError, match=told):
        trainer(classifier(), arguments(tmp_path), **option)


def test_no_epochs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ad.InputError, match=r"num_train_epochs=0: there is nothing to train"):
        trainer(classifier(), arguments(tmp_path, max_steps=-1, num_train_epochs=0))


def test_checkpointing_that_the_model_was_set_to_is_refused(tmp_path: Path) -> None:
    model = classifier()
    model.gradient_checkpointing_enable()
    with pytest.raises(ad.ModelError, match=r"gradient checkpointing is on.*gradient_checkpointing_disable\(\)"):
        trainer(model, arguments(tmp_path))


def test_quantised_weights_are_refused(tmp_path: Path) -> None:
    model = classifier()
    model.is_quantized = True
    with pytest.raises(ad.ModelError, match="BertForSequenceClassification: its weights are quantised; allowed: float"):
        trainer(model, arguments(tmp_path))


class _During(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Does something to the model at an event."""

    def __init__(self, event: str, what: Any) -> None:
        setattr(self, event, lambda args, state, control, model=None, **_: what(model))


@pytest.mark.parametrize("event", ["on_train_begin", "on_epoch_begin", "on_step_begin", "on_step_end"])
def test_checkpointing_that_a_callback_switches_on_is_refused(event: str, tmp_path: Path) -> None:
    """Whenever it does: no forward is repeated, and the weights go back to where they started."""
    model = classifier()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    switching = _During(event, lambda model: model.gradient_checkpointing_enable())
    with pytest.raises(ad.ModelError, match="gradient checkpointing is on"):
        trainer(model, arguments(tmp_path), callbacks=[switching]).train()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_mixing_model_is_named_by_its_own_class(tmp_path: Path) -> None:
    model = classifier()
    kind = type(model)
    model.__class__ = type("Mixed", (kind,), {"forward": lambda self, **given: _centred(kind.forward(self, **given))})
    with pytest.raises(ad.ModelError, match=r"'model' \(Mixed\): mixes records|<model> \(Mixed\)"):
        trainer(model, arguments(tmp_path), loss=torch.nn.functional.cross_entropy).train()


def _centred(output: Any) -> Any:
    output.logits = output.logits - output.logits.mean(0)
    return output


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument_that_has_no_place_is_refused_with_what_stands_for_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(ad.InputError, match=f"^{name}=.*allowed: "):
        trainer(classifier(), arguments(tmp_path), **{name: lambda *_: None})


class _Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(records())


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (_Stream(), "a _Stream has no length or no items by number"),
        ([], "there is no record"),
        ([([1, 2], 0)], "records are a tuple; allowed: dicts"),
        ([{"text": "hello", "label": 1}], "allowed: with input_ids"),
        ([{"input_ids": [1, 2], "inputs_embeds": [0.0], "label": 1}], "column 'inputs_embeds' cannot be packed"),
        ([{"input_ids": "hello", "label": 1}], "record 0: its input_ids is a str; allowed: numbers"),
        ([{"input_ids": [1.0], "label": 1}], r"record 0: its input_ids has shape \(1,\), torch.float32"),
        (
            [*records(2), {"input_ids": [4] * (LENGTH + 1), "label": 1}],
            f"record 2 has {LENGTH + 1} tokens; allowed: 1 to",
        ),
        ([{"input_ids": [], "label": 1}], "record 0 has 0 tokens"),
        ([{"input_ids": [WORDS], "label": 1}], f"record 0: its input_ids are not all from 0 to {WORDS - 1}"),
        ([{"input_ids": [3, 4], "attention_mask": [1], "label": 1}], "allowed: 2 whole numbers, one a token"),
        ([{"input_ids": [3, 4], "attention_mask": [0, 0], "label": 1}], "its attention_mask has no 1"),
        ([{"input_ids": [3], "token_type_ids": [2], "label": 1}], "its token_type_ids are not all from 0 to 1"),
        ([{"input_ids": [3], "label": 3}], "record 0 has a label outside 0 to 2"),
        ([{"input_ids": [3], "label": 0.5}], "its label is torch.float32; allowed: whole numbers"),
        ([{"input_ids": [3], "label": [0, 1]}], r"its label has shape \(2,\)"),
        ([{"input_ids": [3]}], "record 0 has no label"),
        ([*records(1), {"label": 1}], "record 1 has no input_ids"),
    ],
)
def test_records_that_cannot_be_packed_are_refused(data: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(ad.InputError, match=told):
        trainer(classifier(), arguments(tmp_path), train_dataset=data)


def test_lengths_and_padding_have_to_fit_the_model(tmp_path: Path) -> None:
    for length in (0, LENGTH + 1):
        with pytest.raises(ad.InputError, match=f"max_length={length}; allowed: 1 to {LENGTH}"):
            trainer(classifier(), arguments(tmp_path), max_length=length)
    with pytest.raises(ad.InputError, match=f"max_length={LENGTH + 1}; allowed: 1 to {LENGTH}"):
        trainer(classifier("roberta"), arguments(tmp_path), max_length=LENGTH + 1)
    model = classifier("gpt2")
    model.config.pad_token_id = None
    with pytest.raises(ad.InputError, match=r"pad_token_id=None: .*allowed: model.config.pad_token_id"):
        trainer(model, arguments(tmp_path))


def test_batches_larger_than_the_declared_count_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ad.InputError, match="per_device_train_batch_size=12 is not between 1 and records=5"):
        trainer(classifier(), arguments(tmp_path), records=5)


def test_searches_and_foreign_checkpoints_are_refused(tmp_path: Path) -> None:
    private = trainer(classifier(), arguments(tmp_path))
    with pytest.raises(ad.InputError, match="hyperparameter_search: every trial would be charged"):
        private.hyperparameter_search(n_trials=2)
    with pytest.raises(ad.InputError, match=r"resume_from_checkpoint='checkpoint-4': .*allowed: True"):
        private.train(resume_from_checkpoint="checkpoint-4")
    with pytest.raises(ad.InputError, match="get_train_dataloader: its batches are charged"):
        private.get_train_dataloader()


def test_a_run_is_not_written_over(tmp_path: Path) -> None:
    trainer(classifier(), arguments(tmp_path)).train()
    with pytest.raises(ad.InputError, match=r"output_dir=.* already holds a run.*resume_from_checkpoint=True"):
        trainer(classifier(), arguments(tmp_path)).train()


class _OwnLoss(PrivateTrainer):
    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return model(**inputs).loss


class _PlainSteps(PrivateTrainer):
    """Both ends of the private step replaced by Trainer's."""

    def get_train_dataloader(self) -> Any:
        return DataLoader(self.train_dataset, batch_size=4, shuffle=True, collate_fn=self.data_collator)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        return Trainer.training_step(self, *args, **kwargs)


@pytest.mark.parametrize(("kind", "name"), [(_OwnLoss, "compute_loss"), (_PlainSteps, "training_step")])
def test_a_subclass_that_trains_by_itself_is_refused(kind: type[PrivateTrainer], name: str, tmp_path: Path) -> None:
    with pytest.raises(ad.InputError, match=rf"{kind.__name__}\.{name} is overridden"):
        kind(classifier(), arguments(tmp_path), train_dataset=records(), records=48, noise_multiplier=1.0)


def test_a_shuffling_loader_is_refused(tmp_path: Path) -> None:
    private = trainer(classifier(), arguments(tmp_path))
    data: Any = records()
    loader = DataLoader[Any](data, batch_size=4, shuffle=True, collate_fn=private.data_collator)
    private.get_train_dataloader = lambda: loader  # type: ignore[method-assign]
    with pytest.raises(ad.InputError, match=r"PrivateTrainer\.get_train_dataloader is overridden"):
        private.train()


def test_a_run_that_never_charged_the_ledger_cannot_end_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the check for overridden methods switched off, plain training gets to the end, and the end is an error."""
    monkeypatch.setattr("adadpigu.compat.transformers.trainer.refuse_overridden", lambda *_: None)
    private = _PlainSteps(
        classifier(), arguments(tmp_path), train_dataset=records(), records=48, max_length=LENGTH, noise_multiplier=1.0
    )
    with pytest.raises(ad.PrivacyLineError, match="made 4 steps, of which 0 were drawn, charged and released"):
        private.train()
    with pytest.raises(ad.InputError, match="nothing was trained"):
        _ = private.run


def test_a_step_that_was_not_released_cannot_end_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainer counts one step more than there were releases: all but one are on the ledger, and that is not enough."""

    class Counting(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 2:
                state.global_step += 1

    with pytest.raises(ad.PrivacyLineError, match="made 4 steps, of which 3 were drawn, charged and released"):
        trainer(classifier(), arguments(tmp_path), callbacks=[Counting()]).train()


def test_a_batch_that_was_not_drawn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with the loader alone replaced."""
    monkeypatch.setattr("adadpigu.compat.transformers.trainer.refuse_overridden", lambda *_: None)
    monkeypatch.setattr(PrivateTrainer, "get_train_dataloader", _PlainSteps.get_train_dataloader)
    with pytest.raises(ad.PrivacyLineError, match="training_step was given a dict: records that were not drawn"):
        trainer(classifier(), arguments(tmp_path)).train()


def test_a_backward_pass_of_a_callback_ends_the_run(tmp_path: Path) -> None:
    """What was spent is reported, and the weights go back to where they started."""

    class Peeking(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            if state.global_step == 2:
                model(input_ids=torch.tensor([[3, 4]]), labels=torch.tensor([0])).loss.backward()

    model = classifier()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ad.PrivacyLineError, match="a backward pass of your own"):
        trainer(model, arguments(tmp_path), callbacks=[Peeking()]).train()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert (tmp_path / "private" / "privacy.json").exists()


@pytest.mark.parametrize("event", ["on_train_begin", "on_step_begin", "on_step_end", "on_train_end"])
def test_a_run_with_another_model_in_its_place_cannot_end_well(event: str, tmp_path: Path) -> None:
    def swap(*_: Any, **__: Any) -> None:
        private.model = classifier()

    callback = TrainerCallback()
    setattr(callback, event, swap)
    private = trainer(classifier(), arguments(tmp_path), callbacks=[callback])
    with pytest.raises(ad.AdaDPIGUError, match=r"trainer\.model is another BertForSequenceClassification"):
        private.train()


def test_a_record_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    data = records()
    with pytest.raises(ad.InputError, match="train_dataset: its items 3 and 4 are the same record"):
        trainer(classifier(), arguments(tmp_path), train_dataset=Subset(data, [0, 1, 2, 3, 3]))  # type: ignore[arg-type]
    with pytest.raises(ad.InputError, match="train_dataset: its items 0 and 48 are the same record"):
        trainer(classifier(), arguments(tmp_path), train_dataset=data * 2)
