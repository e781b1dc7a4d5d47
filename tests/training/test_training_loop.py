"""The loop: what a run reports and writes; memory bounds that change nothing; interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import adadpigu as ad
from adadpigu.accounting import read_ledger
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.methods import DPSGD, AdaCliP, AdaDPIGU, Masked, Method
from adadpigu.training import Facts, Metrics, Run, train_prepared
from trials import SHORT, arrays, other_arrays, prepare_small, run_small, small_net, weights


def test_physical_batch_size_changes_nothing_but_memory() -> None:
    method = AdaDPIGU(importance_steps=2, top_k=0.5)
    whole = run_small(method)
    for size in (1, 7, 1000):
        split = run_small(method, physical_batch_size=size)
        torch.testing.assert_close(weights(split.model), weights(whole.model), atol=1e-6, rtol=1e-5)


@pytest.mark.slow
def test_a_run_in_python_reports_accuracy_epsilon_and_a_statement(tmp_path: Path) -> None:
    run = ad.train(
        small_net(),
        arrays(),
        records=240,
        test=other_arrays(),
        method=ad.AdaDPIGU(retention=0.6),
        privacy=ad.Budget(epsilon=4, delta=1e-5),
        out=tmp_path / "run",
        **SHORT,
    )
    assert run.accuracy is not None
    assert 3.99 < run.epsilon <= 4
    assert "0.00001" in run.privacy.statement() or "1e-05" in run.privacy.statement()
    files = {p.name for p in (tmp_path / "run").iterdir()}
    assert {"config.toml", "metrics.jsonl", "privacy.json", "ledger.log", "model.safetensors"} <= files
    assert (tmp_path / "run").stat().st_mode & 0o077 == 0
    assert len(read_ledger(tmp_path / "run" / "ledger.log").charges) == 6


def test_a_map_style_dataset_trains_like_its_tensors() -> None:
    runs = []
    for source in (arrays(), TensorDataset(*arrays())):
        runs.append(
            ad.train(
                small_net(),
                source,
                records=240,
                method=DPSGD(),
                noise_multiplier=1.0,
                randomness=ReproducibleRandomness(1),
                **SHORT,
            )
        )
    assert torch.equal(weights(runs[0].model), weights(runs[1].model))


class StopAfter:
    """An observer that presses Ctrl-C."""

    def __init__(self, step: int) -> None:
        self._step = step
        self.ended: Run | None = None

    def begin(self, facts: Facts) -> None:
        return None

    def update(self, metrics: Metrics) -> None:
        if metrics.step == self._step:
            raise KeyboardInterrupt

    def end(self, run: Run) -> None:
        self.ended = run


@pytest.mark.slow
def test_an_interrupted_run_says_what_was_spent_and_still_claims_the_whole_budget(tmp_path: Path) -> None:
    watcher = StopAfter(3)
    run = ad.train(
        small_net(),
        arrays(),
        records=240,
        method=DPSGD(),
        privacy=ad.Budget(epsilon=4),
        observers=[watcher],
        out=tmp_path / "run",
        **(SHORT | {"steps": 40}),
    )
    assert run.interrupted
    assert run.steps_done == 3
    assert watcher.ended is run
    stored = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert 0 < stored["epsilon_spent"] < stored["epsilon_pld"] <= 4
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_reproducible_noise_is_stamped_not_private() -> None:
    run = run_small(DPSGD())
    assert "NOT PRIVATE" in run.privacy.statement()
    assert run.privacy.private is False


@pytest.mark.slow
def test_a_high_delta_warns_in_the_statement_and_runs() -> None:
    run = ad.train(
        small_net(), arrays(), records=240, method=DPSGD(), privacy=ad.Budget(epsilon=4, delta=0.01), **SHORT
    )
    assert any("delta=0.01" in warning for warning in run.privacy.warnings)
    assert "0.01" in run.privacy.statement()


def test_the_number_of_steps_follows_the_declared_count_not_the_records() -> None:
    inputs, targets = arrays()
    options: dict[str, Any] = {"batch_size": 40, "epochs": 2, "lr": 0.5, "method": DPSGD(), "noise_multiplier": 1.0}
    for count in (240, 150):
        assert ad.train(small_net(), (inputs[:count], targets[:count]), records=240, **options).steps == 12


@pytest.mark.parametrize("options", [{"ema": 0.9}, {}])
@pytest.mark.parametrize("mode", ["prune", "freeze"])
def test_looking_at_the_test_set_changes_nothing(options: dict[str, Any], mode: Any) -> None:
    method = AdaDPIGU(importance_steps=2, retention=0.5, schedule="linear", mode=mode)
    often, once = run_small(method, evaluate_every=1, **options), run_small(method, evaluate_every=8, **options)
    assert torch.equal(weights(often.model), weights(once.model))
    assert [m.step for m in often.metrics] == list(range(1, 9))
    assert [m.step for m in once.metrics] == [8]
    assert often.metrics[1].mask == {"1": 1.0, "3": 1.0}
    layers, size = {"1": 780, "3": 130}, 910
    third = often.metrics[2]
    assert sum(third.mask[k] * n for k, n in layers.items()) == pytest.approx(size // 2)
    assert third.active == pytest.approx((size // 2) / size)


@pytest.mark.parametrize(
    ("method", "parts"),
    [
        (
            AdaDPIGU(importance_steps=2, retention=0.5, mean_decay=0.9, variance_decay=0.9, floor=1e-6),
            {"alpha", "beta"},
        ),
        (Masked(importance_steps=2, retention=0.5), set()),
        (AdaCliP(), {"alpha", "beta"}),
        (DPSGD(), set()),
    ],
)
def test_alpha_and_beta_are_told_as_means_over_each_layers_active_coordinates(
    method: Method, parts: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against a loop over coordinates in Python, at every step, of the state that the method has then."""
    begin, running = type(method).begin, list[Any]()

    def watched(*given: Any) -> Any:
        running.append(begin(*given))
        return running[-1]

    monkeypatch.setattr(type(method), "begin", watched)
    layers, checked = {"1": slice(0, 780), "3": slice(780, 910)}, list[int]()

    class Comparing(StopAfter):
        def update(self, metrics: Metrics) -> None:
            told = {"alpha": metrics.alpha, "beta": metrics.beta}
            if metrics.stage == "importance":
                assert told == {"alpha": {}, "beta": {}}
                return
            assert {name for name, means in told.items() if means} == parts
            for name in parts:
                values = getattr(running[-1]._statistics, {"alpha": "mean", "beta": "variance"}[name]).tolist()
                active = [True] * 910 if running[-1].active is None else running[-1].active.tolist()
                for layer, where in layers.items():
                    kept = [v for v, on in zip(values[where], active[where], strict=True) if on]
                    assert told[name][layer] == pytest.approx(sum(kept) / len(kept), rel=1e-6, abs=1e-12)
                    checked.append(metrics.step)

    randomness = ReproducibleRandomness(7)
    train_prepared(prepare_small(method, evaluate_every=1), randomness=randomness, observers=[Comparing(99)])
    first = 3 if isinstance(method, AdaDPIGU) else 1
    assert set(checked) == (set(range(first, 9)) if parts else set())


