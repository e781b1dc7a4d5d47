"""What a model card tells of a run: public facts, of a run at hand or read from a run folder.

A folder needs no model that can be built again, so runs that were started from Python have cards too. What a folder
says is a stranger's word: it is checked by type here and escaped where it is written.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from adadpigu.accounting import PrivacyReport
from adadpigu.errors import InputError, first_line
from adadpigu.export.evidence import check_run
from adadpigu.report.checking import fields_of
from adadpigu.report.loading import FACTS, facts_of, text_of
from adadpigu.runs.verifying import verified
from adadpigu.training.run import SUMMARY, Run

_TOLD = (
    *("model", "activation", "features", "normalisation", "optimizer", "lr", "lr_schedule", "warmup", "momentum"),
    *("weight_decay", "ema", "tail", "clipping", "copies", "shift", "flip", "precision"),
)
"""settings that a card tells; not among them: paths of the user's machine"""


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """A run as its card tells it."""

    privacy: PrivacyReport
    dataset: str
    accuracy: float | None
    """on test records, 0 to 1: the run's own word, which no other file of its folder bears out"""
    shape: tuple[int, ...] | None
    """of a record"""
    settings: Mapping[str, object] = field(default_factory=dict)
    """how it was trained, as far as it is known"""
    loadable: bool = False
    """whether the run folder alone is enough to build the model again"""


def facts_of_run(run: Run | CardFacts | Path | str) -> CardFacts:
    """The facts of a run at hand, or of the one in a folder."""
    if isinstance(run, CardFacts):
        return run
    if not isinstance(run, Run):
        return _facts_of_folder(Path(run))
    check_run(run)
    settings, shape, loadable = _known(run.folder)
    return CardFacts(
        privacy=run.privacy,
        dataset=run.dataset,
        accuracy=run.accuracy,
        shape=shape,
        settings=settings,
        loadable=loadable,
    )


def _facts_of_folder(folder: Path) -> CardFacts:
    privacy, record = verified(folder)
    summary = fields_of(text_of(folder, SUMMARY), f"run={str(folder)!r}: {SUMMARY}")
    settings, shape, loadable = _known(folder)
    return CardFacts(
        privacy=privacy,
        dataset=str(record.header["facts"].get("dataset")),
        accuracy=summary.number("test_accuracy", 0, 1),
        shape=shape,
        settings=settings,
        loadable=loadable,
    )


def _known(folder: Path | None) -> tuple[dict[str, object], tuple[int, ...] | None, bool]:
    """Settings, a record's shape, and whether the model has a name by which it can be built."""
    if folder is None:
        return {}, None, False
    shape = facts_of(folder).shape if (folder / FACTS).is_file() else None
    try:
        config = tomllib.loads(text_of(folder, "config.toml"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"run={str(folder)!r}: config.toml cannot be read: {first_line(error)}") from None
    method = config.get("method")
    options = {} if not isinstance(method, dict) else {k: v for k, v in method.items() if k != "name"}
    named = isinstance(config.get("model"), str) and ":" not in config["model"]
    return {**{key: config[key] for key in _TOLD if key in config}, **options}, shape, named
