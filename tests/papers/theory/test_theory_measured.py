"""The page's rows: corrected bounds hold in all, printed ones fail somewhere in each claim, and all of it is drawn."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from adadpigu_paper.reproduce import keeping
from adadpigu_paper.reproduce.theory import THEORY
from adadpigu_paper.theory.drawing import draw, violated
from adadpigu_paper.theory.measured import BIAS, FIRST, LEMMA, POISSON, SECOND, THIRD, WALK, Row, measure_rows


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return measure_rows(quick=True)


def test_rows_survive_json_and_are_the_same_again(rows: list[Row]) -> None:
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows == measure_rows(quick=True)


def test_no_corrected_bound_is_violated_and_every_printed_one_is(rows: list[Row]) -> None:
    """Seeded, so that it passes or fails once and for all."""
    assert not [row for row in rows if violated(row, "corrected")]
    assert {row["claim"] for row in rows if violated(row, "printed")} == {LEMMA, POISSON, FIRST, SECOND, THIRD}
    assert [row for row in rows if row["claim"] == FIRST and violated(row, "proof")]


def test_a_violation_is_told_on_either_side(rows: list[Row]) -> None:
    base = {"measured": 1.0, "standard_error": 0.1, "printed": None}
    assert violated({**base, "claim": FIRST, "corrected": 0.5}, "corrected")
    assert not violated({**base, "claim": FIRST, "corrected": 0.7}, "corrected")
    assert violated({**base, "claim": LEMMA, "corrected": 1.5}, "corrected")
    assert not violated({**base, "claim": LEMMA, "corrected": 0.5}, "corrected")
    assert not violated({**base, "claim": BIAS, "corrected": 2.0}, "printed")


def test_the_straight_walk_and_the_still_run_are_within_a_tenth_of_their_bounds(rows: list[Row]) -> None:
    for row in rows:
        if row["problem"] in (WALK, "still"):
            assert row["measured"] == pytest.approx(row["corrected"], rel=0.1)


def test_the_table_has_a_line_a_row_and_the_figure_a_labelled_panel_a_claim(rows: list[Row]) -> None:
    table, figure = draw(rows)
    assert len(table.splitlines()) == 2 + len(rows)
    marked = [row for row in rows for bound in ("printed", "proof") if bound in row and violated(row, bound)]
    assert table.count("violated") == len(marked)
    assert len(figure.axes) == 6
    for axes in figure.axes:
        assert axes.get_xlabel()
        assert axes.get_ylabel()
        assert axes.get_legend() is not None


def test_the_page_links_what_the_committed_rows_draw() -> None:
    root = Path(__file__).parents[3]
    page = (root / "docs" / "theory.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\((\.\./[^)]+)\)", page))
    assert linked == {"../results/paper/theory.md", "../results/paper/theory.png"}
    assert (root / "results" / "paper" / "theory.png").is_file()
    drawn = THEORY.draw(keeping.rows_of(THEORY, root / "results")).markdown
    assert (root / "results" / "paper" / "theory.md").read_text(encoding="utf-8") == drawn.rstrip("\n") + "\n"
