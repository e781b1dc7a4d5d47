"""What a run trains: a model, a loss of each record, and the fixed part before it. Settled on synthetic records.

loss(outputs, targets)       records are pairs (input, target); tensors throughout take the short way
losses(model, batch)         any records; also what a loss of trees of inputs, targets or outputs becomes
"""

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, Subset

from adadpigu.core.gradients.inspection import inspect_front
from adadpigu.core.gradients.losses import Loss, Losses, RecordLoss, ignored_label, label_options
from adadpigu.core.gradients.state import untouched
from adadpigu.core.sampling import Population
from adadpigu.core.trees import Tree, call, describe_tree, map_tensors
from adadpigu.data.checking import origin_of
from adadpigu.data.datasets import DataSet, as_whole
from adadpigu.errors import ModelError, first_line, require
from adadpigu.features.front import ByteScaling, Front, Fronted, apply_front
from adadpigu.training.guarding import own_name


@dataclass(frozen=True, kw_only=True)
class Task:
    """Records, loss and front of a run, as the engine will see them."""

    data: DataSet  # its records are pairs, or whole where the loss takes whole records
    loss: Loss | None
    losses: Losses | None
    given: object  # the loss as the user gave it
    front: Front | None
    example: tuple[Tree, Tensor]  # synthetic records, as they come to the front
    classes: int | None = None
    ignored: int | None = None  # a label that counts for nothing

    @classmethod
    def of(
        cls,
        model: nn.Module,
        data: DataSet,
        loss: Loss | None,
        losses: Losses | None,
        front: Front | None,
        device: torch.device,
    ) -> "Task":
        """Decides by public shapes and types alone."""
        one = loss is None or losses is None
        require(one, "loss and losses are both given; allowed: loss(outputs, targets) or losses(model, batch)")
        whole = getattr(data.train, "whole", False)
        inputs, targets = synthetic_records(data.train, device)
        if losses is not None:
            output = None if whole or data.test is None else _output_or_none(model, front, inputs)
            return _of_losses(_with_known_accuracy(data, output, targets, losses), losses, losses, front, device)
        loss = F.cross_entropy if loss is None else loss
        told = f"{data.name}: records are {describe_tree(inputs)}, and a loss takes pairs (input, target)"
        table = ", or such as (table[features], table[label])" if isinstance(inputs, Tensor) else ""
        require(not whole, f"{told}; allowed: losses=f, with f(model, batch) -> one loss a record{table}")
        front = _scaling_bytes(model, inputs, front)
        _check_front(front, inputs, call)
        output = _output(model, front, inputs)
        data = _with_known_accuracy(data, output, targets, loss)
        if not all(isinstance(part, Tensor) for part in (inputs, targets, output)):
            return _of_losses(data, RecordLoss.of(loss, output, targets).of_model, loss, front, device)
        labels = label_options(loss) is not None or isinstance(loss, nn.CrossEntropyLoss)
        ignored = (label_options(loss) or {}).get("ignore_index", ignored_label(loss, targets))
        return cls(
            data=data,
            loss=loss,
            losses=None,
            given=loss,
            front=front,
            example=(inputs, targets),
            classes=_classes(output, targets, data) if labels else None,
            ignored=ignored if labels else None,
        )

    def shown(self) -> tuple[Tree, Tensor]:
        """The example as it comes to the model."""
        inputs, targets = self.example
        return (inputs if self.front is None else apply_front(self.front, inputs)), targets

    def declared(self) -> tuple[str, ...]:
        """What the loss takes as public, for the statement, and what code of the user's sees records."""
        data = origin_of(self.data.train)
        data = data.dataset if isinstance(data, Subset) else data
        seen_by = {"loss": own_name(self.given), "data set": isinstance(data, Dataset) and own_name(data)}
        named = ", ".join(f"{what} {name}" for what, name in seen_by.items() if name)
        own = (f"what code of your own keeps or writes of the records that it sees: {named}",) if named else ()
        if self.losses is self.given:
            told = "declared public: constants in the losses function (class weights, temperatures)"
            return (*own, f"{told}; computed from these records, they would tell of them without noise")
        return (*own, *weights_of(self.given), *(() if self.loss is None else _soft(self.loss, self.example[1])))


