"""Records made to break a bound: what they are, and how they get past the checks that come before it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from adadpigu.audit.adversarial import Edge, Unchecked, adversarial_records
from adadpigu.core.bounding import GradientSum
from adadpigu.data import DataSet, TensorRecords
from adadpigu.data.checking import check_records
from adadpigu.data.datasets import IndexedRecords
from adadpigu.errors import InputError, ModelError
from trials import small_digits


def of(inputs: Tensor, targets: Tensor, classes: int | None = None) -> DataSet:
    return DataSet(name="own", train=TensorRecords(inputs, targets), records=len(inputs), classes=classes)


def test_images_and_vectors_get_every_odd_number_there_is() -> None:
    for shape in ((3, 1, 4, 4), (3, 5)):
        data = of(torch.rand(shape), torch.tensor([2, 0, 1]), classes=3)
        made = adversarial_records(data)
        assert all(image.shape == shape[1:] and image.dtype == torch.float32 for image, _ in made.values())
        huge, tiny, pierced = made["huge"][0], made["subnormal"][0], made["one infinity"][0]
        assert bool((torch.isfinite(huge) & torch.isinf(2 * huge)).all())
        assert bool(((tiny > 0) & (tiny < torch.finfo(torch.float32).smallest_normal)).all())
        assert int(torch.isinf(pierced).sum()) == 1
        assert bool(torch.isnan(made["NaN"][0]).all() and torch.isinf(made["infinite"][0]).all())
        assert bool((made["large"][0].abs() > 100).all() and (made["zero"][0] == 0).all())
        assert isinstance(data.train, TensorRecords)
        assert torch.equal(made["duplicated"][0], data.train.inputs[0])
        assert int(made["duplicated"][1]) == 2
        assert torch.equal(made["wrong class"][0], data.train.inputs[0])
        assert int(made["wrong class"][1]) == 0


def test_positions_in_a_table_stay_within_it() -> None:
    data = of(torch.tensor([[1, 4], [3, 2]]), torch.tensor([0, 1]), classes=2)
    made = adversarial_records(data)
    assert made.keys() == {"zero", "largest", "duplicated", "wrong class"}
    assert made["largest"][0].tolist() == [4, 4]
    pixels = of(torch.zeros(2, 3, dtype=torch.uint8), torch.tensor([0, 1]))
    assert adversarial_records(pixels)["largest"][0].tolist() == [255] * 3


def test_targets_that_are_no_labels_have_no_wrong_class() -> None:
    assert "wrong class" not in adversarial_records(of(torch.rand(2, 3), torch.rand(2)))
    assert "wrong class" not in adversarial_records(of(torch.rand(2, 3), torch.tensor([1, 1])))
    assert int(adversarial_records(of(torch.rand(2, 3), torch.tensor([1, 4])))["wrong class"][1]) == 4


def test_records_that_nobody_can_add_to_are_refused() -> None:
    indexed = IndexedRecords([(torch.zeros(2), 0)] * 3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="held as tensors, not IndexedRecords"):
        adversarial_records(replace(small_digits(), train=indexed))


def test_a_record_is_hidden_from_checks_until_it_is_shown() -> None:
    records = small_digits(4).train
    assert isinstance(records, TensorRecords)
    hostile = Unchecked(records, (torch.full((1, 8, 8), torch.nan), torch.tensor(99)))
    assert len(hostile) == 5
    check_records(hostile, 10, name="digits")
    assert torch.equal(hostile.take(torch.tensor([1, 4]))[0], records.inputs[[1, 0]])
    hostile.show()
    inputs, targets = hostile.take(torch.tensor([1, 4]))
    assert torch.equal(inputs[0], records.inputs[1])
    assert bool(torch.isnan(inputs[1]).all())
    assert targets.tolist() == [int(records.targets[1]), 99]
    with pytest.raises(InputError, match="record 4 has a NaN"):
        check_records(hostile, 10, name="digits")


@pytest.mark.parametrize("masked", [True, False])
def test_the_record_at_the_edge_has_half_of_its_gradient_on_a_frozen_coordinate(masked: bool) -> None:
    """By autograd: standardised, 10⁴·C on one active and on one frozen coordinate of the block, and nothing elsewhere.

    Without a mask, on two active ones. An ordinary record has the gradient it always has, and none on the block.
    """
    edge, data = Edge(), small_digits(4)
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    model, attached, loss = edge.attach(body, data)
    assert attached.classes is None
    size = sum(parameter.numel() for parameter in model.parameters())
    active = torch.rand(size, generator=torch.Generator().manual_seed(0)) < 0.5
    center, scale = torch.linspace(-1, 1, size), torch.linspace(0.5, 2, size)
    query = GradientSum(clip_norm=0.3, active=active if masked else None, center=center, scale=scale)
    edge.aim([query])
    image, target = edge.record(data)
    gradient = _gradient(model, loss(model(image[None]), target[None]))
    block = slice(size - model.block.weight.numel(), size)  # type: ignore[union-attr, operator]
    z = ((gradient - center) / scale)[block]
    assert bool((gradient[: block.start] == 0).all())
    assert z.nonzero().flatten().tolist() == z.isclose(torch.tensor(3000.0), rtol=1e-4).nonzero().flatten().tolist()
    where = active[block][z.abs() > 1]
    assert len(where) == 2
    assert int(where.sum()) == 1 or not masked
    ordinary = _gradient(model, loss(model(data.train.take(torch.tensor([0]))[0]), torch.tensor([3])))
    alone = _gradient(body, nn.functional.cross_entropy(body(data.train.take(torch.tensor([0]))[0]), torch.tensor([3])))
    torch.testing.assert_close(ordinary, torch.cat([alone, torch.zeros(size - len(alone))]))


def _gradient(model: nn.Module, loss: Tensor) -> Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss.sum(), list(model.parameters()))])


def test_a_block_needs_labels() -> None:
    with pytest.raises(ModelError, match="cannot be attached"):
        Edge().attach(nn.Linear(2, 2), of(torch.rand(2, 2), torch.zeros(2)))
