"""TP-TopK: support and decision recomputed from releases; where it does not restrict, it is DP-SGD."""

from __future__ import annotations

import numpy as np
import pytest

from adadpigu.errors import InputError
from adadpigu.methods import DPSGD, make_method
from adadpigu_systems.tp_topk import TPTopK
from float64_world import B, Recorded, record
from trials import prepare_small, weights

C, WARM, STEPS = 0.5, 4, 7


def decided(recorded: Recorded, sigma: float, kept: int) -> bool:
    """Whether the mean power outside the support, by the releases that did not rank it, is below the noise."""
    noise = (sigma * C / B) ** 2
    power = [(recorded.released(t) / B) ** 2 - noise for t in range(WARM)]
    ranking = np.argsort(-(power[0] + power[2]), kind="stable")
    return bool(((power[1] + power[3]) / 2)[ranking[kept:]].mean() < noise)


@pytest.mark.parametrize(("sigma", "restricts"), [(20.0, True), (0.01, False)])
def test_it_restricts_where_noise_would_outweigh_what_it_loses(sigma: float, restricts: bool) -> None:
    method = TPTopK(importance_steps=WARM, clip_norm=C, retention=0.2)
    recorded = record(method, steps=STEPS, sigma=sigma)
    assert decided(recorded, sigma, 182) == restricts
    scores = np.mean([(recorded.released(t) / B) ** 2 for t in range(WARM)], axis=0)
    support = np.sort(np.argsort(-scores, kind="stable")[:182])
    for t in range(WARM, STEPS):
        used = recorded.recorder.released[t]["gradient"].active
        assert (used is not None) == restricts
        if used is not None:
            np.testing.assert_array_equal(np.flatnonzero(used.numpy()), support)
    if not restricts:
        plain = record(DPSGD(clip_norm=C), steps=STEPS, sigma=sigma)
        np.testing.assert_array_equal(weights(recorded.run.model).numpy(), weights(plain.run.model).numpy())


def test_the_warm_up_is_charged() -> None:
    one, other = (prepare_small(method, steps=40) for method in (TPTopK(importance_steps=9), DPSGD()))
    assert one.epsilons == other.epsilons
    assert [stage.steps for stage in one.stages] == [9, 31]


def test_a_warm_up_too_short_to_rank_and_to_measure_is_refused() -> None:
    with pytest.raises(InputError, match="stage 1 needs at least 2 steps"):
        prepare_small(make_method("tp-topk", {"importance_steps": 1}))
