"""Record and replay of every method on every engine and with every option: no record moves a sum beyond its bound.

D and D ± one record, recorded releases played back: the same calls, everything public bit-identical, and every
difference within the declared sensitivity. Two recordings a case, every adversarial neighbour replayed against them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import product
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from adadpigu.audit.adversarial import EDGE, Edge, adversarial_records
from adadpigu.audit.replay import REMOVED, PrepareOn, ReplayResult, replay_all, replay_edge
from adadpigu.audit.subject import Attach
from adadpigu.core.gradients import ENGINES, choice
from adadpigu.core.randomness import Randomness, choose_randomness
from adadpigu.data import DataSet, TensorRecords
from adadpigu.errors import ModelError
from adadpigu.features.front import make_front
from adadpigu.methods import Method, make_method
from adadpigu.models import make_model
from adadpigu.training import Preparation, TrainingOptions, prepare
from method_cases import CASES, OWN
from open_method import OpenMethod
from trials import small_digits

RECORDS, SHARE = 16, 0.5
NUMBERS = {"huge", "large", "zero", "subnormal", "NaN", "infinite", "one infinity", "duplicated", "wrong class"}
POSITIONS = {"zero", "largest", "duplicated", "wrong class"}
TELLING = {"large", "largest", "one infinity", "duplicated"}
"""those that are replayed with every option; what a net makes of the others is near to what it makes of these"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether nets are fit to be trained and engines right is tested elsewhere, and takes half of the time."""
    for check in ("refuse_by_behaviour", "_against_rules", "_against_functional"):
        monkeypatch.setattr(f"adadpigu.core.gradients.choice.{check}", lambda *_: None)
    monkeypatch.setattr(choice, "_computes_rows_alike", _computes_rows_alike)
    for module in ("adadpigu.training.train", "adadpigu.accounting.statement"):
        monkeypatch.setattr(importlib.import_module(module), "library_versions", dict)


_ALIKE: dict[object, tuple[bool, bool]] = {}


def _computes_rows_alike(
    engine: Any, inputs: Any, targets: Tensor, copies: int, genuine: Any = choice._computes_rows_alike
) -> bool:
    """Tried once for nets that are built alike."""
    key = type(engine), repr(engine.model), targets.dtype, next(engine.model.parameters()).dtype, copies
    if key not in _ALIKE:
        _ALIKE[key] = genuine(engine, inputs, targets, copies), engine.align
    alike, engine.align = _ALIKE[key]
    return alike


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
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 10))


def convolutional_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 10, bias=False)
    )


def scattering_head() -> nn.Module:
    return make_model("scatter-linear", shape=(81, 2, 2))


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
        training={"clipping": "automatic", "clip_stability": 0.1, "physical_batch_size": 4}
    ),
    "normalised by record, momentum, decay, tail, schedule, spare steps": Option(
        front={"features": "none", "normalisation": "record"},
        training={"momentum": 0.7, "weight_decay": 0.1, "tail": 0.5, "spare_steps": 2}
        | {"lr_schedule": "cosine", "warmup": 0.3},
    ),
    "dropout of copies, micro-batches": Option(
        net=dropping_net, training={"copies": 2, "flip": True, "physical_batch_size": 4}
    ),
    "convolution, released normalisation, fast randomness": Option(
        net=convolutional_net,
        front={"features": "none", "normalisation": "released"},
        randomness=partial(choose_randomness, "fast", torch.device("cpu")),
    ),
    "attention with dropout, secure randomness": Option(
        net=Attending, data=sequences, randomness=partial(choose_randomness, "secure", torch.device("cpu"))
    ),
}
FURTHER = {
    "recurrent": Option(net=Recurrent, data=sequences),
    "scattering, released normalisation": Option(
        net=scattering_head, front={"features": "scattering", "normalisation": "released"}
    ),
    "scattering of variants, micro-batches": Option(
        net=scattering_head,
        front={"features": "scattering", "normalisation": "orders"},
        training={"copies": 2, "flip": True, "physical_batch_size": 4},
    ),
    "micro-batches by memory": Option(training={"memory_limit": "40kB"}),
    "perturbed clipping": Option(training={"perturbation": 0.3}),
}
"""of which a method meets nothing but what it meets of those above"""


def prepare_on(method: Method, option: Option = PLAIN, **training: Any) -> PrepareOn:
    """Four steps of about eight records."""
    chosen: dict[str, Any] = {"batch_size": 60, "steps": 4, "lr": 0.5, "evaluate_every": 4, "reserve": 1}
    chosen |= {"noise_multiplier": 1.5 if method.private else None} | option.training | training

    def prepared(data: DataSet, attach: Attach | None = None) -> Preparation:
        torch.manual_seed(0)
        model, loss = option.net(), F.cross_entropy
        if attach is not None:
            model, data, loss = attach(model, data)  # type: ignore[assignment]
        if in_double(method, option):
            model.double()
        front = make_front(shape=data.shape or (), **option.front)[0] if option.front else None
        options = TrainingOptions(**chosen)
        return prepare(
            model, data, method=method, budget=None, delta=1e-5, options=options, loss=loss, front=front, seed=0
        )

    return prepared


