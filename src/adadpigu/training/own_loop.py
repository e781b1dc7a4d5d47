"""A training loop of the user's own, made private by a few lines: it draws, releases and charges; they make the steps.

    for batch in loop:            one Poisson batch, not looked at yet
        batch.backward()          charged, bounded, noised: p.grad now holds a release
        optimizer.step()          the user's own optimiser, scheduler, logging

`p.grad` holds releases and nothing else, which the user may clip, scale or zero; `guarding` sees to it.
"""

import contextlib
import warnings
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, Self

import torch
from torch import Tensor, nn

from adadpigu.accounting import Budget, PrivacyReport
from adadpigu.accounting.events import DpEvent
from adadpigu.core.bounding import GradientSum
from adadpigu.core.gradients import Loss, Losses
from adadpigu.core.gradients.norms import keep_norms_frozen
from adadpigu.core.randomness import Randomness, Tier
from adadpigu.core.sensitive import Records
from adadpigu.data.datasets import Source
from adadpigu.errors import InputError, PrivacyLineError, check_range, require
from adadpigu.methods import Method
from adadpigu.runs.run import Observer, Run
from adadpigu.training.distributed.job import current
from adadpigu.training.guarding import Guard
from adadpigu.training.preparation import Preparation
from adadpigu.training.reporting import print_path
from adadpigu.training.step import Step
from adadpigu.training.threads import using
from adadpigu.training.train import device_of, prepared_for, session

State = Literal["drawn", "part", "released", "used", "failed"]
_OWN_CODE = "what the training code around this run does with private records besides it: the loop was the user's own"
_OWNED = ("lr", "momentum", "weight_decay", "body_lr", "optimizer", "lr_schedule", "warmup", "execution")
"""options that the user's own optimiser and scheduler decide, or that need the package's loop"""


class WithheldLoss:
    """What `backward` returns in the place of a loss, which is private."""

    def __float__(self) -> NoReturn:
        told = "batch.backward() gives no loss: it is private; allowed for ReduceLROnPlateau, early stopping and logs"
        metric = "a public metric, such as the accuracy on public records"
        raise PrivacyLineError(f"{told}: {metric}; other schedulers: scheduler.step()")

    item = __float__

    def __format__(self, spec: str) -> str:  # also with ".3f", as people print a loss: the step is paid for
        return repr(self)

    def __repr__(self) -> str:
        return "<the loss is private>"


class PrivateBatch:
    """One Poisson batch of records that nobody sees, or a part of one. `backward` may be called once."""

    def __init__(self, loop: "PrivateLoop", step: Step, *, last_part: bool = True) -> None:
        self._loop, self._session = loop, loop._session
        self.step, self._last_part = step, last_part
        self._update = contextlib.ExitStack()
        self.state: State = "drawn"
        """part: others follow; released: p.grad is set; used: the optimiser has made its step"""

    def backward(self) -> WithheldLoss:
        """Charges the draw, and puts the private mean gradient into `p.grad`; of parts, the last does."""
        if self.state != "drawn":
            raise PrivacyLineError(f"backward() on a batch in state {self.state!r}: a batch is charged for one release")
        if self._loop.ended:
            raise PrivacyLineError("backward() on a batch of a run that has ended; allowed: within its loop")
        if not self._last_part:
            self.state = "part"
            return WithheldLoss()
        self.state = "failed"
        self._loop._busy = True
        try:
            with self._as_begun():
                self._update.enter_context(self._session.updates.shown(self.step))
            self._loop._guard.hand_over()
        except BaseException as error:
            self._loop._end_by(error)
            raise
        finally:
            self._loop._busy = False
        self.state = "released"
        return WithheldLoss()

    @contextlib.contextmanager
    def _as_begun(self) -> Iterator[None]:
        """Within, records may be looked at."""
        prepared = self._loop._prepared
        keep_norms_frozen(prepared.model)
        with self._loop._guard.as_begun(self._session.draws.micro_batches.probe), using(prepared.threads):
            yield

    def _unseen(self, *_: object, **__: object) -> NoReturn:
        told = "nobody sees the records of a private batch, nor how many they are; allowed: batch.backward()"
        raise PrivacyLineError(f"{told}, with the loss that the loop was made with (loss= or losses=)")

    __iter__ = __getitem__ = __len__ = to = _unseen

    def ahead(self, query: GradientSum) -> Records:
        """Charges for the draw and makes it before `backward`: for integrations whose scripts see their records."""
        if self.state != "drawn":
            raise PrivacyLineError(f"a batch that was {self.state} is not drawn again")
        try:
            return self._session.draws.ahead(query)
        except BaseException as error:
            self.state = "failed"
            self._loop._end_by(error)
            raise

    def drop(self) -> bool:
        """Gives up a batch of which nothing was released: it stays charged. False where something was, or it failed."""
        if self.state != "drawn":
            return False
        self.state = "used"
        return True

    def settle(self) -> None:
        """After the optimiser's step: what was frozen is put back, averages go on; a method may draw to reject it."""
        with self._as_begun() if self._session.updates.may_reject else contextlib.nullcontext():
            self._update.close()
        self.state = "used"


