"""The batch-size figure: σ is the paper's, so its ε must come out; means, claims and words follow from the rows."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from adadpigu.config import merge
from adadpigu.data import load_dataset
from adadpigu.methods import make_method
from adadpigu_paper.reproduce import paper, stand_in
from adadpigu_paper.reproduce.artefact import Scale
from adadpigu_paper.reproduce.batch_tradeoff import BATCH_TRADEOFF, cells, classic_epsilon, declared_records, draw, jobs
from adadpigu_paper.reproduce.jobs import Row, run_job
from adadpigu_paper.reproduce.keeping import write


def made_up(accuracy: Callable[[int, float, int], float], seeds: int = 1) -> list[Row]:
    """Rows of the full jobs without training; a step takes 1 ms, ε is about what PLD gives."""
    rows = []
    for job in jobs(Scale(quick=False, seeds=seeds)):
        size, rate = job.config["batch_size"], job.config["lr"]
        steps = -(-200 * 60_000 // size)
        facts = {"epsilon": 3.235 * (size / 1000) ** 0.5, "noise_multiplier": 2.49, "device": "none"}
        time = {"steps": steps, "training_seconds": steps / 1000, "at_once": 3}
        rows.append({**job.key(), "accuracy": accuracy(size, rate, job.seed), **facts, **time})
    return rows


def by_rate(size: int, rate: float, seed: int) -> float:
    return 0.96 + 0.1 * rate + 0.001 * seed


def test_the_full_runs_are_the_papers() -> None:
    found = jobs(Scale(quick=False))
    assert len(found) == 28
    assert {(job.config["batch_size"], job.config["lr"]) for job in found} == {
        (size, rate) for size in (500, 700, 900, 1000, 1100, 1300, 1500) for rate in (0.01, 0.05, 0.1, 0.2)
    }
    for job in found:
        config = merge(job.config)
        make_method(config.method, config.method_options)
        assert (config.noise_multiplier, config.epsilon, config.epochs) == (2.49, None, 200)
        assert config.method_options["retention"] == 0.6
        assert job.seed == 0


def test_the_papers_sigma_spends_the_papers_epsilon_by_classic_rdp() -> None:
    """The paper: ε = 4 for σ = 2.49, and 3.7 to 4.2 for B from 900 to 1100."""
    rows = {row["config"]["batch_size"]: row for row in made_up(by_rate)}
    assert classic_epsilon(rows[1000]) == pytest.approx(4.0, abs=0.02)
    assert 3.7 <= classic_epsilon(rows[900]) < classic_epsilon(rows[1100]) <= 4.21


def test_the_declared_count_is_the_data_sets() -> None:
    assert declared_records("digits") == load_dataset("digits").records
    assert declared_records("mnist") == 60_000


def test_a_quick_run_spends_what_its_row_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stand_in, "at_hand", lambda dataset: False)
    job = jobs(Scale(quick=True))[0]
    row = json.loads(json.dumps(run_job(replace(job, config={**job.config, "epochs": 2.0}), "cpu")))
    (cell,) = cells([row])
    assert cell["epsilon"] < cell["epsilon_rdp_classic"] < 2 * cell["epsilon"]
    assert cell["noise_multiplier"] == job.config["noise_multiplier"]
    drawn = draw([row])
    assert "digits stand in for it" in drawn.markdown
    assert "not measured here" in drawn.markdown
    assert write("batch-tradeoff", drawn, tmp_path)[1].read_bytes().startswith(b"\x89PNG")


def test_a_cell_is_the_mean_over_its_seeds() -> None:
    rows = made_up(by_rate, seeds=3)
    for cell in cells(rows):
        assert cell["mean"] == pytest.approx(96 + 10 * cell["lr"] + 0.1)
        assert cell["std"] == pytest.approx(0.1)
        assert cell["seeds"] == 3
        assert cell["training_seconds"] == pytest.approx(cell["steps"] / 1000)
    assert all(cell["std"] is None for cell in cells(made_up(by_rate)))


def test_the_claim_stands_at_the_batch_sizes_it_is_made_for() -> None:
    drawn = draw(made_up(lambda size, rate, seed: 0.98 + 0.0001 * (size == 1000) + (0.01 if rate == 0.2 else 0)))
    claimed = {cell["batch_size"] for cell in drawn.rows if cell["claim"] == paper.TRADEOFF_ACCURACY}
    assert claimed == {900, 1000, 1100}
    assert "3 of 12 such cells are above" in drawn.markdown
    assert "has 99.01 % (B = 1000, lr 0.2), +0.26 points from the claim" in drawn.markdown
    assert "0 of 12 such cells are above" in draw(made_up(by_rate)).markdown


def test_growth_of_epsilon_and_time_are_computed() -> None:
    told = draw(made_up(by_rate)).markdown
    assert "1.73 times from B = 500 to 1500 (√B alone: 1.73)" in told
    assert "takes 3.00 times as long as one with B = 1500, in 3.00 times the steps" in told
    assert "One seed a cell" in told
    rows = made_up(by_rate)
    rows[0] = {**rows[0], "device": "another"}
    told = draw(rows).markdown
    assert "several devices (another, none)" in told
    assert "times as long" not in told


def test_how_many_processes_shared_the_machine_is_told() -> None:
    rows = made_up(by_rate)
    assert "Up to 3 processes shared the machine" in draw(rows).markdown
    alone = [{**row, "at_once": 1} for row in rows]
    assert "Each run had the machine to itself" in draw(alone).markdown
    mixed = draw([*alone[:3], *rows[3:]]).markdown
    assert "differ between rows (1, 3 at once): their times do not compare" in mixed
    assert "times as long" not in mixed
    untold = [{name: value for name, value in row.items() if name != "at_once"} for row in rows]
    assert "Not every row tells" in draw([*untold[:1], *rows[1:]]).markdown


def test_one_batch_size_is_compared_with_nothing_and_what_is_planned_is_counted() -> None:
    rows = made_up(by_rate)
    full, one = draw(rows), draw([row for row in rows if row["config"]["batch_size"] == 700])
    assert "28 of the 28 planned settings are measured." in full.markdown
    assert "No run is there" not in full.markdown
    assert "4 of the 28 planned settings are measured. No run is there for B = 500, 900," in one.markdown
    assert "takes a second batch size" in one.markdown
    assert "from B = 700 to 700" not in one.markdown
    assert "times as long" not in one.markdown
    assert len(full.figures["batch-tradeoff"].axes) == len(one.figures["batch-tradeoff"].axes) + 1
    short = [{**row, "config": {**row["config"], "epochs": 0.5, "batch_size": 128, "lr": 0.1}} for row in rows[:1]]
    assert "1 of the 6 planned settings are measured. No run is there for B = 256, 512." in draw(short).markdown


def test_cells_are_in_order_and_gaps_are_said() -> None:
    rows = made_up(by_rate)
    places = [(cell["batch_size"], cell["lr"]) for cell in draw(random.Random(1).sample(rows, len(rows))).rows]
    assert places == sorted(places)
    assert "| not measured |" in draw(rows[1:]).markdown
    assert "Nothing was measured" in BATCH_TRADEOFF.draw([]).markdown
