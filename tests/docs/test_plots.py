"""The plots of docs/choosing.md are drawn from what the accountant says and from the rows that were measured."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

import matplotlib.pyplot as plt
import pytest
from blocks import ROOT

from adadpigu.accounting import epsilon, plan_for

PAGE = (ROOT / "docs" / "choosing.md").read_text()


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("draw_plots", ROOT / "docs" / "tools" / "draw_plots.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_plot_of_the_page_is_one_that_the_script_draws(script: Any) -> None:
    shown = re.findall(r"\]\(images/(choosing-[\w-]+)\.png\)", PAGE)
    assert sorted(shown) == sorted(script.PLOTS)
    assert all((ROOT / "docs" / "images" / f"{name}.png").is_file() for name in shown)


@pytest.mark.parametrize(
    ("preset", "row"),
    [
        ("mnist-dpsgd-eps2", r"\| MNIST \| DP-SGD \| 2 "),
        ("cifar10-dpsgd-eps4", r"\| CIFAR-10 \| DP-SGD \| 4 "),
        ("fashion-sgd", r"\| Fashion-MNIST \| SGD, not private \| ∞ "),
    ],
)
def test_accuracies_are_those_of_the_measured_table(script: Any, preset: str, row: str) -> None:
    table = (ROOT / "results" / "paper" / "accuracy-table.md").read_text()
    found = re.search(row + r"\| \S+ \| (\S+) ±", table)
    assert found is not None
    assert f"{script._mean_accuracy(preset):.2f}" == found[1]


def test_noise_multipliers_keep_their_budget_and_are_those_of_the_text(script: Any) -> None:
    for budget, told in ((0.5, "5.3"), (10, "0.7")):
        sigma = script.noise_multiplier(budget, 1000, 2000)
        assert budget - 0.02 < epsilon(plan_for(1000 / 60_000, 2000)(sigma).event(), 1e-5) <= budget
        assert f"{sigma:.1f}" == told
        assert f"{told} at ε = {budget:g}" in PAGE


def test_accuracies_by_clipping_bound_are_all_runs_of_the_ablation(
    script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "noise_multiplier", lambda *_: 1.0)
    figure, (left, right) = plt.subplots(1, 2)
    drawn: list[list[float]] = []
    monkeypatch.setattr(left, "boxplot", lambda scores, **_: drawn.extend(scores))
    script.bounds(left, right)
    plt.close(figure)
    assert [len(scores) for scores in drawn] == [8, 8, 8]
    table = (ROOT / "results" / "paper" / "ablation.md").read_text().split("## 550k")[0]
    for scores, variant in zip(drawn, ("half-bound", "dpsgd", "double-bound"), strict=True):
        found = re.search(rf"^\| {variant} \|.*?\| (\S+) ± ", table, re.MULTILINE)
        assert found is not None
        assert f"{sum(scores) / 8:.2f}" == found[1]
