"""All audits of all methods: a short list that continuous integration runs, and a long one.

Short: white-box, replay, noise, sampler and accountant, on every method that claims privacy, with its defaults; and
some of them on what the defaults do not have. Long: the same with more observations, and one-run, many-runs and
membership. A method of the package is in both; one that others plug in is audited by name (`--method`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from adadpigu.audit import AUDITS
from adadpigu.audit.result import AuditResult, Progress
from adadpigu.audit.subject import subject_of
from adadpigu.config import merge, read_preset
from adadpigu.methods import own_methods

_BASE = "digits-adadpigu"  # the preset whose data, model and rates the subjects share
_SHORT: dict[str, dict[str, object]] = {
    "white-box": {"observations": 12_000},
    "replay": {"steps": 4},
    "noise": {"numbers": 300_000},
    "sampler": {"draws": 300},
    "accountant": {},
}
"""the audits of the short list, and their sizes; in the long one they have their own"""


@dataclass(frozen=True)
class Entry:
    """One audit of one method, or of one with settings that are not its defaults."""

    method: str
    audit: str
    settings: Mapping[str, object]
    sample_rate: float
    options: Mapping[str, object]  # of the audit
    variant: str = ""  # what differs from the defaults

    @property
    def subject(self) -> str:
        return f"{self.method}, {self.variant}" if self.variant else self.method

    def result(self, progress: Progress | None = None) -> AuditResult:
        shared = {"epsilon": 8.0, "steps": 100, "method": self.method}
        subject = subject_of(merge(read_preset(_BASE), {**shared, **self.settings}), sample_rate=self.sample_rate)
        return AUDITS[self.audit](subject, progress=progress, **self.options)


_GROWING = {"importance_steps": 8, "retention": 0.2, "schedule": "linear"}
_VARIANTS: tuple[tuple[str, str, tuple[str, ...], dict[str, object], float], ...] = (
    ("copies", "dpsgd", ("white-box", "replay"), {"copies": 2, "flip": True}, 0.05),
    ("growing mask", "adadpigu", ("replay", "noise"), {"method_options": _GROWING}, 0.05),
    ("automatic clipping", "random-freeze", ("white-box", "replay"), {"clipping": "automatic"}, 0.05),
    ("released normalisation", "quantile", ("replay", "noise", "accountant"), {"normalisation": "released"}, 0.05),
    ("long draws in slices", "dpsgd", ("white-box", "replay"), {"physical_batch_size": 96}, 0.25),
    ("long draws at once", "parameter-freezing", ("replay",), {"physical_batch_size": None}, 0.25),
    ("random directions", "adadpigu", ("white-box",), {}, 0.05),
)
"""(what differs, method, audits that look there, settings, q): each has a path of its own behind it"""


def entries(*, full: bool = False) -> Iterator[Entry]:
    """The audits to run, method by method, then variant by variant."""
    sizes = dict[str, dict[str, object]].fromkeys(AUDITS, {}) if full else _SHORT
    for method in (name for name, method in own_methods().items() if method.private):
        for audit, options in sizes.items():
            long = full and audit in ("white-box", "one-run")
            facts, rate = ({"steps": 3000}, 0.02) if long else ({}, 0.05)
            yield Entry(method, audit, settings=facts, sample_rate=rate, options=options)
    for variant, method, audits, settings, rate in _VARIANTS:
        more: dict[str, object] = {"directions": 2} if variant == "random directions" else {}
        for audit in audits:
            yield Entry(method, audit, settings, rate, options=sizes[audit] | more, variant=variant)
