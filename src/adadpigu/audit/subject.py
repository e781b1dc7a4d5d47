"""What is audited: a run that can be made ready again and again, and what is claimed for it.

Mechanism audits never look at private records: named data sets are public, and for own data the records are stand-ins,
random numbers in the shape that the description declares. What a finished run claims stands in its folder, which may be
a stranger's: privacy.json, ledger and config are checked against each other, and nothing in it is run.
"""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from adadpigu.accounting import LedgerRecord, Plan, PlannedDraw, epsilon, library_versions, read_ledger
from adadpigu.accounting.events import DpEvent
from adadpigu.accounting.ledger_reading import LEDGER_FILE
from adadpigu.accounting.plan import check_delta
from adadpigu.audit.result import AuditResult
from adadpigu.audit.stand_ins import stand_ins_for
from adadpigu.config import RunConfig, merge, parse
from adadpigu.core.gradients import Loss
from adadpigu.core.randomness import Tier
from adadpigu.data import DataSet, TensorRecords, is_named
from adadpigu.errors import InputError, require
from adadpigu.methods import make_method
from adadpigu.runs.digests import matches_digest
from adadpigu.runs.loading import front_and_body, load_data, refuse_code
from adadpigu.runs.reading import CONFIG, PRIVACY, Fields, file_of, json_of, text_of
from adadpigu.runs.run import Run
from adadpigu.training.configured import configured, training_options
from adadpigu.training.earlier import earlier_runs
from adadpigu.training.preparation import Preparation, prepare
from adadpigu.training.resuming import ledger_settings
from adadpigu.training.train import train_prepared

Attach = Callable[[nn.Module, DataSet], tuple[nn.Module, DataSet, Loss]]
"""adds an auditor's part to a model, its records to the data, and says what their loss is"""

Found = Callable[[str, PlannedDraw], PlannedDraw | None]
"""(stage, draw of the plan): the draw with the noise or the rate that an audit found; None leaves it out"""

Drive = Callable[..., Run]  # trains what was made ready, with the options of `train_prepared`
_drive: ContextVar[Drive] = ContextVar("drive", default=train_prepared)
_UNSETTLING = {"diagnostics": False, "ledger": None, "reserve": 1, "checkpoint_every": None, "evaluate_every": None}
"""what an audited run is not to do, whatever its config says"""
_ONE_RECORD_EACH = ("accountant", "membership", "noise")  # audits in which no owner has several records


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A run's settings with σ fixed, the public records it is audited on, and its claim."""

    config: RunConfig
    data: DataSet  # public records or stand-ins; no test records
    plan: Plan
    noise_multiplier: float
    epsilon: float  # that is claimed
    delta: float
    stands_in: bool = False  # whether `data` holds random numbers instead of the user's records
    exposed: bool = False
    """whether `data` holds the user's own records, so that what is found is outside their guarantee"""
    settings: Mapping[str, object]  # what the run is defined by, as its ledger would keep it
    findings: tuple[str, ...] = ()  # what was wrong with the claim before anything was run
    assumed: tuple[str, ...] = ()  # of a finished run, what cannot be known
    ledger: LedgerRecord | None = None  # of a finished run

    @property
    def label(self) -> str:
        return f"{self.config.method} on {self.data.name}" + (" (stand-in records)" if self.stands_in else "")

    @property
    def tier(self) -> Tier | None:
        return cast("Tier | None", self.config.randomness)

    @property
    def sample_rate(self) -> float:
        """q of the run's gradients."""
        assert self.config.batch_size is not None
        return self.config.batch_size / self.data.records

    @property
    def terms(self) -> dict[str, object]:
        """What the run's privacy rests on, for the details of an audit."""
        return {"sample_rate": self.sample_rate, "steps": self.plan.steps, "noise_multiplier": self.noise_multiplier}

    def run_length(self, steps: int) -> int:
        """`steps`, and those of the method's first stages on top where it has fixed their number."""
        try:
            make_method(self.config.method, self.config.method_options).stages(steps)
        except InputError:
            return steps + sum(stage.steps for stage in self.plan.stages[:-1])
        return steps

    def first(self, count: int) -> DataSet:
        """The first records, over again where there are fewer, under the same description: no rate moves."""
        records = held(self.data)
        inputs, targets = records.take(torch.arange(count) % len(records))
        return self.data.holding(TensorRecords(inputs, targets, name=records.name))

    def cost(self, found: Found) -> float:
        """ε of the whole plan at the claim's δ, with its draws as an audit has found them."""
        return epsilon(self.event(found), self.delta)

    def event(self, found: Found) -> DpEvent:
        """The whole plan as an event, with its draws as an audit has found them."""
        stages = []
        for stage in self.plan.stages:
            draws = (found(stage.name, draw) for draw in stage.draws)
            stages.append(replace(stage, draws=tuple(draw for draw in draws if draw is not None)))
        return replace(self.plan, stages=tuple(stages)).event()

    def result(
        self, audit: str, *, assumed: Iterable[str] = (), findings: Iterable[str] = (), **facts: Any
    ) -> AuditResult:
        """What an audit of this subject has found, beside what was found and assumed before it was run."""
        if self.data.owners is not None and audit in _ONE_RECORD_EACH:
            assumed = (
                *assumed,
                "owners of several records are treated as those of one: each record is another owner's",
            )
        return AuditResult(
            audit=audit,
            subject=self.label,
            epsilon_claimed=self.epsilon,
            delta=self.delta,
            exposed=self.exposed,
            assumed=(*assumed, *self.assumed),
            findings=(*self.findings, *findings),
            **facts,
        )

    def prepare(
        self, *, data: DataSet | None = None, attach: Attach | None = None, steps: int | None = None, **changes: Any
    ) -> Preparation:
        """The run made ready, with the claim's noise; `steps` instead of its own, `changes` to its config."""
        data = self.data if data is None else data
        config = replace(self.config, **({} if steps is None else {"steps": steps}) | changes)
        front, body = front_and_body(config, data, seed=config.seed or 0)
        loss: Loss | None = None
        try:
            if attach is not None:
                body, data, loss = attach(body, data)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*many rows are exact copies")  # canaries are blank
                return prepare(
                    body,
                    data,
                    method=make_method(config.method, config.method_options),
                    budget=None,
                    delta=self.delta,
                    options=training_options(config, data.records),
                    loss=loss,
                    front=front,
                    seed=config.seed or 0,
                )
        except InputError as refusal:
            if attach is None:
                raise
            raise InputError(f"{self.label}: the dummy block cannot be attached: {refusal}") from None


