"""The ablation: what its variants change, whose rates are chosen, in which order it runs, and what its page says."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ablation_rows import tuning_rows
from scipy import stats

from adadpigu.config import merge, read_preset
from adadpigu.errors import InputError
from adadpigu.methods import make_method
from adadpigu_paper.reproduce import ablation, ablation_tuning, ablation_variants, keeping
from adadpigu_paper.reproduce.ablation_comparing import compared
from adadpigu_paper.reproduce.ablation_drawing import draw
from adadpigu_paper.reproduce.ablation_variants import CLIP_NORM, NETS, VARIANTS, YARDSTICK
from adadpigu_paper.reproduce.artefact import Scale
from adadpigu_paper.reproduce.jobs import Job, Row

FULL = Scale(quick=False)
STEPS = 600
SHAPED = {"normalise", "floor", "clip_norm"}
MOVING_BETA = {"beta", "variance_decay", "debias", "floor", "ceiling", "clip_norm"}
CHANGES = {
    "mask-absolute": {"retention", "importance_steps"},
    "mask-signed": {"score"},
    "mask-energy": {"score"},
    "mask-random": {"score"},
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
    "whole-slow": {"mean_decay"},
    "whole-layers": SHAPED | {"variance_start", "debias", "per_layer"},
    "whole-blocks": SHAPED | {"variance_start", "debias", "blocks"},
    "whole-noise-start": SHAPED | {"variance_start"},
    "whole-public": {"score", "importance_steps"},
    "whole-worthwhile": {"restrict"},
    "whole-top-k": {"top_k", "top_k_of"},
    "whole-adam": set(),
    "whole-optimiser": SHAPED | {"variance_from", "debias", "noise_floor"},
}
NO_PART = {YARDSTICK, "half-bound", "double-bound", "whole"}
"""that are not told by one part that they change"""


def options(name: str) -> dict[str, Any]:
    """All options of a variant, defaults made plain; DP-SGD as the AdaDPIGU that it equals."""
    told = VARIANTS[name].config(STEPS)
    if told["method"] == "dpsgd":
        told["method_options"] |= {"retention": 1.0, "schedule": "constant"}
        told["method"] = "masked"
    return dataclasses.asdict(make_method(told["method"], told["method_options"]))


@pytest.mark.parametrize("name", CHANGES)
def test_a_variant_differs_from_its_base_in_its_part_and_nothing_else(name: str) -> None:
    base = VARIANTS[name].base
    assert base is not None
    ours, theirs = options(name), options(base)
    assert {key for key in ours if ours[key] != theirs[key]} == CHANGES[name]
    assert (VARIANTS[name].optimizer != VARIANTS[base].optimizer) == (name == "whole-adam")


def test_whole_is_the_method_of_the_name_with_the_bound_and_stage_1_of_the_others() -> None:
    ours, default = options("whole"), dataclasses.asdict(make_method("adadpigu", {}))
    assert {key for key in ours if ours[key] != default[key]} == {"clip_norm", "importance_steps"}
    assert ours["importance_steps"] == options("mask-absolute")["importance_steps"]


def test_whole_layers_is_what_tuning_chose_for_cifar10() -> None:
    chosen = merge(read_preset("cifar10-adadpigu-eps4")).method_options
    ours = options("whole-layers")
    assert {key: ours[key] for key in chosen} == chosen


def test_variants_of_adadpigu_are_those_that_train_by_it() -> None:
    others = {YARDSTICK, "half-bound", "double-bound"}
    assert {name for name, variant in VARIANTS.items() if not variant.of_adadpigu} == others


def test_every_variant_is_a_method_and_its_base_stands_before_it() -> None:
    seen: list[str] = []
    for name, variant in VARIANTS.items():
        told = variant.config(STEPS)
        make_method(told["method"], told["method_options"]).stages(STEPS)
        assert variant.base in (seen if seen else [None])
        seen.append(name)
    assert set(CHANGES) | NO_PART == set(VARIANTS)


def test_all_clip_alike_when_training_begins_and_a_rate_is_the_same_step() -> None:
    for name, variant in VARIANTS.items():
        told = variant.config(STEPS)["method_options"]
        unit = math.sqrt(told.get("beta", 1.0)) + told.get("offset", 0.0)
        unit = 1.0 if told.get("normalise") else unit
        expected = {"half-bound": 0.5, "double-bound": 2.0}.get(name, 1.0) * CLIP_NORM
        assert told["clip_norm"] * unit == pytest.approx(expected, rel=1e-12)
        if variant.optimizer == "sgd":
            assert variant.lr(3.0) * expected == pytest.approx(3.0 * CLIP_NORM, rel=1e-12)


def test_noise_moves_a_weight_about_as_far_by_adam_as_by_sgd() -> None:
    """SGD: lr·σC/B over 1 − momentum in the long run; Adam: lr, for its steps are divided by that deviation."""
    noise = {"26k": 1.179 * CLIP_NORM / 2048, "550k": 0.723 * CLIP_NORM / 1024}
    for net, deviation in noise.items():
        momentum = NETS[net].config["momentum"]
        by_sgd = VARIANTS["whole"].lr(8.0) * deviation / (1 - momentum)
        assert VARIANTS["whole-adam"].lr(8.0) == pytest.approx(by_sgd, rel=0.5)


@pytest.mark.parametrize("net", NETS)
def test_variants_of_a_net_share_all_but_the_method(net: str) -> None:
    jobs = [job for job in ablation_tuning.tuning_jobs(FULL) if job.name.startswith(f"{net}/")]
    assert len(jobs) == len(NETS[net].rates) * len(NETS[net].variants)
    assert len(NETS[net].rates) <= 5
    own = ("method", "method_options", "lr", "optimizer")
    rest = [{k: v for k, v in job.config.items() if k not in own} for job in jobs]
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
    assert {job.name.split("/")[0] for job in jobs} == set(NETS) - {"550k"}
    with pytest.raises(InputError, match="choose_rates"):
        ablation.test_jobs(FULL, {})


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


def test_each_table_is_a_family_of_holms_correction() -> None:
    """Four variants: three comparisons with DP-SGD, two with a mask as the base; p by scipy, corrected by hand."""
    names = (YARDSTICK, "mask-absolute", "mask-signed", "mask-energy")
    jobs = [job for job in ablation.test_jobs(FULL, all_rates()) if job.name in {f"26k/{name}" for name in names}]
    rows = rows_of(jobs, {"mask-signed": 0.004, "mask-energy": 0.0002}, noise=0.002)
    score = {name: [row["accuracy"] for row in rows if row["name"] == f"26k/{name}"] for name in names}
    found = {row["variant"]: row for row in compared(rows)}
    signed, energy = (stats.ttest_rel(score[name], score["mask-absolute"]).pvalue for name in names[2:])
    assert signed < energy
    assert found["mask-signed"]["base_p_holm"] == pytest.approx(2 * signed, rel=1e-9)
    assert found["mask-energy"]["base_p_holm"] == pytest.approx(max(2 * signed, energy), rel=1e-9)
    assert found["mask-absolute"]["base_p_holm"] is None
    least = min(stats.ttest_rel(score[name], score[YARDSTICK]).pvalue for name in names[1:])
    assert min(found[name]["p_holm"] for name in names[1:]) == pytest.approx(3 * least, rel=1e-9)
    assert (found["mask-signed"]["family"], found["mask-signed"]["base_family"]) == (3, 2)


def test_the_whole_method_and_its_parts_are_families_of_their_own() -> None:
    """Variants that were asked about later do not cost the earlier ones power: p of `alpha` is doubled, not more."""
    names = (YARDSTICK, "alpha", "top-k", "whole", "whole-slow", "whole-layers", "whole-blocks")
    jobs = [job for job in ablation.test_jobs(FULL, all_rates()) if job.name in {f"26k/{name}" for name in names}]
    rows = rows_of(jobs, {"alpha": 0.003}, noise=0.002)
    score = {name: [row["accuracy"] for row in rows if row["name"] == f"26k/{name}"] for name in names}
    found = {row["variant"]: row for row in compared(rows)}
    alone, other = (stats.ttest_rel(score[name], score[YARDSTICK]).pvalue for name in ("alpha", "top-k"))
    assert alone < other
    assert found["alpha"]["p_holm"] == pytest.approx(2 * alone, rel=1e-9)
    assert [found[name]["family"] for name in names[1:]] == [2, 2, 4, 4, 4, 4]
    assert [found[name]["base_family"] for name in names[4:]] == [3, 3, 3]
    page = draw(rows).markdown
    assert "parts of AdaDPIGU: " in page
    assert "the whole method: none of 4 variants beats DP-SGD significantly" in page
    assert f"the whole method's is {found['whole']['difference']:+.2f}" in page


def exact_rows(differences: dict[str, list[float]]) -> list[Row]:
    """Rows of the 26k net in which DP-SGD has 50 % and others differ from it by so many points, seed by seed."""
    rows = []
    for job in ablation.test_jobs(FULL, all_rates()):
        net, name = job.name.split("/")
        if net == "26k" and name in differences and job.seed < len(differences[name]):
            told = {"epsilon": 3.99, "device": "made up", "noise_multiplier": 1.5}
            rows.append({**job.key(), "accuracy": 0.5 + differences[name][job.seed] / 100, **told})
    return rows


def test_the_page_tells_the_resolution_of_the_corrected_test() -> None:
    """Differences of mean 0 and ±1, four seeds: error √(4/3)/2; two comparisons: t of 3 degrees at 1 − 0.05/4."""
    rows = exact_rows({YARDSTICK: [0] * 4, "alpha": [1, -1, 1, -1], "top-k": [-1, 1, -1, 1]})
    needed = stats.t.isf(0.05 / 4, 3) * math.sqrt(4 / 3) / 2
    page = draw(rows).markdown
    assert (
        f"less than {needed:.2f} points (median) is not significant by itself among 2 comparisons with 4 seeds" in page
    )
    assert f"{stats.t.isf(0.05 / 2, 3) * math.sqrt(4 / 3) / 2:.2f}" != f"{needed:.2f}"


def test_the_claim_stands_beside_the_largest_difference_of_adadpigu_itself() -> None:
    """double-bound is DP-SGD: it is told, but not as what the paper claims."""
    rows = exact_rows(
        {
            YARDSTICK: [0.0, 0.0, 0.0],
            "layers": [0.2, 0.4, 0.6],
            "top-k": [-0.5, -0.7, -0.9],
            "double-bound": [2.0, 3.0, 4.0],
        }
    )
    page = draw(rows).markdown
    assert "the largest difference of a variant of AdaDPIGU here is +0.40 (layers, no difference shown)" in page
    assert "parts of AdaDPIGU: none of 2 variants beats DP-SGD significantly" in page
    assert "beside them and no part of AdaDPIGU: double-bound (+3.00, no difference shown)." in page
    alone = draw([row for row in rows if row["name"].split("/")[1] in (YARDSTICK, "double-bound")]).markdown
    assert "the paper's table" not in alone
    assert "variants beat" not in alone


def test_an_interval_without_0_is_not_left_beside_no_difference_without_a_word() -> None:
    """p of `layers` is below the level by itself and above it times three comparisons, by scipy."""
    differences: dict[str, list[float]] = {
        YARDSTICK: [0, 0, 0, 0],
        "layers": [0.2, 0.5, 0.2, 0.5],
        "alpha": [1, -1, 1, -1],
        "top-k": [-1, 1, -1, 1],
    }
    p = stats.ttest_1samp(differences["layers"], 0).pvalue
    assert p < 0.05 < 3 * p
    page = draw(exact_rows(differences)).markdown
    assert page.count("no difference shown: its own interval excludes 0; not significant among 3") == 1
    assert page.count("| no difference shown |") == 2


def test_the_page_says_who_beats_dpsgd_and_that_none_does() -> None:
    jobs = ablation.test_jobs(FULL, all_rates())
    some = draw(rows_of(jobs, {"layers": 0.05})).markdown
    assert "16 variants beat DP-SGD significantly: layers (+" in some
    none = draw(rows_of(jobs, {name: -0.05 for name in VARIANTS if name != YARDSTICK})).markdown
    assert "none of 16 variants beats DP-SGD significantly" in none
    assert "none of 10 variants beats DP-SGD significantly" in none
    assert "variants beat DP-SGD" not in none
    assert "+5.02 points from DP-SGD" in none


def in_short(rows: list[Row]) -> list[str]:
    return draw(rows).markdown.split("## In short\n\n")[1].splitlines()


def test_the_summary_begins_with_rates_at_the_edge_of_what_was_tried() -> None:
    """The grid has five rates by now; the edge is that of the three that were run."""
    first = [row for row in tuning_rows({}) if row["config"]["lr"] <= VARIANTS[row["name"].split("/")[1]].lr(8.0)]
    tests = [row for row in rows_of(ablation.test_jobs(FULL, all_rates(2)), {}) if row["name"].startswith("26k/")]
    line = in_short([*tests, *first])[0]
    assert line.startswith(
        "- 29 of 29 variants of the 26k net at the upper edge of their grid: dpsgd was tried at 2, 4, 8."
    )
    below = [{**row, "config": {**row["config"], "lr": 2.0}} if row["name"] == "26k/beta" else row for row in tests]
    lines = in_short([*below, *first])
    assert lines[0].startswith("- 28 of 29 variants of the 26k net at the upper edge of their grid (dpsgd, ")
    assert lines[1].startswith("- 1 of 29 variants of the 26k net at the lower edge of their grid (beta): ")


def test_the_summary_tells_rates_that_the_whole_grid_would_not_choose() -> None:
    best = {name: VARIANTS[name].lr(8.0) for name in VARIANTS} | {"alpha": 16.0}
    tests = [row for row in rows_of(ablation.test_jobs(FULL, all_rates(2)), {}) if row["name"].startswith("26k/")]
    lines = in_short([*tests, *tuning_rows(best)])
    assert lines[0] == "- 1 of 29 variants of the 26k net not at the best rate of their grid: alpha (8, best 16)."
    assert not [line for line in lines if "edge" in line]
    assert in_short(tests)[0] == "- 29 of 29 variants of the 26k net: no held-out row tells how they were tuned."


def test_the_measured_rows_draw_what_is_committed() -> None:
    folder = Path(__file__).parents[3] / "results"
    for artefact in (ablation.ABLATION, ablation_tuning.ABLATION_TUNING):
        page = (folder / "paper" / f"{artefact.name}.md").read_text(encoding="utf-8")
        assert artefact.draw(keeping.rows_of(artefact, folder)).markdown.rstrip("\n") + "\n" == page


def test_a_page_has_a_panel_for_each_net_and_tells_rates_at_the_edge_of_their_grid() -> None:
    drawn = draw(rows_of(ablation.test_jobs(FULL, all_rates(2)), {}) + tuning_rows({}))
    assert "| 16 (e) |" in drawn.markdown
    assert "| 8 |" in drawn.markdown
    assert len(drawn.figures["ablation"].axes) == len(NETS)


def test_what_is_not_measured_is_said() -> None:
    jobs = [job for job in ablation.test_jobs(FULL, all_rates()) if job.name.startswith("26k/") and job.seed == 0]
    drawn = draw(rows_of(jobs, {}))
    others = "; ".join(net.title for net in NETS.values() if net.name != "26k")
    assert f"Not measured: {others}." in drawn.markdown
    assert "nothing could be tested" in drawn.markdown
    assert draw([]).figures == {}


def test_rows_that_do_not_belong_together_are_refused() -> None:
    rows = rows_of(ablation.test_jobs(FULL, all_rates()), {})
    with pytest.raises(InputError, match="there twice"):
        draw([*rows, rows[0]])
    with pytest.raises(InputError, match=r"there twice, at lr=4 and lr=8; .* no longer chosen belong in another file"):
        draw([*rows, {**rows[0], "config": {**rows[0]["config"], "lr": 8.0}}])
    with pytest.raises(InputError, match="several configurations"):
        draw([{**rows[0], "config": {**rows[0]["config"], "lr": 99.0}}, *rows[1:]])
    with pytest.raises(InputError, match="is no row of the ablation"):
        draw([{**rows[0], "name": "26k/nonsense"}])
    with pytest.raises(InputError, match="test rows only"):
        compared([{**rows[0], "score": "held-out"}])
    with pytest.raises(InputError, match="test rows only"):
        draw([{**rows[0], "score": None}])


def test_quick_is_a_handful_on_what_is_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adadpigu_paper.reproduce.stand_in.at_hand", lambda dataset: False)
    jobs = ablation.jobs(Scale(quick=True))
    assert len(jobs) == 12
    assert {job.config["dataset"] for job in jobs} == {"digits"}
    assert len(ablation.jobs(Scale(quick=True, seeds=1))) == 6
    page = draw(rows_of(jobs, {})).markdown
    assert "fashion-mnist is not cached: digits stand in for it" in page
    assert "not tuned" in page
    tuned = ablation_tuning.tuning_jobs(Scale(quick=True))
    assert len(tuned) == 2
    drawn = ablation_tuning.draw([{**job.key(), "accuracy": job.config["lr"] / 10} for job in tuned])
    assert [row["best"] for row in drawn.rows] == [False, True]
    assert ablation_variants.quick_net().variants[0] == YARDSTICK
