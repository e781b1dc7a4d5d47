"""Evaluation on training records is refused, however they are wrapped; other records are evaluated on as usual."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

import adadpigu as ad
from adadpigu.integrations.lightning.loading import PrivateLoader
from lightning_cases import Classifier, N, loader, net, records, same, strategy, trainer
from wrapped_records import Wrapped

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
TRAIN = TensorDataset(*records())
OTHER = TensorDataset(*records(2))
SHARED = "val_dataloader: there are training records among its records"
COPIES = "val.*: these are the training records"


class Own(Dataset[Any]):
    """Tensors in a class of the user's own."""

    def __init__(self, inputs: Any, targets: Any) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index], self.targets[index]


class Several(Classifier):
    """Takes several validation sets."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        super().validation_step(batch, batch_idx)


def loaded(data: Any) -> DataLoader[Any]:
    return DataLoader(data, batch_size=16)


@pytest.mark.parametrize("sanity", [0, 2])
@pytest.mark.parametrize(
    ("evaluated", "told"),
    [
        (TRAIN, SHARED),
        (Subset(TRAIN, [5]), SHARED),
        (Subset(Subset(TRAIN, range(10, 20)), [0]), SHARED),
        (ConcatDataset([OTHER, Subset(TRAIN, [1])]), SHARED),
        (Wrapped(Subset(TRAIN, range(8))), SHARED),
        (TensorDataset(TRAIN.tensors[0][3:5], torch.zeros(2, dtype=torch.long)), SHARED),
        (TensorDataset(*(part.clone() for part in TRAIN.tensors)), COPIES),
        (TensorDataset(*(part[:20].clone() for part in TRAIN.tensors)), COPIES),
        (Own(*TRAIN.tensors), SHARED),
        (Own(*(part[5:6] for part in TRAIN.tensors)), SHARED),
        (Own(*(part.clone() for part in TRAIN.tensors)), COPIES),
        ([(TRAIN.tensors[0][5].clone(), TRAIN.tensors[1][5])], COPIES),
    ],
)
def test_validation_on_training_records_is_refused(evaluated: Any, told: str, sanity: int) -> None:
    module = Classifier()
    with pytest.raises(ad.InputError, match=told):
        trainer(strategy(), num_sanity_val_steps=sanity).fit(module, loaded(TRAIN), loaded(evaluated))
    assert same(module.net, net())


@pytest.mark.parametrize("copy", [False, True])
def test_training_records_in_a_class_of_the_users_own_are_found_in_another_of_its_objects(copy: bool) -> None:
    parts = [part.clone() if copy else part for part in TRAIN.tensors]
    with pytest.raises(ad.InputError, match=COPIES if copy else SHARED):
        trainer(strategy()).fit(Classifier(), loaded(Own(*TRAIN.tensors)), loaded(Own(*parts)))


@pytest.mark.parametrize(
    "other", [Own(*OTHER.tensors), [OTHER[number] for number in range(N)], Own(*TRAIN.tensors[:1] * 2)]
)
def test_reading_records_to_compare_them_moves_no_generator_and_refuses_no_others(other: Any) -> None:
    train = PrivateLoader(loaded(Own(TRAIN.tensors[0] + 1, TRAIN.tensors[1])), N)
    state = torch.get_rng_state()
    train.refuse_training_records(other, "val")
    assert torch.equal(torch.get_rng_state(), state)


def test_a_long_table_of_few_categories_that_was_read_twice_is_found_by_all_its_rows() -> None:
    """Some of its rows alone have the values of training records by chance, as those of any such table do."""
    rows = torch.randint(4, (3000, 4), generator=torch.Generator().manual_seed(0)).float()
    table = Own(rows, (rows.sum(1) > 6).long())
    for order in (torch.arange(3000), torch.arange(3000).flip(0)):
        with pytest.raises(ad.InputError, match=COPIES):
            PrivateLoader(loaded(table), 3000).refuse_training_records(Own(rows[order], table.targets[order]), "val")
    fresh = torch.randint(4, (3000, 4), generator=torch.Generator().manual_seed(1)).float()
    PrivateLoader(loaded(table), 3000).refuse_training_records(Own(fresh, table.targets), "val")


@pytest.mark.parametrize("other", [[{"x": 1}], [(torch.zeros(2), 0)], [("text", 0)], [5], [object()], []])
def test_of_records_in_another_form_none_is_a_copy(other: Any) -> None:
    PrivateLoader(loaded(TRAIN), N).refuse_training_records(other, "val")


def test_of_several_validation_sets_each_is_looked_at() -> None:
    with pytest.raises(ad.InputError, match=SHARED):
        trainer(strategy()).fit(Several(), loaded(TRAIN), [loaded(OTHER), loaded(Subset(TRAIN, [0]))])


@pytest.mark.parametrize("part", [TRAIN, Subset(TRAIN, range(4))])
def test_records_that_were_trained_on_are_not_tested_or_validated_on_afterwards(part: Any) -> None:
    module, run = Classifier(), trainer(strategy())
    module.test_step = module.validation_step  # type: ignore[method-assign]
    run.fit(module, loaded(TRAIN))
    with pytest.raises(ad.InputError, match="test_dataloader: there are training records"):
        run.test(module, loaded(part), verbose=False)
    with pytest.raises(ad.InputError, match=SHARED):
        run.validate(module, loaded(part), verbose=False)
    assert run.test(module, loaded(OTHER), verbose=False)[0]["val_loss"] > 0


def test_records_that_were_validated_on_are_not_trained_on_afterwards() -> None:
    module, run = Classifier(), trainer(strategy())
    run.validate(module, loaded(Subset(TRAIN, range(4))), verbose=False)
    with pytest.raises(ad.InputError, match=SHARED):
        run.fit(module, loaded(TRAIN))


@pytest.mark.parametrize("train", [Subset(TRAIN, range(N // 2)), Wrapped(Subset(TRAIN, range(N // 2)))])
def test_the_other_part_of_a_split_is_evaluated_on(train: Any) -> None:
    rest = Subset(TRAIN, range(N // 2, N))
    private = strategy(records=N // 2, randomness=None)
    run = trainer(private)
    run.fit(Several(), loaded(train), [loaded(rest), loader(records(3))])
    assert any("val_loss" in name for name in run.callback_metrics)
    assert private.run.steps_done > 0
