"""Hugging Face's Trainer, made private, ends where `ad.train` does; and a record's gradient is that of its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import (
    BATCH,
    CLASSES,
    CONFIGS,
    LENGTH,
    RECORDS,
    WORDS,
    arguments,
    classifier,
    config,
    records,
    trained_part,
    trainer,
)
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    Trainer,
)

import adadpigu as ad
from adadpigu.bounding import GradientSum
from adadpigu.compat.transformers.batches import steps_an_epoch
from adadpigu.compat.transformers.layers import known_layers
from adadpigu.compat.transformers.packed import PackedModel
from adadpigu.gradients import GhostEngine, RuleEngine, sequences
from adadpigu.gradients.choice import choose_engine
from adadpigu.gradients.functional import flat_gradient
from adadpigu.gradients.ghost import FACTORS
from adadpigu.gradients.losses import RecordLoss
from adadpigu.gradients.rules import RULES
from adadpigu.layout import Layout
from adadpigu.randomness import ReproducibleRandomness
from adadpigu.records import Records
from adadpigu.sensitive import unseal

METHODS: dict[str, ad.Method] = {
    "dpsgd": ad.DPSGD(clip_norm=0.5),
    "adadpigu": ad.AdaDPIGU(retention=0.5, clip_norm=0.5, importance_steps=1),
}


@pytest.mark.parametrize(
    ("part", "method"), [("full", "dpsgd"), ("full", "adadpigu"), ("lora", "dpsgd"), ("head", "dpsgd")]
)
def test_trainer_ends_at_the_weights_of_train(part: str, method: str, tmp_path: Path) -> None:
    """Under the same noise, with dropout; what is not trained stays as it was."""
    model, other = trained_part(part), trained_part(part)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    private = trainer(model, arguments(tmp_path), method=METHODS[method])
    private.train()
    packed = private._packing.packed(records(), "records")
    run = ad.train(
        PackedModel(other, private._packing.encoding),
        (packed.inputs, packed.targets),
        records=RECORDS,
        batch_size=BATCH,
        steps=4,
        method=METHODS[method],
        noise_multiplier=1.0,
        lr=0.1,
        momentum=0.0,
        seed=3,
        randomness=ReproducibleRandomness(5),
    )
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, other.get_parameter(name)), name
        if name not in trained:
            assert torch.equal(parameter, before[name]), name
    assert not all(torch.equal(model.get_parameter(name), before[name]) for name in trained)
    assert private.run.privacy.epsilon_pld == run.privacy.epsilon_pld
    assert private.run.steps_done == private.state.global_step == 4
    assert [*model.state_dict()] == [*before]


@pytest.mark.parametrize("name", CONFIGS)
def test_layer_rules_cover_the_usual_transformers(name: str, tmp_path: Path) -> None:
    private = trainer(classifier(name), arguments(tmp_path))
    assert private._engine() == "ghost"


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_rules_of_a_models_own_layers_are_known_while_it_trains_and_no_longer(name: str, tmp_path: Path) -> None:
    """What was trained before, or imported, decides nothing for a model that is trained by other means."""
    before = dict(RULES), dict(FACTORS)
    private = trainer(classifier(name), arguments(tmp_path))
    example = private._packing.encoding.example(), private._packing.task.example(4)
    private._engine()
    private.train()
    assert before == (RULES, FACTORS)
    assert choose_engine(private._adapter, private._packing.task.loss, example).name != "ghost"
    with known_layers(private.model):
        with known_layers(private.model):
            assert before != (RULES, FACTORS)
        assert choose_engine(private._adapter, private._packing.task.loss, example).name == "ghost"
    assert before == (RULES, FACTORS)


@pytest.mark.parametrize(
    ("records", "batch", "expected"), [(48, 12, 4), (49, 12, 5), (47, 12, 4), (5, 5, 1), (5, 2, 3)]
)
def test_an_epoch_has_as_many_steps_as_batches_begin_in_it(records: int, batch: int, expected: int) -> None:
    assert steps_an_epoch(records, batch) == expected


def test_an_epoch_that_does_not_come_out_even_is_trained_and_charged_as_planned(tmp_path: Path) -> None:
    """⌈50/12⌉ = 5 steps an epoch, of the declared count, which is not that of the records."""
    args = arguments(tmp_path, max_steps=-1, num_train_epochs=2)
    private = trainer(classifier(), args, records=50)
    private.train()
    assert private.run.steps == private.run.steps_done == private.state.global_step == 10
    assert private.run.privacy.steps_charged == 10


def _tokens(seed: int = 4) -> list[dict[str, Any]]:
    """Records with a label for every token, of which some do not count."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for record in records(4):
        labels = torch.randint(CLASSES, (len(record["input_ids"]),), generator=generator)
        labels[1::3] = -100
        made.append({"input_ids": record["input_ids"], "labels": labels.tolist()})
    return made


