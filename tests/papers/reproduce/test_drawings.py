"""What holds for every figure that is drawn from runs: same rows, same bytes; a stamp where values are un-noised."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import test_ablation
import test_batch_tradeoff
import test_budget_curve
import test_energy
import test_gradient_histogram
import test_pruning
import test_retention
import test_systems
from ablation_rows import tuning_rows

from adadpigu_paper.reproduce import ablation, looks, stand_in
from adadpigu_paper.reproduce.artefact import STAMP, Artefact, Scale
from adadpigu_paper.reproduce.batch_tradeoff import BATCH_TRADEOFF
from adadpigu_paper.reproduce.budget_curve import BUDGET_CURVE
from adadpigu_paper.reproduce.energy import ENERGY
from adadpigu_paper.reproduce.gradient_histogram import GRADIENT_HISTOGRAM
from adadpigu_paper.reproduce.gradient_looks import LOOKS_HERE
from adadpigu_paper.reproduce.jobs import Row, run_job
from adadpigu_paper.reproduce.keeping import write
from adadpigu_paper.reproduce.pruning import PRUNING_CURVES, PRUNING_SWEEP
from adadpigu_paper.reproduce.retention import RETENTION
from adadpigu_paper.reproduce.systems import SYSTEMS_TABLE


def of_ablation() -> list[Row]:
    return test_ablation.rows_of(ablation.test_jobs(Scale(quick=False), test_ablation.all_rates(2)), {}) + tuning_rows(
        {}
    )


def of_pruning() -> list[Row]:
    return test_pruning.made_up(test_pruning.in_the_papers_order, seeds=2)


def of_retention() -> list[Row]:
    clocked = test_retention.clocked({None: [0.5, 0.6], 0.5: [0.9, 0.8], 1.0: [1.0, 1.1]})
    return [*test_retention.runs({0.1: -0.01}, seeds=2), *clocked]


ROWS: list[tuple[Artefact, Callable[[], list[Row]]]] = [
    (ablation.ABLATION, of_ablation),
    (BATCH_TRADEOFF, lambda: test_batch_tradeoff.made_up(test_batch_tradeoff.by_rate)),
    (BUDGET_CURVE, test_budget_curve.made_up),
    (ENERGY, test_energy.made_up),
    (GRADIENT_HISTOGRAM, test_gradient_histogram.made_up),
    (PRUNING_CURVES, of_pruning),
    (PRUNING_SWEEP, of_pruning),
    (RETENTION, of_retention),
    (SYSTEMS_TABLE, lambda: test_systems.made_up({"gep": 1.0})),
]
EXPOSED = {"budget-curve", "energy", "gradient-histogram"}


@pytest.mark.parametrize(("artefact", "make"), ROWS, ids=[artefact.name for artefact, _ in ROWS])
def test_no_drawing_depends_on_the_order_of_rows_and_un_noised_values_carry_the_stamp(
    artefact: Artefact, make: Callable[[], list[Row]], tmp_path: Path
) -> None:
    rows = json.loads(json.dumps(make()))
    for folder, given in (("a", rows), ("b", random.Random(3).sample(rows, len(rows)))):
        drawn = artefact.draw(given)
        json.dumps(list(drawn.rows), allow_nan=False)
        write(artefact.name, drawn, tmp_path / folder)
    pages = sorted((tmp_path / "a/paper").iterdir())
    assert {path.suffix for path in pages} == {".md", ".png"}
    for page in pages:
        assert page.read_bytes() == (tmp_path / "b/paper" / page.name).read_bytes(), page.name
    stamped = [STAMP in (tmp_path / f"a/paper/{artefact.name}.md").read_text(), drawn.exposed]
    stamped += [any(STAMP in text.get_text() for text in figure.texts) for figure in drawn.figures.values()]
    assert set(stamped) == {artefact.name in EXPOSED}


def check_energy(lines: list[Row]) -> None:
    for line in lines:
        grown = 0.6 + 0.4 * (line["step"] - 31) / 59  # from r at the first step of stage 2 to 1 at its last
        assert line["kept"] <= line["most"]
        assert line["chance"] == pytest.approx(grown if line["stage"] == "training" else 1.0, abs=0.01)


def check_histogram(lines: list[Row]) -> None:
    assert {line["method"] for line in lines} == {"sgd", "adadpigu"}
    assert all(0 < line["mean"] <= 100 for line in lines)


@pytest.mark.parametrize(
    ("artefact", "measured", "check"),
    [
        (ENERGY, {"adadpigu"}, check_energy),
        (GRADIENT_HISTOGRAM, {"sgd", "adadpigu"}, check_histogram),
        (RETENTION, {"adadpigu"}, len),
    ],
)
def test_a_quick_version_runs_on_digits_where_mnist_is_not_cached(
    artefact: Artefact, measured: set[str], check: Callable[[list[Row]], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stand_in, "at_hand", lambda _: False)
    for name, look in LOOKS_HERE.items():
        monkeypatch.setitem(looks.LOOKS, name, look)
    assert artefact.jobs is not None
    quick = artefact.jobs(Scale(quick=True))
    assert {job.config["dataset"] for job in quick} == {"digits"}
    first = {job.config["method"]: job for job in reversed(quick) if job.config["method"] in measured}
    rows = [run_job(job, "cpu") for job in first.values()]
    assert all(row.get("exposed", False) == (artefact.name in EXPOSED) for row in rows)
    drawn = artefact.draw(rows)
    assert "digits stand in for it" in drawn.markdown
    assert "planned" not in drawn.markdown or artefact is not RETENTION
    check(list(drawn.rows))
