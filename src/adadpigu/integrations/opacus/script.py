"""What a training script for Opacus holds: model, criterion and loss, between our draws and our releases.

    for data, target in loader:                    charged, then drawn by Poisson
        loss = criterion(model(data), target)      values of the batch, for the script's eyes
        loss.backward()                            ∇ℓ_i record by record: clipped, summed, noised into p.grad

Gradients are those of the drawn records and of the criterion that `make_private` was given: what the script computes
itself never reaches `p.grad`, and another loss is refused. What it sees is un-noised, and the statement says so.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from adadpigu.core.bounding import GradientSum
from adadpigu.core.gradients import Loss, Losses
from adadpigu.core.gradients.norms import keep_norms_frozen
from adadpigu.core.gradients.state import refuse_changes, untouched
from adadpigu.core.sensitive import unseal
from adadpigu.core.trees import Tree, call, count_rows, map_tensors, select, to_device
from adadpigu.errors import InputError, require
from adadpigu.training.own_loop import PrivateBatch
from adadpigu.training.preparation import Preparation

SEEN = (
    "the records, outputs and losses that the training script sees, and what it makes of them: what it prints, when it "
    "stops, learning rates and constants of its criterion that it takes from them"
)
_DECLARE = "allowed: criterion=f in make_private, where f(outputs, targets) holds all that comes after the model"


class ScriptBatch:
    """One batch that a script works on: charged, drawn, shown. Sensitive."""

    def __init__(self, batch: PrivateBatch, query: GradientSum, prepared: Preparation) -> None:
        inputs, targets = unseal(batch.ahead(query))
        if getattr(prepared.data.train, "whole", False):  # a pair of trees is drawn as one
            inputs, targets = inputs
        self._drawn, self._release = (inputs, targets), batch.backward
        front, inputs = prepared.view.front, to_device(inputs, prepared.device)
        inputs = inputs if front is None else call(front, inputs)  # such as a division of bytes by 255
        self._inputs = prepared.engine.in_layout(inputs)
        self._made: list[list[Tensor]] = []

    def shown(self) -> tuple[Tree, Tree]:
        """A copy for the script, which may write to it."""
        return map_tensors(torch.clone, self._drawn[0]), map_tensors(torch.clone, self._drawn[1])

    def outputs(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tree:
        """The model's outputs, without a graph that reaches its parameters."""
        given, states = _split(self._inputs, args, kwargs)
        if not _alike(given, self._inputs):
            if not module.training:
                return module(*args, **kwargs)
            raise InputError(
                "the model was called with other inputs than the batch of the private loader; allowed: the batch as it "
                "is, or .to(device); put what changes it into the Dataset, the collate_fn or the model's forward, and "
                "look at other records under torch.no_grad()"
            )
        blank = all(leaf is None or (isinstance(leaf, Tensor) and not leaf.any()) for leaf in tree_leaves(states))
        fault = "the model was called with more than its inputs, such as a state of an earlier batch"
        require(blank, f"{fault}, which would bring other records into this one; allowed: None or zeros")
        with torch.no_grad(), refuse_changes(module):
            # a Poisson batch may be empty, which not every model can take
            made = call(module, self._inputs) if count_rows(self._inputs) else no_rows(module, self._inputs)
        made = map_tensors(_as_leaf, made)
        self._made.append(tree_leaves(made))
        return made

    def loss(self, outputs: Tree, targets: Tree, value: Tensor) -> Tensor:
        """The loss whose `backward` releases; `value` as it is where the outputs are not the model's of this batch."""
        leaves = [id(leaf) for leaf in tree_leaves(outputs)]
        if not any(leaves == [id(leaf) for leaf in made][: len(leaves)] for made in self._made):
            return value
        drawn = _alike(map_tensors(torch.flatten, targets), map_tensors(torch.flatten, self._drawn[1]))
        fault = "the criterion was called with other targets than the batch of the private loader"
        require(drawn, f"{fault}; {_DECLARE}, or targets that the Dataset makes")
        return PrivateLoss.of(value, self._release)


