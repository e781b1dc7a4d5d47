"""How a run is trained, as one frozen record of public choices. All checks that need no data are here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from adadpigu.data.augmentation import Augmentation
from adadpigu.errors import InputError, unknown
from adadpigu.gradients import ENGINES, Precision
from adadpigu.training.memory import Auto
from adadpigu.training.optimiser import OptimiserFactory, optimiser_factory
from adadpigu.training.schedules import LearningRateSchedule

Clipping = Literal["flat", "automatic"]
Execution = Literal["auto", "eager"]


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
    device: str = "cpu"
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
            if value is not None and value < 1:
                raise InputError(f"{name}={value} is not at least 1")
        if self.spare_steps < 0:
            raise InputError(f"spare_steps={self.spare_steps} is not at least 0")
        self._settle_memory()
        if self.steps is None and self.epochs is None:
            raise InputError("steps=None and epochs=None: give one of them")
        if self.steps is not None and self.epochs is not None:
            raise InputError(f"steps={self.steps} and epochs={self.epochs}: give one of them, not both")
        if self.epochs is not None and not 0 < self.epochs < math.inf:
            raise InputError(f"epochs={self.epochs} is not a finite number above 0")
        if self.noise_multiplier is not None and not 0 < self.noise_multiplier < math.inf:
            raise InputError(f"noise_multiplier={self.noise_multiplier} is not a finite number above 0")
        self._check_averages()
        if not 0 <= self.warmup < 1:
            raise InputError(f"warmup={self.warmup} is not in [0, 1)")
        for name, kinds in (
            ("lr_schedule", get_args(LearningRateSchedule)),
            ("clipping", get_args(Clipping)),
            ("engine", ENGINES),
            ("execution", get_args(Execution)),
            ("precision", get_args(Precision)),
        ):
            if getattr(self, name) not in kinds:
                raise unknown(name, str(getattr(self, name)), kinds)
        if not 1e-12 <= self.clip_stability < math.inf:
            raise InputError(f"clip_stability={self.clip_stability} is not a finite number of at least 1e-12")
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
        elif limit is not None:
            raise InputError(f"memory_limit={limit!r} does nothing with physical_batch_size={size}; allowed: 'auto'")
        elif size is not None and (isinstance(size, str) or size < 1):
            raise InputError(f"physical_batch_size={size!r} is neither at least 1 nor 'auto'")

    def _check_averages(self) -> None:
        if self.ema is not None and not 0 < self.ema < 1:
            raise InputError(f"ema={self.ema} is not in (0, 1)")
        if self.tail is not None and not 0 < self.tail <= 1:
            raise InputError(f"tail={self.tail} is not in (0, 1]")
        if self.ema is not None and self.tail is not None:
            raise InputError(f"ema={self.ema} and tail={self.tail}: give one of them, not both")

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
        try:
            device = torch.device(self.device)
        except RuntimeError:
            raise InputError(f"device={self.device!r} is not a device; allowed: auto, cpu, cuda, cuda:0, …") from None
        if device.type not in ("cpu", "cuda"):
            raise InputError(f"device={self.device!r} is not supported; allowed: auto, cpu, cuda, cuda:0, …")
        count = torch.cuda.device_count() if device.type == "cuda" else 1
        if (device.index or 0) >= count:
            allowed = "cpu" if count == 0 else f"cpu, cuda:0 to cuda:{count - 1}"
            raise InputError(
                f"device={self.device!r} is not here: {count} CUDA GPU(s) are available; allowed: {allowed}"
            )
        return device
