"""What a finished run claims, and whether its own papers bear that out: privacy.json, ledger, config. All public.

The folder may be a stranger's: what it claims is checked, nothing in it is run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from adadpigu.accounting import LedgerRecord, epsilon, library_versions, read_ledger
from adadpigu.accounting.ledger_reading import NAME as LEDGER
from adadpigu.accounting.plan import check_delta
from adadpigu.audit.subject import Subject
from adadpigu.config import RunConfig, merge, parse
from adadpigu.errors import require
from adadpigu.runs.loading import refuse_code
from adadpigu.runs.reading import CONFIG, PRIVACY, Fields, file_of, json_of, text_of
from adadpigu.runs.run import says


def config_of_run(folder: Path, *, trust_code: bool = False) -> RunConfig:
    """The config of a finished run, at the δ of its claim and with the noise of its ledger."""
    settings = Fields(_settings(read_ledger(file_of(folder, LEDGER))), f"run={str(folder)!r}: {LEDGER}")
    config = merge(parse(text_of(folder, CONFIG), str(folder / CONFIG)))
    if not trust_code:
        refuse_code(config, folder)
    delta, sigma = _claim(folder)[1], settings.number("noise_multiplier", 0)
    settings.check(sigma is not None, "noise_multiplier", "a number of at least 0")
    return replace(config, delta=delta, epsilon=None, noise_multiplier=sigma, reproducible_noise=False)


def claim_of_run(folder: Path, subject: Subject) -> Subject:
    """The subject that a run's config gave, with the run's own claim, which its papers have to bear out."""
    (claimed, delta), record = _claim(folder), read_ledger(file_of(folder, LEDGER))
    trained = _settings(record).get("model")
    require(
        trained == subject.settings["model"],
        f"run={str(folder)!r}: its config gives a model of {subject.settings['model']}, trained was one of {trained}; "
        "allowed: a run of `adadpigu train`, whose model its config names",
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
    if not all(life.secret for life in record.sessions()):
        yield "noise was drawn that can be repeated: the ledger says that it was not secret"
    if not says(folder / CONFIG, record.header["facts"].get("config")):
        yield "config.toml is not the one that the run began with"


def _trusted(folder: Path, record: LedgerRecord) -> Iterator[str]:
    """What an audit of today's code cannot know about a run of the past."""
    made, now = record.header["facts"].get("versions"), library_versions()
    yield "the run was made by this code" + (
        "" if made == now else f", though its ledger names {made}, and this is {now}"
    )
    if json_of(folder, PRIVACY).flag("diagnostics_exposed"):
        yield "diagnostics of the run were exposed: they are outside its guarantee"
    yield from (f"not covered by the run's own word: {caveat}" for caveat in record.caveats)


def _settings(record: LedgerRecord) -> dict[str, Any]:
    facts = record.header.get("facts")
    found = facts.get("settings") if isinstance(facts, dict) else None
    return found if isinstance(found, dict) else {}


def _claim(folder: Path) -> tuple[float, float]:
    """(ε, δ) as privacy.json has them."""
    claim = json_of(folder, PRIVACY)
    found, delta = claim.number("epsilon_pld", 0), claim.number("delta")
    require(delta is not None, f"{claim.where} claims an epsilon without a delta; allowed: delta, a number in (0, 1)")
    assert delta is not None
    check_delta(delta)
    private = claim.flag("private") and found is not None
    require(private, f"{claim.where} claims no privacy: there is nothing to audit; allowed: a private run")
    assert found is not None
    return found, delta
