"""What is exported: a trained model with its privacy report, of a run at hand or of a run folder. All of it public.

A folder may be a stranger's: it is read as `report.loading` reads it, and a report whose ε is lower than what its own
events cost is refused. So is one that its ledger does not bear out, and a model whose weights are not the run's.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from adadpigu.accounting import PrivacyReport
from adadpigu.accounting.accountants import epsilons
from adadpigu.accounting.ledger_reading import LedgerRecord
from adadpigu.accounting.wording import number
from adadpigu.errors import AdaDPIGUError, InputError, first_line
from adadpigu.export.evidence import SLACK, check_folder, check_ledger, check_run
from adadpigu.export.synthetic import Synthetic
from adadpigu.report.loading import FACTS, LoadedRun, facts_of, load_run, text_of
from adadpigu.training.run import Run, weights_digest

OTHERS = (
    "other runs on the same records: they share a ledger with this one, whose total is left out here because the run's "
    "folder does not prove it; whoever keeps that ledger can tell it, by `adadpigu ledger show FILE`"
)
"""what a folder leaves open of a run on a shared ledger"""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model, what it gives away, and what its records look like (None where nobody has said).

    `subject_of` makes it of a run and checks that they belong together; of one made by hand that is its maker's word.
    """

    model: nn.Module
    privacy: PrivacyReport
    synthetic: Synthetic | None

    def records(self, given: Synthetic | None) -> Synthetic:
        """The description of records by which the model is traced."""
        found = given or self.synthetic
        if found is None:
            raise InputError("records=None: the run does not say what a record looks like; give Synthetic(shape=…)")
        return found

    def embedded(self) -> dict[str, str]:
        """What is put into every exported file: the report as JSON, and the statement in plain words."""
        return {
            "adadpigu.privacy.json": json.dumps(self.privacy.to_json(), allow_nan=False),
            "adadpigu.statement.txt": self.privacy.statement(),
        }


Exportable = Run | LoadedRun | Subject | Path | str
"""what can be exported: a run, or the folder of one"""


def subject_of(run: Exportable, *, trust_code: bool = False) -> Subject:
    """A run at hand, or the run in a folder. A model that is code of the user's own is built only with `trust_code`."""
    if isinstance(run, Subject):
        return run
    if isinstance(run, Run):
        check_run(run)
        return Subject(model=run.model, privacy=run.privacy, synthetic=_described(run.folder))
    loaded = run if isinstance(run, LoadedRun) else load_run(Path(run), trust_code=trust_code)
    check_folder(loaded.folder, weights_digest(loaded.model))
    shape = loaded.facts.shape
    synthetic = None if shape is None else Synthetic(shape=shape)
    return Subject(model=loaded.model, privacy=verified_privacy(loaded.folder), synthetic=synthetic)


def _described(folder: Path | None) -> Synthetic | None:
    shape = None if folder is None or not (folder / FACTS).is_file() else facts_of(folder).shape
    return None if shape is None else Synthetic(shape=shape)


def verified_privacy(folder: Path) -> PrivacyReport:
    """The privacy report in a run folder, compared with the ledger: what may be handed out beside a model."""
    return verified(folder)[0]


def verified(folder: Path) -> tuple[PrivacyReport, LedgerRecord]:
    """`verified_privacy`, and the ledger that bears it out.

    The total of a shared ledger is left out, and that is said: its file is elsewhere, so nothing here vouches for it.
    """
    report = read_privacy(folder)
    record = check_ledger(report, folder)
    if report.shared is not None:
        report = replace(report, shared=None, not_covered=(*report.not_covered, OTHERS))
    return report, record


def read_privacy(folder: Path) -> PrivacyReport:
    """The privacy report in a run folder, refused where it cannot be read or contradicts itself."""
    refusal = f"run={str(folder)!r}: privacy.json"
    text = text_of(folder, "privacy.json")
    try:
        stored = json.loads(text)
        if not isinstance(stored, dict):
            raise InputError("it is not an object")
        report = PrivacyReport.from_json(stored)
        report.statement()
        costs = epsilons(report.event(), report.delta)
    except RecursionError:
        raise InputError(f"{refusal} cannot be read: it nests too deep") from None
    except (AdaDPIGUError, ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{refusal} cannot be read: {first_line(error)}") from None
    for name, cost in costs.items():
        claim = getattr(report, f"epsilon_{name}")
        if not (isinstance(claim, float | int) and claim >= cost * (1 - SLACK)):  # a NaN is refused, too
            raise InputError(f"{refusal} claims epsilon_{name}={claim}; allowed: what its events cost, {number(cost)}")
    if report.private and not (math.isfinite(report.epsilon_pld) and report.randomness_private):
        raise InputError(f"{refusal} says private=true; allowed: with a finite epsilon and secret noise alone")
    return report
