"""All that is settled before the first record is drawn: the model's fitness, the plan, σ. Nothing is written yet.

σ, q and all step counts are fixed here; what adapts later adapts through releases only.
"""

import secrets
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn

from adadpigu.accounting import Budget, Plan, PlannedDraw, PlannedStage, delta_warnings, epsilon, epsilons
from adadpigu.accounting.calibration import affordable_prefix, calibrate
from adadpigu.accounting.repeating import Repeats, calibrate_repeated
from adadpigu.core.gradients import GradientEngine, Loss, choose_engine
from adadpigu.core.gradients.losses import Losses
from adadpigu.core.layout import Layout
from adadpigu.core.randomness import SystemRandomness, isolated
from adadpigu.core.sampling import OwnerSampler, PoissonSampler, Sampler
from adadpigu.core.sensitive import withheld
from adadpigu.core.trees import Tree, describe_tree, select
from adadpigu.data.augmentation import Augmentation, parse_views
from adadpigu.data.checking import UNPROTECTED, check_data, refuse_shared_records
from adadpigu.data.datasets import DataSet, TensorRecords
from adadpigu.data.public import PublicRecords, read_public
from adadpigu.errors import BudgetError, InputError, require
from adadpigu.features.front import Front, Fronted, OfViews, ReleasedNorm, whole
from adadpigu.methods.base import Draw, Method, RunContext, Stage
from adadpigu.priors.random_images import process_scores, takes_images
from adadpigu.training import validating
from adadpigu.training.micro_batches import View
from adadpigu.training.normalising import normalisation_stage
from adadpigu.training.optimiser import MaskedOptimiser
from adadpigu.training.options import TrainingOptions
from adadpigu.training.placement import settle
from adadpigu.training.public_gradients import PublicGradients
from adadpigu.training.task import Task, uncompiled
from adadpigu.training.threads import threads_for, using

_PROCESS_IMAGES = "processes:500"
"""public records of a method that needs some, unless others are named"""
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
    budget: Budget | None  # None where nothing was asked: a given σ claims what it costs, SGD claims nothing
    delta: float
    stages: tuple[Stage, ...]
    plan: Plan
    noise_multiplier: float  # σ of the run; 0 for a method without a guarantee
    engine: GradientEngine
    view: View  # what the model is shown of a drawn record
    front: Front | None  # the fixed part before the model, as far as it belongs to what is kept
    device: torch.device
    seed: int
    epsilons: dict[str, float]  # ε of the whole plan, by accountant
    warnings: tuple[str, ...]
    example: tuple[Tree, Tree]  # a synthetic record and its target, [1, ...], as they come to the front and the loss
    loss: Loss | None  # of outputs and targets; None where `losses(model, batch)` was given
    given_loss: object  # either, as the user gave it
    public: PublicRecords | None = None  # what the method learns from besides releases
    caveats: tuple[str, ...] = ()  # what depends on the caller: what they computed, what could not be seen
    threads: int | None = None  # CPU threads of training and of the engine's trial; None: as many as there are
    repeats: Repeats | None = None  # of a run that is one of several, of which the best is kept
    identity: object = field(default_factory=object)  # the same in all copies of this preparation, which are one run

    @property
    def sample_rate(self) -> float:
        """q = B/N."""
        return self.options.batch_size / self.data.records

    def run_context(self, optimiser: MaskedOptimiser | None = None) -> RunContext:
        layout = self.engine.layout
        scores = public = None
        if self.public is not None:
            public = PublicGradients(
                engine=self.engine, front=self.front, records=self.public, classes=self.data.classes, seed=self.seed
            )
        record, target = self.example
        if self.loss is not None and isinstance(record, Tensor) and takes_images(record):
            scores = partial(process_scores, self.model, self.front, record, target, self.loss, self.seed)
        return RunContext(
            layout=layout,
            batch_size=self.options.batch_size,
            records=self.data.records,
            noise_multiplier=self.noise_multiplier,
            per_owner=self.per_owner,
            weights=layout.read(self.model),
            seed=self.seed,
            device=self.device,
            second_moment=None if optimiser is None else optimiser.second_moment,
            public_scores=scores,
            public=public,
        )

    @property
    def released_norm(self) -> ReleasedNorm | None:
        """The normaliser whose constants a first stage releases."""
        return None if self.front is None else self.front.released

    def shown_model(self) -> nn.Module:
        """The model as it takes the records of `data`, whose features may have been computed already."""
        return self.model if self.view.front is None else Fronted(self.view.front, self.model)

    def tested_model(self) -> nn.Module:
        """The model as it takes the test records of `data`."""
        front, views = self.view.test_front, parse_views(self.options.views)
        if self.view.test_views:
            return OfViews(self.model if front is None else Fronted(front, self.model))
        return whole(front, self.model, views)

    def whole_model(self) -> nn.Module:
        """The model as it takes the user's records: what is kept."""
        return whole(self.front, self.model, parse_views(self.options.views))

    @property
    def per_owner(self) -> int:
        """How many records of one unit of privacy a draw may hold."""
        return 1 if self.data.owners is None else self.data.owners.cap

    def samplers(self, stage: int) -> dict[str, tuple[Sampler, float]]:
        """For each draw of a stage's step, the sampler and σ: from the same plan that was accounted."""
        draws, owners = self.plan.stages[stage].draws, self.data.owners
        sampler: Callable[..., Sampler] = PoissonSampler if owners is None else partial(OwnerSampler, owners=owners)
        return {d.name: (sampler(sample_rate=d.sample_rate), d.noise_multiplier) for d in draws}


