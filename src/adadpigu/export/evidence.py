"""What a statement rests on, asked before it is handed out: the ledger's plan, and the weights that training left.

A report that was edited tells other events than the ledger; a model that was trained on, merged or cast since is not
the one that the statement was made for. Neither check stops who rewrites all files together: they find mistakes, and
changes of one file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adadpigu.accounting import PrivacyReport
from adadpigu.accounting.accountants import epsilon
from adadpigu.accounting.events import leaves
from adadpigu.accounting.journal import head_path
from adadpigu.accounting.ledger_reading import NAME, LedgerRecord, read_ledger
from adadpigu.errors import InputError, LedgerError, ModelError, first_line
from adadpigu.report.loading import file_of, text_of
from adadpigu.report.timeline import MOST_LEDGER
from adadpigu.training.run import SUMMARY, Run, weights_digest

SLACK = 1e-3
"""by which accountants of different versions may differ, as a share of ε"""


def check_ledger(privacy: PrivacyReport, folder: Path) -> None:
    """Refuses a report that tells anything else than the ledger beside it, which held the run to its plan."""
    record = _record(folder)
    try:
        agreed = _agreed(privacy, record)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"run={str(folder)!r}: privacy.json or {NAME} holds what no run has written: {type(error).__name__}"
        ) from None
    for name, agrees in agreed.items():
        if not agrees:
            raise InputError(
                f"run={str(folder)!r}: privacy.json tells other {name} than {NAME}; allowed: both as the run wrote them"
            )


def _agreed(privacy: PrivacyReport, record: LedgerRecord) -> dict[str, bool]:
    """For each claim of a report whether the ledger bears it out."""
    facts, lives = record.header["facts"], record.lives()
    settings = facts["settings"]
    planned = [(stage.name, stage.steps) for stage in record.plan.stages]
    return {
        "events": leaves(privacy.event()) == leaves(record.plan.event()),
        "delta": privacy.delta == record.delta,
        "stages": [(stage.name, stage.planned) for stage in privacy.stages] == planned,
        "lives": privacy.lives == lives,
        "randomness_private": privacy.randomness_private is all(life.secret for life in lives),
        "epsilon_spent": privacy.epsilon_spent >= epsilon(record.events(), record.delta) * (1 - SLACK),
        "method": privacy.method == facts["method"],
        "records": privacy.records == settings["records"],
        "expected_batch_size": privacy.expected_batch_size == settings["batch_size"],
        "noise_multiplier": privacy.noise_multiplier == float(settings["noise_multiplier"]),
        "relation": privacy.relation == PrivacyReport.relation,
        "unit_of_privacy": privacy.unit_of_privacy == PrivacyReport.unit_of_privacy,
        "sampler": privacy.sampler == PrivacyReport.sampler,
        "diagnostics_exposed": privacy.diagnostics_exposed is True or settings["diagnostics"] is False,
        "shared": (privacy.shared is not None) == facts["shared"],
        "not_covered": set(record.confessed) <= set(privacy.not_covered),
    }


def _record(folder: Path) -> LedgerRecord:
    """The ledger of a folder that may be a stranger's."""
    path = file_of(folder, NAME)
    file_of(folder, head_path(path).name)
    refusal, size = f"run={str(folder)!r}: {NAME}", path.stat().st_size
    if size > MOST_LEDGER:
        raise InputError(f"{refusal} has {size} bytes; allowed: up to {MOST_LEDGER}")
    try:
        return read_ledger(path)
    except LedgerError as error:
        raise InputError(f"{refusal} does not bear the statement out: {first_line(error)}") from None
    except (RecursionError, ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{refusal} holds lines that no run has written: {type(error).__name__}") from None


def summary_of(folder: Path) -> Mapping[str, Any]:
    """What a run's summary.json holds, not yet checked."""
    refusal = f"run={str(folder)!r}: {SUMMARY}"
    try:
        summary = json.loads(text_of(folder, SUMMARY))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{refusal} cannot be read: {first_line(error)}") from None
    if not isinstance(summary, dict):
        raise InputError(f"{refusal} is odd; allowed: an object, as `adadpigu train` writes it")
    return summary


def check_run(run: Run) -> None:
    """Refuses a run whose model has other weights than those that its training left."""
    if run.weights is None:
        raise ModelError("a tensor of the model has no bytes to hash (sparse?); allowed for export: dense tensors")
    if weights_digest(run.model) != run.weights:
        raise InputError(
            "run: the weights of its model were changed after training, so its statement is not about them; allowed: "
            "the model as training left it (export first, then change a copy.deepcopy of run.model)"
        )


def check_folder(folder: Path, found: str | None) -> None:
    """Refuses weights of this digest unless they are those that the run in the folder ended with."""
    if found is None or summary_of(folder).get("weights") != found:
        raise InputError(
            f"run={str(folder)!r}: the weights are not those that {SUMMARY} tells of, so the statement is not about "
            "them; allowed: model.safetensors as training wrote it, and a model that was not changed since it was read"
        )
