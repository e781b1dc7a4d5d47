"""Objective perturbation, output perturbation and FedSel as methods of `adadpigu train`: each makes a linear head.

data, front -> features, as `train` makes them -> one release (`convex`), or reports (`fedsel`) -> a linear layer
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from adadpigu.core.sensitive import withheld
from adadpigu.errors import require
from adadpigu.features.front import apply_front
from adadpigu.methods.base import Positive, register
from adadpigu.methods.standalone import Standalone, StandaloneRun

if TYPE_CHECKING:
    from adadpigu.config import RunConfig
    from adadpigu.data import DataSet
    from adadpigu.training import Preparation
    from adadpigu_systems.convex import LinearRelease
    from adadpigu_systems.fedsel import Federated

Count = Annotated[int, "at least 1"]
_DATA = frozenset(
    {"dataset", "records", "classes", "describe", "features", "normalisation", "model", "device", "method"}
)
_AT_ONCE = 1024  # records
_ONCE = "(ε, δ) for adding or removing one record, of one release; no steps, no sampling"


@dataclass(frozen=True, kw_only=True)
class _LinearHead(Standalone):
    """What the three have in common: the way from a config to features, and from weights to a model."""

    settings: ClassVar[frozenset[str]] = _DATA | {"epsilon", "delta"}
    guarantee: ClassVar[str] = _ONCE
    costs: ClassVar[str] = "one release, charged as (ε, δ)"

    def run(self, config: RunConfig, *, data: DataSet | None = None, ledger: Path | None = None) -> StandaloneRun:
        prepared = _prepared(config, data)
        layer = _only_layer(prepared.model, config.model)
        inputs, targets = withheld(partial(_features, prepared), shown=False)
        facts = {"classes": layer.out_features, "ledger": ledger}
        made = self._made(inputs, targets, config=config, data=prepared.data, **facts)
        weights, bias = self._layer(made.weights)
        with torch.no_grad():
            layer.weight.copy_(weights)
            layer.bias.copy_(bias)
        return self._result(prepared, made)

    @abstractmethod
    def _made(
        self, inputs: Tensor, targets: Tensor, *, config: RunConfig, data: DataSet, **facts: Any
    ) -> LinearRelease | Federated:
        """What is given out, charged on the ledger before it is made."""

    def _layer(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Weight and bias of a linear layer, from released weights with the intercept's last."""
        return weights[:, :-1], weights[:, -1]

    def _result(self, prepared: Preparation, made: Any) -> StandaloneRun:
        from adadpigu.training.evaluation import accuracy

        test, privacy = prepared.data.test, made.privacy
        if prepared.caveats:
            privacy = replace(privacy, caveats=(*privacy.caveats, *prepared.caveats))
        shown = prepared.shown_model().eval()
        return StandaloneRun(
            model=prepared.whole_model().eval(),
            accuracy=None if test is None else accuracy(shown, test, device=prepared.device),
            privacy=privacy,
            epsilon=getattr(privacy, "epsilon", None),
        )


def _prepared(config: RunConfig, data: DataSet | None) -> Preparation:
    """Data, front and head as `train` makes and checks them; the noise that DP-SGD would add is not looked at."""
    from adadpigu.training.configured import configured

    released = config.normalisation == "released"
    require(not released, "normalisation='released' is charged in steps of training; allowed: any other")
    plain = replace(config, method="dpsgd", method_options={}, noise_multiplier=1.0, epsilon=None, steps=1)
    prepared = configured(replace(plain, model=config.model or "linear", batch_size=1), data)
    owners = prepared.data.owners is not None
    require(not owners, "owners: this protects single records alone; allowed: records without owners")
    return prepared


def _only_layer(model: nn.Module, name: str | None) -> nn.Linear:
    from adadpigu_systems.convex import check_linear

    check_linear(model, name)
    return next(layer for layer in model.modules() if isinstance(layer, nn.Linear))


def _features(prepared: Preparation) -> tuple[Tensor, Tensor]:
    """What the head takes of every record, [n, features], and its label."""
    records, front, parts = prepared.data.train, prepared.view.front, []
    for places in torch.split(torch.arange(len(records)), _AT_ONCE):
        inputs, targets = records.take(places)
        inputs = inputs.to(prepared.device)
        with torch.no_grad():
            shown = inputs if front is None else apply_front(front, inputs)
        parts.append((shown.flatten(1), targets))
    inputs, targets = (torch.cat(part) for part in zip(*parts, strict=True))
    return inputs, targets


