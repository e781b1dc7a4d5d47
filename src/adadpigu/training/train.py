"""`train`: the whole pipeline in one call, from records to a model with a privacy report."""

import contextlib
import math
import uuid
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from adadpigu.accounting import Budget, Ledger, library_versions
from adadpigu.accounting.events import event_to_json
from adadpigu.accounting.ledger_reading import LEDGER_FILE, LedgerRecord
from adadpigu.accounting.shared import SharedLedger, SharedTotal
from adadpigu.core.gradients import Loss, Losses
from adadpigu.core.mechanism import MakeMechanism
from adadpigu.core.processes import Processes
from adadpigu.core.randomness import Randomness, Tier, choose_randomness
from adadpigu.data.datasets import Source, declare
from adadpigu.errors import LedgerError, require
from adadpigu.methods import AdaDPIGU, Method, make_method
from adadpigu.runs.digests import text_digest
from adadpigu.runs.run import Observer, Run, RunFolder, check_free, check_observers
from adadpigu.training.checkpoints import Checkpoint
from adadpigu.training.distributed.job import current, refuse_wrapped
from adadpigu.training.distributed.rank_checks import check_ranks_agree
from adadpigu.training.earlier import StartedRun, earlier_runs
from adadpigu.training.guarding import hook_caveat, hooks_of
from adadpigu.training.loop import Session
from adadpigu.training.options import TrainingOptions, check_names, default_batch, idle_options
from adadpigu.training.pace import steps_to_reserve
from adadpigu.training.preparation import Preparation, prepare, trained_before
from adadpigu.training.reporting import declared_by, print_path
from adadpigu.training.resuming import Begun, ledger_settings, noise_of
from adadpigu.training.resuming import resume as resume_run
from adadpigu.training.step import Watch
from adadpigu.training.storing import described, facts_of_data, write_facts


def train(
    model: nn.Module,
    dataset: Source,
    *,
    records: int | None = None,
    test: Source | None = None,
    owners: Iterable[Hashable] | Tensor | None = None,
    owner_cap: int | None = None,
    method: Method | str | None = None,
    privacy: Budget | None = None,
    delta: float = 1e-5,
    loss: Loss | None = None,
    losses: Losses | None = None,
    front: nn.Module | None = None,
    seed: int | None = None,
    out: Path | str | None = None,
    observers: Sequence[Observer] = (),
    randomness: Randomness | Tier | None = None,
    resume: bool = False,
    ledger: Path | str | None = None,
    quiet: bool = False,
    **options: Any,
) -> Run:
    """Trains `model` in place on private records and reports what that leaks.

    `dataset` is a `DataSet`, a map-style `torch.utils.data.Dataset`, a list of records, or tensors or arrays (inputs,
    targets); records may also be tuples or dicts of tensors. Own data needs `records`, its *public* record count N.
    `test` gives test records to data that has none. `owners`, one name or number a record, protects a person with up
    to `owner_cap` records instead of single records; further records of theirs are left out. `method` defaults to
    AdaDPIGU, `privacy` to `Budget(epsilon=4, delta=1e-5)` unless `noise_multiplier` is given. `options` are the fields
    of `TrainingOptions`: batch_size, steps or epochs, lr, momentum, … The loss is `loss(outputs, targets)`, cross
    entropy by default, with `model(*inputs)` or `model(**inputs)` where inputs are several; or
    `losses(model, batch)`, one loss a record, [n].
    `front` is a frozen module before the model (`make_front`, a pretrained backbone); `run.model` then is both.
    A GPU is used if there is one, and the model put back where it was; with `device` it is trained, and stays, there.
    `seed` fixes a method's public choices, never noise. With `out`, a run folder is written there, with checkpoints;
    `resume` goes on with the run that is there, on the same terms. `randomness` is a tier (`secure`, `exact`,
    `fast`) or, for tests, a source of one's own. `ledger` is a file that several runs on one data set share. `quiet`
    prints nothing.

    Formal guarantee: the returned model, its metrics that do not use test records, and every file written are together
    (ε, δ)-differentially private with respect to adding or removing one record of `dataset`, or one owner, as
    `run.privacy` states, provided `dataset`'s declared facts are public and the method's code asks for releases only
    through the frame.
    """
    given = dict(locals())  # by name, as the signature has them
    for name in ("observers", "randomness", "ledger", "quiet", "options"):
        del given[name]
    home, prepared = device_of(model), prepared_for(**given, **options)
    place = {"out": out, "resuming": resume, "shared": ledger, "introduce": None if quiet else print_path}
    run = train_prepared(prepared, observers=observers, randomness=randomness, **place)
    run.model.to(home if prepared.options.device == "auto" else prepared.device)
    return run


