"""The per-record loss of a LightningModule, as the `losses(model, batch) -> [n]` that all training takes.

    private_losses(batch)              if the module declares it: [n]
    training_step(batch, batch_idx)    otherwise: called with one record at a time, a batch of one

The user's code runs on records here, mostly under vmap, so what it logs or keeps would be un-noised. Logs go nowhere,
metrics count nothing, and attributes of the module are put back after each call.
"""

import contextlib
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from adadpigu.core.gradients.losses import Objective
from adadpigu.core.gradients.probing import fitting
from adadpigu.core.gradients.state import untouched
from adadpigu.core.trees import Tree
from adadpigu.errors import ModelError
from adadpigu.integrations.shared import OneRecord, attributes_put_back, compares_records, each_alone, is_metric, muted

_REMEDY = (
    "allowed: metrics of validation_step, on records that are not private, or diagnostics=True with out=, which keeps "
    "losses in a file of its own, outside the guarantee"
)


class Layers(nn.Module):
    """What is trained of a LightningModule: its layers, parameters and buffers, under the names they have there.

    Lightning and the user change other attributes of the module all the time, and validation updates its metrics: both
    stay behind.
    """

    def __init__(self, module: pl.LightningModule) -> None:
        super().__init__()
        self.shown_as = f"<model> ({type(module).__name__})"
        self._parameters, self._buffers = module._parameters, module._buffers  # shared: torch.func swaps entries
        self._non_persistent_buffers_set = module._non_persistent_buffers_set
        for name, child in module.named_children():
            if not any(map(is_metric, child.modules())) or any(True for _ in child.parameters()):
                self._modules[name] = child


class ModuleLosses:
    """`losses(model, batch)` of a LightningModule."""

    def __init__(self, module: pl.LightningModule) -> None:
        self._module, self._name = module, type(module).__name__
        self.declared = callable(getattr(module, "private_losses", None))
        self.logged: dict[str, None] = {}
        self._kept: dict[str, None] = {}  # names that were logged and attributes in which something was kept, in order
        self._metrics = [part for part in module.modules() if is_metric(part)]
        self._in_eval = [part for part in module.modules() if not part.training]
        self._uncompiled = _running_uncompiled(module)
        self._takes_index = is_param_in_hook_signature(module.training_step, "batch_idx", min_args=2)
        connector: Any = module.trainer._data_connector
        self._transfer = connector._datahook_selector.get_instance("on_after_batch_transfer").on_after_batch_transfer
        if not self.declared:
            self.why_alone = (
                "training_step gives one loss a batch; for layer rules declare private_losses(self, batch) -> [n], and "
                "PrivateStrategy(engine='ghost')"
            )

    def __call__(self, model: nn.Module, batch: Tree) -> Tensor:
        if not self.declared:
            return each_alone(self._step, batch)
        with self._withheld():
            return self._module.private_losses(self._transfer(batch, 0))  # type: ignore[no-any-return, operator]

    def _step(self, batch: Tree) -> Tensor:
        rest = (max(self._module.trainer.fit_loop.batch_idx, 0),) if self._takes_index else ()
        with self._withheld(), OneRecord():
            found = self._module.training_step(self._transfer(batch, 0), *rest)
        loss = found.get("loss") if isinstance(found, Mapping) else found
        if not isinstance(loss, Tensor):
            fault = f"{self._name}.training_step gives a {type(loss).__name__}"
            raise ModelError(f"{fault}; allowed: its loss, or a dict that has it as 'loss'")
        return loss.sum()

    @contextlib.contextmanager
    def _withheld(self) -> Iterator[None]:
        """Within, the user's code runs as it will, and nothing that it logs or keeps in the module stays."""
        module, trainer = self._module, self._module.trainer
        with contextlib.ExitStack() as undone:
            before = undone.enter_context(attributes_put_back(module, _may_keep))
            sizes = {name: len(held) for name, held in before.items() if isinstance(held, list | dict | set | deque)}
            vars(module).update(log=lambda name, *_, **__: self.logged.setdefault(name), print=_Silent())
            undone.enter_context(attributes_put_back(trainer))
            trainer.loggers = [_Silent() for _ in trainer.loggers]  # type: ignore[misc]
            for metric in self._metrics:
                undone.enter_context(muted(metric))
            for part in self._in_eval:
                undone.callback(setattr, part, "training", part.training)
                part.training = False
            undone.enter_context(self._uncompiled())
            yield
            changed = {name for name, value in vars(module).items() if before.get(name) is not value} - {"log", "print"}
            changed |= {name for name, size in sizes.items() if len(before[name]) != size}
            self._kept.update(dict.fromkeys(sorted(changed)))

    def warn_of_withheld(self) -> None:
        """Names what the user will miss."""
        logged, kept = (", ".join(map(repr, names)) for names in (self.logged, self._kept))
        if logged:
            warnings.warn(f"{logged}: not logged, since the values would be un-noised; {_REMEDY}", stacklevel=2)
        if kept:
            fault = f"{kept}: what the loss of {self._name} keeps there is not kept, since it would be un-noised"
            warnings.warn(f"{fault} (for a count of steps there is self.global_step); {_REMEDY}", stacklevel=2)

    def rehearse(self, model: nn.Module, batch: Tree) -> None:
        """Runs on synthetic records, to note what is logged and kept; warns where a loss compares records."""
        with untouched(model), torch.no_grad():
            model.eval()
            try:
                batch = fitting(Objective(model, self), batch)
                self(model, batch)
                compares = not self.declared and compares_records(self._step, batch)
            except Exception:  # it is tried again, with a message, when the engine is chosen
                return
        if compares:
            fault = f"{self._name}.training_step: the loss of a batch is neither the mean nor the sum of its records'"
            remedy = "declare private_losses(self, batch) -> [n] to say what that is"
            warnings.warn(f"{fault} losses; each record's loss is taken by itself; {remedy}", stacklevel=2)


def _may_keep(name: str, value: Any) -> bool:
    """Not what every module has, is large, or changes by itself."""
    large = isinstance(value, pl.Trainer | pl.LightningDataModule | Dataset | DataLoader)
    return not large and name not in ("_buffers", "_modules", "_parameters")


class _Silent:
    """In the place of a logger: takes every call, and gives itself for every attribute."""

    def __getattr__(self, name: str) -> "_Silent":
        return self

    def __call__(self, *_: object, **__: object) -> "_Silent":
        return self


def _running_uncompiled(module: pl.LightningModule) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """A context in which compiled parts of the module run as they were written: vmap needs that."""
    parts = [part for part in module.modules() if hasattr(part, "_orig_mod") or part._compiled_call_impl is not None]
    if not parts and module._compiler_ctx is None:
        return contextlib.nullcontext
    warnings.warn("the model is compiled: training runs it uncompiled, one record at a time", stacklevel=2)
    return partial(torch.compiler.set_stance, "force_eager")
