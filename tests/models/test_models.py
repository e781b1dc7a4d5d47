"""The models are the ones that the paper and its code describe, and each can be trained privately."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from adadpigu.errors import InputError
from adadpigu.gradients import choose_engine
from adadpigu.models import all_models, make_model

PARAMETERS = {"mnist-cnn": 26_010, "mnist-cnn-padded": 46_490, "cifar-small": 74_362, "cifar-big": 550_570}


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_papers_nets_have_the_parameters_that_were_counted(name: str) -> None:
    assert sum(p.numel() for p in make_model(name).parameters()) == PARAMETERS[name] == all_models()[name].parameters()


@pytest.mark.parametrize("name", all_models())
def test_every_model_is_trained_by_layer_rules(name: str) -> None:
    shape = all_models()[name].shape or (3, 5)
    model = make_model(name, shape=shape)
    example = torch.randn(3, *shape), torch.zeros(3, dtype=torch.long)
    assert model(example[0]).shape == (3, 10)
    assert choose_engine(model, F.cross_entropy, example).name == "rules"


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
        ({"name": "mnist-ccn"}, "did you mean 'mnist-cnn'"),
    ],
)
def test_models_that_cannot_be_made_are_named(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(InputError) as caught:
        make_model(**arguments)  # type: ignore[arg-type]
    assert words in str(caught.value)
