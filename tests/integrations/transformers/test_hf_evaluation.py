"""Evaluation on training records is refused, however they are wrapped and by whatever way they come in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import arguments, classifier, config, records, trainer
from torch.nn import functional as F
from torch.utils.data import ConcatDataset, Subset
from transformers import AutoModelForCausalLM

import adadpigu as ad
from wrapped_records import Wrapped

TRAIN: Any = records()
OTHERS: Any = records(9, seed=8)
SHARED = "there are training records among its records"
COPIES = "_dataset.*: these are the training records"


@pytest.mark.parametrize(
    ("evaluated", "told"),
    [
        (TRAIN, SHARED),
        (TRAIN[40:], SHARED),
        (Subset(TRAIN, [7]), SHARED),
        (ConcatDataset([OTHERS, Subset(Subset(TRAIN, range(10)), [3])]), SHARED),
        (Wrapped(Subset(TRAIN, range(8))), SHARED),
        ([*OTHERS, TRAIN[0]], SHARED),
        (records(), COPIES),
        ([dict(record) for record in TRAIN[:20]], COPIES),
        ([*OTHERS, *(dict(record) for record in TRAIN[:9])], COPIES),
    ],
)
def test_training_records_are_refused(evaluated: Any, told: str, tmp_path: Path) -> None:
    """When the trainer is made, by name among several, and when one evaluates or predicts."""
    with pytest.raises(ad.InputError, match=told):
        trainer(classifier(), arguments(tmp_path), train_dataset=TRAIN, eval_dataset=evaluated)
    with pytest.raises(ad.InputError, match=told):
        trainer(classifier(), arguments(tmp_path), train_dataset=TRAIN, eval_dataset={"a": OTHERS, "b": evaluated})
    private = trainer(classifier(), arguments(tmp_path), train_dataset=TRAIN)
    with pytest.raises(ad.InputError, match=told):
        private.evaluate(evaluated)
    with pytest.raises(ad.InputError, match=told):
        private.predict(evaluated)


def test_each_refusal_names_the_data_set(tmp_path: Path) -> None:
    private = trainer(classifier(), arguments(tmp_path), train_dataset=TRAIN)
    with pytest.raises(ad.InputError, match=f"^eval_dataset: {SHARED}"):
        private.evaluate(TRAIN)
    with pytest.raises(ad.InputError, match=f"^test_dataset: {SHARED}"):
        private.predict(Subset(TRAIN, [0]))


@pytest.mark.parametrize("several", [False, True])
def test_training_records_that_are_put_in_place_later_are_refused(several: bool, tmp_path: Path) -> None:
    """Also where Trainer asks for one of several by its name."""
    private = trainer(classifier(), arguments(tmp_path), train_dataset=TRAIN, eval_dataset=OTHERS)
    later = Subset(TRAIN, [0, 1])
    private.eval_dataset = {"later": later} if several else later
    with pytest.raises(ad.InputError, match=SHARED):
        private.evaluate()


@pytest.mark.slow
def test_the_other_part_of_a_split_is_evaluated_on(tmp_path: Path) -> None:
    train, rest = Subset(TRAIN, range(36)), Subset(TRAIN, range(36, 48))
    sets = {"rest": rest, "others": OTHERS}
    private = trainer(classifier(), arguments(tmp_path), train_dataset=train, records=36, eval_dataset=sets)
    private.train()
    found = private.evaluate()
    assert {"eval_rest_loss", "eval_others_loss"} <= set(found)
    assert private.predict([{"input_ids": record["input_ids"]} for record in OTHERS]).predictions.shape == (9, 3)


def test_a_causal_language_model_has_an_evaluation_loss(tmp_path: Path) -> None:
    """Records without labels have their own tokens as targets, in evaluation as in training; against the formula."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config("gpt2"))
    words = [[{"input_ids": record["input_ids"]} for record in part] for part in (TRAIN, OTHERS)]
    args = arguments(tmp_path, per_device_eval_batch_size=len(OTHERS))
    private = trainer(model, args, train_dataset=words[0], eval_dataset=words[1])
    total, count = 0.0, 0
    with torch.no_grad():
        for record in words[1]:
            ids = torch.tensor([record["input_ids"]])
            scores = model.eval()(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, :-1]
            total += float(F.cross_entropy(scores, ids[0, 1:], reduction="sum"))
            count += ids.shape[1] - 1
    assert private.evaluate()["eval_loss"] == pytest.approx(total / count, rel=1e-4)
