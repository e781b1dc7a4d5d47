"""All that is settled before the first record is drawn: the model's fitness, the plan, σ. Nothing is written yet.

σ, q and all step counts are fixed here; what adapts later adapts through releases only.
"""

from __future__ import annotations

import copy
import secrets
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.accounting import (
    Budget,
    Plan,
    PlannedDraw,
    PlannedStage,
    affordable_prefix,
    calibrate,
    delta_warnings,
    epsilon,
    epsilons,
)
from adadpigu.data.checking import check_data
from adadpigu.data.datasets import DataSet
from adadpigu.errors import BudgetError, InputError, ModelError, first_line
from adadpigu.features.front import Front, Fronted, ReleasedNorm
from adadpigu.gradients import GradientEngine, Loss, choose_engine
from adadpigu.gradients.state import untouched
from adadpigu.isolation import isolated
from adadpigu.layout import Layout
from adadpigu.methods.base import Method, Setting, Stage
from adadpigu.priors.scores import process_scores, takes_images
from adadpigu.randomness import SystemRandomness
from adadpigu.sampling import PoissonSampler, Population
from adadpigu.training.normalising import normalisation_stage
from adadpigu.training.optimiser import MaskedOptimiser
from adadpigu.training.options import TrainingOptions
from adadpigu.training.placement import settle
from adadpigu.training.view import View

trained_models: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""models that a run of this process has trained: their weights have seen records already"""

TRAINED_BEFORE = "the model was trained before in this process: if on the same records, that run's epsilon adds up"


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """A run that is ready to start."""

    model: nn.Module
    data: DataSet
    method: Method
    options: TrainingOptions
    budget: Budget | None
    """None where nothing was asked: a given σ claims what it costs, a non-private method claims nothing"""
    delta: float
    stages: tuple[Stage, ...]
    plan: Plan
    noise_multiplier: float
    """σ of the run; 0 for a method without a guarantee"""
    engine: GradientEngine
    view: View
    """what the model is shown of a drawn record"""
    front: Front | None
    """the fixed part before the model, as far as it belongs to what is kept"""
    device: torch.device
    seed: int
    epsilons: dict[str, float]
    """ε of the whole plan, by accountant"""
    warnings: tuple[str, ...]
    record: Tensor
    """a synthetic record, [1, ...], as it comes to the front"""
    loss: Loss
    told: tuple[str, ...] = ()
    """what depends on the caller and stands in the statement: what they computed, what could not be seen"""
    identity: object = field(default_factory=object)
    """the same in all copies of this preparation: what is trained with it is one run"""

    @property
    def sample_rate(self) -> float:
        """q = B/N."""
        return self.options.batch_size / self.data.records

    def setting(self, optimiser: MaskedOptimiser | None = None) -> Setting:
        """The public facts that a method starts from."""
        layout = self.engine.layout
        scores = partial(process_scores, self.model, self.front, self.record, self.loss, self.seed)
        return Setting(
            layout=layout,
            batch_size=self.options.batch_size,
            records=self.data.records,
            noise_multiplier=self.noise_multiplier,
            weights=layout.read(self.model),
            seed=self.seed,
            device=self.device,
            second_moment=None if optimiser is None else optimiser.second_moment,
            public_scores=scores if takes_images(self.record) else None,
        )

    @property
    def released_norm(self) -> ReleasedNorm | None:
        """The normaliser whose constants a first stage releases."""
        return None if self.front is None else self.front.released

    def shown_model(self) -> nn.Module:
        """The model as it takes the records of `data`, whose features may have been computed already."""
        return self.model if self.view.front is None else nn.Sequential(self.view.front, self.model)

    def whole_model(self) -> nn.Module:
        """The model as it takes the user's records: what is kept."""
        return self.model if self.front is None else Fronted(self.front, self.model)

    def samplers(self, stage: int) -> dict[str, tuple[PoissonSampler, float]]:
        """For each draw of a stage's step, the sampler and σ: from the same plan that was accounted."""
        draws = self.plan.stages[stage].draws
        return {d.name: (PoissonSampler(sample_rate=d.sample_rate), d.noise_multiplier) for d in draws}


