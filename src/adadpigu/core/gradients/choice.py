"""Chooses the fastest engine that is right for a model, and says why.

Layer rules where every trained parameter has one, torch.func for any other model, a loop where vmap refuses. Each is
checked record by record against autograd on a public, synthetic example; private records are never looked at here.
"""

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from adadpigu.core.gradients.engine import FunctionalEngine, GradientEngine, LoopEngine, flat_gradient
from adadpigu.core.gradients.ghost import GhostEngine
from adadpigu.core.gradients.inspection import prepared, refuse_by_behaviour, refuse_by_type
from adadpigu.core.gradients.losses import GivenLosses, Loss, Losses, Objective, RecordLoss, is_plain
from adadpigu.core.gradients.norms import freeze_norms, train_mode
from adadpigu.core.gradients.probing import exact_products, forward, innermost, quiet_mode, seed
from adadpigu.core.gradients.rule_engine import Precision, RuleEngine, ruled, to_channels_last
from adadpigu.core.gradients.slicing import aligned, computes_rows_alike, counted_operations
from adadpigu.core.gradients.state import describe, untouched
from adadpigu.core.gradients.unfolding import has_rule
from adadpigu.core.layout import Layout
from adadpigu.core.trees import Tree
from adadpigu.errors import ModelError, first_line

E = TypeVar("E", bound=GradientEngine)

ENGINES = ("auto", "ghost", "materialised", "functional", "loop")
_MANY_NUMBERS = 2**28  # of gradients, one GiB: more are not kept for a rehearsal


def choose_engine(
    model: nn.Module,
    loss: Loss | None,
    example: tuple[Tree, Tensor],
    *,
    losses: Losses | None = None,
    engine: str = "auto",
    precision: Precision = "float32",
    copies: int = 1,
) -> GradientEngine:
    """Inspects a model and returns its engine; the model and torch's random state are left bit-identical.

    `example` is a synthetic pair (inputs [k, ...], targets [k, ...]), k ≥ 3, made from public shapes and dtypes only.

    >>> example = torch.zeros(3, 2), torch.zeros(3, dtype=torch.long)
    >>> choose_engine(nn.Linear(2, 3), nn.CrossEntropyLoss(), example).reason
    'layer rules, as every trained parameter belongs to Linear, and they agree with autograd on an example'

    With `losses(model, batch) -> [k]` in place of `loss`, the inputs of `example` are a whole batch, a tree of tensors.

    `engine` asks for one by name; where it cannot be had for this model, that is an error. So is a `precision` of bf16
    for a model that layer rules do not cover. `copies` is how many (augmented) copies a record will have.
    """
    inputs, targets = example
    frozen = freeze_norms(model)
    refuse_by_type(model)
    net = model if losses is None else Objective(model, losses)
    with untouched(net), exact_products(), torch.enable_grad():
        inputs = prepared(net, inputs)
        refuse_by_behaviour(net, inputs)
        with counted_operations(model) as operations:
            outputs = forward(net, inputs).detach()
        record_loss = GivenLosses() if loss is None or losses is not None else RecordLoss.of(loss, outputs, targets)
        own = losses is not None and not isinstance(getattr(losses, "__self__", None), RecordLoss)
        chosen = _choose(_Trial(model, record_loss, net, inputs, targets, own), engine)
        if frozen:
            chosen.reason += f"; {frozen} norm layer(s) keep their stored statistics"
        chosen.operations = sum(operations)
        chosen.rows_alike = _computes_rows_alike(chosen, inputs, targets, copies)
        if precision == "bf16":
            _shorten(chosen, inputs, targets)
        return chosen


def inspect_again(engine: GradientEngine, inputs: Tree, targets: Tensor) -> None:
    """Raises `ModelError` where a model that was changed after the choice can no longer be trained by this engine."""
    net = engine.net
    refuse_by_type(engine.model)
    with untouched(net), exact_products(), torch.enable_grad():
        inputs = prepared(net, inputs)
        refuse_by_behaviour(net, inputs)
        trial = _Trial(engine.model, engine.loss, net, inputs, targets, own_losses=False)
        if isinstance(engine, RuleEngine) and (unruly := _against_rules(trial, channels_last=engine.channels_last)):
            raise ModelError(f"<model>: it was changed, and {unruly}; allowed: another loop with the changed model")


@dataclass(frozen=True)
class _Trial:
    """What engines are tried on: a model, what is called with inputs (`net`), and a synthetic example."""

    model: nn.Module
    loss: RecordLoss
    net: nn.Module
    inputs: Tree
    targets: Tensor
    own_losses: bool  # whether the losses are a function of the user's, which sees a batch

    def engine(self, kind: type[E], reason: str = "") -> E:
        return kind(self.model, self.loss, reason, self.net)

    def gradients(self, kind: type[GradientEngine]) -> Tensor:
        return self.engine(kind).compute(self.inputs, self.targets).gradients


def _computes_rows_alike(engine: GradientEngine, inputs: Tree, targets: Tensor, copies: int) -> bool:
    """Tried where it can be seen: on a CPU, without randomness, with rows that are no burden to memory."""
    if targets.device.type != "cpu" or isinstance(engine, LoopEngine):
        return isinstance(engine, LoopEngine)
    engine.rows_alike = True
    draw = torch.randn if is_plain(engine.net, inputs) else torch.rand
    most = engine.slice_length(1.0, copies)
    if most * engine.layout.size > _MANY_NUMBERS or quiet_mode(engine.net, inputs) is None:
        return False
    try:
        for engine.align in (False, True):
            with aligned(engine.model, attention=engine.align):
                if computes_rows_alike(
                    lambda x, y: engine.compute(x, y, copies).gradients, inputs, targets, most, copies, draw
                ):
                    return True
        return False
    finally:
        train_mode(engine.net)


