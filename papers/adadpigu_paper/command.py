"""`adadpigu reproduce`: the paper's tables and figures, measured by this code and drawn beside the paper's claims."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markdown import Markdown

from adadpigu.cli.commands import Interrupted, Json, add
from adadpigu.console import count_progress, notes, print_error, print_json, print_warning, screen
from adadpigu.errors import InputError, unknown

if TYPE_CHECKING:
    from adadpigu_paper.reproduce.artefact import Artefact, Drawn, Scale
    from adadpigu_paper.reproduce.crew import Crew
    from adadpigu_paper.reproduce.jobs import Row

_MOST_WORKERS, _MOST_SEEDS = 64, 1000


def reproduce(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="noise-table, accuracy-table, pruning-curves, budget-curve, pruning-sweep, batch-tradeoff, "
            "gradient-histogram, energy, theory, retention-time, retention, ablation-tuning, ablation, systems, "
            "kept-share, frontier, frontier-regimes, or all of them. Several share one queue of runs.",
            show_default=False,
        ),
    ],
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Small: minutes on two cores, no network, digits for what is not cached."),
    ] = False,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FOLDER", help="Draw what was measured before; nothing is trained.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for rows, tables and figures. [reproduced/…, or FOLDER of --from]")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs of each setting. [quick: 1; else the artefact's own]")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, …")] = "auto",
    workers: Annotated[int | None, typer.Option(help="Processes that train at once. [CPU: its cores; GPU: 1]")] = None,
    seconds: Annotated[float | None, typer.Option(help="Begin no run after so long; a later call goes on.")] = None,
    as_json: Json = False,
) -> int:
    """Regenerates a table or figure of the paper. Shows it next to the paper's claims.

    Measuring appends a row for each run to a file, and a further call measures only what is missing there.
    --from results draws the tables of the runs that come with the source code.
    """
    from adadpigu_paper.reproduce import ARTEFACTS
    from adadpigu_paper.reproduce.artefact import Scale
    from adadpigu_paper.reproduce.keeping import rows_of, write

    for name in names:
        if name != "all" and name not in ARTEFACTS:
            raise unknown("artefact", name, [*ARTEFACTS, "all"])
    every = "all" in names
    _check(quick, source, seeds, workers, seconds)
    folder = source if source is not None else out or Path("reproduced") / ("quick" if quick else "full")
    chosen = list(ARTEFACTS.values()) if every else [ARTEFACTS[name] for name in dict.fromkeys(names)]
    summaries, lost = [], 0
    if source is None:
        crew = _crew(device, workers, seconds or float("inf"))
        try:
            lost += _measure(chosen, Scale(quick=quick, seeds=seeds), folder, crew)
        except KeyboardInterrupt:
            print_error(f"interrupted: what was measured is in {folder}; the same command goes on there")
            return Interrupted(130)
    for artefact in chosen:
        rows = folder / artefact.rows
        if not rows.exists() and (len(chosen) > 1 or source is None):
            print_warning(f"{artefact.name} is not drawn: there is no {rows}")
            lost += source is not None
            continue
        drawn = artefact.draw(rows_of(artefact, folder))
        written = write(artefact.name, drawn, out or folder)
        summaries.append(_summary(artefact, drawn, written))
        if not as_json:
            _show(artefact, drawn, written)
    if as_json:
        print_json(summaries[0] if len(chosen) == 1 and summaries else {"artefacts": summaries})
    return 1 if lost else 0


def _check(quick: bool, source: Path | None, seeds: int | None, workers: int | None, seconds: float | None) -> None:
    """Refuses what makes no sense together, before anything is measured."""
    if source is not None:
        for option, value in (("quick", quick or None), ("seeds", seeds), ("workers", workers), ("seconds", seconds)):
            if value is not None:
                raise InputError(f"{option}={value} with --from {source}: nothing is measured; allowed: one of them")
        if not source.is_dir():
            raise InputError(
                f"from={str(source)!r} is not a folder of results; allowed: one that `adadpigu reproduce` wrote"
            )
    for option, given, most in (("seeds", seeds, _MOST_SEEDS), ("workers", workers, _MOST_WORKERS)):
        if given is not None and not 1 <= given <= most:
            raise InputError(f"{option}={given} is not from 1 to {most}")
    if seconds is not None and not 0 < seconds < float("inf"):
        raise InputError(f"seconds={seconds} is not a finite number above 0")


def _crew(device: str, workers: int | None, begin_within: float) -> Crew:
    from adadpigu.training.options import TrainingOptions
    from adadpigu_paper.reproduce.crew import Crew

    kind = TrainingOptions(steps=1, device=device).torch_device().type
    several = 1 if kind == "cuda" else min(os.cpu_count() or 1, _MOST_WORKERS)
    return Crew(device=device, workers=workers or several, begin_within=begin_within)


def _measure(artefacts: Sequence[Artefact], scale: Scale, folder: Path, crew: Crew) -> int:
    """Measures what is missing and tells what could not be; returns how many runs that were."""
    from adadpigu_paper.reproduce.keeping import measure

    with count_progress(notes(), artefacts[0].name if len(artefacts) == 1 else "runs") as progress:
        lost = measure(artefacts, scale, folder, crew, progress)
    failed: Sequence[Row] = [row for row in lost if "failed" in row]
    if failed:
        print_warning(f"{len(failed)} runs failed; the first, {failed[0]['name']}: {failed[0]['failed']}")
    if len(lost) > len(failed):
        print_warning(f"{len(lost) - len(failed)} runs were not begun: no time left")
    return len(lost)


def _summary(artefact: Artefact, drawn: Drawn, written: list[Path]) -> dict[str, object]:
    return {
        "artefact": artefact.name,
        "rows": list(drawn.rows),
        "diagnostics": drawn.exposed,
        "files": [str(path) for path in written],
    }


def _show(artefact: Artefact, drawn: Drawn, written: list[Path]) -> None:
    from adadpigu_paper.reproduce.artefact import STAMP

    screen().print(f"[bold]{artefact.name}[/]: {artefact.about}", soft_wrap=True)
    if drawn.exposed:
        screen().print(f"[red]{STAMP}[/]", soft_wrap=True)
    screen().print(Markdown(drawn.markdown))
    screen().print(f"\nwritten: {', '.join(map(str, written))}\n", soft_wrap=True, markup=False)


def add_to(program: typer.Typer) -> None:
    """Adds the command of this file."""
    add(program, reproduce, "adadpigu reproduce noise-table --quick")
