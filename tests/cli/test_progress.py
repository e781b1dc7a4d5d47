"""The live bar, on a terminal that is not there."""

from __future__ import annotations

import io

from rich.console import Console

from adadpigu.console import Progress
from adadpigu.methods import DPSGD
from adadpigu.training import train_prepared
from trials import prepare_small


def test_the_bar_shows_step_epsilon_accuracy_and_speed() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=160, color_system=None)
    train_prepared(prepare_small(DPSGD(), sigma=None, evaluate_every=2), observers=[Progress(console)])
    shown = screen.getvalue()
    for words in ("dpsgd on digits", "8/8", "of 3.99", "test ", "steps/s", "training"):
        assert words in shown, words


def test_elsewhere_a_line_is_printed_for_each_look() -> None:
    screen = io.StringIO()
    train_prepared(
        prepare_small(DPSGD(), sigma=None, evaluate_every=4),
        observers=[Progress(Console(file=screen, force_terminal=False, width=160))],
    )
    lines = [line for line in screen.getvalue().splitlines() if "step" in line and "/8" in line]
    assert len(lines) == 2
    assert "step 8/8" in lines[-1]
