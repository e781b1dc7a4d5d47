"""What the ablation varies: AdaDPIGU's parts, one at a time, each against a base that differs in nothing else.

Every variant spends the same ε, by the same steps and batches. Its clipping bound is told in the gradient's own units:

    clip_norm = bound/(√β₀ + μ)        lr = rate·C/bound

so all clip alike when training begins, and a rate stands for the same length of a clipped step in all of them. Where
√β + μ is divided by its geometric mean (`normalise`) that unit is 1. Adam's steps know no C: it has rates of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CLIP_NORM = 0.1
"""C of DP-SGD, on all nets"""
YARDSTICK = "dpsgd"
_START = 1e-8
"""β₀ where β moves: (10⁻⁴)², about the squared noise of a released mean coordinate, σC/B, in all of the settings"""
_ADAM_RATE = 5e-4
"""Adam's learning rate for a rate of 1: about σC/B over 1 − momentum, so that noise moves a weight as far as by SGD"""
_MOVING = {"beta": _START, "variance_decay": 0.99, "debias": True, "floor": _START / 16, "ceiling": 16 * _START}
"""β that follows the releases, within a factor of 4 of where √β starts"""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A way to train, told by what it changes in its base."""

    name: str
    part: str
    """which part of AdaDPIGU it asks about"""
    about: str
    base: str | None = YARDSTICK
    method: str = "masked"
    options: Mapping[str, Any] = field(default_factory=dict)
    bound: float = CLIP_NORM
    """C in units of the gradient, when training begins"""
    optimizer: str = "sgd"

    @property
    def of_adadpigu(self) -> bool:
        """Whether it is AdaDPIGU with some of its parts; else it stands there to compare with."""
        return self.method in ("adadpigu", "masked", "layers")

    @property
    def whole(self) -> bool:
        """Whether it is the whole method or one of its variants, which make families of comparisons of their own."""
        return self.method == "adadpigu"

    def config(self, steps: int) -> dict[str, Any]:
        """Method and options in a run of so many steps; stage 1, where there is one, takes a tenth of them."""
        options = dict(self.options)
        unit = math.sqrt(options.get("beta", 1.0)) + options.get("offset", 0.0)
        options["clip_norm"] = self.bound / (1.0 if options.get("normalise") else unit)
        if self.of_adadpigu:
            options.setdefault("retention", 1.0)
            options.setdefault("schedule", "constant")
            ranked = options["retention"] < 1 and options.get("score") != "public"
            if ranked or options.get("variance_start") == "stage-1":
                options["importance_steps"] = max(1, steps // 10)
        optimizer = {} if self.optimizer == "sgd" else {"optimizer": self.optimizer}
        return {"method": self.method, "method_options": options, **optimizer}

    def lr(self, rate: float) -> float:
        """The learning rate at which a clipped step is as long as DP-SGD's at `rate`; Adam's is its own."""
        return rate * CLIP_NORM / self.bound * (1.0 if self.optimizer == "sgd" else _ADAM_RATE)


_MASK = {"retention": 0.6}
_MASKED = "mask-absolute"
_WHOLE = {**_MASK, "schedule": "linear", "mean_decay": 0.9, "variance_decay": 0.999, "offset": 1e-6}
"""as `AdaDPIGU()` has it"""
_SLOW = {**_WHOLE, "mean_decay": 0.999}
_SHAPED = {"normalise": True, "floor": 1e-12}
"""only the shape of β matters, and it may be as small as a released coordinate's noise variance"""
_FROM_STAGE_1 = {"variance_start": "stage-1", "debias": True, **_SHAPED}
_ON_SLOW: dict[str, Any] = {"base": "whole-slow", "method": "adadpigu"}
_ALL = (
    Variant(name=YARDSTICK, part="yardstick", about="DP-SGD", base=None, method="dpsgd"),
    Variant(name=_MASKED, part="mask", about="mask r = 0.6 by importance, absolute scores", options=_MASK),
    Variant(
        name="mask-signed", part="score", about="signed scores", base=_MASKED, options={**_MASK, "score": "signed"}
    ),
    Variant(
        name="mask-energy", part="score", about="energy scores", base=_MASKED, options={**_MASK, "score": "energy"}
    ),
    Variant(
        name="mask-random",
        part="importance",
        about="the same share by chance, after the same stage 1",
        base=_MASKED,
        options={**_MASK, "score": "random"},
    ),
    Variant(
        name="unfreezing",
        part="unfreezing",
        about="mask grows linearly to all by half of stage 2",
        base=_MASKED,
        options={**_MASK, "schedule": "linear", "unfreeze_by": 0.5},
    ),
    Variant(
        name="prune",
        part="mode",
        about="masked weights act as zero",
        base=_MASKED,
        options={**_MASK, "mode": "prune"},
    ),
    Variant(
        name="layers",
        part="β",
        about="β per layer from stage 1, held",
        method="layers",
        options={"variance_start": "stage-1"},
    ),
    Variant(
        name="layers-mask",
        part="mask",
        about="with a mask r = 0.6 by importance",
        base="layers",
        options={**_MASK, "variance_start": "stage-1"},
    ),
    Variant(
        name="beta-layer", part="β", about="β per layer, moving, γ2 = 0.99", options={**_MOVING, "per_layer": True}
    ),
    Variant(name="beta", part="β", about="β per coordinate, moving, γ2 = 0.99", options=_MOVING),
    Variant(name="beta-slow", part="γ2", about="γ2 = 0.999", base="beta", options={**_MOVING, "variance_decay": 0.999}),
    Variant(
        name="beta-offset",
        part="μ",
        about="μ = √β₀ in place of 0",
        base="beta",
        options={**_MOVING, "offset": math.sqrt(_START)},
    ),
    Variant(
        name="beta-from-one",
        part="β",
        about="β per coordinate from 1, γ2 = 0.999: all fall together",
        options={"variance_decay": 0.999, "offset": 1e-6},
    ),
    Variant(name="alpha", part="α", about="α moving, γ1 = 0.9", options={"mean_decay": 0.9}),
    Variant(name="alpha-slow", part="γ1", about="γ1 = 0.99", base="alpha", options={"mean_decay": 0.99}),
    Variant(name="top-k", part="top-k", about="each record keeps its largest half", options={"top_k": 0.5}),
    Variant(name="half-bound", part="C", about="half of C", method="dpsgd", bound=CLIP_NORM / 2),
    Variant(name="double-bound", part="C", about="twice C", method="dpsgd", bound=CLIP_NORM * 2),
    Variant(
        name="whole",
        part="all",
        about="the whole method: mask r = 0.6, linear unfreezing, α with γ1 = 0.9, β with γ2 = 0.999",
        method="adadpigu",
        options=_WHOLE,
    ),
    Variant(name="whole-slow", part="γ1", about="γ1 = 0.999", base="whole", method="adadpigu", options=_SLOW),
    Variant(
        name="whole-layers",
        part="β",
        about="β per layer from stage 1, its mean held at 1",
        options={**_SLOW, **_FROM_STAGE_1, "per_layer": True},
        **_ON_SLOW,
    ),
    Variant(
        name="whole-blocks",
        part="β",
        about="β per block of equal released power (16 blocks), from stage 1, its mean held at 1",
        options={**_SLOW, **_FROM_STAGE_1, "blocks": 16},
        **_ON_SLOW,
    ),
    Variant(
        name="whole-noise-start",
        part="β",
        about="β starts at the noise variance of a release, its mean held at 1",
        options={**_SLOW, "variance_start": "noise", **_SHAPED},
        **_ON_SLOW,
    ),
    Variant(
        name="whole-public",
        part="score",
        about="importance from public process images, no stage 1",
        options={**_SLOW, "score": "public"},
        **_ON_SLOW,
    ),
    Variant(
        name="whole-worthwhile",
        part="mask",
        about="a mask only where it loses less power than noise (TP-TopK)",
        options={**_SLOW, "restrict": "worthwhile"},
        **_ON_SLOW,
    ),
    Variant(
        name="whole-top-k",
        part="top-k",
        about="each record keeps its largest ⌊0.6·d⌋ of d entries",
        options={**_SLOW, "top_k": 0.6, "top_k_of": "all"},
        **_ON_SLOW,
    ),
    Variant(
        name="whole-adam", part="optimiser", about="Adam in place of SGD", options=_SLOW, optimizer="adam", **_ON_SLOW
    ),
    Variant(
        name="whole-optimiser",
        part="β",
        about="β is Adam's second moment less the noise variance, at least that variance; its mean held at 1",
        base="whole-adam",
        method="adadpigu",
        options={**_SLOW, "variance_from": "optimiser", "debias": True, "noise_floor": 1.0, **_SHAPED},
        optimizer="adam",
    ),
)
VARIANTS: dict[str, Variant] = {variant.name: variant for variant in _ALL}
"""in the order in which tables show them; a base stands before what is compared with it"""


