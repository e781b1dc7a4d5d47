"""Table 3 is decoded and recomputed; golden values come from dp_accounting, published with the accountants."""

from __future__ import annotations

import pytest

from adadpigu_paper.reproduce import paper
from adadpigu_paper.reproduce.artefact import Scale
from adadpigu_paper.reproduce.noise_table import compute, draw, explaining, noise_row

SPENT_BY_PLD = {
    "mnist": (1.552, 3.235, 4.964, 6.713, 8.485, 10.254),
    "cifar10": (1.553, 3.229, 4.961, 6.673, 8.444, 10.271),
}
SPENT_CLASSIC = {
    "mnist": (1.999, 3.991, 5.986, 7.976, 9.974, 11.958),
    "cifar10": (2.000, 3.984, 5.983, 7.935, 9.936, 11.991),
}


@pytest.mark.parametrize(("dataset", "settings"), [("mnist", (1000, 200)), ("cifar10", (500, 200))])
def test_the_printed_noise_is_explained_by_batch_size_and_epochs(dataset: str, settings: tuple[int, int]) -> None:
    batch_size, epochs, misfit = explaining(dataset)
    assert (batch_size, epochs) == settings
    assert misfit < 0.01


@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_what_the_printed_noise_spends_agrees_with_golden_values(dataset: str) -> None:
    batch_size = {"mnist": 1000, "cifar10": 500}[dataset]
    for place, epsilon in ((0, 2), (1, 4), (5, 12)):
        row = noise_row(dataset, epsilon, batch_size, 200)
        assert row["epsilon_pld_of_printed"] == pytest.approx(SPENT_BY_PLD[dataset][place], abs=6e-4)
        assert row["epsilon_rdp_classic_of_printed"] == pytest.approx(SPENT_CLASSIC[dataset][place], abs=6e-4)
        assert row["sigma_pld"] < row["sigma_rdp"] < row["sigma_rdp_classic"]
        assert row["sigma_rdp_classic"] == pytest.approx(row["sigma_printed"], rel=0.006)


def test_the_table_has_a_line_for_every_printed_value_that_was_measured() -> None:
    rows = compute(Scale(quick=True))
    drawn = draw(rows)
    lines = [line for line in drawn.markdown.splitlines() if line.startswith(("| MNIST", "| CIFAR-10"))]
    assert len(lines) == len(rows) == 6
    assert all(str(paper.NOISE_TABLE["mnist"][eps]) in lines[k] for k, eps in enumerate((2, 4, 6)))
    assert "B = 1000 and 200 epochs (T = 12,000)" in drawn.markdown
    assert list(drawn.figures) == ["noise-table"]
