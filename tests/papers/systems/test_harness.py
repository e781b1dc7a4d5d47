"""Every system that papers/ plugs in meets what the package's own methods meet: replay, resuming, noise, sampler.

A method that is registered in `adadpigu_systems` is here by itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.nn import functional as F

import adadpigu_systems
from adadpigu.accounting import read_ledger
from adadpigu.audit.adversarial import adversarial_records
from adadpigu.audit.noise import audit_noise
from adadpigu.audit.replay import PrepareOn, replay_all
from adadpigu.audit.sampler import audit_sampler
from adadpigu.audit.subject import Attach, subject_of
from adadpigu.config import RunConfig
from adadpigu.data import DataSet
from adadpigu.methods import all_methods, make_method
from adadpigu.methods.standalone import Standalone
from adadpigu.training import Preparation, TrainingOptions, prepare
from resumptions import STEPS, assert_same, coins_by_step, in_lives, live
from trials import small_digits, small_net

SMALL: dict[str, dict[str, object]] = {
    "dpdr": {"until": 1.0},
    "gep": {"rank": 6, "groups": 2, "basis_every": 2},
    "gradient-encoding": {"renew_every": 4},
    "gradient-encoding-public": {"rank": 6, "basis_every": 2},
    "pcdp-sgd": {"rank": 6, "basis_every": 2},
    "powersgd": {"rank": 2, "start_after": 0.0},
    "projected-dpsgd": {"rank": 6, "basis_every": 2},
    "rgp": {"rank": 3, "renew_every": 4, "history_from": 0.4},
}
"""options that make a short run meet what a long one does"""
TRAINING: dict[str, dict[str, Any]] = {"scale-then-privatise": {"optimizer": "adam", "lr": 0.01}}
"""what a method asks of the run"""
NAMES = sorted(
    name
    for name, method in all_methods().items()
    if method.__module__.startswith(adadpigu_systems.__name__) and not issubclass(method, Standalone)
)


def public(name: str) -> dict[str, Any]:
    return {"public": "processes:20"} if all_methods()[name].needs_public else {}


def on_few(name: str, **training: Any) -> PrepareOn:
    """Four steps of about eight records."""
    chosen: dict[str, Any] = {"batch_size": 60, "steps": 4, "lr": 0.5, "evaluate_every": 4, "reserve": 1}
    chosen |= {"noise_multiplier": 1.5} | public(name) | TRAINING.get(name, {}) | training

    def prepared(data: DataSet, attach: Attach | None = None) -> Preparation:
        assert attach is None
        method, options = make_method(name, SMALL.get(name, {})), TrainingOptions(**chosen)
        return prepare(
            small_net(), data, method=method, budget=None, delta=1e-5, options=options, loss=F.cross_entropy, seed=0
        )

    return prepared


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the net is fit to be trained and engines are right is tested elsewhere, and takes most of the time."""
    for check in ("refuse_by_behaviour", "_against_rules", "_against_functional"):
        monkeypatch.setattr(f"adadpigu.core.gradients.choice.{check}", lambda *_: None)
    monkeypatch.setattr("adadpigu.core.gradients.choice._computes_rows_alike", lambda *_: True)
    for module in ("adadpigu.training.train", "adadpigu.accounting.statement"):
        monkeypatch.setattr(importlib.import_module(module), "library_versions", dict)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("way", [{}, {"copies": 2, "flip": True, "clipping": "automatic", "engine": "functional"}])
@pytest.mark.parametrize("name", NAMES)
def test_no_record_moves_a_sum_beyond_its_bound(name: str, way: dict[str, Any]) -> None:
    assert_bounded(name, way)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", [name for name in NAMES if not all_methods()[name].needs_public])
def test_perturbed_clipping_keeps_the_bound(name: str) -> None:
    """Of those that make no public images, which takes most of the time."""
    assert_bounded(name, {"perturbation": 0.3})


def assert_bounded(name: str, way: dict[str, Any]) -> None:
    data = replace(small_digits(16), records=300, test=None)
    records = adversarial_records(data)
    found = replay_all(on_few(name, **way), data, records=records, share=0.5, randomness=None)
    assert {record: result.breaches for record, result in found.items() if result.breaches} == {}
    assert all(result.draws >= 4 for result in found.values())
    largest = max(result.largest for result in found.values())
    assert 0.01 < largest <= 1 + 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_is_stopped_ends_as_if_nobody_had_stopped_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coins_by_step(monkeypatch)
    options = public(name) | TRAINING.get(name, {})
    whole = live(make_method(name, SMALL.get(name, {})), tmp_path / "whole", **options)
    parts = in_lives(make_method(name, SMALL.get(name, {})), tmp_path / "parts", range(1, STEPS, 2), **options)
    assert_same(parts, whole)
    assert read_ledger(tmp_path / "parts" / "ledger.log").steps == STEPS


@pytest.mark.parametrize("audit", [audit_noise, audit_sampler])
@pytest.mark.parametrize("name", NAMES)
def test_audits_of_noise_and_sampler_refute_no_system(name: str, audit: Callable[..., Any]) -> None:
    """Each fails by chance with a probability of at most 1e-6."""
    config = RunConfig(
        method=name,
        method_options=SMALL.get(name, {}),
        steps=20,
        noise_multiplier=1.0,
        **public(name),
        **TRAINING.get(name, {}),
    )
    given = {"numbers": 20_000} if audit is audit_noise else {"draws": 100}
    result = audit(subject_of(config), **given)
    assert result.passed, result.findings


def test_every_system_is_plugged_in() -> None:
    assert {"gep", "pcdp-sgd", "projected-dpsgd"} <= set(NAMES)
