"""What is exported: a trained model with its privacy report, of a run at hand or of a run folder. All of it public.

A folder may be a stranger's: it is read as `report.loading` reads it, and refused where its files do not belong
together (`runs.verifying`). So is a model whose weights are not the run's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from adadpigu.accounting import PrivacyReport
from adadpigu.errors import InputError
from adadpigu.export.evidence import check_run
from adadpigu.export.synthetic import Synthetic
from adadpigu.report.loading import FACTS, LoadedRun, facts_of, load_run
from adadpigu.runs.verifying import verified
from adadpigu.training.run import MODEL, Run, weights_digest


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
    privacy, record = verified(loaded.folder)
    if (record.closing or {}).get(MODEL) != weights_digest(loaded.model):
        raise InputError(
            f"run={str(loaded.folder)!r}: the model was changed since it was read, so the statement is not about it; "
            "allowed: as load_run gives it (export first, then change a copy)"
        )
    shape = loaded.facts.shape
    return Subject(model=loaded.model, privacy=privacy, synthetic=None if shape is None else Synthetic(shape=shape))


def _described(folder: Path | None) -> Synthetic | None:
    shape = None if folder is None or not (folder / FACTS).is_file() else facts_of(folder).shape
    return None if shape is None else Synthetic(shape=shape)