def _of_losses(data: DataSet, losses: Losses, given: object, front: Front | None, device: torch.device) -> Task:
    data = replace(data, train=as_whole(data.train), test=None if data.test is None else as_whole(data.test))
    example = synthetic_records(data.train, device)
    _check_front(front, example[0], apply_front)
    return Task(data=data, loss=None, losses=losses, given=given, front=front, example=example)


def _with_known_accuracy(data: DataSet, output: Any, targets: Any, loss: Any) -> DataSet:
    """Without test records of which no accuracy is known: it is of scores of classes, or of one logit."""
    with contextlib.suppress(Exception):  # outputs that are no tensor, a loss that takes none below 0
        if data.test is None:
            return data
        if output.numel() > len(output):
            known = not targets.is_floating_point() and output[:, 0].numel() == targets.numel()
        else:  # the loss of a logit falls as it grows, where the label is 1, and rises where it is 0
            rising = torch.linspace(-2, 2, len(output)).to(output).reshape(output.shape)
            falls, rises = (RecordLoss(loss, "")(rising, torch.full_like(targets, label)).diff() for label in (1, 0))
            known = bool((falls < 0).all() and (rises > 0).all())
        if known:
            return data
    wanted = "accuracy is of labels and outputs [n, classes], or of labels 0 and 1 and loss(logit, label)"
    warnings.warn(f"test: {wanted}; run.accuracy is None: evaluate run.model on your own", stacklevel=4)
    return replace(data, test=None)


def _output_or_none(model: nn.Module, front: Front | None, inputs: Tree) -> Any:
    """None where the model does not take such inputs."""
    with contextlib.suppress(ModelError):
        return _output(model, front, inputs)
    return None


def uncompiled(model: nn.Module) -> nn.Module:
    """The module inside a compiled one: per-record gradients are computed by hooks and vmap, which run uncompiled."""
    inner = getattr(model, "_orig_mod", None)
    in_place = [module for module in model.modules() if getattr(module, "_compiled_call_impl", None) is not None]
    if isinstance(inner, nn.Module) or in_place:
        warnings.warn("the model is compiled: it is trained as the module inside, uncompiled", stacklevel=3)
    for module in in_place:
        module._compiled_call_impl = None
    return inner if isinstance(inner, nn.Module) else model


def synthetic_records(population: Population, device: torch.device, count: int = 4) -> tuple[Tree, Tree]:
    """Synthetic records of the right shape and type: they look at no private value."""
    inputs, targets = population.take(torch.arange(0))
    generator = torch.Generator().manual_seed(0)

    def blank(leaf: Tensor) -> Tensor:
        return torch.zeros((count, *leaf.shape[1:]), dtype=leaf.dtype, device=device)

    return map_tensors(lambda leaf: synthetic(leaf, count, device, generator), inputs), map_tensors(blank, targets)


def synthetic(like: Tensor, count: int, device: torch.device, generator: torch.Generator) -> Tensor:
    """So many random rows of the shape and type of a tensor's; of whole numbers, which may be labels, zeros."""
    shape = (count, *like.shape[1:])
    if like.is_floating_point():
        return torch.randn(shape, generator=generator, dtype=like.dtype).to(device)
    if like.dtype == torch.uint8:
        return torch.randint(256, shape, generator=generator, dtype=like.dtype).to(device)
    return torch.zeros(shape, dtype=like.dtype, device=device)


def _check_front(front: Front | None, inputs: Tree, apply: Callable[[nn.Module, Tree], Tree]) -> None:
    if front is not None and not front.is_known:
        inspect_front(front, apply, inputs)


