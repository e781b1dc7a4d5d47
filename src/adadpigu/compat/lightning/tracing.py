"""`training_step` as a graph: its code is run on stand-ins for the tensors of a batch, and never on a record.

What it computes becomes nodes, one a call of a module, a function or a method; what it logs or prints comes to nothing.
Step and epoch are public, so they are plain numbers in the trace, as are attributes in which it counts; a loss that
changes with them is refused.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
import torchmetrics
from torch import Tensor, fx, nn
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_unflatten
from torchmetrics import functional as metric_functions

from adadpigu.compat.lightning.in_place import Change, StandIn, refuse_shared_changes
from adadpigu.compat.lightning.moments import Moment
from adadpigu.compat.lightning.remembering import CONSTANT, Memory
from adadpigu.errors import ModelError, first_line

REMEDY = "allowed: a training_step in which tensors of the batch decide no branch, loop or number of Python's"


@dataclass(frozen=True)
class Leaf:
    """A tensor of the batch: its place in the graph, how to take it from an item, and what it looks like."""

    node: fx.Node
    path: tuple[Any, ...]
    label: str
    like: Tensor | None
    """None where it is no tensor"""

    def take(self, item: Any) -> Any:
        """This part of one item of the data set."""
        for key in self.path:
            item = key.get(item)
        return item


@dataclass(frozen=True)
class Traced:
    """What a training_step computes from a batch."""

    loss: fx.Node
    leaves: tuple[Leaf, ...]
    constants: dict[str, Tensor]
    """tensors that its code made by itself"""
    logged: tuple[str, ...]
    kept: tuple[str, ...]
    """names under which its code would leave something for later"""

    def leaf(self, node: fx.Node) -> Leaf:
        """The part of the batch that a placeholder stands for."""
        return next(leaf for leaf in self.leaves if leaf.node is node)

    def needed(self) -> list[fx.Node]:
        """The nodes that the loss depends on, in order."""
        found = ancestors([self.loss])
        return [node for node in self.loss.graph.nodes if node in found]

    def differs_from(self, other: Traced) -> bool:
        """Whether the loss is another function of the batch."""
        one, two = (traced.needed() for traced in (self, other))
        if [_written(node) for node in one] != [_written(node) for node in two]:
            return True
        used = {str(node.target) for node in one if node.op == "get_attr"} & self.constants.keys()
        return any(not torch.equal(self.constants[name], other.constants[name]) for name in used)


def ancestors(nodes: list[fx.Node]) -> set[fx.Node]:
    """The nodes themselves and all that they depend on."""
    found: set[fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def trace(module: pl.LightningModule, sample: Any, moments: Sequence[Moment]) -> Traced:
    """Follows `training_step` on a batch of the form of `sample`, at moments of a plan; no value is looked at.

    What it leaves at one moment it finds at the next, as in a run; afterwards the module is as it was.
    """
    name = f"{type(module).__name__}.training_step"
    with _untouched(module, name) as memory:
        first, *others = (_follow(module, sample, moment, memory) for moment in (*moments, moments[0]))
    for traced in others:
        if any(node.graph is not traced.loss.graph for node in ancestors([traced.loss])):
            raise ModelError(
                f"{name}: its loss takes what an earlier step has kept of its batch ({', '.join(traced.kept)}), which "
                "would carry values of records from step to step; allowed: a loss of this batch alone"
            )
        if first.differs_from(traced):
            raise ModelError(
                f"{name}: its loss changes from step to step (batch_idx, global_step, current_epoch, an attribute, or "
                "a random tensor without the batch in it); allowed: the same function in all steps, and random tensors "
                "like one of the batch (torch.randn_like)"
            )
    return first


def follow(module: pl.LightningModule, sample: Any, moment: Moment) -> Traced:
    """Follows `training_step` at one moment; numbers that it counts in attributes are as after a call of it."""
    with _untouched(module, f"{type(module).__name__}.training_step") as memory:
        traced = _follow(module, sample, moment, memory)
        counted = memory.counted()
    for attributes, values in counted:
        attributes.update(values)
    return traced


def _follow(module: pl.LightningModule, sample: Any, moment: Moment, memory: Memory) -> Traced:
    name = f"{type(module).__name__}.training_step"
    function = _plain_function(module, name)
    tracer, logged = _Tracer(sample, moment.batch), list[str]()
    with _muted(module, moment, logged), _traced_len(function):
        torch.default_generator.seed()  # random numbers that would stay the same forever shall differ
        try:
            graph = tracer.trace(module)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(f"{name}{_line(function, error)}: {first_line(error)}; {REMEDY}") from error
    constants = {each: vars(module).pop(each) for each in [*vars(module)] if each.startswith(CONSTANT)}
    if any(constant.requires_grad for constant in constants.values()):
        raise ModelError(
            f"{name}: its loss takes parameters directly, so no record's gradient would hold them; allowed: "
            "weight_decay of the optimizer for a penalty on weights, modules for the rest"
        )
    loss = _loss_of(graph, name)
    refuse_shared_changes(module, loss, ancestors([loss]), tracer.augmented, name)
    return Traced(
        loss=loss,
        leaves=tuple(tracer.leaves),
        constants=constants,
        logged=tuple(dict.fromkeys(logged)),
        kept=memory.kept(),
    )


def _written(node: fx.Node) -> tuple[str, str, str, str]:
    return node.op, str(node.target), str(node.args), str(node.kwargs)


def _plain_function(module: pl.LightningModule, name: str) -> Any:
    if "training_step" in vars(module) or getattr(module, "_compiler_ctx", None) is not None:
        raise ModelError(f"{name}: replaced on the object, or compiled; allowed: a method of the class, not compiled")
    function = type(module).training_step
    if not inspect.isfunction(function) or hasattr(function, "__wrapped__"):
        raise ModelError(f"{name}: a decorator stands around it; allowed: a plain method")
    return function


def _loss_of(graph: fx.Graph, name: str) -> fx.Node:
    (result,) = graph.output_node().args
    loss = result.get("loss") if isinstance(result, dict) else result
    if not isinstance(loss, fx.Node):
        raise ModelError(f"{name} returns no loss of the batch; allowed: a tensor, or a dict that has it as 'loss'")
    return loss


def _line(function: Any, error: Exception) -> str:
    """Where in the user's file an error arose."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == function.__code__.co_filename]
    return f", line {lines[-1]}" if lines else ""


