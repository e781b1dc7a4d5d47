"""`PrivacyEngine`, as scripts for Opacus call it: their model, optimizer and loader in, the same made private out.

Drawing, charging, clipping and noise are those of `PrivateLoop`. Without a number of epochs every pass over the loader
is a run of its own, planned and charged in full before it begins; with one, all passes are one planned run.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.utils.data import DataLoader

from adadpigu.accounting import Budget, PrivacyReport
from adadpigu.compat.loaders import judged, tell_ignored
from adadpigu.compat.opacus.accountants import Accountant
from adadpigu.compat.opacus.records import records_of, unwrapped
from adadpigu.compat.opacus.script import HeldRecords, PrivateModule
from adadpigu.compat.opacus.tracing import ScriptLoss
from adadpigu.compat.opacus.training import PrivateDataLoader, Training
from adadpigu.errors import InputError, unknown
from adadpigu.methods import DPSGD
from adadpigu.randomness import Randomness, Tier
from adadpigu.training.options import TrainingOptions
from adadpigu.training.preparation import Preparation, prepare
from adadpigu.training.run import check_free

_MODES = ("hooks", "functorch", "ew", "ghost", "ghost_fsdp", "no_op")


class PrivacyEngine:
    """Makes a module, an optimizer and a loader private, by the calls of `opacus.PrivacyEngine`.

    `accountant`: prv (the default; here the tight privacy loss distribution) or rdp. `secure_mode` asks for noise from
    a cryptographic generator. Ours: `out` writes a run folder with its ledger, where the number of steps is known;
    `records` is the *public* record count N, where the length of the data set is not public.
    """

    def __init__(
        self,
        *,
        accountant: str = "prv",
        secure_mode: bool = False,
        records: int | None = None,
        out: Path | str | None = None,
    ) -> None:
        self.accountant = Accountant(accountant)
        self.secure_mode = secure_mode
        self._out = None if out is None else Path(out)
        self._training: Training | None = None
        self._records = records
        self._randomness: Randomness | Tier | None = "secure" if secure_mode else None

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: DataLoader[Any],
        noise_multiplier: float,
        max_grad_norm: float,
        criterion: Any = None,
        total_steps: int | None = None,
        **options: Any,
    ) -> Any:
        """Module, optimizer and loader, made private with a given noise; every pass over the loader adds to ε."""
        if total_steps is None and self._out is not None:
            raise InputError(f"out={str(self._out)!r}: a run folder is for a planned run; allowed: with total_steps")
        return self._make(
            module,
            optimizer,
            data_loader,
            criterion,
            max_grad_norm,
            options,
            noise_multiplier=noise_multiplier,
            steps=total_steps,
        )

    def make_private_with_epsilon(
        self,
        *,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: DataLoader[Any],
        target_epsilon: float,
        target_delta: float,
        epochs: int,
        max_grad_norm: float,
        criterion: Any = None,
        **options: Any,
    ) -> Any:
        """As `make_private`, with the noise for which so many epochs cost at most the target."""
        if epochs < 1:
            raise InputError(f"epochs={epochs} is not at least 1")
        budget = Budget(epsilon=target_epsilon, delta=target_delta)
        loader = unwrapped(data_loader)
        steps = epochs * _length(self._count(loader), loader)
        return self._make(module, optimizer, data_loader, criterion, max_grad_norm, options, budget=budget, steps=steps)

    def get_epsilon(self, delta: float) -> float:
        """ε to cite: of the whole plan, from its first step on, however early it is left; of all passes without a plan.

        When a script stops may depend on what it saw, so a run that stopped at half of its steps claims all of them.
        """
        return self.accountant.get_epsilon(delta=delta)

    def report(self, delta: float | None = None) -> PrivacyReport:
        """The report of what was done: of the planned run, or of all passes together (at 1e-5, or another δ)."""
        if self._training is None or not self._training.loops()[0].ended:
            raise InputError(
                "report: no run has ended; allowed: after the last batch of a pass or of the plan, or after finish()"
            )
        return self.accountant.report(delta)

    def statement(self, delta: float | None = None) -> str:
        """What is guaranteed, in plain words."""
        return self.report(delta).statement()

    def is_compatible(self, *, module: nn.Module, **_: Any) -> bool:
        """Whether the module can be made private."""
        from adadpigu.compat.opacus.validators import ModuleValidator

        return ModuleValidator.is_valid(module)

    def save_checkpoint(self, **_: Any) -> None:
        """Refused: a checkpoint without its ledger would make charges that were made disappear."""
        raise InputError(
            "save_checkpoint keeps no ledger; allowed: torch.save(model.state_dict()), or a run folder (out)"
        )

    load_checkpoint = save_checkpoint

    def finish(self) -> None:
        """Ends a planned run before its last step: the whole plan is claimed, and the statement says so."""
        if self._training is not None:
            self._training.finish()

    def _count(self, loader: DataLoader[Any]) -> int:
        return len(cast(Any, loader.dataset)) if self._records is None else self._records

    def _make(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: DataLoader[Any],
        criterion: Any,
        max_grad_norm: float,
        further: dict[str, Any],
        *,
        steps: int | None,
        budget: Budget | None = None,
        noise_multiplier: float | None = None,
    ) -> Any:
        if self._training is not None:
            raise InputError("this PrivacyEngine has made a model private already; allowed: another engine for another")
        clipping, mode = _checked(further, max_grad_norm)
        loader = unwrapped(loader)
        data = records_of(loader, self._records)
        tell_ignored(judged(loader, "data_loader")[1], "data_loader")
        if self._out is not None:
            check_free(self._out)
        length, loss = _length(data.records, loader), ScriptLoss()
        prepared = prepare(
            module.train(),
            dataclasses.replace(data, train=HeldRecords(data.train)),
            method=DPSGD(clip_norm=float(max_grad_norm)),
            budget=budget,
            delta=1e-5 if budget is None else budget.delta,
            options=TrainingOptions(
                batch_size=min(int(loader.batch_size or 1), data.records),
                steps=length if steps is None else steps,
                noise_multiplier=noise_multiplier,
                clipping=clipping,
                device=str(next(module.parameters()).device),
                optimizer=lambda _: optimizer,
                execution="eager",
            ),
            loss=loss,
        )
        made = self._wrapped(prepared, optimizer, loss, loader, length, open_ended=steps is None)
        if mode.startswith("ghost"):
            return made[0], optimizer, nn.CrossEntropyLoss() if criterion is None else criterion, made[2]
        return made

    def _wrapped(
        self,
        prepared: Preparation,
        optimizer: torch.optim.Optimizer,
        loss: ScriptLoss,
        loader: DataLoader[Any],
        length: int,
        *,
        open_ended: bool,
        **how: Any,
    ) -> tuple[PrivateModule, torch.optim.Optimizer, PrivateDataLoader]:
        """What the script goes on with, once all was checked."""
        asked = {"out": self._out, "randomness": self._randomness, **how}
        self._training = Training(prepared, optimizer, loss, length=length, open_ended=open_ended, **asked)
        self.accountant.watch(self._training.loops)
        for name, value in (
            ("noise_multiplier", prepared.noise_multiplier),
            ("max_grad_norm", cast(DPSGD, prepared.method).clip_norm),
            ("expected_batch_size", prepared.options.batch_size),
        ):
            setattr(optimizer, name, value)  # scripts print them
        return self._training.module(), optimizer, PrivateDataLoader(self._training, loader)


def _length(records: int, loader: DataLoader[Any]) -> int:
    """Steps of a pass: N/B, rounded up."""
    return max(1, math.ceil(records / int(loader.batch_size or 1)))


def _checked(options: dict[str, Any], max_grad_norm: object) -> tuple[Any, str]:
    """What Opacus takes beside the arguments that decide: some is the default here, the rest is refused by name."""
    if isinstance(max_grad_norm, bool) or not isinstance(max_grad_norm, int | float):
        raise InputError(
            f"max_grad_norm={max_grad_norm!r}: allowed: one number, the bound of a record's whole gradient"
        )
    known = {
        "batch_first": (True,),
        "loss_reduction": ("mean",),
        "poisson_sampling": (True,),
        "clipping": ("flat", "automatic"),
        "noise_generator": (None,),
        "grad_sample_mode": _MODES,
        "normalize_clipping": (False,),
        "strict": (True, False),
        "wrap_model": (True,),
        "rand_on_empty": (False,),
    }
    remedies = {
        "loss_reduction": "; take the mean and scale the learning rate",
        "poisson_sampling": "; shuffled batches have another epsilon than the accountant's",
        "clipping": "; adadpigu.train has methods that adapt the bound (adaclip, quantile)",
        "noise_generator": "; noise from a seed that somebody knows is no noise",
        "batch_first": "; the first dimension is the record",
    }
    for name, value in options.items():
        if name not in known:
            raise unknown("argument", name, sorted(known))
        if value not in known[name]:
            allowed = ", ".join(map(repr, known[name]))
            raise InputError(f"{name}={value!r}: allowed: {allowed}{remedies.get(name, '')}")
    return options.get("clipping", "flat"), options.get("grad_sample_mode", "hooks")