def test_a_failure_mid_run_is_reported_and_leaves_the_initial_weights(tmp_path: Path) -> None:
    class Failing(StopAfter):
        def update(self, metrics: Metrics) -> None:
            if metrics.step == 3:
                raise ValueError("the logger broke")

    model = small_net()
    common: dict[str, Any] = {"records": 240, "method": DPSGD(), "privacy": ad.Budget(epsilon=4), **SHORT}
    with pytest.raises(ValueError, match="the logger broke"):
        ad.train(model, arrays(), observers=[Failing(0)], out=tmp_path / "run", **common)
    assert torch.equal(weights(model), weights(small_net()))
    stored = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert 0 < stored["epsilon_spent"] < stored["epsilon_pld"]
    assert [note["note"] for note in read_ledger(tmp_path / "run" / "ledger.log").notes] == ["failed"]


def test_a_model_that_was_trained_before_is_warned_about() -> None:
    model = small_net()
    common: dict[str, Any] = {"records": 240, "method": DPSGD(), "noise_multiplier": 1.0, **SHORT}
    first, second = (ad.train(model, arrays(), **common) for _ in range(2))
    assert not any("trained before" in warning for warning in first.privacy.warnings)
    assert any("trained before" in warning for warning in second.privacy.warnings)


def test_the_clip_norm_and_the_stages_of_the_report_are_those_of_the_run() -> None:
    run = run_small(AdaDPIGU(importance_steps=2, clip_norm=1), steps=6)
    assert run.privacy.clip_norm == 1
    assert [(s.name, s.planned, s.done) for s in run.privacy.stages] == [("importance", 2, 2), ("training", 4, 4)]
    assert [(r.name, r.dimension, r.sensitivity) for r in run.privacy.releases] == [("gradient", 910, 1)]


def test_the_config_of_a_python_run_does_not_invent_what_was_not_said(tmp_path: Path) -> None:
    ad.train(
        small_net(),
        arrays(),
        records=240,
        method=ad.SGD(),
        optimizer=lambda p: torch.optim.Adam(p, lr=0.003),
        out=tmp_path / "run",
        batch_size=40,
        steps=2,
    )
    text = (tmp_path / "run" / "config.toml").read_text()
    assert "epsilon" not in text
    assert "lr =" not in text
    assert "momentum =" not in text


def test_a_noise_multiplier_without_a_budget_says_what_it_costs() -> None:
    run = ad.train(small_net(), arrays(), records=240, method="dpsgd", noise_multiplier=1.0, **SHORT)
    assert any("no budget was set" in warning for warning in run.privacy.warnings)
    assert run.privacy.target_epsilon is None
