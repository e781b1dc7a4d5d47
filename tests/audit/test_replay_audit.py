"""The replay audit: what a clean run shows, what breaches cost, and what the audit says it left out."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import plants
import plants_before_noise as before
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from safetensors.torch import save_file
from test_replay import widen

from adadpigu.accounting import epsilon
from adadpigu.audit.adversarial import EDGE, adversarial_records
from adadpigu.audit.replay import REMOVED, audit_replay
from adadpigu.audit.subject import Subject, scaled, subject_of
from adadpigu.config import merge, read_preset
from adadpigu.core.bounding import BoundedSum
from adadpigu.core.mechanism import GaussianMechanism, Release
from adadpigu.core.sensitive import Records, unseal
from adadpigu.errors import InputError
from adadpigu.models import make_model
from adadpigu.training.micro_batches import View


@cache
def subject(method: str = "dpsgd", **settings: Any) -> Subject:
    """Its claim is what so much noise costs, since to calibrate takes longer than to audit."""
    shared = {"noise_multiplier": 1.0, "steps": 40, "method": method}
    return subject_of(merge(read_preset("digits-adadpigu"), shared | settings), sample_rate=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dpsgd", "adadpigu"])
def test_a_sound_run_is_shown_to_spend_what_it_claims(method: str) -> None:
    told: list[tuple[int, int]] = []
    found = audit_replay(subject(method), steps=4, progress=lambda done, total: told.append((done, total)))
    assert found.passed
    assert found.findings == ()
    assert found.epsilon_claimed == subject(method).epsilon > 1
    assert found.epsilon_lower == pytest.approx(found.epsilon_claimed, rel=1e-6)
    assert found.epsilon_certain == found.epsilon_lower
    assert found.observations == (11 + 4 + 2) * 4
    assert told == [(done, 10) for done in range(1, 11)]
    plain = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert plain["largest_share"] == pytest.approx(1.0, abs=1e-5)
    beside = {f"{name} beside ties" for name in ("large", "duplicated", "wrong class", REMOVED)}
    beside |= {f"{name} where rounding decides" for name in ("duplicated", REMOVED)}
    assert plain["neighbours"].keys() == {*adversarial_records(subject().data), REMOVED, EDGE, *beside}


@pytest.mark.slow
def test_a_clip_that_is_too_wide_costs_as_much_as_noise_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the plan with σ/1.05 instead of σ."""
    honest = subject()
    widen(monkeypatch, 1.05)
    found = audit_replay(honest, steps=4)
    (stage,) = honest.plan.stages
    (draw,) = stage.draws
    less = replace(draw, noise_multiplier=round(honest.noise_multiplier / 1.05, 12))
    plan = replace(honest.plan, stages=(replace(stage, draws=(less,)),))
    assert found.epsilon_lower == pytest.approx(epsilon(plan.event(), honest.delta), rel=1e-4)
    assert found.epsilon_certain > honest.epsilon
    assert not found.passed
    assert "above its sensitivity" in found.findings[0]


@pytest.mark.slow
def test_a_draw_that_no_neighbour_moves_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: DPSUR whose test draw sees nobody is charged for its gradients alone."""
    honest = subject("dpsur")
    genuine = GaussianMechanism.release

    def blind(self: GaussianMechanism, sums: list[BoundedSum], receipt: Any) -> dict[str, Release]:
        for total in sums:
            if total.query.name == "loss change":
                unseal(total).zero_()
        return genuine(self, sums, receipt)

    monkeypatch.setattr(GaussianMechanism, "release", blind)
    found = audit_replay(honest, steps=2)
    assert found.epsilon_lower == pytest.approx(honest.cost(scaled(1.0, "gradient")), rel=1e-6)


@pytest.mark.slow
def test_what_no_noise_covers_has_no_epsilon() -> None:
    honest = subject()
    with plants.drawn_divisor():
        found = audit_replay(honest, steps=2)
    assert not found.passed
    assert math.isinf(found.epsilon_lower)
    assert found.to_json()["epsilon_lower"] is None
    assert "of the model is another on the neighbour, after the same releases (record: huge, " in found.findings[0]


@pytest.mark.slow
def test_findings_about_the_claim_are_passed_on() -> None:
    found = audit_replay(replace(subject(), findings=("the ledger is damaged",)), steps=2)
    assert found.findings == ("the ledger is damaged",)
    assert not found.passed


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"features": "scattering", "normalisation": "released", "model": "scatter-linear"},
        {"copies": 2, "flip": True, "shift": 1, "model": "digits-cnn", "engine": "functional"},
        {"clipping": "automatic", "physical_batch_size": None, "optimizer": "adam", "lr": 0.01, "ema": None},
    ],
    ids=["scattering", "copies", "automatic"],
)
def test_a_run_is_audited_as_its_config_has_it(settings: dict[str, Any]) -> None:
    found = audit_replay(subject(**settings), steps=3)
    assert found.passed, found.findings
    assert found.epsilon_lower == pytest.approx(found.epsilon_claimed, rel=1e-3)


def test_a_last_digit_that_depends_on_who_else_is_drawn_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the first record's input has another last digit in draws of an odd number."""
    genuine = View.__call__

    def shown(self: View, records: Records) -> Records:
        made = genuine(self, records)
        if made.present is not None and int(unseal(made.present).sum()) % 2:
            unseal(made)[0][:1] *= 1 + 1e-6
        return made

    monkeypatch.setattr(View, "__call__", shown)
    found = audit_replay(subject(), steps=3)
    assert not found.passed
    assert all("where rounding decides" in line for line in found.findings)


@pytest.mark.slow
def test_where_the_dummy_block_cannot_be_attached_the_audit_says_what_it_left_out(tmp_path: Path) -> None:
    path = tmp_path / "public.safetensors"
    save_file(dict(make_model("digits-mlp", seed=1).named_parameters()), str(path))
    config = {"select": "public-model", "public_model": str(path), "retention": 0.5}
    found = audit_replay(subject_of(merge(read_preset("digits-adadpigu"), _frozen(config))), steps=2)
    assert found.passed
    assert EDGE not in found.details["neighbours"]
    assert "the dummy block cannot be attached" in found.assumed[-1]


def _frozen(options: dict[str, object]) -> dict[str, object]:
    return {"noise_multiplier": 2.0, "steps": 10, "method": "parameter-freezing", "method_options": options}


@pytest.mark.slow
def test_the_figure_has_a_bar_for_every_neighbour_and_marks_breaches() -> None:
    with before.nan_passes():
        found = audit_replay(subject(), steps=2)
    figure = Figure(layout="constrained")
    assert found.draw is not None
    found.draw(figure)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(found.details["neighbours"])
    bars = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
    assert len({bar.get_facecolor() for bar in bars}) == 2
    assert max(bar.get_width() for bar in bars) == 10.0  # infinite, as far as it is drawn


@pytest.mark.parametrize(("options", "message"), [({"steps": 0}, "steps=0"), ({"confidence": 1.0}, "confidence=1.0")])
def test_bad_options_are_refused_by_value(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        audit_replay(subject(), **options)