def _check_kinds(model: object, method: object, privacy: object, loss: object, losses: object) -> None:
    """Names what stands where something else is wanted, and what to write instead."""
    wanted = (
        ("model", model, isinstance(model, nn.Module), "a torch.nn.Module"),
        ("method", method, method is None or isinstance(method, Method | str), "such as ad.DPSGD(), or its name"),
        ("privacy", privacy, privacy is None or isinstance(privacy, Budget), "Budget(epsilon=4, delta=1e-5)"),
        ("loss", loss, loss is None or callable(loss), "a function or module such as nn.MSELoss()"),
        ("losses", losses, losses is None or callable(losses), "a function f(model, batch) -> one loss a record"),
    )
    for name, value, fits, allowed in wanted:
        require(fits, f"{name}={value!r} is of type {type(value).__name__}; allowed: {allowed}")


def prepared_for(
    model: nn.Module,
    dataset: Source,
    *,
    method: Method | str | None = None,
    privacy: Budget | None = None,
    delta: float = 1e-5,
    out: Path | str | None = None,
    resume: bool = False,
    **given: Any,
) -> Preparation:
    """The arguments of `train`, checked and made ready."""
    task = {name: given.pop(name, None) for name in ("loss", "losses", "front", "seed")}
    declared = {name: given.pop(name, None) for name in ("records", "test", "owners", "owner_cap")}
    _check_kinds(model, method, privacy, task["loss"], task["losses"])
    refuse_wrapped(model)
    check_names("train", given, named=train.__annotations__, method=method)
    data = declare(dataset, **declared, model=model)
    method = AdaDPIGU() if method is None else make_method(method) if isinstance(method, str) else method
    placed = {"device": device_of(model)} if current().size > 1 else {}  # each process has settled its own
    settings = {"batch_size": default_batch(data.records), **placed, **given}
    if isinstance(made := given.get("optimizer"), type):  # has its own defaults for what is not given
        taken = given.keys() & {"lr", "momentum", "weight_decay"}
        settings["optimizer"] = partial(made, **{name: given[name] for name in taken})
    chosen = TrainingOptions(**settings)
    for told in idle_options(given, {**vars(chosen), **given, "test": data.test, "out": out}):
        warnings.warn(told, stacklevel=3)
    asked = delta if privacy is None else privacy.delta
    require(delta in (asked, 1e-5), f"delta={delta} contradicts the budget's {asked}; give it once, in the budget")
    if privacy is None and chosen.noise_multiplier is None:
        privacy = Budget(epsilon=4.0, delta=delta)
    folder = None if out is None else Path(out)
    fits = resume is False or (resume is True and folder is not None)
    require(fits, f"resume={resume!r} with out={out!r}; allowed: resume=True, with out the folder that goes on")
    if folder is not None and resume and chosen.noise_multiplier is None:
        ended = current()
        chosen = replace(chosen, noise_multiplier=ended.broadcast_object((ended.first(lambda: noise_of(folder)),))[0])
    elif folder is not None and not resume:
        current().first(lambda: check_free(folder))
    return prepare(model, data, method=method, budget=privacy, delta=delta, options=chosen, **task)


def device_of(model: object) -> str:
    """Where the caller has put a model; whether it is one is checked elsewhere."""
    parameters = model.parameters() if isinstance(model, nn.Module) else iter(())
    return str(next((parameter.device for parameter in parameters), "cpu"))


def train_prepared(prepared: Preparation, **how: Any) -> Run:
    """Runs what `prepare` has made ready; `how` are the arguments of `session`. Until here nothing was written."""
    with session(prepared, **how) as begun:
        name_hooks(prepared, begun.ledger)
        return begun.run()


def name_hooks(prepared: Preparation, ledger: Ledger) -> None:
    """Warns of the user's hooks, which see records, and has the statement name them."""
    if hooks := dict(hooks_of(prepared.whole_model(), prepared.given_loss)):
        warnings.warn(f"{hook_caveat(hooks)}; the statement says that it is not covered", stacklevel=3)
        ledger.add_caveat(hook_caveat(hooks))


