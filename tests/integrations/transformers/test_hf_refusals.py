"""Whatever would make a Trainer's training non-private is refused by name, and no uncharged run ends well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from small_models import LENGTH, RECORDS, WORDS, arguments, classifier, records, trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset
from transformers import Trainer, TrainerCallback, default_data_collator

import adadpigu as ad
from adadpigu.integrations.transformers import PrivateTrainer
from adadpigu.integrations.transformers.settings import ELSEWHERE

SETTINGS: dict[str, Any] = {
    "train_sampling_strategy": "group_by_length",
    "debug": "underflow_overflow",
    "optim": "lomo",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_is_not_private_is_refused_by_name(name: str, tmp_path: Path) -> None:
    args = arguments(tmp_path, **{name: SETTINGS[name]})
    with pytest.raises(ad.InputError, match=rf"^{name}=.*; allowed: |^{name}=.*allowed"):
        trainer(classifier(), args)


IDLE: dict[str, Any] = {
    "max_grad_norm": 0.5,
    "bf16": True,
    "dataloader_drop_last": True,
    "data_seed": 7,
    "torch_compile": True,
    "include_num_input_tokens_seen": "all",
    "skip_memory_metrics": False,
}


@pytest.mark.slow
def test_a_safe_setting_without_effect_is_warned_of_and_trains_the_same(tmp_path: Path) -> None:
    args, (plain, same) = arguments(tmp_path / "idle", **IDLE), (classifier(), classifier())
    trainer(plain, arguments(tmp_path / "plain")).train()
    with pytest.warns(UserWarning, match="has no effect") as told:
        private = trainer(same, args)
    for name in IDLE:
        assert len([line for line in told if str(line.message).startswith(f"{name}=")]) == 1
    private.train()
    assert all(torch.equal(one, other) for one, other in zip(plain.parameters(), same.parameters(), strict=True))
    assert args.bf16  # the caller's arguments are theirs
    assert not [key for line in private.state.log_history for key in line if "mem" in key or "tokens" in key]


@pytest.mark.parametrize("name", ["use_liger_kernel", "deepspeed", "fsdp", "tf32"])
def test_a_setting_that_needs_other_hardware_is_refused_by_name(name: str, tmp_path: Path) -> None:
    args = arguments(tmp_path)
    setattr(args, name, {"stage": 2} if name in ("deepspeed", "fsdp") else True)
    with pytest.raises(ad.InputError, match=rf"^{name}="):
        trainer(classifier(), args)


def test_a_setting_that_is_changed_later_is_refused_too(tmp_path: Path) -> None:
    private = trainer(classifier(), arguments(tmp_path))
    private.args.debug = "underflow_overflow"
    with pytest.raises(ad.InputError, match="debug='underflow_overflow'"):
        private.train()
    assert not (tmp_path / "private").exists()


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


def test_a_mixing_model_is_named_by_its_own_class(tmp_path: Path) -> None:
    model = classifier()
    kind = type(model)

    def forward(self: Any, input_ids: Any = None, attention_mask: Any = None) -> Any:
        return _centred(kind.forward(self, input_ids=input_ids, attention_mask=attention_mask))

    model.__class__ = type("Mixed", (kind,), {"forward": forward})
    with pytest.raises(ad.ModelError, match=r"\(Mixed\): mixes records|<losses>: mixes records"):
        trainer(model, arguments(tmp_path), loss=torch.nn.functional.cross_entropy).train()


def _centred(output: Any) -> Any:
    output.logits = output.logits - output.logits.mean(0)
    return output


@pytest.mark.parametrize("name", ELSEWHERE)
def test_an_argument_that_has_no_place_is_refused_with_what_stands_for_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(ad.InputError, match=f"^{name}=.*allowed: "):
        trainer(classifier(), arguments(tmp_path), **{name: lambda *_: None})


class _Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(records())


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (_Stream(), "_Stream; allowed: a map-style data set"),
        ([], "allowed: a map-style data set with at least 1 record"),
        ([([1, 2], 0)], "record 0 cannot be collated: .*allowed: a dict of numbers"),
        ([{"text": "hello", "label": 1}], "allowed: the same columns of numbers .*input_ids .tokenise"),
        ([{"input_ids": "hello", "label": 1}], "allowed: the same columns of numbers"),
        ([{"input_ids": [1.0], "label": 1}], r"record 0: its input_ids are \(1,\) float32; allowed: 1 to"),
        (
            [*records(2), {"input_ids": [4] * (LENGTH + 1), "label": 1}],
            rf"record 2: its (input_ids|attention_mask) are \({LENGTH + 1},\).*have the tokeniser truncate",
        ),
        ([{"input_ids": [], "label": 1}], r"record 0: its input_ids are \(0,\)"),
        ([{"input_ids": [WORDS], "label": 1}], f"record 0 has input_ids outside 0 to {WORDS - 1}"),
        ([{"input_ids": [3], "token_type_ids": [2], "label": 1}], "record 0 has token_type_ids outside 0 to 1"),
        ([{"input_ids": [3], "label": 3}], "record 0 has labels outside 0 to 2"),
        ([*records(1), {"label": 1}], "record 1 has the columns"),
        ([*records(1), {"input_ids": [3], "label": 0.5}], "record 1 has the columns .*float32"),
    ],
)
def test_records_that_cannot_be_packed_are_refused(data: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(ad.InputError, match=told):
        trainer(classifier(), arguments(tmp_path), train_dataset=data)


class _Quoting(Dataset[Any]):
    """Records of which one cannot be read, and is quoted."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, place: int) -> Any:
        if place == 3:
            raise LookupError(f"patient 4711: {place}")
        return records()[place]


