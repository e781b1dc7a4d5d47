"""The privacy report of a run (`privacy.json`): what is claimed, under which assumptions, and what is not covered.

The claim is the ε of the *whole plan*, also for a run that was stopped: when to stop may depend on what was seen.
Every field is public. `wording` renders it for people.
"""

import dataclasses
import functools
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, TypeVar

from adadpigu.accounting import accountants
from adadpigu.accounting.events import RELATION, SAMPLER, DpEvent, compose, event_from_json, event_to_json, leaves
from adadpigu.accounting.journal import strict_json
from adadpigu.accounting.ledger_reading import LedgerSession, ReleaseSummary
from adadpigu.accounting.membership import MembershipBounds, membership_bounds
from adadpigu.accounting.plan import Plan
from adadpigu.accounting.repeating import Repeats
from adadpigu.accounting.shared import SharedTotal
from adadpigu.accounting.wording import render
from adadpigu.errors import InputError

FORMAT = "adadpigu-privacy-1"
_DERIVED = ("format", "relation", "sampler", "steps_charged")  # in the JSON beside the fields
_GUESSES = tuple(field.name for field in dataclasses.fields(MembershipBounds))  # in the JSON in place of `membership`
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class StageSteps:
    name: str
    planned: int
    done: int


@dataclass(frozen=True, kw_only=True)
class EventCount:
    """A planned event (as `event_to_json` writes it) and how often the plan holds it."""

    event: Mapping[str, object]
    count: int


@dataclass(frozen=True, kw_only=True)
class PrivacyReport:
    """Everything an auditor needs; `privacy_report` fills it in consistently."""

    private: bool
    method: str
    epsilon_pld: float
    epsilon_rdp: float
    epsilon_rdp_classic: float
    epsilon_spent: float  # ε (PLD) of what was charged until the run ended; for information, the claim is `epsilon_pld`
    target_epsilon: float | None
    delta: float
    records: int  # the declared public record count N
    expected_batch_size: float
    sample_rate: float
    noise_multiplier: float
    clip_norm: float | None
    stages: tuple[StageSteps, ...]
    events: tuple[EventCount, ...]
    releases: tuple[ReleaseSummary, ...]
    randomness: str
    randomness_private: bool
    diagnostics_exposed: bool = False
    interrupted: bool = False
    sessions: tuple[LedgerSession, ...] = ()  # the processes that worked on the run: more than one where it was resumed
    shared: SharedTotal | None = None  # what all runs on the same shared ledger may have spent, this one included
    not_covered: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    unit_of_privacy: str = "one record"
    membership: MembershipBounds | None = None  # what a guess can gain at most; None in files of earlier versions

    @property
    def epsilon(self) -> float:
        """ε, the one to cite: by PLD, for the whole plan."""
        return self.epsilon_pld

    @property
    def steps_charged(self) -> int:
        """All steps that were ever charged, those that were repeated after a crash counted again."""
        return sum(session.steps for session in self.sessions)

    def event(self) -> DpEvent:
        """The planned events as one composition, for any accountant to replay."""
        return compose((event_from_json(group.event), group.count) for group in self.events)

    def statement(self) -> str:
        """The guarantee in plain words, wrapped for a terminal."""
        return render(self)

    def to_json(self) -> dict[str, object]:
        """Strict JSON: an infinite number (no guarantee at all) becomes null."""
        derived = {"relation": RELATION, "sampler": SAMPLER, "steps_charged": self.steps_charged}
        fields = {"lives" if k == "sessions" else k: v for k, v in dataclasses.asdict(self).items()}
        guesses = fields.pop("membership") or {}
        return {"format": FORMAT, **strict_json(fields | guesses | derived)}

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> "PrivacyReport":
        """The inverse of `to_json`; null in a number becomes infinity again."""
        if data.get("format") != FORMAT:
            raise InputError(f"format={data.get('format')!r}: must be {FORMAT!r}")
        fields: dict[str, Any] = {k: v for k, v in data.items() if k not in _DERIVED}
        kinds = {"stages": StageSteps, "events": EventCount, "releases": ReleaseSummary, "lives": LedgerSession}
        try:
            for name, kind in kinds.items():
                fields[name] = tuple(_record(kind, entry) for entry in fields.get(name, ()))
            fields["sessions"] = fields.pop("lives")  # the name in the files
            guesses = {k: fields.pop(k) for k in _GUESSES if k in fields}
            fields["membership"] = MembershipBounds(**guesses) if guesses else None
            if fields.get("shared") is not None:
                fields["shared"] = _record(SharedTotal, fields["shared"])
            for name in ("not_covered", "warnings"):
                fields[name] = tuple(fields[name])
            return _record(cls, fields)
        except (KeyError, TypeError) as error:
            raise InputError(f"not a privacy report: {error}") from error


