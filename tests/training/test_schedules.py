"""Learning-rate schedules: factors by formula, and their effect on a run step by step."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from adadpigu.audit.tapes import Recorder
from adadpigu.config import LearningRateSchedule
from adadpigu.errors import InputError
from adadpigu.methods import DPSGD
from adadpigu.training.options import lr_factor
from open_method import OpenMethod
from trials import run_small, small_net, weights


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
def test_factors_rise_over_the_warmup_and_never_rise_again(kind: LearningRateSchedule) -> None:
    factors = [lr_factor(kind, step, 50, warmup=0.2) for step in range(50)]
    assert factors[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert all(a >= b for a, b in itertools.pairwise(factors[10:]))
    assert all(0 < factor <= 1 for factor in factors)
    assert (factors[-1] == 1.0) == (kind == "constant")


@pytest.mark.parametrize(("steps", "rising"), [(13, 3), (12, 2), (2, 0)])
def test_a_warmup_lasts_the_nearest_whole_number_of_steps(steps: int, rising: int) -> None:
    """0.2 of 13 steps are 2.6, of 12 they are 2.4, of 2 they are 0.4."""
    factors = [lr_factor("linear", step, steps, warmup=0.2) for step in range(steps)]
    falling = [1 - k / (steps - rising) for k in range(steps - rising)]
    assert factors == pytest.approx([(k + 1) / rising for k in range(rising)] + falling)


def test_cosine_is_the_cosine_of_the_share_of_steps_done() -> None:
    for step in range(8):
        assert lr_factor("cosine", step, 8) == pytest.approx((1 + math.cos(math.pi * step / 8)) / 2)


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_a_run_moves_by_the_scheduled_rate_at_every_step(kind: LearningRateSchedule) -> None:
    recorder = Recorder()
    run = run_small(DPSGD(), steps=4, momentum=0.0, lr=0.5, lr_schedule=kind, warmup=0.25, tape=recorder)
    expected = weights(small_net())
    for step, released in enumerate(recorder.released):
        expected = expected - 0.5 * lr_factor(kind, step, 4, 0.25) * released["gradient"].value / 40
    torch.testing.assert_close(weights(run.model), expected, rtol=1e-5, atol=1e-6)


def test_undoing_a_rejected_update_does_not_turn_the_schedule_back() -> None:
    recorder = Recorder()
    run = run_small(OpenMethod(reject="first"), steps=2, momentum=0.9, lr_schedule="linear", tape=recorder)
    second = [released["gradient"].value for released in recorder.released if "gradient" in released][1]
    torch.testing.assert_close(weights(run.model), weights(small_net()) - 0.5 * 0.5 * second / 40)


def test_bad_schedules_are_refused() -> None:
    with pytest.raises(InputError, match=r"lr_schedule.*constant, cosine, linear"):
        run_small(DPSGD(), lr_schedule="exponential")
    with pytest.raises(InputError, match=r"warmup=1.0 is not in \[0, 1\)"):
        run_small(DPSGD(), warmup=1.0)