def _quote(rows: list[Any]) -> Any:
    raise ValueError(f"patient 4711: {rows}")


@pytest.mark.parametrize("by", ["train_dataset", "data_collator"])
def test_an_error_over_a_record_is_withheld_while_records_are_read(by: str, tmp_path: Path) -> None:
    how: dict[str, Any] = {by: _Quoting() if by == "train_dataset" else _quote}
    kind = LookupError if by == "train_dataset" else ad.InputError
    with pytest.raises(kind, match=rf"(Lookup|Value)Error at {__file__}:\d+: an error amid private records") as caught:
        trainer(classifier(), arguments(tmp_path), **how)
    assert "4711" not in str(caught.value)
    with pytest.raises((LookupError, ad.InputError), match="patient 4711"):
        trainer(classifier(), arguments(tmp_path), diagnostics=True, **how)


def test_lengths_and_padding_have_to_fit_the_model(tmp_path: Path) -> None:
    for length in (0, LENGTH + 1):
        with pytest.raises(ad.InputError, match=f"max_length={length}; allowed: 1 to {LENGTH}"):
            trainer(classifier(), arguments(tmp_path), max_length=length)
    with pytest.raises(ad.InputError, match=f"max_length={LENGTH + 1}; allowed: 1 to {LENGTH}"):
        trainer(classifier("roberta"), arguments(tmp_path), max_length=LENGTH + 1)


def test_batches_larger_than_the_declared_count_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ad.InputError, match="batch_size=12 is not between 1 and"):
        trainer(classifier(), arguments(tmp_path), records=5).train()


def test_foreign_checkpoints_and_a_look_at_the_loader_are_refused(tmp_path: Path) -> None:
    private = trainer(classifier(), arguments(tmp_path))
    with pytest.raises(ad.InputError, match=r"resume_from_checkpoint='checkpoint-4': .*allowed: True"):
        private.train(resume_from_checkpoint="checkpoint-4")
    with pytest.raises(ad.InputError, match="get_train_dataloader: its batches are charged"):
        private.get_train_dataloader()


@pytest.mark.slow
def test_a_run_that_is_finished_is_not_written_over_and_does_not_go_on(tmp_path: Path) -> None:
    trainer(classifier(), arguments(tmp_path)).train()
    with pytest.raises(
        ad.InputError, match=r"output_dir=.* holds a private run already; allowed: .*resume_from_checkpoint=True"
    ):
        trainer(classifier(), arguments(tmp_path)).train()
    with pytest.raises(ad.InputError, match="it is finished"):
        trainer(classifier(), arguments(tmp_path)).train(resume_from_checkpoint=True)


