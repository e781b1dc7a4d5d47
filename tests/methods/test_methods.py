"""Methods in the frame: equalities between them, frozen weights, what a method may ask for and what it may not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from adadpigu.accounting import Ledger
from adadpigu.audit.coins import RecordedCoins
from adadpigu.audit.tapes import Recorder
from adadpigu.core.bounding import GradientSum
from adadpigu.core.mechanism import Release
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.data import TensorRecords
from adadpigu.errors import InputError, PrivacyLineError
from adadpigu.methods import DPSGD, SGD, AdaDPIGU, ParameterFreezing, RandomFreeze, make_method
from adadpigu.methods.base import Batches, Method, MethodState, RunContext, Stage
from adadpigu.methods.mask import Schedule
from adadpigu.training import train_prepared
from adadpigu.training.loop import Session
from adadpigu.training.resuming import Begun
from float64_world import gradients, net, record
from open_method import OpenMethod
from trials import prepare_small, run_small, small_digits, small_net, weights


def test_adadpigu_without_its_parts_is_dpsgd_to_the_bit() -> None:
    plain = AdaDPIGU(
        retention=1.0, importance_steps=0, clip_norm=0.3, beta=1.0, mean_decay=1.0, variance_decay=1.0, offset=0.0
    )
    ours, theirs = run_small(plain, momentum=0.9), run_small(DPSGD(clip_norm=0.3), momentum=0.9)
    assert torch.equal(weights(ours.model), weights(theirs.model))
    other = run_small(DPSGD(clip_norm=0.3), momentum=0.9, randomness=ReproducibleRandomness(8))
    assert not torch.equal(weights(ours.model), weights(other.model))


@dataclass(frozen=True, kw_only=True)
class PerLayer(Method):
    """One query a layer, each with its bound, added up."""

    name: ClassVar[str] = "per-layer"
    source: ClassVar[str] = "tests"
    adds: ClassVar[str] = "one bound a layer"
    costs: ClassVar[str] = "one event a step"
    held: bool = False
    """whether the function that adds up holds the second release, or is given it"""

    def begin(self, context: RunContext) -> MethodState:
        return PerLayerRunning(self.held, context)


class PerLayerRunning(MethodState):
    def __init__(self, held: bool, context: RunContext) -> None:
        self._held, self._batch_size = held, context.batch_size
        first = context.layout.layer_index() == 0
        self._queries = [
            GradientSum(name=name, clip_norm=clip, active=mask, share=0.5)
            for name, clip, mask in (("first", 0.3, first), ("second", 0.1, ~first))
        ]

    def state(self) -> dict[str, torch.Tensor]:
        return {}

    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        made, size = batches.release(*self._queries), self._batch_size
        if self._held:
            return made["first"].map(lambda value: (value + made["second"].value) / size)
        return made["first"].map(lambda one, two: (one + two) / size, made["second"])


@pytest.mark.parametrize("held", [False, True])
def test_queries_of_several_layers_train_all_their_layers(held: bool) -> None:
    """One step equals the formula in float64: each layer clipped to its own bound, with noise of √2 σ times it."""
    data, coins = small_digits(), ReproducibleRandomness(3)
    drawn = (coins.uniform(len(data.train)) < 40 / 240).nonzero().flatten()
    for count in (624, 16, 624):
        coins.words(count)
    sizes = (64 * 12 + 12, 12 * 10 + 10)
    noise = [coins.normal(sum(sizes)).split(sizes)[layer] for layer in (0, 1)]  # type: ignore[no-untyped-call]
    net = small_net().double()
    total = torch.zeros(sum(sizes), dtype=torch.float64).split(sizes)  # type: ignore[no-untyped-call]
    for x, y in zip(*data.train.take(drawn), strict=True):
        grads = torch.autograd.grad(F.cross_entropy(net(x[None].double()), y[None]), list(net.parameters()))
        for layer, clip in enumerate((0.3, 0.1)):
            flat = torch.cat([g.flatten() for g in grads[2 * layer : 2 * layer + 2]])
            total[layer].add_(flat * min(1.0, clip / float(flat.norm())))
    noised = torch.cat([t + 1.5 * 2**0.5 * c * n for t, c, n in zip(total, (0.3, 0.1), noise, strict=True)])
    run = run_small(PerLayer(held=held), randomness=ReproducibleRandomness(3), steps=1, momentum=0.0)
    expected = weights(small_net()).double() - 0.5 * noised / 40
    np.testing.assert_allclose(weights(run.model).numpy(), expected.numpy(), atol=2e-6)


def test_one_dpsgd_step_equals_the_formula_in_float64() -> None:
    data, randomness = small_digits(), ReproducibleRandomness(3)
    coins = ReproducibleRandomness(3)
    drawn = (coins.uniform(len(data.train)) < 40 / 240).nonzero().flatten()
    for count in (624, 16, 624):
        coins.words(count)
    noise = coins.normal(64 * 12 + 12 + 12 * 10 + 10)
    net = small_net().double()
    inputs, targets = data.train.take(drawn)
    total = torch.zeros(len(noise), dtype=torch.float64)
    for x, y in zip(inputs.double(), targets, strict=True):
        grads = torch.autograd.grad(F.cross_entropy(net(x[None]), y[None]), list(net.parameters()))
        flat = torch.cat([g.flatten() for g in grads])
        total += flat * min(1.0, 0.3 / float(flat.norm()))
    expected = weights(small_net()).double() - 0.5 * (total + 1.5 * 0.3 * noise) / 40
    run = run_small(DPSGD(clip_norm=0.3), randomness=randomness, steps=1, momentum=0.0)
    np.testing.assert_allclose(weights(run.model).numpy(), expected.numpy(), atol=2e-6)


def test_sgd_is_the_mean_gradient_and_claims_nothing() -> None:
    data, coins = small_digits(), ReproducibleRandomness(3)
    drawn = (coins.uniform(len(data.train)) < 40 / 240).nonzero().flatten()
    net = small_net()
    inputs, targets = data.train.take(drawn)
    loss = F.cross_entropy(net(inputs), targets, reduction="sum") / 40
    grads = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])
    run = run_small(SGD(), randomness=ReproducibleRandomness(3), steps=1, momentum=0.0)
    torch.testing.assert_close(weights(run.model), weights(small_net()) - 0.5 * grads, atol=1e-5, rtol=1e-4)
    assert run.epsilon == float("inf")
    assert "NOT PRIVATE" in run.privacy.statement()


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "rmsprop", "adagrad", "nadam"])
def test_frozen_weights_are_bit_identical_whatever_the_optimiser(optimizer: str) -> None:
    method = AdaDPIGU(retention=0.4, importance_steps=2, clip_norm=0.5, schedule="constant")
    recorder = Recorder()
    run = run_small(method, steps=12, optimizer=optimizer, lr=0.05, weight_decay=0.1, tape=recorder)
    start = run_small(DPSGD(clip_norm=0.5), steps=2, optimizer=optimizer, lr=0.05, weight_decay=0.1)
    active = recorder.calls[-1][0].public.get("active")
    assert active is not None
    assert active.sum() == int(0.4 * len(weights(run.model)))
    assert torch.equal(weights(run.model)[~active], weights(start.model)[~active])
    assert (weights(run.model)[active] != weights(start.model)[active]).float().mean() > 0.99


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "steps"])
def test_masks_grow_in_order_of_importance_and_noise_stays_inside_them(schedule: Schedule) -> None:
    recorder = Recorder()
    run_small(AdaDPIGU(retention=0.3, importance_steps=2, schedule=schedule), steps=12, tape=recorder)
    size = len(weights(small_net()))
    masks = [
        set(range(size)) if "active" not in c[0].public else set(c[0].public["active"].nonzero().flatten().tolist())
        for c in recorder.calls
    ]
    assert masks[0] == masks[1] == set(range(size))
    assert len(masks[2]) == int(0.3 * size)
    assert all(a <= b for a, b in itertools.pairwise(masks[2:]))
    assert len(masks[-1]) == (int(0.3 * size) if schedule == "constant" else size)
    for mask, released in zip(masks, recorder.released, strict=True):
        moved = released["gradient"].value.nonzero().flatten().tolist()
        assert set(moved) == mask
    scores = torch.stack([(r["gradient"].value / 40).double() for r in recorder.released[:2]]).abs().sum(0)
    assert min(scores[list(masks[2])]) >= max(scores[list(set(range(size)) - masks[2])])


def test_prune_mode_evaluates_and_keeps_zeros_where_freeze_keeps_weights() -> None:
    recorder = Recorder()
    method = AdaDPIGU(retention=0.4, importance_steps=2, mode="prune", schedule="constant")
    pruned = run_small(method, steps=6, tape=recorder)
    active = recorder.calls[-1][0].public.get("active")
    assert active is not None
    assert (weights(pruned.model)[~active] == 0).all()
    assert (weights(pruned.model)[active] != 0).all()


def test_prune_mode_takes_gradients_at_the_masked_weights() -> None:
    """The first stage-2 sum equals looped autograd at m ⊙ θ, clipped on the active coordinates."""
    recorder, randomness = Recorder(), ReproducibleRandomness(5)
    method = AdaDPIGU(retention=0.4, importance_steps=1, mode="prune", clip_norm=0.3)
    run_small(method, steps=2, tape=recorder, randomness=randomness, momentum=0.0)
    active = recorder.calls[1][0].public.get("active")
    assert active is not None
    theta = weights(small_net()) - 0.5 * recorder.released[0]["gradient"].value / 40
    masked = torch.where(active, theta, 0.0)
    net = small_net()
    torch.nn.utils.vector_to_parameters(masked, net.parameters())
    coins = ReproducibleRandomness(5)
    coins.uniform(240)
    for count in (624, 16, 624):
        coins.words(count)
    coins.normal(len(theta))
    inputs, targets = small_digits().train.take((coins.uniform(240) < 40 / 240).nonzero().flatten())
    total = torch.zeros(int(active.sum()), dtype=torch.float64)
    for x, y in zip(inputs, targets, strict=True):
        grads = torch.autograd.grad(F.cross_entropy(net(x[None]), y[None]), list(net.parameters()))
        flat = torch.cat([g.flatten() for g in grads])[active].double()
        total += flat * min(1.0, 0.3 / float(flat.norm()))
    np.testing.assert_allclose(recorder.calls[1][0].total[active].numpy(), total.numpy(), atol=1e-5)


@pytest.mark.slow
def test_a_method_may_ask_for_two_releases_a_fresh_batch_and_reject_an_update() -> None:
    prepared = prepare_small(OpenMethod(), sigma=None, steps=4)
    ledger = Ledger(prepared.plan, budget=prepared.budget, path=None)
    session = Session(Begun(prepared=prepared, ledger=ledger), randomness=ReproducibleRandomness(0))
    run = session.run()
    method_state = session.learned.method_state
    assert method_state.verdicts == [True] * 4  # type: ignore[attr-defined]
    assert len(method_state.shares) == len(method_state.improvements) == 4  # type: ignore[attr-defined]
    assert ledger.count == 8
    assert run.epsilon <= 4.0
    assert not torch.equal(weights(run.model), weights(small_net()))


def test_a_rejected_update_is_undone_but_charged() -> None:
    run = run_small(OpenMethod(reject="all"), momentum=0.9, steps=4)
    assert torch.equal(weights(run.model), weights(small_net()))
    accepted = run_small(OpenMethod(), momentum=0.9, steps=4)
    assert accepted.epsilon == run.epsilon > 0


def test_a_rejected_update_leaves_no_momentum_behind() -> None:
    """Step 1 is rejected, step 2 accepted: the result is one plain step along step 2's release."""
    recorder = Recorder()
    run = run_small(OpenMethod(reject="first"), momentum=0.9, steps=2, tape=recorder)
    second = [released["gradient"].value for released in recorder.released if "gradient" in released][1]
    torch.testing.assert_close(weights(run.model), weights(small_net()) - 0.5 * second / 40)


