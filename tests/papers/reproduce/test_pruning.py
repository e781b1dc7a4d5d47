"""The figures on pruning: what is run, and that means, tests and words follow from the rows alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adadpigu.config import merge, read_preset
from adadpigu.errors import InputError
from adadpigu.methods import make_method
from adadpigu.training import train_prepared
from adadpigu.training.configured import configured
from adadpigu_paper.reproduce import stand_in
from adadpigu_paper.reproduce.artefact import Artefact, Scale
from adadpigu_paper.reproduce.jobs import Row
from adadpigu_paper.reproduce.paired import Paired, corrected, critical, paired, verdict
from adadpigu_paper.reproduce.pruning import PRUNING_CURVES, PRUNING_SWEEP
from adadpigu_paper.reproduce.pruning_runs import (
    RANKING,
    RATES,
    curves,
    jobs,
    not_told_apart,
    protocol,
    rate_of,
    runs_by_rate,
    seeds_told,
    shown_from,
    sweep,
)

BOTH = pytest.mark.parametrize("artefact", [PRUNING_CURVES, PRUNING_SWEEP], ids=lambda artefact: artefact.name)


def made_up(accuracy: Callable[[float | None, int], float], seeds: int = 4, skip: Sequence[str] = ()) -> list[Row]:
    """Rows of the full jobs whose curves rise to a given accuracy by rate and seed, without training."""
    rows = []
    for job in jobs(Scale(quick=False, seeds=seeds)):
        if job.name in skip:
            continue
        end = accuracy(rate_of(job.key()), job.seed)
        steps = range(60, 12_001, 60)
        wave = [0.0002 * math.sin(step * (job.seed + 1)) for step in steps]
        curve = [
            {"step": step, "epsilon": 4 * math.sqrt(step / 12_000), "accuracy": end - 0.5 * math.exp(-step / 400) + w}
            for step, w in zip(steps, wave, strict=True)
        ]
        facts = {"epsilon": 3.995, "noise_multiplier": 2.1, "steps": 12_000, "device": "none", "curve": curve}
        rows.append({**job.key(), "accuracy": curve[-1]["accuracy"], **facts})
    return rows


def in_the_papers_order(rate: float | None, seed: int) -> float:
    """Each step of the ranking ten times the noise between seeds."""
    place = RANKING.index(rate) if rate in RANKING else 5
    return 0.98 - 0.001 * place + 0.0001 * ((seed * 7 + int(10 * (rate or 0))) % 3)


def test_the_full_runs_are_the_papers_with_one_look_an_epoch() -> None:
    found = jobs(Scale(quick=False))
    assert len(found) == 5 * (1 + len(RATES))
    for job in found:
        config = merge(job.config)
        make_method(config.method, config.method_options)
        assert (config.dataset, config.batch_size, config.lr, config.epsilon) == ("mnist", 1000, 0.1, 4.0)
        assert (config.ema, config.tail, config.delta) == (None, None, 1e-5)
        assert config.epochs == 200
        assert config.evaluate_every == 60_000 // 1000
    assert {rate_of(job.key()) for job in found} == {None, *RATES}
    blocks = [found[start : start + len(RATES) + 1] for start in range(0, len(found), len(RATES) + 1)]
    assert [{job.seed for job in block} for block in blocks] == [{0}, {1}, {2}, {3}, {4}]


def test_all_rates_are_the_whole_method_with_the_statistics_of_its_preset() -> None:
    preset = merge(read_preset("mnist-adadpigu-eps4"))
    for job in jobs(Scale(quick=False, seeds=1)):
        config = merge(job.config)
        assert config.method == ("dpsgd" if rate_of(job.key()) is None else preset.method)
        if config.method == "adadpigu":
            own = {"clip_norm", "retention"}
            assert {k: v for k, v in config.method_options.items() if k not in own} == {
                k: v for k, v in preset.method_options.items() if k not in own
            }


def test_stage_2_starts_with_what_a_pruning_rate_leaves_and_ends_with_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand_in, "at_hand", lambda dataset: False)
    quick = {rate_of(job.key()): job for job in jobs(Scale(quick=True))}
    for rate in (0.0, 0.6):
        config = replace(merge(quick[rate].config), epochs=1.0, seed=0, evaluate_every=1)
        shares = [metrics.active for metrics in train_prepared(configured(config)).metrics]
        assert min(shares) == pytest.approx(1 - rate, abs=1e-3)
        assert shares[-1] == 1


def test_the_sweep_averages_the_last_fifty_epochs_of_each_seed() -> None:
    rows = made_up(lambda rate, seed: 0.97 - 0.01 * (rate or 0) + 0.001 * seed)
    for row in sweep(runs_by_rate(rows)):
        runs = [run for run in rows if rate_of(run) == row["pruning_rate"]]
        means = [np.mean([100 * point["accuracy"] for point in run["curve"][150:]]) for run in runs]
        assert len(runs[0]["curve"][150:]) == 50
        assert row["mean"] == pytest.approx(np.mean(means))
        assert row["std"] == pytest.approx(np.std(means, ddof=1))
        assert row["seeds"] == 4


def test_differences_to_dpsgd_are_paired_by_seed() -> None:
    """What a seed is worth to all alike leaves no trace in the difference, however large."""
    rows = made_up(lambda rate, seed: 0.9 + 0.01 * seed + (0.002 if rate == 0.4 else 0) + (1e-5 * seed if rate else 0))
    found = {row["pruning_rate"]: row for row in sweep(runs_by_rate(rows))}
    assert found[0.4]["difference"] == pytest.approx(0.2, abs=0.01)
    assert found[0.4]["verdict"] == "better"
    assert found[0.0]["difference"] == pytest.approx(0, abs=1e-9)
    assert found[0.1]["verdict"] == "no difference shown"
    assert found[None]["difference"] is None


def test_the_p_that_is_printed_is_the_paired_t_tests_after_holm() -> None:
    from scipy.stats import ttest_rel

    rows = made_up(
        lambda rate, seed: 0.97 - 0.002 * (rate or 0) + 0.0004 * math.sin(9 * seed + 31 * (7 if rate is None else rate))
    )
    late = {
        (rate_of(row), row["seed"]): float(np.mean([point["accuracy"] for point in row["curve"][150:]])) for row in rows
    }
    plain = {
        rate: ttest_rel([late[rate, seed] for seed in range(4)], [late[None, seed] for seed in range(4)]).pvalue
        for rate in RATES
    }
    found = {row["pruning_rate"]: row["p_holm"] for row in sweep(runs_by_rate(rows))}
    least = min(plain, key=lambda rate: float(plain[rate]))
    assert found[least] == pytest.approx(min(1.0, len(plain) * plain[least]), rel=1e-6)
    assert all(found[rate] >= plain[rate] - 1e-12 for rate in plain)


def family_of(shifts: Sequence[float]) -> dict[int, Paired | None]:
    """Comparisons over four seeds that all spread alike, around the given means."""
    spread = (-0.3, 0.1, 0.4, -0.2)
    zero = dict.fromkeys(range(4), 0.0)
    return {
        place: paired({seed: shift + value for seed, value in enumerate(spread)}, zero)
        for place, shift in enumerate(shifts)
    }


@pytest.mark.parametrize("others", [(0.1, -0.2), (9.0, -0.2), (9.0, -7.0)])
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_least_difference_that_could_be_shown_is_where_the_corrected_verdict_turns(
    others: tuple[float, float], sign: int
) -> None:
    """Whether none, one or both of the others are shown first, which Holm's correction rewards."""
    bound = shown_from(family_of((0.0, *others)))[0]
    assert bound is not None
    for share, expected in ((0.999, "no difference shown"), (1.001, "better" if sign > 0 else "worse")):
        family = family_of((sign * share * bound, *others))
        assert verdict(family[0], corrected(family)[0]) == expected
        assert shown_from(family)[0] == pytest.approx(bound)


