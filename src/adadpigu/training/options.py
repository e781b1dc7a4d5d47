"""How a run is trained, as one frozen record of public choices. All checks that need no data are here."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args

import torch

from adadpigu.config import OFF, Clipping, CommonOptions, Denoise, Execution, LearningRateSchedule
from adadpigu.core.gradients import ENGINES, Precision
from adadpigu.data.augmentation import Augmentation, parse_views
from adadpigu.data.public import PublicRecords
from adadpigu.errors import SYNONYMS, InputError, check_known, check_range, require, unknown
from adadpigu.methods.base import Method, registered
from adadpigu.training.memory import parse_memory
from adadpigu.training.optimiser import WITH_MOMENTUM, OptimiserFactory, all_optimisers, optimiser_factory

_SAID_OTHERWISE = {
    "epsilon": "privacy=Budget(epsilon={value}, delta=1e-5)",
    "class_weight": "loss=nn.CrossEntropyLoss(weight=…), of public weights",
    "shuffle": "leave it out; batches are Poisson draws",
    "accumulate": "physical_batch_size, the records computed at a time; batch_size is the whole batch",
}
"""what stands for names of other libraries, beside `SYNONYMS`"""


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(CommonOptions):
    """Options every method shares. `steps` count all stages; with neither steps nor `epochs`, 20 epochs."""

    batch_size: int = 512
    """B, the expected batch size; in `train`, N/4 up to 512"""
    optimizer: str | OptimiserFactory = "sgd"
    """any of torch.optim, by name; or a function of the parameters that makes one; in `train`, a class too"""
    public: str | PublicRecords | None = None  # type: ignore[assignment]
    """public records for a method that learns from them: `processes:COUNT`, an .npz with x and y, or `PublicRecords`"""

    def __post_init__(self) -> None:
        for name in ("batch_size", "steps", "evaluate_every", "checkpoint_every", "reserve"):
            check_range(name, getattr(self, name), "at least 1")
        check_range("spare_steps", self.spare_steps, "at least 0")
        self._settle_memory()
        if self.steps is None and self.epochs is None:
            object.__setattr__(self, "epochs", 20.0)
        object.__setattr__(self, "device", str(self.device))  # torch.device too
        one = self.steps is None or self.epochs is None
        require(one, f"steps={self.steps} and epochs={self.epochs}: give one of them, not both")
        check_range("epochs", self.epochs, "a finite number above 0")
        check_range("perturbation", self.perturbation, "a finite number of at least 0")
        check_range("noise_multiplier", self.noise_multiplier, "a finite number above 0")
        check_range("grid", self.grid, "a finite number above 0")
        check_range("validation_noise", self.validation_noise, "a finite number above 0")
        share = self.private_validation
        fits = share in (None, "test") or (isinstance(share, float) and 0 < share < 1)
        require(fits, f"private_validation={share!r} is neither a share of the records, in (0, 1), nor 'test'")
        check_range("ema", self.ema, "in (0, 1)")
        check_range("tail", self.tail, "in (0, 1]")
        one = self.ema is None or self.tail is None
        require(one, f"ema={self.ema} and tail={self.tail}: give one of them, not both")
        check_range("warmup", self.warmup, "in [0, 1)")
        for name, kinds in (
            ("lr_schedule", get_args(LearningRateSchedule)),
            ("clipping", get_args(Clipping)),
            ("denoise", get_args(Denoise)),
            ("engine", ENGINES),
            ("execution", get_args(Execution)),
            ("precision", get_args(Precision)),
        ):
            check_known(name, getattr(self, name), kinds)
        stable = 1e-12 <= self.clip_stability < math.inf
        require(stable, f"clip_stability={self.clip_stability} is not a finite number of at least 1e-12")
        allowed = "processes:COUNT, an .npz file, or PublicRecords(inputs=…, targets=…, origin=…)"
        fits = self.public is None or isinstance(self.public, str | PublicRecords)
        require(fits, f"public is a {type(self.public).__name__}; allowed: {allowed}")
        self.augmentation()
        parse_views(self.views)
        self.factory()

    def _settle_memory(self) -> None:
        """Checks what bounds memory; a limit alone means `auto`."""
        size, limit = self.physical_batch_size, self.memory_limit
        fits = size in (None, "auto") or (not isinstance(size, str) and size >= 1)
        require(fits, f"physical_batch_size={size!r} is neither at least 1 nor 'auto'")
        if limit is not None:
            idle = f"memory_limit={limit!r} does nothing with physical_batch_size={size}; allowed: 'auto'"
            require(size in (None, "auto"), idle)
            parse_memory(limit)
            object.__setattr__(self, "physical_batch_size", "auto")

    def augmentation(self) -> Augmentation:
        """How records are augmented."""
        return Augmentation(copies=self.copies, shift=self.shift, shift_step=self.shift_step, flip=self.flip)

    @property
    def stability(self) -> float | None:
        """γ of automatic clipping; None for flat."""
        return self.clip_stability if self.clipping == "automatic" else None

    def factory(self) -> OptimiserFactory:
        """What makes the optimiser of a run."""
        if not isinstance(self.optimizer, str):
            return self.optimizer
        given = {name: getattr(self, name) for name in ("lr", "momentum", "weight_decay", "body_lr")}
        return optimiser_factory(self.optimizer, **given)

    def step_count(self, records: int) -> int:
        """T over all stages; an epoch is N/B steps of the *declared* N."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return max(1, math.ceil(self.epochs * records / self.batch_size - 1e-9))

    def torch_device(self) -> torch.device:
        """The device, checked to be there."""
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        known = re.fullmatch(r"(cpu|cuda)(:\d+)?", self.device)
        require(known, f"device={self.device!r} is not supported; allowed: auto, cpu, cuda, cuda:0, …")
        device, count = torch.device(self.device), torch.cuda.device_count()
        places = f"cpu, cuda:0 to cuda:{count - 1}" if count else "cpu"
        allowed = f"{count} CUDA GPU(s) are available; allowed: {places}"
        require(device.type == "cpu" or (device.index or 0) < count, f"device={self.device!r} is not here: {allowed}")
        return device


