"""What is exported: a trained model with its privacy report, of a run at hand or of a run folder. All of it public.

A folder may be a stranger's: it is read by `runs.reading`, and refused where its files do not belong
together (`runs.verifying`). So is a model whose weights are not the run's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adadpigu.accounting import PrivacyReport
from adadpigu.errors import ModelError, check, require
from adadpigu.features.front import is_own
from adadpigu.runs.loading import load_run
from adadpigu.runs.reading import FACTS, config_of, read_data_facts, summary_of
from adadpigu.runs.run import Run, weights_digest
from adadpigu.runs.verifying import UNBOUND, verified


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
    fault = "run: the weights of its model were changed after training, so its statement is not about them"
    remedy = "the model as training left it (export first, then change a copy.deepcopy of run.model)"
    require(weights_digest(run.model) == run.weights, f"{fault}; allowed: {remedy}")


def statement_of(privacy: PrivacyReport) -> str:
    """The statement as it is handed out: one that nothing binds to its model says so first."""
    return ("NOT BOUND: " + UNBOUND + ".\n\n" if is_unbound(privacy) else "") + privacy.statement()


def is_unbound(privacy: PrivacyReport) -> bool:
    """Whether the run is from before ledgers named the weights."""
    return UNBOUND in privacy.warnings


@dataclass(frozen=True, kw_only=True)
class ExportedModel:
    """A model, its privacy report and what its records look like, which `read_exportable` found to belong together."""

    model: nn.Module
    privacy: PrivacyReport
    synthetic: Synthetic | None


Exportable = Run | ExportedModel | Path | str  # what can be exported: a run, or the folder of one


def read_exportable(run: Exportable, *, trust_code: bool = False, unbound: bool = False) -> ExportedModel:
    """A run at hand, or the run in a folder. A model that is code of the user's own is built only with `trust_code`.

    `unbound` takes a folder from before weights were bound to ledgers; whatever is exported of it says so.
    """
    if isinstance(run, ExportedModel):
        return run
    if isinstance(run, Run):
        check_run(run)
        model, privacy, shape = run.model, run.privacy, _shape_of(run.folder)
    else:
        loaded = load_run(Path(run), trust_code=trust_code)
        model, privacy, shape = loaded.model, verified(loaded.folder, unbound=unbound)[0], loaded.facts.shape
    return ExportedModel(model=model, privacy=privacy, synthetic=None if shape is None else Synthetic(shape=shape))


def _shape_of(folder: Path | None) -> tuple[int, ...] | None:
    return None if folder is None or not (folder / FACTS).is_file() else read_data_facts(folder).shape


_TOLD = (
    *("model", "activation", "features", "feature_views", "normalisation", "optimizer", "lr", "body_lr"),
    *("lr_schedule", "warmup", "momentum", "weight_decay", "ema", "tail", "clipping", "denoise"),
    *("copies", "shift", "flip", "views", "precision"),
)
"""settings that a card tells; not among them: paths of the user's machine"""


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """A run as its card tells it."""

    privacy: PrivacyReport
    dataset: str
    accuracy: float | None  # on test records, 0 to 1: the run's own word, not measured again
    shape: tuple[int, ...] | None  # of a record
    settings: Mapping[str, object] = field(default_factory=dict)  # how it was trained, as far as it is known
    loadable: bool = False  # whether the run folder alone is enough to build the model again


def facts_of_run(run: Run | CardFacts | Path | str, *, unbound: bool = False) -> CardFacts:
    """The facts of a run at hand, or of the one in a folder; `unbound` as in `read_exportable`."""
    if isinstance(run, CardFacts):
        return run
    if isinstance(run, Run):
        check_run(run)
        folder, privacy, dataset, accuracy = run.folder, run.privacy, run.dataset, run.accuracy
    else:
        folder = Path(run)
        privacy, record = verified(folder, unbound=unbound)
        dataset, accuracy = str(record.header["facts"].get("dataset")), summary_of(folder).accuracy
    config: dict[str, Any] = {} if folder is None else config_of(folder)[1]
    method, model, features = config.get("method"), config.get("model"), str(config.get("features"))
    own = is_own(features)
    if own:
        config["features"] = Path(features).name
    options = {key: value for key, value in method.items() if key != "name"} if isinstance(method, dict) else {}
    return CardFacts(
        privacy=privacy,
        dataset=dataset,
        accuracy=accuracy,
        shape=_shape_of(folder),
        settings={**{key: config[key] for key in _TOLD if key in config}, **options},
        loadable=isinstance(model, str) and ":" not in model and not own,
    )
