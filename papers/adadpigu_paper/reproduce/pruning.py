"""Two figures on pruning: test accuracy over the epochs, and its late mean against the pruning rate. MNIST, ε = 4.

Drawn from public values alone. A difference is called one where a paired test over seeds shows it:
d_s = late mean of the rate − late mean of DP-SGD, by seed s.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from adadpigu_paper.reproduce import paper
from adadpigu_paper.reproduce.artefact import Artefact, Drawn
from adadpigu_paper.reproduce.jobs import Row
from adadpigu_paper.reproduce.keeping import tabled
from adadpigu_paper.reproduce.paired import LEVEL, corrected, critical, paired, verdict
from adadpigu_paper.reproduce.pruning_figures import curves_figure, rate_name, sweep_figure
from adadpigu_paper.reproduce.pruning_runs import (
    BASELINE,
    RANKING,
    RATES,
    SEEDS,
    Runs,
    curves,
    jobs,
    late_fluctuations,
    late_means,
    not_told_apart,
    protocol,
    runs_by_rate,
    shown_from,
    sweep,
)
from adadpigu_paper.reproduce.stand_in import told

Rate = TypeVar("Rate", float, float | None)


def draw_curves(rows: Sequence[Row]) -> Drawn:
    """Accuracy at some epochs as a table, at all of them as a figure with an inset on the late ones."""
    title = "# Pruning: test accuracy over the epochs"
    if not rows:
        return Drawn(markdown=f"{title}\n\nNothing was measured.\n", rows=[])
    runs = runs_by_rate(rows)
    found = curves(runs)
    epochs = found[0]["epochs"]
    shown = sorted({max(0, round(len(epochs) * share) - 1) for share in (0.05, 0.25, 0.5, 0.75, 1.0)})
    head = ["pruning rate", *(f"epoch {epochs[index]:.3g}" for index in shown), "late fluctuation", "paper"]
    body = [
        [
            rate_name(row["pruning_rate"]),
            *(_spread(row["mean"][index], row["std"][index]) for index in shown),
            f"{row['late_fluctuation']:.3f}",
            _place(row["pruning_rate"]),
        ]
        for row in found
    ]
    about = (
        "Test accuracy (%) of AdaDPIGU, the whole method, by pruning rate, the share of weights that stage 2 starts "
        "without and takes up again one by one, and of DP-SGD. Late fluctuation: standard deviation over the last "
        "quarter of the epochs, points. The paper prints no figures here but an order."
    )
    lines = [*([_ranking(runs), _steadiest(runs)] if _some_rate(runs) else []), *_gaps_in(runs)]
    text = _page(title, about, rows, tabled(head, body), lines)
    return Drawn(markdown=text, rows=found, figures={"pruning-curves": curves_figure(found)})


def draw_sweep(rows: Sequence[Row]) -> Drawn:
    """The late mean by pruning rate, against DP-SGD's and against the line that the paper prints."""
    title = "# Pruning: accuracy against the pruning rate"
    if not rows:
        return Drawn(markdown=f"{title}\n\nNothing was measured.\n", rows=[])
    runs = runs_by_rate(rows)
    found = sweep(runs)
    about = (
        "Test accuracy (%), mean of the last quarter of the epochs, mean ± standard deviation over seeds, by pruning "
        "rate of AdaDPIGU, the whole method. Intervals are 95 % each by itself. Test: paired t over seeds, two-sided, "
        f"Holm's correction over the rates, level {LEVEL:g}; a pair shares its initial weights. Shown from: the least "
        "difference, in points, that this test would have shown at the spread of that rate."
    )
    lines = [
        *_baseline(found),
        *_against_baseline(found),
        *([_best(runs)] if _some_rate(runs) else []),
        *_gaps_in(runs),
    ]
    text = _page(title, about, rows, _sweep_table(found), lines)
    return Drawn(markdown=text, rows=found, figures={"pruning-sweep": sweep_figure(found)})


def _sweep_table(found: Sequence[Row]) -> str:
    head = [
        *("pruning rate", "accuracy", "paper", "minus DP-SGD, shared seeds", "95 % interval"),
        *("p (Holm)", "shown from", "against DP-SGD"),
    ]
    body = [
        [
            rate_name(row["pruning_rate"]),
            _spread(row["mean"], row["std"]),
            "none" if row["claim"] is None else f"{row['claim']:.2f}",
            "" if row["difference"] is None else f"{row['difference']:+.2f}",
            "" if row["low"] is None else f"{row['low']:+.2f} to {row['high']:+.2f}",
            "" if row["p_holm"] is None else f"{row['p_holm']:.2g}",
            "" if row["shown_from"] is None else f"±{row['shown_from']:.2f}",
            "" if row["pruning_rate"] is BASELINE else row["verdict"],
        ]
        for row in found
    ]
    return tabled(head, body)