@dataclass(frozen=True, kw_only=True)
class Net:
    """Where the variants are compared: a net, its data, the length of a run."""

    name: str
    title: str
    config: Mapping[str, Any]
    variants: tuple[str, ...]
    seeds: int
    rates: tuple[float, ...]
    """what each variant's learning rate is chosen from"""

    def job_config(self, variant: Variant, lr: float) -> dict[str, Any]:
        """The run config of a variant on this net."""
        return {**self.config, "lr": lr, **variant.config(int(self.config["steps"]))}


_COMMON = {"epsilon": 4.0, "delta": 1e-5, "normalisation": "record", "momentum": 0.9}
_MEDIUM = (
    *(YARDSTICK, "mask-absolute", "mask-signed", "mask-energy", "mask-random", "unfreezing", "prune"),
    *("layers", "layers-mask", "beta-layer", "beta", "alpha"),
)
_WHOLES = tuple(name for name, variant in VARIANTS.items() if variant.whole)
_LARGE_RATES = (4.0, 8.0, 16.0)
"""around the best of the first rates on the 26k net: three, for a run of that net takes longer"""
_CIFAR = {**_COMMON, "dataset": "cifar10", "ema": 0.95}
NETS: dict[str, Net] = {
    net.name: net
    for net in (
        Net(
            name="26k",
            title="26k: mnist-cnn, Fashion-MNIST",
            config={
                **_COMMON,
                "dataset": "fashion-mnist",
                "model": "mnist-cnn",
                "batch_size": 2048,
                "steps": 600,
                "ema": 0.99,
            },
            variants=tuple(VARIANTS),
            seeds=8,
            rates=(2.0, 4.0, 8.0, 16.0, 32.0),
        ),
        Net(
            name="550k",
            title="550k: cifar-big, CIFAR-10",
            config={**_CIFAR, "model": "cifar-big", "batch_size": 1024, "steps": 150},
            variants=(*_MEDIUM, *_WHOLES),
            seeds=5,
            rates=(1.0, 2.0, *_LARGE_RATES),
        ),
        Net(
            name="prior-linear",
            title="77k: linear head on the prior, CIFAR-10",
            config={**_CIFAR, "features": "prior", "model": "linear", "batch_size": 2048, "steps": 200},
            variants=(YARDSTICK, _MASKED, "layers", *_WHOLES),
            seeds=5,
            rates=(0.5, 1.0, 2.0, 4.0, 8.0),
        ),
        Net(
            name="prior-stage",
            title="2.1M: the prior's last stage and a head, CIFAR-10",
            config={
                **_CIFAR,
                "normalisation": "none",
                "model": "prior-last-stage",
                "batch_size": 512,
                "physical_batch_size": 256,
                "steps": 100,
            },
            variants=(YARDSTICK, *_WHOLES),
            seeds=5,
            rates=(1.0, 2.0, 4.0, 8.0),
        ),
        Net(
            name="wrn",
            title="2.75M: wrn-16-4, CIFAR-10",
            config={**_CIFAR, "model": "wrn-16-4", "batch_size": 512, "steps": 70},
            variants=(YARDSTICK, "mask-absolute", "mask-random", "unfreezing", "layers"),
            seeds=3,
            rates=_LARGE_RATES,
        ),
    )
}
"""in the order in which they are measured, so that whole nets are complete where time runs out"""


def title_of(net: str, model: str, dataset: str) -> str:
    """A net in words; of the quick one, what stands in."""
    return NETS[net].title if net in NETS else f"quick: {model}, {dataset}"


def quick_net() -> Net:
    """A net of seconds: the 26k net on what is cached, a handful of variants, one rate."""
    from adadpigu_paper.reproduce.stand_in import quick_config

    return Net(
        name="quick",
        title="quick",
        config={**_COMMON, **quick_config("fashion-mnist", "mnist-cnn"), "steps": 80, "ema": 0.95},
        variants=(YARDSTICK, "mask-absolute", "mask-random", "layers", "alpha", "whole"),
        seeds=2,
        rates=(4.0,),
    )