def prepare(
    model: nn.Module,
    data: DataSet,
    *,
    method: Method,
    budget: Budget | None,
    delta: float,
    options: TrainingOptions,
    loss: Loss | None = None,
    losses: Losses | None = None,
    front: nn.Module | None = None,
    seed: int | None = None,
    progress: Callable[[float | None], None] | None = None,
    repeats: Repeats | None = None,
) -> Preparation:
    """Checks everything that can be checked and finds σ. `budget` None claims whatever `noise_multiplier` costs.

    A copy of `front` comes before the model; its features are computed here, once, where that is possible, and
    `progress` is told how far that is. With `repeats` the budget is for all runs together. Other arguments are those of
    `train`.
    """
    device = options.torch_device()
    model = uncompiled(model).to(device)
    for name, asked in (("clipping", options.stability), ("perturbation", options.perturbation)):
        given = f"{name}={getattr(options, name)!r}"
        require(not asked or method.private, f"{given}: method {method.name!r} clips nothing; leave it out")
    told = f"denoise={options.denoise!r}: the noise in ĝ of method {method.name!r} is not known"
    require(options.denoise == "none" or method.denoises, f"{told}; leave it out")
    data = validating.with_validation(data, options)
    task = Task.of(model, data, loss, losses, None if front is None else Front.of(front).to(device), device)
    front = task.front
    PoissonSampler.expecting(batch_size=options.batch_size, records=data.records)
    if options.private_validation is not None:
        validating.check_validation(task)
    stages = _stages(method, data, options, front)
    options, public = _with_public(method, data, options, task)
    augmentation, views = options.augmentation(), parse_views(options.views)
    _check_augmentation(augmentation, task.example[0])
    _check_views(views, options.views, task.example[0])
    threads = threads_for(device, options.batch_size * Layout.of(model).size)
    with using(threads):  # a row may be rounded otherwise with another number of them
        engine = choose_engine(
            model,
            task.loss,
            task.shown(),
            losses=task.losses,
            engine=options.engine,
            precision=options.precision,
            copies=options.copies,
        )
    if options.perturbation:
        how = "is added before the clip, so every record's gradient is built"
        engine.reason += f"; perturbation={options.perturbation:g} {how}"
    with isolated(SystemRandomness(), device):  # a data set may draw at random when a record is read
        declared = None if public is None or public.processes else public.inputs
        caveats = withheld(partial(check_data, data, task.classes, task.ignored, declared), shown=options.diagnostics)
    optimiser = MaskedOptimiser(model, Layout.of(model), options.factory())
    kept = optimiser.second_moment is not None or not method.needs_second_moment
    told = f"optimizer={type(optimiser.inner).__name__} keeps no second moment, by which method {method.name!r} scales"
    require(kept, f"{told}; allowed: adam, adamw, nadam, radam, rmsprop, adadelta, adagrad")
    delta = delta if budget is None else budget.delta
    sigma, plan = _fix_noise(method, stages, data, budget, delta, options, repeats)
    claim = epsilons(plan.event() if repeats is None else repeats.event(plan), delta)
    warned = delta_warnings(delta, data.records) if method.private else ()
    if method.private and budget is None:
        cost = f"noise_multiplier={sigma:g} for {plan.steps} steps costs epsilon={claim['pld']:.4g}"
        warned = (*warned, f"no budget was set: {cost}")
    shown = partial(settle, augmentation=augmentation, views=views, progress=progress)
    placing = partial(shown, task.data, front, device)
    placed, view = withheld(placing, shown=options.diagnostics)
    if placed.owners is not None:
        placed = replace(placed, owners=placed.owners.to(device))
    ready = Preparation(
        model=model,
        data=placed,
        method=method,
        options=options,
        budget=budget if method.private else None,
        delta=delta,
        stages=stages,
        plan=plan,
        noise_multiplier=sigma,
        engine=engine,
        view=view,
        front=front,
        device=device,
        seed=secrets.randbits(62) if seed is None else seed,
        epsilons=claim,
        public=public,
        repeats=repeats,
        caveats=(*caveats, *task.declared()),
        warnings=(*warned, *trained_before(model)),
        example=select(task.example, slice(1)),
        loss=task.loss,
        given_loss=task.given,
        threads=threads,
    )
    method.begin(ready.run_context(optimiser))  # what a method refuses, it refuses before anything is written
    return ready


