"""What a training run leaves: a model, its privacy report, public metrics, and (if asked) a folder that holds them all.

Nothing here has seen a sensitive value: metrics are functions of releases, of the plan and of test records.
"""

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from adadpigu.accounting import Ledger, PrivacyReport
from adadpigu.durable import check_place, lowest_parent, write_text, writing
from adadpigu.errors import BudgetError, check
from adadpigu.runs.digests import file_digest
from adadpigu.tensors import digest, write_tensors

MODEL, SUMMARY = "model.safetensors", "summary.json"
TEXTS = ("config.toml", "privacy.json", "statement.txt")
"""that every run leaves, and the ledger's closing record names, beside the model"""
RUN = "run"  # metadata of a stored model: which run it is of, as the ledger's header names it

OUTPUTS = "importance.safetensors"
"""what the method found out besides the weights: for AdaDPIGU, importance s and mask m"""
FURTHER = (SUMMARY, OUTPUTS, "data.json", "description.toml")
"""that the closing record names where the run left them; curves (metrics.jsonl) are no claim"""


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Public facts after a step."""

    step: int
    steps: int
    stage: str
    epsilon: float | None  # ε spent so far, an upper bound by PLD; None without a guarantee
    test_accuracy: float | None = None
    active: float = 1.0  # share of coordinates that may change
    mask: dict[str, float] = field(default_factory=dict)  # that share for each layer
    alpha: dict[str, float] = field(default_factory=dict)
    """mean of α over each layer's active coordinates; nothing where it is held at 0"""
    beta: dict[str, float] = field(default_factory=dict)  # mean of β, likewise; nothing where gradients are not scaled


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Public facts before the first step."""

    dataset: str
    method: str
    parameters: int
    steps: int
    noise_multiplier: float
    sample_rate: float
    epsilon: float | None
    delta: float
    engine: str
    warnings: tuple[str, ...]
    steps_done: int = 0  # before this process
    steps_charged: int = 0  # until now, by all processes
    secret: bool = True  # whether nobody can repeat the noise


class Observer(Protocol):
    """Follows a run, and can see public values only. Progress bars, loggers and files are observers.

    An error in `begin` or `update` ends the run as any other error does: what was spent is reported, and weights go
    back to where they started. One in `end` is raised after all observers were told, and the folder is written.
    """

    def begin(self, facts: Facts) -> None: ...

    def update(self, metrics: Metrics) -> None: ...

    def end(self, run: "Run") -> None: ...


@dataclass(frozen=True, kw_only=True)
class Validation:
    """What was released, with noise, of private validation records."""

    accuracy: float
    loss: float
    records: float  # about how many there are
    right: float
    """the noisy count of right answers, by which runs on the same records are compared"""
    stddev: float  # of the noise on each count


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished (or interrupted) training run."""

    model: nn.Module
    method: str
    dataset: str
    privacy: PrivacyReport
    accuracy: float | None  # test accuracy of the kept weights, 0 to 1
    validation: Validation | None = None  # what was released of private validation records
    steps: int  # that were planned
    steps_done: int
    """fewer where the run was interrupted, or where steps that a crash has cost could not be paid for again"""
    seconds: float
    metrics: tuple[Metrics, ...]
    interrupted: bool = False
    execution: str = ""  # how steps were run: eagerly, or as a graph that a GPU has recorded
    gradients: str = ""  # how per-record gradients were computed, and why: by layer rules, or one record at a time
    folder: Path | None = None
    outputs: Mapping[str, Tensor] = field(default_factory=dict)
    """what the method found out besides the weights, by name"""
    weights: str | None = None
    """SHA-256 of the weights as the run left them; None where a tensor has no bytes to hash, as a sparse one"""

    def __post_init__(self) -> None:
        if self.weights is None:
            object.__setattr__(self, "weights", weights_digest(self.model))

    @property
    def importance(self) -> Tensor | None:
        """s, the score of each coordinate by which stage 1 has ranked it, [d] in `named_parameters()` order."""
        return self.outputs.get("importance")

    @property
    def mask(self) -> Tensor | None:
        """m, the coordinates that were active when stage 2 began, [d] of bool in `named_parameters()` order."""
        return self.outputs.get("mask")

    @property
    def epsilon(self) -> float:
        """The ε to cite: of the whole plan, by PLD."""
        return self.privacy.epsilon_pld

    def summary(self) -> dict[str, object]:
        """The run as one JSON object; infinity is null there."""
        privacy = self.privacy.to_json()
        return {
            "run": None if self.folder is None else str(self.folder),
            "method": self.method,
            "dataset": self.dataset,
            "test_accuracy": self.accuracy,
            **({} if self.validation is None else {"private_validation": asdict(self.validation)}),
            "epsilon": privacy["epsilon_pld"],
            "epsilon_rdp": privacy["epsilon_rdp"],
            "epsilon_spent": privacy["epsilon_spent"],
            "delta": self.privacy.delta,
            "noise_multiplier": self.privacy.noise_multiplier,
            "steps": self.steps,
            "steps_done": self.steps_done,
            "seconds": round(self.seconds, 3),
            "private": self.privacy.private,
            "interrupted": self.interrupted,
            "execution": self.execution,
            "warnings": list(self.privacy.warnings),
        }