def _page(title: str, about: str, rows: Sequence[Row], table: str, lines: Sequence[str]) -> str:
    stand_in = told(rows[0]["config"], "mnist")
    first = "" if stand_in is None else f"{stand_in}.\n\n"
    listed = "\n".join(f"- {line}" for line in lines)
    return f"{title}\n\n{first}{about} {protocol(rows, SEEDS)}\n\n{table}\n\n{listed}\n"


def _place(rate: float | None) -> str:
    return f"{RANKING.index(rate) + 1} of {len(RANKING)}" if rate in RANKING else "none"


def _spread(mean: float, std: float | None) -> str:
    return f"{mean:.2f}" + ("" if std is None else f" ± {std:.2f}")


def _listed(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates) or "none"


def _ranking(runs: Runs) -> str:
    """Ours of the rates that the paper ranks, and which of its steps a paired test bears out or could have."""
    means = {rate: late_means(runs[rate]) for rate in RANKING if rate in runs}
    fair, seeds = _on_shared_seeds(means)
    overall = {rate: statistics.fmean(values.values()) for rate, values in fair.items()}
    ours = sorted(overall, key=lambda rate: -overall[rate])
    told = f"Paper: {' > '.join(f'{rate:g}' for rate in RANKING)}. Measured, by the mean of the last quarter: "
    if len(ours) < 2:
        alone = "share no seed" if len(means) > 1 else "alone"
        return f"{told}{_listed(list(means))} {alone}, so no order."
    apart = max(overall.values()) - min(overall.values())
    return (
        f"{told}{' > '.join(f'{rate:g}' for rate in ours)}, all within {apart:.2f} points{seeds}. "
        f"{_ties(fair, ours[0])} {_steps(means)}"
    )


def _on_shared_seeds(means: Mapping[Rate, Mapping[int, float]]) -> tuple[dict[Rate, dict[int, float]], str]:
    """Values of the seeds that all rates have, since a ranking of others would rank seeds; and which, if not all."""
    shared = set.intersection(*map(set, means.values())) if means else set()
    fair = {rate: {seed: values[seed] for seed in shared} for rate, values in means.items() if shared}
    one = f"seed {min(shared)}" if len(shared) == 1 else f"{len(shared)} seeds"
    return fair, "" if all(
        len(values) == len(shared) for values in means.values()
    ) else f" on {one}, all that they share"


def _steps(means: Mapping[float, Mapping[int, float]]) -> str:
    """Of the paper's order: what was shown, and what could have been."""
    steps = {(a, b): paired(means[a], means[b]) for a, b in itertools.pairwise(means)}
    p, bounds = corrected(steps), [bound for bound in shown_from(steps).values() if bound is not None]
    if not bounds:
        return "Of the paper's order, no step can be tested with one seed."
    shown = {
        word: [f"{a:g} > {b:g}" for (a, b), found in steps.items() if verdict(found, p[a, b]) == word]
        for word in ("better", "worse")
    }
    return (
        f"Of the paper's order, {len(shown['better'])} of {len(bounds)} steps are shown "
        f"({', '.join(shown['better']) or 'none'}) and {len(shown['worse'])} are shown to be the other way round "
        f"({', '.join(shown['worse']) or 'none'}; paired t, Holm). With these seeds a step is shown from "
        f"{_range(bounds)} points: a smaller one could not have come out."
    )


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def _ties(values: Mapping[Any, Mapping[int, float]], chosen: float | None) -> str:
    """Which others the seeds do not tell apart from the one that comes out first."""
    if max(map(len, values.values())) == 1:
        return f"One seed: no noise is known, so none is told apart from {rate_name(chosen)}."
    tied = not_told_apart(values, chosen)
    if not tied:
        return f"Its seeds tell {rate_name(chosen)} apart from all others (own 95 % intervals, not corrected)."
    which = "all others" if len(tied) == len(values) - 1 else ", ".join(map(rate_name, tied))
    return f"Not told apart from {rate_name(chosen)} by the seeds (own 95 % intervals, not corrected): {which}."


def _steadiest(runs: Runs) -> str:
    moves, seeds = _on_shared_seeds({rate: late_fluctuations(found) for rate, found in runs.items()})
    if not moves:
        return "No rate is the steadiest: they share no seed."
    overall = {rate: statistics.fmean(values.values()) for rate, values in moves.items()}
    least, most = min(overall, key=lambda rate: overall[rate]), max(overall, key=lambda rate: overall[rate])
    return (
        f"Paper: {paper.BEST_PRUNING_RATE:g} fluctuates least in the late epochs. Measured, in the mean{seeds}: "
        f"{rate_name(least)} least ({overall[least]:.3f} points), {rate_name(most)} most ({overall[most]:.3f}). "
        f"{_ties(moves, least)}"
    )