def prepare(
    model: nn.Module,
    data: DataSet,
    *,
    method: Method,
    budget: Budget | None,
    delta: float,
    options: TrainingOptions,
    loss: Loss = F.cross_entropy,
    front: Front | None = None,
    seed: int | None = None,
    progress: Callable[[float | None], None] | None = None,
) -> Preparation:
    """Checks everything that can be checked and finds σ. `budget` None claims whatever `noise_multiplier` costs.

    A copy of `front` comes before the model; its features are computed here, once, where that is possible, and
    `progress` is told how far that is.
    """
    device = options.torch_device()
    front = copy.deepcopy(front)  # constants that this run releases are this run's
    if options.stability is not None and not method.private:
        raise InputError(f"clipping={options.clipping!r}: method {method.name!r} clips nothing; leave it out")
    stages = _stages(method, data, options, front)
    PoissonSampler.expecting(batch_size=options.batch_size, records=data.records)
    inputs, targets = synthetic_records(data.train, device)
    options.augmentation().check(tuple(inputs.shape[1:]))
    model.to(device)
    example = (inputs if front is None else front.to(device)(inputs)), targets
    output = _output(model, example[0])
    labels = loss is F.cross_entropy or isinstance(loss, nn.CrossEntropyLoss)
    classes = _classes(output, data) if labels else None
    engine = choose_engine(
        model, loss, example, engine=options.engine, precision=options.precision, copies=options.copies
    )
    with isolated(SystemRandomness(), device):  # a data set may draw at random when a record is read
        told = check_data(data, classes)
    optimiser = MaskedOptimiser(model, Layout.of(model), options.factory())
    delta = delta if budget is None else budget.delta
    sigma, plan = _fix_noise(method, stages, data, budget, delta, options)
    placed = settle(data, front, device, augmentation=options.augmentation(), progress=progress)
    ready = Preparation(
        model=model,
        data=placed.data,
        method=method,
        options=options,
        budget=budget if method.private else None,
        delta=delta,
        stages=stages,
        plan=plan,
        noise_multiplier=sigma,
        engine=engine,
        view=View(augmentation=options.augmentation(), front=placed.front, device=device, variants=placed.variants),
        front=front,
        device=device,
        seed=secrets.randbits(62) if seed is None else seed,
        epsilons=epsilons(plan.event(), delta),
        told=(*told, *weights_of(loss), *_soft(loss, targets)),
        warnings=_warnings(model, data, method, delta) + _unbudgeted(method, budget, sigma, plan, delta),
        record=inputs[:1],
        loss=loss,
    )
    method.begin(
        ready.setting(optimiser)
    )  # what a method refuses of σ or of the model, it refuses before anything is written
    return ready


def _stages(method: Method, data: DataSet, options: TrainingOptions, front: Front | None) -> tuple[Stage, ...]:
    """The method's stages, after the one that releases normalisation constants where there is one."""
    stages = method.stages(options.step_count(data.records))
    for draw in (draw for stage in stages for draw in stage.draws):
        if draw.batch_size is not None and not 1 <= draw.batch_size <= data.records:
            raise InputError(
                f"batch_size={draw.batch_size} of the draw {draw.name!r} is not between 1 and the declared record "
                f"count {data.records}"
            )
    if front is None or front.released is None:
        return stages
    return (normalisation_stage(front.released, data.records), *stages)


def synthetic_records(population: Population, device: torch.device) -> tuple[Tensor, Tensor]:
    """Four synthetic records of the right shape and type: they look at no private value."""
    inputs, targets = population.take(torch.arange(0))
    generator = torch.Generator().manual_seed(0)
    shape = (4, *inputs.shape[1:])
    if inputs.is_floating_point():
        blank = torch.randn(shape, generator=generator, dtype=inputs.dtype)
    elif inputs.dtype == torch.uint8:
        blank = torch.randint(256, shape, generator=generator, dtype=inputs.dtype)
    else:
        blank = torch.zeros(shape, dtype=inputs.dtype)
    return blank.to(device), torch.zeros((4, *targets.shape[1:]), dtype=targets.dtype, device=device)


def _output(model: nn.Module, inputs: Tensor) -> Tensor:
    """What the model makes of synthetic records; in evaluation mode, so that no buffer moves."""
    try:
        with untouched(model), torch.no_grad():
            output = model.eval()(inputs)
    except Exception as error:
        what = f"records of shape {tuple(inputs.shape[1:])} and {inputs.dtype}"
        raise ModelError(f"the model does not take {what}: {first_line(error)}; match data and model") from error
    if not isinstance(output, Tensor):
        raise ModelError(f"the model's output is a {type(output).__name__}; allowed: one tensor")
    return output


