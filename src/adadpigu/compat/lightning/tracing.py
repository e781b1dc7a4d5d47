"""`training_step` as a graph: its code is run on stand-ins for the tensors of a batch, and never on a record.

What it computes becomes nodes, one a call of a module, a function or a method; what it logs, prints or counts comes to
nothing. Step and epoch are public, so they are plain numbers in the trace; a loss that changes with them is refused.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
import torchmetrics
from torch import Tensor, fx, nn
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_unflatten
from torchmetrics import functional as metric_functions

from adadpigu.errors import ModelError, first_line

REMEDY = "allowed: a training_step in which tensors of the batch decide no branch, loop or number of Python's"
_MOMENTS = ((0, 0), (1, 0), (7, 3))
"""(step, epoch) for which a training_step must compute the same"""
_CONTAINERS = (list, dict, set, deque)


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


def trace(module: pl.LightningModule, sample: Any) -> Traced:
    """Follows `training_step` on a batch of the form of `sample`; no value is looked at."""
    first, *others = (_trace(module, sample, step, epoch) for step, epoch in _MOMENTS)
    if any(first.differs_from(other) for other in others):
        raise ModelError(
            f"{type(module).__name__}.training_step: its loss changes from step to step (batch_idx, global_step, "
            "current_epoch, or a random tensor without the batch in it); allowed: the same function in all steps, and "
            "random tensors like one of the batch (torch.randn_like)"
        )
    return first


def _written(node: fx.Node) -> tuple[str, str, str, str]:
    return node.op, str(node.target), str(node.args), str(node.kwargs)


def _trace(module: pl.LightningModule, sample: Any, step: int, epoch: int) -> Traced:
    name = f"{type(module).__name__}.training_step"
    function = _plain_function(module, name)
    tracer, logged = _Tracer(sample, step), list[str]()
    with _untouched(module), _muted(module, step, epoch, logged), _traced_len(function):
        torch.default_generator.manual_seed(step)  # random numbers that would stay the same forever shall differ
        try:
            graph = tracer.trace(module)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(f"{name}{_line(function, error)}: {first_line(error)}; {REMEDY}") from error
        constants = {
            str(node.target): _constant(module, str(node.target))
            for node in graph.nodes
            if node.op == "get_attr" and str(node.target).startswith("_tensor_constant")
        }
    for constant in constants.values():
        if constant.requires_grad:
            raise ModelError(
                f"{name}: its loss takes parameters directly, so no record's gradient would hold them; allowed: "
                "weight_decay of the optimizer for a penalty on weights, modules for the rest"
            )
    return Traced(
        loss=_loss_of(graph, name),
        leaves=tuple(tracer.leaves),
        constants=constants,
        logged=tuple(dict.fromkeys(logged)),
    )


def _plain_function(module: pl.LightningModule, name: str) -> Any:
    if "training_step" in vars(module) or getattr(module, "_compiler_ctx", None) is not None:
        raise ModelError(f"{name}: replaced on the object, or compiled; allowed: a method of the class, not compiled")
    function = type(module).training_step
    if not inspect.isfunction(function) or hasattr(function, "__wrapped__"):
        raise ModelError(f"{name}: a decorator stands around it; allowed: a plain method")
    return function


def _constant(module: nn.Module, name: str) -> Tensor:
    value: Tensor = getattr(module, name)
    return value


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

    def __init__(self, sample: Any, step: int) -> None:
        super().__init__(autowrap_modules=(math, metric_functions))  # type: ignore[arg-type]
        self._sample, self._step = sample, step
        self.leaves: list[Leaf] = []

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
        return root_fn, [self.root, tree_unflatten(proxies, form), *(self._step for _ in rest)]


class _Silent:
    """Takes every call and does nothing."""

    def __getattr__(self, name: str) -> _Silent:
        return self

    def __call__(self, *_: object, **__: object) -> _Silent:
        return self


class _AtStep:
    """A Trainer as it would be at another step."""

    def __init__(self, trainer: pl.Trainer, step: int, epoch: int) -> None:
        self._trainer, self.global_step, self.current_epoch = trainer, step, epoch
        self.logger, self.loggers = _Silent(), list[object]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)


def _always(value: Any) -> Callable[[object], Any]:
    return lambda _: value


@contextlib.contextmanager
def _muted(module: pl.LightningModule, step: int, epoch: int, logged: list[str]) -> Iterator[None]:
    """Within, the module notes what it would log, and metrics count nothing."""

    def log(_: object, name: str, *args: object, **kwargs: object) -> None:
        logged.append(name)

    def log_dict(_: object, dictionary: Any, *args: object, **kwargs: object) -> None:
        logged.extend(dictionary)

    def by_hand(*_: object) -> None:
        raise ModelError("training_step optimises by hand; allowed: a training_step that returns its loss")

    kind, trainer = type(module), _AtStep(module.trainer, step, epoch)
    stand_ins: dict[str, Any] = {"log": log, "log_dict": log_dict, "print": lambda *_, **__: None}
    stand_ins |= {"manual_backward": by_hand, "optimizers": by_hand, "lr_schedulers": by_hand}
    public = {"global_step": step, "current_epoch": epoch, "trainer": trainer, "logger": _Silent(), "loggers": []}
    stand_ins |= {name: property(_always(value)) for name, value in public.items()}
    for metric in module.modules():
        if isinstance(metric, torchmetrics.Metric | torchmetrics.MetricCollection):
            vars(metric).update(update=_Silent(), compute=_Silent(), reset=_Silent())
    module.__class__ = type(kind.__name__, (kind,), stand_ins)
    try:
        yield
    finally:
        module.__class__ = kind


@contextlib.contextmanager
def _untouched(module: nn.Module) -> Iterator[None]:
    """Leaves the attributes of all modules, and lists and the like among them, as they were."""
    kept = [(vars(part), dict(vars(part))) for part in module.modules()]
    held: list[Any] = [value for _, values in kept for value in values.values() if type(value) in _CONTAINERS]
    contents = [(value, value.copy()) for value in held]
    random = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(random)
        for attributes, values in kept:
            attributes.clear()
            attributes.update(values)
        for value, content in contents:
            value.clear()
            (value.extend if isinstance(value, list | deque) else value.update)(content)


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
