"""The training loop: it knows no method, engine or accountant by name.

    ask the ledger -> let the method ask for releases -> optimiser -> (method may reject) -> average -> look at the
    test set -> (now and then) checkpoint

Weights are functions of releases, so they are public at every moment, and so is a checkpoint.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Literal

from adadpigu.accounting import Ledger, PrivacyReport
from adadpigu.accounting.shared import SharedTotal
from adadpigu.core.bounding import Query
from adadpigu.core.diagnostics import Diagnostics
from adadpigu.core.gradients.norms import train_mode
from adadpigu.core.gradients.state import Untrained
from adadpigu.core.mechanism import GaussianMechanism, MakeMechanism, Release
from adadpigu.core.processes import Alone, Processes
from adadpigu.core.randomness import Randomness
from adadpigu.core.sampling import Recorder
from adadpigu.core.sensitive import Records
from adadpigu.errors import BudgetError, InputError, LedgerError
from adadpigu.methods.base import Stage
from adadpigu.runs.run import Metrics, Observer, Run, RunFolder
from adadpigu.training.checkpoints import Checkpoint, Checkpoints
from adadpigu.training.distributed.meeting import check_alike
from adadpigu.training.evaluation import accuracy
from adadpigu.training.learned import Learned
from adadpigu.training.normalising import release_normalisation
from adadpigu.training.observers import ObserverHub
from adadpigu.training.options import lr_factor
from adadpigu.training.preparation import Preparation, trained_models
from adadpigu.training.recording import RecordedSteps, ReplayedDraws, choose_recorder
from adadpigu.training.reporting import RAN_OUT, report_on
from adadpigu.training.step import Draws, Step, Steps, Watch
from adadpigu.training.stopping import StopRequest, undisturbed
from adadpigu.training.threads import using

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_CHECKPOINT_SECONDS = 60.0
"""between checkpoints, where no number of steps was given"""

_COMPARED_EVERY = 64
"""steps between looks at whether several processes still have the same weights"""

End = Literal["finished", "interrupted", "exhausted"]


class Session:
    """One run from its first step to its report."""

    def __init__(
        self,
        prepared: Preparation,
        *,
        ledger: Ledger,
        randomness: Randomness,
        observers: Sequence[Observer] = (),
        mechanism: MakeMechanism | None = None,
        watch: Watch | None = None,
        store: RunFolder | None = None,
        checkpoint: Checkpoint | None = None,
        shared: Callable[[], SharedTotal] | None = None,
        recorder: Recorder | None = None,
        processes: Processes | None = None,
    ) -> None:
        """`checkpoint`: where the run goes on. `recorder` is for tests; a GPU has its own.

        `mechanism` makes another one than `GaussianMechanism`: for audits that look at sums, which the report says.
        `watch` looks on from the public side, and changes nothing.
        """
        self._p = prepared
        self._processes: Processes = Alone() if processes is None else processes
        self._shared = shared
        self._ledger = ledger
        self._randomness = randomness
        self._store = store
        self._layout = prepared.engine.layout
        self._diagnostics: Diagnostics | None = None
        if prepared.options.diagnostics:
            self._diagnostics = Diagnostics(None if store is None else store.path / "diagnostics.jsonl")
        self._exposed = self._diagnostics is not None or mechanism is not None
        self._learned = Learned(prepared, None if checkpoint is None else checkpoint.state)
        self._optimiser, self._running = self._learned.optimiser, self._learned.running
        if self._processes.size > 1:
            used, self._eager = None, "several processes add up their sums at every step"
        else:
            used, self._eager = choose_recorder(
                prepared, self._learned, randomness, exposed=self._exposed, recorder=recorder
            )
        options = prepared.options
        self._draws = (Draws if used is None else ReplayedDraws)(
            prepared,
            (mechanism or GaussianMechanism)(ledger, randomness, self._processes),
            randomness,
            diagnostics=self._diagnostics,
            processes=self._processes,
            watch=watch,
        )
        self._recorded: RecordedSteps | None = None
        if used is not None and isinstance(self._draws, ReplayedDraws):
            self._recorded = RecordedSteps(self._draws, used)
        watching = observers if store is None else [*observers, store]
        self._telling = ObserverHub(prepared, ledger, randomness, self._running, watching)
        self._parameters = self._optimiser.weights
        self._average = self._learned.average
        self._steps = Steps(prepared, self._draws, self._learned)
        self._start = self._parameters.clone()
        self._untrained = Untrained(prepared.model)
        self._planned_steps = prepared.plan.steps
        self._schedules = (options.lr_schedule, options.warmup) != ("constant", 0)
        self._done, self._started = 0, 0.0
        self.reported: PrivacyReport | None = None
        """of a run that has failed: what is claimed for it"""
        self._end: End = "interrupted"
        self._resumed = len(ledger.sessions()) > 1
        self.stop = StopRequest()
        self._threads: int | None = None
        self._memory_noted = False
        self._checkpoints = None if store is None else Checkpoints(store.path)
        if self._checkpoints is not None and (name := self._running.unstated()) is not None:
            self._checkpoints = None
            told = f"method {prepared.method.name!r} does not say how {name!r} is stored: this run has no checkpoints"
            warnings.warn(told, stacklevel=2)
        self._saved = time.monotonic()
        self._kept = -1 if checkpoint is None else checkpoint.step
        if checkpoint is not None:  # what it had learned is there already
            self._telling.metrics = [Metrics(**metrics) for metrics in checkpoint.metrics]
            self._done = checkpoint.step

    def run(self) -> Run:
        """Trains to the end of the plan, or until interrupted; either way what was spent is reported.

        After any other error too; then the weights go back to where they started, and the error is raised again.
        """
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

    @property
    def done(self) -> int:
        """Steps that were taken."""
        return self._done

    def add_caveat(self, text: str) -> None:
        """Has every statement of the run name something that the guarantee does not cover."""
        self._ledger.add_caveat(text)

    def refresh(self) -> None:
        """Takes the weights as they are in the model, where others than the optimiser may have written to them."""
        self._optimiser.refresh()

    def begin(self) -> None:
        """Tells observers, before the first step."""
        self._started = time.perf_counter()
        self._telling.begin(self._done)
        train_mode(self._p.model)

    def fail(self, error: BaseException) -> None:
        """Reports what was spent until an error, and puts the weights back to where they started."""
        with contextlib.suppress(LedgerError):  # a disk that takes no more: what was spent stands there already
            self._note("failed", error=type(error).__name__)
        with contextlib.suppress(InputError):
            self.reported = self._report(interrupted=True)
            if self._store is not None:
                self._store.close_record()
        with contextlib.suppress(RuntimeError, KeyError):  # a device that has failed for good, a layer that is gone
            self._layout.write(self._p.model, self._start)
            self._untrained.put_back()
            if self._p.released_norm is not None:
                self._p.released_norm.reset()

    def finish(self) -> Run:
        """Writes down what was spent first, then looks at the model that is kept."""
        with undisturbed():
            return self._finish()

    def _finish(self) -> Run:
        how = f"eager: {self._eager}" if self._recorded is None else self._recorded.description
        interrupted = self._end == "interrupted"
        self._note(self._end)
        privacy = self._report(interrupted)
        trained_models.add(self._p.model)
        refusal = self._untrained.put_back()
        if refusal is not None:
            self.reported = privacy
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
            steps_done=self._done,
            seconds=time.perf_counter() - self._started,
            metrics=tuple(self._telling.metrics),
            interrupted=interrupted,
            execution=how + ("" if self._threads is None else f", {self._threads} CPU thread(s)"),
            gradients=self._p.engine.reason,
            folder=None if self._store is None else self._store.path,
            outputs={name: found.detach().cpu() for name, found in self._running.outputs().items()},
        )
        self._telling.end(run)
        return run

    def _report(self, interrupted: bool) -> PrivacyReport:
        """What was spent, and what is claimed; stored where there is a folder."""
        privacy = report_on(
            self._p,
            self._ledger,
            self._randomness,
            done=self._done,
            interrupted=interrupted,
            exposed=self._exposed,
            shared=None if self._shared is None else self._shared(),
        )
        if self._store is not None:
            self._store.write_privacy(privacy)
        return privacy

    def _note(self, kind: str, **facts: object) -> None:
        with contextlib.suppress(BudgetError):  # stopped in the middle of a line: the ledger takes no more
            self._ledger.note(kind, steps_done=self._done, **facts)

    def probe(self) -> None:
        """Refuses a model in which records have come to mix, by synthetic records."""
        self._draws.micro_batches.probe()

    def process_at_once(self, records: int) -> None:
        """Differentiates so many records at a time from here on; it changes nothing but memory."""
        self._draws.micro_batches.process_at_once(records)

    def steps(self) -> Iterator[Step]:
        """Each step that is left of the plan, covered by the ledger and free to draw; it is taken before the next.

        Where there are no more, `_end` says why: the plan is done, a stop was asked for, or nothing is left to spend.
        """
        before = 0
        for number, stage in enumerate(self._p.stages):
            planned = self._p.samplers(number)
            events = {name: sampler.event([sigma]) for name, (sampler, sigma) in planned.items()}
            for index in range(max(0, self._done - before), stage.steps):
                refused: End | None = "interrupted" if self._agreed_to_stop() else None
                if refused is None and not self._affordable(stage, events, left=stage.steps - index):
                    refused = "exhausted"
                if refused is not None:
                    self.save()
                    self._end = refused
                    return
                self._draws.begin_step(stage.name, self._done, planned)
                if number == 0 and (norm := self._p.released_norm) is not None:
                    release_normalisation(norm, self._draws, self._p.data.records)
                else:
                    self._running.begin_step(stage, index, self._parameters)
                    yield Step(stage=number, index=index, count=self._done)
                self.after_step(number)
            before += stage.steps
            kinds = [stage.draws for stage in self._p.plan.stages]
            if kinds[number] not in kinds[number + 1 :]:  # no later stage could pay for repeated steps of this one
                self.save()
        self._agreed_to_stop()
        check_alike(self._parameters, self._processes)
        self._end = "finished"

    def _agreed_to_stop(self) -> bool:
        """Whether any process was asked to stop; and if one has run out of memory, the ledger says so."""
        if self._processes.size == 1:
            return self.stop.asked
        stopped, ran_out = self._processes.any(self.stop.asked, self._draws.micro_batches.ran_out)
        if ran_out:
            self._note_memory()
        return stopped

    def after_step(self, stage: int) -> None:
        """What follows each step."""
        self._done += 1
        if self._draws.micro_batches.ran_out:
            self._note_memory()
        if self._processes.size > 1 and self._done % _COMPARED_EVERY == 0:
            check_alike(self._parameters, self._processes)
        if self._telling.observers or self._done in self._telling.looks:
            self._telling.step(self._done, self._p.stages[stage].name, self._look)
        if self._checkpoints is not None:
            self._save_if_due()

    def _note_memory(self) -> None:
        """What the guarantee does not cover stands on the ledger, so that a later process says it too."""
        if not self._memory_noted:
            self._ledger.add_caveat(RAN_OUT)
            self._memory_noted = True

    def _affordable(self, stage: Stage, events: Mapping[str, DpEvent], *, left: int) -> bool:
        """Has the ledger cover the next step; False where a crash has cost the steps that would pay for it."""
        try:
            self._ledger.cover(stage.name, self._done, events, left=left)
        except BudgetError:
            if not self._resumed:
                raise
            return False
        return True

    def _save_if_due(self) -> None:
        every = self._p.options.checkpoint_every
        due = time.monotonic() - self._saved >= _CHECKPOINT_SECONDS if every is None else self._done % every == 0
        if due and self._done < self._planned_steps:
            self.save()

    def save(self) -> None:
        """Keeps what the run needs to go on from here: functions of releases, and how far the ledger is."""
        if self._checkpoints is None or self._done == self._kept:
            return
        if (refusal := self._untrained.put_back()) is not None:
            raise refusal
        self._checkpoints.save(
            Checkpoint(
                step=self._done,
                run=str(self._ledger.facts["run"]),
                ledger=self._ledger.head,
                metrics=tuple(asdict(metrics) for metrics in self._telling.metrics),
                state=self._learned.state(),
            )
        )
        self._saved, self._kept = time.monotonic(), self._done

    def _take(self, step: Step) -> None:
        """What runs in Python at every step, then the step itself, which may be a replay."""
        if self._schedules:
            options = self._p.options
            self._optimiser.scale_lr(lr_factor(options.lr_schedule, self._done, self._planned_steps, options.warmup))
        if self._average is not None:
            self._average.begin_step()
        if self._recorded is None:
            self._steps.take(step)
        else:
            self._recorded.take(self._running.record(self._p.stages[step.stage]), partial(self._steps.take, step))

    def update(self, step: Step) -> AbstractContextManager[Release]:
        """For a loop of the user's own: ĝ in `p.grad` while it lasts, in which their optimiser makes its step."""
        return self._steps.shown(step)

    @property
    def spent(self) -> DpEvent:
        """All that was charged so far."""
        return self._ledger.events()

    def ahead(self, *queries: Query) -> Records:
        """Charges for the draw of the step that was yielded last, and makes it: for a script that sees its records."""
        return self._draws.ahead(*queries)

    def _keep_weights(self) -> None:
        """Leaves the model at the weights that are kept: the average where there is one, else the last ones."""
        kept = self._parameters if self._average is None else self._average.value
        self._layout.write(self._p.model, self._running.effective(kept))

    def _accuracy(self) -> float | None:
        test = self._p.data.test
        return None if test is None else accuracy(self._p.shown_model(), test, device=self._p.device)

    def _look(self) -> float | None:
        """Test accuracy of the weights that would be kept now."""
        if self._p.data.test is None:
            return None
        self._keep_weights()
        found = self._accuracy()
        self._layout.write(self._p.model, self._parameters)
        return found