class RunFolder:
    """The folder of a run, readable by its owner alone. As an observer it appends to `metrics.jsonl`."""

    def __init__(self, path: Path, config: str) -> None:
        check_free(path)
        self.path = path
        self.ledger: Ledger | None = None
        with writing(path):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)  # private from its first moment
            path.chmod(0o700)  # one that was there, and was empty
            self.write_text("config.toml", config)
            self._metrics = (path / "metrics.jsonl").open("x", encoding="utf-8")

    @classmethod
    def reopen(cls, path: Path, ledger: Ledger) -> "RunFolder":
        """The folder of a run that goes on; `rewind` comes before anything is written to it."""
        folder = cls.__new__(cls)
        folder.path, folder.ledger = path, ledger
        return folder

    def rewind(self, metrics: Sequence[Mapping[str, object]]) -> None:
        """Removes what the process before this one left, once the ledger says that the run goes on; metrics stay."""
        with writing(self.path):
            for name in (SUMMARY, "privacy.json", "statement.txt", MODEL, OUTPUTS):
                (self.path / name).unlink(missing_ok=True)
            self.write_text("metrics.jsonl", "".join(json.dumps(line, allow_nan=False) + "\n" for line in metrics))
            self._metrics = (self.path / "metrics.jsonl").open("a", encoding="utf-8")

    def write_text(self, name: str, text: str) -> None:
        with writing(self.path):
            write_text(self.path / name, text)

    def begin(self, facts: Facts) -> None:
        return None

    def update(self, metrics: Metrics) -> None:
        if metrics.test_accuracy is not None or metrics.mask:
            with writing(self.path):
                self._metrics.write(json.dumps(asdict(metrics), allow_nan=False) + "\n")
                self._metrics.flush()

    def write_privacy(self, privacy: PrivacyReport) -> None:
        """Stores the privacy report and its statement: the first thing at the end of a run."""
        self.write_text("privacy.json", json.dumps(privacy.to_json(), indent=2, allow_nan=False) + "\n")
        self.write_text("statement.txt", privacy.statement() + "\n")

    def end(self, run: Run) -> None:
        """Stores the model and the summary, then closes the record."""
        self._metrics.close()
        of = {} if self.ledger is None else {RUN: str(self.ledger.facts["run"])}
        write_tensors(self.path / MODEL, tensors_of(run.model), of)
        if run.outputs:
            write_tensors(self.path / OUTPUTS, dict(run.outputs), of)
        self.write_text(SUMMARY, json.dumps(run.summary(), indent=2, allow_nan=False) + "\n")
        self.close_record(run.weights)

    def close_record(self, weights: str | None = None) -> None:
        """Binds what the run leaves to its ledger; a run without a model leaves `weights` out.

        All of it is on disk by now: a process that is killed before leaves a run that has not closed.
        """
        if self.ledger is None:
            return
        with writing(self.path):
            files = {name: file_digest(self.path / name) for name in TEXTS}
            files |= {name: file_digest(self.path / name) for name in FURTHER if (self.path / name).is_file()}
        files["config.toml"] = str(self.ledger.facts["config"])  # as the run began: it may have been edited since
        with contextlib.suppress(BudgetError):  # stopped in the middle of a line: the ledger takes no more
            self.ledger.write_closing(files if weights is None else {**files, MODEL: weights})


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """What is stored of a model: its parameters and buffers, each once, and nothing that a hook would add."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in stored_tensors(model).items()}


def stored_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model that are stored, by name; buffers that a module calls non-persistent are not."""
    rebuilt = {
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name in module._non_persistent_buffers_set
    }
    buffers = {name: buffer for name, buffer in model.named_buffers() if name not in rebuilt}
    return {**dict(model.named_parameters()), **buffers}


def weights_digest(model: nn.Module) -> str | None:
    """A SHA-256 of the tensors that are stored of a model, by which a later change is found; None for sparse ones."""
    try:
        return digest(sorted(stored_tensors(model).items()))
    except RuntimeError:  # no bytes to hash; a run that was paid for does not fail over it
        return None


def check_observers(observers: Sequence[object]) -> None:
    """Refuses what cannot follow a run, before it begins: later, its steps would be paid for already."""
    several = isinstance(observers, Sequence)
    check("observers", type(observers).__name__, several, "allowed: a list of them, e.g. [TensorBoardLogger(…)]")
    for place, observer in enumerate(observers):
        name = observer.__name__ if isinstance(observer, type) else type(observer).__name__
        asked = (getattr(observer, method, None) for method in ("begin", "update", "end"))
        ready = not isinstance(observer, type) and all(map(callable, asked))
        allowed = "allowed: an instance with the methods begin(facts), update(metrics) and end(run)"
        check(f"observers[{place}]", name, ready, allowed)


def check_free(path: Path) -> None:
    """Refuses a folder that holds anything: a run is never written over."""
    parent = lowest_parent(path)
    problems = {
        "is a file; allowed: a new or empty folder": path.exists() and not path.is_dir(),
        "already holds a run or other files; allowed: a new or empty folder": path.is_dir() and any(path.iterdir()),
        f"cannot be written: {parent} is read-only": not os.access(parent, os.W_OK),
    }
    check_place(path, problems)
