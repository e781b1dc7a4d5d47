"""What a script for Opacus must not do: losses, loaders, options and models are refused by name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from scripts import B, N, Words, backward, engine_for, made, net, padding, records, refused, script
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler, TensorDataset, WeightedRandomSampler

from adadpigu.compat.opacus import ModuleValidator, PrivacyEngine
from adadpigu.errors import AdaDPIGUError, InputError, ModelError, PrivacyLineError


def _back(loss: Callable[..., Any], model: Any, _: Any, data: Tensor, target: Tensor) -> None:
    backward(loss(model, data, target))


def test_losses_that_are_not_a_record_s_own_are_refused() -> None:
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
    cases: list[tuple[Callable[..., Any], str]] = [
        (lambda m, d, t: F.cross_entropy(m(d), t, reduction="sum"), "not the mean"),
        (lambda m, d, t: F.cross_entropy(m(d), t, weight=weight), "nor the sum of"),
        (lambda m, d, t: m(d).std(dim=0).sum(), "not the mean"),
        (lambda m, d, t: F.cross_entropy(m(d), t) + sum(p.square().sum() for p in m.parameters()), "weight_decay"),
        (lambda m, d, t: F.cross_entropy(m(d) + m(d), t), "2 outputs"),
        (lambda m, d, t: F.mse_loss(m(d), d[:, :4]), "the batch's inputs"),
        (lambda m, d, t: F.cross_entropy(m(d), t, reduction="none"), "one number"),
    ]
    for loss, text in cases:
        refused(made(engine_for(), net()), functools.partial(_back, loss), text, AdaDPIGUError)


def test_a_gradient_of_the_script_s_own_is_refused() -> None:
    inputs, targets = records()

    def plain(model: Any, optimizer: Any, data: Tensor, target: Tensor) -> None:
        backward(F.cross_entropy(model(inputs), targets))

    refused(made(engine_for(), net()), plain, "backward pass of your own", PrivacyLineError)


def test_the_old_loader_and_a_forgotten_backward_are_refused() -> None:
    loader = DataLoader(TensorDataset(*records()), batch_size=B)
    model, optimizer, _ = made(engine_for(), net(), loader)
    with pytest.raises(PrivacyLineError, match="backward pass of your own"):
        script((model, optimizer, loader))
    with pytest.raises(PrivacyLineError, match="no release"):
        optimizer.step()
    refused(made(engine_for(), net()), lambda m, o, d, t: o.step(), "no release", PrivacyLineError)
    refused(made(engine_for(), net()), lambda m, o, d, t: None, r"batch.backward\(\) was not called")


def test_a_loss_of_an_earlier_batch_is_refused() -> None:
    kept: list[Tensor] = []

    def step(model: Any, optimizer: Any, data: Tensor, target: Tensor) -> None:
        kept.append(F.cross_entropy(model(data), target))
        backward(kept[0])
        optimizer.step()

    refused(made(engine_for(), net()), step, "used", PrivacyLineError)

    def both(model: Any, optimizer: Any, data: Tensor, target: Tensor) -> None:
        kept.append(F.cross_entropy(model(data), target))
        backward(sum(kept, torch.zeros(())))

    refused(made(engine_for(), net()), both, "batches; allowed: one")


class Endless(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


def sampled() -> DataLoader[Any]:
    return DataLoader(TensorDataset(*records()), batch_size=B, sampler=WeightedRandomSampler([1.0] * N, N))


def by_replacement() -> DataLoader[Any]:
    data = TensorDataset(*records())
    return DataLoader(data, batch_size=B, sampler=RandomSampler(data, replacement=True))


def sorting(batch: list[Any]) -> tuple[Tensor, Tensor]:
    return padding(sorted(batch, key=lambda item: -len(item[0])))


@pytest.mark.parametrize(
    ("loader", "text"),
    [
        (sampled, "sampler=WeightedRandomSampler chooses records"),
        (by_replacement, "sampler=RandomSampler chooses records"),
        (lambda: DataLoader(TensorDataset(*records()), batch_size=None), "a batch_sampler of your own"),
        (lambda: DataLoader(Endless(), batch_size=B), "has no length"),
        (lambda: [records()], "a list makes its own batches"),
        (lambda: DataLoader(Words(), batch_size=B, collate_fn=sorting), "another record"),
    ],
)
def test_a_loader_that_decides_on_its_own_is_refused(loader: Callable[[], Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        made(engine_for(), net(), loader())


def test_order_that_has_no_effect_is_told() -> None:
    loader = DataLoader(TensorDataset(*records()), batch_size=B, shuffle=True, drop_last=True)
    with pytest.warns(UserWarning, match="shuffle=True and drop_last=True has no effect"):
        made(engine_for(), net(), loader)


@pytest.mark.parametrize(
    "options",
    [
        {"poisson_sampling": False},
        {"loss_reduction": "sum"},
        {"clipping": "per_layer"},
        {"max_grad_norm": [1.0, 1.0]},
        {"noise_generator": torch.Generator()},
        {"grad_sample_mode": "magic"},
        {"batch_first": False},
        {"sigma": 1.0},
    ],
)
def test_what_would_change_the_guarantee_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        made(engine_for(), net(), **options)
    with pytest.raises(InputError, match="gdp"):
        PrivacyEngine(accountant="gdp")


def test_a_model_that_mixes_records_is_refused_and_mended() -> None:
    mixing = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(6 * 36, 4))
    assert not ModuleValidator.is_valid(mixing)
    assert "BatchNorm2d" in str(ModuleValidator.validate(mixing)[0])
    with pytest.raises(ModelError, match="GroupNorm"):
        ModuleValidator.validate(mixing, strict=True)
    fixed = ModuleValidator.fix_and_validate(mixing)
    assert isinstance(mixing[1], nn.BatchNorm2d)
    assert isinstance(fixed[1], nn.GroupNorm)  # type: ignore[index]
    assert fixed(torch.zeros(2, 1, 8, 8)).shape == (2, 4)
    with pytest.raises(ModelError, match="BatchNorm1d"):
        made(engine_for(), nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)))