def default_batch(records: int) -> int:
    """B where none is given, from the public record count."""
    return min(512, max(1, records // 4))


_WITHOUT_MOMENTUM = all_optimisers().keys() - {*WITH_MOMENTUM}
_NEEDED: tuple[tuple[tuple[str, ...], str, Callable[[Any], bool], str], ...] = (
    (("normalisation_clip", "normalisation_noise"), "normalisation", "released".__eq__, "'released'"),
    (("clip_stability",), "clipping", "automatic".__eq__, "'automatic'"),
    (("shift_step",), "shift", bool, "a shift above 0"),
    (("lr", "weight_decay", "momentum"), "optimizer", lambda made: isinstance(made, str | type), "a name or a class"),
    (("body_lr",), "optimizer", lambda made: isinstance(made, str), "a name"),
    (("momentum",), "optimizer", lambda made: str(made).lower() not in _WITHOUT_MOMENTUM, "'sgd' or 'rmsprop'"),
    (("activation",), "model", lambda name: name not in ("linear", "scatter-linear"), "another, such as 'mlp'"),
    (("grid",), "randomness", "exact".__eq__, "'exact'"),
    (("validation_noise",), "private_validation", lambda share: share is not None, "a share, or 'test'"),
    (("evaluate_every",), "test", lambda test: test is not None, "test records"),
    (("diagnostics", "checkpoint_every"), "out", lambda out: out is not None, "a run folder"),
)
"""options that need another: which one, whether its value will do, and which would"""


def idle_options(given: Mapping[str, Any], chosen: Mapping[str, Any]) -> Iterator[str]:
    """Says of each option given that it does nothing with those chosen."""
    for keys, needed, looks, wanted in _NEEDED:
        for key in keys:
            if given.get(key) not in (None, OFF, 0.0) and needed in chosen and not looks(chosen[needed]):
                yield f"{key}={given[key]} does nothing with {needed}={chosen[needed]!r}; allowed with {wanted}"


def check_names(
    owner: str, options: Mapping[str, Any], elsewhere: Iterable[str] = (), named: Iterable[str] = (), method: Any = None
) -> None:
    """Refuses a name that is no option, with what it may stand for, also among the owner's `named` arguments.

    Options that are settled `elsewhere` are refused, too. An option of a method is shown with the `method` in use.
    """
    known = {field.name for field in fields(TrainingOptions)}.difference(elsewhere)
    kinds = registered()
    used = type(method) if isinstance(method, Method) else kinds.get(str(method or "adadpigu"))
    for name in options.keys() - known:
        other = SYNONYMS.get(name, name)
        if other in _SAID_OTHERWISE:
            meant = _SAID_OTHERWISE[other].format(value=options[name])
        else:
            of = [each.__name__ for each in (used, *kinds.values()) if each and other in each.__dataclass_fields__]
            if not of:
                raise unknown(f"option of {owner}", name, known.union(named) - {name})
            meant = f"it is an option of the method, e.g. method={of[0]}({other}={options[name]!r})"
        raise InputError(f"unknown option of {owner} {name!r}; allowed: {meant}")


def lr_factor(kind: LearningRateSchedule, step: int, steps: int, warmup: float = 0.0) -> float:
    """The share of the learning rate used in a step (counted from 0 of `steps`).

    It rises linearly over the first `warmup` share of the steps, then stays (`constant`) or falls towards 0.

    >>> [lr_factor("linear", step, 4) for step in range(4)]
    [1.0, 0.75, 0.5, 0.25]
    >>> [round(lr_factor("cosine", step, 10, warmup=0.2), 2) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.04]
    """
    rising = round(warmup * steps)
    if step < rising:
        return (step + 1) / rising
    done = (step - rising) / max(1, steps - rising)
    if kind == "linear":
        return 1.0 - done
    if kind == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * done))
    return 1.0