@dataclass(frozen=True, kw_only=True)
class _Convex(_LinearHead):
    """A release that convexity makes private, of features that a public bound clips."""

    feature_norm: Positive = 1.0
    """the bound on a record's features; what is longer is scaled down to it"""

    def _layer(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """φ is (x/bound, 1)/√2."""
        return weights[:, :-1] / (math.sqrt(2) * self.feature_norm), weights[:, -1] / math.sqrt(2)

    def _facts(self, config: RunConfig, data: DataSet) -> dict[str, Any]:
        told = {"records": data.records, "delta": config.delta, "dataset": data.name}
        return {**told, "epsilon": 4.0 if config.epsilon is None else config.epsilon, "feature_norm": self.feature_norm}


@register
@dataclass(frozen=True, kw_only=True)
class ObjectivePerturbation(_Convex):
    """The minimum of a perturbed softmax regression: `convex.objective_perturbation`."""

    name: ClassVar[str] = "objective-perturbation"
    source: ClassVar[str] = "Chaudhuri et al. 2011; Kifer et al. 2012; Iyengar et al. 2019"
    adds: ClassVar[str] = "a random linear term in the objective of a linear head, then its certified minimum"

    regularisation: Annotated[float | None, "a finite number above 0"] = None
    """Λ; unset: what takes a quarter of ε"""

    def _made(
        self, inputs: Tensor, targets: Tensor, *, config: RunConfig, data: DataSet, **facts: Any
    ) -> LinearRelease:
        from adadpigu_systems.convex import objective_perturbation

        known = self._facts(config, data)
        return objective_perturbation(inputs, targets, regularisation=self.regularisation, **known, **facts)


@register
@dataclass(frozen=True, kw_only=True)
class OutputPerturbation(_Convex):
    """SGD on a linear head, and Gaussian noise on its weights: `convex.output_perturbation`."""

    name: ClassVar[str] = "output-perturbation"
    source: ClassVar[str] = "Wu et al. 2017"
    adds: ClassVar[str] = "Gaussian noise on the weights of a linear head that ordinary SGD has trained"
    costs: ClassVar[str] = "one unsampled Gaussian event"

    passes: Count = 10
    """over the records"""
    step_size: Annotated[float | None, "a finite number above 0"] = None
    """η; unset: 1/√(passes·N)"""

    def _made(
        self, inputs: Tensor, targets: Tensor, *, config: RunConfig, data: DataSet, **facts: Any
    ) -> LinearRelease:
        from adadpigu_systems.convex import output_perturbation

        known = self._facts(config, data)
        return output_perturbation(inputs, targets, passes=self.passes, lr=self.step_size, **known, **facts)


@register
@dataclass(frozen=True, kw_only=True)
class FedSelRegression(_LinearHead):
    """Softmax regression from local reports, every user with one record: `fedsel.simulate`."""

    name: ClassVar[str] = "fedsel"
    source: ClassVar[str] = "Liu et al. 2020"
    adds: ClassVar[str] = "each user reports one of its largest gradient entries, perturbed on its own device"
    costs: ClassVar[str] = "ε₁ + ε₂ a report, added up over a user's reports"
    guarantee: ClassVar[str] = "pure ε-local privacy of each report, without a curator; not on the axis of central ε"
    settings: ClassVar[frozenset[str]] = _DATA | {"lr"}

    select_epsilon: Positive = 1.0
    """ε₁, for which entry is reported"""
    value_epsilon: Positive = 1.0
    """ε₂, for its value"""
    top_share: Annotated[float, "in (0, 1)"] = 0.1
    """k/d, entries that count as the largest"""
    bound: Positive = 1.0
    """c, an entry is clipped to it before it is reported"""
    rounds: Count = 100
    """of reports, each of an equal part of the users"""
    reports_a_user: Count = 1
    """each costs ε₁ + ε₂"""

    def _made(self, inputs: Tensor, targets: Tensor, *, config: RunConfig, data: DataSet, **facts: Any) -> Federated:
        from adadpigu_systems.fedsel import FedSel, simulate

        options = FedSel(**{field.name: getattr(self, field.name) for field in fields(FedSel)})
        how: Mapping[str, Any] = {"rounds": self.rounds, "reports_a_user": self.reports_a_user, "lr": config.lr}
        return simulate(inputs, targets, options=options, **how, **facts)