def test_a_draws_own_batch_size_and_noise_are_planned_and_used() -> None:
    prepared = prepare_small(OpenMethod(), steps=4)
    gradient, test = prepared.plan.stages[0].draws
    assert (gradient.sample_rate, gradient.noise_multiplier) == (40 / 240, 1.5)
    assert (test.sample_rate, test.noise_multiplier) == (20 / 240, 2.0)
    recorder = Recorder()
    train_prepared(prepared, randomness=ReproducibleRandomness(1), mechanism=recorder.mechanism)
    first = recorder.released[0]
    assert first["gradient"].noise_stddev == pytest.approx(0.5 * 1.5 / 0.9**0.5)
    assert first["share"].noise_stddev == pytest.approx(0.5 * 1.5 / 0.1**0.5)
    assert recorder.released[1]["improvement"].noise_stddev == pytest.approx(0.01 * 2.0)


def test_losses_at_other_parameters_are_those_of_the_model_there() -> None:
    """The improvement of the first step equals looped losses at θ before and after, clipped a record."""
    recorder, coins = Recorder(), RecordedCoins(ReproducibleRandomness(4))
    run_small(OpenMethod(), steps=1, momentum=0.0, tape=recorder, randomness=coins)
    drawn = (coins.coins[1] < 20 / 240).nonzero().flatten()
    inputs, targets = small_digits().train.take(drawn)
    before, after = small_net(), small_net()
    theta = weights(before) - 0.5 * recorder.released[0]["gradient"].value / 40
    torch.nn.utils.vector_to_parameters(theta, after.parameters())
    losses = [F.cross_entropy(net(inputs), targets, reduction="none").detach().double() for net in (before, after)]
    expected = (losses[1] - losses[0]).clamp(-0.01, 0.01).sum()
    assert recorder.calls[1][0].total.item() == pytest.approx(expected.item(), abs=1e-5)


