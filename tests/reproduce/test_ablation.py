"""The ablation: what its variants change, whose rates are chosen, in which order it runs, and what its page says."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adadpigu.config import merge
from adadpigu.errors import InputError
from adadpigu.methods import make_method
from adadpigu.reproduce import ablation, ablation_tuning, ablation_variants
from adadpigu.reproduce.ablation_comparing import compared
from adadpigu.reproduce.ablation_drawing import draw
from adadpigu.reproduce.ablation_variants import CLIP_NORM, NETS, VARIANTS, YARDSTICK
from adadpigu.reproduce.artefact import Scale
from adadpigu.reproduce.jobs import Job, Row

FULL = Scale(quick=False)
STEPS = 600
MOVING_BETA = {"beta", "variance_decay", "debias", "floor", "ceiling", "clip_norm"}
CHANGES = {
    "mask-absolute": {"retention", "importance_steps"},
    "mask-signed": {"score"},
    "mask-energy": {"score"},
    "unfreezing": {"schedule", "unfreeze_by"},
    "prune": {"mode"},
    "layers": {"variance_start", "importance_steps"},
    "layers-mask": {"retention"},
    "beta-layer": MOVING_BETA | {"per_layer"},
    "beta": MOVING_BETA,
    "beta-slow": {"variance_decay"},
    "beta-offset": {"offset", "clip_norm"},
    "beta-from-one": {"variance_decay", "offset", "clip_norm"},
    "alpha": {"mean_decay"},
    "alpha-slow": {"mean_decay"},
    "top-k": {"top_k"},
}


def options(name: str) -> dict[str, Any]:
    """All options of a variant, defaults made plain; DP-SGD as the AdaDPIGU that it equals."""
    told = VARIANTS[name].config(STEPS)
    if told["method"] == "dpsgd":
        told = {"method": "adadpigu", "method_options": {**told["method_options"], "retention": 1.0}}
    return dataclasses.asdict(make_method(told["method"], told["method_options"]))


@pytest.mark.parametrize("name", CHANGES)
def test_a_variant_differs_from_its_base_in_its_part_and_nothing_else(name: str) -> None:
    base = VARIANTS[name].base
    assert base is not None
    ours, theirs = options(name), options(base)
    assert {key for key in ours if ours[key] != theirs[key]} == CHANGES[name]


def test_every_variant_is_a_method_and_its_base_stands_before_it() -> None:
    seen: list[str] = []
    for name, variant in VARIANTS.items():
        told = variant.config(STEPS)
        make_method(told["method"], told["method_options"]).stages(STEPS)
        assert variant.base in (seen if seen else [None])
        seen.append(name)
    assert set(CHANGES) | {YARDSTICK, "mask-random", "half-bound", "double-bound"} == set(VARIANTS)


def test_all_clip_alike_when_training_begins_and_a_rate_is_the_same_step() -> None:
    for name, variant in VARIANTS.items():
        told = variant.config(STEPS)["method_options"]
        unit = math.sqrt(told.get("beta", 1.0)) + told.get("offset", 0.0)
        expected = {"half-bound": 0.5, "double-bound": 2.0}.get(name, 1.0) * CLIP_NORM
        assert told["clip_norm"] * unit == pytest.approx(expected, rel=1e-12)
        assert variant.lr(3.0) * expected == pytest.approx(3.0 * CLIP_NORM, rel=1e-12)


@pytest.mark.parametrize("net", NETS)
def test_variants_of_a_net_share_all_but_the_method(net: str) -> None:
    jobs = [job for job in ablation_tuning.tuning_jobs(FULL) if job.name.startswith(f"{net}/")]
    assert len(jobs) == 3 * len(NETS[net].variants)
    rest = [{k: v for k, v in job.config.items() if k not in ("method", "method_options", "lr")} for job in jobs]
    assert all(one == rest[0] for one in rest)
    assert (rest[0]["epsilon"], rest[0]["delta"]) == (4.0, 1e-5)
    assert all(merge(job.config).model == rest[0]["model"] for job in jobs)
    bases = {VARIANTS[name].base for name in NETS[net].variants} - {None}
    assert bases <= set(NETS[net].variants)


def test_a_seed_gives_all_variants_the_same_initial_weights() -> None:
    from adadpigu.training.configured import configured

    digits = {"dataset": "digits", "model": "digits-mlp", "batch_size": 128, "steps": 20, "noise_multiplier": 1.0}
    starts = {}
    for name in (YARDSTICK, "mask-random", "layers"):
        for seed in (0, 1):
            settings = merge({**digits, **VARIANTS[name].config(20), "seed": seed, "device": "cpu"})
            model = configured(settings).model
            starts[name, seed] = torch.cat([p.detach().flatten() for p in model.parameters()])
    for name in ("mask-random", "layers"):
        assert torch.equal(starts[name, 0], starts[YARDSTICK, 0])
    assert not torch.equal(starts[YARDSTICK, 0], starts[YARDSTICK, 1])


def all_rates(index: int = 1) -> dict[str, dict[str, float]]:
    return {net.name: {name: VARIANTS[name].lr(net.rates[index]) for name in net.variants} for net in NETS.values()}


def test_test_runs_come_net_by_net_and_seed_by_seed() -> None:
    jobs = ablation.test_jobs(FULL, all_rates())
    places = [(list(NETS).index(job.name.split("/")[0]), job.seed) for job in jobs]
    assert places == sorted(places)
    assert {job.score for job in jobs} == {"test"}
    for net in NETS.values():
        ours = [job for job in jobs if job.name.startswith(f"{net.name}/")]
        assert len(ours) == net.seeds * len(net.variants)
        assert {job.seed for job in ours} == set(range(net.seeds))
    assert not {job.seed for job in ablation_tuning.tuning_jobs(FULL)} & {job.seed for job in jobs}


def test_a_net_without_all_rates_is_not_tested() -> None:
    rates = all_rates()
    del rates["550k"]["layers"]
    jobs = ablation.test_jobs(FULL, rates)
    assert {job.name.split("/")[0] for job in jobs} == {"26k", "wrn"}
    with pytest.raises(InputError, match="choose_rates"):
        ablation.test_jobs(FULL, {})


def test_the_rates_that_come_with_the_package_are_of_the_grids() -> None:
    for net, variants in ablation_tuning.read_rates().items():
        for name, lr in variants.items():
            assert lr in [VARIANTS[name].lr(rate) for rate in NETS[net].rates]


def tuning_rows(best: dict[str, float]) -> list[Row]:
    """Held-out rows in which `best` tells the grid's best rate of a variant; the others' are equal."""
    rows = []
    for job in ablation_tuning.tuning_jobs(FULL):
        name = job.name.split("/")[1]
        rows.append({**job.key(), "accuracy": 0.6 if job.config["lr"] == best.get(name) else 0.5})
    return rows


def test_the_best_rate_is_chosen_the_smaller_of_equals_and_none_of_an_incomplete_grid() -> None:
    rows = tuning_rows({"alpha": 8.0, "half-bound": 16.0})
    rows = [row for row in rows if not (row["name"] == "26k/prune" and row["config"]["lr"] == 4.0)]
    chosen = ablation_tuning.choose(rows[::-1])
    assert (chosen["26k"]["alpha"], chosen["26k"]["half-bound"]) == (8.0, 16.0)
    assert chosen["26k"]["beta"] == min(NETS["26k"].rates)
    assert "prune" not in chosen["26k"]
    assert "prune" in chosen["550k"]
    assert tomllib.loads(ablation_tuning.written(chosen)) == chosen


def test_rates_are_not_chosen_by_test_rows() -> None:
    with pytest.raises(InputError, match="held-out rows only"):
        ablation_tuning.choose([{**row, "score": "test"} for row in tuning_rows({})])


def test_the_script_writes_what_was_chosen_and_tells_what_is_missing(tmp_path: Path) -> None:
    rows = [row for row in tuning_rows({"layers": 4.0}) if row["name"] != "wrn/layers"]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    script = Path(__file__).parents[2] / "experiments" / "choose_rates.py"
    command = [sys.executable, str(script), str(tmp_path / "rows.jsonl"), "--out", str(tmp_path / "rates.toml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "no complete grid: wrn/layers\n")
    found = tomllib.loads((tmp_path / "rates.toml").read_text(encoding="utf-8"))
    assert found["550k"]["layers"] == 4.0
    assert set(found["26k"]) == set(VARIANTS)


def rows_of(jobs: list[Job], effects: dict[str, float], noise: float = 0.001) -> list[Row]:
    """Test rows whose accuracies are known up to a little noise."""
    chance = np.random.default_rng(5)
    rows = []
    for job in jobs:
        start = np.random.default_rng(job.seed).normal(0, 0.01)
        accuracy = 0.6 + start + effects.get(job.name.split("/")[1], 0.0) + chance.normal(0, noise)
        told = {"accuracy": accuracy, "epsilon": 3.99, "device": "made up", "noise_multiplier": 1.5}
        rows.append({**job.key(), **told})
    return rows


def test_differences_are_to_dpsgd_and_to_the_base_in_points() -> None:
    """Effects of 5 points under noise of 0.1, drawn from a fixed seed: nothing here is left to chance."""
    effects = {"layers": 0.05, "prune": -0.05, "layers-mask": 0.05}
    rows = rows_of(ablation.test_jobs(FULL, all_rates()), effects)
    found = {(row["net"], row["variant"]): row for row in compared(rows)}
    assert found["26k", "layers"]["difference"] == pytest.approx(5.0, abs=0.3)
    assert found["26k", "layers"]["verdict"] == "better"
    assert found["550k", "prune"]["base_difference"] == pytest.approx(-5.0, abs=0.5)
    assert found["550k", "prune"]["base_verdict"] == "worse"
    assert found["26k", "layers-mask"]["base_difference"] == pytest.approx(0.0, abs=0.3)
    assert found["26k", YARDSTICK]["difference"] is None
    assert found["26k", "layers"]["seeds"] == 8
    by_hand = [100 * row["accuracy"] for row in rows if row["name"] == "550k/layers"]
    assert found["550k", "layers"]["std"] == pytest.approx(np.std(by_hand, ddof=1), rel=1e-9)
    assert found["550k", "layers"]["mean"] == pytest.approx(np.mean(by_hand), rel=1e-12)


def test_the_page_says_who_beats_dpsgd_and_that_none_does() -> None:
    jobs = ablation.test_jobs(FULL, all_rates())
    some = draw(rows_of(jobs, {"layers": 0.05})).markdown
    assert "18 variants beat DP-SGD significantly: layers (+" in some
    none = draw(rows_of(jobs, {name: -0.05 for name in VARIANTS if name != YARDSTICK})).markdown
    assert "none of 18 variants beats DP-SGD significantly" in none
    assert "variants beat DP-SGD" not in none
    assert "+5.02 points from DP-SGD" in none


def test_the_drawing_does_not_depend_on_the_order_of_rows() -> None:
    rows = rows_of(ablation.test_jobs(FULL, all_rates(2)), {})
    first, second = draw(rows), draw(rows[::-1])
    assert first.markdown == second.markdown
    assert list(first.rows) == list(second.rows)
    assert "8 (e)" in first.markdown
    assert len(first.figures["ablation"].axes) == len(NETS)


def test_what_is_not_measured_is_said() -> None:
    jobs = [job for job in ablation.test_jobs(FULL, all_rates()) if job.name.startswith("26k/") and job.seed == 0]
    drawn = draw(rows_of(jobs, {}))
    assert "Not measured: 550k: cifar-big, CIFAR-10; 2.75M: wrn-16-4, CIFAR-10." in drawn.markdown
    assert "nothing could be tested" in drawn.markdown
    assert draw([]).figures == {}


def test_rows_that_do_not_belong_together_are_refused() -> None:
    rows = rows_of(ablation.test_jobs(FULL, all_rates()), {})
    with pytest.raises(InputError, match="there twice"):
        draw([*rows, rows[0]])
    with pytest.raises(InputError, match="several configurations"):
        draw([{**rows[0], "config": {**rows[0]["config"], "lr": 99.0}}, *rows[1:]])
    with pytest.raises(InputError, match="is no row of the ablation"):
        draw([{**rows[0], "name": "26k/nonsense"}])
    with pytest.raises(InputError, match="test rows only"):
        draw([{**rows[0], "score": "held-out"}])


def test_quick_is_a_handful_on_what_is_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adadpigu.reproduce.stand_in.at_hand", lambda dataset: False)
    jobs = ablation.jobs(Scale(quick=True))
    assert len(jobs) == 10
    assert {job.config["dataset"] for job in jobs} == {"digits"}
    assert len(ablation.jobs(Scale(quick=True, seeds=1))) == 5
    page = draw(rows_of(jobs, {})).markdown
    assert "fashion-mnist is not cached: digits stand in for it" in page
    assert "not tuned" in page
    tuned = ablation_tuning.tuning_jobs(Scale(quick=True))
    assert len(tuned) == 2
    drawn = ablation_tuning.draw([{**job.key(), "accuracy": job.config["lr"] / 10} for job in tuned])
    assert [row["chosen"] for row in drawn.rows] == [False, True]
    assert ablation_variants.quick_net().variants[0] == YARDSTICK