def test_the_t_that_a_verdict_takes_is_students() -> None:
    """Two degrees of freedom have a closed form: with t = x·√(2/(1 − x²)), |t| is exceeded with chance 1 − x."""
    inside = 1 - 0.05 / 10
    assert critical(3, 10) == pytest.approx(inside * math.sqrt(2 / (1 - inside**2)))
    assert shown_from({"alone": paired({0: 1.0}, {0: 0.5})}) == {"alone": None}


def test_the_sweep_says_what_it_could_have_shown_and_which_intervals_exclude_zero() -> None:
    def fallen(rate: float | None, seed: int) -> float:
        fall = {0.8: 0.001, 0.9: 0.004}.get(rate or 0.0, 0.0)
        return 0.98 - fall + 0.0002 * math.sin(9 * seed + 31 * (7 if rate is None else rate))

    drawn = PRUNING_SWEEP.draw(made_up(fallen, seeds=3))
    tested = {row["pruning_rate"]: row for row in drawn.rows if row["pruning_rate"] is not None}
    alone = [rate for rate, row in tested.items() if not row["low"] <= 0 <= row["high"]]
    assert alone == [rate for rate, row in tested.items() if row["excludes_zero"]]
    assert 0.9 in alone
    assert tested[0.9]["verdict"] == ("worse" if tested[0.9]["shown_from"] < 0.4 else "no difference shown")
    told = ", ".join(f"{rate:g} ({tested[rate]['difference']:+.2f})" for rate in alone)
    assert f"each by itself and not corrected: {told}. If no rate made a difference, 0.5 of 10" in drawn.markdown
    assert f"with 3 seeds and 10 rates, a first verdict takes |t| > {critical(3, 10):.2f}" in drawn.markdown
    least = min(tested, key=lambda rate: float(tested[rate]["shown_from"]))
    assert f"shows from {tested[least]['shown_from']:.2f} points (rate {least:g})" in drawn.markdown


