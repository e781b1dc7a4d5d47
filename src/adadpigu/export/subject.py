"""What is exported: a trained model with its privacy report, of a run at hand or of a run folder. All of it public.

A folder may be a stranger's: it is read as `report.loading` reads it, and a report whose ε is lower than what its own
events cost is refused.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from adadpigu.accounting import PrivacyReport
from adadpigu.accounting.accountants import epsilons
from adadpigu.errors import AdaDPIGUError, InputError, first_line
from adadpigu.export.synthetic import Synthetic
from adadpigu.report.loading import FACTS, LoadedRun, facts_of, load_run, text_of
from adadpigu.training.run import Run

_SLACK = 1e-3
"""by which accountants of different versions may differ, as a share of ε"""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model, what it gives away, and what its records look like (None where nobody has said)."""

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
        return Subject(model=run.model, privacy=run.privacy, synthetic=_described(run.folder))
    loaded = run if isinstance(run, LoadedRun) else load_run(Path(run), trust_code=trust_code)
    shape = loaded.facts.shape
    synthetic = None if shape is None else Synthetic(shape=shape)
    return Subject(model=loaded.model, privacy=read_privacy(loaded.folder), synthetic=synthetic)


def _described(folder: Path | None) -> Synthetic | None:
    shape = None if folder is None or not (folder / FACTS).is_file() else facts_of(folder).shape
    return None if shape is None else Synthetic(shape=shape)


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
        cost = epsilons(report.event(), report.delta)["pld"]
    except RecursionError:
        raise InputError(f"{refusal} cannot be read: it nests too deep") from None
    except (AdaDPIGUError, ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{refusal} cannot be read: {first_line(error)}") from None
    if report.epsilon_pld < cost * (1 - _SLACK):
        raise InputError(f"{refusal} claims epsilon={report.epsilon_pld:g}; allowed: what its events cost, {cost:.4g}")
    if report.private and not (math.isfinite(report.epsilon_pld) and report.randomness_private):
        raise InputError(f"{refusal} says private=true; allowed: with a finite epsilon and secret noise alone")
    return report
