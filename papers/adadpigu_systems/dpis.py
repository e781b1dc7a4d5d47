"""DPIS: records are taken with a probability in proportion to the norm of their clipped gradient. Sees releases.

    ḡ_i = clip_C(g_i)    kept_i ~ Bernoulli(‖ḡ_i‖/C)    S = Σ kept_i · C·ḡ_i/‖ḡ_i‖ + N(0, σ²C² I)    ĝ = S/B

Published, p_i = b‖ḡ_i‖/K with K = Σ ‖ḡ_j‖, which is released with noise of its own. This form needs no K.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from adadpigu.core.bounding import MappedSum
from adadpigu.core.mechanism import Release
from adadpigu.core.standardising import where_or_zero
from adadpigu.methods.base import Batches, Method, MethodState, Positive, RunContext, Stage, register


@register
@dataclass(frozen=True, kw_only=True)
class DPIS(Method):
    """Importance sampling (Wei et al., CCS 2022) in a form that never sums norms.

    Released is S, charged as one event (q, σ) a step. Proof. Fix the coins of all records: they are independent of the
    inclusion coins, of the noise and of each other, and one record's goes into its own term alone. A term has norm 0 or
    C, so S is a Poisson-sampled Gaussian sum of sensitivity C under adding or removing a record, whatever the coins
    are; a mixture of mechanisms with the same guarantee over coins of the same law has that guarantee. No coin counts
    as noise: a record's true rate q‖ḡ_i‖/C is at most q, and what small gradients gain by it is not claimed.

    Unbiased: E[S | batch] = Σ (‖ḡ_i‖/C)·C·ḡ_i/‖ḡ_i‖ = Σ ḡ_i, DP-SGD's sum. A coin adds the variance C‖ḡ_i‖ − ‖ḡ_i‖².

    At equal q and σ it is therefore no better than DP-SGD. The paper's comparison is at an equal number of records
    that are *kept*, q·Σ‖ḡ_i‖/C on average, which allows a larger q: raise the batch size for it.
    """

    name: ClassVar[str] = "dpis"
    source: ClassVar[str] = "Wei et al., CCS 2022"
    adds: ClassVar[str] = "records are kept by a private coin, in proportion to the norm of their clipped gradient"
    costs: ClassVar[str] = "one event a step, at the full sampling rate"
    denoises: ClassVar[bool] = True

    clip_norm: Positive = 0.5
    """C"""

    def begin(self, context: RunContext) -> MethodState:
        return _State(self.clip_norm, context.batch_size)


def kept_at_bound(rows: Tensor, coins: Tensor, *, clip_norm: float) -> Tensor:
    """C·g/‖g‖ of each row with the probability min(1, ‖g‖/C), or else zero, [b, d]; `coins` are uniform in [0, 1).

    >>> kept_at_bound(torch.tensor([[0.3, 0.4], [0.3, 0.4]]), torch.tensor([0.4, 0.6]), clip_norm=1.0).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    norms = torch.linalg.vector_norm(rows, dim=1)
    kept = ~(coins >= norms / clip_norm)  # a norm that is no number keeps its row, which the clip then drops
    return where_or_zero(kept[:, None], rows * (clip_norm / norms)[:, None])


class _State(MethodState):
    def __init__(self, clip_norm: float, batch_size: int) -> None:
        of = partial(kept_at_bound, clip_norm=clip_norm)
        self._query = MappedSum(name="gradient", of=of, clip_norm=clip_norm, coin=True)
        self._batch_size = batch_size

    def step(self, batches: Batches, stage: Stage, index: int) -> Release:
        return batches.denoise(batches.release(self._query)["gradient"]).map(lambda total: total / self._batch_size)