def _classes(output: Tensor, data: DataSet) -> int:
    """The number of classes, from a model whose outputs are class scores."""
    if output.ndim != 2:
        raise ModelError(f"the model's output has shape {tuple(output.shape)}; allowed: (records, classes)")
    if data.classes is not None and output.shape[1] != data.classes:
        raise ModelError(
            f"the model has {output.shape[1]} outputs but {data.name!r} has {data.classes} classes: one output a class"
        )
    return output.shape[1]


def _plan(stages: tuple[Stage, ...], records: int, options: TrainingOptions, sigma: float) -> Plan:
    return Plan(
        spare=options.spare_steps,
        stages=tuple(
            PlannedStage(
                name=stage.name,
                steps=stage.steps,
                draws=tuple(
                    PlannedDraw(
                        name=draw.name,
                        sample_rate=(draw.batch_size or options.batch_size) / records,
                        noise_multiplier=sigma if draw.noise_multiplier is None else draw.noise_multiplier,
                    )
                    for draw in stage.draws
                ),
            )
            for stage in stages
        ),
    )


def _fix_noise(
    method: Method,
    stages: tuple[Stage, ...],
    data: DataSet,
    budget: Budget | None,
    delta: float,
    options: TrainingOptions,
) -> tuple[float, Plan]:
    def plan_at(sigma: float) -> Plan:
        return _plan(stages, data.records, options, sigma)

    fixed = options.noise_multiplier
    if not method.private:
        if fixed is not None:
            raise InputError(f"noise_multiplier={fixed}: method {method.name!r} adds no noise; leave it out")
        return 0.0, plan_at(0.0)
    if fixed is None:
        if budget is None:
            raise InputError("privacy=None and noise_multiplier=None: give a budget or a noise multiplier")
        found = calibrate(plan_at, epsilon=budget.epsilon, delta=budget.delta)
        return found.noise_multiplier, found.plan
    plan = plan_at(fixed)
    cost = epsilon(plan.event(), delta)
    if budget is not None and cost > budget.epsilon:
        most = affordable_prefix(plan, epsilon=budget.epsilon, delta=delta)
        raise BudgetError(
            f"epsilon={budget.epsilon} is too small for steps={plan.steps} at noise_multiplier={fixed}: they cost "
            f"{cost:.4g}; allowed: at most {most} steps, or more noise"
        )
    return fixed, plan


def _warnings(model: nn.Module, data: DataSet, method: Method, delta: float) -> tuple[str, ...]:
    found = delta_warnings(delta, data.records) if method.private else ()
    return found + trained_before(model)


def trained_before(model: nn.Module) -> tuple[str, ...]:
    """The warning that a model deserves of which a part has been trained in this process."""
    if not any(module in trained_models for module in model.modules()):
        return ()
    return (TRAINED_BEFORE,)


def weights_of(loss: object) -> tuple[str, ...]:
    """Names the weights that a loss was given: class frequencies of the records, more often than not.

    >>> weights_of(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0])))[0][:53]
    'declared public: weight of CrossEntropyLoss; computed'
    """
    parts = list(loss.modules()) if isinstance(loss, nn.Module) else [loss]
    found = [(type(part).__name__, vars(part).get("_buffers", {})) for part in parts if isinstance(part, nn.Module)]
    if isinstance(loss, partial):
        found.append((getattr(loss.func, "__name__", "the loss"), loss.keywords))
    return tuple(
        f"declared public: {name} of {where}; computed from these records, it would tell of them without noise"
        for where, given in found
        for name in ("weight", "pos_weight")
        if isinstance(given.get(name), Tensor)
    )


def _soft(loss: object, targets: Tensor) -> tuple[str, ...]:
    """Targets that are shares of classes come from mixup, or from labellers who disagree: nobody sees which."""
    labels = loss is F.cross_entropy or isinstance(loss, nn.CrossEntropyLoss)
    if not (labels and targets.is_floating_point()):
        return ()
    return ("targets that are shares of classes, if they come of mixing records (mixup): each must be of one alone",)


def _unbudgeted(method: Method, budget: Budget | None, sigma: float, plan: Plan, delta: float) -> tuple[str, ...]:
    if budget is not None or not method.private:
        return ()
    cost = epsilon(plan.event(), delta)
    return (f"no budget was set: noise_multiplier={sigma:g} for {plan.steps} steps costs epsilon={cost:.4g}",)
