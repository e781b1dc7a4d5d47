"""Chooses the fastest engine that is right for a model, and says why.

Layer rules where every trained parameter has one, torch.func for any other model, a loop where vmap refuses. Each is
checked record by record against autograd on a public, synthetic example; private records are never looked at here.
"""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor, nn

from adadpigu.errors import InputError, ModelError, first_line, unknown
from adadpigu.gradients.functional import FunctionalEngine, LoopEngine, flat_gradient
from adadpigu.gradients.ghost import GhostEngine
from adadpigu.gradients.inspection import prepared, refuse_by_behaviour, refuse_by_type
from adadpigu.gradients.interface import GradientEngine, SealedEngine
from adadpigu.gradients.losses import Loss, RecordLoss
from adadpigu.gradients.probing import exact_products, forward, innermost, quiet_mode, seed
from adadpigu.gradients.rule_engine import Precision, RuleEngine, ruled, side_by_side
from adadpigu.gradients.slicing import aligned, computes_rows_alike, counted_operations
from adadpigu.gradients.state import describe, untouched
from adadpigu.gradients.unfolding import has_rule
from adadpigu.layout import Layout

ENGINES = ("auto", "ghost", "materialised", "functional", "loop")
_MANY_NUMBERS = 2**28
"""of gradients, one GiB: more are not kept for a rehearsal"""


def choose_engine(
    model: nn.Module,
    loss: Loss,
    example: tuple[Tensor, Tensor],
    *,
    engine: str = "auto",
    precision: Precision = "float32",
    copies: int = 1,
) -> GradientEngine:
    """Inspects a model and returns its engine; the model and torch's random state are left bit-identical.

    `example` is a synthetic pair (inputs [k, ...], targets [k, ...]), k ≥ 3, made from public shapes and dtypes only.

    >>> example = torch.zeros(3, 2), torch.zeros(3, dtype=torch.long)
    >>> choose_engine(nn.Linear(2, 3), nn.CrossEntropyLoss(), example).reason
    'layer rules: every trained parameter belongs to Linear, and they agree with autograd on an example'

    `engine` asks for one by name; where it cannot be had for this model, that is an error. So is a `precision` of bf16
    for a model that layer rules do not cover. `copies` is how many (augmented) copies a record will have.
    """
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if precision not in get_args(Precision):
        raise unknown("precision", precision, get_args(Precision))
    inputs, targets = example
    if len(inputs) < 3 or len(inputs) != len(targets):
        raise InputError(f"example={len(inputs)} inputs, {len(targets)} targets: give at least 3 of each, equally many")
    refuse_by_type(model)
    with untouched(model), exact_products(), torch.enable_grad():
        inputs = prepared(model, inputs)
        refuse_by_behaviour(model, inputs)
        with counted_operations(model) as operations:
            outputs = forward(model, inputs).detach()
        record_loss = RecordLoss.of(loss, outputs, targets)
        chosen = _choose(model, record_loss, inputs, targets, engine)
        chosen.operations = sum(operations)
        chosen.rows_alike = _computes_rows_alike(chosen, inputs, targets, copies)
        if precision == "bf16":
            _shorten(chosen, inputs, targets)
        return chosen


def _computes_rows_alike(engine: SealedEngine, inputs: Tensor, targets: Tensor, copies: int) -> bool:
    """Tried where it can be seen: on a CPU, without randomness, with rows that are no burden to memory."""
    if inputs.device.type != "cpu" or isinstance(engine, LoopEngine):
        return isinstance(engine, LoopEngine)
    engine.rows_alike = True
    most = engine.slice_length(1.0, copies)
    if most * engine.layout.size > _MANY_NUMBERS or quiet_mode(engine.model, inputs) is None:
        return False
    try:
        for engine.align in (False, True):
            with aligned(engine.model, attention=engine.align):
                if computes_rows_alike(
                    lambda x, y: engine.compute(x, y, copies).gradients, inputs, targets, most, copies
                ):
                    return True
        return False
    finally:
        engine.model.train()