def test_every_rate_is_in_both_panels_and_bars_are_named() -> None:
    figure = PRUNING_SWEEP.draw(made_up(in_the_papers_order)).figures["pruning-sweep"]
    for axes, bars in zip(figure.axes, ("± standard deviation", "95 % intervals, each by itself"), strict=True):
        marked = [line for line in axes.get_lines() if line.get_marker() == "o"]
        places = [x for line in marked for x in np.asarray(line.get_xdata()).tolist()]
        assert sorted(places) == pytest.approx(list(RATES))
        legend = axes.get_legend()
        assert legend is not None
        assert bars in " ".join(text.get_text() for text in [legend.get_title(), *legend.get_texts()])


def test_a_curve_is_the_mean_over_seeds_at_each_epoch() -> None:
    rows = made_up(lambda rate, seed: 0.97 + 0.001 * seed)
    row = next(row for row in curves(runs_by_rate(rows)) if row["pruning_rate"] == 0.3)
    assert row["epochs"] == pytest.approx(list(range(1, 201)))
    found = np.array([[100 * point["accuracy"] for point in run["curve"]] for run in rows if rate_of(run) == 0.3])
    assert row["mean"] == pytest.approx(found.mean(axis=0))
    assert row["std"] == pytest.approx(found.std(axis=0, ddof=1))
    assert row["late_fluctuation"] == pytest.approx(found[:, 150:].std(axis=1).mean())


def test_the_papers_order_is_borne_out_or_not_by_what_was_measured() -> None:
    told = PRUNING_CURVES.draw(made_up(in_the_papers_order)).markdown
    assert "by the mean of the last quarter: 0.4 > 0.2 > 0.3 > 0.1, all within" in told
    assert "3 of 3 steps are shown (0.4 > 0.2, 0.2 > 0.3, 0.3 > 0.1) and 0 are shown" in told
    assert "Its seeds tell 0.4 apart from all others" in told
    told = PRUNING_CURVES.draw(made_up(lambda rate, seed: 1.9 - in_the_papers_order(rate, seed))).markdown
    assert "by the mean of the last quarter: 0.1 > 0.3 > 0.2 > 0.4, all within" in told
    assert "0 of 3 steps are shown (none) and 3 are shown to be the other way round (0.4 > 0.2" in told


