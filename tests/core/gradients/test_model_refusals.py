"""Every model that cannot be trained privately is refused in one line: where, what, and what to do instead."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from adadpigu.core.gradients import choose_engine
from adadpigu.errors import ModelError


class Wrapped(nn.Module):
    """A layer under test at a known path."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), layer)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))  # type: ignore[no-any-return]


class Centred(nn.Module):
    """Subtracts the mean of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Neighbour(nn.Module):
    """Every record but the last looks at the one after it."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.cat([x[1:], torch.zeros_like(x[:1])])


class GatedCentre(nn.Module):
    """Mixes only once its gate has left zero."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gate * x.mean(0)


class RunningMean(nn.Module):
    """Normalises nothing, but keeps a running mean, by the given way of writing it."""

    def __init__(self, write: Callable[[nn.Module, Tensor], None]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.write = write

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.write(self, x.detach().mean(0))
        return x


def in_place(module: nn.Module, mean: Tensor) -> None:
    module.mean.lerp_(mean, 0.1)  # type: ignore[operator]


def replacing(module: nn.Module, mean: Tensor) -> None:
    module.mean = mean


def through_data(module: nn.Module, mean: Tensor) -> None:
    module.mean.data.copy_(mean)  # type: ignore[operator]


def registering(module: nn.Module, mean: Tensor) -> None:
    module.register_buffer("late", mean)


class Stateful(nn.Module):
    """Adds what it saw in the last forward."""

    last: Tensor | float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.last
        self.last = x.detach().sum()
        return y


class Counting(nn.Module):
    """Scales by the batch size."""

    def forward(self, x: Tensor) -> Tensor:
        return x * len(x)


VECTOR, IMAGE, SEQUENCE = (4,), (4, 5, 5), (6, 4)
Refusal = tuple[Callable[[], nn.Module], tuple[int, ...], list[str]]
REFUSALS: dict[str, Refusal] = {
    "BatchNorm1d": (
        lambda: Wrapped(nn.BatchNorm1d(4)),
        VECTOR,
        ["'body.1' (BatchNorm1d)", "freeze it", "nn.GroupNorm(1, 4)"],
    ),
    "BatchNorm2d": (
        lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)),
        IMAGE,
        ["'1' (BatchNorm2d)", "nn.GroupNorm(2, 6)"],
    ),
    "BatchNorm3d": (lambda: Wrapped(nn.BatchNorm3d(4)), VECTOR, ["'body.1' (BatchNorm3d)"]),
    "SyncBatchNorm": (lambda: Wrapped(nn.SyncBatchNorm(4)), VECTOR, ["'body.1' (SyncBatchNorm)"]),
    "LazyBatchNorm": (lambda: Wrapped(nn.LazyBatchNorm1d()), VECTOR, ["'body.1' (LazyBatchNorm1d)", "nn.GroupNorm"]),
    "frozen BatchNorm without statistics": (
        lambda: Wrapped(nn.BatchNorm1d(4, track_running_stats=False).requires_grad_(False).eval()),
        VECTOR,
        ["'body.1' (BatchNorm1d)", "even in eval()", "nn.GroupNorm(1, 4)"],
    ),
    "InstanceNorm": (
        lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.InstanceNorm2d(4, track_running_stats=True)),
        IMAGE,
        ["'1' (InstanceNorm2d)", "track_running_stats=False"],
    ),
    "lazy": (lambda: Wrapped(nn.LazyLinear(4)), VECTOR, ["'body.1' (LazyLinear)", "uninitialised"]),
    "sparse embedding": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Embedding(3, 3, sparse=True)),
        VECTOR,
        ["'1' (Embedding)", "sparse=False"],
    ),
    "nothing to train": (
        lambda: Wrapped(nn.ReLU()).requires_grad_(False),
        VECTOR,
        ["<model> (Wrapped)", "requires_grad=True"],
    ),
    "no parameter": (lambda: nn.ReLU(), VECTOR, ["<model> (ReLU)", "no trainable parameter"]),
    "spectral norm": (
        lambda: Wrapped(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))),
        VECTOR,
        ["'body.1.parametrizations.weight.0' (_SpectralNorm)", "buffer '_u'"],
    ),
    "old spectral norm": (
        lambda: Wrapped(nn.utils.spectral_norm(nn.Linear(4, 4))),
        VECTOR,
        ["'body.1' (Linear)", "buffer 'weight_"],
    ),
    "buffer in place": (lambda: Wrapped(RunningMean(in_place)), VECTOR, ["'body.1' (RunningMean)", "buffer 'mean'"]),
    "buffer replaced": (lambda: Wrapped(RunningMean(replacing)), VECTOR, ["'body.1' (RunningMean)", "buffer 'mean'"]),
    "buffer behind autograd's back": (
        lambda: Wrapped(RunningMean(through_data)),
        VECTOR,
        ["'body.1' (RunningMean)", "buffer 'mean'"],
    ),
    "buffer registered late": (
        lambda: Wrapped(RunningMean(registering)),
        VECTOR,
        ["'body.1' (RunningMean)", "buffer 'late'"],
    ),
    "batch mean": (lambda: Wrapped(Centred()), VECTOR, ["'body.1' (Centred)", "mixes records"]),
    "neighbour": (lambda: Wrapped(Neighbour()), VECTOR, ["'body.1' (Neighbour)", "mixes records"]),
    "gate at zero": (lambda: Wrapped(GatedCentre()), VECTOR, ["'body.1' (GatedCentre)", "mixes records"]),
    "softmax over the batch": (lambda: Wrapped(nn.Softmax(dim=0)), VECTOR, ["'body.1' (Softmax)", "mixes records"]),
    "attention over the batch": (
        lambda: nn.TransformerEncoderLayer(4, 2, 8),
        SEQUENCE,
        ["'self_attn' (MultiheadAttention)", "batch_first=True"],
    ),
    "guard over the batch": (
        lambda: Wrapped(FiniteOrNothing()),
        VECTOR,
        ["'body.1' (FiniteOrNothing)", "mixes records"],
    ),
    "capacity of the batch": (lambda: Wrapped(Crowded()), VECTOR, ["'body.1' (Crowded)", "mixes records"]),
    "extra state": (lambda: Wrapped(Hoarder()), VECTOR, ["'body.1' (Hoarder)", "get_extra_state"]),
    "tensor that is no buffer": (lambda: Wrapped(Scribbler()), VECTOR, ["'body.1' (Scribbler)", "attribute 'notes'"]),
    "state between forwards": (lambda: Wrapped(Stateful()), VECTOR, ["'body.1' (Stateful)", "state"]),
    "batch size": (lambda: Wrapped(Counting()), VECTOR, ["<model> (Wrapped)", "batch size"]),
    "batch not first": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Flatten(0)),
        VECTOR,
        ["<model> (Sequential)", "batch as first dimension"],
    ),
    "batch lost when alone": (
        lambda: nn.Sequential(nn.Linear(4, 3), Squeezed()),
        VECTOR,
        ["<model> (Sequential)", "batch as first dimension"],
    ),
    "wrong input size": (lambda: Wrapped(nn.Linear(5, 4)), VECTOR, ["'body.1' (Linear)", "forward fails"]),
}


class FiniteOrNothing(nn.Module):
    """One odd record switches the whole batch off."""

    def forward(self, x: Tensor) -> Tensor:
        return x if bool(torch.isfinite(x).all()) else torch.zeros_like(x)


class Crowded(nn.Module):
    """Only the first so many records with a positive score get through."""

    def forward(self, x: Tensor) -> Tensor:
        chosen = x[:, :1] > 0
        return x * (chosen & (chosen.cumsum(0) <= 8))


class Hoarder(nn.Identity):
    def get_extra_state(self) -> object:
        return {}


class Scribbler(nn.Module):
    """Keeps data in a tensor that is not registered as a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.notes = torch.zeros(4)

    def forward(self, x: Tensor) -> Tensor:
        self.notes.copy_(x.detach()[0])
        return x


