"""What integrations share: settings, epochs of batches, user code that runs on one record and leaves nothing behind."""

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from adadpigu.core.gradients.losses import multiplying_weights
from adadpigu.core.gradients.probing import seed
from adadpigu.core.gradients.state import Snapshot, declared_public
from adadpigu.core.trees import Tree, count_rows, select
from adadpigu.errors import InputError, ModelError, require
from adadpigu.runs.run import Run
from adadpigu.training.options import TrainingOptions, check_names
from adadpigu.training.own_loop import PrivateBatch, PrivateLoop


def check_options(owner: str, options: Mapping[str, Any], elsewhere: Mapping[str, str], **known: Any) -> None:
    """Refuses a name that is no option, or is settled `elsewhere`, and a value that `train` would refuse.

    >>> check_options("PrivateTrainer", {"lr": 0.1}, elsewhere={"lr": "args.learning_rate"})
    Traceback (most recent call last):
    adadpigu.errors.InputError: lr=0.1: not an option of PrivateTrainer; allowed: args.learning_rate
    """
    for name in options.keys() & elsewhere.keys():
        value = options[name]  # which may be records
        shown = repr(value) if isinstance(value, str | int | float | None) else type(value).__name__
        raise InputError(f"{name}={shown}: not an option of {owner}; allowed: {elsewhere[name]}")
    check_names(owner, options, elsewhere, **known)
    TrainingOptions(**{"steps": 1, **options})


Rule = tuple[tuple[object, ...], str]  # what a setting of another library may be here, and why


def refuse_settings(rules: Mapping[str, Rule], given: Mapping[str, object]) -> None:
    """Refuses settings that would break the guarantee, or that cannot be kept.

    >>> refuse_settings({"debug": (("", None), "it prints activations; allowed: ''")}, {"debug": "overflow"})
    Traceback (most recent call last):
    adadpigu.errors.InputError: debug='overflow': it prints activations; allowed: ''
    """
    for name, (allowed, why) in rules.items():
        value = given.get(name, allowed[0])
        require(value in allowed, f"{name}={value!r}: {why}")


def warn_of_no_effect(what: str, why: str) -> None:
    """Warns of a setting that is safe and does nothing here."""
    warnings.warn(f"{what} has no effect: {why}", stacklevel=4)


Follow = Callable[[str, Any], bool]  # of an attribute's name, and of what it holds


@contextlib.contextmanager
def attributes_put_back(owner: object, follow: Follow = lambda *_: False) -> Iterator[dict[str, Any]]:
    """Within, the user's code sees records: what it keeps in attributes of `owner` would be un-noised and is dropped.

    Of what `follow` names, containers and objects are put back too, metrics count nothing, and tensors that are changed
    in place are refused. Yields the attributes as they were.
    """
    before = dict(vars(owner))
    kept = Snapshot(SimpleNamespace(**{name: value for name, value in before.items() if follow(name, value)}))
    with contextlib.ExitStack() as undone:
        for undo in (kept.restore, partial(vars(owner).update, before), vars(owner).clear):
            undone.callback(undo)
        for metric in filter(is_metric, kept.modules):
            undone.enter_context(muted(metric))
        yield before
    for entry in kept.tensors:
        version = 0 if entry.tensor.is_inference() else entry.tensor._version
        if version != entry.version and entry.tensor not in declared_public:
            fault = f"{type(owner).__name__}: its loss changes the tensor {entry.name!r} in place"
            raise ModelError(f"{fault}, which would carry data around the noise; allowed: leave it as it is")


def is_metric(one: object) -> bool:
    return isinstance(one, nn.Module) and any(kind.__module__.startswith("torchmetrics.") for kind in type(one).__mro__)


@contextlib.contextmanager
def muted(metric: nn.Module) -> Iterator[None]:
    """Within, a metric counts nothing, and is zero."""
    value: object = {} if isinstance(metric, nn.ModuleDict) else torch.zeros(())  # of several: nothing
    with attributes_put_back(metric):
        vars(metric).update(dict.fromkeys(("forward", "update", "compute", "reset"), lambda *_, **__: value))
        yield


class EpochBatches:
    """The batches of a private loop, an epoch at a time; they hold no record."""

    batch: PrivateBatch  # the one that was handed out last

    def __init__(self, steps_an_epoch: int) -> None:
        self._each = steps_an_epoch

    def start(self, loop: PrivateLoop) -> None:
        """Begins the run; `done` steps were made by earlier processes, and the first epoch may be the rest of one."""
        self.loop, self.done, self._given = loop, loop.done, loop.done
        self._behind = loop.done % self._each
        self._batches = iter(loop)

    def __len__(self) -> int:
        return self._each

    def __iter__(self) -> Iterator[PrivateBatch]:
        fault = f"the plan of {len(self.loop)} steps is used up, and it was made for the epochs and steps asked for"
        require(self._given < len(self.loop), f"{fault} when training began; allowed: leave them")
        end, self._behind = min(self._given + self._each - self._behind, len(self.loop)), 0
        while self._given < end and (batch := next(self._batches, None)) is not None:
            self._given, self.batch = self._given + 1, batch
            yield batch

    def finish(self) -> Run:
        """Ends the run: by itself where all its batches were used, else as interrupted."""
        if self._given == len(self.loop):
            next(self._batches, None)
        return self.loop.finish()


class OneRecord(TorchFunctionMode):
    """Adapts code for batches to one record: class weights multiply its loss, and values are not printed.

    torch divides a mean by the weights of the batch. For one record that is its own weight, so weights would cancel,
    and a record whose targets are all ignored would be 0/0.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.__format__, Tensor.__repr__):
            return "(withheld)"
        if func not in (F.cross_entropy, F.nll_loss):
            return func(*args, **(kwargs or {}))
        given = inspect.signature(func).bind(*args, **(kwargs or {})).arguments
        outputs, targets = given.pop("input"), given.pop("target")
        return multiplying_weights(partial(func, **given), targets)(outputs, targets)


def each_alone(loss: Callable[[Any], Tensor], batch: Tree) -> Tensor:
    """[n]: the loss of a batch, called with one record at a time."""
    return torch.stack([loss(select(batch, slice(row, row + 1))).sum() for row in range(count_rows(batch))])


def compares_records(loss: Callable[[Any], Tensor], batch: Tree) -> bool:
    """Whether the loss of a batch is neither the mean nor the sum of its records' losses; random losses are not told.

    >>> rows = torch.tensor([1.0, 3.0])
    >>> compares_records(torch.mean, rows), compares_records(lambda x: x.max() - x.min(), rows)
    (False, True)
    """
    wholes = []
    for number in (0, 1):
        seed(number)
        wholes.append(loss(batch))
    each = each_alone(loss, batch)
    told = wholes[0].dim() == 0 and torch.equal(*wholes) and bool((wholes[0].isfinite() & each.isfinite()).all())
    return told and not any(torch.allclose(wholes[0], t, rtol=1e-3, atol=1e-6) for t in (each.mean(), each.sum()))
