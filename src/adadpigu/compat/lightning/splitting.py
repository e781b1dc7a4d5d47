"""A traced `training_step` in two parts: the model, run on batches, and the loss, of each record on its own.

    inputs ─▶ everything up to the last module with parameters ─▶ output
    (output_i, target_i) ─▶ the rest, as a batch of one ─▶ ℓ_i

So the loss cannot mix records, whatever its code does with a batch; whether the model does is probed as for any model.
Layers are the user's own objects under their own names, so layer rules, parameter groups and checkpoints fit.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
from torch import Tensor, fx, nn
from torch.nn import functional as F

from adadpigu.compat.lightning.tracing import Leaf, Traced, ancestors
from adadpigu.errors import ModelError
from adadpigu.gradients import Loss
from adadpigu.gradients.state import describe, refuse_changes

Program = Callable[[nn.Module, tuple[Any, ...]], Any]
"""a part of the graph as a function of the module that holds its layers, and of what it starts from"""


@dataclass(frozen=True)
class PrivateStep:
    """What the gradient engines are given of a LightningModule."""

    model: StepModel
    loss: Loss
    inputs: Leaf
    targets: Leaf
    """what the loss compares with; the inputs where it compares with nothing else"""
    logged: tuple[str, ...]


class StepModel(nn.Module):
    """The model part: the layers of a LightningModule that are trained or used, under the names they have there."""

    def __init__(self, module: nn.Module, program: Program, targets: set[str], constants: dict[str, Tensor]) -> None:
        super().__init__()
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad or name in targets:
                self.register_parameter(name, parameter)
        for name, buffer in module.named_buffers(recurse=False):
            if name in targets:
                self.register_buffer(name, buffer)
        used = {target.partition(".")[0] for target in targets}
        for name, child in module.named_children():
            if name in used or any(parameter.requires_grad for parameter in child.parameters()):
                self.add_module(name, child)
        for target in targets - {name for name, _ in self.named_children()}:
            if target in constants:
                setattr(self, target, constants[target])
            elif "." not in target and not hasattr(self, target):
                setattr(self, target, getattr(module, target))
        self._program = program

    def forward(self, inputs: Tensor) -> Any:
        return self._program(self, (inputs,))


class StepLoss(nn.Module):
    """The loss part, for outputs and targets with a batch dimension."""

    def __init__(self, module: nn.Module, program: Program, targets: set[str], constants: dict[str, Tensor]) -> None:
        super().__init__()
        self.parts = nn.ModuleDict()
        for target in targets:
            found = constants[target] if target in constants else _found(module, target)
            if isinstance(found, nn.Module):
                self.parts[_key(target)] = found
            else:
                self.register_buffer(_key(target), found, persistent=False)
        self._program = program

    def forward(self, outputs: Tensor, targets: Tensor) -> Any:
        with refuse_changes(self):
            return self._program(self, (outputs, targets))


def split(module: pl.LightningModule, traced: Traced) -> PrivateStep:
    """Cuts behind the last module with parameters; refuses by name what has no such cut."""
    where = f"{type(module).__name__}.training_step"
    needed = traced.needed()
    learned = [node for node in needed if _uses_parameters(module, node)]
    if not learned:
        raise ModelError(f"{where}: no parameter of the module takes part in its loss; allowed: a loss of its outputs")
    output = _unpacked(_cut(needed, learned, traced.loss, where), needed)
    if output is traced.loss:
        raise ModelError(
            f"{where}: its loss comes out of a module with parameters; allowed: a loss that has none, of an output"
        )
    inside = ancestors([output])
    rest = [node for node in needed if node in _until(traced.loss, output) and node.op != "placeholder"]
    inputs = _leaf(traced, inside, where, "modules with parameters take")
    targets = _leaf(traced, _until(traced.loss, output), where, "its loss takes, beside outputs,", or_else=inputs)
    body = [node for node in needed if node in inside and node.op != "placeholder"]
    kind = type(type(module).__name__, (StepModel,), {})  # so that errors name the user's class
    model = kind(module, _program(body, (inputs.node,), output), _targets(body), traced.constants)
    return PrivateStep(
        model=model,
        loss=_loss(module, rest, output, targets, traced),
        inputs=inputs,
        targets=targets,
        logged=traced.logged,
    )


def _uses_parameters(module: nn.Module, node: fx.Node) -> bool:
    if node.op == "call_module":
        return any(True for _ in module.get_submodule(str(node.target)).parameters())
    own = dict(module.named_parameters())
    return any(source.op == "get_attr" and str(source.target) in own for source in node.all_input_nodes)


def _cut(needed: list[fx.Node], learned: list[fx.Node], loss: fx.Node, where: str) -> fx.Node:
    """The one node through which everything learned reaches the loss: the first such behind the last parameter."""
    inside, dependent, several = ancestors(learned), _dependent(needed, learned), ""
    while True:
        cut = [node for node in needed if node in inside & dependent and _leaves(node, inside, needed, loss)]
        if len(cut) == 1:
            return cut[0]
        several = several or ", ".join(repr(str(node.target)) for node in cut)
        joined = next((node for node in needed if node not in inside and node in dependent), loss)
        if joined is loss:
            raise ModelError(
                f"{where}: its loss takes several results of modules with parameters ({several}); allowed: one tensor, "
                "such as torch.cat of them"
            )
        inside |= ancestors([joined])


def _dependent(needed: list[fx.Node], learned: list[fx.Node]) -> set[fx.Node]:
    """The nodes that depend on parameters."""
    found = set(learned)
    for node in needed:
        if any(source in found for source in node.all_input_nodes):
            found.add(node)
    return found


def _leaves(node: fx.Node, before: set[fx.Node], needed: list[fx.Node], loss: fx.Node) -> bool:
    """Whether something behind the last module with parameters uses this."""
    return node is loss or any(user in needed and user not in before for user in node.users)


def _unpacked(output: fx.Node, needed: list[fx.Node]) -> fx.Node:
    """The part of an output that is taken, where one part alone is: `self.net(x)[0]`, `self.net(x).logits`."""
    users = [user for user in output.users if user in needed]
    while len(users) == 1 and users[0].target in (operator.getitem, getattr) and users[0].args[0] is output:
        output = users[0]
        users = [user for user in output.users if user in needed]
    return output


def _until(loss: fx.Node, output: fx.Node) -> set[fx.Node]:
    """What the loss depends on, the model's output taken as given."""
    found, waiting = set[fx.Node](), [loss]
    while waiting:
        node = waiting.pop()
        if node not in found and node is not output:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def _leaf(traced: Traced, nodes: set[fx.Node], where: str, who: str, or_else: Leaf | None = None) -> Leaf:
    """The one tensor of the batch among these nodes."""
    leaves = [leaf for leaf in traced.leaves if leaf.node in nodes]
    if not leaves and or_else is not None:
        return or_else
    if len(leaves) != 1 or leaves[0].like is None:
        labels = ", ".join(leaf.label for leaf in leaves) or "no part"
        raise ModelError(f"{where}: {who} {labels} of the batch; allowed: one tensor of it")
    return leaves[0]