def test_a_draw_that_was_not_planned_is_refused_before_anything_is_charged() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Greedy(Method):
        name: ClassVar[str] = "greedy"
        draw: str = "gradient"

        def begin(self, context: RunContext) -> MethodState:
            draw = self.draw

            class Asking(MethodState):
                def step(self, batches: Batches, stage: Stage, index: int) -> Release:
                    batches.release(GradientSum(clip_norm=1.0))
                    return batches.release(GradientSum(clip_norm=1.0), draw=draw)["gradient"]

            return Asking()

    for draw in ("gradient", "another"):
        prepared = prepare_small(Greedy(draw=draw))
        with pytest.raises(PrivacyLineError, match=f"no draw '{draw}' left"):
            train_prepared(prepared, randomness=ReproducibleRandomness(0))


def test_a_method_that_returns_something_else_than_a_release_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Cheating(Method):
        name: ClassVar[str] = "cheating"

        def begin(self, context: RunContext) -> MethodState:
            class Raw(MethodState):
                def step(self, batches: Batches, stage: Stage, index: int) -> Release:
                    return torch.ones(context.layout.size)  # type: ignore[return-value]

            return Raw()

    with pytest.raises(PrivacyLineError, match="takes a Release"):
        train_prepared(prepare_small(Cheating()), randomness=ReproducibleRandomness(0))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("adadpig", {}, "did you mean 'adadpigu'"),
        ("adadpigu", {"retention": 1.5}, "retention=1.5"),
        ("adadpigu", {"retention": "much"}, "retention='much'"),
        ("adadpigu", {"retentoin": 0.5}, "did you mean 'retention'"),
        ("adadpigu", {"importance_steps": 0}, "importance_steps=0"),
        ("adadpigu", {"mode": "melt"}, "mode='melt'"),
        ("adadpigu", {"score": "loud"}, "score='loud'"),
        ("adadpigu", {"schedule": "never"}, "schedule='never'"),
        ("adadpigu", {"top_k": 0}, "top_k=0.0 is not in (0, 1]"),
        ("adadpigu", {"clip_quantile": 1}, "clip_quantile=1.0 is not in (0, 1)"),
        ("adadpigu", {"clip_quantile": 0.5, "clip_norm": 1e9}, "clip_norm=1000000000.0 is not in [1e-06, 1e+06]"),
        ("adadpigu", {"blocks": 4, "per_layer": True}, "blocks=4 with per_layer=True"),
        ("adadpigu", {"blocks": 4, "importance_steps": 1}, "stage 1 needs at least 2 steps"),
        ("adadpigu", {"noise_floor": -1}, "noise_floor=-1.0"),
        ("dpsgd", {"clip_norm": 0}, "clip_norm=0"),
        ("dpsgd", {"clip_norm": True}, "clip_norm=True"),
        ("adaclip", {"clip_norm": float("nan")}, "clip_norm=nan"),
        ("adaclip", {"floor": 0}, "floor=0.0 and ceiling=0.1"),
        ("adaclip", {"floor": 2, "ceiling": 1}, "floor=2.0 and ceiling=1.0"),
        ("adaclip", {"mean_decay": 1.5}, "mean_decay=1.5"),
        ("quantile", {"clip_norm": 1e9}, "clip_norm=1000000000.0 is not in [1e-06, 1e+06]"),
        ("quantile", {"quantile": 50}, "quantile=50.0 is not in (0, 1)"),
        ("quantile", {"clip_rate": -1}, "clip_rate=-1.0"),
        ("quantile", {"count_noise": 0}, "count_noise=0.0"),
        ("dpsur", {"test_batch_size": 0}, "test_batch_size=0"),
        ("dpsur", {"test_noise_multiplier": 0}, "test_noise_multiplier=0.0"),
        ("dpsur", {"test_clip": -1}, "test_clip=-1.0"),
        ("dpsur", {"threshold": float("inf")}, "threshold=inf"),
        ("random-freeze", {"final_rate": 1}, "final_rate=1.0 is not in [0, 1)"),
        ("random-freeze", {"rise": "fast"}, "linear, cosine, constant"),
        ("random-freeze", {"rise_by": 0}, "rise_by=0.0"),
        ("parameter-freezing", {"retention": 0}, "retention=0.0"),
        ("parameter-freezing", {"select": "best"}, "magnitude, random, public-model"),
        ("parameter-freezing", {"every": "year"}, "once, step"),
        ("parameter-freezing", {"select": "public-model"}, "needs a file"),
        ("parameter-freezing", {"public_model": "a.safetensors"}, "public_model=a.safetensors"),
        ("parameter-freezing", {"select": "public-model", "public_model": "a", "every": "step"}, "every='step'"),
    ],
)
def test_bad_options_are_named(name: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(InputError) as caught:
        make_method(name, options).stages(100)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (lambda: RandomFreeze(rise="fast"), "rise='fast' is not one of linear, cosine, constant"),  # type: ignore[arg-type]
        (lambda: ParameterFreezing(select="best"), "select='best' is not one of"),  # type: ignore[arg-type]
        (lambda: ParameterFreezing(every="year"), "every='year' is not one of once, step"),  # type: ignore[arg-type]
    ],
)
def test_bad_choices_made_in_python_are_named_too(method: Callable[[], Method], words: str) -> None:
    with pytest.raises(InputError, match=words):
        method()


