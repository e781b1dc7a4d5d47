"""All audits of all methods: a short list that continuous integration runs, and a long one.

Short: white-box, replay, noise, sampler and accountant, on every method that claims privacy, with its defaults; and
some of them on what the defaults do not have: copies, growing masks, automatic clipping, released normalisation,
several slices a draw, canaries along random directions. Long: the same with more observations, and one-run, many-runs
and membership. A method that registers is in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from adadpigu.audit.accountant import audit_accountant
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
    """One audit of one method, or of one with settings that are not its defaults."""

    method: str
    audit: str
    run: Callable[[Subject, Progress | None], AuditResult]
    settings: Mapping[str, object]
    sample_rate: float
    variant: str = ""
    """what differs from the defaults"""

    @property
    def subject(self) -> str:
        """Who is audited, in a few words."""
        return f"{self.method}, {self.variant}" if self.variant else self.method

    def made(self) -> Subject:
        """Who is audited."""
        settings = merge(read_preset(_BASE), {**self.settings, "method": self.method})
        return subject_of(settings, sample_rate=self.sample_rate)

    def result(self, progress: Progress | None = None) -> AuditResult:
        """Runs it."""
        return self.run(self.made(), progress)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Settings that a path of its own is behind, and the audits that look there."""

    method: str
    settings: Mapping[str, object]
    audits: tuple[str, ...]
    sample_rate: float = 0.05
    options: Mapping[str, object] = field(default_factory=dict)
    """of the audits"""


VARIANTS = {
    "copies": Variant(method="dpsgd", settings={"copies": 2, "flip": True}, audits=("white-box", "replay")),
    "growing mask": Variant(
        method="adadpigu",
        settings={"method_options": {"importance_steps": 8, "retention": 0.2, "schedule": "linear"}},
        audits=("replay", "noise"),
    ),
    "automatic clipping": Variant(
        method="random-freeze", settings={"clipping": "automatic"}, audits=("white-box", "replay")
    ),
    "released normalisation": Variant(
        method="quantile", settings={"normalisation": "released"}, audits=("replay", "noise", "accountant")
    ),
    "long draws in slices": Variant(
        method="dpsgd", settings={"physical_batch_size": 96}, audits=("white-box", "replay"), sample_rate=0.25
    ),
    "long draws at once": Variant(
        method="parameter-freezing", settings={"physical_batch_size": None}, audits=("replay",), sample_rate=0.25
    ),
    "random directions": Variant(method="adadpigu", settings={}, audits=("white-box",), options={"directions": 2}),
}


def entries(*, full: bool = False) -> Iterator[Entry]:
    """The audits to run, method by method, then variant by variant."""
    audits = _LONG_AUDITS if full else _SHORT_AUDITS
    for name, method in all_methods().items():
        if method.private:
            for audit, run in audits.items():
                settings, rate = (_LONG, 0.02) if full and audit in ("white-box", "one-run") else (_SHORT, 0.05)
                yield Entry(method=name, audit=audit, run=run, settings=settings, sample_rate=rate)
    for name, variant in VARIANTS.items():
        for audit in variant.audits:
            yield Entry(
                method=variant.method,
                audit=audit,
                run=partial(audits[audit], **variant.options),
                settings=dict[str, object](_SHORT) | dict(variant.settings),
                sample_rate=variant.sample_rate,
                variant=name,
            )


def _with(audit: Audit, **options: object) -> Callable[..., AuditResult]:
    return lambda subject, progress, **more: audit(subject, progress=progress, **options, **more)


_SHORT_AUDITS = {
    "white-box": _with(audit_white_box, observations=12_000),
    "replay": _with(audit_replay, steps=4),
    "noise": _with(audit_noise, numbers=300_000),
    "sampler": _with(audit_sampler, draws=300),
    "accountant": _with(audit_accountant),
}
_LONG_AUDITS = {
    "white-box": _with(audit_white_box),
    "replay": _with(audit_replay),
    "noise": _with(audit_noise),
    "sampler": _with(audit_sampler),
    "accountant": _with(audit_accountant),
    "one-run": _with(audit_one_run),
    "many-runs": _with(audit_many_runs),
    "membership": _with(audit_membership),
}
