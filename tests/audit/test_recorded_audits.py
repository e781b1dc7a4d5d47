"""Noise, white-box and accountant look on while steps are recorded and replayed: by a recorder for tests, or a GPU's.

Clean subjects fail with a probability of at most 1e-6 each. Planted faults are so plain that a miss has one below 1e-6.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from adadpigu.accounting import Ledger
from adadpigu.accounting.ledger_reading import LEDGER_FILE
from adadpigu.audit.accountant import audit_accountant
from adadpigu.audit.noise import audit_noise
from adadpigu.audit.result import AuditResult
from adadpigu.audit.sampler import audit_sampler
from adadpigu.audit.subject import Subject, subject_of, trained_through
from adadpigu.audit.white_box import audit_white_box
from adadpigu.config import merge, read_preset
from adadpigu.core import mechanism, standardising
from adadpigu.core.bounding import BoundedSum
from adadpigu.core.fixed_batch import FixedBatch
from adadpigu.core.kernels import chacha
from adadpigu.core.mechanism import GaussianMechanism, Release
from adadpigu.core.randomness import DeviceChaCha, DeviceRandomness, Randomness
from adadpigu.runs.run import Run
from adadpigu.training.cuda_graphs import CapturedDraw, ReplayedDraws
from adadpigu.training.loop import Session
from adadpigu.training.preparation import Preparation
from adadpigu.training.resuming import Begun
from replayed_operations import ReplayedOperations

pytestmark = pytest.mark.usefixtures("coarse_cost")
GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))
AUDITS: dict[str, Callable[[Subject], AuditResult]] = {
    "noise": lambda subject: audit_noise(subject, numbers=60_000),
    "white-box": lambda subject: audit_white_box(subject, observations=2500),
    "directions": lambda subject: audit_white_box(subject, observations=2500, directions=4),
    "accountant": audit_accountant,
}


@cache
def subject(method: str, device: str) -> Subject:
    shared = {"noise_multiplier": 1.0, "epsilon": None, "steps": 60, "method": method, "ema": None}
    tier = "fast" if device == "cpu" else "secure"
    given = {**shared, "device": device, "randomness": tier, "physical_batch_size": None}
    return subject_of(merge(read_preset("digits-dpsgd"), given), sample_rate=0.1)


def by_recorder(ready: Preparation, *, randomness: Any, out: Path | None = None, **how: Any) -> Run:
    """Trains as `train_prepared` does, with a recorder that a CPU has."""
    source = DeviceRandomness(ready.device) if randomness == "fast" else randomness
    recorder = ReplayedOperations(source.coins, source.noise, torch.default_generator)
    if out is not None:
        out.mkdir()
    ledger = Ledger(ready.plan, budget=ready.budget, path=None if out is None else out / LEDGER_FILE)
    with ledger:
        return Session(Begun(prepared=ready, ledger=ledger), randomness=source, recorder=recorder, **how).run()


@contextmanager
def recording(device: str) -> Iterator[None]:
    if device == "cuda":
        yield
        return

    def unseen(z: Tensor, factors: Tensor) -> Tensor:
        return z.masked_fill((factors == 0)[:, None], 0.0).mT @ factors

    with pytest.MonkeyPatch.context() as patch, trained_through(by_recorder):
        patch.setattr(standardising, "weighted_total", unseen)  # as a GPU does
        patch.setattr(FixedBatch, "size_for", staticmethod(lambda batch_size, rate: 320))  # canaries and all
        yield


def audited(audit: str, method: str, device: str) -> AuditResult:
    with recording(device):
        return AUDITS[audit](subject(method, device))


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("audit", AUDITS)
@pytest.mark.parametrize("method", ["dpsgd", "adadpigu", "adaclip"])
def test_an_audit_sees_recorded_steps_and_leaves_them_recorded(method: str, audit: str, device: str) -> None:
    result = audited(audit, method, device)
    assert result.passed, result.findings
    assert "eager: " not in result.details["execution"].split(";")[0], result.details["execution"]
    assert result.details["replayed_steps"] > 10, result.details
    assert result.epsilon_lower > 0.5 * result.epsilon_claimed


Noisy = Callable[[GaussianMechanism, BoundedSum, float], Release]
Plant = Callable[[GaussianMechanism, BoundedSum, float, Noisy], Release]


def halved_when_recorded(self: GaussianMechanism, total: BoundedSum, sigma: float, genuine: Noisy) -> Release:
    return genuine(self, total, sigma / 2 if mechanism.capturing() else sigma)


def halved_when_eager(self: GaussianMechanism, total: BoundedSum, sigma: float, genuine: Noisy) -> Release:
    return genuine(self, total, sigma if mechanism.capturing() else sigma / 2)


def never_redrawn(self: GaussianMechanism, total: BoundedSum, sigma: float, genuine: Noisy) -> Release:
    """The recorded step adds noise that was drawn beforehand, the same at every replay."""
    if not mechanism.capturing():
        return genuine(self, total, sigma)
    kept, own = _kept(total), self._randomness
    self._randomness = cast(Randomness, _Given(kept))
    try:
        return genuine(self, total, sigma)
    finally:
        self._randomness = own


class _Given:
    """Normal numbers that were drawn before."""

    private = True

    def __init__(self, kept: Tensor) -> None:
        self._kept = kept

    def normal(self, count: int) -> Tensor:
        return self._kept[:count]


_drawn: dict[tuple[int, str], Tensor] = {}


def _kept(total: BoundedSum) -> Tensor:
    return _drawn[total.size, str(total._content.device)]


CAUGHT: dict[str, tuple[Plant, str, tuple[str, ...]]] = {
    "halved at replay": (halved_when_recorded, r"times the standard deviation", ("noise", "white-box")),
    "halved but at replay": (halved_when_eager, r"times the standard deviation", ("noise",)),
    "not redrawn at replay": (never_redrawn, "repeats itself after|the very numbers", ("noise",)),
}


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize(
    ("plant", "audit"), [(name, audit) for name, (_, _, audits) in CAUGHT.items() for audit in audits]
)
def test_noise_that_is_bad_in_recorded_steps_alone_is_refuted(
    plant: str, audit: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted, words, _ = CAUGHT[plant]
    genuine = GaussianMechanism._noisy
    size = subject("dpsgd", device).prepare().engine.layout.size
    for length in (size, size + 2048):
        where = "cpu" if device == "cpu" else "cuda:0"
        _drawn[length, where] = torch.randn(length, dtype=torch.float64, device=device)
    monkeypatch.setattr(GaussianMechanism, "_noisy", lambda self, total, sigma: planted(self, total, sigma, genuine))
    result = audited(audit, "dpsgd", device)
    assert not result.passed
    if audit == "noise":
        assert any(re.search(words, finding) for finding in result.findings), result.findings


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("kept", "audit"), [("_drawn", audit_noise), ("_tossed", audit_sampler)])
def test_numbers_that_are_not_counted_at_replays_are_found(
    kept: str, audit: Callable[[Subject], AuditResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recorded step that does not count what it has drawn has the same noise, or tosses the same coins, for ever."""
    genuine, make = chacha.Stream._made, DeviceChaCha._rekey

    def uncounted(self: chacha.Stream, what: Any, size: int, scale: float = 1.0) -> Tensor:
        if not (torch.cuda.is_current_stream_capturing() and vars(self).get("uncounted")):
            return genuine(self, what, size, scale)
        counted = self._next
        self._next = counted.clone()
        try:
            return genuine(self, what, size, scale)
        finally:
            self._next = counted

    def rekey(self: DeviceChaCha) -> None:
        make(self)
        vars(vars(self)[kept])["uncounted"] = True

    monkeypatch.setattr(chacha.Stream, "_made", uncounted)
    monkeypatch.setattr(DeviceChaCha, "_rekey", rekey)
    assert not audit(subject("dpsgd", "cuda")).passed


Replays = Callable[[], None]


def uncharged(self: ReplayedDraws, drawn: CapturedDraw, run: Replays, genuine: Any) -> bool:
    """Drawn and released as ever, without a charge."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "charge", lambda *_, **__: None)
        return bool(genuine(self, drawn, run))


def drawn_before(self: ReplayedDraws, drawn: CapturedDraw, run: Replays, genuine: Any) -> bool:
    """The records of the replay before are taken once more, and nothing is paid."""
    run()
    return True


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize(
    ("plant", "words"), [(uncharged, "draws were made"), (drawn_before, "draws were made|coins were tossed for")]
)
def test_replays_of_which_every_other_one_is_free_are_counted(
    plant: Any, words: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine, replays = ReplayedDraws.replay, count()

    def replay(self: ReplayedDraws, drawn: CapturedDraw, run: Replays) -> bool:
        return plant(self, drawn, run, genuine) if next(replays) % 2 else genuine(self, drawn, run)

    monkeypatch.setattr(ReplayedDraws, "replay", replay)
    result = audited("accountant", "dpsgd", device)
    assert not result.passed
    found = [line for line in result.findings if re.search(words, line)]
    assert len(found) == words.count("|") + 1, result.findings
