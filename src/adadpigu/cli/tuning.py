"""`adadpigu tune`: settings chosen on private records, all runs and the choice charged as one event."""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from adadpigu.accounting import Budget
from adadpigu.accounting.repeating import Law, Repeats
from adadpigu.accounting.wording import rounded_up
from adadpigu.cli.commands import PRESETS, Json, with_settings
from adadpigu.cli.training_settings import configure, method_options, read_flags, refuse_idle
from adadpigu.config import GROUPS, SETTINGS, RunConfig, read_flag
from adadpigu.console import notes, number, print_error, print_json, print_line, print_warning, screen, table
from adadpigu.errors import InputError, require
from adadpigu.runs.reading import json_of
from adadpigu.runs.run import SUMMARY

_SHARE = 0.1  # of the records, held out for the scores unless told otherwise
_ELSEWHERE = ("ledger", "diagnostics", "reproducible_noise", "noise_multiplier", "evaluate_every", "checkpoint_every")
_TUNED = tuple(field.name for field in SETTINGS if field.name not in _ELSEWHERE and field.name != "reserve")


@with_settings(
    *_TUNED,
    epsilon="ε of all runs and the choice among them together. Needed.",
    private_validation="Share of the records held out for the scores; or test. [0.1]",
)
def tune(
    context: typer.Context,
    *,
    out: Annotated[Path, typer.Option(help="Folder for the best run; the search works beside it, in OUT.tuning.")],
    choose: Annotated[
        list[str] | None, typer.Option(help="NAME=A,B,…: a setting or an option of the method; repeatable.")
    ] = None,
    mean_runs: Annotated[float, typer.Option(help="How many runs are made on average; how many is drawn.")] = 8.0,
    law: Annotated[str, typer.Option(help="By which law they are drawn: geometric, or poisson.")] = "geometric",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a search that was ended; its draw stays.")
    ] = False,
    preset: Annotated[
        str | None, typer.Option(help="See `adadpigu presets`.", rich_help_panel=GROUPS[0], autocompletion=PRESETS)
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file; flags win over it.", rich_help_panel=GROUPS[0])
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE, an option of the method.", rich_help_panel=GROUPS[5]),
    ] = None,
    as_json: Json = False,
    **settings: object,
) -> int:
    """Tries settings under one budget. Keeps the best run by a private score.

    How many runs are made is drawn beforehand and told to nobody; one event covers them and the choice. Only the best
    one's folder is kept, and no score of another is shown.
    """
    from adadpigu.tuning import Search
    from adadpigu.tuning import tune as search_for

    flags = {**read_flags(settings), "method_options": method_options(option or [], context.args, {})}
    said = (flags["epsilon"], preset, config)  # a preset that nobody named is nobody's budget
    require(any(said), "epsilon=None: a search needs a budget for all of its runs; allowed: --epsilon E")
    candidates = [_configured(flags, chosen, preset, config) for chosen in _choices(choose or [])]
    epsilon = candidates[0].epsilon
    if epsilon is None:
        raise InputError("epsilon=None: a search needs a budget for all of its runs; allowed: --epsilon E")
    search = Search(
        candidates=candidates,
        repeats=Repeats(law=cast(Law, law), mean=mean_runs),
        budget=Budget(epsilon=epsilon, delta=candidates[0].delta),
    )

    def tell() -> None:
        told = f"ε = {rounded_up(epsilon)} at δ = {search.budget.delta:g} is reserved for all runs"
        print_line(f"searching among {len(candidates)} candidates, {mean_runs:g} runs on average; {told}", notes())

    if not search_for(search, out, resume=resume, told=tell):
        print_error("no run came to its end, so there is none to keep; the budget of the search is spent")
        return 1
    _draw_page(out)
    found = json_of(out, SUMMARY).values
    if as_json:
        print_json({**found, "run": str(out), "candidates": len(candidates), "repeats": search.repeats.to_json()})
        return 0
    score = found["private_validation"]
    rows = [
        ["accuracy on private records", f"{score['accuracy']:.2%} (noisy, and the best of several)"],
        ["ε of all runs", rounded_up(found["epsilon"])],
        ["δ", f"{found['delta']:g}"],
        ["noise multiplier σ", number(found["noise_multiplier"])],
    ]
    screen().print(table(["", ""], rows))
    print_line(f"\nThe best run is in {out}: its config.toml has the settings.")
    return 0


def _draw_page(out: Path) -> None:
    from adadpigu.report.page import write_run_page

    try:
        write_run_page(out)
    except Exception as error:  # a page must not cost a search its table
        print_warning(f"report could not be drawn: {type(error).__name__}: {error}")


def _choices(pairs: list[str]) -> list[dict[str, str]]:
    """Every combination of the values that are given.

    >>> _choices(["lr=0.1,1", "clip_norm=2"])
    [{'lr': '0.1', 'clip_norm': '2'}, {'lr': '1', 'clip_norm': '2'}]
    """
    found: dict[str, list[str]] = {}
    for pair in pairs:
        name, equals, values = pair.partition("=")
        key = name.strip().replace("-", "_")
        listed = [value.strip() for value in values.split(",")]
        told = f"--choose {pair!r} is not NAME=A,B,…"
        require(equals and key and all(listed), f"{told}, e.g. --choose lr=0.1,0.3,1")
        require(key not in found and len({*listed}) == len(listed), f"--choose {pair!r} says something twice")
        found[key] = listed
    return [dict(zip(found, each, strict=True)) for each in itertools.product(*found.values())]


def _configured(
    flags: Mapping[str, Any], chosen: Mapping[str, str], preset: str | None, config: Path | None
) -> RunConfig:
    """The settings of one candidate: those of all, and what is chosen of it."""
    known = {key for key in chosen if key in _TUNED}
    own = {key: value for key, value in chosen.items() if key not in known}
    require(not {*own} & {*_ELSEWHERE}, f"--choose {', '.join(own)}: it is no choice that a score could make")
    for key in known:
        told = f"{key}={flags[key]} and --choose {key}: give one of them, not both"
        require(flags.get(key) is None, told)
    given = {**flags, **{key: read_flag(key, chosen[key]) for key in known}}
    given["method_options"] = {**flags["method_options"], **own}
    found = configure(given, preset=preset, config=config)
    refuse_idle(given, found)
    return found if found.private_validation is not None else replace(found, private_validation=_SHARE)