def _baseline(found: Sequence[Row]) -> list[str]:
    """DP-SGD beside the paper's, and what pruning rate 0 is."""
    reference = next((row for row in found if row["pruning_rate"] is BASELINE), None)
    if reference is None:
        return []
    lines = []
    if reference["claim"] is not None:
        lines.append(
            f"DP-SGD: the paper prints {reference['claim']:.2f} %, measured "
            f"{_spread(reference['mean'], reference['std'])} %: {reference['mean'] - reference['claim']:+.2f} points. "
            f"σ is {reference['noise_multiplier']:.3g} here; Table 3 has {paper.NOISE_TABLE['mnist'][4]:g} for ε = 4."
        )
    unpruned = next((row for row in found if row["pruning_rate"] == 0), None)
    if unpruned is not None and unpruned["difference"] is not None:
        lines.append(
            "Pruning rate 0 has no mask: its difference from DP-SGD on shared seeds, "
            f"{unpruned['difference']:+.2f} points, is what stage 1 and moving α and β do, and chance."
        )
    return lines


def _against_baseline(found: Sequence[Row]) -> list[str]:
    """What the corrected test shows, what it could have shown, and what each interval says by itself."""
    pruned = [row for row in found if row["difference"] is not None]
    ahead = [row["pruning_rate"] for row in pruned if row["difference"] > 0]
    tested = [row for row in pruned if row["shown_from"] is not None]
    if not pruned:
        return []
    if not tested:
        return [f"Above DP-SGD on shared seeds: {_listed(ahead)}; whether beyond seed noise takes at least two seeds."]
    shown = {word: [row["pruning_rate"] for row in tested if row["verdict"] == word] for word in ("better", "worse")}
    alone = [f"{row['pruning_rate']:g} ({row['difference']:+.2f})" for row in tested if row["excludes_zero"]]
    return [
        f"Above DP-SGD on shared seeds: {_listed(ahead)}; shown by the corrected test: {_listed(shown['better'])}. "
        f"Shown to be below it: {_listed(shown['worse'])}. Paper: 0.1 to 0.4 above it, up to 0.6 on a par, beyond 0.6 "
        "a fall.",
        _power(tested),
        f"Intervals that exclude 0, each by itself and not corrected: {', '.join(alone) or 'none'}. If no rate made a "
        f"difference, {(1 - 0.95) * len(tested):.2g} of {len(tested)} would on average.",
    ]


def _power(tested: Sequence[Row]) -> str:
    """What a verdict takes: without it, its absence would be read as the absence of a difference."""
    pairs = sorted({int(row["pairs"]) for row in tested})
    needed = _range([critical(count, len(tested)) for count in pairs])
    least, most = (choose(tested, key=lambda row: float(row["shown_from"])) for choose in (min, max))
    return (
        f"What the test could show: with {' or '.join(map(str, pairs))} seeds and {len(tested)} rates, a first verdict "
        f"takes |t| > {needed}. At the spreads found, a difference shows from {least['shown_from']:.2f} points (rate "
        f"{least['pruning_rate']:g}) to {most['shown_from']:.2f} (rate {most['pruning_rate']:g}); where a smaller one "
        "is not shown, that is no sign that there is none."
    )


def _best(runs: Runs) -> str:
    every = {rate: late_means(found) for rate, found in runs.items() if rate}
    means, seeds = _on_shared_seeds(every)
    overall = {rate: statistics.fmean(values.values()) for rate, values in means.items()}
    if not overall:
        return f"No best rate: {'rates share no seed' if every else 'none above 0 was measured'}."
    ranked = sorted(overall, key=lambda rate: -overall[rate])
    best, last, claimed = ranked[0], max(ranked), paper.BEST_PRUNING_RATE
    told = f"Best rate above 0: paper {claimed:g}, measured {best:g} in the mean{seeds}"
    if len(ranked) > 1:
        told += f", {overall[best] - overall[ranked[1]]:.2f} points ahead of {ranked[1]:g}"
    if claimed in overall and claimed not in ranked[:2]:
        told += f" and {overall[best] - overall[claimed]:.2f} ahead of {claimed:g}"
    ties = f" {_ties(means, best)}" if len(ranked) > 1 else ""
    return f"{told}.{ties} From {best:g} to {last:g} accuracy falls by {overall[best] - overall[last]:.2f} points."


def _some_rate(runs: Runs) -> bool:
    """Whether anything but DP-SGD was measured."""
    return any(rate is not BASELINE for rate in runs)


def _gaps_in(runs: Runs) -> list[str]:
    missing = [rate for rate in (BASELINE, *RATES) if rate not in runs]
    return [f"Not measured: {', '.join(map(rate_name, missing))}."] if missing else []


PRUNING_CURVES = Artefact(
    name="pruning-curves",
    about="test accuracy over the epochs for pruning rates 0 to 0.9, MNIST at ε = 4",
    rows="paper/pruning.jsonl",
    draw=draw_curves,
    jobs=jobs,
)
PRUNING_SWEEP = Artefact(
    name="pruning-sweep",
    about="late test accuracy against the pruning rate with the DP-SGD line, MNIST at ε = 4",
    rows="paper/pruning.jsonl",
    draw=draw_sweep,
    jobs=jobs,
)
