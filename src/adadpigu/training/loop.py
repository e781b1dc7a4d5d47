"""The training loop: it knows no method, engine or accountant by name.

    ask the ledger -> let the method ask for releases -> optimiser -> (method may reject) -> average -> look at the
    test set -> (now and then) checkpoint

Weights are functions of releases, so they are public at every moment, and so is a checkpoint.
"""

import contextlib
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Literal

from adadpigu.accounting import PrivacyReport
from adadpigu.accounting.events import DpEvent
from adadpigu.core.diagnostics import Diagnostics
from adadpigu.core.fixed_batch import GraphCapture
from adadpigu.core.gradients.norms import train_mode
from adadpigu.core.gradients.state import Untrained
from adadpigu.core.mechanism import GaussianMechanism, MakeMechanism
from adadpigu.core.processes import ALONE, Processes
from adadpigu.core.randomness import Randomness
from adadpigu.errors import BudgetError, InputError, LedgerError
from adadpigu.methods.base import Stage
from adadpigu.runs.run import Metrics, Observer, Run, Validation
from adadpigu.training import validating
from adadpigu.training.checkpoints import Checkpoint, Checkpoints
from adadpigu.training.cuda_graphs import CapturedSteps, ReplayedDraws, choose_recorder
from adadpigu.training.evaluation import accuracy
from adadpigu.training.learned import Learned
from adadpigu.training.normalising import release_normalisation
from adadpigu.training.observers import ObserverHub
from adadpigu.training.optimiser import MaskedOptimiser
from adadpigu.training.options import lr_factor
from adadpigu.training.preparation import trained_models
from adadpigu.training.reporting import RAN_OUT, report_on
from adadpigu.training.resuming import Begun
from adadpigu.training.step import Draws, Step, Steps, Watch
from adadpigu.training.stopping import StopRequest, undisturbed
from adadpigu.training.threads import using

_CHECKPOINT_SECONDS = 60.0  # between checkpoints, where no number of steps was given

_COMPARED_EVERY = 64  # steps between looks at whether several processes still have the same weights

End = Literal["finished", "interrupted", "exhausted"]


