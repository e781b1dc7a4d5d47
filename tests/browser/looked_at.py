"""A browser, and real runs to look at in it; without a browser the tests are skipped, and the summary warns of it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import MISSING, Chromium

from run_folders import died, resumed, trained

if MISSING:
    warnings.warn(MISSING, stacklevel=1)
needs_browser = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of four runs: two methods, one without a guarantee, and one that crashed and was resumed."""
    folder = tmp_path_factory.mktemp("runs")
    trained(folder / "mask")
    trained(folder / "plain", "--method", "dpsgd", "--diagnostics")
    trained(folder / "open-book", "--reproducible-noise")
    resumed(died(folder / "crashed"))
    return folder
