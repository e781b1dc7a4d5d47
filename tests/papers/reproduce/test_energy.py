"""The energy that masks keep: jobs, what is summed up of rows, and what is said of them."""

from __future__ import annotations

from statistics import fmean, stdev

import pytest

from adadpigu_paper.reproduce.artefact import Scale
from adadpigu_paper.reproduce.energy import SHARES, draw, jobs, over_training, summed_up
from adadpigu_paper.reproduce.gradient_looks import LOOKS_HERE
from adadpigu_paper.reproduce.jobs import Job, Row

PARAMETERS = 1000


def seen(step: int, retention: float, kept: float) -> Row:
    facts = {"step": step, "epoch": step / 30, "records": 60_000, "parameters": PARAMETERS, "norm": 0.1}
    if step == 100:
        return {**facts, "stage": "importance", "active": PARAMETERS, **dict.fromkeys(SHARES, 1.0)}
    shares = {"kept": kept, "most": 0.98, "held": 0.85, "layered": retention + 0.02, "chance": retention}
    return {**facts, "stage": "training", "active": round(retention * PARAMETERS), **shares}


def row(job: Job, gain: float = 0.1) -> Row:
    retention = job.config["method_options"]["retention"]
    course = [seen(step, retention, retention + gain + 0.01 * job.seed - step / 1e5) for step in range(100, 2001, 100)]
    return {**job.key(), "epsilon": 4.0, "device": "a device", "exposed": True, "seen": course}


def made_up() -> list[Row]:
    return [row(job) for job in jobs(Scale(quick=False))]


@pytest.fixture
def rows() -> list[Row]:
    return made_up()


def test_full_jobs_look_when_stage_one_ends_with_diagnostics_open() -> None:
    full = jobs(Scale(quick=False))
    assert len(full) == 18
    for job in full:
        assert job.look in LOOKS_HERE
        assert job.config["diagnostics"] is True
        assert job.config["method_options"]["importance_steps"] % job.config["evaluate_every"] == 0


def test_courses_are_means_over_seeds_with_their_standard_deviation(rows: list[Row]) -> None:
    lines = summed_up(rows)
    assert len(lines) == 2 * 3 * 20
    wanted = {"retention": 0.3, "score": "signed", "step": 500}
    line = next(line for line in lines if wanted.items() <= line.items())
    kept = [0.4 + 0.01 * seed - 500 / 1e5 for seed in range(3)]
    assert line["kept"] == pytest.approx(fmean(kept))
    assert line["kept_std"] == pytest.approx(stdev(kept))
    assert (line["seeds"], line["chance"], line["most"]) == (3, 0.3, pytest.approx(0.98))


def test_stage_one_is_left_out_of_the_means_over_training(rows: list[Row]) -> None:
    line = next(line for line in over_training(rows) if (line["retention"], line["score"]) == (0.6, "absolute"))
    kept = [fmean(0.7 + 0.01 * seed - step / 1e5 for step in range(200, 2001, 100)) for seed in range(3)]
    assert [means["kept"] for means in line["by_seed"]] == pytest.approx(kept)


@pytest.mark.parametrize(("gain", "chance", "layers"), [(0.1, 3, 3), (0.015, 3, 1), (-0.1, 0, 0)])
def test_whether_importance_beats_chance_is_counted_by_seed(gain: float, chance: int, layers: int) -> None:
    text = draw([row(job, gain) for job in jobs(Scale(quick=False))]).markdown
    notes = [line for line in text.splitlines() if line.startswith("- r = 0.6, absolute")]
    assert len(notes) == 1
    assert f"in {chance} of 3 seeds more than chance" in notes[0]
    assert f"in {layers} of 3 seeds more than a random mask with as many in each layer" in notes[0]
    below = "6 of 6 settings keep less than that" if gain < 0 else "here all keep at least that"
    assert below in text


def test_the_notes_of_a_worked_example() -> None:
    """Kept 50 of at most 90 where chance keeps 30: a third of the way. The old top-k keeps 70: 20 short, 20 ahead."""
    job = next(job for job in jobs(Scale(quick=False)) if job.config["method_options"]["retention"] == 0.3)
    shares = {"kept": 0.5, "most": 0.9, "held": 0.7, "layered": 0.4, "chance": 0.3}
    course = [{**look, **shares} if look["active"] < PARAMETERS else look for look in row(job)["seen"]]
    text = draw([{**row(job), "seen": course}]).markdown
    assert "keeps 50.0 % of the energy; in 1 of 1 seeds more than chance (+20.0 points, 33 % of the way" in text
    assert "as many in each layer (+10.0 points)" in text
    assert "keeps 70.0 % later on, 20.0 points short of the most possible" in text
    assert "That is 20.0 points more than the masks" in text
    assert "holds in every run (by 60.0 points or more)" in text
    assert "with 1 seed, a mask that is no better would still keep more in every one with probability 0.5." in text


def test_counts_are_told_to_be_no_test(rows: list[Row]) -> None:
    text = draw(rows).markdown
    assert "These are counts and no test: with 3 seeds" in text
    assert "with probability 0.12." in text


def test_seeds_are_counted_by_setting_and_one_seed_has_no_spread(rows: list[Row]) -> None:
    assert "over seeds (3 a setting)" in draw(rows).markdown
    some = [row for row in rows if row["seed"] == 0 or row["config"]["method_options"]["score"] == "signed"]
    drawn = draw(some)
    assert "over seeds (1 to 3 of 3 planned a setting)" in drawn.markdown
    for line in drawn.rows:
        assert (line["kept_std"] is None) == (line["score"] != "signed")


def test_what_was_not_measured_is_told(rows: list[Row]) -> None:
    alone = {**rows[0], "seen": [{**look, "held": None} for look in rows[0]["seen"][1:]]}
    text = draw([alone]).markdown
    assert "Not measured: r = 0.3." in text
    assert "Not measured at r = 0.6: signed, energy." in text
    assert "not measured |" in text
    assert "No look fell into stage 1" in text
    assert "Nothing was measured" in draw([]).markdown
    digits = {**alone, "config": {**alone["config"], "dataset": "digits", "model": "digits-mlp"}}
    assert "digits stand in for it" in draw([digits]).markdown