class WholeBatch:
    """One batch of records of any form, of which `losses(model, batch)` makes one loss a record. Sensitive."""

    def __init__(self, batch: PrivateBatch, query: GradientSum, prepared: Preparation) -> None:
        self._drawn, self._release = unseal(batch.ahead(query))[0], batch.backward

    def shown(self) -> Tree:
        """A copy for the script, which may write to it."""
        return map_tensors(torch.clone, self._drawn)

    def outputs(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tree:
        """The model's outputs for the script's eyes: of them nothing is released."""
        with torch.no_grad(), refuse_changes(module):
            made = module(*args, **kwargs) if count_rows(self._drawn) else no_rows(module, kwargs or args)
        return map_tensors(_as_leaf, made)

    def loss(self, module: nn.Module, batch: Tree, value: Tensor) -> Tensor:
        """The loss whose `backward` releases."""
        fault = "the criterion was called with another batch than that of the private loader"
        allowed = "criterion(model, batch) with the batch as it is, or on another device"
        remedy = "put what changes it into losses=f, the Dataset or the collate_fn"
        require(_alike(batch, self._drawn), f"{fault}; allowed: {allowed}; {remedy}")
        return PrivateLoss.of(_as_leaf(value), self._release)


class MeanOfLosses:
    """`losses(model, batch)` as a criterion that a script shows: their mean, of which nothing is differentiated."""

    def __init__(self, losses: Losses) -> None:
        self.losses = losses

    def __call__(self, model: nn.Module, batch: Tree) -> Tensor:
        with torch.no_grad(), refuse_changes(model):
            return self.losses(model, batch).mean() if count_rows(batch) else torch.tensor(torch.nan)


class PrivateLoss(Tensor):
    """The value of a criterion; its `backward` releases the batch. What is computed from it is a plain tensor."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    _release: Callable[[], object]
    _written: int  # its version when it was computed

    @staticmethod
    def of(value: Tensor, release: Callable[[], object]) -> "PrivateLoss":
        loss = value.as_subclass(PrivateLoss)
        loss._release, loss._written = release, loss._version
        return loss

    def backward(self, *, retain_graph: bool | None = None) -> None:  # type: ignore[override]
        """Puts the release of the batch into every `p.grad`; there is no graph to retain."""
        if self._version != self._written:  # loss /= 2
            _refuse_other_loss()
        self._release()

    def __truediv__(self, divisor: Any) -> Tensor:
        """Itself where it is divided by one, as `accelerator.backward` does."""
        return self if divisor == 1 else super().__truediv__(divisor)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Stored as the plain value it is."""
        return self.detach().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


CurrentBatch = Callable[[], ScriptBatch | WholeBatch | None]


class PrivateModule(nn.Module):
    """The user's module as a script calls it; on anything but a batch of the private loader it is that module."""

    def __init__(self, module: nn.Module, current: CurrentBatch) -> None:
        super().__init__()
        self._module, self._current = module, current

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        keep_norms_frozen(self._module)  # also after the script's model.train()
        batch = self._current()
        if batch is None or not torch.is_grad_enabled():
            return self._module(*args, **kwargs)
        return batch.outputs(self._module, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_module"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets what the user's module has there: `model.temperature = …` of a script."""
        inner = self.__dict__.get("_modules", {}).get("_module")
        if inner is not None and name not in vars(self) and hasattr(inner, name):
            setattr(inner, name, value)
        else:
            super().__setattr__(name, value)


class PrivateCriterion(nn.Module):
    """The user's criterion as a script calls it; on outputs of a private batch, its loss releases that batch."""

    def __init__(self, criterion: Loss, current: CurrentBatch) -> None:
        super().__init__()
        self.criterion, self._current = criterion, current

    def forward(self, outputs: Any, targets: Tree) -> Tensor:
        batch = self._current()
        if batch is None:
            return self.criterion(outputs, targets)
        with refuse_changes(self):  # and attributes are put back: a running mean would bring other records into a loss
            value = self.criterion(outputs, targets)
        return batch.loss(outputs, targets, value)


class FirstOutput(nn.Module):
    """A module that returns several things, such as (outputs, state), where the criterion takes the first."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.training = module, module.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)[0]


def no_rows(module: nn.Module, inputs: Tree) -> Tree:
    """What a module gives for no record, by what it gives for a blank one."""
    blank = map_tensors(lambda rows: rows.new_zeros((1, *rows.shape[1:])), inputs)
    with untouched(module), torch.no_grad():
        return select(call(module.eval(), blank), slice(0))


def _split(inputs: Tree, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """What a model was called with: as many arguments as there are inputs, and the rest."""
    if isinstance(inputs, Mapping):
        return [kwargs.get(name) for name in inputs], [*args, *(kwargs[name] for name in kwargs if name not in inputs)]
    count, given = len(inputs) if isinstance(inputs, tuple | list) else 1, [*args, *kwargs.values()]
    return given[:count], given[count:]


def _alike(given: Tree, drawn: Tree) -> bool:
    """Whether values are those that were drawn, wherever they are and of whatever type."""

    def equal(one: Any, other: Tensor) -> bool:
        if not isinstance(one, Tensor) or one.shape != other.shape:
            return False
        return torch.equal(one.nan_to_num(), other.to(one).nan_to_num())

    pairs = tree_leaves(given), tree_leaves(drawn)
    return len(pairs[0]) == len(pairs[1]) and all(map(equal, *pairs))


def _as_leaf(output: Tensor) -> Tensor:
    """An output from which no gradient flows back: the script's loss is not what is differentiated."""
    if not (isinstance(output, Tensor) and output.is_floating_point()):
        return output
    output = output.detach().requires_grad_()
    output.register_hook(_refuse_other_loss)  # type: ignore[no-untyped-call]
    return output


def _refuse_other_loss(*_: object) -> None:
    raise InputError(
        "backward() of another loss than that of the criterion as make_private returned it: per-record gradients "
        f"are those of the declared criterion; {_DECLARE} (a factor, a squeeze, a further term; to "
        "accumulate: BatchMemoryManager)"
    )
