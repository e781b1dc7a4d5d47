"""The ablation as a page: for each net a table against DP-SGD, one against the bases, and what follows, in words.

Every word that depends on a result is computed from the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from adadpigu_paper.reproduce.ablation_comparing import compared
from adadpigu_paper.reproduce.ablation_figure import forest
from adadpigu_paper.reproduce.ablation_findings import findings
from adadpigu_paper.reproduce.ablation_tuning import parted
from adadpigu_paper.reproduce.ablation_variants import NETS, VARIANTS, YARDSTICK, title_of
from adadpigu_paper.reproduce.artefact import Drawn
from adadpigu_paper.reproduce.jobs import Row
from adadpigu_paper.reproduce.keeping import tabled
from adadpigu_paper.reproduce.paired import LEVEL
from adadpigu_paper.reproduce.stand_in import told


def draw(rows: Sequence[Row]) -> Drawn:
    """Words, then a table a net against DP-SGD and one against the bases, and a forest plot."""
    held_out = [row for row in rows if row.get("score") == "held-out"]
    tests = [row for row in rows if row.get("score") != "held-out"]
    found = compared(tests, held_out)
    nets = list(dict.fromkeys(row["net"] for row in found))
    missing = [net.title for net in NETS.values() if net.name not in nets]
    text = "# Ablation: which part of AdaDPIGU helps\n\n" + _protocol() + "\n"
    for net in nets:
        text += _section(net, [row for row in found if row["net"] == net], tests)
    lines = [*findings(found), *([f"Not measured: {'; '.join(missing)}."] if missing else [])]
    text += "\n## In short\n\n" + "".join(f"- {line}\n" for line in lines)
    return Drawn(markdown=text, rows=found, figures={"ablation": forest(found)} if found else {})


def _protocol() -> str:
    return (
        "Every variant trains the same net with the same budget, batches (Poisson) and number of steps, and scores the "
        "running average of its last iterates once, on the test set. Learning rates were chosen on held-out training "
        "records, from as many for each variant (`ablation-tuning`; (e): the largest or smallest that was tried). A "
        "seed fixes the initial weights, so differences are paired by seed: mean with 95 % interval of Student's t, "
        "each by itself and not corrected; p is two-sided, after Holm's correction over the comparisons of a table, "
        "those of the whole method (`whole` and its variants) apart from those of single parts; a "
        f"verdict needs p < {LEVEL:g}, so that an interval may exclude 0 where no difference is shown. Noise and "
        "batches are drawn afresh in every run.\n"
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
        words = "One part at a time, against the variant that differs in nothing else but the rate chosen for it:"
        text += f"\n{words}\n\n{tabled(head, body)}\n"
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
    return [f"{difference:+.2f}{interval}", "" if p is None else _chance(p), _verdict(row, prefix)]


def _verdict(row: Row, prefix: str) -> str:
    """The verdict; where the interval by itself would say otherwise, why it is not."""
    told, low, high = (row[prefix + key] for key in ("verdict", "low", "high"))
    if told == "no difference shown" and (low > 0 or high < 0):
        return f"{told}: its own interval excludes 0; not significant among {row[prefix + 'family']}"
    return str(told)


def _chance(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