def _targets(nodes: list[fx.Node]) -> set[str]:
    return {str(node.target) for node in nodes if node.op in ("call_module", "get_attr")}


def _program(nodes: list[fx.Node], start: tuple[fx.Node, ...], end: fx.Node) -> Program:
    def run(owner: nn.Module, given: tuple[Any, ...]) -> Any:
        values = dict(zip(start, given, strict=True))
        for node in nodes:
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda each: values[each])
            values[node] = _evaluated(owner, node, args, kwargs)
        return values[end]

    return run


def _evaluated(owner: nn.Module, node: fx.Node, args: Any, kwargs: Any) -> Any:
    target: Any = node.target
    if node.op == "call_function":
        return target(*args, **kwargs)
    if node.op == "call_method":
        return getattr(args[0], target)(*args[1:], **kwargs)
    found = _found(owner, target)
    return found(*args, **kwargs) if node.op == "call_module" else found


def _found(owner: nn.Module, target: str) -> Any:
    """What a module holds under a dotted name."""
    if isinstance(owner, StepLoss):
        return owner.parts[_key(target)] if _key(target) in owner.parts else getattr(owner, _key(target))
    found: Any = owner
    for name in target.split("."):
        found = getattr(found, name)
    return found


def _key(target: str) -> str:
    return "/".join(("part", *target.split(".")))


def _by_default(function: Any, given: dict[str, Any]) -> bool:
    """Whether keyword arguments say what would hold without them."""
    usual = {name: each.default for name, each in inspect.signature(function).parameters.items()}
    return all(value is usual[name] or value == usual[name] for name, value in given.items())


def _loss(module: nn.Module, rest: list[fx.Node], output: fx.Node, targets: Leaf, traced: Traced) -> Loss:
    """The rest as a function; cross-entropy of labels as itself, since labels are then checked beforehand."""
    like = targets.like
    assert like is not None
    labels = like.ndim == 1 and not like.is_floating_point()
    if labels and len(rest) == 1 and rest[0].args == (output, targets.node):
        if rest[0].target is F.cross_entropy and _by_default(F.cross_entropy, rest[0].kwargs):
            return F.cross_entropy
        called = module.get_submodule(str(rest[0].target)) if rest[0].op == "call_module" else None
        if type(called) is nn.CrossEntropyLoss:
            return called
    for target in _targets([node for node in rest if node.op == "call_module"]):
        if type(part := module.get_submodule(target)).__module__.startswith("torchmetrics"):
            raise ModelError(f"{describe(target, part)}: the loss goes through a metric; allowed: a loss function")
    return StepLoss(module, _program(rest, (output, targets.node), traced.loss), _targets(rest), traced.constants)
