"""The ablation as a page: for each net a table against DP-SGD, one against the bases, and what follows, in words.

Every word that depends on a result is computed from the rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from adadpigu.reproduce import paper
from adadpigu.reproduce.ablation_comparing import compared
from adadpigu.reproduce.ablation_figure import forest
from adadpigu.reproduce.ablation_tuning import parted
from adadpigu.reproduce.ablation_variants import NETS, VARIANTS, YARDSTICK, title_of
from adadpigu.reproduce.artefact import Drawn
from adadpigu.reproduce.jobs import Row
from adadpigu.reproduce.keeping import tabled
from adadpigu.reproduce.paired import LEVEL
from adadpigu.reproduce.stand_in import told


def draw(rows: Sequence[Row]) -> Drawn:
    """Words, then a table a net against DP-SGD and one against the bases, and a forest plot."""
    found = compared(rows)
    nets = list(dict.fromkeys(row["net"] for row in found))
    missing = [net.title for net in NETS.values() if net.name not in nets]
    text = "# Ablation: which part of AdaDPIGU helps\n\n" + _protocol() + "\n"
    for net in nets:
        text += _section(net, [row for row in found if row["net"] == net], rows)
    text += "\n## In short\n\n" + "\n".join(f"- {line}" for line in _short(found, nets)) + "\n"
    if missing:
        text += f"- Not measured: {'; '.join(missing)}.\n"
    return Drawn(markdown=text, rows=found, figures={"ablation": forest(found)} if found else {})


def _protocol() -> str:
    return (
        "Every variant trains the same net with the same budget, batches (Poisson) and number of steps, and scores the "
        "running average of its last iterates once, on the test set. Learning rates were chosen on held-out training "
        "records, from as many for each variant (`ablation-tuning`; (e): at the edge of its grid). A seed fixes the "
        "initial weights, so differences are paired by seed: mean with 95 % interval of Student's t, each by itself; p "
        f"is two-sided, after Holm's correction over the comparisons of a table; a verdict needs p < {LEVEL:g}. Noise "
        "and batches are drawn afresh in every run. By chance (mask-random) the share is fixed before the first step, "
        "while importance takes a stage 1, a tenth of the steps, in which all coordinates are trained.\n"
    )


def _section(net: str, found: Sequence[Row], rows: Sequence[Row]) -> str:
    runs = [row for row in rows if parted(row)[0] == net]
    text = f"\n## {_title(found)}\n\n{_setting(runs)}\n\n"
    head = ["variant", "what it is", "lr", "accuracy, %", "− DP-SGD, points", "p (Holm)", "verdict"]
    body = [
        [
            row["variant"],
            _about(row["variant"]),
            f"{row['lr']:g}" + (" (e)" if row["edge"] else ""),
            _spread(row),
            *(_comparison(row, "") if row["variant"] != YARDSTICK else ["", "", "yardstick"]),
        ]
        for row in found
    ]
    text += tabled(head, body) + "\n"
    parts = [row for row in found if row["base"] not in (None, YARDSTICK)]
    if parts:
        body = [[row["part"], row["variant"], row["base"], *_comparison(row, "base_")] for row in parts]
        head = ["part", "variant", "its base", "− base, points", "p (Holm)", "verdict"]
        text += (
            "\nOne part at a time, against the variant that differs in nothing else:\n\n" + tabled(head, body) + "\n"
        )
    return text


def _title(found: Sequence[Row]) -> str:
    return title_of(found[0]["net"], found[0]["model"], found[0]["dataset"])


def _about(name: str) -> str:
    variant = VARIANTS[name]
    return variant.about if variant.base in (None, YARDSTICK) else f"{variant.base}: {variant.about}"


def _setting(runs: Sequence[Row]) -> str:
    """The run in words, from what the rows say."""
    config = runs[0]["config"]
    spent = max(row["epsilon"] for row in runs)
    devices = ", ".join(sorted({str(row["device"]) for row in runs}))
    words = (
        f"ε = {config['epsilon']:g} (PLD; at most {spent:.3f} spent), δ = {config['delta']:g}, "
        f"B = {config['batch_size']}, T = {config['steps']}, average {config['ema']:g}, "
        f"σ = {runs[0]['noise_multiplier']:.3f}, on {devices}."
    )
    if parted(runs[0])[0] in NETS:
        return words
    stands_in = told(config, "fashion-mnist")
    return f"{words} One rate for all, not tuned." + ("" if stands_in is None else f" {stands_in}.")


def _spread(row: Row) -> str:
    spread = "one run" if row["std"] is None else f"± {row['std']:.2f}, {row['seeds']} seeds"
    return f"{row['mean']:.2f} ({spread})" if row["std"] is None else f"{row['mean']:.2f} {spread}"


def _comparison(row: Row, prefix: str) -> list[str]:
    difference, low, high, p = (row[prefix + key] for key in ("difference", "low", "high", "p_holm"))
    if difference is None:
        return ["not measured", "", row[prefix + "verdict"]]
    interval = "" if low is None else f" [{low:+.2f}, {high:+.2f}]"
    return [f"{difference:+.2f}{interval}", "" if p is None else _chance(p), row[prefix + "verdict"]]


def _chance(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _short(found: Sequence[Row], nets: Sequence[str]) -> list[str]:
    """What follows from the rows, in words."""
    lines = []
    for net in nets:
        rows = [row for row in found if row["net"] == net]
        tested = [row for row in rows if row["verdict"] != "not tested"]
        name = _title(rows)
        if not tested:
            lines.append(f"{name}: nothing could be tested; it takes two seeds of DP-SGD and of a variant.")
            continue
        lines.append(f"{name}: {_beating(tested)}")
        if any(row["base_verdict"] != "not tested" for row in rows):
            better, worse = (_named(rows, "base_", sought) for sought in ("better", "worse"))
            lines.append(f"{name}, part by part: better than the base: {better}; worse: {worse}.")
        lines += _claim(name, tested)
    return lines


def _beating(tested: Sequence[Row]) -> str:
    count = sum(row["verdict"] == "better" for row in tested)
    words = f"none of {len(tested)} variants beats DP-SGD significantly"
    if count:
        words = f"{count} of {len(tested)} variants beat DP-SGD significantly: {_named(tested, '', 'better')}"
    width = statistics.median((row["high"] - row["low"]) / 2 for row in tested)
    return (
        f"{words}; significantly worse: {_named(tested, '', 'worse')}. Half an interval is {width:.2f} points "
        "(median): what is smaller than that cannot be seen with so few seeds."
    )


def _named(rows: Sequence[Row], prefix: str, sought: str) -> str:
    """The variants of a verdict, each with its difference; `none` where there is none."""
    chosen = [row for row in rows if row[prefix + "verdict"] == sought]
    return ", ".join(f"{row['variant']} ({row[prefix + 'difference']:+.2f})" for row in chosen) or "none"


def _claim(name: str, tested: Sequence[Row]) -> list[str]:
    """The paper's claimed gain on this data set beside the largest that was measured."""
    printed = paper.ACCURACY.get(tested[0]["dataset"])
    if printed is None or tested[0]["net"] not in NETS:
        return []
    ours, theirs = printed["adadpigu"][1], printed["dpsgd"][1]
    assert ours is not None
    assert theirs is not None
    best = max(tested, key=lambda row: row["difference"])
    return [
        f"{name}: the paper's table has AdaDPIGU {ours - theirs:+.2f} points from DP-SGD on this data set at ε = 4; "
        f"the largest difference here is {best['difference']:+.2f} ({best['variant']}, {best['verdict']})."
    ]