def in_double(method: Method, option: Option) -> bool:
    """Methods that release sums of losses, of which float32 leaves too few digits; fronts are made for float32."""
    return method.name in ("dpsur", "open") and not option.front


def data_for(method: Method, option: Option) -> DataSet:
    data = option.data()
    assert isinstance(data.train, TensorRecords)
    if not (in_double(method, option) and data.train.inputs.is_floating_point()):
        return data
    return replace(data, train=TensorRecords(data.train.inputs.double(), data.train.targets))


def replayed(method: Method, option: Option = PLAIN, **training: Any) -> dict[str, ReplayResult]:
    """All neighbours of a plain run; the telling ones with options."""
    ready, data = prepare_on(method, option, **training), data_for(method, option)
    every = adversarial_records(data)
    records = {name: record for name, record in every.items() if option is PLAIN or name in TELLING}
    given = [None if option.randomness is None else option.randomness() for _ in range(2)]
    found = replay_all(ready, data, records=records, share=SHARE, randomness=given[0])
    return found | {EDGE: replay_edge(ready, data, share=SHARE, randomness=given[1])}


def assert_clean(method: Method, option: Option, found: dict[str, ReplayResult]) -> None:
    """A method without a guarantee has no finite sensitivity to exceed; its calls must be the same all the same."""
    every = POSITIONS if option.data is sequences else NUMBERS
    assert found.keys() == {REMOVED, EDGE} | (every if option is PLAIN else every & TELLING)
    assert {name: result.breaches for name, result in found.items() if result.breaches} == {}
    assert all(result.draws >= 4 and len(result.effects) == result.draws for result in found.values())
    tolerance = 1e-3 if method.name in ("dpsur", "open") and option.front else 1e-5
    assert all(result.largest <= 1 + tolerance for result in found.values())
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
BY_DEFAULT = [*OWN, "all the frame allows"]
NAMED_ENGINES = [engine for engine in ENGINES if engine != "auto"]


WAYS = {"plain": PLAIN} | OPTIONS
"""ways to train that every method meets"""
OF_VARIANTS = {"simple": Option(), "copies, adam, average": OPTIONS["copies, adam, average"]}
"""and those that its variants meet; a simple way meets the telling records alone"""


def pairs() -> Iterator[tuple[str, str, str]]:
    """Every method by default with every way to train, and every variant plainly and with copies, on engines in turn.

    So each two of method, way and engine meet; `test_engines_agree` shows that a variant has the same sums on all.
    """
    for number, case in enumerate(EVERY_CASE):
        for place, way in enumerate(WAYS if case in BY_DEFAULT else OF_VARIANTS):
            yield case, way, NAMED_ENGINES[(number + place) % len(NAMED_ENGINES)]


def test_each_two_of_method_way_and_engine_meet() -> None:
    found = list(pairs())
    assert {(case, engine) for case, _, engine in found if case in BY_DEFAULT} == set(
        product(BY_DEFAULT, NAMED_ENGINES)
    )
    assert {(way, engine) for _, way, engine in found} == set(product(WAYS | OF_VARIANTS, NAMED_ENGINES))
    assert {case for case, _, _ in found} == set(EVERY_CASE)


@pytest.mark.parametrize(("case", "way", "engine"), list(pairs()))
def test_no_record_moves_a_sum_beyond_its_bound(case: str, way: str, engine: str, methods: dict[str, Method]) -> None:
    option = (WAYS | OF_VARIANTS)[way]
    if not methods[case].private and "clipping" in option.training:
        pytest.skip(f"{case} clips nothing, and refuses to be told how")
    assert_clean(methods[case], option, replayed(methods[case], option, engine=engine))


@pytest.mark.parametrize(
    ("case", "option"), [pair for pair in product(["dpsgd", "adadpigu"], FURTHER) if pair != ("adadpigu", "recurrent")]
)
def test_further_options_keep_their_bounds(case: str, option: str, methods: dict[str, Method]) -> None:
    """Adadpigu meets recurrent layers below, on either engine that takes them."""
    assert_clean(methods[case], FURTHER[option], replayed(methods[case], FURTHER[option]))


@pytest.mark.parametrize("engine", ["materialised", "loop"])
def test_recurrent_layers_keep_their_bounds_on_the_engines_that_take_them(engine: str) -> None:
    method, option = make_method("adadpigu"), FURTHER["recurrent"]
    assert_clean(method, option, replayed(method, option, engine=engine))


def test_recurrent_layers_are_refused_by_torch_func(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(ModelError, match="vmap refuses 'passes' "):
        prepare_on(make_method("dpsgd"), FURTHER["recurrent"], engine="functional")(sequences())


def test_short_products_are_for_a_gpu() -> None:
    """So that here there is nothing to replay with precision='bf16'."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ModelError, match="needs a GPU"):
        prepare_on(make_method("dpsgd"), precision="bf16")(images())