def privacy_report(
    *,
    plan: Plan,
    spent: DpEvent,
    delta: float,
    records: int,
    expected_batch_size: float,
    steps_done: Mapping[str, int],
    randomness_private: bool,
    diagnostics_exposed: bool = False,
    not_covered: Sequence[str] = (),
    warnings: Sequence[str] = (),
    repeats: Repeats | None = None,
    **facts: Any,
) -> PrivacyReport:
    """The report of a run, its ε values computed from the plan and from what was spent (`ledger.events()`).

    Of a run that is the best of several (`repeats`) all of them are claimed, and spent from the start.
    `private` follows: a finite ε and noise that nobody can repeat. `not_covered` and `warnings` add to the usual ones.
    `facts` are the other fields of `PrivacyReport`, as they are.
    """
    planned = plan.event() if repeats is None else repeats.event(plan)
    claim = accountants.epsilons(planned, delta)
    return PrivacyReport(
        private=math.isfinite(claim["pld"]) and randomness_private,
        epsilon_pld=claim["pld"],
        epsilon_rdp=claim["rdp"],
        epsilon_rdp_classic=claim["rdp_classic"],
        epsilon_spent=accountants.epsilon(spent if repeats is None else planned, delta),
        delta=delta,
        records=records,
        expected_batch_size=expected_batch_size,
        sample_rate=expected_batch_size / records,
        stages=tuple(StageSteps(name=s.name, planned=s.steps, done=steps_done.get(s.name, 0)) for s in plan.stages),
        events=tuple(EventCount(event=event_to_json(event), count=n) for event, n in leaves(planned).items()),
        randomness_private=randomness_private,
        diagnostics_exposed=diagnostics_exposed,
        not_covered=tuple(dict.fromkeys([*_NOT_COVERED, *_EXPOSED[: int(diagnostics_exposed)], *not_covered])),
        warnings=tuple(dict.fromkeys([*delta_warnings(delta, records), *warnings])),
        versions=library_versions(),
        membership=membership_bounds(planned),
        **facts,
    )


@functools.cache
def library_versions() -> dict[str, str]:
    """The versions that a reader would need to repeat the accounting."""
    found = {"python": platform.python_version()}
    for package in ("adadpigu", "torch", "numpy", "dp-accounting"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed as a package"
    return found


_NOT_COVERED = (
    "the choice of hyper-parameters, if other runs on the same records guided it",
    "test records: whatever is measured on them is exact",
    "the initial weights, if they have seen these records before: that run's epsilon adds up",
    "other models trained on these records (an ensemble, one a class, folds, further runs): their epsilon adds up",
    "how long the run and its steps took",
    "facts declared as public: the record count, normalisation constants, the list of classes",
    "what was computed from these records beforehand: class weights, scalers, vocabularies, bounds",
)
_EXPOSED = ("diagnostics that were looked at: un-noised losses, norms, batch sizes",)


def delta_warnings(delta: float, records: int) -> tuple[str, ...]:
    """The warning that a δ of 1/N or more deserves.

    >>> delta_warnings(1e-5, 60_000), len(delta_warnings(0.01, 100))
    ((), 1)
    """
    if delta * records < 1:
        return ()
    fault = f"delta={delta:g} is not below 1/records = {1 / records:.3g}"
    return (f"{fault}: publishing one whole record now and then would satisfy such a guarantee",)


def _record(kind: type[T], data: Mapping[str, object]) -> T:
    """A dataclass from its fields, null standing for infinity where only a number is allowed."""
    annotations = {field.name: field.type for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    infinite = [key for key, value in data.items() if value is None and annotations.get(key) in (float, "float")]
    return kind(**{**data, **dict.fromkeys(infinite, math.inf)})
