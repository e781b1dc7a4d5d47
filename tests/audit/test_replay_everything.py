"""Record and replay of every method on every engine and with every option: no record moves a sum beyond its bound.

D and D ± one record, recorded releases played back: the same calls, everything public bit-identical, and every
difference within the declared sensitivity. Two recordings a case, every adversarial neighbour replayed against them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.audit.adversarial import EDGE, Edge
from adadpigu.audit.replay import REMOVED, PrepareOn, ReplayResult, replay_all
from adadpigu.audit.subject import Attach
from adadpigu.data import DataSet, TensorRecords
from adadpigu.features.front import make_front
from adadpigu.gradients import ENGINES
from adadpigu.methods import Method, all_methods, make_method
from adadpigu.models import make_model
from adadpigu.randomness import Randomness, choose_randomness
from adadpigu.training import Preparation, TrainingOptions, prepare
from method_cases import CASES
from open_method import OpenMethod
from trials import small_digits

RECORDS, SHARE = 24, 0.5
NEIGHBOURS = {"zero", "duplicated", "wrong class", REMOVED, EDGE}
ODD_NUMBERS = {"huge", "large", "subnormal", "NaN", "infinite", "one infinity"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether these nets are fit to be trained is tested elsewhere, and takes half of the time."""
    monkeypatch.setattr("adadpigu.gradients.choice.refuse_by_behaviour", lambda *_: None)
    for module in ("adadpigu.training.train", "adadpigu.accounting.statement"):
        monkeypatch.setattr(importlib.import_module(module), "library_versions", dict)


def images() -> DataSet:
    """A few digits under the description of more: a record count is declared, not counted."""
    data = small_digits(RECORDS)
    return replace(data, records=300, test=None)


@cache
def sequences() -> DataSet:
    """Positions in a table of nine, five a record."""
    ids = torch.randint(9, (RECORDS, 5), generator=torch.Generator().manual_seed(1))
    return DataSet(name="ids", train=TensorRecords(ids, torch.arange(RECORDS) % 3), records=300, classes=3, shape=(5,))


def plain_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))


def dropping_net() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 10)
    )


def convolutional_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 10, bias=False)
    )


class Recurrent(nn.Module):
    """Embedding, GRU, and what it ends with."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.passes, self.head = nn.Embedding(9, 4), nn.GRU(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, ids: Tensor) -> Tensor:
        made: Tensor = self.head(self.passes(self.table(ids))[0][:, -1])
        return made


class Attending(nn.Module):
    """Embedding, self-attention with dropout, and their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True, dropout=0.3)

    def forward(self, ids: Tensor) -> Tensor:
        seen = self.table(ids)
        made: Tensor = self.head(self.attention(seen, seen, seen)[0].mean(dim=1))
        return made


@dataclass(frozen=True, kw_only=True)
class Option:
    """One way to train."""

    net: Callable[[], nn.Module] = plain_net
    data: Callable[[], DataSet] = images
    front: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    randomness: Callable[[], Randomness] | None = None


PLAIN = Option()
OPTIONS: dict[str, Option] = {
    "copies, adam, average": Option(
        training={"copies": 2, "flip": True, "shift": 1, "ema": 0.9, "optimizer": "adam", "lr": 0.01}
    ),
    "automatic clipping, micro-batches": Option(
        training={"clipping": "automatic", "clip_stability": 0.1, "physical_batch_size": 7}
    ),
    "micro-batches by memory": Option(training={"memory_limit": "40kB"}),
    "momentum, decay, tail, schedule, spare steps": Option(
        training={"momentum": 0.7, "weight_decay": 0.1, "tail": 0.5, "lr_schedule": "cosine", "warmup": 0.3}
        | {"spare_steps": 2}
    ),
    "scattering, released normalisation": Option(
        net=lambda: make_model("scatter-linear", shape=(81, 2, 2)),
        front={"features": "scattering", "normalisation": "released"},
    ),
    "scattering of variants": Option(
        net=lambda: make_model("scatter-linear", shape=(81, 2, 2)),
        front={"features": "scattering", "normalisation": "released"},
        training={"copies": 2, "flip": True, "physical_batch_size": 7},
    ),
    "normalised by record, fast randomness": Option(
        front={"features": "none", "normalisation": "record"},
        randomness=partial(choose_randomness, "fast", torch.device("cpu")),
    ),
    "dropout": Option(net=dropping_net, randomness=partial(choose_randomness, "secure", torch.device("cpu"))),
    "dropout of copies, micro-batches": Option(
        net=dropping_net, training={"copies": 2, "flip": True, "physical_batch_size": 7}
    ),
    "convolution": Option(net=convolutional_net),
    "recurrent": Option(net=Recurrent, data=sequences),
    "attention with dropout": Option(net=Attending, data=sequences),
}


