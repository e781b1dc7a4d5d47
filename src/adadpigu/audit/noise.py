"""Is what was added to every sum Gaussian, of the claimed size, and drawn afresh each time?

The subject's own training loop is run on public records or stand-ins (`listening`). The noise over what is claimed has
to be N(0, 1) and independent from one coordinate, tensor, release, step, run and life of a run to the next (`laws`); an
empty draw gets it too, and a frozen coordinate never.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from adadpigu.accounting import PlannedDraw, epsilon
from adadpigu.audit.laws import (
    Check,
    Numbers,
    autocorrelation,
    binomial_p,
    distance_p,
    mean_p,
    product_p,
    product_reach,
    refuted,
    spread_p,
)
from adadpigu.audit.listening import Heard, Listener, Part, listen
from adadpigu.audit.result import REFUTING, AuditResult, Progress, check_confidence
from adadpigu.audit.subject import Subject
from adadpigu.errors import InputError
from adadpigu.layout import Layout
from adadpigu.randomness import Randomness

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FEWEST = 10_000
_TAILS = (3.0, 4.0, 4.5)


def audit_noise(
    subject: Subject,
    *,
    numbers: int = 1_000_000,
    confidence: float = 0.95,
    progress: Progress | None = None,
    randomness: Randomness | None = None,
) -> AuditResult:
    """Trains until so many numbers of noise were drawn, and holds them to what is claimed.

    `randomness` unset is what training would choose.

    Formal guarantee: noise that is as claimed fails with a probability of at most 1e-6: half of it for all findings
    together, half for the standard deviations that `epsilon_certain` goes by.
    """
    check_confidence(confidence)
    if numbers < _FEWEST:
        raise InputError(f"numbers={numbers} are too few to tell a standard deviation; allowed: at least {_FEWEST}")
    heard = listen(subject, numbers, randomness, progress)
    kinds, z = _kinds(heard.whole.parts), _flat(heard.whole.parts)
    repeats, checks = _Repeats.among(heard.whole.parts), list(_shape_checks(kinds, z))
    checks += [*_fresh_checks(heard, repeats), _empty_check(heard.empty)]
    return AuditResult(
        audit="noise",
        subject=subject.label,
        epsilon_claimed=subject.epsilon,
        delta=subject.delta,
        epsilon_lower=_cost(subject, kinds, 1 - confidence),
        epsilon_certain=_cost(subject, kinds, REFUTING / 2),
        confidence=confidence,
        observations=len(z),
        exposed=subject.exposed,
        assumed=(
            "one record moves a sum by no more than its sensitivity (`adadpigu audit replay` tests that)",
            "records are sampled as claimed (`adadpigu audit sampler` tests that)",
            "noise has no pattern of a kind that these tests do not look at",
        ),
        findings=(*subject.findings, *_plain(heard), *refuted(checks, REFUTING / 2)),
        details={
            "noise_multiplier": subject.noise_multiplier,
            "releases": [kind.summary(confidence) for kind in kinds],
            "largest": float(np.abs(z).max()),
            "frozen_disturbed": sum(part.disturbed for part in (heard.whole, heard.empty, heard.lives)),
            "empty_draws": heard.empty.released,
            "p_values": {check.name: check.p for check in checks},
        },
        draw=partial(_draw, z=z, repeats=repeats),
    )


@dataclass(frozen=True)
class _Kind:
    """All noise of one named release."""

    draw: PlannedDraw
    name: str
    share: float
    z: Numbers

    @property
    def squares(self) -> float:
        return float(self.z @ self.z)

    def most(self, significance: float) -> float:
        """The standard deviation, over what is claimed, that would give so little noise with that probability."""
        from scipy.stats import chi2

        return math.sqrt(self.squares / chi2.ppf(significance, len(self.z)))

    def summary(self, confidence: float) -> dict[str, object]:
        from scipy.stats import chi2

        side = (1 - confidence) / 2
        return {
            "draw": self.draw.name,
            "name": self.name,
            "numbers": len(self.z),
            "noise_multiplier": self.draw.noise_multiplier / math.sqrt(self.share),
            "stddev": math.sqrt(self.squares / len(self.z)),
            "stddev_interval": [math.sqrt(self.squares / chi2.isf(side, len(self.z))), self.most(side)],
            "mean": float(self.z.mean()),
        }


def _kinds(parts: Sequence[Part]) -> list[_Kind]:
    found: dict[tuple[PlannedDraw, str], list[Part]] = {}
    for part in parts:
        if part.due.any():
            found.setdefault((part.draw, part.name), []).append(part)
    return [_Kind(draw, name, min(part.share for part in them), _flat(them)) for (draw, name), them in found.items()]


def _flat(parts: Sequence[Part]) -> Numbers:
    return np.concatenate([part.z[part.due] for part in parts])


def _plain(heard: Heard) -> Iterator[str]:
    """What needs no test to be wrong."""
    runs = (heard.whole, heard.empty, heard.lives)
    if disturbed := sum(run.disturbed for run in runs):
        yield f"{disturbed} numbers were released of coordinates that are frozen"
    if odd := sum(run.odd for run in runs):
        yield f"{odd} numbers of noise are not finite"
    if missing := sum(run.charged - run.released for run in runs):
        yield f"{missing} draws were charged, and nothing was released from them"
    empty = heard.empty
    if empty.charged != empty.planned:
        yield f"of {empty.planned} draws in which nobody is drawn, {empty.charged} were made"
    if empty.bare:
        yield f"{empty.bare} of {empty.count} numbers that were released of nobody have no noise"
    if empty.loud:
        yield f"{empty.loud} sums over nobody are not 0"
    if heard.single_precision:
        yield "noise is drawn in single precision: it has gaps, and an end at 5.8 standard deviations"


def _shape_checks(kinds: Sequence[_Kind], z: Numbers) -> Iterator[Check]:
    """Whether the numbers are N(0, 1), one by one."""
    from scipy.stats import norm

    for kind in kinds:
        spread = math.sqrt(kind.squares / len(kind.z))
        yield Check(
            name=f"{kind.draw.name}, {kind.name}: standard deviation",
            p=spread_p(kind.squares, len(kind.z)),
            told=f"the noise on {kind.name!r} has {spread:.4g} times the standard deviation that is claimed",
        )
    yield Check(name="mean", p=mean_p(float(z.sum()), len(z)), told=f"the noise has mean {z.mean():.4g} instead of 0")
    for edge in _TAILS:
        chance = float(norm.sf(edge))
        for side, seen in (("above", int((z > edge).sum())), ("below −", int((z < -edge).sum()))):
            yield Check(
                name=f"{side} {edge:g}".replace("− ", "−"),
                p=binomial_p(seen, len(z), chance),
                told=f"{seen} of {len(z)} numbers lie {side} {edge:g} standard deviations, "
                f"{len(z) * chance:.1f} are expected".replace("− ", "−"),
            )
    p, distance = distance_p(np.sort(z))
    yield Check(name="distance", p=p, told=f"the noise's distribution is {distance:.3g} away from a Gaussian's")


@dataclass(frozen=True)
class _Repeats:
    """Of a sequence of noise, how much it agrees with itself at every lag from 1 on."""

    products: Numbers
    pairs: Numbers

    @classmethod
    def among(cls, parts: Sequence[Part]) -> _Repeats:
        """Numbers that are not due keep their place, so that what repeats does so at one lag, whatever the mask."""
        products, pairs = autocorrelation(
            np.concatenate([part.z for part in parts]), np.concatenate([part.due for part in parts])
        )
        return cls(products, pairs)

    def check(self, name: str, where: str) -> Check:
        """The worst lag, for as many as there are."""
        chances = product_p(self.products, self.pairs)
        worst = int(np.argmin(chances))
        share = self.products[worst] / max(1.0, self.pairs[worst])
        return Check(
            name=name,
            p=min(1.0, float(chances[worst]) * len(chances)),
            told=f"{where}the noise repeats itself after {worst + 1} numbers (correlation {share:.3g})",
        )


def _fresh_checks(heard: Heard, repeats: _Repeats) -> Iterator[Check]:
    """Whether the numbers were drawn afresh."""
    yield repeats.check("repeats", "")
    yield _Repeats.among(heard.lives.parts).check("repeats after a resume", "in a run that was resumed ")
    yield from _tensor_check(heard.whole.parts, heard.layout)


def _tensor_check(parts: Sequence[Part], layout: Layout) -> Iterator[Check]:
    """Whether the noise of a tensor begins as that of the largest one does: too little to see at a single lag."""
    width = max(len(part.z) for part in parts)
    rows = [part for part in parts if len(part.z) == width]
    slots = [slot for slot in layout.slots if slot.stop <= width]
    if len(slots) < 2:
        return
    z, due = np.stack([part.z for part in rows]), np.stack([part.due for part in rows])
    largest = max(slots, key=lambda slot: slot.stop - slot.start)
    found = []
    for slot in slots:
        size = slot.stop - slot.start
        one, other = slice(slot.start, slot.stop), slice(largest.start, largest.start + size)
        both = float((due[:, one] & due[:, other]).sum())
        agree = float((z[:, one] * z[:, other]).sum())
        if slot is not largest:
            found.append((float(product_p(agree, both)), slot.name, agree / max(1.0, both)))
    p, name, share = min(found)
    yield Check(
        name="tensors",
        p=min(1.0, p * len(found)),
        told=f"the noise on {name!r} is that on {largest.name!r} again (correlation {share:.3g})",
    )


def _empty_check(empty: Listener) -> Check:
    z = _flat(empty.parts) if empty.parts else np.zeros(1)
    squares = float(z @ z)
    return Check(
        name="empty draws",
        p=spread_p(squares, len(z)),
        told=f"the noise of empty draws has {math.sqrt(squares / len(z)):.4g} times the standard deviation claimed",
    )


def _cost(subject: Subject, kinds: Sequence[_Kind], significance: float) -> float:
    """ε of the claim's plan with no more noise than the bounds that hold together leave possible.

    Of several releases of one draw, the one that tells most is counted alone: the others can only add to ε.
    """
    noise: dict[PlannedDraw, float] = {}
    for kind in kinds:
        factor = kind.most(significance / len(kinds)) / math.sqrt(kind.share)
        noise[kind.draw] = min(factor, noise.get(kind.draw, math.inf))
    stages = tuple(
        replace(
            stage,
            draws=tuple(replace(d, noise_multiplier=d.noise_multiplier * noise[d]) for d in stage.draws if d in noise),
        )
        for stage in subject.plan.stages
    )
    return epsilon(replace(subject.plan, stages=stages).event(), subject.delta)


def _draw(figure: Figure, *, z: Numbers, repeats: _Repeats) -> None:
    left, right = figure.subplots(1, 2)
    _histogram(left, z)
    _correlogram(right, repeats)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)


def _histogram(axes: Axes, z: Numbers) -> None:
    edges = np.linspace(-6, 6, 97)
    middle, width = (edges[1:] + edges[:-1]) / 2, edges[1] - edges[0]
    axes.hist(z, bins=edges.tolist(), color="#1b6ca8", alpha=0.5, label="seen")
    expected = len(z) * width * np.exp(-(middle**2) / 2) / math.sqrt(2 * math.pi)
    axes.plot(middle, expected, color="#c8553d", linewidth=1.2, label="N(0, 1)")
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.5)
    axes.set_xlabel("noise over what is claimed")
    axes.set_ylabel("numbers")


def _correlogram(axes: Axes, repeats: _Repeats) -> None:
    """The largest correlation in each of some hundred ranges of lags, and where a test would have refuted."""
    lags = np.arange(1, len(repeats.products) + 1)
    strength = np.abs(repeats.products) / np.maximum(repeats.pairs, 1)
    limit = product_reach(repeats.pairs, REFUTING / len(lags)) / np.maximum(repeats.pairs, 1)
    kept = repeats.pairs >= 0.02 * repeats.pairs.max()
    ranges = np.array_split(np.flatnonzero(kept), 300)
    worst = [block[np.argmax(strength[block])] for block in ranges if len(block)]
    axes.plot(lags[worst], strength[worst], ".", markersize=3, color="#1b6ca8", label="largest seen")
    axes.plot(lags[worst], limit[worst], color="#c8553d", linewidth=1.2, label="not by chance (1e-6)")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("lag, numbers")
    axes.set_ylabel("correlation")