def _stages(method: Method, data: DataSet, options: TrainingOptions, front: Front | None) -> tuple[Stage, ...]:
    """The method's stages, after the one that releases normalisation constants where there is one."""
    stages = method.stages(options.step_count(data.records))
    for draw in (draw for stage in stages for draw in stage.draws):
        allowed = f"is not between 1 and the declared record count {data.records}"
        fits = draw.batch_size is None or 1 <= draw.batch_size <= data.records
        require(fits, f"batch_size={draw.batch_size} of the draw {draw.name!r} {allowed}")
    released = None if front is None else front.released
    before = () if released is None else (normalisation_stage(released, data.records),)
    scored = options.private_validation is not None
    after = (validating.validation_stage(options.validation_noise, data.records),) if scored else ()
    return (*before, *stages, *after)


def _with_public(
    method: Method, data: DataSet, options: TrainingOptions, task: Task
) -> tuple[TrainingOptions, PublicRecords | None]:
    """The public records that a method learns from: those that were named, or else images of random processes."""
    asked, (example, label) = options.public, task.example
    if not method.needs_public:
        require(asked is None, f"public={asked!r}: method {method.name!r} looks at no public record; leave it out")
        return options, None
    if not isinstance(example, Tensor):
        told = f"method {method.name!r} takes records (input, label) of tensors"
        raise InputError(f"{told}, not {describe_tree(example)}")
    asked = _PROCESS_IMAGES if asked is None else asked
    public = read_public(asked, example[:1], data) if isinstance(asked, str) else asked
    public.check(example, label, task.classes)
    refuse_shared_records(data.train, TensorRecords(public.inputs, public.targets), "public", UNPROTECTED)
    return replace(options, public=asked), public


def _check_augmentation(augmentation: Augmentation, inputs: Tree) -> None:
    """Augmented copies are of images alone, or of (image, label)."""
    pair = isinstance(inputs, tuple | list) and len(inputs) == 2 and all(isinstance(t, Tensor) for t in inputs)
    images = inputs if isinstance(inputs, Tensor) else inputs[0] if pair and inputs[1].dim() == 1 else None
    told = f"augmentation of records {describe_tree(inputs)}: it is not known which parts go together"
    allowed = "allowed: records (image, label), or augmenting in losses(model, batch)"
    require(images is not None or not augmentation, f"{told}; {allowed}")
    if images is not None:
        augmentation.check(tuple(images.shape[1:]))


def _check_views(views: Augmentation, asked: str, inputs: Tree) -> None:
    """Outputs are averaged over views of images alone."""
    if views:
        if not isinstance(inputs, Tensor) or inputs.ndim != 4:
            found = tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else describe_tree(inputs)
            raise InputError(f"views={asked!r}: records {found} are no images (channels, height, width); allowed: none")
        pixels = min(inputs.shape[2:])
        require(views.shift < pixels, f"views={asked!r}; allowed: a shift below the image's {pixels} pixels")


def _fix_noise(
    method: Method,
    stages: tuple[Stage, ...],
    data: DataSet,
    budget: Budget | None,
    delta: float,
    options: TrainingOptions,
    repeats: Repeats | None,
) -> tuple[float, Plan]:
    def planned(draw: Draw, sigma: float) -> PlannedDraw:
        return PlannedDraw(
            name=draw.name,
            sample_rate=(draw.batch_size or options.batch_size) / data.records,
            noise_multiplier=sigma if draw.noise_multiplier is None else draw.noise_multiplier,
        )

    def plan_at(sigma: float) -> Plan:
        every = [(stage, tuple(planned(draw, sigma) for draw in stage.draws)) for stage in stages]
        made = (PlannedStage(name=stage.name, steps=stage.steps, draws=draws) for stage, draws in every)
        return Plan(spare=options.spare_steps, stages=tuple(made))

    fixed = options.noise_multiplier
    if not method.private:
        require(fixed is None, f"noise_multiplier={fixed}: method {method.name!r} adds no noise; leave it out")
        return 0.0, plan_at(0.0)
    if fixed is None:
        if budget is None:
            raise InputError("privacy=None and noise_multiplier=None: give a budget or a noise multiplier")
        if repeats is not None:
            return calibrate_repeated(plan_at, repeats, budget)
        found = calibrate(plan_at, epsilon=budget.epsilon, delta=budget.delta)
        return found.noise_multiplier, found.plan
    require(repeats is None, f"noise_multiplier={fixed} of repeated runs; allowed: a budget for all of them")
    plan = plan_at(fixed)
    cost = epsilon(plan.event(), delta)
    if budget is not None and cost > budget.epsilon:
        most = affordable_prefix(plan, epsilon=budget.epsilon, delta=delta)
        told = f"epsilon={budget.epsilon} is too small for steps={plan.steps} at noise_multiplier={fixed}"
        raise BudgetError(f"{told}: they cost {cost:.4g}; allowed: at most {most} steps, or more noise")
    return fixed, plan


def trained_before(model: nn.Module) -> tuple[str, ...]:
    """The warning that a model deserves of which a part has been trained in this process."""
    return (TRAINED_BEFORE,) if any(module in trained_models for module in model.modules()) else ()