@contextlib.contextmanager
def session(
    prepared: Preparation,
    *,
    observers: Sequence[Observer] = (),
    randomness: Randomness | Tier | None = None,
    mechanism: MakeMechanism | None = None,
    watch: Watch | None = None,
    introduce: Callable[[Preparation], None] | None = None,
    **place: Any,
) -> Iterator[Session]:
    """A run that is ready for its first step, until this ends. `place` says where it is kept: arguments of `opened`.

    `mechanism` and `watch` are an auditor's. The first process tells observers; the watch, if it is one, does in each.
    The first process alone calls `introduce`, once nothing can be refused any more.
    """
    check_observers(observers)
    again = trained_before(prepared.model)
    if not set(again) <= set(prepared.warnings):  # the model was trained since it was made ready
        prepared = replace(prepared, warnings=prepared.warnings + again)
    processes, everywhere = current(), cast(object, watch)
    source = randomness_of(randomness, prepared)
    with opened(prepared, source, **place) as begun:
        if introduce is not None and processes.rank == 0:
            introduce(begun.prepared)
        yield Session(
            begun,
            randomness=source,
            observers=[one for one in observers if processes.rank == 0 or one is everywhere],
            mechanism=mechanism,
            watch=watch,
            processes=processes,
        )


def randomness_of(given: Randomness | Tier | None, prepared: Preparation) -> Randomness:
    """The source that a tier names, or the one that was given."""
    if isinstance(given, str | None):
        return choose_randomness(given, prepared.device)
    allowed = f"randomness={given!r}; allowed: 'secure', 'fast', or an object that draws as they do"
    require(hasattr(given, "normal"), allowed)
    return given


@contextlib.contextmanager
def opened(
    prepared: Preparation,
    source: Randomness,
    *,
    out: Path | str | None = None,
    config: str = "",
    files: Mapping[str, str] | None = None,
    resuming: bool = False,
    shared: Path | str | None = None,
) -> Iterator[Begun]:
    """Opens run folder and ledger in process 0 and closes them at the end.

    `files` are further public texts for the run folder; `shared` is a ledger that several runs on the same data share.
    """
    exposed = "diagnostics=True" if prepared.options.diagnostics else "" if source.private else "reproducible noise"
    folder, common = (None if path is None else Path(path) for path in (out, shared))
    unit = f"owner_cap={prepared.per_owner}" if prepared.data.owners is not None else ""
    require(not (shared and unit), f"{unit} with ledger: a shared ledger adds up single records; allowed: without it")
    require(not (shared and exposed), f"{exposed} on a shared ledger: no total could cover it; allowed: without it")
    processes = current()
    prepared = check_ranks_agree(prepared, processes, source)
    drawn_by: dict[str, object] = {"randomness": source.description, "secret": source.private}
    if processes.size > 1:
        drawn_by["processes"] = processes.size

    def lead() -> Begun:
        if resuming:
            assert folder is not None
            begun = resume_run(prepared, folder)
        else:
            if common is not None:  # before anything is written
                asked = SharedLedger(common, dataset=prepared.data.name, records=prepared.data.records)
                asked.check(prepared.plan.event())
            begun = _begin(prepared, folder, config, files or {}, {**drawn_by, "shared": common is not None})
        kept.enter_context(begun.ledger)
        begun = replace(begun, total=kept.enter_context(_shared(begun, common)))
        if resuming:
            begun = _warn_of_process_count(begun, processes.size)
            step = 0 if begun.checkpoint is None else begun.checkpoint.step
            told = {"warnings": list(begun.prepared.warnings), "declared": declared_by(begun.prepared)}
            begun.ledger.note("resumed", step=step, **drawn_by, **told)
            assert begun.folder is not None
            begun.folder.rewind(() if begun.checkpoint is None else begun.checkpoint.metrics)
        return begun

    with contextlib.ExitStack() as kept:
        led = processes.first(lead)
        if led is not None and processes.size > 1:
            processes.broadcast_object((led.ledger.record, led.prepared.seed, led.prepared.warnings, led.checkpoint))
        begun = _follow(prepared, processes) if led is None else led
        _add_caveat_of_earlier_runs(begun, source, common)
        yield begun