def test_a_second_moment_of_an_optimiser_that_keeps_none_is_refused_before_the_run() -> None:
    method = AdaDPIGU(variance_from="optimiser")
    with pytest.raises(
        InputError, match=r"^variance_from='optimiser' with an optimizer that keeps no second moment; a"
    ):
        prepare_small(method, optimizer="sgd")
    for optimizer in ("adam", "adamw", "nadam", "radam", "rmsprop", "adadelta", "adagrad"):
        assert run_small(method, optimizer=optimizer, lr=0.01, steps=4).steps_done == 4


def test_public_scores_of_what_is_no_image_are_refused_before_the_run() -> None:
    data = small_digits()
    assert isinstance(data.train, TensorRecords)
    flat = replace(data, train=TensorRecords(data.train.inputs.flatten(1), data.train.targets), test=None, shape=(64,))
    with pytest.raises(InputError, match=r"^score='public' for records that are no such images"):
        prepare_small(AdaDPIGU(score="public"), flat)


def test_public_scores_are_the_same_whatever_the_records_and_cost_no_step() -> None:
    data = small_digits()
    assert isinstance(data.train, TensorRecords)
    other = replace(data, train=TensorRecords(1 - data.train.inputs, data.train.targets.flip(0)))
    method = AdaDPIGU(score="public", retention=0.3)
    assert [stage.name for stage in method.stages(8)] == ["training"]
    first, second = run_small(method, steps=4), run_small(method, steps=4, data=other)
    assert first.importance is not None
    assert second.importance is not None
    assert torch.equal(first.importance, second.importance)
    assert first.mask is not None
    assert int(first.mask.sum()) == int(0.3 * len(first.mask))
    assert (first.importance > 0).float().mean() > 0.9


