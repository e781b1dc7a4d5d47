"""What a finished run claims, and whether its own papers bear that out: privacy.json, ledger, config. All public.

The folder may be a stranger's: what it claims is checked, nothing in it is run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from adadpigu.accounting import LedgerRecord, epsilon, library_versions, read_ledger
from adadpigu.accounting.budget import check_delta
from adadpigu.accounting.ledger_reading import NAME
from adadpigu.audit.subject import Subject
from adadpigu.config import RunConfig, merge, read_config
from adadpigu.errors import InputError
from adadpigu.report.loading import refuse_code, text_of


def config_of_run(folder: Path, *, trust_code: bool = False) -> RunConfig:
    """The config of a finished run, at the δ of its claim and with the noise of its ledger."""
    if not (folder / NAME).is_file():
        raise InputError(f"run={str(folder)!r} has no {NAME}: nothing says what it spent; allowed: a run with a ledger")
    config = merge(read_config(folder / "config.toml"))
    if not trust_code:
        refuse_code(config, folder)
    delta = _claim(folder)[1]
    settings = _settings(read_ledger(folder / NAME))
    try:
        sigma = float(settings["noise_multiplier"])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise InputError(f"run={str(folder)!r}: its ledger does not tell the run's noise_multiplier") from None
    return replace(config, delta=delta, epsilon=None, noise_multiplier=sigma, reproducible_noise=False)


def claim_of_run(folder: Path, subject: Subject) -> Subject:
    """The subject that a run's config gave, with the run's own claim, which its papers have to bear out."""
    (claimed, delta), record = _claim(folder), read_ledger(folder / NAME)
    trained = _settings(record).get("model")
    if trained != subject.settings["model"]:
        raise InputError(
            f"run={str(folder)!r}: its config gives a model of {subject.settings['model']}, trained was one of "
            f"{trained}; allowed: a run of `adadpigu train`, whose model its config names"
        )
    findings = tuple(_contradictions(folder, record, subject, claimed, delta))
    assumed = tuple(_trusted(folder, record))
    return replace(subject, epsilon=claimed, findings=findings, assumed=assumed, ledger=record)


def _contradictions(
    folder: Path, record: LedgerRecord, subject: Subject, claimed: float, delta: float
) -> Iterator[str]:
    spent = epsilon(record.plan.event(), delta)
    if record.delta != delta:
        yield f"the claim is at delta={delta:g}, the ledger at delta={record.delta:g}"
    if spent > claimed * (1 + 1e-6):
        yield f"the plan on the ledger costs epsilon={spent:.6g}, above the claim of {claimed:.6g}"
    if record.plan != subject.plan:
        yield "the plan on the ledger is not the one that the run's config gives"
    if not all(life.secret for life in record.lives()):
        yield "noise was drawn that can be repeated: the ledger says that it was not secret"
    if sha256((folder / "config.toml").read_bytes()).hexdigest() != record.header["facts"].get("config"):
        yield "config.toml is not the one that the run began with"


def _trusted(folder: Path, record: LedgerRecord) -> Iterator[str]:
    """What an audit of today's code cannot know about a run of the past."""
    made, now = record.header["facts"].get("versions"), library_versions()
    yield "the run was made by this code" + (
        "" if made == now else f", though its ledger names {made}, and this is {now}"
    )
    if _stored(folder).get("diagnostics_exposed"):
        yield "diagnostics of the run were exposed: they are outside its guarantee"
    yield from (f"not covered by the run's own word: {confessed}" for confessed in record.confessed)


def _settings(record: LedgerRecord) -> dict[str, Any]:
    facts = record.header.get("facts")
    found = facts.get("settings") if isinstance(facts, dict) else None
    return found if isinstance(found, dict) else {}


def _claim(folder: Path) -> tuple[float, float]:
    """(ε, δ) as privacy.json has them."""
    where, claim = f"run={str(folder)!r}: privacy.json", _stored(folder)
    found, delta = _number(claim.get("epsilon_pld")), _number(claim.get("delta"))
    if delta is None:
        raise InputError(f"{where} claims an epsilon without a delta; allowed: delta, a number in (0, 1)")
    check_delta(delta)
    if found is None or not math.isfinite(found) or found < 0 or claim.get("private") is not True:
        raise InputError(f"{where} claims no privacy: there is nothing to audit; allowed: a private run")
    return found, delta


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _stored(folder: Path) -> dict[str, Any]:
    try:
        stored = json.loads(text_of(folder, "privacy.json"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"run={str(folder)!r}: privacy.json is not JSON; allowed: as `adadpigu train` wrote it"
        ) from None
    return stored if isinstance(stored, dict) else {}
