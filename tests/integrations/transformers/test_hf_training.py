"""Hugging Face's Trainer, made private, ends where `ad.train` does; and a record's gradient is that of its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from small_models import (
    BATCH,
    CLASSES,
    CONFIGS,
    LENGTH,
    RECORDS,
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
)

import adadpigu as ad
from adadpigu.core.bounding import GradientSum
from adadpigu.core.gradients import ghost
from adadpigu.core.gradients.choice import choose_engine
from adadpigu.core.gradients.engine import GradientEngine, flat_gradient
from adadpigu.core.gradients.ghost import GhostEngine
from adadpigu.core.gradients.losses import GivenLosses, Objective
from adadpigu.core.gradients.rule_engine import RuleEngine
from adadpigu.core.layout import Layout
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.core.sensitive import Records, unseal
from adadpigu.data.datasets import no_targets
from adadpigu.integrations.transformers import PrivateTrainer
from adadpigu.integrations.transformers.layers import register_rules

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
    same = trainer(other, arguments(tmp_path))
    run = ad.train(
        other,
        same._data,
        losses=same._losses(),
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


def _batch(private: PrivateTrainer, count: int = RECORDS) -> Records:
    batch = private._data.train.take(torch.arange(count))[0]
    return Records((batch, no_targets(batch)))


def _engine(private: PrivateTrainer) -> GradientEngine:
    register_rules(private.model)
    batch = unseal(_batch(private, 4))
    return choose_engine(private.model, None, batch, losses=private._losses())


@pytest.mark.parametrize("name", CONFIGS)
def test_layer_rules_cover_the_usual_transformers(name: str, tmp_path: Path) -> None:
    assert _engine(trainer(classifier(name), arguments(tmp_path))).name == "ghost"


@pytest.mark.slow
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
    engine = _engine(private)
    model.train()
    found = unseal(engine.per_sample_gradients(_batch(private, 4))).gradients
    assert engine.name == "ghost"
    for row, record in zip(found, data, strict=True):
        expected = _own_gradient(model, record)
        assert torch.allclose(row, expected, rtol=1e-3, atol=1e-5 * float(expected.norm()))
        assert float(expected.norm()) > 0


@pytest.mark.parametrize("task", ["classes", "next tokens"])
def test_label_smoothing_is_that_of_trainer(task: str, tmp_path: Path) -> None:
    model = classifier(**QUIET) if task == "classes" else AutoModelForCausalLM.from_config(config("gpt2", **QUIET_GPT2))
    data = records() if task == "classes" else [{"input_ids": record["input_ids"]} for record in records()]
    private = trainer(model, arguments(tmp_path, label_smoothing_factor=0.2), train_dataset=data)
    batch = private.data_collator(data[:1])
    assert torch.allclose(private._losses()(model, batch)[0], private.compute_loss(model, dict(batch)))


@pytest.mark.parametrize("kind", ["plain", "standardised"])
def test_gpt2_layers_are_added_up_without_being_built(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Conv1D's weights are transposed; the sums are those of rows that are built."""
    monkeypatch.setattr(ghost, "_WIDE", 1)
    private = trainer(classifier("gpt2", **QUIET_GPT2), arguments(tmp_path))
    register_rules(private.model)
    model, net = private.model, Objective(private.model, private._losses())
    size = Layout.of(model).size
    generator = torch.Generator().manual_seed(2)
    vectors: dict[str, Any] = {}
    if kind == "standardised":
        vectors["center"] = 0.01 * torch.randn(size, generator=generator).double()
        vectors["scale"] = 0.1 + torch.rand(size, generator=generator).double()
    query = GradientSum(clip_norm=0.05, **vectors)
    sums = []
    for kind_of in (GhostEngine, RuleEngine):
        model.train()
        sums.append(unseal(kind_of(model, GivenLosses(), "", net).clipped_sum(_batch(private, 6), query)))
    assert torch.allclose(sums[0], sums[1], rtol=1e-4, atol=1e-6)
    assert float(sums[1].norm()) > 0.05


@pytest.mark.slow
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
    batch = private.data_collator(records(5, seed=2))
    with torch.no_grad():
        assert torch.equal(again.eval()(**batch).logits, model.eval()(**batch).logits)
    assert (tmp_path / "checkpoint-4" / "model.safetensors").exists()
    assert "scores on evaluation records" in " ".join(private.run.privacy.statement().split())


def test_padding_is_to_the_declared_length_whatever_is_drawn(tmp_path: Path) -> None:
    private = trainer(classifier(), arguments(tmp_path), train_dataset=records(5))
    columns = unseal(_batch(private, 5))[0]
    for number, record in enumerate(records(5)):
        count = len(record["input_ids"])
        assert columns["input_ids"][number].tolist() == record["input_ids"] + [0] * (LENGTH - count)
        assert columns["attention_mask"][number].tolist() == [1] * count + [0] * (LENGTH - count)


def test_token_types_are_passed_on(tmp_path: Path) -> None:
    data = [{**record, "token_type_ids": [0] + [1] * (len(record["input_ids"]) - 1)} for record in records(4)]
    private = trainer(classifier(), arguments(tmp_path, per_device_train_batch_size=2), train_dataset=data, records=4)
    columns = unseal(_batch(private, 4))[0]
    found = private.model.eval()(**{key: value for key, value in columns.items() if key != "labels"}).logits
    for row, record in zip(found, data, strict=True):
        taken = {key: torch.tensor([record[key]]) for key in ("input_ids", "attention_mask", "token_type_ids")}
        assert torch.allclose(row, private.model(**taken).logits[0], atol=1e-5)


@pytest.mark.slow
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
    with pytest.warns(UserWarning, match="slow for a transformer: one record at a time in a loop"):
        trainer(model, arguments(tmp_path, max_steps=1)).train()


def test_a_compiled_model_is_trained_as_the_module_inside(tmp_path: Path) -> None:
    plain, inside = classifier(), classifier()
    trainer(plain, arguments(tmp_path / "plain", max_steps=1)).train()
    with pytest.warns(UserWarning, match="the model is compiled"):
        compiled = trainer(cast(nn.Module, torch.compile(inside)), arguments(tmp_path / "compiled", max_steps=1))
    compiled.train()
    for one, other in zip(plain.parameters(), inside.parameters(), strict=True):
        assert torch.equal(one, other)
