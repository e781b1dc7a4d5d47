"""A training loop of the user's own, made private by a few lines: it draws, releases and charges; they make the steps.

    for batch in loop:            one Poisson batch, not looked at yet
        batch.backward()          charged, bounded, noised: p.grad now holds a release
        optimizer.step()          the user's own optimiser, scheduler, logging

`p.grad` holds releases and nothing else: a step on anything else, a second step on one release, and a release that was
never used are refused by name. Weights are functions of releases, so the user may look at them at any moment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.accounting import Budget
from adadpigu.data.datasets import Source
from adadpigu.errors import InputError, ModelError, PrivacyLineError
from adadpigu.features.front import Front
from adadpigu.gradients import Loss
from adadpigu.methods import Method
from adadpigu.randomness import Randomness, Tier
from adadpigu.training.loop import Session, Step
from adadpigu.training.run import Observer, Run
from adadpigu.training.train import prepared_for, session

_OWNED = ("lr", "momentum", "weight_decay", "optimizer", "lr_schedule", "warmup", "execution")
"""options that the user's own optimiser and scheduler decide, or that need the package's loop"""


class PrivateBatch:
    """One Poisson batch of records that nobody sees. `backward` may be called once."""

    def __init__(self, loop: PrivateLoop, step: Step) -> None:
        self._loop = loop
        self.step = step
        self._update = contextlib.ExitStack()
        self.state = "drawn"
        """drawn, released (p.grad is set) or used (the optimiser has made its step)"""

    def backward(self) -> None:
        """Charges the draw, and puts the private mean gradient into every parameter's `grad`."""
        if self.state != "drawn":
            raise PrivacyLineError(f"backward() on a batch that was {self.state}: a batch is charged for one release")
        self.state = "released"
        with self._loop.as_begun():
            self._update.enter_context(self._loop.session.update(self.step))
        self._loop.expose()

    def settle(self) -> None:
        """After the optimiser's step: what was frozen is put back, averages go on."""
        self.state = "used"
        self._update.close()


