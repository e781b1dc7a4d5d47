"""A training script between our draws and our releases: it is shown a batch, computes a loss, calls its `backward`.

    for data, target in loader:                    charged, then drawn by Poisson
        loss = criterion(model(data), target)      values of the batch, without a graph
        loss.backward()                            ℓ_i record by record: clipped, summed, noised into p.grad
        optimizer.step()

What the script sees between the first and the third line is un-noised, and the statement says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from adadpigu.bounding import GradientSum
from adadpigu.compat.opacus.shapes import Shape, draws_at_random
from adadpigu.compat.opacus.tracing import (
    INPUT,
    OUTPUT,
    RECORDS,
    TARGET,
    Leaf,
    ScriptLoss,
    Traced,
    leaves,
    shown_inputs,
)
from adadpigu.errors import InputError, PrivacyLineError
from adadpigu.gradients.interface import SealedEngine
from adadpigu.gradients.losses import RecordLoss
from adadpigu.gradients.state import refuse_changes
from adadpigu.sampling import Population
from adadpigu.sensitive import unseal
from adadpigu.training.own_loop import PrivateBatch

SEEN = (
    "the records, outputs and losses that the training script sees, and what it makes of them: what it prints, when it "
    "stops, learning rates and constants of its loss that it takes from them"
)


class HeldRecords:
    """A population whose latest draw is kept until it is released: the script and the engine see the same records."""

    def __init__(self, records: Population) -> None:
        self._records = self.origin = records
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
        self._batch, self._records, self._engine, self.loss = batch, records, engine, loss

    def shown(self, query: GradientSum) -> tuple[Traced, Traced]:
        """Charges and draws; what the script is given."""
        inputs, targets = unseal(self._batch.ahead(query))
        return self._given(INPUT, inputs), self._given(TARGET, targets)

    def _given(self, name: str, value: Tensor) -> Traced:
        """A copy for the script, which may write to it; what is differentiated is not in its hands."""
        return Traced.of(value.clone(), Leaf(name, self, value))

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
        self._fit(loss, outputs[0])
        self._records.show_as(outputs[0])
        self._batch.backward()
        self.loss.recipe = None

    def _fit(self, loss: Traced, output: Leaf) -> None:
        """Has the engine follow the script's loss, after it was seen to be the mean of its records' losses."""
        outputs, targets = output.value, _targets(loss, output.value)
        shape = Shape.of(loss.recipe, output.made_from)
        self.loss.recipe = loss.recipe
        if self.loss.shape is not None:
            self._compare(shape, self.loss.shape)
        else:
            shape.refuse_doubtful()
            size = (4, *outputs.shape[1:])
            example = torch.randn(size, generator=torch.Generator().manual_seed(0)).to(outputs)
            blank = torch.zeros((4, *targets.shape[1:]), dtype=targets.dtype, device=targets.device)
            self._engine.loss, self.loss.shape = RecordLoss.of(self.loss, example, blank), shape
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

    def _compare(self, shape: Shape, first: Shape) -> None:
        """A loss that is another in a later step may have been another in the first, so nothing of the run is kept."""
        try:
            shape.refuse_other(first)
        except InputError as error:
            self._batch.fail(error)
            raise


def _targets(loss: Traced, outputs: Tensor) -> Tensor:
    """The batch's targets; where the loss has none, a blank for each record."""
    for leaf in leaves(loss.recipe):
        if leaf.name == TARGET:
            return leaf.value
    return torch.zeros(len(outputs), device=outputs.device)


def _refuse_others(given: Traced, inputs: Tensor) -> None:
    """What the model is called with must be what each record by itself would give."""
    if isinstance(given.recipe, Leaf) or len(inputs) == 0 or draws_at_random(given.recipe):
        return
    alone = shown_inputs(Leaf(OUTPUT, None, inputs, made_from=given.recipe), inputs)
    found = given.as_subclass(Tensor)
    if alone.shape != found.shape or not torch.allclose(alone, found, rtol=1e-4, atol=1e-5, equal_nan=True):
        raise InputError(
            "the model was called with inputs that depend on the other records of the batch (its mean, its largest "
            "value, its order); allowed: functions of each record by itself"
        )


class PrivateModule(nn.Module):
    """The user's module as a script calls it: on a batch of the private loader it gives outputs without a graph."""

    def __init__(
        self,
        module: nn.Module,
        output: tuple[torch.Size, torch.dtype],
        arranged: Callable[[Tensor], Tensor],
        over: Callable[[], bool],
    ) -> None:
        """`output`: shape and type of what the module gives; `over` tells whether its run has ended."""
        super().__init__()
        self._module = module
        self._output, self._arranged, self._over = output, arranged, over

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        traced = [value for value in (*args, *kwargs.values()) if isinstance(value, Traced)]
        if not traced:
            if self._over() and self.training and torch.is_grad_enabled():
                raise PrivacyLineError(
                    "the private run has ended: a forward for training would lead to an update without privacy; "
                    "allowed: model.eval() or torch.no_grad() to look at it, or the module inside (model._module)"
                )
            return self._module(*args, **kwargs)
        rest = [value for value in (*args, *kwargs.values()) if value is not None and not isinstance(value, Traced)]
        if len(traced) != 1 or rest:
            raise InputError("the model was called with more than a batch's inputs; allowed: model(inputs)")
        given = traced[0]
        origin = leaves(given.recipe)
        value = given.as_subclass(Tensor)
        origin = [leaf for leaf in origin if leaf.name != RECORDS]
        if [leaf.name for leaf in origin] != [INPUT]:
            raise InputError("the model was called with more than a batch's inputs; allowed: a function of these alone")
        _refuse_others(given, origin[0].value)
        if len(value) == 0:  # a Poisson batch may be empty, which not every model can take
            shape, dtype = self._output
            outputs = torch.zeros((0, *shape[1:]), dtype=dtype, device=value.device)
        else:
            with torch.no_grad(), refuse_changes(self._module):
                outputs = self._module(self._arranged(value)).clone()
        return Traced.of(outputs.clone(), Leaf(OUTPUT, origin[0].batch, outputs, made_from=given.recipe))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_module"), name)