def _shorten(engine: SealedEngine, inputs: Tensor, targets: Tensor) -> None:
    """Has the net's products computed in bf16, if model and device can do that.

    Not on a CPU: some claim to have such products and end the process when one is asked for.
    """
    if inputs.device.type == "cpu":
        raise ModelError("<model>: precision='bf16' needs a GPU; allowed here: float32")
    if not isinstance(engine, RuleEngine):
        raise ModelError(f"<model>: precision='bf16' needs layer rules; allowed here: float32 ({engine.reason})")
    engine.precision = "bf16"
    try:
        engine.compute(inputs, targets)
    except RuntimeError as error:
        raise ModelError(
            f"<model>: precision='bf16' fails on an example on {inputs.device.type}: {first_line(error)}; "
            "allowed here: float32"
        ) from None


def _choose(model: nn.Module, loss: RecordLoss, inputs: Tensor, targets: Tensor, engine: str) -> SealedEngine:
    asked = "asked for" if engine != "auto" else ""
    unruly: str | None = asked
    laid_out = True
    if engine in ("auto", "ghost", "materialised"):
        unruly = _against_rules(model, loss, inputs, targets)
        if unruly is not None and side_by_side(inputs) is not inputs:  # x.view(…) refuses channels side by side
            laid_out = False
            unruly = _against_rules(model, loss, inputs, targets, laid_out=False)
    if unruly is None:
        kinds = ", ".join(sorted({type(module).__name__ for _, module in ruled(model)}))
        slow = f"; the loss runs record by record, as vmap refuses it: {loss.refusal}" if loss.refusal else ""
        reason = f"every trained parameter belongs to {kinds}, and they agree with autograd on an example"
        kind = RuleEngine if engine == "materialised" else GhostEngine
        chosen = kind(model, loss, f"layer rules: {reason}{slow}")
        chosen.laid_out = laid_out
        return chosen
    if engine in ("ghost", "materialised"):
        raise ModelError(f"<model>: engine={engine!r} cannot be used: {unruly}; allowed here: auto, functional, loop")
    refusal = asked if engine == "loop" else _against_functional(model, loss, inputs, targets)
    if refusal and engine == "functional":
        raise ModelError(f"<model>: engine='functional' cannot be used: {refusal}; allowed here: auto, loop")
    if not refusal:
        return FunctionalEngine(model, loss, f"torch.func over the whole model: {unruly}")
    try:
        LoopEngine(model, loss, "").compute(inputs, targets)
    except Exception as error:
        raise ModelError(
            f"{describe('', model)}: autograd fails on an example: {first_line(error)}; mend it"
        ) from error
    return LoopEngine(model, loss, f"loop over records: {refusal}")


def _against_rules(
    model: nn.Module, loss: RecordLoss, inputs: Tensor, targets: Tensor, *, laid_out: bool = True
) -> str | None:
    """Why the layer rules cannot be used, or None.

    Same batch, same seed, so dropout agrees; compared record by record, so that a layer which sees the batch in another
    dimension is found even where the sum over records is right.
    """
    for path, module in ruled(model):
        if not has_rule(module):
            return f"no layer rule for {describe(path, module)}"
    try:
        seed()
        rules = RuleEngine(model, loss, "")
        rules.laid_out = laid_out
        found = rules.compute(inputs, targets).gradients
        seed()
        parameters = Layout.of(model).parameters(model)
        losses = loss(model(inputs), targets)
        expected = torch.stack([flat_gradient(each, parameters, retain_graph=True) for each in losses])
    except Exception as error:
        return f"the layer rules fail: {first_line(error)}"
    where = difference(model, found, expected)
    return f"the layer rules differ from autograd at {where}" if where else None


def _against_functional(model: nn.Module, loss: RecordLoss, inputs: Tensor, targets: Tensor) -> str | None:
    """Why torch.func cannot be used, or None.

    Compared where the model draws no randomness, since vmap draws its own; this finds weights that a forward reaches by
    other ways than its attributes, which torch.func does not see.
    """
    with innermost(model) as stack:
        try:
            FunctionalEngine(model, loss, "").compute(inputs, targets)
        except Exception as error:
            where = describe(*stack[-1]) if stack else "the loss or the backward pass"
            return f"vmap refuses {where}: {first_line(error)}"
    try:
        if quiet_mode(model, inputs) is None:
            return None
        found = FunctionalEngine(model, loss, "").compute(inputs, targets).gradients
        expected = LoopEngine(model, loss, "").compute(inputs, targets).gradients
    except Exception as error:
        return f"torch.func or autograd fails: {first_line(error)}"
    finally:
        model.train()
    differs = difference(model, found, expected)
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