class _Tracer(fx.Tracer):
    """Keeps every module but the LightningModule itself whole, and hands training_step its batch in its own form."""

    traced_func_name = "training_step"

    def __init__(self, sample: Any, batch: int) -> None:
        super().__init__(autowrap_modules=(math, metric_functions))  # type: ignore[arg-type]
        self._sample, self._batch = sample, batch
        self.leaves: list[Leaf] = []
        self.augmented: list[Change] = []
        """filled in by the stand-ins"""

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return StandIn(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m is not self.root

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if m in (self.submodule_paths or {}):
            return super().call_module(m, forward, args, kwargs)
        if any(True for _ in m.parameters()):
            raise ModelError(f"training_step calls a {type(m).__name__} that is no part of the module; assign it to it")
        return forward(*args, **kwargs)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        parts, form = tree_flatten_with_path(self._sample)
        proxies = []
        for number, (path, part) in enumerate(parts):
            proxies.append(self.create_proxy("placeholder", f"batch_{number}", (), {}))
            like = part if isinstance(part, Tensor) else None
            self.leaves.append(Leaf(proxies[-1].node, tuple(path), f"batch{keystr(path)}", like))
        rest = list(inspect.signature(root_fn).parameters.values())[2:]
        if len(rest) > 1:
            raise ModelError(f"training_step takes {rest[1].name!r} too; allowed: batch and batch_idx")
        return root_fn, [self.root, tree_unflatten(proxies, form), *(self._batch for _ in rest)]


class _Silent:
    """Takes every call and does nothing."""

    def __getattr__(self, name: str) -> _Silent:
        return self

    def __call__(self, *_: object, **__: object) -> _Silent:
        return self


class _AtStep:
    """A Trainer as it would be at another moment."""

    def __init__(self, trainer: pl.Trainer, moment: Moment) -> None:
        self._trainer, self.global_step, self.current_epoch = trainer, moment.step, moment.epoch
        self.logger, self.loggers = _Silent(), list[object]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)


def _always(value: Any) -> Callable[[object], Any]:
    return lambda _: value


@contextlib.contextmanager
def _muted(module: pl.LightningModule, moment: Moment, logged: list[str]) -> Iterator[None]:
    """Within, the module notes what it would log, and metrics count nothing."""

    def log(_: object, name: str, *args: object, **kwargs: object) -> None:
        logged.append(name)

    def log_dict(_: object, dictionary: Any, *args: object, **kwargs: object) -> None:
        logged.extend(dictionary)

    def by_hand(*_: object) -> None:
        raise ModelError("training_step optimises by hand; allowed: a training_step that returns its loss")

    kind, trainer = type(module), _AtStep(module.trainer, moment)
    stand_ins: dict[str, Any] = {"log": log, "log_dict": log_dict, "print": lambda *_, **__: None}
    stand_ins |= {"manual_backward": by_hand, "optimizers": by_hand, "lr_schedulers": by_hand}
    public: dict[str, Any] = {"global_step": moment.step, "current_epoch": moment.epoch, "trainer": trainer}
    public |= {"logger": _Silent(), "loggers": []}
    stand_ins |= {name: property(_always(value)) for name, value in public.items()}
    metrics = [
        part for part in module.modules() if isinstance(part, torchmetrics.Metric | torchmetrics.MetricCollection)
    ]
    before = [(vars(metric), dict(vars(metric))) for metric in metrics]
    for attributes, _ in before:
        attributes.update(update=_Silent(), compute=_Silent(), reset=_Silent())
    module.__class__ = type(kind.__name__, (kind,), stand_ins)
    try:
        yield
    finally:
        module.__class__ = kind
        for attributes, values in before:
            attributes.clear()
            attributes.update(values)


@contextlib.contextmanager
def _untouched(module: nn.Module, where: str) -> Iterator[Memory]:
    """Leaves the attributes of all modules, and the state of torch's random numbers, as they were.

    A tensor that was changed could not be put back, so that is refused.
    """
    memory, random = Memory(module), torch.get_rng_state()
    try:
        yield memory
        memory.refuse_tensors(where)
    finally:
        torch.set_rng_state(random)
        memory.put_back()


@contextlib.contextmanager
def _traced_len(function: Any) -> Iterator[None]:
    """Within, `len` of a tensor of the batch is a node, as its shape is."""

    def length(value: Any) -> Any:
        if isinstance(value, fx.Proxy):
            return value.tracer.create_proxy("call_function", len, (value,), {})
        return len(value)

    names, missing = function.__globals__, object()
    before = names.get("len", missing)
    names["len"] = length
    try:
        yield
    finally:
        if before is missing:
            del names["len"]
        else:
            names["len"] = before
