"""The figures of audits: what was seen (blue), against what is claimed or allowed (red). Each fills an empty figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from adadpigu.audit import p_values
from adadpigu.audit.p_values import Counts, Numbers
from adadpigu.audit.result import REFUTING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from adadpigu.audit.membership import Roc
    from adadpigu.audit.replay import ReplayResult
    from adadpigu.audit.watching import Taken

_BLUE, _RED = "#1b6ca8", "#c8553d"
_MOST_SHOWN = 10.0  # where bars end


def worlds(
    figure: Figure,
    *,
    without: Numbers,
    within: Numbers,
    bins: Numbers,
    labels: tuple[str, str],
    limits: Sequence[float],
    about: tuple[str, str],
    sigma: float | None = None,
) -> None:
    """Scores in the world without a canary and in the one with it, `limits` between them; with σ, as densities."""
    axes = figure.subplots()
    for values, mean, colour, label in zip((without, within), (0, 1), (_BLUE, _RED), labels, strict=True):
        axes.hist(values, bins=bins.tolist(), density=sigma is not None, color=colour, alpha=0.4, label=label)
        if sigma is not None:
            height = sigma * math.sqrt(2 * math.pi)
            axes.plot(bins, np.exp(-(((bins - mean) / sigma) ** 2) / 2) / height, color=colour)
    for limit in limits:
        axes.axvline(limit, color="gray", linestyle="--", linewidth=0.8)
    axes.set_ylim(top=axes.get_ylim()[1] * 1.3)  # room for the legend
    _finish(axes, *about)


def replay(figure: Figure, *, found: Mapping[str, ReplayResult]) -> None:
    """A bar a neighbour: how far it moved a sum, as a share of what was declared."""
    axes = figure.subplots()
    for place, result in enumerate(found.values()):
        share, bad = min(result.largest, _MOST_SHOWN), bool(result.breaches)
        axes.barh(place, share, color=_RED if bad else _BLUE, height=0.6)
        text = f"{result.largest:.6g}" + ("  breach" if bad else "")
        axes.annotate(text, (share, place), (4, 0), textcoords="offset points", fontsize=8, va="center")
    axes.axvline(1.0, color="gray", linewidth=1, linestyle="--")
    axes.set_yticks(range(len(found)), list(found))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.2 * max(1.0, *(min(result.largest, _MOST_SHOWN) for result in found.values())))
    axes.set_xlabel("largest move of a sum by one record, as a share of its declared sensitivity")
    axes.set_title("one record more or less: how far sums move (dashed: what is declared)", loc="left", fontsize=9)


def membership(figure: Figure, *, roc: Roc, epsilon: float, delta: float, marked: Sequence[float]) -> None:
    """The attack's ROC on logarithmic axes, below what (ε, δ) allows."""
    from adadpigu.audit.membership import allowed_rate

    axes, others = figure.subplots(), int(roc.others[-1])
    least = 0.5 / others
    kept = np.unique(np.searchsorted(roc.others, np.append(0, np.geomspace(1, others, 2000)), side="right") - 1)
    rates = np.geomspace(least, 1, 400)
    allowed = [allowed_rate(rate, epsilon, delta) for rate in rates]
    axes.plot(rates, allowed, color=_RED, label=f"the most that ε = {epsilon:.3g}, δ = {delta:g} allows")
    attack = np.maximum([roc.false_positives[kept], roc.true_positives[kept]], least)
    axes.plot(*attack, color=_BLUE, label=f"the attack, AUC {roc.area:.3f}")
    axes.plot(rates, rates, color="gray", linestyle="--", linewidth=0.8, label="guessing")
    for rate in marked:
        axes.plot(rate, max(roc.at(rate, 0.05)[1], least), "o", color=_BLUE, markersize=4)
    axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1.3))
    _finish(axes, "false positive rate (records that the model has not seen)", "true positive rate")


def sampler(figure: Figure, *, taken: Taken) -> None:
    """Sizes of draws, and how often records were drawn, against the binomial laws that they should follow."""
    left, right = figure.subplots(1, 2)
    (count, records), rate, name = taken.counts.shape, taken.draw.sample_rate, taken.draw.name
    _binomial(left, taken.sizes, records, rate)
    _binomial(right, taken.by_record, count, rate)
    _finish(left, f"records in a draw, {name}", "draws")
    _finish(right, f"draws that a record is in, {name}", "records")


def _binomial(axes: Axes, counts: Counts, trials: int, rate: float) -> None:
    from scipy.stats import binom

    reach = 5 * math.sqrt(trials * rate * (1 - rate)) + 1
    low = max(0, min(int(counts.min()), math.floor(trials * rate - reach)))
    high = min(trials, max(int(counts.max()), math.ceil(trials * rate + reach)))
    edges = np.arange(low, high + 2, dtype=np.float64) - 0.5
    _seen(axes, counts, edges, lambda middle: len(counts) * binom.pmf(middle, trials, rate), "Poisson sampling")
    axes.set_ylim(top=1.25 * axes.get_ylim()[1])  # room for the legend


def noise(figure: Figure, *, z: Numbers, products: Numbers, variances: Numbers) -> None:
    """Noise against N(0, 1), and the largest correlation with itself in each of some hundred ranges of lags."""
    left, right = figure.subplots(1, 2)
    edges = np.linspace(-6, 6, 97)
    scale = len(z) * (edges[1] - edges[0]) / math.sqrt(2 * math.pi)
    _seen(left, z, edges, lambda middle: scale * np.exp(-(middle**2) / 2), "N(0, 1)")
    left.set(yscale="log")
    left.set_ylim(bottom=0.5)
    pairs, lags = np.maximum(variances, 1), np.arange(1, len(products) + 1)
    strength = np.abs(products) / pairs
    limit = p_values.product_reach(variances, REFUTING * p_values.lag_shares(len(lags))) / pairs
    ranges = np.array_split(np.flatnonzero(pairs >= 0.02 * pairs.max()), 300)
    worst = [block[np.argmax(strength[block])] for block in ranges if len(block)]
    right.plot(lags[worst], strength[worst], ".", markersize=3, color=_BLUE, label="largest seen")
    right.plot(lags[worst], limit[worst], color=_RED, linewidth=1.2, label="not by chance (1e-6)")
    right.set_ylim(bottom=0)
    _finish(left, "noise over what is claimed", "numbers")
    _finish(right, "lag, numbers", "correlation")


def _seen(axes: Axes, values: Numbers | Counts, edges: Numbers, law: Callable[[Numbers], Numbers], name: str) -> None:
    middle = (edges[1:] + edges[:-1]) / 2
    axes.hist(values, bins=edges.tolist(), color=_BLUE, alpha=0.5, label="seen")
    axes.plot(middle, law(middle), color=_RED, linewidth=1.2, label=name)


def _finish(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend(frameon=False, fontsize=8)