def subject_of(
    config: RunConfig, *, sample_rate: float | None = None, real: bool = False, folder: Path | None = None
) -> Subject:
    """The subject that a config describes: data is fetched, σ calibrated. `sample_rate` q sets the batch size.

    `real` takes the user's own records instead of stand-ins: what an audit then finds is outside their guarantee.
    Stand-ins are made from public facts alone, those of a finished run's `folder` where there is one.
    """
    method = make_method(config.method, config.method_options)
    none = "claims no privacy: there is nothing to audit; allowed"
    require(method.private, f"method={config.method!r} {none}: a private one")
    require(not config.reproducible_noise, f"reproducible_noise=True {none}: secret noise")
    config = replace(config, **_UNSETTLING)  # type: ignore[arg-type]
    stands_in = not (real or is_named(config.dataset))
    data = stand_ins_for(config, folder) if stands_in else replace(load_data(config), test=None)
    if exposed := real and not is_named(config.dataset):
        earlier_runs.add_audit(data.name, data.records)
    if sample_rate is not None:
        require(0 < sample_rate <= 1, f"sample_rate={sample_rate} is not in (0, 1]")
        batch = max(1, round(sample_rate * data.records))
        data, config = replace(data, records=round(batch / sample_rate)), replace(config, batch_size=batch)
    ready = configured(config, data)
    claimed = ready.epsilons["pld"] if ready.budget is None else ready.budget.epsilon
    infinite = f"noise_multiplier={ready.noise_multiplier:g} claims no finite epsilon to audit; allowed: more noise"
    require(math.isfinite(claimed), infinite)
    options = ready.options
    fixed = {"epochs": None, "steps": options.step_count(data.records), "batch_size": options.batch_size}
    return Subject(
        config=replace(config, epsilon=None, noise_multiplier=ready.noise_multiplier, **fixed),  # type: ignore[arg-type]
        data=data,
        plan=ready.plan,
        noise_multiplier=ready.noise_multiplier,
        epsilon=claimed,
        delta=ready.delta,
        settings=ledger_settings(ready),
        stands_in=stands_in,
        exposed=exposed,
    )


def scaled(noise: float, only: str | None = None) -> Found:
    """Every draw with `noise` times the noise it has; `only` counts the draws of that name alone."""

    def found(_: str, draw: PlannedDraw) -> PlannedDraw | None:
        return replace(draw, noise_multiplier=draw.noise_multiplier * noise) if only in (None, draw.name) else None

    return found


@contextlib.contextmanager
def trained_through(drive: Drive) -> Iterator[None]:
    """Within, audits train by `drive` in the place of `train_prepared`: so the ways of other libraries are audited."""
    before = _drive.set(drive)
    try:
        yield
    finally:
        _drive.reset(before)


