"""Records made to break a bound: huge, not finite, subnormal, twice there, under a wrong label, at the mask's edge.

Checks of input refuse most of them; an audit looks behind those checks (`Unchecked`), because the bound must hold
whatever gets through.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.audit.canaries import CanaryLoss, WithBlock
from adadpigu.audit.outside import gradient_of
from adadpigu.audit.subject import held
from adadpigu.core.bounding import MappedSum, Query
from adadpigu.core.gradients import Loss
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.errors import ModelError

Record = tuple[Tensor, Tensor]  # an input and its target

EDGE = "at the mask's edge"
_LOUD = 1e4  # by how much the gradient at the edge exceeds C
_STEEP = 2.0**26  # a power of two, so that nothing is rounded: one digit of a float32 at 1 is some radians
_COORDINATES = 16  # of the dummy block: enough that a mask keeps some and freezes some


def adversarial_records(data: DataSet) -> dict[str, Record]:
    """Records to add, by name: those that make sense for inputs of this kind (numbers, or positions in a table).

    >>> data = DataSet(name="two", train=TensorRecords(torch.eye(2), torch.arange(2)), records=2, classes=2)
    >>> list(adversarial_records(data))
    ['huge', 'large', 'zero', 'subnormal', 'NaN', 'infinite', 'one infinity', 'duplicated', 'wrong class']
    >>> adversarial_records(data)["wrong class"]
    (tensor([1., 0.]), tensor(1))
    """
    records = held(data)
    image, target = records.inputs[0], records.targets[0]
    made = {name: (value, target) for name, value in _inputs(records.inputs).items()}
    made["duplicated"] = image, target
    if not records.targets.is_floating_point() and records.targets.ndim == 1:
        others = records.targets[records.targets != target]
        if (data.classes or 0) > 1:
            made["wrong class"] = image, (target + 1) % data.classes
        elif len(others):
            made["wrong class"] = image, others[0]
    return made


def hostile_base(data: DataSet) -> DataSet:
    """The same records, a third of them even, so that gradients tie, and a third so large that outputs saturate."""
    records = held(data)
    inputs = records.inputs.clone()
    inputs[1::3] = inputs.max()
    if inputs.is_floating_point():
        inputs[2::6] *= 1e3
        inputs[5::6] *= 1e4
    return replace(data, train=TensorRecords(inputs, records.targets, name=records.name))


def _inputs(inputs: Tensor) -> dict[str, Tensor]:
    """Odd inputs beside the given ones."""
    image = inputs[0]
    if not inputs.is_floating_point():  # a position outside its table is an error, not a gradient
        largest = 255 if inputs.dtype == torch.uint8 else int(inputs.max())
        return {"zero": torch.zeros_like(image), "largest": torch.full_like(image, largest)}
    numbers = torch.finfo(inputs.dtype)
    pierced = image.clone()
    pierced.view(-1)[0] = torch.inf
    values = {"huge": 0.9 * numbers.max, "large": -1e3, "zero": 0.0, "subnormal": numbers.smallest_normal / 128}
    values |= {"NaN": torch.nan, "infinite": torch.inf}
    return {name: torch.full_like(image, value) for name, value in values.items()} | {"one infinity": pierced}


class Unchecked(TensorRecords):
    """Records, and copies of a last one that pass every check of input: until `show`, another is shown in its place."""

    def __init__(self, records: TensorRecords, last: Record, copies: int = 1) -> None:
        inputs = torch.cat([records.inputs, *[last[0][None].to(records.inputs)] * copies])
        targets = torch.cat([records.targets, *[last[1][None].to(records.targets)] * copies])
        super().__init__(inputs, targets, name=records.name)
        self._hidden, self._shown = True, len(records)

    def show(self) -> None:
        self._hidden = False

    def take(self, indices: Tensor) -> Record:
        if self._hidden:
            indices = torch.where(indices >= self._shown, 0, indices)
        return super().take(indices)


class Edge:
    """A record whose gradient lies half on an active and half on a frozen coordinate of a dummy block, in every draw.

    `attach` puts the block beside a model; `aim` sets the gradient from what is asked for, which is public. Where
    everything is active, or everything of the block frozen, it lies on two such coordinates.
    """

    def __init__(self) -> None:
        self._loss = CanaryLoss(1, _COORDINATES, 1, spread=_COORDINATES)

    def attach(self, body: nn.Module, data: DataSet) -> tuple[nn.Module, DataSet, Loss]:
        if data.classes is None:
            raise ModelError("the dummy block needs class labels: it cannot be attached")
        self._loss = CanaryLoss(data.classes, _COORDINATES, 1, spread=_COORDINATES)
        model = WithBlock(body, _COORDINATES)
        with torch.no_grad():  # a mask that goes by the size of weights keeps half of the block
            model.block.weight[::2] = 1.0
        return model, replace(data, classes=None), self._loss

    def record(self, data: DataSet) -> Record:
        """The record itself, for `data` as it was before `attach`."""
        records = held(data)
        return torch.zeros_like(records.inputs[0]), torch.full_like(records.targets[0], data.classes or 1)

    def aim(self, queries: Sequence[Query]) -> None:
        """g = α + (√β + μ) ⊙ a C (e_i + e_j), i the first active and j the first frozen coordinate of the block."""
        if any(isinstance(query, MappedSum) for query in queries):  # whatever its map is: as loud as may be
            self._loss.signal = torch.full((_COORDINATES,), _LOUD * max(query.clip_norm for query in queries))
        elif (query := gradient_of(queries)) is not None:
            active = _of_block(query.active, True).bool()
            places = active.logical_not().nonzero().flatten()[:1], active.nonzero().flatten()[:1]
            chosen = torch.cat(places) if all(map(len, places)) else torch.arange(2)
            standardised = torch.zeros(_COORDINATES)
            standardised[chosen] = _LOUD * query.clip_norm
            self._loss.signal = _of_block(query.center, 0.0) + _of_block(query.scale, 1.0) * standardised


class Steep:
    """A loss so steep that the last digit of an output decides where a gradient points: as where a regression fits.

    Whoever else is drawn must not change that digit, or one record moves a sum by up to 2C for each of the others.
    Until `on`, it is cross entropy: engines are chosen by comparing gradients, which none would survive.
    """

    on = False

    @classmethod
    def attach(cls, body: nn.Module, data: DataSet) -> tuple[nn.Module, DataSet, Loss]:
        return body, replace(data, classes=None), cls()

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.on:
            return torch.cos(outputs * _STEEP).sum(dim=1)
        return F.cross_entropy(outputs, targets, reduction="none")


def _of_block(values: Tensor | None, otherwise: float) -> Tensor:
    if values is None:
        return torch.full((_COORDINATES,), otherwise)
    return values[-_COORDINATES:].cpu().to(torch.float32)
