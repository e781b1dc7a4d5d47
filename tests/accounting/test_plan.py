"""A plan counts what it holds, and its beginnings are plans."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adadpigu.accounting import Plan, PlannedDraw, PlannedStage, draw_event, plan_for
from adadpigu.accounting.events import leaves
from adadpigu.errors import InputError


def two_stages(sigma: float = 2.0) -> Plan:
    batch = PlannedDraw(name="batch", sample_rate=0.1, noise_multiplier=sigma)
    extra = PlannedDraw(name="validation", sample_rate=0.05, noise_multiplier=8.0)
    return Plan(
        stages=(
            PlannedStage(name="importance", steps=5, draws=(batch,)),
            PlannedStage(name="training", steps=20, draws=(batch, extra)),
        )
    )


def test_equal_draws_of_different_stages_are_counted_together() -> None:
    assert two_stages().charges() == {draw_event(0.1, [2.0]): 25, draw_event(0.05, [8.0]): 20}


def test_the_composed_event_holds_exactly_the_charges() -> None:
    plan = two_stages()
    assert leaves(plan.event()) == plan.charges()
    assert leaves(plan_for(0.1, 0)(1.0).event()) == {}


@given(st.integers(min_value=0, max_value=25))
def test_a_prefix_has_that_many_steps_in_the_same_order(steps: int) -> None:
    plan = two_stages().prefix(steps)
    assert plan.steps == steps
    assert plan.charges()[draw_event(0.1, [2.0])] == steps
    assert plan.charges()[draw_event(0.05, [8.0])] == max(0, steps - 5)


@pytest.mark.parametrize("steps", [-1, 26])
def test_a_prefix_beyond_the_plan_is_refused(steps: int) -> None:
    with pytest.raises(InputError, match=rf"steps={steps}: must lie in \[0, 25\]"):
        two_stages().prefix(steps)


def test_a_plan_survives_json() -> None:
    plan = two_stages()
    assert Plan.from_json(json.loads(json.dumps(plan.to_json(), allow_nan=False))) == plan


@pytest.mark.parametrize("broken", [{}, {"stages": 3}, {"stages": [{"name": "a"}]}, {"stages": ["a"]}])
def test_what_is_not_a_plan_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises(InputError, match="not a plan"):
        Plan.from_json(broken)


def test_names_that_could_be_mixed_up_are_refused() -> None:
    stage = two_stages().stages[0]
    with pytest.raises(InputError, match="stage 'importance' occurs 2 times"):
        Plan(stages=(stage, stage))
    with pytest.raises(InputError, match="draw in stage 's' 'batch' occurs 2 times"):
        PlannedStage(name="s", steps=1, draws=(*stage.draws, *stage.draws))


@pytest.mark.parametrize("steps", [-1, 1.5, True])
def test_steps_that_are_no_count_are_refused(steps: int) -> None:
    with pytest.raises(InputError, match=f"steps={steps}"):
        PlannedStage(name="s", steps=steps, draws=())
