"""The models are the ones that the paper and its code describe, and each can be trained privately."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from adadpigu.core.gradients import choose_engine
from adadpigu.errors import InputError
from adadpigu.features.front import make_front
from adadpigu.models import StandardisedConv2d, all_models, make_model
from adadpigu.models.cards import TemperedSigmoid, parse_activation
from adadpigu.models.starts import started_from
from adadpigu.priors.encoder import EncoderMaps
from adadpigu.priors.named import named_weights
from adadpigu.tensors import read_file, write_tensors

PARAMETERS = {
    "mnist-cnn": 26_010,
    "mnist-cnn-padded": 46_490,
    "cifar-small": 74_362,
    "cifar-big": 550_570,
    "scatter-cnn-gray": 33_066,
    "scatter-cnn-rgb": 187_210,
    "wrn-16-4": 2_751_146,
    "prior-last-stage": 2_139_402,
    "prior-whole": 2_776_298,
}
ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "tempered:1.5,3,0.5": TemperedSigmoid}


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_published_nets_have_the_parameters_that_were_counted(name: str) -> None:
    assert sum(p.numel() for p in make_model(name).parameters()) == PARAMETERS[name] == all_models()[name].parameters()


@pytest.mark.parametrize("name", [name for name in all_models() if not name.startswith("wrn")])
def test_every_model_is_trained_by_layer_rules(name: str) -> None:
    card = all_models()[name]
    shape = (3, 16, 16) if name.startswith("prior") else card.shape or (3, 5)  # their layers are the same for any size
    model = card.build(shape, 10)
    example = torch.randn(3, *shape), torch.zeros(3, dtype=torch.long)
    assert model(example[0]).shape == (3, 10)
    assert choose_engine(model, F.cross_entropy, example).name == "ghost"


@pytest.mark.parametrize("text", ACTIVATIONS)
@pytest.mark.parametrize("name", all_models())
def test_every_net_is_built_with_the_activation_asked_for(name: str, text: str) -> None:
    shape = all_models()[name].shape or (3, 5)
    model = make_model(name, shape=shape, activation=text, seed=0)
    kinds = {type(module) for module in model.modules()} & {nn.Tanh, nn.ReLU, TemperedSigmoid}
    assert kinds == (set() if name.endswith("linear") else {ACTIVATIONS[text]})
    before = make_model(name, shape=shape, seed=0).state_dict()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_the_wide_resnet_has_its_published_shape() -> None:
    """Sixteen weighted layers on the longest path: one convolution, six blocks of two, three shortcuts, one linear."""
    model = make_model("wrn-16-4", seed=0)
    convolutions = [m for m in model.modules() if isinstance(m, StandardisedConv2d)]
    assert [m.out_channels for m in convolutions if m.kernel_size == (3, 3)] == [16] + [64] * 4 + [128] * 4 + [256] * 4
    assert sum(m.kernel_size == (1, 1) for m in convolutions) == 3
    norms = [m for m in model.modules() if isinstance(m, nn.GroupNorm)]
    assert {m.num_groups for m in norms} == {16}
    assert any(isinstance(m, nn.ReLU) for m in model.modules())
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_a_tempered_sigmoid_is_its_formula_and_tanh_a_special_case() -> None:
    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    assert torch.allclose(parse_activation("tempered:2,2,1")()(x), torch.tanh(x), atol=1e-12)
    assert torch.allclose(parse_activation("tempered:1.58,3,.71")()(x), 1.58 / (1 + torch.exp(-3 * x)) - 0.71)


@pytest.mark.parametrize(
    "text",
    ["", "Tanh", "gelu", "relu:1,1,1", "tempered", "tempered:"]
    + [f"tempered:{each}" for each in ("2,2", "2,2,1,0", "2,x,1", "0,2,1", "2,-2,1", "inf,2,1", "2,2,nan")],
)
def test_activations_that_do_not_exist_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(InputError) as caught:
        make_model("mlp", shape=(4,), activation=text)
    assert str(caught.value).startswith(f"activation={text!r}; allowed: tanh, relu, or tempered:")
    assert "\n" not in str(caught.value)


def test_a_seed_fixes_the_weights_and_leaves_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    first, second, third = (make_model("digits-mlp", seed=s).state_dict() for s in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[k], second[k]) for k in first)
    assert not all(torch.equal(first[k], third[k]) for k in first)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "mnist-cnn", "shape": (1, 8, 8)}, "(1, 28, 28)"),
        ({"name": "mlp"}, "needs the shape"),
        ({"name": "os:getcwd"}, "returns an nn.Module"),
        ({"name": "os:nothing"}, "cannot be imported"),
        ({"name": "scatter-cnn-gray", "shape": (1, 28, 28)}, "(81, 7, 7)"),
        ({"name": "os:getcwd", "activation": "relu"}, "chooses its own"),
        ({"name": "mnist-ccn"}, "did you mean 'mnist-cnn'"),
    ],
)
def test_models_that_cannot_be_made_are_named(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(InputError) as caught:
        make_model(**arguments)  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_xavier_initialisation_has_the_variance_it_promises_and_no_bias() -> None:
    """The sample variance of 65,536 uniform weights is within 4 % of the promise (over 6 standard deviations)."""
    model = make_model("cifar-big", initialisation="xavier", seed=0)
    layer = next(m for m in model.modules() if isinstance(m, nn.Linear))
    promised = (5 / 3) ** 2 * 2 / (layer.in_features + layer.out_features)
    assert float(layer.weight.detach().var()) == pytest.approx(promised, rel=0.04)
    assert not any(bool(value.any()) for name, value in model.named_parameters() if name.endswith("bias"))
    with pytest.raises(InputError, match="initialisation"):
        make_model("cifar-big", initialisation="zeros")


def test_xavier_initialisation_of_convolutions_counts_the_whole_kernel() -> None:
    """Inputs and outputs are channels times kernel; 147,456 uniform weights, 2 % being over 8 standard deviations."""
    model = make_model("cifar-big", initialisation="xavier", seed=0)
    layer = [m for m in model.modules() if isinstance(m, nn.Conv2d)][-1]
    assert (layer.in_channels, layer.out_channels, layer.kernel_size) == (128, 128, (3, 3))
    promised = (5 / 3) ** 2 * 2 / (128 * 9 + 128 * 9)
    assert float(layer.weight.detach().var()) == pytest.approx(promised, rel=0.02)
    assert float(layer.weight.detach().abs().max()) <= (3 * promised) ** 0.5


def test_the_priors_last_stage_starts_as_the_encoder_and_leaves_its_earlier_stages_alone() -> None:
    weights = named_weights("prior")
    model = make_model("prior-last-stage", seed=0)
    assert isinstance(model, nn.Sequential)
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    expected = EncoderMaps(weights.plan, weights.tensors).stages(images)[-1]
    torch.testing.assert_close(model[:3](images), expected)
    model(images).sum().backward()
    trained = {name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert trained == {"1", "2", "6"}
    assert not list(model[0].parameters())
    other = make_model("prior-last-stage", seed=1).state_dict()
    differ = {name for name, value in model.state_dict().items() if not torch.equal(value, other[name])}
    assert differ == {"6.weight", "6.bias"}


def test_the_whole_prior_starts_with_the_features_of_the_fixed_one_and_trains_every_layer() -> None:
    front, made = make_front("prior", "none", (3, 32, 32))
    assert front is not None
    model = make_model("prior-whole", seed=0)
    assert isinstance(model, nn.Sequential)
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model[0](images), front(images), rtol=1e-3, atol=1e-3)
    model(images).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())
    assert sum(p.numel() for p in model.parameters()) == 2_699_008 + 10 * (math.prod(made) + 1)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """All weights of a small net but those of its last layer, as halves."""
    stored = {name: p.detach().half() for name, p in make_model("mnist-cnn", seed=1).named_parameters()}
    for name in list(stored)[-2:]:
        del stored[name]
    write_tensors(tmp_path / "start.safetensors", stored, {"trained on": "images of random processes"})
    return tmp_path / "start.safetensors"


def test_a_net_starts_from_a_file_with_a_last_layer_of_its_own(saved: Path) -> None:
    first, other, plain = (
        make_model("mnist-cnn", seed=seed, initialisation=start).state_dict()
        for seed, start in ((2, str(saved)), (3, str(saved)), (2, "default"))
    )
    wanted = make_model("mnist-cnn", seed=1).state_dict()
    *body, weight, bias = wanted
    for name in body:
        assert torch.equal(first[name], wanted[name].half().float())
        assert torch.equal(first[name], other[name])
    for name in (weight, bias):
        assert torch.equal(first[name], plain[name])
        assert not torch.equal(first[name], other[name])
    (told,) = started_from(make_model("mnist-cnn", initialisation=str(saved)))
    assert "by their file trained on images of random processes" in told
    assert not started_from(make_model("mnist-cnn"))


def test_a_start_of_another_net_or_with_layers_missing_is_refused(saved: Path) -> None:
    with pytest.raises(InputError, match="allowed: weights of this model") as refusal:
        make_model("mnist-cnn-padded", initialisation=str(saved))
    assert "\n" not in str(refusal.value)
    stored, _ = read_file(saved, "start")
    del stored["0.weight"]
    write_tensors(saved, stored)
    with pytest.raises(InputError, match=r"lacks '0\.weight'; allowed: all weights but those of the last layer"):
        make_model("mnist-cnn", initialisation=str(saved))
    with pytest.raises(InputError, match="cannot be read"):
        make_model("mnist-cnn", initialisation="nowhere.safetensors")
