"""What a statement rests on, asked before it is handed out: the ledger's record, and the weights that training left.

Every field of a report must be the one that the ledger gives (`rebuilding`), the config and the summary's data set
those that it names; a model that was trained on, merged or cast since is not the one that the statement was made for.
None of this stops who rewrites all files together: mistakes are found, and changes of one file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from adadpigu.accounting import PrivacyReport
from adadpigu.accounting.journal import head_path
from adadpigu.accounting.ledger_reading import NAME, LedgerRecord, read_ledger
from adadpigu.errors import InputError, LedgerError, ModelError, first_line
from adadpigu.export.rebuilding import rebuilt
from adadpigu.report.ledger_file import ledger_of
from adadpigu.report.loading import file_of, text_of
from adadpigu.training.run import SUMMARY, Run, weights_digest

SLACK = 1e-3
"""by which accountants of different versions may differ, as a share of ε"""


def check_ledger(privacy: PrivacyReport, folder: Path) -> LedgerRecord:
    """The ledger of a folder; refuses a report that tells anything else, and a config that the run did not have."""
    record = _record(folder)
    try:
        odd, config = contradicted(privacy, record), record.header["facts"]["config"]
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"run={str(folder)!r}: privacy.json or {NAME} holds what no run has written: {type(error).__name__}"
        ) from None
    if odd is not None:
        raise InputError(
            f"run={str(folder)!r}: privacy.json tells other {odd} than {NAME}; allowed: both as the run wrote them, "
            "and the version of adadpigu that it had"
        )
    with file_of(folder, "config.toml").open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != config:
            raise InputError(f"run={str(folder)!r}: its config.toml was edited; allowed: as the run began")
    return record


def contradicted(privacy: PrivacyReport, record: LedgerRecord) -> str | None:
    """The first claim of a report that its ledger does not bear out, if any; what ε follows from comes before it."""
    if (privacy.shared is not None) is not record.header["facts"]["shared"]:
        return "shared"
    wanted = rebuilt(record, privacy)
    names = sorted((field.name for field in fields(privacy)), key=lambda name: name.startswith("epsilon"))
    return next((name for name in names if not _agrees(name, getattr(privacy, name), getattr(wanted, name))), None)


def _agrees(name: str, claim: Any, wanted: Any) -> bool:
    """An ε may be larger than what the events cost: that promises less."""
    return bool(claim >= wanted * (1 - SLACK) if name.startswith("epsilon") else claim == wanted)


def named_dataset(record: LedgerRecord, folder: Path) -> str:
    """What the run's ledger calls its data set; refused where summary.json calls it otherwise."""
    named = record.header["facts"].get("dataset")
    if not isinstance(named, str) or named != summary_of(folder).get("dataset"):
        raise InputError(
            f"run={str(folder)!r}: {SUMMARY} tells other dataset than {NAME}; allowed: both as the run wrote them"
        )
    return named


def _record(folder: Path) -> LedgerRecord:
    """The ledger of a folder that may be a stranger's."""
    file_of(folder, head_path(file_of(folder, NAME)).name)  # without it nobody knows whether the end is there
    try:
        return ledger_of(folder, read_ledger)
    except LedgerError as error:
        told = f"does not bear the statement out: {first_line(error)}"
        raise InputError(f"run={str(folder)!r}: {NAME} {told}") from None


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
