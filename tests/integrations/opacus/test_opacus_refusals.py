"""What a script for Opacus must not do: losses, loaders, options and models are refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from scripts import B, N, Words, backward, engine_for, made, net, padding, records, refused, script
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler, TensorDataset, WeightedRandomSampler

from adadpigu.errors import AdaDPIGUError, InputError, ModelError, PrivacyLineError
from adadpigu.integrations.opacus import ModuleValidator, PrivacyEngine


def test_a_script_without_a_criterion_is_told_the_line_to_change() -> None:
    with pytest.raises(InputError, match="criterion is missing: model, optimizer, criterion, data_loader = "):
        made(engine_for(), net(), criterion=None)


def in_place(m: Any, c: Any, d: Any, t: Any) -> Any:
    loss = c(m(d), t)
    loss /= 2
    return loss


Step = Callable[[Any, Any, Any, Any], Any]
OTHER: dict[str, tuple[Step, str]] = {
    "another function": (lambda m, c, d, t: F.cross_entropy(m(d), t), "another loss"),
    "a factor": (lambda m, c, d, t: c(m(d), t) / 2, "another loss"),
    "a factor in place": (in_place, "another loss"),
    "its own value": (lambda m, c, d, t: c(m(d), t) / c(m(d), t).item(), "another loss"),
    "what comes after the model": (lambda m, c, d, t: c(m(d).softmax(1), t), "another loss"),
    "two calls": (lambda m, c, d, t: c(m(d), t) + c(m(d), t), "another loss"),
    "other targets": (lambda m, c, d, t: c(m(d), F.one_hot(t, 4).float()), "other targets"),
    "inputs as targets": (lambda m, c, d, t: c(m(d), d[:, :4]), "other targets"),
    "batch statistics": (lambda m, c, d, t: c(m(d - d.mean(0)), t), "other inputs"),
    "in place": (lambda m, c, d, t: c(m(d.div_(100)), t), "other inputs"),
    "mixup": (lambda m, c, d, t: c(m(0.5 * (d + d.flip(0))), t), "other inputs"),
    "a part of the batch": (lambda m, c, d, t: c(m(d[1:]), t[1:]), "other inputs"),
    "more than inputs": (lambda m, c, d, t: c(m(d, torch.ones(1)), t), "more than its inputs"),
}


@pytest.mark.parametrize("name", OTHER)
def test_a_loss_that_would_not_be_the_one_that_is_released_is_refused(name: str) -> None:
    loss_of, text = OTHER[name]
    refused(made(engine_for(), net()), lambda m, o, c, d, t: loss_of(m, c, d, t).backward(), text)


def test_terms_of_parameters_are_refused() -> None:
    def decayed(m: Any, o: Any, c: Any, d: Any, t: Any) -> None:
        (c(m(d), t) + sum(p.square().sum() for p in m.parameters())).backward()

    refused(made(engine_for(), net()), decayed, "another loss|backward pass of your own", AdaDPIGUError)


def test_a_gradient_of_the_script_s_own_is_refused() -> None:
    inputs, targets = records()

    def plain(m: Any, o: Any, c: Any, d: Any, t: Any) -> None:
        backward(F.cross_entropy(m._module(inputs), targets))

    refused(made(engine_for(), net()), plain, "backward pass of your own", PrivacyLineError)


def test_the_old_loader_and_a_forgotten_backward_are_refused() -> None:
    loader = DataLoader(TensorDataset(*records()), batch_size=B)
    model, optimizer, criterion, _ = made(engine_for(), net(), loader)
    with pytest.raises(PrivacyLineError, match="backward pass of your own"):
        script((model, optimizer, criterion, loader))
    with pytest.raises(PrivacyLineError, match="no release"):
        optimizer.step()
    refused(made(engine_for(), net()), lambda m, o, c, d, t: o.step(), "no release", PrivacyLineError)
    refused(made(engine_for(), net()), lambda m, o, c, d, t: None, r"batch.backward\(\) was not called")


def test_a_loss_of_an_earlier_batch_is_refused() -> None:
    kept: list[Tensor] = []

    def step(m: Any, o: Any, c: Any, d: Any, t: Any) -> None:
        kept.append(c(m(d), t))
        backward(kept[0])
        o.step()

    refused(made(engine_for(), net()), step, "used", PrivacyLineError)

    def both(m: Any, o: Any, c: Any, d: Any, t: Any) -> None:
        kept.append(c(m(d), t))
        backward(sum(kept, torch.zeros(())))

    refused(made(engine_for(), net()), both, "another loss")


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
        (lambda: DataLoader(TensorDataset(*records(), records()[0]), batch_size=B), "no pairs; allowed: pairs"),
        (lambda: DataLoader(Words(), batch_size=B, collate_fn=lambda items: padding(items)[0]), "not a pair"),
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
        {"criterion": nn.CrossEntropyLoss(reduction="sum")},
    ],
)
def test_what_would_change_the_guarantee_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="reduction" if "criterion" in options else next(iter(options))):
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
