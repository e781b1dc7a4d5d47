"""A training script between our draws and our releases: it is shown a batch, computes a loss, calls its `backward`.

    for data, target in loader:                    charged, then drawn by Poisson
        loss = criterion(model(data), target)      values of the batch, without a graph
        loss.backward()                            ℓ_i record by record: clipped, summed, noised into p.grad
        optimizer.step()

What the script sees between the first and the third line is un-noised, and the statement says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from adadpigu.bounding import GradientSum
from adadpigu.compat.opacus.tracing import INPUT, OUTPUT, TARGET, Leaf, Made, ScriptLoss, Traced, leaves, shown_inputs
from adadpigu.errors import InputError
from adadpigu.gradients.interface import SealedEngine
from adadpigu.gradients.losses import RecordLoss
from adadpigu.gradients.rule_engine import side_by_side
from adadpigu.sampling import Population
from adadpigu.sensitive import unseal
from adadpigu.training.own_loop import PrivateBatch

SEEN = (
    "the records, outputs and losses that the training script sees and may print: they are not noised; weights and "
    "p.grad are"
)


class HeldRecords:
    """A population whose latest draw is kept until it is released: the script and the engine see the same records."""

    def __init__(self, records: Population) -> None:
        self._records = records
        self._held: tuple[Tensor, Tensor, Tensor] | None = None
        self._holding = False
        self._leaf: Leaf | None = None

    def __len__(self) -> int:
        return len(self._records)

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        if self._held is None:
            inputs, targets = self._records.take(indices)
            if self._holding:
                self._held = indices, inputs, targets
            return inputs, targets
        positions, inputs, targets = self._held
        where = torch.searchsorted(positions, indices)
        shown = inputs[where.to(inputs.device)]
        if self._leaf is not None and len(shown):
            shown = shown_inputs(self._leaf, shown)
        return shown, targets[where.to(targets.device)]

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Within, the first draw is kept, and every later one is taken from it."""
        self._holding, self._held, self._leaf = True, None, None
        try:
            yield
        finally:
            self._holding, self._held, self._leaf = False, None, None

    def show_as(self, leaf: Leaf) -> None:
        """From here on records are shown as the script has shown them to the model."""
        self._leaf = leaf


class ScriptBatch:
    """One batch that a script is working on."""

    def __init__(self, batch: PrivateBatch, records: HeldRecords, engine: SealedEngine, loss: ScriptLoss) -> None:
        self._batch, self._records, self._engine, self._loss = batch, records, engine, loss

    def shown(self, query: GradientSum) -> tuple[Traced, Traced]:
        """Charges and draws; what the script is given."""
        inputs, targets = unseal(self._batch.ahead(query))
        return Traced.of(inputs, Leaf(INPUT, self, inputs)), Traced.of(targets, Leaf(TARGET, self, targets))

    def backward(self, loss: Traced) -> None:
        """`loss.backward()` of the script: puts the release into every `p.grad`."""
        used = {leaf.name: leaf for leaf in leaves(loss.recipe)}
        outputs = [leaf for leaf in leaves(loss.recipe) if leaf.name == OUTPUT]
        if len(outputs) != 1:
            raise InputError(
                f"the loss depends on {len(outputs)} outputs of the model; allowed: one call of it a batch"
            )
        if INPUT in used:
            raise InputError("the loss depends on the batch's inputs; allowed: on outputs and targets (put them there)")
        self._fit(loss)
        self._records.show_as(outputs[0])
        self._batch.backward()

    def _fit(self, loss: Traced) -> None:
        """Has the engine follow the script's loss, after it was seen to be the mean of its records' losses."""
        outputs, targets = _value(loss, OUTPUT), _value(loss, TARGET)
        kind = _kind(loss.recipe)
        known, self._loss.recipe = self._loss.kind, loss.recipe
        if known != kind:
            shape = (4, *outputs.shape[1:])
            example = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(outputs)
            blank = torch.zeros((4, *targets.shape[1:]), dtype=targets.dtype, device=targets.device)
            self._engine.loss, self._loss.kind = RecordLoss.of(self._loss, example, blank), kind
        if len(outputs) == 0:
            return
        with torch.no_grad():
            each = self._engine.loss(outputs, targets)
        if not torch.allclose(
            each.mean().double(), loss.as_subclass(Tensor).double(), rtol=1e-3, atol=1e-6, equal_nan=True
        ):
            raise InputError(
                "the loss of the batch is not the mean of its records' losses (a sum, a weighted mean, batch "
                "statistics, or a tensor that is not from the batch); allowed: the mean of losses that each depend on "
                "one record"
            )


def _value(loss: Traced, name: str) -> Tensor:
    """The tensor at a leaf of the loss; where it has none (no target), a blank for each record."""
    for leaf in leaves(loss.recipe):
        if leaf.name == name:
            return leaf.value
    output = _value(loss, OUTPUT)
    return torch.zeros(len(output), device=output.device)


def _kind(recipe: Any) -> tuple[str, ...]:
    """The functions of a recipe, by name: where these stay the same, so does what is known of the loss."""
    names: list[str] = []
    waiting = [recipe]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Made):
            names.append(str(getattr(item.function, "__name__", item.function)))
            waiting += [part for part in (*item.args, *item.kwargs.values()) if isinstance(part, Made)]
    return tuple(names)


class PrivateModule(nn.Module):
    """The user's module as a script calls it: on a batch of the private loader it gives outputs without a graph."""

    def __init__(self, module: nn.Module, output: tuple[torch.Size, torch.dtype]) -> None:
        super().__init__()
        self._module = module
        self._output = output

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        traced = [value for value in (*args, *kwargs.values()) if isinstance(value, Traced)]
        if not traced:
            return self._module(*args, **kwargs)
        rest = [value for value in (*args, *kwargs.values()) if value is not None and not isinstance(value, Traced)]
        if len(traced) != 1 or rest:
            raise InputError("the model was called with more than a batch's inputs; allowed: model(inputs)")
        given = traced[0]
        origin = leaves(given.recipe)
        value = given.as_subclass(Tensor)
        if len(value) == 0:  # a Poisson batch may be empty, which not every model can take
            shape, dtype = self._output
            outputs = torch.zeros((0, *shape[1:]), dtype=dtype, device=value.device)
        else:
            with torch.no_grad():
                outputs = self._module(side_by_side(value))
        return Traced.of(outputs, Leaf(OUTPUT, origin[0].batch, outputs, made_from=given.recipe))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_module"), name)
