"""What is exported: a trained model with its privacy report, of a run at hand or of a run folder. All of it public.

A folder may be a stranger's: it is read by `runs.reading`, and refused where its files do not belong
together (`runs.verifying`). So is a model whose weights are not the run's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adadpigu.accounting import PrivacyReport
from adadpigu.errors import InputError, ModelError, check, require
from adadpigu.runs.loading import LoadedRun, load_run
from adadpigu.runs.reading import FACTS, config_of, facts_of, summary_of
from adadpigu.runs.run import MODEL, Run, weights_digest
from adadpigu.runs.verifying import UNBOUND, verified
from adadpigu.tensors import digest, read_tensors


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """What a record looks like: numbers of a shape, or whole numbers from 0 to below a bound (tokens, categories).

    >>> Synthetic(shape=(1, 8, 8)).draw(3).shape, Synthetic(shape=(5,), below=10).draw(2).dtype
    (torch.Size([3, 1, 8, 8]), torch.int64)
    """

    shape: tuple[int, ...]
    below: int | None = None

    def __post_init__(self) -> None:
        sides = all(type(side) is int and side >= 1 for side in self.shape)
        check("shape", self.shape, sides, "allowed: the sides of one record, whole numbers of at least 1")
        bound = self.below is None or (type(self.below) is int and self.below >= 1)
        check("below", self.below, bound, "allowed: None for numbers, or a whole number of at least 1")

    def draw(self, count: int, seed: int = 0) -> Tensor:
        """So many records: whole numbers, or alternately from [0, 1] as images are and from a normal distribution."""
        public_rng = torch.Generator().manual_seed(seed)
        if self.below is not None:
            return torch.randint(self.below, (count, *self.shape), generator=public_rng)
        drawn = torch.rand(count, *self.shape, generator=public_rng)
        drawn[1::2] = torch.randn(drawn[1::2].shape, generator=public_rng)
        return drawn


def check_run(run: Run) -> None:
    """Refuses a run whose model has other weights than those that its training left."""
    if run.weights is None:
        raise ModelError("a tensor of the model has no bytes to hash (sparse?); allowed for export: dense tensors")
    require(
        weights_digest(run.model) == run.weights,
        "run: the weights of its model were changed after training, so its statement is not about them; allowed: "
        "the model as training left it (export first, then change a copy.deepcopy of run.model)",
    )


def statement_of(privacy: PrivacyReport) -> str:
    """The statement as it is handed out: one that nothing binds to its model says so first."""
    return ("NOT BOUND: " + UNBOUND + ".\n\n" if is_unbound(privacy) else "") + privacy.statement()


def is_unbound(privacy: PrivacyReport) -> bool:
    """Whether the run is from before ledgers named the weights."""
    return UNBOUND in privacy.warnings


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
            "adadpigu.statement.txt": statement_of(self.privacy),
        }


Exportable = Run | LoadedRun | Subject | Path | str
"""what can be exported: a run, or the folder of one"""


def subject_of(run: Exportable, *, trust_code: bool = False, unbound: bool = False) -> Subject:
    """A run at hand, or the run in a folder. A model that is code of the user's own is built only with `trust_code`.

    `unbound` takes a folder from before weights were bound to ledgers; whatever is exported of it says so.
    """
    if isinstance(run, Subject):
        return run
    if isinstance(run, Run):
        check_run(run)
        return Subject(model=run.model, privacy=run.privacy, synthetic=_synthetic(_shape_of(run.folder)))
    loaded = run if isinstance(run, LoadedRun) else load_run(Path(run), trust_code=trust_code)
    privacy, record = verified(loaded.folder, unbound=unbound)
    stored = (record.closing or {}).get(MODEL) or digest(sorted(read_tensors(loaded.folder / MODEL, "model").items()))
    require(
        stored == weights_digest(loaded.model),
        f"run={str(loaded.folder)!r}: the model was changed since it was read, so the statement is not about it; "
        "allowed: as load_run gives it (export first, then change a copy)",
    )
    return Subject(model=loaded.model, privacy=privacy, synthetic=_synthetic(loaded.facts.shape))


def _synthetic(shape: tuple[int, ...] | None) -> Synthetic | None:
    return None if shape is None else Synthetic(shape=shape)


def _shape_of(folder: Path | None) -> tuple[int, ...] | None:
    """The shape of a record, where the folder says it."""
    return None if folder is None or not (folder / FACTS).is_file() else facts_of(folder).shape


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
    """on test records, 0 to 1: the run's own word, not measured again"""
    shape: tuple[int, ...] | None
    """of a record"""
    settings: Mapping[str, object] = field(default_factory=dict)
    """how it was trained, as far as it is known"""
    loadable: bool = False
    """whether the run folder alone is enough to build the model again"""


def facts_of_run(run: Run | CardFacts | Path | str, *, unbound: bool = False) -> CardFacts:
    """The facts of a run at hand, or of the one in a folder; `unbound` as in `subject_of`."""
    if isinstance(run, CardFacts):
        return run
    if not isinstance(run, Run):
        privacy, record = verified(Path(run), unbound=unbound)
        dataset, accuracy = str(record.header["facts"].get("dataset")), summary_of(Path(run)).accuracy
        return _card_facts(Path(run), privacy=privacy, dataset=dataset, accuracy=accuracy)
    check_run(run)
    return _card_facts(run.folder, privacy=run.privacy, dataset=run.dataset, accuracy=run.accuracy)


def _card_facts(folder: Path | None, **told: Any) -> CardFacts:
    """With what a run folder says: settings, a record's shape, whether the model can be built by its name."""
    if folder is None:
        return CardFacts(shape=None, **told)
    _, config = config_of(folder)
    method = config.get("method")
    options = {} if not isinstance(method, dict) else {k: v for k, v in method.items() if k != "name"}
    return CardFacts(
        shape=_shape_of(folder),
        settings={**{key: config[key] for key in _TOLD if key in config}, **options},
        loadable=isinstance(config.get("model"), str) and ":" not in config["model"],
        **told,
    )