def _add_caveat_of_earlier_runs(begun: Begun, source: Randomness, shared: Path | None) -> None:
    """Has the statement say what this run and earlier ones of the process amount to, if the records are the same."""
    prepared = begun.prepared
    run = StartedRun(
        run=str(begun.ledger.facts["run"]),
        preparation=prepared.identity,
        dataset=prepared.data.name,
        records=prepared.data.records,
        epsilon=prepared.epsilons["pld"] if source.private and not prepared.options.diagnostics else math.inf,
        delta=prepared.delta,
        of_owners=prepared.data.owners is not None,
        ledger=None if shared is None else shared.resolve(),
    )
    if (told := earlier_runs.add(run)) is not None:
        begun.ledger.add_caveat(told)


def _warn_of_process_count(begun: Begun, now: int) -> Begun:
    """A run may go on among another number of processes, since what it computes does not depend on it; and says so."""
    lines = begun.ledger.record.lines
    then = [begun.ledger.facts.get("processes", 1), *(line["processes"] for line in lines if "processes" in line)][-1]
    if then == now:
        return begun
    told = f"the run goes on with {now} process(es), after {then}: updates do not depend on their number"
    return replace(begun, prepared=replace(begun.prepared, warnings=(*begun.prepared.warnings, told)))


class MirrorLedger(Ledger):
    """The ledger in every process but the first: a copy in memory. Draws are charged on the first process's disk."""

    def __init__(self, record: LedgerRecord) -> None:
        self._begin(record, None)


def _follow(prepared: Preparation, processes: Processes) -> Begun:
    """The run as a process has it that is not the first: the ledger mirrored, no folder, the same checkpoint."""
    said: tuple[LedgerRecord, int, tuple[str, ...], Checkpoint | None] = processes.broadcast_object(None)
    record, seed, warned, checkpoint = said
    ready = replace(prepared, seed=seed, warnings=warned)
    return Begun(prepared=ready, ledger=MirrorLedger(record), checkpoint=checkpoint)


def _begin(
    prepared: Preparation, out: Path | None, config: str, files: Mapping[str, str], facts: Mapping[str, object]
) -> Begun:
    told = facts_of_data(prepared, from_python=not config)
    config = config or described(prepared)
    folder = None if out is None else RunFolder(out, config)
    if folder is not None:
        write_facts(folder, prepared, told, files)
    ledger = Ledger(
        prepared.plan,
        budget=prepared.budget,
        path=None if folder is None else folder.path / LEDGER_FILE,
        delta=prepared.delta,
        reserve=1 if folder is None else prepared.options.reserve or steps_to_reserve(prepared, folder.path),
        unit="record" if prepared.data.owners is None else "owner",
        facts={
            "run": uuid.uuid4().hex,
            "method": prepared.method.name,
            "dataset": prepared.data.name,
            "settings": ledger_settings(prepared),
            "seed": prepared.seed,
            "config": text_digest("config.toml", config.encode()),
            "versions": library_versions(),
            "warnings": list(prepared.warnings),
            "declared": declared_by(prepared),
            **({} if prepared.repeats is None else {"repeats": event_to_json(prepared.repeats.event(prepared.plan))}),
            **facts,
        },
    )
    if folder is not None:
        folder.ledger = ledger
    return Begun(prepared=prepared, folder=folder, ledger=ledger)


@contextlib.contextmanager
def _shared(begun: Begun, path: Path | None) -> Iterator[Callable[[], SharedTotal] | None]:
    """Within it the whole plan is reserved on a shared ledger, if any; what was never charged is then given back."""
    ledger, plan, method = begun.ledger, begun.prepared.plan, begun.prepared.method.name
    if path is None:
        began = "ledger=None: the run began on a shared ledger; allowed: the file it began with"
        require(not ledger.facts["shared"], began)
        yield None
        return
    data = begun.prepared.data
    place = SharedLedger(path, dataset=data.name, records=data.records, run=str(ledger.facts["run"]))
    place.reserve(plan.event(), ledger, method)
    try:
        yield place.total
    finally:
        ledger.close()
        try:
            place.settle(ledger, method)
        except LedgerError as error:
            warnings.warn(f"the shared ledger keeps the whole plan reserved: {error}", stacklevel=2)