def test_a_share_of_no_coordinate_is_refused() -> None:
    with pytest.raises(InputError, match=r"retention=0.0001 keeps none of 910 parameters"):
        run_small(ParameterFreezing(retention=1e-4))


def test_options_survive_a_round_trip_through_text() -> None:
    method = AdaDPIGU(retention=0.3, debias=True, offset=0.1, importance_steps=7)
    as_text: dict[str, object] = {k: str(v).lower() for k, v in method.options().items()}
    assert AdaDPIGU.from_options(as_text) == method


def test_automatic_clipping_of_a_method_that_does_not_clip_is_refused() -> None:
    with pytest.raises(InputError, match="clips nothing"):
        prepare_small(SGD(), clipping="automatic")


@pytest.mark.parametrize("stability", [0.1, 2.0])
def test_one_step_of_automatic_clipping_equals_the_formula_in_float64(stability: float) -> None:
    """Σ C·g/(‖g‖ + γ): every record is scaled, small gradients up."""
    found = record(DPSGD(clip_norm=0.3), steps=1, clipping="automatic", clip_stability=stability)
    rows = gradients(weights(net()).numpy(), found.drawn(0))
    expected = sum(0.3 * g / (np.linalg.norm(g) + stability) for g in rows)
    np.testing.assert_allclose(found.total(0), expected, rtol=1e-9, atol=1e-12)
    assert found.recorder.calls[0][0].sensitivity == 0.3


@pytest.mark.parametrize("stability", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("clipping", ["flat", "automatic"])
def test_a_stability_that_would_not_keep_the_bound_is_refused(clipping: str, stability: float) -> None:
    with pytest.raises(InputError, match=f"clip_stability={stability}"):
        prepare_small(DPSGD(), clipping=clipping, clip_stability=stability)
