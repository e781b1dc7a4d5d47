"""How a run is trained, as one frozen record of public choices. All checks that need no data are here."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from adadpigu.errors import InputError
from adadpigu.training.optimiser import OptimiserFactory, optimiser_factory


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
    ema: float | None = None
    """decay of the average of the weights that is evaluated and kept; None: the last iterate"""
    noise_multiplier: float | None = None
    """σ; None: the least that keeps the budget"""
    physical_batch_size: int | None = None
    """records held in memory at once; changes nothing but memory"""
    device: str = "cpu"
    evaluate_every: int | None = None
    """steps between looks at the test set; None: twenty looks a run"""
    diagnostics: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "steps", "physical_batch_size", "evaluate_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name}={value} is not at least 1")
        if self.steps is None and self.epochs is None:
            raise InputError("steps=None and epochs=None: give one of them")
        if self.steps is not None and self.epochs is not None:
            raise InputError(f"steps={self.steps} and epochs={self.epochs}: give one of them, not both")
        if self.epochs is not None and not 0 < self.epochs < math.inf:
            raise InputError(f"epochs={self.epochs} is not a finite number above 0")
        if self.noise_multiplier is not None and not 0 < self.noise_multiplier < math.inf:
            raise InputError(f"noise_multiplier={self.noise_multiplier} is not a finite number above 0")
        if self.ema is not None and not 0 < self.ema < 1:
            raise InputError(f"ema={self.ema} is not in (0, 1)")
        self.factory()

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
        try:
            device = torch.device(self.device)
        except RuntimeError:
            raise InputError(f"device={self.device!r} is not a device; allowed: cpu, cuda, cuda:0, …") from None
        if device.type not in ("cpu", "cuda"):
            raise InputError(f"device={self.device!r} is not supported; allowed: cpu, cuda, cuda:0, …")
        count = torch.cuda.device_count() if device.type == "cuda" else 1
        if (device.index or 0) >= count:
            allowed = "cpu" if count == 0 else f"cpu, cuda:0 to cuda:{count - 1}"
            raise InputError(
                f"device={self.device!r} is not here: {count} CUDA GPU(s) are available; allowed: {allowed}"
            )
        return device