class PrivateLoop:
    """Yields the batches of one private run, for a loop of the user's own.

    Arguments are those of `train`, but for learning rate and optimiser, which the loop never touches. As a context
    manager it reports what was spent also after an error; without, when its batches are used up or left by `break`.
    Ctrl-C lets the step end, keeps the weights, claims the whole plan and then interrupts the program. `accumulate=k`
    is for a loop that makes a step every k batches: a batch of `batch_size` comes in k parts.

    Formal guarantee: as for `train`, of everything that follows from the model's weights and from `p.grad`, provided
    the user's code looks at private records only through this loop.
    """

    epsilon: float
    """the ε to cite: of the whole plan, however early the loop is left"""
    delta: float
    """the δ to cite"""
    noise_multiplier: float
    """σ, fixed before the first step"""
    gradients: str
    """how per-record gradients are computed, and why"""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
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
        accumulate: int = 1,
        **options: Any,
    ) -> None:
        given = dict(locals())  # by name, as the signature has them
        for name in ("self", "optimizer", "observers", "randomness", "ledger", "accumulate", "options"):
            del given[name]
        check_range("accumulate", accumulate, "at least 1")
        self._parts = accumulate
        for name in options.keys() & _OWNED:
            raise InputError(f"{name}={options[name]!r}: the loop is yours; set it on your optimizer or scheduler")
        scored = options.get("private_validation")
        told = f"private_validation={scored!r}: it is scored where the package's own loop ends"
        require(scored is None, f"{told}; allowed: ad.train")
        given |= {"device": device_of(model), **options, "optimizer": lambda _: optimizer, "execution": "eager"}
        self._prepared = prepared_for(**given)
        place = {"out": out, "resuming": resume, "shared": ledger, "introduce": print_path}
        self._start(optimizer, losses if loss is None else loss, observers=observers, randomness=randomness, **place)
        if accumulate > 1 and not options.keys() & {"physical_batch_size", "memory_limit"}:
            self.process_at_once(-(-self._prepared.options.batch_size // accumulate))
        if resume:
            told = "the run goes on with its weights, momentum and averages; learning rates and schedulers are yours"
            warnings.warn(told, stacklevel=2)

    @classmethod
    def of(cls, prepared: Preparation, optimizer: torch.optim.Optimizer, **how: Any) -> Self:
        """The loop of a run that is ready to start: for integrations. `how` are the arguments of `session`."""
        loop = cls.__new__(cls)
        loop._prepared, loop._parts = prepared, 1
        loop._start(optimizer, **how)
        return loop

    def _start(self, optimizer: torch.optim.Optimizer, loss: object = None, **how: Any) -> None:
        """Puts the guard on and opens the ledger, both until the run ends (`_ending`); nothing is charged yet."""
        prepared = self._prepared
        self.epsilon, self.delta = prepared.epsilons["pld"], prepared.delta
        self.noise_multiplier, self.gradients = prepared.noise_multiplier, prepared.engine.reason
        self.planned = prepared.plan.event()  # all that the run may ever charge
        self.batch: PrivateBatch | None = None  # the latest one
        self._run: Run | None = None
        self._begun = self._entered = False
        self.ended = False  # whether the run is over, well or not
        self._busy = False  # whether the package's own code runs, which a first Ctrl-C does not interrupt
        with contextlib.ExitStack() as opening:
            trained = {slot.name for slot in prepared.engine.layout.slots}
            self._guard = Guard(prepared.model, optimizer, trained, loss, self)
            opening.callback(self._guard.take_off)
            self._session = opening.enter_context(session(prepared, **how))
            self.add_caveat(_OWN_CODE)
            self._guard.name_hooks()
            self._ending = opening.pop_all()

    def __len__(self) -> int:
        """How many batches there are, or parts of them."""
        return self._prepared.plan.steps * self._parts

    @property
    def failed(self) -> bool:
        """Whether the run was ended by an error."""
        return self.ended and self._run is None

    @property
    def privacy(self) -> PrivacyReport:
        """What is claimed for a run that has ended, also where an error has ended it."""
        if self.ended and self._session.reported is not None:
            return self._session.reported
        raise InputError("privacy: the loop has not ended; allowed: after its last batch, or after finish()")

    @property
    def done(self) -> int:
        """Steps that were taken."""
        return self._session.done

    @property
    def spent(self) -> DpEvent:
        """All that was charged so far, for any accountant."""
        return self._session.ledger.events()

    def add_caveat(self, text: str) -> None:
        """Has the statement name something that the guarantee does not cover."""
        self._session.ledger.add_caveat(text)

    def process_at_once(self, records: int) -> None:
        """Differentiates so many records at a time from here on; it changes nothing but memory."""
        self._session.draws.micro_batches.process_at_once(records)

    @property
    def run(self) -> Run:
        """The finished run: its privacy report, its model."""
        if self._run is None:
            what = "ended by an error" if self.ended else "not ended"
            raise InputError(f"run: the loop has {what}; allowed: after its last batch, or after finish()")
        return self._run

    def __iter__(self) -> Iterator[PrivateBatch]:
        if self._begun:
            told = "a private loop is gone through once: all its epochs are in one pass; leave out the loop over epochs"
            raise InputError(f"{told} around it (a further loop is a further run, whose epsilon adds up)")
        self._begun = self._busy = True
        stop = self._session.stop
        stop.end = self._end_unless_halfway
        self._ending.enter_context(stop)
        try:
            self._session.begin()
            self._guard.begin()
            for step in self._session.steps():
                for part in range(1, self._parts + 1):
                    self.batch = PrivateBatch(self, step, last_part=part == self._parts)
                    self._busy = False
                    yield self.batch
                    if self._run is not None:  # interrupted, and the user's code went on
                        return
                    self._busy = True
                    self._require_used(self.batch)
                self._session.learned.optimiser.refresh()  # the user may have written to the weights
        except GeneratorExit:  # left early: a `with` around it will know why
            if not (self._entered or self.ended):
                self.finish()
            raise
        except BaseException as error:
            self._end_by(error)
            raise
        self.finish()
        if stop.asked:  # the step that Ctrl-C came amid was finished first
            raise KeyboardInterrupt

    def _end_unless_halfway(self) -> bool:
        """For Ctrl-C: ends the run where no step is half made, and says whether it is over."""
        halfway = self._busy or (self.batch is not None and self.batch.state == "released")
        if halfway or current().size > 1:  # several processes agree before the next step
            return False
        self.finish()
        return True

    def _require_used(self, batch: PrivateBatch) -> None:
        missing = {
            "drawn": "batch.backward() was not called: its draw is part of the plan, and of what is claimed",
            "released": "optimizer.step() was not called: its release is paid for and would be lost (to make a step "
            "every k batches: accumulate=k, or BatchMemoryManager in an Opacus script)",
            "failed": "batch.backward() has failed, and the run with it: nothing more is released",
        }
        if batch.state in missing:
            raise InputError(f"step {self._session.done + 1}: {missing[batch.state]}")

    def finish(self) -> Run:
        """Ends the run: what was spent is reported, and the weights that are kept are in the model."""
        if not self.ended:
            self._begun = True
            batch = self.batch
            if batch is not None and batch.state == "used" and self._session.done == batch.step.count:
                self._session.learned.optimiser.refresh()
                self._session.after_step(batch.step.stage)  # the loop was left after its step
            if batch is not None and batch.state != "released" and self._session.done < self._prepared.plan.steps:
                self._session.save()  # what a release that no step followed has taught the method is not a step
            self.ended = True
            with self._ending:
                self._run = self._session.finish()
        return self.run

    def _end_by(self, error: BaseException) -> None:
        """Ends the run: with the weights of its last step where the user stopped it, else with none."""
        if isinstance(error, KeyboardInterrupt):
            self.finish()
        elif not self.ended:
            self.ended = True
            with self._ending:
                self._session.fail(error)

    def __enter__(self) -> Self:
        self._entered = True
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._end_by(error)
        elif not self.ended:
            self.finish()