def _scaling_bytes(model: nn.Module, inputs: Tree, front: Front | None) -> Front | None:
    """With uint8 inputs that the model does not take, but takes as floats: a front that divides them by 255."""
    bytes_alone = isinstance(inputs, Tensor) and inputs.dtype == torch.uint8
    if not bytes_alone or _output_or_none(model, front, inputs) is not None:
        return front
    features = None if front is None else front.features
    scaled = Front(None, ByteScaling()) if features is None else Front(nn.Sequential(ByteScaling(), features), None)
    if (front is not None and front.normaliser is not None) or _output_or_none(model, scaled, inputs) is None:
        return front
    warnings.warn("uint8 inputs are divided by 255 before the model; run.model does that too", stacklevel=4)
    return scaled


def _output(model: nn.Module, front: Front | None, inputs: Tree, *, again: bool = True) -> Any:
    """What the model makes of synthetic records; in evaluation mode, so that no buffer moves."""
    whole = model if front is None else Fronted(front, model)
    try:
        with untouched(whole), torch.no_grad():
            return call(whole.eval(), inputs)
    except Exception as error:
        if again:  # zeros may be padding throughout
            ones = map_tensors(lambda leaf: leaf if leaf.is_floating_point() else torch.ones_like(leaf), inputs)
            return _output(model, front, ones, again=False)
        plain = isinstance(inputs, Tensor)
        kind = f"shape {tuple(inputs.shape[1:])} and {inputs.dtype}" if plain else describe_tree(inputs)
        told = f"the model does not take records of {kind} (tried: whole numbers 0, then 1): {first_line(error)}"
        flat = ": nn.Sequential(nn.Flatten(), model)" if plain and inputs.dim() > 2 and "mat1" in str(error) else ""
        raise ModelError(f"{told}; match data and model{flat}") from error


def _classes(output: Tensor, targets: Tensor, data: DataSet) -> int:
    """The number of classes, from a model whose outputs are class scores."""
    if output.ndim < 2 or not (targets.is_floating_point() or output.ndim == targets.ndim + 1):
        allowed = ", ".join(["records", "classes", *map(str, targets.shape[1:])])
        told = ", or labels without their last dimension: labels.squeeze(1)" if targets.shape[1:] == (1,) else ""
        raise ModelError(f"the model's output has shape {tuple(output.shape)}; allowed: ({allowed}){told}")
    if data.classes is not None and output.shape[1] != data.classes:
        told = f"the model has {output.shape[1]} outputs but {data.name!r} has {data.classes} classes"
        raise ModelError(f"{told}: one output a class")
    return output.shape[1]


def weights_of(loss: object) -> tuple[str, ...]:
    """Names the weights that a loss was given: class frequencies of the records, more often than not.

    >>> weights_of(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0])))[0][:53]
    'declared public: weight of CrossEntropyLoss; computed'
    """
    parts = list(loss.modules()) if isinstance(loss, nn.Module) else [loss]
    found = [(type(part).__name__, vars(part).get("_buffers", {})) for part in parts if isinstance(part, nn.Module)]
    if isinstance(loss, partial):
        found.append((getattr(loss.func, "__name__", "the loss"), loss.keywords))
    return tuple(
        f"declared public: {name} of {where}; computed from these records, it would tell of them without noise"
        for where, given in found
        for name in ("weight", "pos_weight")
        if isinstance(given.get(name), Tensor)
    )


def _soft(loss: object, targets: Tree) -> tuple[str, ...]:
    """Targets that are shares of classes come from mixup, or from labellers who disagree: nobody sees which."""
    labels = loss is F.cross_entropy or isinstance(loss, nn.CrossEntropyLoss)
    if not (labels and isinstance(targets, Tensor) and targets.is_floating_point()):
        return ()
    return ("targets that are shares of classes, if they come of mixing records (mixup): each must be of one alone",)