def held(data: DataSet) -> TensorRecords:
    """The records as tensors, without which nobody can add one."""
    if not isinstance(data.train, TensorRecords):
        raise InputError(f"an audit needs records held as tensors, not {type(data.train).__name__}")
    return data.train


def trained(ready: Preparation, *, to_the_end: bool = True, **options: Any) -> Run:
    """Trains as `train_prepared` does, or as `trained_through` says; Ctrl-C ends an audit that needs the whole run.

    Each run is stated as the first of its process: an audit makes many. Those on the user's own records are together
    one earlier run of what is trained later (`subject_of`).
    """
    with earlier_runs.isolated_history():
        run = _drive.get()(ready, **options)
    if run.interrupted and to_the_end:
        raise KeyboardInterrupt
    return run


def config_of_run(folder: Path, *, trust_code: bool = False) -> RunConfig:
    """The config of a finished run, at the δ of its claim and with the noise of its ledger."""
    settings = Fields(_settings(read_ledger(file_of(folder, LEDGER_FILE))), f"run={str(folder)!r}: {LEDGER_FILE}")
    config = merge(parse(text_of(folder, CONFIG), str(folder / CONFIG)))
    if not trust_code:
        refuse_code(config, folder)
    delta, sigma = _claim(folder)[1], settings.number("noise_multiplier", 0)
    settings.check(sigma is not None, "noise_multiplier", "a number of at least 0")
    return replace(config, delta=delta, epsilon=None, noise_multiplier=sigma, reproducible_noise=False)


def claim_of_run(folder: Path, subject: Subject) -> Subject:
    """The subject that a run's config gave, with the run's own claim; what contradicts that claim is a finding."""
    (claimed, delta), record = _claim(folder), read_ledger(file_of(folder, LEDGER_FILE))
    model, given = _settings(record).get("model"), subject.settings["model"]
    require(
        model == given,
        f"run={str(folder)!r}: its config gives a model of {given}, trained was one of {model}; allowed: a run of "
        "`adadpigu train`, whose model its config names",
    )
    findings = tuple(_contradictions(folder, record, subject, claimed, delta))
    require(
        bool(findings) or record.plan == subject.plan,  # else both plans keep the claim
        f"run={str(folder)!r}: its config meant another plan to the version that began it ({record.begun_by}), and "
        f"both bear out the claim; allowed: that version, or the settings as read today: --config {folder / CONFIG}",
    )
    return replace(subject, epsilon=claimed, findings=findings, assumed=tuple(_trusted(folder, record)), ledger=record)


def _contradictions(folder: Path, record: LedgerRecord, subject: Subject, claim: float, delta: float) -> Iterator[str]:
    spent = epsilon(record.plan.event(), delta)
    if record.delta != delta:
        yield f"the claim is at delta={delta:g}, the ledger at delta={record.delta:g}"
    if spent > claim * (1 + 1e-6):
        yield f"the plan on the ledger costs epsilon={spent:.6g}, above the claim of {claim:.6g}"
    if record.plan != subject.plan and epsilon(subject.plan.event(), delta) > claim * (1 + 1e-6):
        yield "the plan on the ledger is not the one that the run's config gives, which costs more than the claim"
    if not all(session.secret for session in record.sessions()):
        yield "noise was drawn that can be repeated: the ledger says that it was not secret"
    if not matches_digest(folder / CONFIG, record.header["facts"].get("config")):
        yield "config.toml is not the one that the run began with"


def _trusted(folder: Path, record: LedgerRecord) -> Iterator[str]:
    """What an audit of today's code cannot know about a run of the past."""
    made, now = record.header["facts"].get("versions"), library_versions()
    differs = "" if made == now else f", though its ledger names {made}, and this is {now}"
    yield f"the run was made by this code{differs}"
    if json_of(folder, PRIVACY).flag("diagnostics_exposed"):
        yield "diagnostics of the run were exposed: they are outside its guarantee"
    yield from (f"not covered by the run's own word: {caveat}" for caveat in record.caveats)


def _settings(record: LedgerRecord) -> dict[str, Any]:
    facts = record.header.get("facts")
    found = facts.get("settings") if isinstance(facts, dict) else None
    return found if isinstance(found, dict) else {}


def _claim(folder: Path) -> tuple[float, float]:
    """(ε, δ) as privacy.json has them."""
    claim = json_of(folder, PRIVACY)
    found, delta = claim.number("epsilon_pld", 0), claim.number("delta")
    if delta is None:
        raise InputError(f"{claim.where} claims an epsilon without a delta; allowed: delta, a number in (0, 1)")
    check_delta(delta)
    if not claim.flag("private") or found is None:
        raise InputError(f"{claim.where} claims no privacy: there is nothing to audit; allowed: a private run")
    return found, delta
