"""Looks at gradients: what they see is what looped autograd sees, and a run that is looked at trains as ever."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.core.layout import Layout
from adadpigu.core.mechanism import Release
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.errors import InputError
from adadpigu.methods import DPSGD, SGD, Masked, Method
from adadpigu.methods.base import Batches, MethodState, Stage
from adadpigu.training import Preparation, Run, train_prepared
from adadpigu_paper.reproduce.gradient_looks import (
    LOOKS_HERE,
    Energy,
    GradientLook,
    GradientValues,
    SampledEnergy,
    Tally,
    bin_edges,
    clipped_sum,
    finite,
    holders,
    layered_energy,
    record_gradients,
    summed_gradient,
)
from trials import prepare_small, small_digits, small_net, weights

MASKED = Masked(schedule="constant", retention=0.5, clip_norm=0.3, importance_steps=4)


def looked_at(kind: type[GradientLook], method: Method, **options: Any) -> tuple[GradientLook, Run]:
    look = kind(ready(method, **options))
    return look, train_prepared(look.prepared, observers=[look], randomness=ReproducibleRandomness(7))


def ready(method: Method, **options: Any) -> Preparation:
    return prepare_small(method, diagnostics=True, **{"evaluate_every": 4, "steps": 8, **options})


def looped(model: nn.Module, count: int) -> Tensor:
    """The oracle: one record after the other through autograd, in float64."""
    model = model.double()
    inputs, targets = small_digits().train.take(torch.arange(count))
    rows = []
    for record, target in zip(inputs.double(), targets, strict=True):
        loss = F.cross_entropy(model(record[None]), target[None])
        rows.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))]))
    return torch.stack(rows)


def mean_training_gradient(run: Run) -> np.ndarray[Any, Any]:
    return looped(run.model, 240).mean(dim=0).numpy()


def test_gradients_of_single_records_and_their_sum_agree_with_looped_autograd() -> None:
    net = small_net()
    layout, expected = Layout.of(net), looped(small_net(), 30)
    inputs, targets = small_digits().train.take(torch.arange(30))
    rows = record_gradients(net, layout, layout.read(net), inputs, targets)
    torch.testing.assert_close(rows.double(), expected, rtol=1e-4, atol=1e-7)
    total = summed_gradient(net, layout, layout.read(net), inputs, targets)
    torch.testing.assert_close(total, expected.sum(dim=0), rtol=1e-4, atol=1e-6)


def test_gradients_are_taken_at_the_weights_that_are_given_not_at_the_models() -> None:
    net, other = small_net(), small_net(seed=1)
    layout = Layout.of(net)
    inputs, targets = small_digits().train.take(torch.arange(5))
    rows = record_gradients(net, layout, layout.read(other), inputs, targets)
    torch.testing.assert_close(rows.double(), looped(other, 5), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("kind", [GradientValues, Energy])
@pytest.mark.parametrize("method", [SGD(), DPSGD(clip_norm=0.3), MASKED], ids=lambda method: method.name)
def test_a_run_that_is_looked_at_trains_exactly_as_one_that_is_not(kind: type[GradientLook], method: Method) -> None:
    alone = train_prepared(ready(method), randomness=ReproducibleRandomness(7))
    look, run = looked_at(kind, method)
    assert torch.equal(weights(run.model), weights(alone.model))
    assert [seen["step"] for seen in look.seen] == [4, 8]
    assert run.metrics == alone.metrics
    assert run.privacy.to_json()["events"] == alone.privacy.to_json()["events"]


def test_a_followed_method_is_told_stage_and_index_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    method, told = DPSGD(), list[tuple[str, int]]()
    kind = type(method.begin(ready(method).run_context()))
    plain = kind.step

    def step(self: MethodState, batches: Batches, stage: Stage, index: int) -> Release:
        told.append((stage.name, index))
        return plain(self, batches, stage, index)

    monkeypatch.setattr(kind, "step", step)
    looked_at(Energy, method)
    assert told == [("training", index) for index in range(8)]


@pytest.mark.parametrize("kind", LOOKS_HERE.values(), ids=LOOKS_HERE)
def test_no_look_without_diagnostics(kind: type[GradientLook]) -> None:
    with pytest.raises(InputError, match="allowed: with diagnostics=True"):
        kind(prepare_small(DPSGD()))


@pytest.mark.parametrize("kind", LOOKS_HERE.values(), ids=LOOKS_HERE)
def test_the_statement_of_a_run_that_was_looked_at_says_so(kind: type[GradientLook]) -> None:
    look = kind(ready(DPSGD()))
    run = train_prepared(look.prepared, observers=[look])  # secret noise: else there is no guarantee to be outside of
    assert look.seen
    statement = " ".join(run.privacy.statement().split())
    assert "iagnostics were exposed" in statement, statement


@pytest.mark.parametrize("kind", LOOKS_HERE.values(), ids=LOOKS_HERE)
def test_what_is_seen_can_be_written_as_json(kind: type[GradientLook]) -> None:
    look, _ = looked_at(kind, MASKED)
    assert json.loads(json.dumps(look.seen, allow_nan=False)) == look.seen


def test_every_value_is_counted_in_the_bin_that_holds_it() -> None:
    values = torch.tensor([0.0, 5e-8, -5e-8, 0.02, -0.02, 0.01, -0.01, 100.0, -100.0, 3e-5])
    tally = Tally()
    tally.add(values[:4])
    tally.add(values[4:])
    edges = [-np.inf, *torch.tensor(bin_edges()).tolist(), np.inf]  # in the precision of the values
    by_hand = [sum(low < value <= high for value in values.tolist()) for low, high in itertools.pairwise(edges)]
    told = tally.told()
    assert told["counts"] == by_hand
    assert told["values"] == len(values)
    assert told["within"] == 0.6
    assert told["zero"] == 0.1


def test_bins_are_symmetric_and_ascend() -> None:
    edges = bin_edges()
    assert edges == sorted(edges)
    assert edges == [-edge for edge in reversed(edges)]
    assert 0.01 in edges  # the paper's bound falls between two bins


@pytest.mark.parametrize("method", [DPSGD(clip_norm=0.3), MASKED], ids=lambda method: method.name)
def test_the_clipped_mean_is_that_of_gradients_masked_and_clipped_one_by_one(method: DPSGD | Masked) -> None:
    look, run = looked_at(GradientValues, method)
    assert look.followed.method_state is not None
    rows, active = looped(run.model, 240), look.followed.method_state.active
    rows = rows if active is None else rows[:, active]
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    expected = (rows * (method.clip_norm / norms).clamp(max=1)).mean(dim=0)
    seen = look.seen[-1]["clipped"]
    assert float((norms > method.clip_norm).double().mean()) > 0.5  # the clip matters here
    assert seen["norm"] == pytest.approx(float(expected.norm()), rel=1e-4)
    assert seen["values"] == len(expected)
    assert seen["within"] == pytest.approx(float((expected.abs() <= 0.01).double().mean()), abs=2 / len(expected))
    noise = 1.5 * method.clip_norm / 40
    assert look.seen[-1]["noise"] == pytest.approx(noise)
    assert seen["below_noise"] == pytest.approx(float((expected.abs() < noise).double().mean()), abs=2 / len(expected))


def test_noise_is_as_large_as_the_release_of_a_coordinate_has_it() -> None:
    """β differs by layer and the noise with it: σC/B·(√β + μ) on each value of the restored mean."""
    method = Masked(retention=1.0, clip_norm=0.3, importance_steps=4, variance_start="stage-1")
    look, run = looked_at(GradientValues, method)
    query = look.followed.query
    assert query is not None
    assert query.scale is not None
    rows, scale = looped(run.model, 240), query.scale.double()
    assert float(scale.max() / scale.min()) > 1.2  # else one number would do
    standardised = rows.double() / scale
    norms = torch.linalg.vector_norm(standardised, dim=1, keepdim=True)
    expected = (standardised * (0.3 / norms).clamp(max=1)).mean(dim=0) * scale
    smaller = expected.abs() < 1.5 * 0.3 / 40 * scale
    found = look.seen[-1]["clipped"]["below_noise"]
    assert found == pytest.approx(float(smaller.double().mean()), abs=2 / len(expected))


def test_values_of_single_records_and_of_their_mean_agree_with_looped_autograd() -> None:
    look, run = looked_at(GradientValues, DPSGD(clip_norm=0.3))
    rows, seen = looped(run.model, 240), look.seen[-1]
    assert (seen["records"], seen["parameters"], seen["epoch"]) == (240, rows.shape[1], pytest.approx(8 * 40 / 240))
    assert seen["single"]["values"] == rows.numel()
    assert seen["single"]["within"] == pytest.approx(float((rows.abs() <= 0.01).double().mean()), abs=1e-4)
    assert seen["mean"]["norm"] == pytest.approx(float(rows.mean(dim=0).norm()), rel=1e-4)
    assert seen["single"]["held_by"] == pytest.approx(float(holders(rows).mean()), abs=1e-3)


def test_under_sgd_nothing_is_clipped_and_there_is_no_noise() -> None:
    look, _ = looked_at(GradientValues, SGD(), lr=0.05)
    seen = look.seen[-1]
    assert seen["noise"] is None
    assert seen["clipped"]["norm"] == pytest.approx(seen["mean"]["norm"], rel=1e-6)
    assert seen["clipped"]["counts"] == seen["mean"]["counts"]


def test_automatic_clipping_is_looked_at_as_the_run_clips() -> None:
    look, run = looked_at(GradientValues, DPSGD(clip_norm=0.3), clipping="automatic", clip_stability=0.5)
    rows = looped(run.model, 240)
    expected = (rows * (0.3 / (torch.linalg.vector_norm(rows, dim=1, keepdim=True) + 0.5))).mean(dim=0)
    assert look.seen[-1]["clipped"]["norm"] == pytest.approx(float(expected.norm()), rel=1e-4)


def test_standardised_gradients_come_back_in_gradient_units() -> None:
    """With C out of reach nothing is clipped, so standardising and restoring must leave the plain mean."""
    method = Masked(retention=1.0, clip_norm=1e6, importance_steps=4, variance_start="stage-1", mean_decay=0.9)
    look, _ = looked_at(GradientValues, method, sigma=1e-6)
    seen = look.seen[-1]
    assert look.followed.query is not None
    assert look.followed.query.scale is not None
    assert seen["clipped"]["norm"] == pytest.approx(seen["mean"]["norm"], rel=1e-4)


def test_energy_agrees_with_the_definition_on_the_runs_own_mask() -> None:
    look, run = looked_at(Energy, MASKED)
    gradient, seen = mean_training_gradient(run), look.seen[-1]
    assert look.followed.method_state is not None
    active = look.followed.method_state.active
    assert active is not None
    squares, mask = gradient**2, active.numpy()
    kept = int(mask.sum())
    assert kept == len(gradient) // 2 == seen["active"]
    assert seen["kept"] == pytest.approx(squares[mask].sum() / squares.sum(), rel=1e-4)
    assert seen["most"] == pytest.approx(np.sort(squares)[-kept:].sum() / squares.sum(), rel=1e-4)
    assert seen["chance"] == kept / len(gradient)
    assert seen["norm"] == pytest.approx(float(np.linalg.norm(gradient)), rel=1e-4)


def test_in_stage_one_all_energy_is_kept_and_later_at_most_the_most_possible() -> None:
    look, _ = looked_at(Energy, MASKED, steps=16)
    first, *later = look.seen
    assert first["stage"] == "importance"
    assert all(first[name] == 1.0 for name in ("kept", "most", "held", "layered", "chance"))
    for seen in later:
        assert seen["stage"] == "training"
        assert all(0 < seen[name] <= seen["most"] < 1 for name in ("kept", "held", "layered", "chance"))


def test_the_mask_of_the_gradient_when_stage_one_ended_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted gradients: e₀ is the largest coordinate in stage 1; later e₁ is, so that the held mask keeps e₀ alone."""
    size = Layout.of(small_net()).size
    before, after = torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
    before[: size // 2] = 1.0
    after[size // 2 :] = 3.0
    after[0] = 4.0
    planted = iter([before, after])
    monkeypatch.setattr("adadpigu_paper.reproduce.gradient_looks.summed_gradient", lambda *_: next(planted) * 240)
    look, _ = looked_at(Energy, MASKED)
    rest = 9.0 * (size - size // 2)
    assert look.seen[1]["held"] == pytest.approx(16 / (16 + rest))


def test_without_a_look_in_stage_one_nothing_is_held() -> None:
    look, _ = looked_at(Energy, MASKED, evaluate_every=8)
    assert [seen["held"] for seen in look.seen] == [None]


def test_a_look_at_a_sample_takes_the_first_records_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SampledEnergy, "records", 50)
    look, run = looked_at(SampledEnergy, DPSGD())
    assert look.seen[-1]["records"] == 50
    assert look.seen[-1]["norm"] == pytest.approx(float(looped(run.model, 50).mean(dim=0).norm()), rel=1e-4)


def test_energy_of_masks_random_within_layers_is_the_mean_over_such_masks() -> None:
    """Exact: every mask of one coordinate in each of two layers, all equally likely."""
    layout = Layout.of(nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(3, 1, bias=False)))
    vector = np.array([1.0, 2.0, 3.0, -1.0, 0.5])
    energies = [vector[a] ** 2 + vector[2 + b] ** 2 for a in range(2) for b in range(3)]
    active = torch.tensor([True, False, False, True, False])
    assert layered_energy(vector, active, layout) == pytest.approx(np.mean(energies) / (vector**2).sum())


@pytest.mark.parametrize(
    ("row", "share"), [([0.0, 0.0, 5.0, 0.0], 0.25), ([1.0, 1.0, 1.0, 1.0], 1.0), ([3.0, 1.0, 0.0, 0.0], 0.25)]
)
def test_few_hold_the_energy_of_a_sparse_vector(row: Sequence[float], share: float) -> None:
    assert float(holders(torch.tensor([row]))[0]) == share


def test_pruned_weights_are_looked_at_as_they_act() -> None:
    method = Masked(retention=0.5, clip_norm=0.3, importance_steps=4, mode="prune", schedule="constant")
    look, run = looked_at(Energy, method)  # the model that is kept is the pruned one
    assert int((weights(run.model) == 0).sum()) >= len(weights(run.model)) // 2
    assert look.seen[-1]["norm"] == pytest.approx(float(np.linalg.norm(mean_training_gradient(run))), rel=1e-4)


def test_a_run_that_diverged_is_told_apart() -> None:
    with pytest.raises(InputError, match="after step 12 is not finite"):
        finite(torch.tensor([1.0, float("nan")]), 12)


def test_a_record_without_a_finite_gradient_adds_nothing_to_the_clipped_sum() -> None:
    look, _ = looked_at(GradientValues, DPSGD(clip_norm=0.3))
    assert look.followed.query is not None
    size = look.layout.size
    rows = torch.ones(2, size)
    rows[0, 0] = float("inf")
    assert float(clipped_sum(rows, look.followed.query).norm()) == pytest.approx(0.3)
