"""All audits of all methods: a short list that continuous integration runs, and a long one.

Short: white-box, replay, noise and sampler, on every method that claims privacy, with its defaults. Long: the same with
more observations, and one-run, many-runs and membership. A method that registers is in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from adadpigu.audit.many_runs import audit_many_runs
from adadpigu.audit.membership import audit_membership
from adadpigu.audit.noise import audit_noise
from adadpigu.audit.one_run import audit_one_run
from adadpigu.audit.replay import audit_replay
from adadpigu.audit.result import AuditResult, Progress
from adadpigu.audit.sampler import audit_sampler
from adadpigu.audit.subject import Subject, subject_of
from adadpigu.audit.white_box import audit_white_box
from adadpigu.config import merge, read_preset
from adadpigu.methods import all_methods

Audit = Callable[..., AuditResult]

_BASE = "digits-adadpigu"
"""the preset whose data, model and rates the subjects share"""
_SHORT = {"epsilon": 8.0, "steps": 100}
_LONG = {"epsilon": 8.0, "steps": 3000}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One audit of one method."""

    method: str
    audit: str
    run: Callable[[Subject, Progress | None], AuditResult]
    settings: Mapping[str, object]
    sample_rate: float

    def result(self, progress: Progress | None = None) -> AuditResult:
        """Runs it."""
        settings = merge(read_preset(_BASE), {**self.settings, "method": self.method})
        return self.run(subject_of(settings, sample_rate=self.sample_rate), progress)


def entries(*, full: bool = False) -> Iterator[Entry]:
    """The audits to run, method by method."""
    for name, method in all_methods().items():
        if method.private:
            for audit, run in (_LONG_AUDITS if full else _SHORT_AUDITS).items():
                settings, rate = (_LONG, 0.02) if full and audit in ("white-box", "one-run") else (_SHORT, 0.05)
                yield Entry(method=name, audit=audit, run=run, settings=settings, sample_rate=rate)


def _with(audit: Audit, **options: object) -> Callable[[Subject, Progress | None], AuditResult]:
    return lambda subject, progress: audit(subject, progress=progress, **options)


_SHORT_AUDITS = {
    "white-box": _with(audit_white_box, observations=12_000),
    "replay": _with(audit_replay, steps=4),
    "noise": _with(audit_noise, numbers=300_000),
    "sampler": _with(audit_sampler, draws=300),
}
_LONG_AUDITS = {
    "white-box": _with(audit_white_box),
    "replay": _with(audit_replay),
    "noise": _with(audit_noise),
    "sampler": _with(audit_sampler),
    "one-run": _with(audit_one_run),
    "many-runs": _with(audit_many_runs),
    "membership": _with(audit_membership),
}
