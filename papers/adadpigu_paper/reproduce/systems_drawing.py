"""The page of systems: a table a data set, what follows in words, and two questions that are asked of GEP and DPIS.

Every word that depends on a result is computed from the cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase

from adadpigu.config import merge, read_preset
from adadpigu_paper.reproduce import paper
from adadpigu_paper.reproduce.accuracy_table import Cell
from adadpigu_paper.reproduce.keeping import tabled
from adadpigu_paper.reproduce.paired import LEVEL
from adadpigu_paper.reproduce.systems import EPSILONS, LOCAL, OTHER_INPUTS, SYSTEMS, Compared, preset_of
from adadpigu_paper.reproduce.systems_claims import claims

_MARKS = {"better": "better", "worse": "worse", "no difference shown": "=", "not tested": ""}


def page(found: Sequence[Compared], *, quick: bool) -> str:
    """The whole page."""
    printed = [claim for dataset in paper.TITLES for name in SYSTEMS for claim in claims(name, dataset)]
    notes = list(dict.fromkeys(claim.note for claim in printed))
    text = f"# Every system that the paper names\n\n{_protocol(quick)}\n"
    for dataset in paper.TITLES:
        here = [one for one in found if one.cell.dataset == dataset]
        if not quick or any(one.cell.found for one in here):
            text += f"\n## {paper.TITLES[dataset]}\n\n{_table(here, notes)}\n"
    text += "\nWhose figures, and how their ε was accounted:\n\n"
    text += "".join(f"- [{mark}] {note}.\n" for mark, note in zip(ascii_lowercase, notes, strict=False))
    text += "\n## In short\n\n" + "".join(f"- {line}\n" for line in _in_short(found))
    text += "\n## GEP against DP-SGD\n\n" + _pairs(found, "gep", (4, 8))
    text += "\n## DPIS at equal sampling rate and at about equal records kept\n\n" + _importance(found)
    text += "\n## FedSel: local privacy\n\n" + _local(found)
    return text


def _protocol(quick: bool) -> str:
    if quick:
        return "**A quick version: some steps a run, on what is at hand, to see that all works; figures mean nothing.**"
    return (
        "Test accuracy in percent, mean ± standard deviation over runs (how many, in brackets), at δ = 1e-5; exact "
        "Poisson sampling, ε by PLD over all stages, add or remove one record; last or averaged iterate. Beside it the "
        "difference from DP-SGD with the same net, inputs and ε, with a 95 % interval (Welch); *better* and *worse* "
        f"need p < {LEVEL:g} after Holm's correction over all differences on this page, = is no difference shown. "
        "A difference that is shown among fewer elsewhere may not be shown here. "
        "Presets of systems have DP-SGD's net, batches and steps; *tried* is how many settings were compared on about "
        "5,000 held-out training records (docs/tuning.md). Two systems train another net, on features: they stand "
        "beside DP-SGD on pixels. Claims are at their own ε."
    )


def _table(found: Sequence[Compared], notes: Sequence[str]) -> str:
    by_key = {(one.cell.method, one.cell.epsilon): one for one in found}
    columns = [text for epsilon in EPSILONS for text in (f"ε = {epsilon}, %", "− DP-SGD, points [95 %]")]
    lines = []
    for name in SYSTEMS:
        cells = [by_key.get((name, epsilon)) for epsilon in EPSILONS]
        shown = [text for one in cells for text in (_accuracy(None if one is None else one.cell), _difference(one))]
        printed = claims(name, found[0].cell.dataset)
        claimed = ", ".join(claim.told(ascii_lowercase[notes.index(claim.note)]) for claim in printed)
        tried = "/".join(f"{one.cell.tuned.grid or '–'}{one.cell.tuned.marks()}" for one in cells if one is not None)
        lines.append([_named(name, cells), *shown, claimed or "–", tried or "–"])
    return tabled(["system", *columns, "claimed, % at ε", "tried"], lines)


def _named(name: str, cells: Sequence[Compared | None]) -> str:
    against = {one.beside.method for one in cells if one is not None and one.beside is not None} - {"dpsgd"}
    return f"`{name}`" + "".join(f", beside `{other}`" for other in against)


def _accuracy(cell: Cell | None) -> str:
    if cell is None:
        return "no preset"
    if cell.mean is None:
        return "not measured"
    return f"{cell.mean:.2f}{'' if cell.std is None else f' ± {cell.std:.2f}'} ({len(cell.found)})"


def _difference(one: Compared | None) -> str:
    if one is None or one.found is None:
        return "–"
    assert one.found.low is not None
    return f"{one.found.mean:+.2f} [{one.found.low:+.2f}, {one.found.high:+.2f}] {_MARKS[one.verdict]}".rstrip()


def _in_short(found: Sequence[Compared]) -> list[str]:
    """Who is better and worse at each ε, and what is missing."""
    lines = []
    for epsilon in EPSILONS:
        tested = [one for one in found if one.cell.epsilon == epsilon and one.verdict != "not tested"]
        if not tested:
            lines.append(f"ε = {epsilon}: nothing is measured yet.")
            continue
        same = [one for one in tested if one.cell.method not in OTHER_INPUTS]
        parts = [f"{word} {_listed([one for one in same if one.verdict == word])}" for word in ("better", "worse")]
        equal = sum(one.verdict == "no difference shown" for one in same)
        lines.append(
            f"ε = {epsilon}, with the same net and inputs: {'; '.join(parts)}; no difference shown in {equal} of "
            f"{len(same)} cells."
        )
    missing = sorted({one.cell.method for one in found if not one.cell.found and one.cell.epsilon in EPSILONS})
    return [*lines, *([f"Not measured in all cells: {', '.join(missing)}."] if missing else [])]


def _listed(cells: Sequence[Compared]) -> str:
    by_name: dict[str, list[str]] = {}
    for one in cells:
        assert one.found is not None
        by_name.setdefault(one.cell.method, []).append(f"{paper.TITLES[one.cell.dataset]} {one.found.mean:+.2f}")
    return ", ".join(f"{name} ({', '.join(parts)})" for name, parts in by_name.items()) or "none"


def _pairs(found: Sequence[Compared], name: str, epsilons: Sequence[int]) -> str:
    lines = [
        [*_place(one), _accuracy(one.cell), _accuracy(one.beside), _difference(one)]
        for one in found
        if one.cell.method == name and one.cell.epsilon in epsilons
    ]
    return tabled(["data set", "ε", name, "dpsgd", "difference, points [95 %]"], lines) + "\n"


def _place(one: Compared) -> list[str]:
    return [paper.TITLES[one.cell.dataset], str(one.cell.epsilon)]


def _importance(found: Sequence[Compared]) -> str:
    """DPIS with the sampling rate of DP-SGD, and with one at which its coins keep about as many records."""
    lines = []
    for one in found:
        if one.cell.method in ("dpis", "dpis-kept"):
            assert one.cell.epsilon is not None
            key = one.cell.dataset, one.cell.epsilon
            own, plain = (merge(read_preset(preset_of(name, *key))).batch_size for name in (one.cell.method, "dpsgd"))
            how = "equal q" if own == plain else "about equal records kept"
            lines.append([*_place(one), how, f"{own:,}", f"{plain:,}", _accuracy(one.cell), _difference(one)])
    head = ["data set", "ε", "compared at", "records drawn, DPIS", "DP-SGD", "dpis, %", "− DP-SGD, points [95 %]"]
    told = "What share of drawn records the coins keep: `adadpigu reproduce kept-share`."
    return f"{tabled(head, lines)}\n\n{told}\n"


def _local(found: Sequence[Compared]) -> str:
    lines = [[*_place(one), _accuracy(one.cell)] for one in found if one.cell.method == LOCAL]
    told = (
        "Another guarantee, without a curator: ε of each report, one report a user, softmax regression on pixels. Not "
        "on the axis of central ε, so beside nothing."
    )
    return f"{told}\n\n{tabled(['data set', 'ε a report (local)', 'accuracy, %'], lines)}\n"