class Squeezed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.squeeze()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSALS)
def test_it_is_refused_in_one_line_with_its_path_and_a_remedy(name: str) -> None:
    torch.manual_seed(0)
    build, shape, parts = REFUSALS[name]
    with pytest.raises(ModelError) as refused:
        choose_engine(build(), nn.MSELoss(), (torch.zeros(4, *shape), torch.zeros(4, 3)))
    message = str(refused.value)
    assert all(part in message for part in parts), message
    assert "\n" not in message
    assert "; " in message, "no remedy"


def test_an_embedding_that_renormalises_its_weight_is_refused() -> None:
    model = nn.Sequential(nn.Embedding(5, 4, max_norm=0.1), nn.Flatten(), nn.Linear(8, 3))
    with pytest.raises(ModelError, match=r"'0' \(Embedding\).*parameter 'weight'"):
        choose_engine(model, nn.MSELoss(), (torch.zeros(3, 2, dtype=torch.long), torch.zeros(3, 3)))


class NowAndThen(nn.Module):
    """Centres three batches in ten."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0) if torch.rand(()) < 0.3 else x


def test_mixing_now_and_then_is_found() -> None:
    """Sixteen fixed seeds: found always or never, whatever the machine."""
    with pytest.raises(ModelError, match=r"'body.1' \(NowAndThen\): mixes records"):
        choose_engine(Wrapped(NowAndThen()), nn.MSELoss(), (torch.zeros(3, 4), torch.zeros(3, 3)))


def test_constant_tokens_do_not_hide_mixing() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), Centred(), nn.Linear(8, 3))
    with pytest.raises(ModelError, match=r"'2' \(Centred\)"):
        choose_engine(model, nn.MSELoss(), (torch.zeros(3, 2, dtype=torch.long), torch.zeros(3, 3)))


def test_a_loss_that_does_not_fit_the_output_is_refused() -> None:
    with pytest.raises(ModelError, match="the loss refuses outputs") as refused:
        choose_engine(nn.Linear(4, 3), nn.NLLLoss(), (torch.zeros(3, 4), torch.zeros(3, 2)))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "layer", [nn.Dropout(), RunningMean(in_place), RunningMean(registering), Centred(), Stateful()]
)
def test_inspection_leaves_no_trace(layer: nn.Module, training: bool) -> None:
    torch.manual_seed(0)
    model = Wrapped(layer).train(training)
    nn.init.zeros_(model.head.weight)
    model.head.eval()
    flags = [module.training for module in model.modules()]
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    attributes = [set(vars(module)) for module in model.modules()]
    random = torch.get_rng_state()
    try:
        choose_engine(model, nn.MSELoss(), (torch.zeros(3, 4), torch.zeros(3, 3)))
    except ModelError:
        assert not isinstance(layer, nn.Dropout)
    assert [module.training for module in model.modules()] == flags
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert [set(vars(module)) for module in model.modules()] == attributes
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "layer",
    [
        nn.Dropout(0.5),
        nn.GroupNorm(2, 4),
        nn.LayerNorm(4),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        nn.Softmax(dim=1),
    ],
)
def test_layers_that_treat_records_alone_are_accepted(layer: nn.Module, training: bool) -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose_engine(Wrapped(layer).train(training), nn.MSELoss(), (torch.zeros(3, 4), torch.zeros(3, 3)))


class Careful(nn.Module):
    """Refuses values it cannot work with: legal, and no record influences another."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if not bool(torch.isfinite(x).all()):
            raise ValueError("not finite")
        out: Tensor = self.layer(x)
        return out


def test_a_model_that_refuses_extreme_values_by_itself_is_legal() -> None:
    assert choose_engine(Careful(), nn.MSELoss(), (torch.zeros(4, 4), torch.zeros(4, 3))).name == "ghost"


class Trimming(nn.Module):
    """Cuts its batch to the longest record that does not end in padding."""

    def __init__(self, padding: int) -> None:
        super().__init__()
        self.padding = padding
        self.embedding, self.scores = nn.Embedding(10, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        length = int((x != self.padding).sum(dim=1).max())
        scores: Tensor = self.scores(self.embedding(x[:, : max(length, 1)]).mean(dim=1))
        return scores


@pytest.mark.parametrize("padding", [0, 1, 9])
def test_records_that_are_cut_to_the_longest_of_a_batch_are_mixed(padding: int) -> None:
    with pytest.raises(ModelError, match="mixes records"):
        choose_engine(Trimming(padding), nn.MSELoss(), (torch.zeros(4, 12, dtype=torch.long), torch.zeros(4, 2)))
