"""`experiments/try_generator.py` passes ChaCha20, and finds generators that are planted to be off."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from adadpigu.core.exact import ExactRandomness
from adadpigu.core.randomness import SystemRandomness

SCRIPT = Path(__file__).parents[2] / "experiments" / "try_generator.py"
CPU = torch.device("cpu")


def loaded() -> Any:
    spec = importlib.util.spec_from_file_location("try_generator", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = loaded()
    monkeypatch.setattr(module, "SEQUENCE", 2**15)
    monkeypatch.setattr(module, "RANGES", 64)

    def least(source: Any) -> dict[str, float]:
        found: dict[str, float] = {}
        for what, _, p in module.tried(source, CPU, 8 * 2**15):
            found[what] = min(p, found.get(what, 1.0))
        return found

    return least


def test_our_generators_pass(tried: Any) -> None:
    for source in (SystemRandomness(), ExactRandomness()):
        found = tried(source)
        assert min(found.values()) > 1e-7, found
        assert ("rounded noise" in found) == isinstance(source, ExactRandomness)


class Rare(SystemRandomness):
    """Three coins of a hundred are halved."""

    def uniform(self, count: int) -> Tensor:
        drawn = super().uniform(count)
        return torch.where(super().uniform(count) < 0.03, drawn / 2, drawn)


class Alternating(SystemRandomness):
    """Every coin's first bit is the one before it, one time in ten."""

    def uniform(self, count: int) -> Tensor:
        drawn = super().uniform(count)
        again = super().uniform(count) < 0.1
        return torch.where(again, drawn.roll(1), drawn)


class Correlated(SystemRandomness):
    """A hundredth of each number's variance is that of the one before it."""

    def normal(self, count: int) -> Tensor:
        drawn = super().normal(count + 1)
        return (drawn[1:] + 0.1 * drawn[:-1]) / math.sqrt(1.01)


class Narrow(SystemRandomness):
    """Noise of 99 % of its size."""

    def normal(self, count: int) -> Tensor:
        return 0.99 * super().normal(count)


@pytest.mark.parametrize(
    ("planted", "where"),
    [(Rare, "coins"), (Alternating, "coins"), (Correlated, "noise"), (Narrow, "noise")],
    ids=lambda given: getattr(given, "__name__", given),
)
def test_generators_that_are_off_are_found(tried: Any, planted: type[SystemRandomness], where: str) -> None:
    assert tried(planted())[where] < 1e-7


@pytest.mark.parametrize("name", ["frequency", "runs", "serial", "approximate entropy", "cumulative sums"])
def test_bits_that_are_off_are_found(name: str) -> None:
    """One word in sixteen is that of a counter."""
    script = loaded()
    words = SystemRandomness().words(2**15)
    words[::16] = torch.arange(len(words[::16]))
    assert script.TESTS[name](script.bits_of(words)) < 1e-7
    assert script.TESTS[name](script.bits_of(SystemRandomness().words(2**15))) > 1e-9
