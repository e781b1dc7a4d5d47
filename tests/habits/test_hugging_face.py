"""Habits of people who come from Hugging Face's Trainer: settings, collators, a compute_loss of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
    BertForSequenceClassification,
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorWithPadding,
    GPT2Config,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    TrainerCallback,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

import adadpigu as ad
from adadpigu.core.bounding import GradientSum
from adadpigu.core.gradients import choose_engine
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.core.sensitive import Records, unseal
from adadpigu.data.datasets import no_targets
from adadpigu.integrations.transformers import PrivateTrainer

N, LENGTH, WORDS = 24, 8, 30
BERT = BertConfig(
    vocab_size=WORDS,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=LENGTH,
    num_labels=3,
)
GPT2 = GPT2Config(vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=LENGTH, bos_token_id=1, eos_token_id=2)
WEIGHTS = torch.tensor([1.0, 2.0, 5.0])


def made(kind: Any, config: Any = BERT) -> Any:
    torch.manual_seed(0)
    return kind.from_config(config) if hasattr(kind, "from_config") else kind(config)


def texts(count: int = N, **columns: Any) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(2, LENGTH + 1, (count,), generator=generator).tolist()
    rows = [torch.randint(3, WORDS, (length,), generator=generator).tolist() for length in lengths]
    return [{"input_ids": ids, **{name: give(i, ids) for name, give in columns.items()}} for i, ids in enumerate(rows)]


LABELLED = texts(label=lambda i, _: i % 3)


def trainer(folder: Path, model: Any, data: Any = LABELLED, kind: Any = PrivateTrainer, **changes: Any) -> Any:
    settings = {"per_device_train_batch_size": 8, "max_steps": 2, "learning_rate": 0.1, "optim": "sgd"}
    asked = changes.pop("settings", {})
    args = TrainingArguments(
        str(folder), save_strategy="no", use_cpu=True, disable_tqdm=True, report_to="none", **{**settings, **asked}
    )
    how = {"records": N, "max_length": LENGTH, "method": ad.DPSGD(clip_norm=0.5), "noise_multiplier": 1.0}
    return kind(model, args, train_dataset=data, randomness=ReproducibleRandomness(5), seed=3, **{**how, **changes})


def weights_of(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def trained(folder: Path, dropout: bool = True, **changes: Any) -> Tensor:
    """A BERT's weights after training; noise and draws are the same each time."""
    quiet = {} if dropout else {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = made(AutoModelForSequenceClassification, BertConfig.from_dict({**BERT.to_dict(), **quiet}))
    trainer(folder, model, **changes).train()
    return weights_of(model)


@pytest.fixture(scope="module")
def plainly(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Tensor]:
    """With dropout, and without."""
    return {dropout: trained(tmp_path_factory.mktemp("plain"), dropout) for dropout in (True, False)}


@pytest.mark.parametrize(
    "settings",
    [
        {"gradient_checkpointing": True},
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
        {"auto_find_batch_size": True},
        {"bf16": True, "max_grad_norm": 0.3, "torch_compile": True, "dataloader_drop_last": True},
    ],
    ids=lambda settings: " ".join(settings),
)
@pytest.mark.filterwarnings("ignore:.*has no effect", "ignore:use_reentrant=True")
def test_a_setting_about_memory_or_speed_trains_to_the_same_weights(
    settings: dict[str, Any], plainly: dict[bool, Tensor], tmp_path: Path
) -> None:
    """A forward that is repeated for checkpointing draws the same dropout again; parts of a batch draw their own."""
    dropout = "per_device_train_batch_size" not in settings and "auto_find_batch_size" not in settings
    found = trained(tmp_path, dropout, settings=settings)
    assert torch.allclose(found, plainly[dropout], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [{"neftune_noise_alpha": 5.0}, {"label_smoothing_factor": 0.1}, {"lr_scheduler_type": "cosine", "warmup_steps": 1}],
    ids=lambda settings: next(iter(settings)),
)
def test_a_setting_that_changes_the_training_of_each_record_runs(
    settings: dict[str, Any], plainly: dict[bool, Tensor], tmp_path: Path
) -> None:
    assert not torch.equal(trained(tmp_path, settings=settings), plainly[True])


class _Own(PrivateTrainer):
    """As the documentation of transformers has it."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        assert num_items_in_batch is None
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = nn.CrossEntropyLoss(weight=WEIGHTS)(outputs.logits.view(-1, 3), labels.view(-1))
        self.log({"seen": float(loss.detach())})
        return (loss, outputs) if return_outputs else loss


def weighted(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    return F.cross_entropy(outputs.logits, labels, WEIGHTS)


WAYS: dict[str, dict[str, Any]] = {
    "compute_loss": {"kind": _Own},
    "compute_loss_func": {"compute_loss_func": weighted},
    "loss": {"loss": nn.CrossEntropyLoss(weight=WEIGHTS)},
}


@pytest.mark.parametrize("way", WAYS)
def test_class_weights_multiply_the_loss_of_each_record(way: str, tmp_path: Path) -> None:
    model = made(AutoModelForSequenceClassification)
    private = trainer(tmp_path, model, **WAYS[way])
    batch = private._data.train.take(torch.arange(6))[0]
    model.eval()
    found = private._losses()(model, batch)
    scores = model(**{key: value for key, value in batch.items() if key != "labels"}).logits
    expected = WEIGHTS[batch["labels"]] * F.cross_entropy(scores, batch["labels"], reduction="none")
    assert torch.allclose(found, expected, atol=1e-5)


def test_a_compute_loss_of_ones_own_trains_one_record_at_a_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slower, which is said; what it logs is withheld, and the statement names it."""
    private = trainer(tmp_path, made(AutoModelForSequenceClassification), kind=_Own, settings={"logging_steps": 1})
    with pytest.warns(UserWarning, match="slow for a transformer: one record at a time .*; for layer rules .*loss=f"):
        private.train()
    assert capsys.readouterr().err.count("per-record gradients: one record at a time") == 1
    assert private.run.steps_done == 2
    assert not [line for line in private.state.log_history if "seen" in line or "loss" in line]
    assert [text for text in private.run.privacy.not_covered if "compute_loss" in text]


class _Contrast(PrivateTrainer):
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        scores = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
        return scores.logsumexp(0).sum()


class _Broken(PrivateTrainer):
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        return model(**inputs).loss * inputs["importance"]


def test_a_loss_over_the_whole_batch_is_refused_and_an_error_keeps_its_type(tmp_path: Path) -> None:
    with pytest.raises(ad.ModelError, match="compute_loss: the loss of a batch is neither the mean nor the sum"):
        trainer(tmp_path, made(AutoModelForSequenceClassification), kind=_Contrast).train()
    with pytest.raises(KeyError, match="importance"):
        trainer(tmp_path, made(AutoModelForSequenceClassification), kind=_Broken).train()


@pytest.mark.parametrize("own", [False, True])
def test_a_record_whose_labels_are_all_ignored_contributes_zero(own: bool, tmp_path: Path) -> None:
    data = texts(labels=lambda i, ids: [-100 if i == 2 else i % 3] * len(ids))
    model = made(AutoModelForTokenClassification)
    private = trainer(
        tmp_path,
        model,
        data,
        **({"compute_loss_func": lambda out, labels, **_: token_mean(out, labels)} if own else {}),
    )
    batch = private._data.train.take(torch.arange(4))[0]
    engine = choose_engine(model, None, (batch, no_targets(batch)), losses=private._losses())
    assert (engine.name == "ghost") is not own
    alone = {key: value[2:3] for key, value in batch.items()}
    total = unseal(engine.clipped_sum(Records((alone, no_targets(alone))), GradientSum(clip_norm=1.0)))
    assert not total.any()
    others = {key: value[:2] for key, value in batch.items()}
    assert unseal(engine.clipped_sum(Records((others, no_targets(others))), GradientSum(clip_norm=1.0))).any()


def token_mean(outputs: Any, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs.logits.view(-1, 3), labels.view(-1))


def test_a_model_of_another_task_trains_by_its_own_loss(tmp_path: Path) -> None:
    data = texts(start_positions=lambda *_: 0, end_positions=lambda *_: 1)
    model = made(AutoModelForQuestionAnswering, BertConfig.from_dict({**BERT.to_dict(), "num_labels": 2}))
    private = trainer(tmp_path, model, data)
    before = weights_of(model)
    with pytest.warns(UserWarning, match="slow for a transformer: ") as told:
        private.train()
    assert not [one for one in told if "loss=f" in str(one.message)]  # it has no logits and labels
    assert not torch.equal(weights_of(model), before)
    assert private.run.steps_done == 2


def test_scripts_that_end_by_logging_and_saving_metrics_get_what_is_public(tmp_path: Path) -> None:
    private = trainer(tmp_path, made(AutoModelForSequenceClassification))
    metrics = private.train().metrics
    private.log_metrics("train", metrics)
    private.save_metrics("train", metrics)
    assert set(metrics) == {"epoch", "train_steps"}
    assert metrics["train_steps"] == 2


def test_images_train_without_tokens(tmp_path: Path) -> None:
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4
    )
    config.num_labels = 3
    data = [{"pixel_values": torch.rand(3, 8, 8), "labels": i % 3} for i in range(N)]
    private = trainer(tmp_path, made(ViTForImageClassification, config), data, max_length=None)
    private.train()
    assert private.run.steps_done == 2