class Session:
    """One run from its first step to its report."""

    def __init__(
        self,
        begun: Begun,
        *,
        randomness: Randomness,
        observers: Sequence[Observer] = (),
        mechanism: MakeMechanism | None = None,
        watch: Watch | None = None,
        recorder: GraphCapture | None = None,
        processes: Processes = ALONE,
        optimiser: type[MaskedOptimiser] = MaskedOptimiser,
    ) -> None:
        """`mechanism` and `watch` are for audits, `recorder` for tests, `optimiser` for shards."""
        prepared, ledger, store, checkpoint = begun.prepared, begun.ledger, begun.folder, begun.checkpoint
        self._p, self.ledger, self._store, self._shared = prepared, ledger, store, begun.total
        self._processes, self._randomness = processes, randomness
        self._layout = prepared.engine.layout
        self._diagnostics: Diagnostics | None = None
        if prepared.options.diagnostics:
            self._diagnostics = Diagnostics(None if store is None else store.path / "diagnostics.jsonl")
        self._exposed = self._diagnostics is not None or mechanism is not None
        self.learned = Learned(prepared, None if checkpoint is None else checkpoint.state, optimiser)
        used, self._eager = choose_recorder(
            prepared, self.learned, randomness, exposed=self._exposed, several=processes.size > 1, recorder=recorder
        )
        noise = (mechanism or GaussianMechanism)(ledger, randomness, processes)
        kind = Draws if used is None else ReplayedDraws
        self.draws = kind(prepared, noise, randomness, diagnostics=self._diagnostics, processes=processes, watch=watch)
        self._recorded: CapturedSteps | None = None
        if used is not None and isinstance(self.draws, ReplayedDraws):
            self._recorded = CapturedSteps(self.draws, used)
        watching = observers if store is None else [*observers, store]
        self._hub = ObserverHub(prepared, ledger, randomness, self.learned.method_state, watching)
        self.updates = Steps(prepared, self.draws, self.learned)
        self._start = self.learned.optimiser.weights.clone()
        self._untrained = Untrained(prepared.model)
        self._schedules = (prepared.options.lr_schedule, prepared.options.warmup) != ("constant", 0)
        self._started = 0.0
        self.done = 0  # steps that were taken
        self.validation: Validation | None = None
        self.reported: PrivacyReport | None = None  # what is claimed for a run that has ended or failed
        self._end: End = "interrupted"
        self.stop = StopRequest()
        self._threads: int | None = None
        self._checkpoints = None if store is None else Checkpoints(store.path)
        if self._checkpoints is not None and (name := self.learned.method_state.unstated()) is not None:
            self._checkpoints = None
            told = f"method {prepared.method.name!r} does not say how {name!r} is stored: this run has no checkpoints"
            warnings.warn(told, stacklevel=2)
        self._saved = time.monotonic()
        self._saved_step = -1 if checkpoint is None else checkpoint.step
        if checkpoint is not None:  # what it had learned is there already
            self._hub.metrics = [Metrics(**metrics) for metrics in checkpoint.metrics]
            self.done = checkpoint.step

    def run(self) -> Run:
        """Trains to the end of the plan, or until interrupted or an error; reports what was spent in any case."""
        self.begin()
        self._threads = self._p.threads
        try:
            with self.stop, using(self._threads):
                for step in self.steps():
                    self._take(step)
        except KeyboardInterrupt:
            self._end = "interrupted"
        except BaseException as error:
            self.fail(error)
            raise
        return self.finish()

    def begin(self) -> None:
        """Tells observers, before the first step."""
        self._started = time.perf_counter()
        self._hub.begin(self.done)
        train_mode(self._p.model)

    def fail(self, error: BaseException) -> None:
        """Reports what was spent until an error, and puts the weights back to where they started."""
        with contextlib.suppress(LedgerError):  # a disk that takes no more: what was spent stands there already
            self._note("failed", error=type(error).__name__)
        with contextlib.suppress(InputError):
            self._report(interrupted=True)
            if self._store is not None:
                self._store.close_record()
        with contextlib.suppress(RuntimeError, KeyError):  # a device that has failed for good, a layer that is gone
            self._layout.write(self._p.model, self._start)
            self._untrained.restore()
            if self._p.released_norm is not None:
                self._p.released_norm.reset()

    @undisturbed()
    def finish(self) -> Run:
        """Writes down what was spent first, then looks at the model that is kept."""
        how = f"eager: {self._eager}" if self._recorded is None else self._recorded.description
        interrupted = self._end == "interrupted"
        self._note(self._end)
        privacy = self._report(interrupted)
        trained_models.add(self._p.model)
        if (refusal := self._untrained.restore()) is not None:
            self._layout.write(self._p.model, self._start)
            raise refusal
        self._keep_weights()
        run = Run(
            model=self._p.whole_model(),
            method=self._p.method.name,
            dataset=self._p.data.name,
            privacy=privacy,
            accuracy=self._accuracy(),
            steps=self._p.plan.steps,
            steps_done=self.done,
            seconds=time.perf_counter() - self._started,
            metrics=tuple(self._hub.metrics),
            interrupted=interrupted,
            execution=how + ("" if self._threads is None else f", {self._threads} CPU thread(s)"),
            gradients=self._p.engine.reason,
            folder=None if self._store is None else self._store.path,
            validation=self.validation,
            outputs={name: found.detach().cpu() for name, found in self.learned.method_state.outputs().items()},
        )
        self._hub.end(run)
        return run

    def _report(self, interrupted: bool) -> PrivacyReport:
        """What was spent, and what is claimed; stored where there is a folder."""
        self.reported = privacy = report_on(
            self._p,
            self.ledger,
            self._randomness,
            done=self.done,
            interrupted=interrupted,
            exposed=self._exposed,
            shared=None if self._shared is None else self._shared(),
        )
        if self._store is not None:
            self._store.write_privacy(privacy)
        return privacy

    def _note(self, kind: str, **facts: object) -> None:
        with contextlib.suppress(BudgetError):  # stopped in the middle of a line: the ledger takes no more
            self.ledger.note(kind, steps_done=self.done, **facts)

    def steps(self) -> Iterator[Step]:
        """Each step that is left of the plan, covered by the ledger; the caller takes it before the next."""
        before = 0
        for number, stage in enumerate(self._p.stages):
            planned = self._p.samplers(number)
            events = {name: sampler.event([sigma]) for name, (sampler, sigma) in planned.items()}
            for index in range(max(0, self.done - before), stage.steps):
                if (end := self._end_before(stage, events, left=stage.steps - index)) is not None:
                    self.save()
                    self._end = end
                    return
                self.draws.begin_step(stage.name, self.done, planned)
                if number == 0 and (norm := self._p.released_norm) is not None:
                    release_normalisation(norm, self.draws, self._p.data.records)
                elif stage.name == validating.STAGE and self._p.options.private_validation is not None:
                    self._validate()
                else:
                    self.learned.method_state.begin_step(stage, index, self.learned.optimiser.weights)
                    yield Step(stage=number, index=index, count=self.done)
                self.after_step(number)
            before += stage.steps
            kinds = [stage.draws for stage in self._p.plan.stages]
            if kinds[number] not in kinds[number + 1 :]:  # no later stage could pay for repeated steps of this one
                self.save()
        self._agreed_to_stop()
        self._processes.check_alike(self.learned.optimiser.weights)
        self._end = "finished"

    def _agreed_to_stop(self) -> bool:
        """Whether any process was asked to stop; and if one has run out of memory, the ledger says so."""
        if self._processes.size == 1:
            return self.stop.asked
        stopped, ran_out = self._processes.any(self.stop.asked, self.draws.micro_batches.ran_out)
        if ran_out:
            self.ledger.add_caveat(RAN_OUT)
        return stopped

    def after_step(self, stage: int) -> None:
        self.done += 1
        if self.draws.micro_batches.ran_out:
            self.ledger.add_caveat(RAN_OUT)
        if self._processes.size > 1 and self.done % _COMPARED_EVERY == 0:
            self._processes.check_alike(self.learned.optimiser.weights)
        if self._hub.observers or self.done in self._hub.looks:
            self._hub.step(self.done, self._p.stages[stage].name, self._look)
        if self._checkpoints is not None:
            self._save_if_due()

    def _end_before(self, stage: Stage, events: Mapping[str, DpEvent], *, left: int) -> End | None:
        """Reserves budget for the next step; or returns why there is none: a stop, or a crash that used it up."""
        if self._agreed_to_stop():
            return "interrupted"
        try:
            self.ledger.cover(stage.name, self.done, events, left=left)
        except BudgetError:
            if not self._hub.resumed:
                raise
            return "exhausted"
        return None

    def _save_if_due(self) -> None:
        every = self._p.options.checkpoint_every
        due = time.monotonic() - self._saved >= _CHECKPOINT_SECONDS if every is None else self.done % every == 0
        if due and self.done < self._p.plan.steps:
            self.save()

    def save(self) -> None:
        """Keeps what the run needs to go on from here: functions of releases, and how far the ledger is."""
        if self._checkpoints is None or self.done == self._saved_step:
            return
        if (refusal := self._untrained.restore()) is not None:
            raise refusal
        self._checkpoints.save(
            Checkpoint(
                step=self.done,
                run=str(self.ledger.facts["run"]),
                ledger=self.ledger.head,
                metrics=tuple(asdict(metrics) for metrics in self._hub.metrics),
                state=self.learned.state(),
            )
        )
        self._saved, self._saved_step = time.monotonic(), self.done

    def _take(self, step: Step) -> None:
        """What runs in Python at every step, then the step itself, which may be a replay."""
        learned = self.learned
        if self._schedules:
            options = self._p.options
            learned.optimiser.scale_lr(lr_factor(options.lr_schedule, self.done, self._p.plan.steps, options.warmup))
        if learned.average is not None:
            learned.average.begin_step()
        if self._recorded is None:
            self.updates.take(step)
        else:
            key = learned.method_state.capture_key(self._p.stages[step.stage])
            self._recorded.take(key, partial(self.updates.take, step))

    def _keep_weights(self) -> None:
        """Leaves the model at the weights that are kept: the average where there is one, else the last ones."""
        learned = self.learned
        kept = learned.optimiser.weights if learned.average is None else learned.average.value
        self._layout.write(self._p.model, learned.method_state.effective(kept))

    def _validate(self) -> None:
        """Scores the weights that are kept on private records, with noise."""
        self._keep_weights()
        query = validating.validation_query()
        release = self.draws.release_sum(query, partial(validating.validation_sum, self._p), validating.STAGE)
        self.validation = validating.validation_of(release, validating.loss_bound(self._p.data))
        self._layout.write(self._p.model, self.learned.optimiser.weights)

    def _accuracy(self) -> float | None:
        test = None if self._p.options.private_validation is not None else self._p.data.test
        return None if test is None else accuracy(self._p.tested_model(), test, device=self._p.device)

    def _look(self) -> float | None:
        """Test accuracy of the weights that would be kept now."""
        self._keep_weights()
        found = self._accuracy()
        self._layout.write(self._p.model, self.learned.optimiser.weights)
        return found