def prepare_on(method: Method, option: Option = PLAIN, **training: Any) -> PrepareOn:
    """Four steps of about twelve records."""
    chosen: dict[str, Any] = {"batch_size": 60, "steps": 4, "lr": 0.5, "evaluate_every": 4, "reserve": 1}
    chosen |= {"noise_multiplier": 1.5 if method.private else None} | option.training | training

    def prepared(data: DataSet, attach: Attach | None = None) -> Preparation:
        torch.manual_seed(0)
        model, loss = option.net(), F.cross_entropy
        if attach is not None:
            model, data, loss = attach(model, data)  # type: ignore[assignment]
        front = make_front(shape=data.shape or (), **option.front)[0] if option.front else None
        options = TrainingOptions(**chosen)
        return prepare(
            model, data, method=method, budget=None, delta=1e-5, options=options, loss=loss, front=front, seed=0
        )

    return prepared


def replayed(method: Method, option: Option = PLAIN, **training: Any) -> dict[str, ReplayResult]:
    return replay_all(
        prepare_on(method, option, **training), option.data(), share=SHARE, randomness=option.randomness
    )


def assert_clean(method: Method, option: Option, found: dict[str, ReplayResult]) -> None:
    """A method without a guarantee has no finite sensitivity to exceed; its calls must be the same all the same."""
    numbers = set() if option.data is sequences else ODD_NUMBERS
    assert found.keys() >= NEIGHBOURS | numbers
    assert {name: result.breaches for name, result in found.items() if result.breaches} == {}
    assert all(result.draws >= 4 and len(result.effects) == result.draws for result in found.values())
    assert all(result.largest <= 1 + 1e-5 for result in found.values())
    if method.private:  # the bound is met, not merely kept: the replay looks at something
        assert found[EDGE].largest > 0.99
        assert found[REMOVED].largest > 0.01


@pytest.fixture(scope="module")
def methods(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Method]:
    """Every case by name; a public model is one of the net with the dummy block and without."""
    path, whole = str(tmp_path_factory.mktemp("public") / "model.safetensors"), Edge().attach(plain_net(), images())[0]
    weights = dict(whole.named_parameters())
    save_file(weights | {name.removeprefix("body."): value.clone() for name, value in weights.items()}, path)
    found: dict[str, Method] = {"all the frame allows": OpenMethod()}
    for case, (name, options) in CASES.items():
        found[case] = make_method(name, options | ({"public_model": path} if "public_model" in options else {}))
    return found


EVERY_CASE = [*CASES, "all the frame allows"]
BY_DEFAULT = [*all_methods(), "all the frame allows"]
NAMED_ENGINES = [engine for engine in ENGINES if engine != "auto"]


@pytest.mark.parametrize("engine", NAMED_ENGINES)
@pytest.mark.parametrize("case", EVERY_CASE)
def test_every_method_keeps_its_bounds_on_every_engine(case: str, engine: str, methods: dict[str, Method]) -> None:
    assert_clean(methods[case], PLAIN, replayed(methods[case], engine=engine))


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("case", BY_DEFAULT)
def test_every_method_keeps_its_bounds_with_every_option(case: str, option: str, methods: dict[str, Method]) -> None:
    assert_clean(methods[case], OPTIONS[option], replayed(methods[case], OPTIONS[option]))


@pytest.mark.parametrize("case", [case for case in EVERY_CASE if case not in BY_DEFAULT])
def test_every_variant_keeps_its_bounds_with_augmented_copies(case: str, methods: dict[str, Method]) -> None:
    option = OPTIONS["copies, adam, average"]
    assert_clean(methods[case], option, replayed(methods[case], option))


@pytest.mark.parametrize("engine", ["materialised", "functional", "loop"])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("case", ["dpsgd", "adadpigu"])
def test_every_engine_keeps_its_bounds_with_every_option(
    case: str, option: str, engine: str, methods: dict[str, Method]
) -> None:
    """`auto`, in the test above, takes the ghost engine wherever it can."""
    assert_clean(methods[case], OPTIONS[option], replayed(methods[case], OPTIONS[option], engine=engine))
