"""Scripts for Opacus as tests write them: a small net, sixty records, our engine with a known seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, TensorDataset

import adadpigu as ad
from adadpigu.core.randomness import ReproducibleRandomness
from adadpigu.errors import InputError
from adadpigu.integrations.opacus import PrivacyEngine

N, B, C, SIGMA = 60, 12, 0.7, 1.3
Loss = Callable[[Any, Any], Any]
"""of tensors; their `backward` has no types"""


def records() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(N, 6, generator=generator), torch.randint(4, (N,), generator=generator)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))


def engine_for(seed: int = 5, **options: Any) -> PrivacyEngine:
    engine = PrivacyEngine(**options)
    engine._how["randomness"] = ReproducibleRandomness(seed)
    return engine


def made(engine: PrivacyEngine, model: nn.Module, loader: Any = None, **options: Any) -> Any:
    """Module, optimizer, criterion, loader; one planned run of 5 steps unless told otherwise."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    asked = {"noise_multiplier": SIGMA, "max_grad_norm": C, "total_steps": 5, "criterion": F.cross_entropy, **options}
    loader = DataLoader(TensorDataset(*records()), batch_size=B) if loader is None else loader
    return engine.make_private(module=model, optimizer=optimizer, data_loader=loader, **asked)


def script(parts: Any, passes: int = 1) -> nn.Module:
    model, optimizer, criterion, loader = parts
    for _ in range(passes):
        for data, target in loader:
            optimizer.zero_grad()
            loss = criterion(model(data), target)
            loss.backward()
            optimizer.step()
    module: nn.Module = model
    return module


def backward(loss: Any) -> None:
    loss.backward()


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def ours(model: nn.Module, data: Any = None, loss: Loss = F.cross_entropy, steps: int = 5, **options: Any) -> Tensor:
    """The weights at which `ad.train` ends with the same noise."""
    ad.train(
        model,
        records() if data is None else data,
        records=N,
        method=ad.DPSGD(clip_norm=C),
        loss=loss,
        batch_size=B,
        steps=steps,
        lr=0.5,
        momentum=0.9,
        noise_multiplier=SIGMA,
        randomness=ReproducibleRandomness(5),
        **options,
    )
    return flat(model)


class Words(Dataset[Any]):
    """Sequences of several lengths."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        lengths = torch.randint(2, 7, (N,), generator=generator).tolist()
        self.items = [(torch.randint(1, 9, (length,), generator=generator), length % 3) for length in lengths]

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.items[index]


def padding(batch: list[Any]) -> tuple[Tensor, Tensor]:
    return pad_sequence([x for x, _ in batch], batch_first=True), torch.tensor([y for _, y in batch])


def refused(
    parts: Any, step: Callable[[Any, Any, Any, Tensor, Tensor], None], text: str, kind: Any = InputError
) -> None:
    model, optimizer, criterion, loader = parts

    def run() -> None:
        for data, target in loader:
            step(model, optimizer, criterion, data, target)

    with pytest.raises(kind, match=text):
        run()
