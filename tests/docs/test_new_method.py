"""The worked example of docs/new-method.md stands what every method has to stand, and does what its formula says."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from blocks import ROOT, blocks

import adadpigu as ad
from adadpigu.core.layout import Layout
from adadpigu.core.mechanism import Release
from adadpigu.methods import base

EXAMPLE = ROOT / "examples" / "new_method.py"


def loaded() -> Any:
    """The example as a module; its method is taken out of the registry again, where it would meet other tests."""
    spec = importlib.util.spec_from_file_location("new_method", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["new_method"] = module
    spec.loader.exec_module(module)
    assert base._registry.pop("low-pass") is module.LowPass
    return module


example = loaded()
sys.path.append(str(ROOT / "tests" / "methods"))
harness = importlib.import_module("test_every_method")
plain, private, with_adam = harness.plain, harness.private, harness.with_adam
OF_ANOTHER = ("test_variants_are_of_registered_methods",)
globals().update({n: t for n, t in vars(harness).items() if n.startswith("test_") and n not in OF_ANOTHER})


@pytest.fixture(scope="module")
def method() -> ad.Method:
    """In the place of the harness' own: all its tests are run on the example."""
    made: ad.Method = example.LowPass(memory=0.9)
    return made


def test_the_filter_is_the_weighted_mean_of_its_formula(release: Callable[..., Release]) -> None:
    method_state = example._State(example.LowPass(memory=0.8), _context())
    chance = torch.Generator().manual_seed(0)
    values = [torch.randn(1, 5, generator=chance, dtype=torch.float64) for _ in range(6)]
    pairs = [(now + before)[0] / 2 for now, before in zip(values, [values[0], *values], strict=False)]
    for count, value in enumerate(values, 1):
        weights = [0.8 ** (count - 1 - number) for number in range(count)]
        wanted = sum(weight * pair for weight, pair in zip(weights, pairs, strict=False)) / sum(weights)
        torch.testing.assert_close(method_state._filtered(release(value)).value, wanted)


def test_the_filter_takes_releases_alone() -> None:
    with pytest.raises(ad.PrivacyLineError, match="Release"):
        example._State(example.LowPass(), _context())._filtered(torch.zeros(5))


def test_a_filter_goes_on_from_its_state(release: Callable[..., Release]) -> None:
    first, second = (example._State(example.LowPass(), _context()) for _ in range(2))
    for value in (torch.ones(1, 5), torch.zeros(1, 5)):
        first._filtered(release(value.double()))
    second.load(first.state())
    last = torch.full((1, 5), 3.0, dtype=torch.float64)
    assert torch.equal(first._filtered(release(last)).value, second._filtered(release(last)).value)


def _context() -> base.RunContext:
    layout = Layout.of(torch.nn.Linear(5, 1, bias=False))
    return base.RunContext(
        layout=layout,
        batch_size=10,
        records=100,
        noise_multiplier=1.0,
        weights=torch.zeros(5, dtype=torch.float64),
        seed=0,
        device=torch.device("cpu"),
    )


def test_the_page_shows_the_example_as_it_is() -> None:
    text = EXAMPLE.read_text()
    shown = [block for block in blocks(ROOT / "docs" / "new-method.md") if block.language == "python"]
    assert len(shown) >= 3
    assert [block.place for block in shown if block.text.strip() not in text] == []


def test_the_example_is_about_a_hundred_lines() -> None:
    assert 80 <= len(EXAMPLE.read_text().splitlines()) <= 120
    assert not re.search(r"adadpigu\.(records|sensitive|gradients|sampling)", EXAMPLE.read_text())
