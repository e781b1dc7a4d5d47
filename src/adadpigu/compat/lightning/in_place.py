"""Changes in place within a traced `training_step`: followed where nobody else could notice, else refused by name.

A graph knows which node uses which, and not which tensors share their memory: `v = x.view(…); v.clamp_()` changes x as
well, and no arrow says so. So a change is taken only if what it changes, and whatever may share memory with that, is
used by nothing else on the way to the loss. No value of a record is looked at here.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator
from typing import Any

from torch import fx, nn
from torch.fx.proxy import Attribute

from adadpigu.errors import ModelError

Change = tuple[fx.Node, fx.Node]
"""a node that changes something in place, and what it changes"""
_AUGMENTED: dict[str, Callable[[Any, Any], Any]] = {
    "__iadd__": operator.add,
    "__isub__": operator.sub,
    "__imul__": operator.mul,
    "__itruediv__": operator.truediv,
    "__ifloordiv__": operator.floordiv,
    "__imod__": operator.mod,
    "__ipow__": operator.pow,
    "__imatmul__": operator.matmul,
    "__iand__": operator.and_,
    "__ior__": operator.or_,
    "__ixor__": operator.xor,
    "__ilshift__": operator.lshift,
    "__irshift__": operator.rshift,
}
_VIEWS = frozenset(
    {
        *("view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze"),
        *("transpose", "permute", "t", "adjoint", "swapaxes", "swapdims", "movedim", "moveaxis", "expand"),
        *("expand_as", "broadcast_to", "broadcast_tensors", "narrow", "select", "chunk", "split", "tensor_split"),
        *("hsplit", "vsplit", "dsplit", "split_with_sizes", "unbind", "unfold", "diagonal", "detach", "contiguous"),
        *("to", "type", "type_as", "float", "double", "half", "bfloat16", "int", "long", "short", "bool", "cpu"),
        *("cuda", "real", "imag", "view_as_real", "view_as_complex", "as_strided", "alias", "positive", "conj"),
        *("resolve_conj", "resolve_neg", "atleast_1d", "atleast_2d", "atleast_3d", "as_tensor", "asarray"),
        *("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"),
        *("getitem", "getattr", "__getitem__", "numpy", "from_numpy"),
    }
)
"""functions and methods whose result may share memory with what they are given"""


class _Noting:
    """What stands for a tensor of the batch: `x += y` is noted as a change, and attributes are not set."""

    tracer: Any
    node: fx.Node

    def __setattr__(self, name: str, value: object) -> None:
        if name not in ("tracer", "node", "_node", "root", "attr"):
            raise TypeError(f".{name} of a tensor of the batch is set")
        super().__setattr__(name, value)


def _noted(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        made = function(self, other)
        self.tracer.augmented.append((made.node, self.node))
        return made

    return method


for _name, _function in _AUGMENTED.items():
    setattr(_Noting, _name, _noted(_function))


class StandIn(_Noting, fx.Proxy):
    """A tensor of the batch, or what was computed from it."""

    def __getattr__(self, name: str) -> StandInAttribute:
        return StandInAttribute(self, name)


class StandInAttribute(_Noting, Attribute):
    """An attribute or method of such a tensor."""

    def __getattr__(self, name: str) -> StandInAttribute:
        return StandInAttribute(self, name)


def refuse_shared_changes(
    module: nn.Module, loss: fx.Node, needed: set[fx.Node], augmented: list[Change], where: str
) -> None:
    """Refuses a change in place that something else on the way to the loss may see, or that changes what stays.

    `needed` are the nodes that the loss depends on; `augmented` the changes of the form `x += y`, which are computed
    with a result of their own.
    """
    for change in augmented:
        _refuse_if_seen(module, change, loss, needed, where)
    for change in _changes(module, loss.graph):
        held = _refuse_if_seen(module, change, loss, needed, where)
        if any(node.op == "get_attr" for node in held):
            raise ModelError(
                f"{where}: {_named(change[0])} changes a tensor of the module's in place, which would carry values of "
                "records from step to step; allowed: tensors that stay as they are"
            )
        if change[0] in needed and any(node.op == "placeholder" for node in held):
            raise ModelError(
                f"{where}: {_named(change[0])} changes the batch in place; allowed: the same with a result of its "
                "own, such as x = x.clamp(…) for x.clamp_(…)"
            )


def _refuse_if_seen(module: nn.Module, change: Change, loss: fx.Node, needed: set[fx.Node], where: str) -> set[fx.Node]:
    """What the change may reach, provided that nothing else needs it."""
    made, changed = change
    held = _sharing(module, changed)
    others = {user for node in held for user in node.users if user in needed} - held - {made}
    seen = any(user > made or _may_share(module, user) for user in others)  # before it they see what was there
    if seen or (loss in held and made is not loss):
        raise ModelError(
            f"{where}: {_named(made)} changes a tensor in place that its loss needs elsewhere, also through a view; "
            "allowed: the same with a result of its own, such as x = x.clamp(…) for x.clamp_(…)"
        )
    return held


def _named(node: fx.Node) -> str:
    return repr(str(getattr(node.target, "__name__", node.target)))


def _changes(module: nn.Module, graph: fx.Graph) -> Iterator[Change]:
    """The nodes that change what they are given."""
    for node in graph.nodes:
        for changed in _changed_by(module, node):
            if isinstance(changed, fx.Node):
                yield node, changed


def _changed_by(module: nn.Module, node: fx.Node) -> Iterator[Any]:
    target: Any = node.target
    first = node.args[0] if node.args else node.kwargs.get("input", node.kwargs.get("self"))
    if node.op == "call_function":
        out = node.kwargs.get("out")
        yield from out if isinstance(out, tuple | list) else (out,)
        name = str(getattr(target, "__name__", ""))
        named = getattr(target, "__module__", "") != "_operator" and _in_place_name(name)
        written = named or name == "setitem" or _asked_in_place(node)
    elif node.op == "call_module":
        written = _begins_in_place(module.get_submodule(target))
    else:
        written = node.op == "call_method" and _in_place_name(target)
    if written:
        yield first


def _in_place_name(name: str) -> bool:
    return name in (*_AUGMENTED, "__setitem__") or (name.endswith("_") and not name.endswith("__"))


def _asked_in_place(node: fx.Node) -> bool:
    """Whether a function was called with `inplace=True`, by name or by place."""
    target: Any = node.target
    try:
        bound = inspect.signature(target).bind(*node.args, **node.kwargs)
    except (TypeError, ValueError):
        return node.kwargs.get("inplace") is True
    return bound.arguments.get("inplace") is True


def _begins_in_place(module: nn.Module) -> bool:
    """Whether a module changes its input: one such as ReLU(inplace=True), or a chain that begins with one."""
    if isinstance(module, nn.Sequential):
        return len(module) > 0 and _begins_in_place(module[0])
    return getattr(module, "inplace", False) is True


def _sharing(module: nn.Module, node: fx.Node) -> set[fx.Node]:
    """A node, and those that it may share its memory with, as far as it was made of them."""
    found, waiting = set[fx.Node](), [node]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += each.all_input_nodes if _may_share(module, each) else []
    return found


def _may_share(module: nn.Module, node: fx.Node) -> bool:
    if node.op == "call_module":
        return not any(True for _ in module.get_submodule(str(node.target)).parameters())
    name = str(getattr(node.target, "__name__", node.target))
    return name in _VIEWS or any(changed is not None for changed in _changed_by(module, node))