def _labelled(labels: list[Any]) -> list[dict[str, Any]]:
    return [
        {"input_ids": record["input_ids"], "labels": label} for record, label in zip(records(4), labels, strict=True)
    ]


QUIET: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
QUIET_GPT2: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
TASKS: dict[str, tuple[Any, Any, list[dict[str, Any]]]] = {
    "single label": (AutoModelForSequenceClassification, config("bert", **QUIET), _labelled([0, 1, 2, 0])),
    "regression": (
        AutoModelForSequenceClassification,
        config("bert", **QUIET, num_labels=1),
        _labelled([0.5, -1.0, 2.0, 0.0]),
    ),
    "several labels": (
        AutoModelForSequenceClassification,
        config("bert", **QUIET, problem_type="multi_label_classification"),
        _labelled([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 1.0]]),
    ),
    "gpt2 and its padding": (
        AutoModelForSequenceClassification,
        config("gpt2", **QUIET_GPT2),
        _labelled([0, 1, 2, 0]),
    ),
    "token classes": (AutoModelForTokenClassification, config("bert", **QUIET), _tokens()),
    "masked tokens, tied embeddings": (AutoModelForMaskedLM, config("bert", **QUIET), _tokens()),
    "next tokens, tied embeddings": (
        AutoModelForCausalLM,
        config("gpt2", **QUIET_GPT2),
        [{"input_ids": record["input_ids"]} for record in records(4)],
    ),
}


def _own_gradient(model: Any, record: dict[str, Any]) -> Tensor:
    """The gradient of the model's own loss on a record alone, unpadded."""
    ids = torch.tensor([record["input_ids"]])
    labels = torch.tensor([record.get("labels", record["input_ids"])])
    loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
    return flat_gradient(loss, Layout.of(model).parameters(model))


@pytest.mark.parametrize("name", TASKS)
def test_a_records_gradient_is_that_of_the_models_own_loss_on_it_alone(name: str, tmp_path: Path) -> None:
    """Neither padding nor other records show in it."""
    kind, settings, data = TASKS[name]
    torch.manual_seed(0)
    model = kind.from_config(settings)
    private = trainer(model, arguments(tmp_path, per_device_train_batch_size=2), train_dataset=data, records=4)
    assert private._engine() == "ghost"
    packed = private._packing.packed(data, "data")
    model.train()
    with known_layers(model):
        engine = choose_engine(private._adapter, private._packing.task.loss, (packed.inputs, packed.targets))
        model.train()
        found = unseal(engine.per_sample_gradients(Records((packed.inputs, packed.targets)))).gradients
    assert engine.name == "ghost"
    for row, record in zip(found, data, strict=True):
        expected = _own_gradient(model, record)
        assert torch.allclose(row, expected, rtol=1e-3, atol=1e-5 * float(expected.norm()))
        assert float(expected.norm()) > 0


def test_label_smoothing_is_that_of_trainer(tmp_path: Path) -> None:
    model = classifier(**QUIET)
    private = trainer(model, arguments(tmp_path, label_smoothing_factor=0.2))
    batch = private._packing(records(1))
    expected = private.label_smoother(model(**batch), batch["labels"])
    logits = model(**{key: value for key, value in batch.items() if key != "labels"}).logits
    assert torch.allclose(private._packing.task.loss(logits, batch["labels"]), expected)


