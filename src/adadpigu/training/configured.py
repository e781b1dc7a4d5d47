"""From a run config to a run that is ready: data, front, model, method, budget. Public choices throughout."""

from collections.abc import Callable
from dataclasses import fields, replace

from adadpigu.accounting import Budget
from adadpigu.accounting.repeating import Repeats
from adadpigu.config import RunConfig
from adadpigu.data import DataSet
from adadpigu.errors import InputError
from adadpigu.features.front import pinned
from adadpigu.methods import make_method
from adadpigu.runs.loading import front_and_body, load_data
from adadpigu.training.options import TrainingOptions, default_batch
from adadpigu.training.preparation import Preparation, prepare


def configured(
    config: RunConfig,
    data: DataSet | None = None,
    progress: Callable[[float | None], None] | None = None,
    repeats: Repeats | None = None,
) -> Preparation:
    """Everything that a config names, loaded, checked and calibrated; `data` replaces the data set it names."""
    method = make_method(config.method, config.method_options)
    if config.epsilon is not None and not method.private:
        raise InputError(f"epsilon={config.epsilon}: method {method.name!r} gives no guarantee; leave epsilon out")
    epsilon = 4.0 if config.epsilon is None and config.noise_multiplier is None else config.epsilon
    budget = None if epsilon is None else Budget(epsilon=epsilon, delta=config.delta)
    training_options(config, records=4).torch_device()  # what needs no data is refused before any is fetched
    data = load_data(config) if data is None else data
    front, body = front_and_body(config, data, seed=config.seed)
    return prepare(
        body,
        data,
        method=method,
        budget=budget,
        delta=config.delta,
        options=training_options(config, data.records),
        front=front,
        seed=config.seed,
        progress=progress,
        repeats=repeats,
    )


def training_options(config: RunConfig, records: int) -> TrainingOptions:
    """What a config says of how to train, with the defaults that depend on the declared record count."""
    shared = {field.name for field in fields(TrainingOptions)} & vars(config).keys()
    chosen = {name: value for name in shared if (value := getattr(config, name)) is not None}
    return TrainingOptions(**{"batch_size": default_batch(records), **chosen})


def resolved(config: RunConfig, prepared: Preparation) -> RunConfig:
    """The config with every choice that was left to a default made plain, so that a rerun does not depend on them."""
    options = prepared.options
    return replace(
        config,
        model=config.model or "mlp",
        features=pinned(config.features),
        epsilon=config.epsilon if prepared.budget is None else prepared.budget.epsilon,
        batch_size=options.batch_size,
        steps=options.steps,
        epochs=options.epochs,
        public=options.public if isinstance(options.public, str) else None,
        method_options=prepared.method.options(),
    )
