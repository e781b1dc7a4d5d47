"""Habits of fine-tuning: frozen batch norms are kept, in the model and in a backbone before it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from record_oracle import N, assert_gradients, prepared, shown
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import adadpigu as ad
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.core.sensitive import unseal
from adadpigu.errors import ModelError


def backbone() -> nn.Module:
    """As if it were pretrained: its batch norms have statistics of their own."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.BatchNorm1d(16)
    )
    with torch.no_grad():
        net(torch.randn(64, 1, 8, 8) * 3 + 1)
    return net


def images() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(N, 1, 8, 8), torch.arange(N) % 3


def losses(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def in_eval(net: nn.Module) -> nn.Module:
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.eval()
    return net


def test_a_frozen_backbone_with_batch_norms_inside_the_model() -> None:
    model = nn.Sequential(backbone().requires_grad_(False), nn.Linear(16, 3))
    before = copy.deepcopy(model.state_dict())
    ready = prepared(model, images())
    oracle = copy.deepcopy(model).eval()
    assert "2 norm layer(s) keep their stored statistics" in ready.engine.reason
    found = unseal(ready.engine.per_sample_gradients(shown(ready))).gradients
    x, y = images()
    features = oracle[0](x)
    wrong = torch.softmax(oracle[1](features), 1) - F.one_hot(y, 3)
    expected = torch.cat([(wrong.unsqueeze(2) * features.unsqueeze(1)).flatten(1), wrong], dim=1)
    assert torch.allclose(found, expected, atol=1e-5)
    run = ad.train(model, images(), records=N, batch_size=8, steps=2, device="cpu")
    assert run.gradients.startswith("layer rules")
    for name, tensor in run.model.state_dict().items():
        assert name.startswith("1.") or torch.equal(tensor, before[name]), name


@pytest.mark.parametrize("engine", ["auto", "functional"])
def test_batch_norms_in_eval_whose_weights_are_trained(engine: str) -> None:
    model = nn.Sequential(in_eval(backbone()), nn.Linear(16, 3))
    ready = prepared(model, images(), engine=engine)
    assert ready.engine.reason.startswith("layer rules" if engine == "auto" else "one record at a time under vmap")
    assert_gradients(ready, losses, images())


def test_frozen_norms_stay_in_eval_through_a_users_own_train_call() -> None:
    def run(call_train: bool) -> nn.Module:
        model = nn.Sequential(in_eval(backbone()), nn.Linear(16, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        settings: dict[str, Any] = {"records": N, "batch_size": 8, "steps": 3, "noise_multiplier": 1.0, "seed": 1}
        loop = ad.PrivateLoop(
            model, optimizer, images(), device="cpu", randomness=ReproducibleRandomness(2), method="dpsgd", **settings
        )
        for batch in loop:
            if call_train:
                model.train()
            batch.backward()
            optimizer.step()
        return model

    kept, called = run(False), run(True)
    for one, other in zip(kept.state_dict().values(), called.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_a_batch_norm_in_training_mode_is_refused_with_both_remedies() -> None:
    with pytest.raises(
        ModelError, match=r"pretrained, freeze it \(norm.eval\(\).*from scratch, replace it by nn.Group"
    ):
        prepared(nn.Sequential(backbone(), nn.Linear(16, 3)), images())


def test_a_batch_norm_without_stored_statistics_is_refused_also_in_eval() -> None:
    """It takes the statistics of the batch, so it mixes records whatever its mode."""
    norm = nn.BatchNorm2d(1, track_running_stats=False).eval()
    with pytest.raises(ModelError, match="BatchNorm2d"):
        prepared(nn.Sequential(norm, nn.Flatten(), nn.Linear(64, 3)), images())


class Rotating(Dataset[Any]):
    """Items that change at every reading, as those of a random transform do."""

    def __init__(self, scale: float = 1.0) -> None:
        self.images, self.labels = images()
        self.scale = scale

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return self.scale * (self.images[index] + torch.rand(())), int(self.labels[index])


class Reading(Dataset[Any]):
    """Items of the images, and how often each was read."""

    def __init__(self) -> None:
        self.reads = [0] * N

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        self.reads[index] += 1
        return images()[0][index], int(images()[1][index])


def test_a_backbone_as_front_is_the_same_as_its_features() -> None:
    """Also after `train()`, and with the user's own module left as it was."""
    front, weights = backbone(), []
    settings: dict[str, Any] = {"records": N, "batch_size": 8, "steps": 3, "noise_multiplier": 1.0, "device": "cpu"}
    features = copy.deepcopy(front).eval()(images()[0]).detach()
    for source, before in (((features, images()[1]), None), (images(), front), (Reading(), front)):
        torch.manual_seed(5)
        head = nn.Linear(16, 3)
        run = ad.train(head, source, front=before, randomness=ReproducibleRandomness(4), seed=1, **settings)
        weights.append(head.weight.detach())
    assert torch.equal(weights[0], weights[1])
    assert torch.allclose(weights[0], weights[2], atol=1e-6)
    assert front.training
    assert torch.allclose(run.model.train()(images()[0]), head(features), atol=1e-5)
    assert any("the weights of the front Sequential" in line for line in run.privacy.not_covered)


class OfTwo(nn.Module):
    """A backbone of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 4), nn.Linear(3, 4)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.tanh(self.a(a) + self.b(b))


@pytest.mark.parametrize("form", ["tuple", "dict"])
def test_a_front_of_two_inputs_is_the_same_as_its_features(form: str) -> None:
    torch.manual_seed(0)
    front, a, b, y = OfTwo(), torch.randn(N, 5), torch.randn(N, 3), torch.arange(N) % 3
    inputs: Any = (a, b) if form == "tuple" else {"b": b, "a": a}
    settings: dict[str, Any] = {"records": N, "batch_size": 8, "steps": 3, "noise_multiplier": 1.0, "device": "cpu"}
    heads = []
    for source, before in ((front(a, b).detach(), None), (inputs, front)):
        torch.manual_seed(1)
        head = nn.Linear(4, 3)
        run = ad.train(head, (source, y), front=before, randomness=ReproducibleRandomness(4), seed=1, **settings)
        heads.append(head.weight.detach().clone())
    torch.testing.assert_close(*heads)
    torch.testing.assert_close(run.model(**{"a": a, "b": b}), head(front(a, b)))


def test_features_of_a_front_are_computed_once_and_only_in_memory(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("ADADPIGU_CACHE", str(tmp_path))
    few, many = Reading(), Reading()
    for data, steps in ((few, 2), (many, 20)):
        ad.train(nn.Linear(16, 3), data, front=backbone(), records=N, batch_size=8, steps=steps, device="cpu")
    assert few.reads == many.reads
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_records_that_change_at_every_reading_go_through_the_front_at_every_draw() -> None:
    ready = prepared(nn.Linear(16, 3), Rotating(), front=backbone())
    assert ready.view.front is ready.front
    run = ad.train(nn.Linear(16, 3), Rotating(), front=backbone(), records=N, batch_size=8, steps=2, device="cpu")
    assert run.steps_done == 2


class Keeping(nn.Module):
    """A backbone that keeps its features, and notes the largest input that exceeds `least`."""

    largest: Tensor

    def __init__(self, least: float) -> None:
        super().__init__()
        self.layer, self.maps = nn.Linear(64, 16), dict[str, Tensor]()
        self.register_buffer("largest", torch.tensor(least))

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.layer(x.flatten(1))
        self.features = self.maps["h"] = features
        if x.max() > self.largest:
            self.largest.copy_(x.max())
        return features


@pytest.mark.parametrize("form", ["loss", "losses"])
@pytest.mark.parametrize("again", [False, True])
def test_a_front_keeps_nothing_of_the_records(form: str, again: bool) -> None:
    """Of features that are computed once, and of those of every draw."""
    how: dict[str, Any] = {"losses": losses} if form == "losses" else {}
    how |= {"records": N, "batch_size": 8, "steps": 2, "device": "cpu"}
    source: Any = Rotating() if again else images()
    kept: Any = ad.train(nn.Linear(16, 3), source, front=Keeping(1e9), **how).model.front
    assert vars(kept.features)["maps"] == {}
    assert "features" not in vars(kept.features)
    for least in (0.0, 500.0):  # the second is reached by an example whose numbers go far
        with pytest.raises(ModelError, match="a training forward changes buffer 'largest'"):
            prepared(nn.Linear(16, 3), source, front=Keeping(least), **({"losses": losses} if form == "losses" else {}))


@pytest.mark.parametrize("again", [False, True])
def test_a_front_may_not_write_once_private_records_come(again: bool) -> None:
    """Of numbers that no example reaches."""
    x, y = images()
    source: Any = Rotating(scale=1e9) if again else (1e9 * x, y)
    with pytest.raises(ModelError, match=r"'front(\.features)?' \(Keeping\): a training forward changes buffer"):
        ad.train(nn.Linear(16, 3), source, front=Keeping(1e7), records=N, batch_size=N, steps=2, device="cpu")


def test_a_front_before_dict_records_takes_and_gives_the_dict() -> None:
    class Featured(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = backbone()

        def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
            return {**batch, "image": self.net(batch["image"])}

    def of_dict(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch["image"]), batch["label"], reduction="none")

    x, y = images()
    ready = prepared(nn.Linear(16, 3), {"image": x, "label": y}, losses=of_dict, front=Featured())
    features = copy.deepcopy(backbone()).eval()(x).detach()
    assert_gradients(ready, of_dict, {"image": features, "label": y})