@pytest.mark.parametrize("kind", ["plain", "standardised"])
def test_gpt2_layers_are_added_up_without_being_built(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Conv1D's weights are transposed; the sums are those of rows that are built."""
    monkeypatch.setattr(sequences, "_WIDE", 1)
    private = trainer(classifier("gpt2", **QUIET_GPT2), arguments(tmp_path))
    packed = private._packing.packed(records(6), "data")
    model, loss = private._adapter, RecordLoss(private._packing.task.loss, None)
    size = Layout.of(model).size
    generator = torch.Generator().manual_seed(2)
    vectors: dict[str, Any] = {}
    if kind == "standardised":
        vectors["center"] = 0.01 * torch.randn(size, generator=generator).double()
        vectors["scale"] = 0.1 + torch.rand(size, generator=generator).double()
    query = GradientSum(clip_norm=0.05, **vectors)
    sums = []
    with known_layers(model):
        for engine in (GhostEngine(model, loss, ""), RuleEngine(model, loss, "")):
            model.train()
            sums.append(unseal(engine.clipped_sum(Records((packed.inputs, packed.targets)), query)))
    assert torch.allclose(sums[0], sums[1], rtol=1e-4, atol=1e-6)
    assert float(sums[1].norm()) > 0.05


def test_evaluation_in_the_middle_checkpoints_and_loading(tmp_path: Path) -> None:
    """What is saved is the model's own, under its own names, and predicts the same when it is loaded."""
    model = classifier()
    args = arguments(
        tmp_path,
        num_train_epochs=2,
        max_steps=-1,
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="steps",
        save_steps=4,
    )
    private = trainer(model, args, eval_dataset=records(8, seed=9), randomness=None)
    output = private.train()
    assert output.global_step == 8
    assert [line["step"] for line in private.state.log_history if "eval_loss" in line] == [3, 6, 8]
    private.save_model(str(tmp_path / "kept"))
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "kept")
    batch = private._packing(records(5, seed=2))
    with torch.no_grad():
        assert torch.equal(again.eval()(**batch).logits, model.eval()(**batch).logits)
    assert (tmp_path / "checkpoint-4" / "model.safetensors").exists()
    assert "scores on evaluation records" in " ".join(private.run.privacy.statement().split())


def test_padding_is_to_the_declared_length_whatever_is_drawn(tmp_path: Path) -> None:
    private = trainer(classifier(), arguments(tmp_path), train_dataset=records(5))
    packed = private._packing.packed(records(5), "data")
    assert packed.inputs.shape == (5, 2, LENGTH)
    columns = private._packing.encoding.columns(packed.inputs)
    for number, record in enumerate(records(5)):
        count = len(record["input_ids"])
        assert columns["input_ids"][number].tolist() == record["input_ids"] + [0] * (LENGTH - count)
        assert columns["attention_mask"][number].tolist() == [1] * count + [0] * (LENGTH - count)


def test_token_types_are_passed_on(tmp_path: Path) -> None:
    data = [{**record, "token_type_ids": [0] + [1] * (len(record["input_ids"]) - 1)} for record in records(4)]
    private = trainer(classifier(), arguments(tmp_path, per_device_train_batch_size=2), train_dataset=data, records=4)
    packed = private._packing.packed(data, "data")
    found = private._adapter.eval()(packed.inputs)
    for row, record in zip(found, data, strict=True):
        taken = {key: torch.tensor([record[key]]) for key in ("input_ids", "attention_mask", "token_type_ids")}
        assert torch.allclose(row, private.model(**taken).logits[0], atol=1e-5)


def test_a_model_without_rules_is_slow_and_says_so(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        """Has a parameter of its own, and no rule."""

        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(16))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    model = classifier()
    model.dropout = nn.Sequential(model.dropout, Scaled())
    with pytest.warns(UserWarning, match=r"engine='loop': slow for a transformer .*no layer rule for .*Scaled"):
        trainer(model, arguments(tmp_path))._engine()


def test_vocabulary_is_that_of_the_model(tmp_path: Path) -> None:
    assert trainer(classifier(), arguments(tmp_path))._packing.encoding.vocabulary == WORDS
    assert issubclass(type(trainer(classifier(), arguments(tmp_path))), Trainer)