class PrivateLoop:
    """Yields the batches of one private run, for a loop of the user's own.

    Arguments are those of `train`, but learning rate and optimiser, which the loop never touches. As a context manager
    it reports what was spent also after an error; without, when its batches are used up or left by `break`.

    Formal guarantee: as for `train`, of everything that follows from the model's weights and from `p.grad`, provided
    the user's code looks at private records only through this loop.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        dataset: Source,
        *,
        records: int | None = None,
        test: Source | None = None,
        method: Method | str | None = None,
        privacy: Budget | None = None,
        delta: float = 1e-5,
        loss: Loss = F.cross_entropy,
        front: Front | None = None,
        seed: int | None = None,
        out: Path | str | None = None,
        observers: Sequence[Observer] = (),
        randomness: Randomness | Tier | None = None,
        resume: bool = False,
        ledger: Path | str | None = None,
        **options: Any,
    ) -> None:
        for name in _OWNED:
            if name in options:
                raise InputError(f"{name}={options[name]!r}: the loop is yours; set it on your optimizer or scheduler")
        _check_parameters(model, optimizer)
        self.model, self.optimizer = model, optimizer
        given = {**options, "optimizer": lambda _: optimizer, "execution": "eager"}
        self._prepared = prepared_for(
            model,
            dataset,
            records=records,
            test=test,
            method=method,
            privacy=privacy,
            delta=delta,
            loss=loss,
            front=front,
            seed=seed,
            out=out,
            resume=resume,
            options=given,
        )
        self._open = contextlib.ExitStack()
        self.session: Session = self._open.enter_context(
            session(
                self._prepared,
                out=None if out is None else Path(out),
                observers=observers,
                randomness=randomness,
                resuming=resume,
                shared=None if ledger is None else Path(ledger),
            )
        )
        self._named = dict(model.named_parameters())
        self._trained = {slot.name for slot in self._prepared.engine.layout.slots}
        self._exposed: dict[str, tuple[Tensor, int]] = {}
        self._batch: PrivateBatch | None = None
        self._run: Run | None = None
        self._begun = self._entered = self._over = False
        self._hooks = (
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        )

    def __len__(self) -> int:
        """How many steps the plan has."""
        return self._prepared.plan.steps

    @property
    def epsilon(self) -> float:
        """The ε to cite: of the whole plan, however early the loop is left."""
        return self._prepared.epsilons["pld"]

    @property
    def noise_multiplier(self) -> float:
        """σ, fixed before the first step."""
        return self._prepared.noise_multiplier

    @property
    def run(self) -> Run:
        """The finished run: its privacy report, its model."""
        if self._run is None:
            what = "ended by an error" if self._over else "not ended"
            raise InputError(f"run: the loop has {what}; allowed: after its last batch, or after finish()")
        return self._run

    def __iter__(self) -> Iterator[PrivateBatch]:
        if self._begun:
            raise InputError("a private loop is gone through once: its steps are charged; make another one")
        self._begun = True
        self.session.begin()
        try:
            for step in self.session.steps():
                self._batch = PrivateBatch(self, step)
                yield self._batch
                self._require_used()
        except GeneratorExit:  # left early: a `with` around it will know why
            if not self._entered:
                self.finish()
            raise
        except BaseException as error:
            self._fail(error)
            raise
        self.finish()

    def finish(self) -> Run:
        """Ends the run: what was spent is reported, and the weights that are kept are in the model."""
        if not self._over:
            self._begun = True
            if self._batch is not None and self._batch.state == "used" and self.session.done == self._batch.step.count:
                self.session.took(self._batch.step.stage)  # the loop was left after its step
            with self._last():
                self._run = self.session.finish()
        return self.run

    def _fail(self, error: BaseException) -> None:
        if not self._over:
            with self._last():
                self.session.fail(error)

    @contextlib.contextmanager
    def _last(self) -> Iterator[None]:
        """What ends the run: after it the optimiser is the user's alone, and the ledger is closed."""
        self._over = True
        for hook in self._hooks:
            hook.remove()
        with self._open:
            yield

    def __enter__(self) -> Self:
        self._entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, KeyboardInterrupt):
            self._fail(error)
        elif not self._over:
            self.finish()

    @contextlib.contextmanager
    def as_begun(self) -> Iterator[None]:
        """Within, all that was trained when the loop began counts as such, also what was frozen since."""
        frozen = [name for name in sorted(self._trained) if not self._named[name].requires_grad]
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad and name not in self._trained:
                raise ModelError(
                    f"parameter {name!r} was frozen when the loop began, so its gradient has no bound; allowed: make "
                    "the loop with all that will be trained, and freeze later"
                )
        for name in frozen:
            self._named[name].requires_grad_(True)
        try:
            yield
        finally:
            for name in frozen:
                self._named[name].requires_grad_(False)

    def expose(self) -> None:
        """Remembers which tensors are the release, so that nothing else passes for it."""
        self._exposed = {}
        for name in self._trained:
            parameter = self._named[name]
            if not parameter.requires_grad:
                parameter.grad = None
            elif parameter.grad is not None:
                self._exposed[name] = parameter.grad, parameter.grad._version

    def _require_used(self) -> None:
        assert self._batch is not None
        missing = {
            "drawn": "batch.backward() was not called: its draw is part of the plan, and of what is claimed",
            "released": "optimizer.step() was not called: its release is paid for and would be lost",
        }
        if self._batch.state in missing:
            raise InputError(f"step {self.session.done + 1}: {missing[self._batch.state]}")

    def _before_step(self, _: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Nothing but a release, once, may be stepped along."""
        batch = self._batch
        if any(given is not None and given is not self.optimizer for given in (*args, kwargs.get("closure"))):
            raise InputError("optimizer.step(closure): a closure would compute un-noised gradients; call it without")
        if batch is None or batch.state == "drawn":
            raise PrivacyLineError("optimizer.step() before batch.backward(): there is no release to step along")
        if batch.state == "used":
            raise PrivacyLineError("optimizer.step() twice on one release; allowed: once a batch")
        for name, parameter in self._named.items():
            kept = self._exposed.get(name)
            same = (kept is None and parameter.grad is None) or (
                kept is not None and parameter.grad is kept[0] and kept[0]._version == kept[1]
            )
            if not same:
                raise PrivacyLineError(
                    f"{name}.grad is not what batch.backward() released: a backward pass of your own, zero_grad() or a "
                    "change in place came after it; allowed: optimizer.step() right after batch.backward()"
                )

    def _after_step(self, *_: object) -> None:
        assert self._batch is not None
        self._batch.settle()


def _check_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Every parameter that the optimiser moves must be one of the model's."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InputError(
            "optimizer=LBFGS asks for the loss several times a step; allowed: optimisers of one gradient a step"
        )
    own = {id(parameter) for parameter in model.parameters()}
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if id(parameter) not in own:
                raise InputError(
                    f"optimizer: parameter {place} of group {number}, of shape {tuple(parameter.shape)}, is not the "
                    "model's; allowed: parameters of the model that is made private"
                )