def tokeniser() -> PreTrainedTokenizerFast:
    words = {str(number): number for number in range(WORDS)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words)), pad_token="0", mask_token="1")


@pytest.mark.parametrize("collator", [DataCollatorWithPadding, DataCollatorForLanguageModeling, None])
def test_padding_collators_and_causal_language_models(collator: Any, tmp_path: Path) -> None:
    """Evaluation has a loss; steps are seen by callbacks; the collator's batches are padded to one length."""
    given = {} if collator is not DataCollatorForLanguageModeling else {"mlm": False}
    seen: list[int] = []

    class Counting(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            seen.append(state.global_step)

    private = trainer(
        tmp_path,
        made(AutoModelForCausalLM, GPT2),
        texts(),
        data_collator=None if collator is None else collator(tokeniser(), **given),
        processing_class=tokeniser(),
        eval_dataset=texts(40)[30:],
        callbacks=[Counting()],
    )
    private.train()
    assert seen == [1, 2]
    assert private._data.train.take(torch.arange(3))[0]["input_ids"].shape == (3, LENGTH)
    assert private.evaluate()["eval_loss"] > 0


T5 = T5Config(vocab_size=WORDS, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)


@pytest.mark.parametrize("collated", [False, True])
def test_summaries_of_several_lengths_are_padded_and_padding_counts_for_nothing(collated: bool, tmp_path: Path) -> None:
    """The loss of each record is that of the model on this record alone, unpadded."""
    model = made(T5ForConditionalGeneration, T5)
    data = texts(labels=lambda i, ids: ids[: 1 + i % 4])
    collator = DataCollatorForSeq2Seq(tokeniser(), model=model) if collated else None
    private = trainer(tmp_path, model, data, data_collator=collator)
    batch = private._data.train.take(torch.arange(6))[0]
    assert batch["labels"].shape == (6, LENGTH)
    losses = private._losses()
    assert ("loss=f" in losses.why_alone) == collated  # without labels, a model makes no logits from input_ids alone
    model.eval()
    expected = [model(**{name: torch.tensor([ids]) for name, ids in record.items()}).loss for record in data[:6]]
    assert torch.allclose(losses(model, batch), torch.stack(expected), atol=1e-5)
    if collated:  # the records are the same without it
        private.train()
        assert private.run.steps_done == 2


def test_workers_that_would_read_records_are_said_once_to_have_no_effect_on_training(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """Evaluation has them."""
    settings = {"dataloader_num_workers": 2, "max_steps": 1}
    private = trainer(tmp_path, made(AutoModelForSequenceClassification), settings=settings)
    private.train()
    told = [str(line.message) for line in recwarn if "dataloader_num_workers" in str(line.message)]
    assert len(told) == 1
    assert told[0].startswith("dataloader_num_workers=2 has no effect: training records are read once")
    assert private.args.dataloader_num_workers == 2


class CachingForSequenceClassification(BertForSequenceClassification):  # type: ignore[misc, unused-ignore]
    """Counts its calls, keeps its logits, and caches a tensor as long as the batch."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.calls, self.kept = 0, list[Tensor]()
        self.ones: Tensor | None = None

    def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None) -> Any:
        output = super().forward(input_ids=input_ids, attention_mask=attention_mask, labels=labels)
        self.calls += 1
        self.kept = [output.logits.detach()]
        if self.ones is None or len(self.ones) != len(input_ids):
            self.ones = torch.ones(len(input_ids), 1)
        output.logits = output.logits * self.ones
        return output


def test_a_model_that_caches_is_evaluated_between_steps(plainly: dict[bool, Tensor], tmp_path: Path) -> None:
    """It trains to the weights of one that does not; a warning and the statement name what changes by evaluation."""
    model = made(CachingForSequenceClassification)
    every = {"eval_strategy": "steps", "eval_steps": 1}
    private = trainer(tmp_path, model, settings=every, eval_dataset=texts(33, label=lambda i, _: i % 3)[N:])
    with pytest.warns(UserWarning, match="'calls'"):
        private.train()
    assert [line["step"] for line in private.state.log_history if "eval_loss" in line] == [1, 2]
    assert model.calls > 0
    assert [line for line in private.run.privacy.not_covered if "'calls'" in line]
    assert torch.equal(weights_of(model), plainly[True])


def test_a_length_that_is_not_given_is_told_with_what_to_set(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=f"max_length is not given: every record is padded to {LENGTH} tokens.*set"):
        trainer(tmp_path, made(AutoModelForSequenceClassification), max_length=None)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("max_lenght", "max_length"),
        ("privcy", "privacy"),
        ("compute_metric", "compute_metrics"),
        ("tokenizer", "processing_class"),
    ],
)
def test_a_misspelt_argument_gets_the_nearest_name(given: str, meant: str, tmp_path: Path) -> None:
    told = f"unknown option of PrivateTrainer {given!r}; did you mean {meant!r}"
    with pytest.raises(ad.InputError, match=told):
        trainer(tmp_path, made(AutoModelForSequenceClassification), **{given: 8})