def test_what_the_seeds_do_not_tell_apart_is_called_a_tie() -> None:
    """0.4 leads by a hundredth of a point, with ten times as much between seeds; 0.9 lies far below."""

    def level(rate: float | None, seed: int) -> float:
        lead = {0.4: 0.0001, 0.9: -0.05}.get(rate or 0.0, 0.0)
        return 0.98 + lead + 0.0005 * math.cos(2 * math.pi * seed / 4 + 10 * (rate or 0))

    sweep_told = PRUNING_SWEEP.draw(made_up(level)).markdown
    assert "measured 0.4 in the mean, 0.01 points ahead of" in sweep_told
    assert "Not told apart from 0.4 by the seeds (own 95 % intervals, not corrected): 0.1, 0.2, 0.3, 0.5" in sweep_told
    assert "0.8. From 0.4 to 0.9 accuracy falls by 5.01 points" in sweep_told
    curves_told = PRUNING_CURVES.draw(made_up(level)).markdown
    assert "Not told apart from 0.4 by the seeds (own 95 % intervals, not corrected): all others." in curves_told
    assert "With these seeds a step is shown from" in curves_told
    (steadiest,) = [line for line in curves_told.splitlines() if "fluctuates least" in line]
    assert "all others" in steadiest
    assert "One seed: no noise is known" in PRUNING_SWEEP.draw(made_up(level, seeds=1)).markdown


def test_ties_are_those_whose_own_interval_holds_zero() -> None:
    best = {0: 5.0, 1: 5.1, 2: 5.3}
    lower = {seed: value - 1 + 0.01 * seed for seed, value in best.items()}
    higher = {seed: value + 1 + 0.01 * seed for seed, value in best.items()}
    level = {0: 5.2, 1: 4.9, 2: 5.2}
    values = {"best": best, "lower": lower, "higher": higher, "level": level, "alone": {2: 0.0}}
    assert not_told_apart(values, "best") == ["level", "alone"]


def test_the_inset_on_the_late_epochs_hides_no_curve() -> None:
    """In the full figure it lies below every curve; where curves have not settled there is none."""
    drawn = PRUNING_CURVES.draw(made_up(in_the_papers_order))
    (axes,) = drawn.figures["pruning-curves"].axes
    (inset,) = axes.child_axes
    assert inset.get_xlim() == pytest.approx((151, 200))
    left, right = (0.33 * 200 - 20, 200)
    low, high = axes.get_ylim()
    for line in axes.get_lines():
        epochs, values = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
        beside = values[(epochs >= left) & (epochs <= right)]
        assert (beside > low + 0.6 * (high - low)).all()
    steep = made_up(in_the_papers_order, seeds=1)
    for row in steep:
        for point in row["curve"]:
            point["accuracy"] = point["step"] / 12_000
    assert not PRUNING_CURVES.draw(steep).figures["pruning-curves"].axes[0].child_axes


def test_the_words_of_the_sweep_follow_the_verdicts() -> None:
    told = PRUNING_SWEEP.draw(made_up(in_the_papers_order)).markdown
    assert "shown by the corrected test: 0.1, 0.2, 0.3, 0.4. Shown to be below it: none." in told
    assert "measured 0.4 in the mean, 0.10 points ahead of 0.2. Its seeds tell 0.4 apart from all others" in told
    falling = PRUNING_SWEEP.draw(made_up(lambda rate, seed: 0.95 - 0.02 * (rate or 0) + 1e-4 * math.sin(5 * seed)))
    assert "Above DP-SGD on shared seeds: none; shown by the corrected test: none." in falling.markdown
    assert "ahead of 0.2 and 0.60 ahead of 0.4." in falling.markdown
    assert "From 0.1 to 0.9 accuracy falls by 1.60 points." in falling.markdown


