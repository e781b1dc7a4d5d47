"""Convolutions of one and three dimensions, norms, embeddings, attention, recurrent nets: rules against the oracle.

Every case must be run by layer rules: a wrong one would only be slow, since the choice of an engine would leave it out.
"""

from __future__ import annotations

import copy

import pytest
import torch
from gradient_oracle import assert_matches, oracle
from layer_cases import CASES, NETS
from torch import Tensor, nn

from adadpigu.core.bounding import GradientSum
from adadpigu.core.gradients import choose_engine
from adadpigu.core.gradients.engine import FunctionalEngine, GradientEngine, LoopEngine
from adadpigu.core.gradients.ghost import GhostEngine
from adadpigu.core.gradients.losses import RecordLoss
from adadpigu.core.gradients.rule_engine import RuleEngine
from adadpigu.core.sensitive import Records, unseal

LOSS = nn.MSELoss()


def drawn(name: str, records: int = 4) -> tuple[nn.Module, Tensor, Tensor]:
    model, inputs = CASES[name].model(), CASES[name].inputs(records)
    with torch.no_grad():
        return model, inputs, torch.randn_like(model(inputs))


def ruled(model: nn.Module) -> RuleEngine:
    return RuleEngine(model, RecordLoss(LOSS, None), "")


def to(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


@pytest.mark.parametrize("name", CASES)
def test_layer_rules_are_chosen(name: str) -> None:
    model, inputs, targets = drawn(name)
    engine = choose_engine(model, LOSS, (inputs, targets))
    assert engine.name == "ghost", engine.reason


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_the_oracle_in_both_precisions_and_for_any_batch(name: str) -> None:
    model, inputs, targets = drawn(name)
    expected, losses = oracle(model, LOSS, inputs, targets)
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-11)):
        engine = ruled(copy.deepcopy(model).to(dtype))
        for count in (4, 1, 0):
            truth = {key: rows[:count] for key, rows in expected.items()}, losses[:count]
            assert_matches(engine, truth, to(dtype, inputs[:count]), to(dtype, targets[:count]), tolerance)


@pytest.mark.parametrize("name", CASES)
def test_a_parameter_may_be_trained_or_frozen_alone(name: str) -> None:
    model, inputs, targets = drawn(name, records=2)
    model, inputs, targets = model.double(), to(torch.float64, inputs), targets.double()
    expected, losses = oracle(model, LOSS, inputs, targets)
    parameters = dict(model.named_parameters())
    for alone in parameters:
        for others in (True, False):
            for key, parameter in parameters.items():
                parameter.requires_grad_(others if key != alone else not others)
            trained = {key: expected[key] for key, parameter in parameters.items() if parameter.requires_grad}
            if trained:
                assert_matches(ruled(model), (trained, losses), inputs, targets, 1e-10)


class Twice(nn.Module):
    """A model called twice, so that contributions have to be added."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        again = 0.5 * x if x.is_floating_point() else x.flip(x.dim() - 1) if x.dim() > 1 else x
        return self.model(x) * torch.cos(self.model(again))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", CASES)
def test_contributions_of_repeated_calls_are_added(name: str) -> None:
    model, inputs, targets = drawn(name, records=2)
    model, inputs, targets = Twice(model).double(), to(torch.float64, inputs), targets.double()
    assert_matches(ruled(model), oracle(model, LOSS, inputs, targets), inputs, targets, 1e-10)


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_every_engine_gives_the_same_clipped_sum(name: str, copies: int) -> None:
    """And layer rules give the same gradients: of a record with copies their mean."""
    model, inputs, targets = drawn(name, records=4 * copies)
    model, inputs, targets = model.double(), to(torch.float64, inputs), targets[::copies].double()
    rows, _ = oracle(model, LOSS, inputs, targets.repeat_interleave(copies, dim=0))
    flat = torch.cat([g.reshape(4, copies, -1).mean(dim=1) for g in rows.values()], dim=1)
    found = unseal(ruled(model).per_sample_gradients(Records((inputs, targets), copies=copies))).gradients
    torch.testing.assert_close(found, flat, rtol=1e-9, atol=1e-11)
    norms = flat.norm(dim=1)
    clip_norm = float(norms.median())
    expected = (flat * (clip_norm / norms).clamp(max=1)[:, None]).sum(0)
    kinds: list[type[GradientEngine]] = [GhostEngine, RuleEngine, LoopEngine]
    for kind in kinds + ([FunctionalEngine] if CASES[name].vmap else []):
        engine = kind(model, RecordLoss(LOSS, None), "")
        found = unseal(engine.clipped_sum(Records((inputs, targets), copies=copies), GradientSum(clip_norm=clip_norm)))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", NETS)
def test_a_mask_that_keeps_one_parameter_gives_its_sum_alone(name: str) -> None:
    model, inputs, targets = drawn(name, records=3)
    model, inputs, targets = model.double(), to(torch.float64, inputs), targets.double()
    rows, _ = oracle(model, LOSS, inputs, targets)
    engine = GhostEngine(model, RecordLoss(LOSS, None), "")
    for slot in engine.layout.slots:
        active = torch.zeros(engine.layout.size, dtype=torch.bool)
        active[slot.start : slot.stop] = True
        found = unseal(engine.clipped_sum(Records((inputs, targets)), GradientSum(clip_norm=1e6, active=active)))
        expected = torch.zeros(engine.layout.size, dtype=torch.float64)
        expected[active] = rows[slot.name].sum(0).flatten()
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
