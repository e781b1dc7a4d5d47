"""The histogram of gradient values: jobs, what is summed up of rows, and what is said of them."""

from __future__ import annotations

import itertools
from statistics import fmean, stdev

import numpy as np
import pytest

from adadpigu_paper.reproduce.artefact import Scale
from adadpigu_paper.reproduce.gradient_histogram import at_epoch, draw, jobs, summed_up
from adadpigu_paper.reproduce.gradient_looks import LOOKS_HERE, bin_edges
from adadpigu_paper.reproduce.jobs import Row

PARAMETERS, RECORDS = 2000, 5
_SCALES = {"single": 0.004, "mean": 0.002, "clipped": 0.0002}


def values(kind: str, scale: float, chance: np.random.Generator) -> Row:
    found = scale * chance.standard_normal(PARAMETERS * (RECORDS if kind == "single" else 1))
    counts = np.histogram(found, [-np.inf, *bin_edges(), np.inf])[0]
    told: Row = {"counts": counts.tolist(), "values": len(found), "within": float(np.mean(np.abs(found) <= 0.01))}
    told |= {"zero": 0.0, "held_by": 0.3}
    return told if kind == "single" else {**told, "norm": 0.5, "below_noise": 0.75}


def row(method: str, seed: int, widths: float = 1.0) -> Row:
    chance = np.random.default_rng([seed, len(method)])
    private = method != "sgd"
    seen = [
        {
            "step": step,
            "epoch": step / 60,
            "stage": "training",
            "records": RECORDS,
            "parameters": PARAMETERS,
            "edges": bin_edges(),
            "noise": 1.1e-4 if private else None,
            **{kind: values(kind, widths * scale, chance) for kind, scale in _SCALES.items()},
        }
        for step in (300, 600)
    ]
    job = next(job for job in jobs(Scale(quick=False)) if job.config["method"] == method and job.seed == seed)
    return {**job.key(), "epsilon": 4.0 if private else None, "device": "a device", "exposed": True, "seen": seen}


def made_up() -> list[Row]:
    return [row(method, seed) for method in ("sgd", "dpsgd", "adadpigu") for seed in range(3)]


@pytest.fixture
def rows() -> list[Row]:
    return made_up()


def test_full_jobs_look_at_epoch_five_with_diagnostics_open() -> None:
    full = jobs(Scale(quick=False))
    assert len(full) == 9
    for job in full:
        assert job.look in LOOKS_HERE
        assert job.config["diagnostics"] is True
        assert 5 * 60_000 % (job.config["evaluate_every"] * job.config["batch_size"]) == 0
        assert ("epsilon" in job.config) == (job.config["method"] != "sgd")


def test_shares_are_means_over_seeds_with_their_standard_deviation(rows: list[Row]) -> None:
    lines = summed_up(rows)
    line = next(line for line in lines if (line["method"], line["kind"], line["step"]) == ("dpsgd", "single", 300))
    shares = [100 * r["seen"][0]["single"]["within"] for r in rows if r["config"]["method"] == "dpsgd"]
    assert (line["mean"], line["std"], line["seeds"]) == (fmean(shares), stdev(shares), 3)
    assert sum(line["shares"]) == pytest.approx(1.0)
    assert all(line["claim"] == 99.0 for line in lines)


def test_seeds_are_counted_by_method_and_one_seed_has_no_spread(rows: list[Row]) -> None:
    assert "over seeds (3 a method)" in draw(rows).markdown
    some = [row for row in rows if row["seed"] == 0 or row["config"]["method"] == "sgd"]
    drawn = draw(some)
    assert "over seeds (1 to 3 of 3 planned a method)" in drawn.markdown
    for line in drawn.rows:
        assert (line["std"] is None) == (line["method"] != "sgd")


def test_nothing_is_clipped_where_there_is_no_noise(rows: list[Row]) -> None:
    kinds = {(line["method"], line["kind"]) for line in summed_up(rows)}
    assert ("sgd", "clipped") not in kinds
    assert {("dpsgd", "clipped"), ("adadpigu", "clipped"), ("sgd", "mean")} <= kinds


def test_the_look_nearest_to_epoch_five_is_shown(rows: list[Row]) -> None:
    assert {line["step"] for line in at_epoch(summed_up(rows))} == {300}


@pytest.mark.parametrize(("widths", "verdict"), [(1.0, "holds under SGD"), (5.0, "does not hold under SGD")])
def test_the_verdict_on_the_claim_follows_from_the_rows(widths: float, verdict: str) -> None:
    text = draw([row("sgd", seed, widths) for seed in range(3)]).markdown
    notes = [line for line in text.splitlines() if line.startswith("- The claim") and "mean of the records" in line]
    assert len(notes) == 1
    assert verdict in notes[0]


def test_an_even_gradient_of_the_same_norm_is_told_apart_from_a_sparse_one(rows: list[Row]) -> None:
    even = 0.5 / PARAMETERS**0.5
    assert even > 0.01
    assert f"±{even:.2g}, and none of them lies within" in draw(rows).markdown
    for seen in itertools.chain.from_iterable(row["seen"] for row in rows):
        seen["mean"]["norm"] = 0.1
    assert "shows no sparsity" in draw(rows).markdown


def test_few_rows_are_drawn_and_what_is_missing_is_told(rows: list[Row]) -> None:
    alone = {**rows[3], "seen": [{**rows[3]["seen"][0], "epoch": 0.5}]}
    text = draw([alone]).markdown
    assert "Epoch 5 is not measured here: the nearest look is at epoch 0.5" in text
    assert "Not measured: SGD, not private, AdaDPIGU." in text
    assert "Nothing was measured" in draw([]).markdown
    assert "mnist is not cached" not in text
    digits = {**alone, "config": {**alone["config"], "dataset": "digits", "model": "digits-mlp"}}
    assert "digits stand in for it" in draw([digits]).markdown
