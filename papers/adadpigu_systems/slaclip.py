"""SlaClip: what a record leaves of its bound tells, in the same release, how large gradients are. Sees releases.

    z̄_i = clip_C(g_i)    s_i,k = (C/√K)·[K(1 − ‖z̄_i‖/C) − (k − 1)]₀¹    S = Σ (z̄_i, s_i) + N(0, σ²C² I_{d+K})

[x]₀¹ is x, but at least 0 and at most 1: coordinate k fills up while the norm falls through the k-th of K equal bins of
[0, C], from the top. C then follows a quantile of the norms, read from S.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from adadpigu.core.bounding import MappedSum
from adadpigu.core.mechanism import Release, require_release
from adadpigu.core.state import State, as_tensor
from adadpigu.methods.base import Batches, Method, MethodState, RunContext, Stage, register
from adadpigu.methods.quantile import LARGEST_QUANTILE_CLIP, SMALLEST_QUANTILE_CLIP, Rate, check_start


@register
@dataclass(frozen=True, kw_only=True)
class SlaClip(Method):
    """SlaClip (jax_privacy#317, 2026): a bound that adapts at no cost in noise. Abstract and notes read, no paper.

    Released are the gradient and K further coordinates of one clipped vector, charged as one event (q, σ) a step.
    Proof that a record's (z̄, s) has norm at most C: let n = ‖z̄‖ ≤ C. The K terms [·]₀¹ add up to K(1 − n/C), since
    they cut that number into parts of at most 1. So Σ s_k = √K·(C − n), and with s_k ≤ C/√K

        n² + Σ s_k² ≤ n² + (C/√K)·Σ s_k = n² + C(C − n) = C² − n(C − n) ≤ C².

    So the noise on the gradient is DP-SGD's for this C, and what K costs is the noise on the K coordinates alone. The
    sum clips the joint vector to C once more. The encoding is the published one; the proof is written here.

    Read from S: √K·S_{d+k}/(BC) is the share of records with a norm below x, on average over x in bin k, with noise of
    deviation √K·σ/B. The first bin ends at C; its share moves C, like quantile clipping's count:
    C ← C·exp(−η(share − γ)). The published controller was not read; this one is ours. K = 1 would follow the mean norm,
    a large K follows the quantile at C itself, with more noise.
    """

    name: ClassVar[str] = "slaclip"
    source: ClassVar[str] = "SlaClip, jax_privacy#317 (2026, abstract)"
    adds: ClassVar[str] = "a clipping bound that follows a quantile, told by what records leave of it"
    costs: ClassVar[str] = "one event a step; what moves the bound is in the same release"
    denoises: ClassVar[bool] = True

    clip_norm: float = 0.5
    """C at the start"""
    coordinates: Annotated[int, "at least 1"] = 10
    """K, the bins of [0, C] that norms are counted in"""
    quantile: Annotated[float, "in (0, 1)"] = 0.5
    """γ, the share of records that shall be within C, on average over the last bin below it"""
    clip_rate: Rate = 0.2
    """η, how fast C follows"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_start(self.clip_norm)

    def begin(self, context: RunContext) -> MethodState:
        return _State(self, context)


def with_slack(rows: Tensor, *, clip_norm: float, coordinates: int) -> Tensor:
    """(z̄, s) of each row, [b, d] -> [b, d + K]. A row that is not finite stays so, and the clip drops it.

    >>> with_slack(torch.tensor([[0.0, 0.25], [3.0, 4.0]]), clip_norm=1.0, coordinates=4).tolist()
    [[0.0, 0.25, 0.5, 0.5, 0.5, 0.0], [0.6000000238418579, 0.800000011920929, 0.0, 0.0, 0.0, 0.0]]
    """
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    free = coordinates * (1 - norms / clip_norm).clamp(min=0.0)
    filled = (free - torch.arange(coordinates, device=rows.device)).clamp(0.0, 1.0)
    return torch.cat([rows * (clip_norm / norms).clamp(max=1.0), filled * (clip_norm / math.sqrt(coordinates))], dim=1)


class _State(MethodState):
    def __init__(self, options: SlaClip, context: RunContext) -> None:
        self._options, self._size, self._batch_size = options, context.layout.size, context.batch_size
        self._layer_sizes = context.layout.layer_sizes()
        self.clip_norm = options.clip_norm

    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        count = self._options.coordinates
        of = partial(with_slack, clip_norm=self.clip_norm, coordinates=count)
        released = batches.release(MappedSum(name="gradient", of=of, clip_norm=self.clip_norm))["gradient"]
        unit = self._batch_size * self.clip_norm / math.sqrt(count)
        self.follow(released.map(lambda total: total[self._size] / unit))
        clearer = batches.denoise(released, [*self._layer_sizes, count])
        return clearer.map(lambda total: total[: self._size] / self._batch_size)

    def follow(self, share: Release) -> None:
        """Moves C by the released share of records within the first bin."""
        within = float(require_release(share).value)
        wanted = math.log(self.clip_norm) - self._options.clip_rate * (within - self._options.quantile)
        self.clip_norm = math.exp(min(max(wanted, math.log(SMALLEST_QUANTILE_CLIP)), math.log(LARGEST_QUANTILE_CLIP)))

    def state(self) -> State:
        return {"clip_norm": as_tensor(self.clip_norm)}

    def load(self, state: State) -> None:
        self.clip_norm = float(state["clip_norm"])
