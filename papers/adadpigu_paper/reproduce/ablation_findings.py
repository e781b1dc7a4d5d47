"""What follows from the ablation's compared rows, in words: how it was tuned, what beats DP-SGD, the paper's claim.

Counted are the variants that are AdaDPIGU with some of its parts; DP-SGD with another C and a mask by chance are not.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from adadpigu_paper.reproduce import paper
from adadpigu_paper.reproduce.ablation_variants import NETS, YARDSTICK, title_of
from adadpigu_paper.reproduce.jobs import Row


def findings(found: Sequence[Row]) -> list[str]:
    """Sentences, those about the tuning first: they bear on all that follow."""
    nets = [[row for row in found if row["net"] == net] for net in dict.fromkeys(row["net"] for row in found)]
    lines = [line for rows in nets if rows[0]["net"] in NETS for line in _tuning(rows)]
    for rows in nets:
        name = title_of(rows[0]["net"], rows[0]["model"], rows[0]["dataset"])
        tested = [row for row in rows if row["verdict"] != "not tested"]
        if not tested:
            lines.append(f"{name}: nothing could be tested; it takes two seeds of DP-SGD and of a variant.")
            continue
        for whole, what in ((False, "parts of AdaDPIGU"), (True, "the whole method")):
            lines += _against(name, what, [row for row in tested if row["whole"] == whole])
        if any(row["base_verdict"] != "not tested" for row in rows):
            better, worse = (_named(rows, "base_", sought) for sought in ("better", "worse"))
            lines.append(f"{name}, part by part: better than the base: {better}; worse: {worse}.")
        lines += _claim(name, tested)
    return lines


def _tuning(rows: Sequence[Row]) -> list[str]:
    """Which rates are at the edge of what was tried, and which are not the best of a grid that is complete by now."""
    net, lines = rows[0]["net"], []
    for edge, beyond in (("upper", "larger"), ("lower", "smaller")):
        there = [row for row in rows if row["edge"] == edge]
        if there:
            who = "" if len(there) == len(rows) else f" ({', '.join(row['variant'] for row in there)})"
            lines.append(
                f"{len(there)} of {len(rows)} variants of the {net} net at the {edge} edge of their grid{who}: "
                f"{_tried(there)}. A {beyond} rate may be better for them, and change their differences to others."
            )
    other = [row for row in rows if row["best_lr"] not in (None, row["lr"])]
    if other:
        who = ", ".join(f"{row['variant']} ({row['lr']:g}, best {row['best_lr']:g})" for row in other)
        lines.append(
            f"{len(other)} of {len(rows)} variants of the {net} net not at the best rate of their grid: {who}."
        )
    unknown = sum(not row["tried"] for row in rows)
    if unknown:
        lines.append(f"{unknown} of {len(rows)} variants of the {net} net: no held-out row tells how they were tuned.")
    return lines


def _tried(rows: Sequence[Row]) -> str:
    """The rates that were tried, of DP-SGD where it is among them: the others' are the same but for scale."""
    shown = next((row for row in rows if row["variant"] == YARDSTICK), rows[0])
    return f"{shown['variant']} was tried at {', '.join(f'{lr:g}' for lr in shown['tried'])}"


def _against(name: str, what: str, tested: Sequence[Row]) -> list[str]:
    """What differs from DP-SGD of one family, AdaDPIGU first, and what could not be seen."""
    if not tested:
        return []
    parts = [row for row in tested if row["of_adadpigu"]]
    others = [row for row in tested if not row["of_adadpigu"]]
    lines = []
    if parts:
        count = sum(row["verdict"] == "better" for row in parts)
        of = f"{len(parts)} variant{'' if len(parts) == 1 else 's'}"
        words = f"none of {of} beats DP-SGD significantly"
        if count:
            words = f"{count} of {of} beat DP-SGD significantly: "
            words += _named(parts, "", "better")
        lines.append(f"{name}, {what}: {words}; significantly worse: {_named(parts, '', 'worse')}.")
    if others:
        shown = ", ".join(f"{row['variant']} ({row['difference']:+.2f}, {row['verdict']})" for row in others)
        lines.append(f"{name}, beside them and no part of AdaDPIGU: {shown}.")
    needed = statistics.median(row["resolution"] for row in tested)
    lines.append(
        f"{name}, {what}: a difference of less than {needed:.2f} points (median) is not significant by itself among "
        f"{tested[0]['family']} comparisons with {_seeds(tested)} seeds; Holm's correction lets smaller ones count "
        "only beside larger ones that do."
    )
    return lines


def _seeds(tested: Sequence[Row]) -> str:
    pairs = sorted({row["pairs"] for row in tested})
    return "–".join(str(count) for count in dict.fromkeys((pairs[0], pairs[-1])))


def _named(rows: Sequence[Row], prefix: str, sought: str) -> str:
    """The variants of a verdict, each with its difference; `none` where there is none."""
    chosen = [row for row in rows if row[prefix + "verdict"] == sought]
    return ", ".join(f"{row['variant']} ({row[prefix + 'difference']:+.2f})" for row in chosen) or "none"


def _claim(name: str, tested: Sequence[Row]) -> list[str]:
    """The paper's claimed gain on this data set beside the largest that was measured with a part of AdaDPIGU."""
    printed = paper.ACCURACY.get(tested[0]["dataset"])
    parts = [row for row in tested if row["of_adadpigu"]]
    if printed is None or tested[0]["net"] not in NETS or not parts:
        return []
    ours, theirs = printed["adadpigu"][1], printed["dpsgd"][1]
    assert ours is not None
    assert theirs is not None
    best = max(parts, key=lambda row: row["difference"])
    whole = next((row for row in parts if row["variant"] == "whole"), None)
    itself = "" if whole is None else f" the whole method's is {whole['difference']:+.2f} ({whole['verdict']}),"
    return [
        f"{name}: the paper's table has AdaDPIGU {ours - theirs:+.2f} points from DP-SGD on this data set at ε = 4;"
        f"{itself} the largest difference of a variant of AdaDPIGU here is {best['difference']:+.2f} "
        f"({best['variant']}, {best['verdict']})."
    ]
