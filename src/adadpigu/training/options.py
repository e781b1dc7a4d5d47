"""How a run is trained, as one frozen record of public choices. All checks that need no data are here."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import torch

from adadpigu.core.gradients import ENGINES, Precision
from adadpigu.data.augmentation import Augmentation
from adadpigu.errors import InputError, check_range, require, unknown
from adadpigu.methods.base import registered
from adadpigu.training.memory import Auto
from adadpigu.training.optimiser import OptimiserFactory, optimiser_factory

Clipping = Literal["flat", "automatic"]
LearningRateSchedule = Literal["constant", "linear", "cosine"]
Execution = Literal["auto", "eager"]
_SAID_OTHERWISE = {
    **dict.fromkeys(("epsilon", "eps", "target_epsilon"), "privacy=Budget(epsilon={value}, delta=1e-5)"),
    **dict.fromkeys(("sigma", "noise"), "noise_multiplier={value}"),
    **dict.fromkeys(("learning_rate",), "lr={value}"),
    **dict.fromkeys(("max_grad_norm", "clip"), "clip_norm of the method, e.g. method=DPSGD(clip_norm={value})"),
    "physical_batch": "physical_batch_size={value}",
}
"""names that others give to what is said otherwise here"""


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Options every method shares. One of `steps` and `epochs` is needed; steps count all stages."""

    batch_size: int = 512
    """B, the expected batch size"""
    steps: int | None = None
    epochs: float | None = None
    lr: float = 1.0
    momentum: float = 0.9
    weight_decay: float = 0.0
    optimizer: str | OptimiserFactory = "sgd"
    lr_schedule: LearningRateSchedule = "constant"
    warmup: float = 0.0
    """share of the steps over which the learning rate rises from 0"""
    ema: float | None = None
    """decay of the average of the weights that is evaluated and kept; None: the last iterate"""
    tail: float | None = None
    """instead of `ema`: the weights of this last share of the steps are averaged"""
    clipping: Clipping = "flat"
    """`flat` scales what exceeds C; `automatic` scales every record, to C·‖g‖/(‖g‖ + clip_stability)"""
    clip_stability: float = 0.01
    copies: int = 1
    """augmented copies of each record, whose gradients are averaged before the clip"""
    shift: int = 0
    """augmentation: up to so many pixels either way"""
    shift_step: int = 1
    """augmentation: shifts are multiples of this"""
    flip: bool = False
    """augmentation: half of the copies are mirrored"""
    noise_multiplier: float | None = None
    """σ; None: the least that keeps the budget"""
    physical_batch_size: int | str | None = None
    """records processed at once; changes nothing but memory; `auto`: as many as fit; None: all that were drawn"""
    memory_limit: int | str | None = None
    """for `auto`: what processing records may take, such as "4GiB"; None: what the device has free"""
    engine: str = "auto"
    """how gradients are computed and bounded: see `gradients.ENGINES`; changes speed and memory, never the numbers"""
    precision: Precision = "float32"
    """`bf16`: products within the net are computed in bfloat16; norms, sums and noise are not"""
    execution: Execution = "auto"
    """`auto`: a GPU records a step once and replays it, where model and method allow; `eager`: never"""
    device: str = "auto"
    """`auto` takes a GPU where there is one"""
    evaluate_every: int | None = None
    """steps between looks at the test set; None: twenty looks a run"""
    diagnostics: bool = False
    spare_steps: int = 0
    """steps that may be repeated after a crash: the noise is calibrated for so many more"""
    checkpoint_every: int | None = None
    """steps between checkpoints, in a run that has a folder; None: about once a minute"""
    reserve: int | None = None
    """steps that are charged at once; None: 1, or as many as keep the ledger under 2 % of a step's time"""

    def __post_init__(self) -> None:
        for name in ("batch_size", "steps", "evaluate_every", "checkpoint_every", "reserve"):
            value = getattr(self, name)
            check_range(name, value, "at least 1")
        check_range("spare_steps", self.spare_steps, "at least 0")
        self._settle_memory()
        one = (self.steps is None) != (self.epochs is None)
        require(one, f"steps={self.steps} and epochs={self.epochs}: give one of them, not both")
        check_range("epochs", self.epochs, "a finite number above 0")
        check_range("noise_multiplier", self.noise_multiplier, "a finite number above 0")
        self._check_averages()
        check_range("warmup", self.warmup, "in [0, 1)")
        for name, kinds in (
            ("lr_schedule", get_args(LearningRateSchedule)),
            ("clipping", get_args(Clipping)),
            ("engine", ENGINES),
            ("execution", get_args(Execution)),
            ("precision", get_args(Precision)),
        ):
            if getattr(self, name) not in kinds:
                raise unknown(name, str(getattr(self, name)), kinds)
        stable = 1e-12 <= self.clip_stability < math.inf
        require(stable, f"clip_stability={self.clip_stability} is not a finite number of at least 1e-12")
        self.augmentation()
        self.factory()

    def _settle_memory(self) -> None:
        """Checks what bounds memory; a limit alone means `auto`."""
        size, limit = self.physical_batch_size, self.memory_limit
        if size is None and limit is not None:
            size = "auto"
            object.__setattr__(self, "physical_batch_size", size)
        if size == "auto":
            Auto.within(limit, batch_size=self.batch_size)  # checks the limit
        else:
            idle = f"memory_limit={limit!r} does nothing with physical_batch_size={size}; allowed: 'auto'"
            require(limit is None, idle)
            fits = size is None or (not isinstance(size, str) and size >= 1)
            require(fits, f"physical_batch_size={size!r} is neither at least 1 nor 'auto'")

    def _check_averages(self) -> None:
        check_range("ema", self.ema, "in (0, 1)")
        check_range("tail", self.tail, "in (0, 1]")
        require(
            self.ema is None or self.tail is None, f"ema={self.ema} and tail={self.tail}: give one of them, not both"
        )

    def augmentation(self) -> Augmentation:
        """How records are augmented."""
        return Augmentation(copies=self.copies, shift=self.shift, shift_step=self.shift_step, flip=self.flip)

    @property
    def at_once(self) -> int | Auto | None:
        """How many records are processed at once; None: all that were drawn."""
        size = self.physical_batch_size
        return Auto.within(self.memory_limit, batch_size=self.batch_size) if isinstance(size, str) else size

    @property
    def stability(self) -> float | None:
        """γ of automatic clipping; None for flat."""
        return self.clip_stability if self.clipping == "automatic" else None

    def factory(self) -> OptimiserFactory:
        """What makes the optimiser of a run."""
        if not isinstance(self.optimizer, str):
            return self.optimizer
        return optimiser_factory(self.optimizer, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)

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
        allowed = (
            f"{count} CUDA GPU(s) are available; allowed: {f'cpu, cuda:0 to cuda:{count - 1}' if count else 'cpu'}"
        )
        require(device.type == "cpu" or (device.index or 0) < count, f"device={self.device!r} is not here: {allowed}")
        return device


def check_names(owner: str, options: Mapping[str, Any], elsewhere: Collection[str] = ()) -> None:
    """Refuses a name that is no option, with what it may stand for; `elsewhere` are those settled otherwise."""
    known = {field.name for field in fields(TrainingOptions)}.difference(elsewhere)
    for name in options.keys() - known:
        if name in _SAID_OTHERWISE:
            meant = _SAID_OTHERWISE[name].format(value=options[name])
        else:
            of = [kind.__name__ for kind in registered().values() if name in {field.name for field in fields(kind)}]
            if not of:
                raise unknown(f"option of {owner}", name, known)
            meant = f"it is an option of the method, e.g. method={of[0]}({name}={options[name]!r})"
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