def _shorten(engine: GradientEngine, inputs: Tree, targets: Tensor) -> None:
    """Has the net's products computed in bf16, if model and device can do that."""
    # some CPUs claim to have such products and end the process when one is asked for
    if targets.device.type == "cpu":
        raise ModelError("<model>: precision='bf16' needs a GPU; allowed here: float32")
    if not isinstance(engine, RuleEngine):
        raise ModelError(f"<model>: precision='bf16' needs layer rules; allowed here: float32 ({engine.reason})")
    engine.precision = "bf16"
    try:
        engine.compute(inputs, targets)
    except RuntimeError as error:
        told = f"<model>: precision='bf16' fails on an example on {targets.device.type}: {first_line(error)}"
        raise ModelError(f"{told}; allowed here: float32") from None


def _choose(trial: _Trial, engine: str) -> GradientEngine:
    asked = "it was asked for" if engine != "auto" else ""
    unruly: str | None = asked
    channels_last = True
    if engine == "auto" and trial.own_losses:  # probed too, but alone a record is apart from others by construction
        unruly = getattr(
            trial.net.losses,
            "why_alone",
            "losses(model, batch) might mix records; engine='ghost' takes layer rules where it does not",
        )
    elif engine in ("auto", "ghost", "materialised"):
        unruly = _against_rules(trial)
        if unruly is not None and any(to_channels_last(leaf) is not leaf for leaf in tree_leaves(trial.inputs)):
            channels_last = False  # x.view(…) refuses channels side by side
            unruly = _against_rules(trial, channels_last=False)
    if unruly is None:
        loss, kinds = trial.loss, ", ".join(sorted({type(module).__name__ for _, module in ruled(trial.model)}))
        slow = f"; the loss runs record by record, as vmap refuses it: {loss.refusal}" if loss.refusal else ""
        reason = f"every trained parameter belongs to {kinds}, and they agree with autograd on an example"
        kind = RuleEngine if engine == "materialised" else GhostEngine
        chosen = trial.engine(kind, f"layer rules, as {reason}{slow}")
        chosen.channels_last = channels_last and any(leaf.dim() == 4 for leaf in tree_leaves(trial.inputs))
        return chosen
    if engine in ("ghost", "materialised"):
        raise ModelError(f"<model>: engine={engine!r} cannot be used: {unruly}; allowed here: auto, functional, loop")
    refusal = asked if engine == "loop" else _against_functional(trial)
    if refusal and engine == "functional":
        raise ModelError(f"<model>: engine='functional' cannot be used: {refusal}; allowed here: auto, loop")
    if not refusal:
        return trial.engine(FunctionalEngine, f"one record at a time under vmap, because {unruly}")
    try:
        trial.gradients(LoopEngine)
    except Exception as error:
        told = f"{describe('', trial.model)}: autograd fails on an example: {first_line(error)}"
        raise ModelError(f"{told}; fix the model's forward or backward") from error
    why = refusal if engine != "auto" else f"{refusal}; {unruly}"
    return trial.engine(LoopEngine, f"one record at a time in a loop, because {why}")


def _against_rules(trial: _Trial, *, channels_last: bool = True) -> str | None:
    """Why the layer rules cannot be used, or None; compared with autograd on the same batch with the same seed."""
    model = trial.model
    for path, module in ruled(model):
        if not has_rule(module):
            return f"no layer rule for {describe(path, module)}"
    try:
        seed()
        rules = trial.engine(RuleEngine)
        rules.channels_last = channels_last
        found = rules.compute(trial.inputs, trial.targets).gradients
        seed()
        parameters = Layout.of(model).parameters(model)
        losses = trial.loss(trial.net(trial.inputs), trial.targets)
        expected = torch.stack([flat_gradient(each, parameters, retain_graph=True) for each in losses])
    except Exception as error:
        return f"the layer rules fail: {first_line(error)}"
    where = difference(model, found, expected)
    return f"the layer rules differ from autograd at {where}" if where else None


def _against_functional(trial: _Trial) -> str | None:
    """Why torch.func cannot be used, or None: vmap refuses, or a forward reaches weights that torch.func does not see.

    Compared where the model draws no randomness, since vmap draws its own.
    """
    try:
        trial.gradients(FunctionalEngine)
    except Exception as error:
        return f"vmap refuses {innermost(trial.net, error, 'the loss or the backward pass')}: {first_line(error)}"
    try:
        if quiet_mode(trial.net, trial.inputs) is None:
            return None
        found, expected = trial.gradients(FunctionalEngine), trial.gradients(LoopEngine)
    except Exception as error:
        return f"torch.func or autograd fails: {first_line(error)}"
    finally:
        train_mode(trial.net)
    differs = difference(trial.model, found, expected)
    return f"torch.func differs from autograd at {differs}" if differs else None


def difference(model: nn.Module, found: Tensor, expected: Tensor) -> str | None:
    """The first parameter whose per-sample gradients [k, d] differ, or None; anything not finite differs."""
    roundings = min(1e4 * torch.finfo(expected.dtype).eps, 0.1)
    floor = 0.01 * roundings * expected.norm(dim=1)
    for slot in Layout.of(model).slots:
        part = slice(slot.start, slot.stop)
        gap = (found[:, part] - expected[:, part]).norm(dim=1)
        if not bool((gap <= roundings * expected[:, part].norm(dim=1) + floor).all()):
            return f"{slot.name!r} ({type(model.get_submodule(slot.layer)).__name__})"
    return None