class _PlainSteps(PrivateTrainer):
    """Both ends of the private step replaced by Trainer's."""

    def get_train_dataloader(self) -> Any:
        return DataLoader(self.train_dataset, batch_size=4, shuffle=True, collate_fn=self.data_collator)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        return Trainer.training_step(self, *args, **kwargs)


def test_a_run_that_never_charged_the_ledger_cannot_end_well(tmp_path: Path) -> None:
    """A subclass with a loader and a step of its own gets to the end, and the end is an error."""
    private = _PlainSteps(
        classifier(), arguments(tmp_path), train_dataset=records(), records=48, max_length=LENGTH, noise_multiplier=1.0
    )
    with pytest.raises(ad.PrivacyLineError, match="made 4 steps, of which 0 were drawn, charged and released"):
        private.train()
    with pytest.raises(ad.InputError, match="nothing was trained"):
        _ = private.run


@pytest.mark.slow
def test_a_step_that_was_not_released_cannot_end_well(tmp_path: Path) -> None:
    """Trainer counts one step more than there were releases: all but one are on the ledger, and that is not enough."""

    class Counting(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 2:
                state.global_step += 1

    with pytest.raises(ad.PrivacyLineError, match="made 4 steps, of which 3 were drawn, charged and released"):
        trainer(classifier(), arguments(tmp_path), callbacks=[Counting()]).train()


def test_a_batch_that_was_not_drawn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with the loader alone replaced."""
    monkeypatch.setattr(PrivateTrainer, "get_train_dataloader", _PlainSteps.get_train_dataloader)
    with pytest.raises(ad.PrivacyLineError, match="training_step was given a dict: records that were not drawn"):
        trainer(classifier(), arguments(tmp_path)).train()


@pytest.mark.slow
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


def test_a_record_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    data = records()
    with pytest.raises(ad.InputError, match="train_dataset: its items 3 and 4 are the same record"):
        trainer(classifier(), arguments(tmp_path), train_dataset=Subset(data, [0, 1, 2, 3, 3]))  # type: ignore[arg-type]
    with pytest.raises(ad.InputError, match="train_dataset: its items 0 and 48 are the same record"):
        trainer(classifier(), arguments(tmp_path), train_dataset=data * 2)


def masking(features: list[dict[str, Any]]) -> dict[str, Any]:
    """Masks tokens at random, as collators for masked language models do."""
    short = {"input_ids", "attention_mask", "label"}
    made = default_data_collator([{k: v for k, v in each.items() if k in short} for each in features])
    made["input_ids"] = made["input_ids"].where(torch.rand(made["input_ids"].shape) > 0.5, 1)
    return cast(dict[str, Any], made)


def test_a_collator_masks_by_secret_numbers_and_hides_no_training_record(tmp_path: Path) -> None:
    columns = []
    for number in range(2):
        made = trainer(classifier(), arguments(tmp_path / str(number)), data_collator=masking)
        columns.append(made._data.train.take(torch.arange(RECORDS))[0]["input_ids"])
    assert not torch.equal(*columns)  # the same seed of TrainingArguments
    with pytest.raises(ad.InputError, match="eval_dataset: these are the training records"):
        trainer(classifier(), arguments(tmp_path), data_collator=masking, eval_dataset=[dict(r) for r in records()])


class Keeping(PrivateTrainer):
    """Keeps the losses that it sees, and logs their mean."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: dict[str, list[float]] = {"ce": []}

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        self.seen["ce"].append(1.0)
        return loss

    def log(self, logs: Any, start_time: float | None = None) -> None:
        super().log({**logs, **{name: sum(found) for name, found in self.seen.items() if found}}, start_time)


def test_what_a_loss_of_ones_own_keeps_on_the_trainer_is_not_logged(tmp_path: Path) -> None:
    made = trainer(classifier(), arguments(tmp_path, max_steps=1), kind=Keeping)
    made.train()
    assert made.state.log_history
    assert not any("ce" in line for line in made.state.log_history)
