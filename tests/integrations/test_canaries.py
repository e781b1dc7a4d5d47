"""White-box canaries through the trainers of other libraries, as `adadpigu audit white-box --through` runs them."""

from __future__ import annotations

import pytest

from adadpigu.audit.subject import subject_of
from adadpigu.audit.through import audit_through
from adadpigu.audit.white_box import audit_white_box
from adadpigu.config import merge
from adadpigu.core.randomness import SystemRandomness


@pytest.mark.slow
@pytest.mark.parametrize("way", ["lightning", "transformers"])
@pytest.mark.parametrize("noise", [1.0, 0.5])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_canaries_show_nearly_the_noise_that_is_claimed_and_refute_half_of_it(
    noise: float, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A valid claim is refuted with a chance of 1e-6; half of the noise is missed with a smaller one."""
    normal = SystemRandomness.normal
    monkeypatch.setattr(SystemRandomness, "normal", lambda self, count: noise * normal(self, count))
    config = {"dataset": "digits", "model": "digits-mlp", "method": "dpsgd", "epsilon": 8.0, "steps": 20}
    subject = subject_of(merge(config), sample_rate=0.05)
    result = audit_through(way, audit_white_box, subject, observations=3000)
    assert result.passed == (noise == 1.0)
    assert result.epsilon_lower > 0.5 * result.epsilon_claimed
