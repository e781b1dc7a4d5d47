"""The budget curve shows un-noised values: it runs under Diagnostics alone and carries the stamp."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adadpigu.config import merge
from adadpigu.errors import InputError
from adadpigu_paper.reproduce import paper, stand_in
from adadpigu_paper.reproduce.artefact import STAMP, Scale
from adadpigu_paper.reproduce.budget_curve import BUDGET_CURVE, course, draw, jobs
from adadpigu_paper.reproduce.jobs import Row, run_job
from adadpigu_paper.reproduce.keeping import write


def made_up(seeds: int = 3, end: float = 0.98) -> list[Row]:
    """Rows of the full jobs without training: accuracies that rise, training ahead of test by seed / 1000."""
    rows = []
    for job in jobs(Scale(quick=False, seeds=seeds)):
        steps = range(300, 12_001, 300)
        test = [end - 0.4 * math.exp(-step / 900) + 0.0005 * math.sin(step + 2 * job.seed) for step in steps]
        curve = [
            {"step": step, "epsilon": 3.99 * math.sqrt(step / 12_000), "accuracy": value, "active": 0.6}
            for step, value in zip(steps, test, strict=True)
        ]
        seen = [
            {"step": step, "training_accuracy": value + job.seed / 1000}
            for step, value in zip(steps, test, strict=True)
        ]
        facts = {"epsilon": 3.99, "noise_multiplier": 2.1, "steps": 12_000, "device": "none", "exposed": True}
        rows.append({**job.key(), "accuracy": test[-1], **facts, "curve": curve, "seen": seen})
    return rows


def test_the_full_runs_are_the_papers_and_look_forty_times_under_diagnostics() -> None:
    found = jobs(Scale(quick=False))
    assert [job.seed for job in found] == [0, 1, 2]
    for job in found:
        config = merge(job.config)
        assert (config.dataset, config.batch_size, config.lr, config.epsilon) == ("mnist", 1000, 0.2, 4.0)
        assert (config.epochs, config.ema, config.method_options["retention"]) == (200, None, 0.6)
        assert 200 * 60_000 / 1000 / (config.evaluate_every or 1) == 40
        assert config.diagnostics
        assert job.look == "training-accuracy"


def test_a_quick_run_ends_in_a_stamped_drawing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stand_in, "at_hand", lambda dataset: False)
    (job,) = jobs(Scale(quick=True))
    row = json.loads(json.dumps(run_job(replace(job, config={**job.config, "epochs": 4.0}), "cpu")))
    drawn = draw([row])
    assert drawn.exposed
    assert drawn.rows[-1]["mean"] == pytest.approx(100 * row["accuracy"])
    assert drawn.rows[-1]["epsilon"] == pytest.approx(row["epsilon"])
    assert drawn.rows[-1]["epoch"] == pytest.approx(4.0)
    assert drawn.rows[-1]["claim"] is None
    page, figure = write("budget-curve", drawn, tmp_path)
    told = page.read_text(encoding="utf-8")
    assert STAMP in told
    assert "digits stand in for it" in told
    assert "One seed" in told
    assert "Shorter than the paper's 200 epochs" in told
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_without_diagnostics_the_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand_in, "at_hand", lambda dataset: False)
    (job,) = jobs(Scale(quick=True))
    with pytest.raises(InputError, match="diagnostics=True"):
        run_job(replace(job, config={**job.config, "diagnostics": False}), "cpu")


def test_a_point_is_the_mean_over_seeds() -> None:
    rows = made_up()
    test = np.array([[100 * point["accuracy"] for point in row["curve"]] for row in rows])
    training = np.array([[100 * look["training_accuracy"] for look in row["seen"]] for row in rows])
    points = course(rows)
    for key, expected in (
        ("mean", test.mean(axis=0)),
        ("std", test.std(axis=0, ddof=1)),
        ("training_mean", training.mean(axis=0)),
        ("training_std", training.std(axis=0, ddof=1)),
        ("gap", (training - test).mean(axis=0)),
        ("gap_std", (training - test).std(axis=0, ddof=1)),
        ("epoch", np.arange(5, 201, 5)),
    ):
        assert [point[key] for point in points] == pytest.approx(expected), key


def test_words_and_claim_follow_the_rows() -> None:
    drawn = draw(made_up())
    assert drawn.rows[-1]["claim"] == paper.FINAL_ACCURACY
    assert f"{drawn.rows[-1]['mean'] - paper.FINAL_ACCURACY:+.2f} points." in drawn.markdown
    assert "The published code" in drawn.markdown
    assert "Training accuracy ends 0.10 ± 0.10 points above test accuracy" in drawn.markdown
    assert "Shorter than" not in drawn.markdown
    assert "Nothing is tuned for this figure: lr = 0.2" in drawn.markdown
    assert "C = 0.5 is ours, chosen on held-out records at lr 0.1" in drawn.markdown
    assert "(pruning-sweep.md)" in drawn.markdown
    ahead = draw(made_up(end=0.995)).markdown
    assert "The published code" not in ahead
    assert "below the claim" not in ahead
    assert "seeds a setting = 2 of 3 planned" in draw(made_up(seeds=2)).markdown
    near = next(point for point in drawn.rows if point["mean"] >= drawn.rows[-1]["mean"] - 0.5)
    assert f"at epoch {near['epoch']:.3g}, with ε = {near['epsilon']:.2f} spent" in drawn.markdown


def test_rows_that_do_not_belong_together_are_refused_and_none_are_told() -> None:
    rows = made_up()
    rows[1] = {**rows[1], "curve": rows[1]["curve"][:-1], "seen": rows[1]["seen"][:-1]}
    with pytest.raises(InputError, match="different steps"):
        draw(rows)
    rows = made_up()
    rows[1] = {**rows[1], "seen": rows[1]["seen"][1:]}
    with pytest.raises(InputError, match="seed=1: training accuracy was not seen"):
        draw(rows)
    assert BUDGET_CURVE.draw([]).exposed
    assert "Nothing was measured" in BUDGET_CURVE.draw([]).markdown
