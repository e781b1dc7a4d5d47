"""Quantile clipping: the clipping bound follows a quantile of the gradients' norms, learned from a noisy count.

    b̃ = (Σ (1[‖g_i‖ ≤ C] − ½) + N(0, σ_b²))/B + ½        C ← C·exp(−η(b̃ − γ))

Gradient and count are two releases of one batch at one cost: the count takes the share (σ/(2σ_b))² of the event, the
gradient the rest, so that its noise multiplier is (σ⁻² − (2σ_b)⁻²)^−½. C is a function of releases, so it is public.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from adadpigu.core.bounding import GradientSum, Record, RecordSum
from adadpigu.core.mechanism import Release, require_release
from adadpigu.core.standardising import where_or_zero
from adadpigu.core.state import State, as_tensor
from adadpigu.errors import InputError, require
from adadpigu.methods.base import Batches, Method, MethodState, RunContext, Stage, register

SMALLEST_QUANTILE_CLIP, LARGEST_QUANTILE_CLIP = 1e-6, 1e6  # between these, noise lets C neither vanish nor overflow


Rate = Annotated[float, "a finite number of at least 0"]
CountNoise = Annotated[float | None, "a finite number above 0"]


def check_start(clip_norm: float) -> None:
    """Refuses a bound from which no quantile can be followed."""
    within = SMALLEST_QUANTILE_CLIP <= clip_norm <= LARGEST_QUANTILE_CLIP
    require(within, f"clip_norm={clip_norm} is not in [{SMALLEST_QUANTILE_CLIP:g}, {LARGEST_QUANTILE_CLIP:g}]")


class FollowedBound:
    """C at work: counts, in the same draw as a sum of gradients, who is within it, and moves."""

    def __init__(
        self, clip_norm: float, context: RunContext, *, target: float | None, rate: float, count_noise: float | None
    ) -> None:
        """`target` is γ, the share of records that shall be within C (None: C stays), `rate` η, `count_noise` σ_b."""
        self.value = clip_norm
        self._target, self._rate, self._batch_size = target, rate, context.batch_size
        self.share = 0.0 if target is None else _share_of_count(count_noise, context)  # of the count's event

    def count(self, gradient: GradientSum) -> RecordSum:
        """Who is within the bound of this sum, after its mask, centre, scale and top-k."""
        kept = None if gradient.top_k_count is None or gradient.top_k == 1 else int(gradient.top_k_count)
        bound, active, center, scale = gradient.clip_norm, gradient.active, gradient.center, gradient.scale

        def centred(record: Record) -> Tensor:
            z = record.gradient if center is None else record.gradient - center
            z = z if scale is None else z / scale
            z = z if active is None else where_or_zero(active, z)
            z = z if kept is None else torch.topk(z.abs(), kept, sorted=False).values
            within: Tensor = torch.linalg.vector_norm(z) <= bound
            return within.to(record.gradient.dtype) - 0.5

        return RecordSum(name="within", of=centred, clip_norm=0.5, needs=frozenset({"gradient"}), share=self.share)

    def release(self, batches: Batches, gradient: GradientSum) -> Release:
        """The noisy sum of gradients; a count from the same draw moves C."""
        count = self.count(gradient)
        made = batches.release(gradient, count)
        self.follow(made[count.name])
        return made[gradient.name]

    def follow(self, count: Release) -> None:
        """Moves C towards the quantile."""
        assert self._target is not None
        within = float(require_release(count).value) / self._batch_size + 0.5
        wanted = math.log(self.value) - self._rate * (within - self._target)
        self.value = math.exp(min(max(wanted, math.log(SMALLEST_QUANTILE_CLIP)), math.log(LARGEST_QUANTILE_CLIP)))

    def state(self) -> State:
        return {"clip_norm": as_tensor(self.value)}

    def load(self, state: State) -> None:
        self.value = float(state["clip_norm"])


def _share_of_count(count_noise: float | None, context: RunContext) -> float:
    """(σ/(2σ_b))², the share of an event that a count with noise σ_b takes."""
    sigma = context.noise_multiplier
    noise = context.batch_size / 20 if count_noise is None else count_noise
    if not sigma < 2 * noise:
        told = f"count_noise={noise:g} with noise_multiplier={sigma:g} leaves nothing for the gradient"
        raise InputError(f"{told}; allowed: count_noise above {sigma / 2:g}, half the noise multiplier")
    share = (sigma / (2 * noise)) ** 2
    require(0 < share < 1, f"count_noise={noise:g} is too large beside noise_multiplier={sigma:g} to count anything")
    return share


@register
@dataclass(frozen=True, kw_only=True)
class QuantileClipping(Method):
    """Adaptive clipping by a quantile of the norms (Andrew et al. 2021).

    The count is centred: 1[‖g_i‖ ≤ C] itself changes by 1 with a record, 1[·] − ½ by ½ either way, so half the noise
    is enough, and b̃ needs no count of who was drawn: B is the expected batch size.
    """

    name: ClassVar[str] = "quantile"
    source: ClassVar[str] = "Andrew et al. 2021"
    adds: ClassVar[str] = "a clipping bound that follows a quantile of the gradients' norms"
    costs: ClassVar[str] = "one event a step, shared by the gradient and the count"
    denoises: ClassVar[bool] = True

    clip_norm: float = 0.1
    """C at the start"""
    quantile: Annotated[float, "in (0, 1)"] = 0.5
    """γ, the share of records that shall be within C"""
    clip_rate: Rate = 0.2
    """η, how fast C follows"""
    count_noise: CountNoise = None
    """σ_b, the noise on the count; unset: a twentieth of the expected batch size"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_start(self.clip_norm)

    def begin(self, context: RunContext) -> MethodState:
        bound = FollowedBound(
            self.clip_norm, context, target=self.quantile, rate=self.clip_rate, count_noise=self.count_noise
        )
        return _State(bound, context.batch_size)


class _State(MethodState):
    def __init__(self, bound: FollowedBound, batch_size: int) -> None:
        self._bound, self._batch_size = bound, batch_size

    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        gradient = GradientSum(clip_norm=self._bound.value, share=1 - self._bound.share)
        total = batches.denoise(self._bound.release(batches, gradient))
        return total.map(lambda value: gradient.restore(value, self._batch_size))

    def state(self) -> State:
        return self._bound.state()

    def load(self, state: State) -> None:
        self._bound.load(state)
