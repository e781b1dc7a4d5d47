"""The search itself: run after run in memory, scored by private validation; the best so far is on disk, no other.

Nothing of a run that is not the best is ever written or shown: the guarantee is of the best alone.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from adadpigu.accounting import Budget
from adadpigu.accounting.repeating import Repeats
from adadpigu.config import RunConfig
from adadpigu.data import DataSet
from adadpigu.durable import writing
from adadpigu.errors import InputError, require
from adadpigu.runs.loading import load_data
from adadpigu.runs.reading import json_of
from adadpigu.runs.run import SUMMARY, check_free
from adadpigu.training.configured import configured, resolved
from adadpigu.training.distributed.job import current
from adadpigu.training.earlier import StartedRun, earlier_runs
from adadpigu.training.preparation import Preparation
from adadpigu.training.storing import store
from adadpigu.training.train import randomness_of, session
from adadpigu.tuning.draws import Draws, Terms, has_drawn

WORK = ".tuning"  # what is behind the name of the folder in which a search works


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is searched among, and how."""

    candidates: Sequence[RunConfig]
    repeats: Repeats
    budget: Budget

    def __post_init__(self) -> None:
        require(self.candidates, "candidates=[]; allowed: at least one")
        for config in self.candidates:
            for key, fits in (
                ("private_validation", config.private_validation is not None),
                ("noise_multiplier", config.noise_multiplier is None),
                ("ledger", config.ledger is None),
                ("diagnostics", not config.diagnostics),
                ("reproducible_noise", not config.reproducible_noise),
            ):
                told = f"{key}={getattr(config, key)!r} in a search: every run has the same budget and a private score"
                require(fits, f"{told}; allowed: {'a share, or test' if key == 'private_validation' else 'without it'}")
        same = {(config.dataset, config.records, config.private_validation) for config in self.candidates}
        require(len(same) == 1, "dataset and private_validation of a search: allowed: the same for all candidates")


def tune(search: Search, out: Path, *, resume: bool = False, told: Callable[[], object] = lambda: None) -> bool:
    """Makes the runs that are drawn and moves the best one's folder to `out`. False where none was drawn, or all lost.

    Formal guarantee: what `out` holds is (ε, δ)-differentially private at the budget of the search, for one record of
    the training and validation records together, provided nobody learns how many runs were made.
    """
    require(current().size == 1, "a search in several processes: its runs are made in one; allowed: without torchrun")
    check_free(out)
    work = out.with_name(out.name + WORK)
    data = load_data(search.candidates[0])
    first = _prepared(search, 0, data, search.repeats)
    terms = Terms(
        candidates=tuple(config.to_toml() for config in search.candidates),
        repeats=replace(search.repeats, run=first.plan),
        budget=search.budget,
    )
    for place in range(1, len(search.candidates)):  # what is refused, is refused before anything is drawn
        _prepared(search, place, data, terms.repeats)
    where = f"search={str(work)!r}"
    if not resume:
        require(not has_drawn(work), f"{where} has begun; allowed: --resume, which keeps its draw")
        with writing(work):
            work.mkdir(mode=0o700, parents=True, exist_ok=True)
    else:
        require(has_drawn(work), f"{where} has not begun; allowed: without --resume")
    draws = Draws.resume(work, terms) if resume else Draws.make(work, terms)
    _note_earlier(search, data, work)
    told()
    try:
        best = _made(search, terms, draws, work, data)
    finally:
        draws.close()
    if best is not None:
        with writing(out):
            best.replace(out)
    return best is not None


def _note_earlier(search: Search, data: DataSet, work: Path) -> None:
    """A later run of this process on the same records counts all runs of the search, as one."""
    where, spent = str(work), search.budget
    facts = {"run": where, "preparation": where, "dataset": data.name, "records": data.records, "ledger": None}
    earlier_runs.add(StartedRun(**facts, epsilon=spent.epsilon, delta=spent.delta))  # type: ignore[arg-type]


def _prepared(search: Search, place: int, data: DataSet, repeats: Repeats) -> Preparation:
    config = replace(search.candidates[place], epsilon=search.budget.epsilon, delta=search.budget.delta)
    try:
        return configured(config, data, repeats=repeats)
    except InputError as error:
        raise type(error)(f"candidate {place + 1} of {len(search.candidates)}: {error}") from None


def _made(search: Search, terms: Terms, draws: Draws, work: Path, data: DataSet) -> Path | None:
    """All runs that are left; the folder of the best one, of those that were made before a crash too."""
    for folder in work.glob("best-*"):  # one that a crash cut off while it was written is no best one
        if draws.best is None or folder.name != f"best-{draws.best}":
            shutil.rmtree(folder)
    best = None if draws.best is None else work / f"best-{draws.best}"
    for number in draws.left:
        place = draws.turns[number]
        draws.begin()
        better = _run(search, terms, place, data, best, work / f"best-{number}")
        draws.end(best=better is not best)
        if better is not best and best is not None:
            shutil.rmtree(best)
        best = better
    return best


def _run(search: Search, terms: Terms, place: int, data: DataSet, best: Path | None, folder: Path) -> Path | None:
    """One run of a candidate; the folder of whichever is best now."""
    prepared = _prepared(search, place, data, terms.repeats)
    config = resolved(replace(search.candidates[place], epsilon=search.budget.epsilon), prepared).to_toml()
    source = randomness_of(search.candidates[place].randomness, prepared)  # type: ignore[arg-type]
    with earlier_runs.isolated_history(), session(prepared, randomness=source, config=config) as begun:
        run = begun.run()
        if run.interrupted:
            raise KeyboardInterrupt
        assert run.validation is not None
        if best is not None and run.validation.right <= score_of(best):
            return best
        store(run, prepared, begun.ledger, folder, config)
    return folder


def score_of(folder: Path) -> float:
    """The noisy count by which a kept run was the best."""
    return float(json_of(folder, SUMMARY).values["private_validation"]["right"])
