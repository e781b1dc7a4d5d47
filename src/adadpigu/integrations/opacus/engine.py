"""`PrivacyEngine`, as scripts for Opacus call it: their model, optimizer, criterion and loader in, made private out.

Drawing, charging, clipping and noise are those of `PrivateLoop`. Without a number of epochs every pass over the loader
is a run of its own, planned and charged in full before it begins; with one, all passes are one planned run.
"""

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, default_collate

from adadpigu.accounting import Budget, PrivacyReport
from adadpigu.core.gradients import ENGINES, Loss, Losses
from adadpigu.core.sampling import Population
from adadpigu.core.trees import to_device
from adadpigu.data.datasets import DataSet, IndexedRecords
from adadpigu.errors import InputError, check_known, require
from adadpigu.integrations.loaders import PAIRS, CollatedRecords, validate_loader
from adadpigu.integrations.opacus import script
from adadpigu.integrations.opacus.accountants import Accountant
from adadpigu.integrations.opacus.loader import PrivateDataLoader
from adadpigu.integrations.opacus.validators import ModuleValidator
from adadpigu.integrations.shared import Rule, refuse_settings
from adadpigu.methods import DPSGD
from adadpigu.runs.run import check_free
from adadpigu.training.options import TrainingOptions
from adadpigu.training.preparation import prepare

Private = tuple[script.PrivateModule, torch.optim.Optimizer, script.PrivateCriterion, PrivateDataLoader]