def test_rates_are_ranked_on_the_seeds_that_they_share() -> None:
    """0.7 has a lucky seed alone, on which all rates are good: by means over unequal seeds it would come first."""
    rows = made_up(lambda rate, seed: 0.95 + 0.02 * (seed == 0) + 0.001 * (rate == 0.4), seeds=2)
    some = [row for row in rows if row["seed"] == 0 or rate_of(row) in (None, 0, 0.1, 0.2, 0.3, 0.4)]
    told = PRUNING_SWEEP.draw(some).markdown
    assert "measured 0.4 in the mean on seed 0, all that they share, 0.10 points ahead of 0.1. One seed: no" in told
    assert "Above DP-SGD on shared seeds: 0.4;" in told
    assert "Measured, in the mean on seed 0, all that they share: " in PRUNING_CURVES.draw(some).markdown
    apart = [row for row in rows if row["seed"] == (rate_of(row) in (0.1, 0.2))]
    assert "No best rate: rates share no seed." in PRUNING_SWEEP.draw(apart).markdown
    told = PRUNING_CURVES.draw(apart).markdown
    assert "share no seed, so no order." in told
    assert "No rate is the steadiest: they share no seed." in told


def test_rate_zero_is_told_as_the_method_without_its_mask() -> None:
    rows = made_up(lambda rate, seed: 0.98 - (0.003 if rate == 0 else 0.0) + 1e-4 * seed)
    told = PRUNING_SWEEP.draw(rows).markdown
    assert "Pruning rate 0 has no mask: its difference from DP-SGD on shared seeds, -0.30 points" in told


@BOTH
def test_what_was_not_measured_is_said(artefact: Artefact, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Nothing was measured" in artefact.draw([]).markdown
    told = artefact.draw(made_up(in_the_papers_order, skip=["pruning-dpsgd", "pruning-0.7"])).markdown
    assert "Not measured: DP-SGD, 0.7." in told
    baseline = [row for row in made_up(in_the_papers_order) if row["name"] == "pruning-dpsgd"]
    alone = artefact.draw(baseline)
    assert f"Not measured: {', '.join(f'{rate:g}' for rate in RATES)}." in alone.markdown
    assert alone.figures
    told = artefact.draw(made_up(in_the_papers_order, seeds=1)).markdown
    assert "seed" in told.split("\n- ", 1)[1]
    monkeypatch.setattr(stand_in, "at_hand", lambda dataset: False)
    rows = [{**row, "config": {**row["config"], "dataset": "digits"}} for row in made_up(in_the_papers_order)]
    drawn = artefact.draw(rows)
    assert "digits stand in for it" in drawn.markdown
    assert all(row["claim"] is None for row in drawn.rows)


@BOTH
def test_two_runs_of_one_rate_and_seed_are_refused(artefact: Artefact) -> None:
    rows = made_up(in_the_papers_order)
    with pytest.raises(InputError, match="pruning-dpsgd, seed 0 is there twice"):
        artefact.draw([*rows, rows[0]])


def test_the_protocol_tells_what_differs_as_a_span() -> None:
    rows: list[dict[str, Any]] = made_up(in_the_papers_order, seeds=2)
    told = protocol(rows, 2)
    assert "B = 1,000; lr = 0.1;" in told
    assert "seeds a setting = 2;" in told
    assert "seeds a setting = 2 of 5 planned;" in protocol(rows, 5)
    assert "seeds a setting = 1 to 2 of 5 planned;" in protocol(rows[1:], 5)
    rows[0]["config"] = {**rows[0]["config"], "batch_size": 500}
    assert "B from 500 to 1,000" in protocol(rows, 2)
    short = [{**row, "config": {**row["config"], "epochs": 0.5}} for row in rows]
    assert "seeds a setting = 2;" in protocol(short, 5)


def test_seeds_are_counted_by_setting_and_each_once() -> None:
    """Three seeds over all rows, though no setting has more than two."""
    rows: list[Row] = [{"name": name, "seed": seed} for name, seed in (("a", 0), ("a", 1), ("b", 2), ("a", 1))]
    assert seeds_told(rows, None) == "1 to 2"
    assert seeds_told(rows, 2) == "1 to 2 of 2 planned"
    assert seeds_told(rows[:2], 2) == "2"