class PrivacyEngine:
    """Makes a module, an optimizer, a criterion and a loader private, by the calls of `opacus.PrivacyEngine`.

    `accountant`: prv (here the tight privacy loss distribution) or rdp. `secure_mode`: noise from a cryptographic
    generator. Ours: `out`, a run folder, where the number of steps is known; `records`, the *public* record count N,
    where the length of the data set is not public.
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
        folder = None if out is None else Path(out)
        self._how: dict[str, Any] = {"out": folder, "randomness": "secure" if secure_mode else None}
        """as `PrivateLoop.of` takes it"""
        self._records = records
        self._loader: PrivateDataLoader | None = None

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: DataLoader[Any],
        noise_multiplier: float,
        max_grad_norm: float,
        criterion: Loss | None = None,
        losses: Losses | None = None,
        total_steps: int | None = None,
        **options: Any,
    ) -> Private:
        """Module, optimizer, criterion and loader, made private with a given noise; every pass adds to ε.

        `criterion(outputs, targets)` is the loss whose per-record gradients are released: a torch loss, or any
        function, which then holds all that comes after the model. Or `losses(model, batch)`, one loss a record, of
        batches of any form: the criterion that is returned is then called with model and batch.
        """
        out = self._how["out"]
        planned = total_steps is not None or out is None
        require(planned, f"out={str(out)!r}: a run folder is for a planned run; allowed: with total_steps")
        parts = module, optimizer, data_loader, max_grad_norm, criterion, losses
        return self._make(noise_multiplier, total_steps, None, *parts, **options)

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
        criterion: Loss | None = None,
        losses: Losses | None = None,
        **options: Any,
    ) -> Private:
        """As `make_private`, with the noise for which so many epochs cost at most the target."""
        budget, parts = Budget(epsilon=target_epsilon, delta=target_delta), (module, optimizer, data_loader)
        return self._make(budget, None, epochs, *parts, max_grad_norm, criterion, losses, **options)

    def get_epsilon(self, delta: float) -> float:
        """ε to cite: of the whole plan from its first step on, however early it is left, or of all passes."""
        return self.accountant.get_epsilon(delta=delta)

    def report(self, delta: float | None = None) -> PrivacyReport:
        """The report of what was done: of the planned run, or of all passes together (at 1e-5, or another δ)."""
        ended = self._loader is not None and self._loader.loops()[0].ended
        require(ended, "report: no run has ended; allowed: after the last batch of a pass or plan, or after finish()")
        return self.accountant.report(delta)

    def statement(self, delta: float | None = None) -> str:
        """What is guaranteed, in plain words."""
        return self.report(delta).statement()

    def is_compatible(self, *, module: nn.Module, **_: Any) -> bool:
        """Whether the module can be made private."""
        return ModuleValidator.is_valid(module)

    def save_checkpoint(self, **_: Any) -> None:
        """Refused: a checkpoint without its ledger would make charges that were made disappear."""
        remedy = "torch.save(model.state_dict()), or a run folder (out)"
        raise InputError(f"save_checkpoint keeps no ledger; allowed: {remedy}")

    load_checkpoint = save_checkpoint

    def finish(self) -> None:
        """Ends a planned run before its last step: the whole plan is claimed, and the statement says so."""
        if self._loader is not None:
            self._loader.finish()

    def _make(
        self,
        noise: float | Budget,
        steps: int | None,
        epochs: int | None,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: DataLoader[Any],
        max_grad_norm: float,
        criterion: Loss | None,
        losses: Losses | None,
        **further: Any,
    ) -> Private:
        fresh = self._loader is None
        require(fresh, "this PrivacyEngine has made a model private already; allowed: another engine for another")
        require(
            criterion is not None or losses is not None,
            "criterion is missing: model, optimizer, criterion, data_loader = privacy_engine.make_private(..., "
            "criterion=criterion), as in Opacus' ghost mode, and nothing else changes; or losses=f, with "
            "f(model, batch) -> one loss a record",
        )
        single = isinstance(max_grad_norm, int | float)
        require(single, f"max_grad_norm={max_grad_norm!r}: allowed: one number, for the whole gradient of a record")
        for name in further:
            check_known("argument", name, _RULES)
        refuse_settings(_RULES, {"reduction": getattr(criterion, "reduction", "mean"), **further})
        loader = validate_loader(getattr(data_loader, "original", data_loader), "data_loader")
        data = _data_set(loader, self._records, whole=losses is not None)
        if self._how["out"] is not None:
            check_free(self._how["out"])
        batch_size = min(int(loader.batch_size or 1), data.records)
        length = math.ceil(data.records / batch_size)
        steps = steps if epochs is None else epochs * length
        budget = noise if isinstance(noise, Budget) else None
        if isinstance(noise, Budget):
            noise = self.accountant.noise_for(noise, batch_size / data.records, steps or 0)
        prepared = prepare(
            module if criterion is None else _with_one_output(module, data.train, criterion),
            data,
            method=DPSGD(clip_norm=float(max_grad_norm)),
            budget=budget,
            delta=1e-5 if budget is None else budget.delta,
            options=TrainingOptions(
                batch_size=batch_size,
                steps=length if steps is None else steps,
                noise_multiplier=noise,
                clipping=further.get("clipping", "flat"),
                device=str(next(module.parameters()).device),
                optimizer=lambda _: optimizer,
                execution="eager",
                engine=further.get("engine", "auto"),
            ),
            loss=criterion,
            losses=losses,
        )
        kind = script.ScriptBatch if losses is None else script.WholeBatch
        how = {"open_ended": steps is None, "batches": kind, **self._how}
        private = PrivateDataLoader(loader, prepared, optimizer, length=length, **how)
        self._loader, self.accountant.loops = private, private.loops
        shown = prepared.model.module if isinstance(prepared.model, script.FirstOutput) else prepared.model
        called = criterion if losses is None else script.MeanOfLosses(losses)
        assert called is not None
        model = script.PrivateModule(shown, lambda: private.batch)
        return model, optimizer, script.PrivateCriterion(called, lambda: private.batch), private


def _data_set(loader: DataLoader[Any], records: int | None, *, whole: bool) -> DataSet:
    """The records of a loader; `records` is their public count, None: their number, as Opacus takes it."""
    source: Any = loader.dataset
    name = "data_loader.dataset"
    known = f"{len(source):,} records: the length of {name}, as Opacus takes it"
    public, records = (known, len(source)) if records is None else (f"{records:,} records", records)
    if loader.collate_fn is default_collate:
        plain = IndexedRecords(source, name=name)
        require(whole or not plain.whole, f"{name}: its records are no pairs; {PAIRS}")
        return DataSet(name=name, train=plain, records=records, public=(public,))
    train = CollatedRecords(source, loader.collate_fn, pairs=not whole, pad=True)
    return DataSet(name=name, train=train, records=records, public=(public, *train.declared))


def _with_one_output(module: nn.Module, records: Population, criterion: Loss) -> nn.Module:
    """The module; where it returns several things, and torch's losses take one, that with the first of them."""
    if not isinstance(criterion, torch.nn.modules.loss._Loss):
        return module
    device = next(module.parameters()).device
    try:
        output = script.no_rows(module, to_device(records.take(torch.arange(0))[0], device))
    except Exception:  # `prepare` says what is wrong
        return module
    return script.FirstOutput(module) if isinstance(output, tuple | list) else module


_MODES = ("hooks", "functorch", "ew", "ghost", "ghost_fsdp", "no_op")
_RULES: dict[str, Rule] = {
    "batch_first": ((True,), "allowed: True, the first dimension is the record"),
    "reduction": (("mean", "none"), "allowed: 'mean' or 'none' in the criterion; scale the learning rate"),
    "loss_reduction": (("mean",), "allowed: 'mean'; scale the learning rate"),
    "poisson_sampling": ((True,), "allowed: True; shuffled batches have another epsilon than the accountant's"),
    "clipping": (("flat", "automatic"), "allowed: 'flat' or 'automatic'; methods of adadpigu.train adapt the bound"),
    "noise_generator": ((None,), "allowed: None; noise from a seed that somebody knows is no noise"),
    "grad_sample_mode": (_MODES, f"allowed: {', '.join(_MODES)}; any is as fast here"),
    "normalize_clipping": ((False,), "allowed: False; clipping='automatic' normalises"),
    "engine": (ENGINES, f"allowed: {', '.join(ENGINES)}"),
    "strict": ((True, False), "allowed: True or False"),
    "wrap_model": ((True,), "allowed: True; the wrapped model shows batches"),
    "rand_on_empty": ((False,), "allowed: False; an empty batch is a step like any other"),
}
"""options of Opacus: what is allowed here, and what to do else"""
